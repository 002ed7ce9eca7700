"""Histograms of pass rates over problems, at one compute and over training (IsoCompute figures 11 and 27)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from isocompute.core.formatting import number, value
from isocompute.core.run import Run
from isocompute.data.compatible import Condition
from isocompute.data.pass_rates import PassRates
from isocompute.report.charts.style import HEAT, Drawing, Needs, chart, compute_axis, named_colours, panel, title_of
from isocompute.report.evidence import Evidence

_NEEDS = (
    "pass rates of the problems over training (pass_rates.jsonl in a run's folder, or veRL's rollout dumps) at two "
    "or more n of one recipe"
)
_CLASSES = {0.01: "1%", 0.02: "2%", 0.05: "5%", 0.1: "10%", 0.2: "20%", 0.5: "50%", 1.0: "100%"}
_CONDITIONS = 6
_COLUMNS = 24
"""At most this many steps of a run are drawn over time."""


def at_one_compute(evidence: Evidence) -> Drawing | Needs:
    """IsoCompute figure 11: the histogram of pass rates for a small and a large n at the same compute."""
    panels, sentences, data = [], [], []
    for condition in evidence.conditions[:_CONDITIONS]:
        pair = _small_and_large(condition, evidence)
        if pair is None:
            continue
        name = title_of(condition.name)
        compute = min(_rollouts(run, rates[-1].step) for run, rates in pair)
        found = [(run, _nearest(run, rates, compute)) for run, rates in pair]
        bins = _bins(r for _, r in found)
        panels.append(_histogram_panel(f"{name} · at {number(compute)} rollouts", found, bins))
        (small, a), (large, b) = found
        sentences.append(
            f"{name}, at {number(compute)} rollouts: {a.zero:.1%} of {_measured(a)} are never solved with n = "
            f"{small.settings.rollouts_per_problem} and {b.zero:.1%} of {_measured(b)} with n = "
            f"{large.settings.rollouts_per_problem}; mean pass rates {value(a.mean)} and {value(b.mean)}"
        )
        data.append({"title": name, "compute": compute, "histograms": [_data(run, r, bins) for run, r in found]})
    return Drawing(panels, sentences, {"panels": data}) if panels else Needs(_NEEDS)


def over_training(evidence: Evidence) -> Drawing | Needs:
    """IsoCompute figure 27: the histogram of pass rates over training for a small and a large n."""
    panels, sentences, data = [], [], []
    for condition in evidence.conditions[:_CONDITIONS]:
        pair = _small_and_large(condition, evidence)
        for run, rates in pair or ():
            title = title_of(condition.name, _allocation(run))
            bins = _bins(rates)
            panels.append(_heat_panel(title, run, rates, bins))
            sentences.append(
                f"{title}: from the first to the last point the share of unsolved problems goes from "
                f"{rates[0].zero:.1%} to {rates[-1].zero:.1%}, the share above .95 from {rates[0].share_K[-1]:.1%} to "
                f"{rates[-1].share_K[-1]:.1%}"
            )
            data.append({"title": title, "histograms": [_data(run, r, bins) for r in rates]})
    return Drawing(panels, sentences, {"panels": data}, columns=2) if panels else Needs(_NEEDS)


Logged = tuple[Run, tuple[PassRates, ...]]


def _small_and_large(condition: Condition, evidence: Evidence) -> tuple[Logged, Logged] | None:
    """Two runs of one Bp with the smallest n and the largest n of at most 32 times that.

    The paper compares 8 and 128. At the same compute, a run with an n hundreds of times larger has made few updates.
    Both pass rates must be measured in the same way. Exact ones come first, then evaluations with equally many samples
    of each problem, then the counts of training batches, which have n samples for each problem.
    """
    logged: dict[tuple[str, int | None], dict[int, Logged]] = {}
    for run in condition.runs:
        n = run.settings.rollouts_per_problem
        everything = [r for r in evidence.pass_rates(run) if r.step > 0] if n is not None else []
        for name in dict.fromkeys(r.set for r in everything):
            mine = tuple(r for r in everything if r.set == name)
            logged.setdefault((name, run.settings.problems_per_batch), {}).setdefault(n or 0, (run, mine))
    enough = {key: runs for key, runs in logged.items() if len(runs) > 1}
    if not enough:
        return None
    runs = enough[min(enough, key=lambda key: (*_fairness(enough[key]), key[0] != "validation", key[1] or 0))]
    smallest = min(runs)
    larger = [n for n in runs if smallest < n <= 32 * smallest] or [min(n for n in runs if n > smallest)]
    return runs[smallest], runs[max(larger)]


def _fairness(runs: Mapping[int, Logged]) -> tuple[int, int]:
    rates = [r for _, mine in runs.values() for r in mine]
    exact = all(r.samples is None for r in rates)
    alike = len({(r.samples, r.problems) for r in rates}) == 1
    return 0 if exact else 1 if alike else 2, -len(runs)


def _rollouts(run: Run, step: int) -> float:
    settings = run.settings
    return float(step) * (settings.problems_per_batch or 1) * (settings.rollouts_per_problem or 1)


def _nearest(run: Run, rates: Sequence[PassRates], compute: float) -> PassRates:
    return min(rates, key=lambda r: abs(np.log(_rollouts(run, r.step) / compute)))


def _allocation(run: Run) -> str:
    return f"n = {run.settings.rollouts_per_problem}"


def _bins(rates: Iterable[PassRates]) -> int:
    """The number of bins that all histograms can have, for which the fewest samples decide."""
    return min(r.bins for r in rates)


def _histogram_panel(title: str, found: Sequence[tuple[Run, PassRates]], bins: int) -> Any:
    rows = [
        {"rate": k / bins, "share": float(share), "n": _allocation(run)}
        for run, r in found
        for k, share in enumerate([*r.shares(bins), r.shares(bins)[-1]])
    ]
    x = alt.X(
        "rate:Q",
        title="pass rate of a problem",
        scale=alt.Scale(domain=[0, 1], nice=False),
        axis=alt.Axis(tickCount=5),
    )
    y = alt.Y("share:Q", title="share of problems", axis=alt.Axis(format="~%", tickCount=5))
    colour = named_colours("n", None, [_allocation(run) for run, _ in found])
    base = chart(rows)
    return panel(
        base.mark_area(interpolate="step-after", opacity=0.22).encode(
            x=x, y=alt.Y("share:Q", title="share of problems", stack=None), color=colour
        ),
        base.mark_line(interpolate="step-after", strokeWidth=1.8).encode(x=x, y=y, color=colour),
        title=title,
    )


def _heat_panel(title: str, run: Run, rates: Sequence[PassRates], bins: int) -> Any:
    shown = [rates[i] for i in np.unique(np.linspace(0, len(rates) - 1, min(_COLUMNS, len(rates))).astype(int))]
    ends = [_rollouts(run, r.step) for r in shown]
    starts = [ends[0] * 0.8, *ends[:-1]]
    rows = [
        {"compute": start, "end": end, "low": k / bins, "high": (k + 1) / bins, "share": _class(float(share))}
        for start, end, r in zip(starts, ends, shown, strict=True)
        for k, share in enumerate(r.shares(bins))
        if share > 0
    ]
    names = list(_CLASSES.values())
    colour = alt.Color(
        "share:N",
        title="share of problems up to",
        scale=alt.Scale(domain=names, range=list(HEAT)),
        legend=alt.Legend(orient="bottom", columns=len(names), symbolType="square", titleOrient="top"),
    )
    boxes = (
        chart(rows)
        .mark_rect()
        .encode(
            x=compute_axis("rollouts"),
            x2="end:Q",
            y=alt.Y("low:Q", title="pass rate", scale=alt.Scale(domain=[0, 1], nice=False)),
            y2="high:Q",
            color=colour,
        )
    )
    return panel(boxes, title=title)


def _measured(r: PassRates) -> str:
    samples = "" if r.samples is None else f" ({r.samples} samples)" if r.samples else " (n samples per visit)"
    return f"{r.problems} {r.set} problems{samples}"


def _class(share: float) -> str:
    return next(name for bound, name in _CLASSES.items() if share <= bound * (1 + 1e-9))


def _data(run: Run, r: PassRates, bins: int) -> dict[str, Any]:
    return {
        "run": run.name,
        "rollouts_per_problem": run.settings.rollouts_per_problem,
        "step": r.step,
        "rollouts": _rollouts(run, r.step),
        "set": r.set,
        "samples": r.samples,
        "problems": r.problems,
        "zero": r.zero,
        "mean": r.mean,
        "shares": r.shares(bins).tolist(),
    }
