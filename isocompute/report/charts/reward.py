"""Reward against compute for each n: IsoCompute figures 6, 12 to 14, 16 to 20, 22, 23 and 25.

Each panel shows settings that compete on one frontier: points, fits with 95% bands, and the frontier behind them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt
import numpy as np

from isocompute.core.curve import Curve
from isocompute.core.formatting import number, pair, value
from isocompute.data.compatible import Condition, algorithm, set_size
from isocompute.law.fits import CurveFit
from isocompute.law.frontier import Frontier, frontier
from isocompute.law.law import Law, Tradeoff
from isocompute.law.posterior import around
from isocompute.report.charts.style import (
    INK,
    SIDES,
    Drawing,
    Needs,
    band,
    chart,
    compute_axis,
    fit_data,
    fit_rows,
    named_colours,
    ordered_colours,
    panel,
    point_rows,
    thin,
    title_of,
    unit_name,
    value_axis,
)
from isocompute.report.evidence import Evidence

_TWO_N = "runs at two or more rollouts per problem (n) with the same problems per batch"


# Which settings compete -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Competition:
    """Settings on one frontier, with their runs as they were logged."""

    title: str
    metric: str
    unit: str | None
    fits: tuple[CurveFit, ...]
    frontier: Frontier
    curves: tuple[Curve, ...]


def of_tradeoff(title: str, law: Law, tradeoff: Tradeoff) -> Competition:
    """The settings of one trade-off of a law."""
    names = {curve.name for fit in tradeoff.fits for curve in fit.curves}
    curves = tuple(run.curve for run in law.runs if run.curve.name in names)
    return Competition(title, law.metric, law.unit, tradeoff.fits, tradeoff.frontier, curves)


def _of_metric(evidence: Evidence, metric: str, fits: tuple[CurveFit, ...], *title: str) -> Competition:
    """Settings of another metric than the report's own."""
    known = evidence.curves_in(metric)
    curves = tuple(known[curve.name] for fit in fits for curve in fit.curves)
    front = frontier(fits)
    return Competition(title_of(*title), metric, evidence.unit, fits, front, curves)


def by_problems(fits: Sequence[CurveFit]) -> dict[int | None, tuple[CurveFit, ...]]:
    """The settings of each Bp that was run with two or more n, small Bp first; the key is None if Bp is unknown."""
    groups: dict[int | None, list[CurveFit]] = {}
    for fit in fits:
        if fit.setting[1] is not None:
            groups.setdefault(fit.setting[0], []).append(fit)
    enough = {bp: tuple(group) for bp, group in groups.items() if len({fit.setting[1] for fit in group}) > 1}
    return dict(sorted(enough.items(), key=lambda item: item[0] or 0))


def _fullest(fits: Sequence[CurveFit]) -> int | None:
    """The Bp with the most n, the smallest among equals; None if runs do not log it or none has two n."""
    groups = by_problems(fits)
    return max(groups, key=lambda bp: len({fit.setting[1] for fit in groups[bp]}), default=None)


def fullest_tradeoff(law: Law) -> Tradeoff | None:
    """The trade-off at the Bp with the most n; the joint one if runs do not log their Bp, None if all have one n."""
    if not by_problems(law.settings):
        return None
    bp = _fullest(law.settings)
    return law.joint if bp is None else next(t for t in law.by_problems if t.value == bp)


def _other_sets(evidence: Evidence) -> list[str]:
    """The report's metric on other problem sets: `NAME/avg@k`, or `avg@k/NAME` in some logs."""
    own = evidence.metric
    bare = re.escape(re.sub(r".*?((?:avg|best|worst)@\d+).*", r"\1", own))
    names = dict.fromkeys(name for run in evidence.runs for name in run.metrics)
    fits = re.compile(rf"(?!exact/|train/|val/)[^/]+/{bare}|{bare}/(?!error$).+")
    return [name for name in names if name != own and fits.fullmatch(name)]


# Figures of one recipe ------------------------------------------------------------------------------------------------


def reward_against_compute(evidence: Evidence) -> Drawing | Needs:
    """IsoCompute figure 6: validation reward for each n at one Bp, with fits, 95% bands and the frontier."""
    found = [
        of_tradeoff(title_of(condition.name, _fixed("Bp", tradeoff)), law, tradeoff)
        for condition, law in evidence.laws()
        if (tradeoff := fullest_tradeoff(law)) is not None
    ]
    return _draw(found) if found else Needs(_TWO_N)


def at_fixed_problems(evidence: Evidence) -> Drawing | Needs:
    """IsoCompute figures 16 and 17: reward against compute for each n, a panel for each Bp."""
    found = [
        of_tradeoff(title_of(condition.name, _fixed("Bp", t)), law, t)
        for condition, law in evidence.laws()
        for t in law.by_problems
        if len(law.by_problems) > 1 and len({fit.setting[1] for fit in t.fits}) > 1
    ]
    return _draw(found) if found else Needs("two or more n at each of two or more problems per batch (Bp)")


def at_fixed_batch(evidence: Evidence) -> Drawing | Needs:
    """IsoCompute figures 18 and 19: reward against compute for each n, a panel for each B."""
    found = [
        of_tradeoff(title_of(condition.name, _fixed("B", t)), law, t)
        for condition, law in evidence.laws()
        for t in law.by_batch
        if len({fit.setting[1] for fit in t.fits}) > 1
    ]
    most = max((len(c.fits) for c in found), default=0)
    found = [c for c in found if len(c.fits) >= min(3, most)]
    needs = "runs with the same batch size B = Bp · n and different n, counted in rollouts"
    return _draw(found) if found else Needs(needs)


def joint_frontier(evidence: Evidence) -> Drawing | Needs:
    """IsoCompute figure 22: reward against compute of all (Bp, n), and which of them leads."""
    found = []
    for condition, law in evidence.laws():
        bps, ns = (set(axis) for axis in zip(*(fit.setting for fit in law.settings), strict=True))
        if all(None not in axis and len(axis) > 1 for axis in (bps, ns)) and law.unit != "steps":
            found.append(of_tradeoff(title_of(condition.name), law, law.joint))
    if not found:
        return Needs("runs at two or more Bp and two or more n of one recipe, counted in rollouts, tokens or GPU-hours")
    return _draw(found, bands=False, leaders=True)


def extremely_hard(evidence: Evidence) -> Drawing | Needs:
    """IsoCompute figure 20: best@k and worst@k against compute for each n."""
    hardest = [c for c in evidence.conditions if "extremely" in str(c.ingredient("problems")).lower()]
    metrics = [m for m in (evidence.sibling("best"), evidence.sibling("worst")) if m is not None]
    shown = [(condition, metric) for condition in hardest for metric in metrics]
    found = _in_metrics(evidence, shown, unnamed="extremely hard")
    if not found:
        return Needs(
            "runs at two or more n on problems that the base model never solves in 128 samples "
            "(set = 'extremely_hard'), with best@k and worst@k"
        )
    return _draw(found)


def out_of_distribution(evidence: Evidence) -> Drawing | Needs:
    """IsoCompute figure 23: reward on problem sets that were not trained on."""
    metrics = _other_sets(evidence)
    found = _in_metrics(evidence, [(condition, metric) for metric in metrics for condition in evidence.conditions])
    if not metrics:
        return Needs("an evaluation on another problem set during training (a metric such as aime/avg@4)")
    return _draw(found) if found else Needs(f"{_TWO_N}, with the metric {metrics[0]}")


def _in_metrics(evidence: Evidence, shown: Sequence[tuple[Condition, str]], *, unnamed: str = "") -> list[Competition]:
    """Other metrics of conditions, at the Bp with the most n."""
    out = []
    for condition, metric in shown:
        fits = evidence.fits(condition, metric=metric)
        groups = by_problems(fits)
        if groups:
            out.append(_of_metric(evidence, metric, groups[_fullest(fits)], condition.name or unnamed, metric))
    return out


def _fixed(symbol: str, tradeoff: Tradeoff) -> str:
    return "" if tradeoff.value is None else f"{symbol} = {tradeoff.value}"


# Conditions that differ in one thing ----------------------------------------------------------------------------------


def models(evidence: Evidence) -> Drawing | Needs:
    """IsoCompute figure 12: reward against compute for each n, a panel for each model."""
    return _by(
        evidence,
        lambda condition: condition.ingredient("model"),
        "",
        "runs at two or more n on each of two or more base models (model in run.json)",
        apart_from=lambda condition: condition.rest("model"),
    )


def set_sizes(evidence: Evidence) -> Drawing | Needs:
    """IsoCompute figure 13: reward against compute for each n, a panel for each D."""

    def apart_from_size(condition: Condition) -> str:
        """All settings except the size, and except the set's name if its source or mixture identifies it."""
        known = condition.ingredient("problem_set.source") or condition.ingredient("world.mixture")
        names = ("problems", "problem_set.set", "world.set") if known else ()
        return condition.rest("world.size", "problem_set.size", *names)

    needs = "runs at two or more n on each of two or more sizes of the training set (problems.size in a study)"
    return _by(evidence, set_size, "D = ", needs, apart_from=apart_from_size)


def algorithms(evidence: Evidence) -> Drawing | Needs:
    """IsoCompute figure 25: reward against compute for each n, a panel for each algorithm."""
    return _by(
        evidence,
        algorithm,
        "",
        "runs at two or more n with each of two or more algorithms (recipe.loss and recipe.advantage: GRPO, PPO, "
        "CISPO, …)",
        apart_from=lambda condition: condition.rest("recipe."),
    )


def _by(
    evidence: Evidence,
    of: Callable[[Condition], Any],
    symbol: str,
    needs: str,
    *,
    apart_from: Callable[[Condition], str],
) -> Drawing | Needs:
    """A panel for each condition in a group that differs in one thing: `apart_from` returns the same text for all.

    If several conditions have the same value, the one with the fewest other changes is drawn.
    """
    groups: dict[str, dict[Any, Competition]] = {}
    for condition, law in sorted(evidence.laws(), key=lambda item: item[0].changes):
        which, tradeoff = of(condition), fullest_tradeoff(law)
        if which is not None and tradeoff is not None:
            name = f"{symbol}{which}".rsplit("/", 1)[-1]
            title = condition.name if name in condition.name else title_of(condition.name, name)
            group = groups.setdefault(apart_from(condition), {})
            group.setdefault(which, of_tradeoff(title, law, tradeoff))
    found = [
        competition
        for group in groups.values()
        if len(group) > 1
        for _, competition in sorted(group.items(), key=lambda item: f"{item[0]}".zfill(12))
    ]
    return _draw(found) if found else Needs(needs)


def mixtures(evidence: Evidence) -> Drawing | Needs:
    """IsoCompute figure 14: a row for each training set, a column for each evaluation, a small and a large n."""
    trained = list(dict.fromkeys(str(condition.ingredient("problems")) for condition in evidence.conditions))
    others = {metric.split("/")[0]: metric for metric in _other_sets(evidence) if not metric.startswith("ood/")}
    evaluated = list(dict.fromkeys([*others, *(name for name in trained if name in others)]))
    if len(trained) < 2 or not others:
        return Needs(
            "runs on two or more training mixtures, each evaluated on sets of several difficulties "
            "(problems.out_of_distribution in a study: metrics such as hard/avg@4)"
        )
    found = []
    for condition in evidence.conditions:
        for name in evaluated:
            # The plain metric is on the validation problems of the training set.
            metric = evidence.metric if name == condition.ingredient("problems") else others[name]
            fits = evidence.fits(condition, metric=metric)
            groups = by_problems(fits)
            if groups:
                ordered = sorted(groups[_fullest(fits)], key=lambda fit: fit.setting[1] or 0)
                title = f"trained on {condition.name}, evaluated on {name}"
                found.append(_of_metric(evidence, metric, (ordered[0], ordered[-1]), title))
    if not found:
        return Needs("runs at two or more n on each training mixture")
    return replace(_draw(found), columns=len(evaluated))


# The panel ------------------------------------------------------------------------------------------------------------


def _draw(found: Sequence[Competition], *, bands: bool = True, leaders: bool = False) -> Drawing:
    """Panels that share their colours, with a caption and the data."""
    shades = shades_of([fit for c in found for fit in c.fits])
    panels = [reward_panel(c, shades=shades, bands=bands, leaders=leaders) for c in found]
    sentences = [f"{c.title}: {_sentence(c)}" for c in found]
    if len(found) > 4:
        ends = [(c.title, c.fits[int(c.frontier.best_C[-1])], float(c.frontier.values_C[-1])) for c in found]
        leading = ", ".join(f"{title}: {_name(fit, 'n = ')} ({value(v)})" for title, fit, v in ends)
        sentences = [f"Leading at the largest compute, with the value reached there: {leading}"]
    return Drawing(panels, sentences, {"panels": [_data(c) for c in found]})


def reward_panel(c: Competition, *, shades: Sequence[str], bands: bool = True, leaders: bool = False) -> Any:
    """One panel: points, fits with bands, and the frontier in thick grey behind them."""
    x, y = compute_axis(c.unit), value_axis(c.metric)
    known = c.fits[0].setting[1] is not None
    mine = shades_of(c.fits)
    colour = ordered_colours("n", "n", shades, mine) if known else named_colours("n", "run", shades, shown=mine)
    grey = 0 if known else len(set(mine) & set(shades[len(SIDES) :]))
    place = {shade: -i for i, shade in enumerate(shades)}  # grey ones behind the others
    lines = [
        row
        for fit in sorted(c.fits, key=lambda fit: place[_shade(fit)])
        for row in fit_rows(fit, n=_shade(fit), setting=_name(fit))
    ]
    named = [(label(curve.rollouts_per_problem, curve.name), curve) for curve in c.curves]
    points = [row for n, curve in sorted(named, key=lambda item: place[item[0]]) for row in point_rows(curve, n=n)]
    edge = [
        {"compute": float(x_), "value": float(v)}
        for x_, v in zip(c.frontier.compute_C, c.frontier.values_C, strict=True)
        if np.isfinite(v)
    ]
    which = alt.Detail("setting:N")
    layers = [chart(edge).mark_line(color=INK, strokeWidth=6, opacity=0.16).encode(x=x, y=y)]
    if bands:
        layers.append(band(x, y, lines, colour).encode(detail=which))
    layers += [
        chart(thin(points)).mark_circle(size=11, opacity=0.5).encode(x=x, y=y, color=colour),
        chart(lines)
        .mark_line(strokeWidth=1.7 if bands else 1.2, opacity=1 if bands else 0.6)
        .encode(x=x, y=y, color=colour, detail=which),
    ]
    if leaders:
        layers += _leaders(c, x, y)
    rest = f"in colour the {len(SIDES)} runs that reached highest; {grey} more in grey" if grey else ""
    return panel(*layers, title=c.title, subtitle=rest)


def _leaders(c: Competition, x: alt.X, y: alt.Y) -> list[Any]:
    """Where the lead on the frontier changes: a dot, and the (Bp, n) that leads from there on."""
    front = c.frontier
    begin = {"compute": float(front.compute_C[0]), "value": float(front.values_C[0])}
    rows: list[dict[str, Any]] = [
        {**begin, "name": _name(c.fits[int(front.best_C[0])])},
        *({"compute": s.compute, "value": s.value, "name": _name(c.fits[s.after])} for s in front.switches),
    ]
    ends = [*(row["compute"] for row in rows[1:]), float(front.compute_C[-1])]
    # Short leads get no name: they are noise between similar curves.
    lasting = [row for row, end in zip(rows, ends, strict=True) if end > 1.5 * row["compute"]]
    named: list[dict[str, Any]] = []
    for row in lasting:
        # The first name stands right of its dot, the others left of theirs.
        apart = 16.0 if named and named[-1] is rows[0] else 4.0
        if not named or row["compute"] > apart * named[-1]["compute"]:
            named.append(row)
    dots = chart(lasting or rows).mark_point(color=INK, size=26, filled=True, opacity=1).encode(x=x, y=y)
    first = named[:1] if named and named[0] is rows[0] else []
    later = named[len(first) :]
    text = [chart(first).mark_text(color=INK, align="left", dx=4, dy=-9)] if first else []
    text += [chart(later).mark_text(color=INK, align="right", dx=-4, dy=-9)] if later else []
    return [dots, *(mark.encode(x=x, y=y, text="name:N") for mark in text)]


def _sentence(c: Competition) -> str:
    """Which settings lead first and last, where the lead changes, and the reward at the end."""
    front = c.frontier
    begin, end = (c.fits[int(i)] for i in (front.best_C[0], front.best_C[-1]))
    interval = around(float(front.values_C[-1]), front.values_BC[:, -1])
    crossings = [number(s.compute) for s in front.switches if s.crosses]
    lead = (
        f"{_name(begin, 'n = ')} leads at small and at large budgets"
        if begin is end
        else f"the lead passes from {_name(begin, 'n = ')} to {_name(end, 'n = ')}"
    )
    at = f" (crossing{'s' * (len(crossings) > 1)} at {', '.join(crossings)})" if 0 < len(crossings) <= 5 else ""
    reached = f"{c.metric} {value(float(front.values_C[-1]))} (95% {pair(interval)})"
    return f"{lead}{at}, which reaches {reached} at {number(float(front.compute_C[-1]))} {unit_name(c.unit)}"


def _data(c: Competition) -> dict[str, Any]:
    return {
        "title": c.title,
        "metric": c.metric,
        "unit": c.unit,
        "runs": [
            {
                "run": curve.name,
                "problems_per_batch": curve.problems_per_batch,
                "rollouts_per_problem": curve.rollouts_per_problem,
                "compute": curve.compute_C.tolist(),
                "value": curve.values_C.tolist(),
            }
            for curve in c.curves
        ],
        "fits": [
            {
                "problems_per_batch": fit.setting[0],
                "rollouts_per_problem": fit.setting[1],
                "runs": [curve.name for curve in fit.curves],
                **fit_data(fit),
            }
            for fit in c.fits
        ],
        "switches": [
            {
                "compute": s.compute,
                "from": _name(c.fits[s.before]),
                "to": _name(c.fits[s.after]),
                "value": s.value,
                "crosses": s.crosses,
            }
            for s in c.frontier.switches
        ],
    }


def _name(fit: CurveFit, symbol: str = "") -> str:
    """Bp × n; n alone, after `symbol`, if Bp is unknown; the name of the run if n is unknown."""
    problems, rollouts = fit.setting
    if rollouts is None:
        return fit.curves[0].name
    return f"{symbol}{rollouts}" if problems is None else f"{problems} × {rollouts}"


def label(rollouts: int | None, name: str) -> str:
    """The legend entry of a setting: n if known, else the run."""
    return name if rollouts is None else f"{rollouts}"


def _shade(fit: CurveFit) -> str:
    return label(fit.setting[1], fit.curves[0].name)


def shades_of(fits: Sequence[CurveFit]) -> list[str]:
    """The legend entries: every n in order, or every run with the highest first if n is unknown."""
    ordered = sorted(fits, key=lambda fit: (fit.setting[1] or 0, -float(fit.at(np.array([fit.last]))[0])))
    return list(dict.fromkeys(_shade(fit) for fit in ordered))
