"""Settings that compete on one frontier, as a panel: points, fits with 95% bands, and the frontier behind them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt
import numpy as np

from isocompute.core.curve import Curve
from isocompute.core.formatting import number, pair, value
from isocompute.data.conditions import Condition, algorithm, set_size
from isocompute.law.fits import CurveFit
from isocompute.law.frontier import Frontier, frontier, luck_of
from isocompute.law.law import Law, Tradeoff
from isocompute.law.uncertainty import around
from isocompute.report.charts.recipes import Entry, entries_data, entries_panel
from isocompute.report.charts.style import (
    INK,
    SIDES,
    band,
    chart,
    compute_axis,
    grid_of,
    named_colours,
    ordered_colours,
    panel,
    thin,
    unit_name,
    value_axis,
)
from isocompute.report.evidence import Evidence
from isocompute.report.model import Drawing, Needs

__all__ = [
    "Competition",
    "algorithms",
    "at_fixed_batch",
    "at_fixed_problems",
    "baselines",
    "by_problems",
    "draw_competitions",
    "elsewhere",
    "extremely_hard",
    "fullest",
    "fullest_tradeoff",
    "joint_frontier",
    "label",
    "mixtures",
    "models",
    "of_fits",
    "of_tradeoff",
    "other_sets",
    "reward_against_compute",
    "reward_panel",
    "set_sizes",
    "shades_of",
]


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


def of_fits(title: str, evidence: Evidence, metric: str, fits: tuple[CurveFit, ...]) -> Competition:
    """Settings of another metric than the report's own."""
    known = evidence.curves_in(metric)
    curves = tuple(known[curve.name] for fit in fits for curve in fit.curves)
    return Competition(title, metric, evidence.unit, fits, frontier(fits, luck_SB=luck_of(fits, seed=0)), curves)


def by_problems(fits: Sequence[CurveFit]) -> dict[int | None, tuple[CurveFit, ...]]:
    """The settings of each Bp that was run with two or more n, small Bp first; under None where Bp is unknown."""
    groups: dict[int | None, list[CurveFit]] = {}
    for fit in fits:
        if fit.setting[1] is not None:
            groups.setdefault(fit.setting[0], []).append(fit)
    enough = {bp: tuple(group) for bp, group in groups.items() if len({fit.setting[1] for fit in group}) > 1}
    return dict(sorted(enough.items(), key=lambda item: item[0] or 0))


def fullest(fits: Sequence[CurveFit]) -> int | None:
    """The Bp with the most n, the smallest among equals; None where runs do not say it or none has two n."""
    groups = by_problems(fits)
    return max(groups, key=lambda bp: len({fit.setting[1] for fit in groups[bp]}), default=None)


def label(rollouts: int | None, name: str) -> str:
    """What a colour stands for: n where it is known, else the run."""
    return name if rollouts is None else f"{rollouts}"


def draw_competitions(found: Sequence[Competition], *, bands: bool = True, leaders: bool = False) -> Drawing:
    """Panels with one scale of colours, a caption and the numbers."""
    shades = shades_of([fit for c in found for fit in c.fits])
    panels = [reward_panel(c, shades=shades, bands=bands, leaders=leaders) for c in found]
    sentences = [f"{c.title}: {_sentence(c)}" for c in found] if len(found) <= 4 else [_summary(found)]
    return Drawing(panels, sentences, {"panels": [_data(c) for c in found]})


def reward_panel(c: Competition, *, shades: Sequence[str], bands: bool = True, leaders: bool = False) -> Any:
    """One panel: points, fits with bands, and the frontier in thick grey behind them."""
    x, y = compute_axis(c.unit), value_axis(c.metric)
    known = c.fits[0].setting[1] is not None
    mine = shades_of(c.fits)
    colour = ordered_colours("n", "n", shades, mine) if known else named_colours("n", "run", shades, shown=mine)
    grey = 0 if known else len(set(mine) & set(shades[len(SIDES) :]))
    place = {shade: i for i, shade in enumerate(shades)}
    lines, areas = [], []
    for fit in sorted(c.fits, key=lambda fit: -place[_shade(fit)]):  # grey ones behind the others
        name = _name(fit)
        for x_, v, low, high in zip(*grid_of(fit), strict=True):
            lines.append({"compute": float(x_), "value": float(v), "n": _shade(fit), "setting": name})
            areas.append({"compute": float(x_), "low": low, "high": high, "n": _shade(fit), "setting": name})
    points = [
        {"compute": float(x_), "value": float(v), "n": label(curve.rollouts_per_problem, curve.name)}
        for curve in sorted(c.curves, key=lambda curve: -place[label(curve.rollouts_per_problem, curve.name)])
        for x_, v in zip(curve.compute_C, curve.values_C, strict=True)
        if x_ > 0
    ]
    edge = [
        {"compute": float(x_), "value": float(v)}
        for x_, v in zip(c.frontier.compute_C, c.frontier.values_C, strict=True)
        if np.isfinite(v)
    ]
    which = alt.Detail("setting:N")
    layers = [chart(edge).mark_line(color=INK, strokeWidth=6, opacity=0.16).encode(x=x, y=y)]
    if bands:
        layers.append(band(x, y, areas, colour).encode(detail=which))
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
    rows: list[dict[str, Any]] = [
        {"compute": float(c.frontier.compute_C[0]), "value": float(c.frontier.values_C[0]), "name": _first(c)},
        *({"compute": s.compute, "value": s.value, "name": _name(c.fits[s.after])} for s in c.frontier.switches),
    ]
    ends = [*(row["compute"] for row in rows[1:]), float(c.frontier.compute_C[-1])]
    # Leads of a moment are left without a name: they are noise where curves lie on each other.
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
    text = []
    if first:
        text.append(chart(first).mark_text(color=INK, align="left", dx=4, dy=-9))
    if later:
        text.append(chart(later).mark_text(color=INK, align="right", dx=-4, dy=-9))
    return [dots, *(mark.encode(x=x, y=y, text="name:N") for mark in text)]


def _first(c: Competition) -> str:
    return _name(c.fits[int(c.frontier.best_C[0])])


def _sentence(c: Competition) -> str:
    """Who leads first and last, where the lead changes, and what is reached."""
    front = c.frontier
    begin, end = (c.fits[int(i)] for i in (front.best_C[0], front.best_C[-1]))
    last = float(front.compute_C[-1])
    interval = around(float(front.values_C[-1]), front.values_BC[:, -1])
    crossings = [s for s in front.switches if s.crosses]
    lead = (
        f"{_called(begin)} leads at small and at large budgets"
        if begin is end
        else f"the lead passes from {_called(begin)} to {_called(end)}"
    )
    places = ", ".join(number(s.compute) for s in crossings)
    at = f" (crossing{'s' * (len(crossings) > 1)} at {places})" if 0 < len(crossings) <= 5 else ""
    reached = f"{c.metric} {value(float(front.values_C[-1]))} (95% {pair(interval)})"
    return f"{lead}{at}, which reaches {reached} at {number(last)} {unit_name(c.unit)}"


def _summary(shown: Sequence[Competition]) -> str:
    """Many panels in one sentence: who leads at the end of each."""
    ends = [(c.title, c.fits[int(c.frontier.best_C[-1])], float(c.frontier.values_C[-1])) for c in shown]
    parts = ", ".join(f"{title}: {_called(fit)} ({value(v)})" for title, fit, v in ends)
    return f"Leading at the largest compute, with the value reached there: {parts}"


def _called(fit: CurveFit) -> str:
    problems, rollouts = fit.setting
    if rollouts is None:
        return fit.curves[0].name
    return f"n = {rollouts}" if problems is None else f"{problems} × {rollouts}"


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
        "fits": [_fit_data(fit) for fit in c.fits],
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


def _fit_data(fit: CurveFit) -> dict[str, Any]:
    return {
        "problems_per_batch": fit.setting[0],
        "rollouts_per_problem": fit.setting[1],
        "runs": [curve.name for curve in fit.curves],
        "form": fit.family.name,
        "base": fit.base,
        "ceiling": fit.ceiling,
        "ceiling_interval": list(fit.ceiling_interval()),
        "rise_done": fit.rise_done,
        "parameters": fit.parameters(),
    }


def _name(fit: CurveFit) -> str:
    problems, rollouts = fit.setting
    if rollouts is None:
        return fit.curves[0].name
    return f"{rollouts}" if problems is None else f"{problems} × {rollouts}"


def _shade(fit: CurveFit) -> str:
    return label(fit.setting[1], fit.curves[0].name)


def shades_of(fits: Sequence[CurveFit]) -> list[str]:
    """The domain of the colours: every n, small ones first, or every run, the one that reached highest first."""
    ordered = sorted(fits, key=lambda fit: (fit.setting[1] or 0, -float(fit.at(np.array([fit.last]))[0])))
    return list(dict.fromkeys(_shade(fit) for fit in ordered))


# Reward against compute for each n (IsoCompute figures 6, 16 to 20, 22 and 23).

_TWO_N = "runs at two or more rollouts per problem (n) with the same problems per batch"


def fullest_tradeoff(law: Law) -> Tradeoff | None:
    """The trade-off at the Bp with the most n; the joint one where runs do not say their Bp, None where n is one."""
    groups = by_problems(law.settings)
    if not groups:
        return None
    bp = fullest(law.settings)
    return law.joint if bp is None else next(t for t in law.by_problems if t.value == bp)


def reward_against_compute(evidence: Evidence) -> Drawing | Needs:
    """Figure 6: one panel a condition, at the Bp that was run with the most n."""
    found = []
    for condition, law in evidence.laws():
        tradeoff = fullest_tradeoff(law)
        if tradeoff is not None:
            found.append(of_tradeoff(_title(condition.name, "Bp", tradeoff.value), law, tradeoff))
    return draw_competitions(found) if found else Needs(_TWO_N)


def at_fixed_problems(evidence: Evidence) -> Drawing | Needs:
    """Figures 16 and 17: one panel for each Bp."""
    found = [
        of_tradeoff(_title(condition.name, "Bp", t.value), law, t)
        for condition, law in evidence.laws()
        for t in law.by_problems
        if len(law.by_problems) > 1 and len({fit.setting[1] for fit in t.fits}) > 1
    ]
    return draw_competitions(found) if found else Needs("two or more n at each of two or more problems per batch (Bp)")


def at_fixed_batch(evidence: Evidence) -> Drawing | Needs:
    """Figures 18 and 19: one panel for each batch size B, where Bp and n trade off."""
    found = [
        of_tradeoff(_title(condition.name, "B", t.value), law, t)
        for condition, law in evidence.laws()
        for t in law.by_batch
        if len({fit.setting[1] for fit in t.fits}) > 1
    ]
    most = max((len(c.fits) for c in found), default=0)
    found = [c for c in found if len(c.fits) >= min(3, most)]
    return (
        draw_competitions(found)
        if found
        else Needs("runs with the same batch size B = Bp · n and different n, counted in rollouts")
    )


def joint_frontier(evidence: Evidence) -> Drawing | Needs:
    """Figure 22: all (Bp, n) compete; the frontier says which of them leads where."""
    found = [
        of_tradeoff(condition.name or "all runs", law, law.joint)
        for condition, law in evidence.laws()
        if _both_vary(law) and law.unit != "steps"
    ]
    if not found:
        return Needs("runs at two or more Bp and two or more n of one recipe, counted in rollouts, tokens or GPU-hours")
    return draw_competitions(found, bands=False, leaders=True)


def extremely_hard(evidence: Evidence) -> Drawing | Needs:
    """Figure 20: coverage (best@k) and sharpening (worst@k) on problems that the base model never solves."""
    found = []
    for condition in evidence.conditions:
        if "extremely" not in str(condition.ingredient("problems")).lower():
            continue
        for metric in filter(None, (evidence.sibling("best"), evidence.sibling("worst"))):
            fits = evidence.fits(condition, metric=metric)
            groups = by_problems(fits)
            if groups:
                title = f"{condition.name or 'extremely hard'} · {metric}"
                found.append(of_fits(title, evidence, metric, groups[fullest(fits)]))
    if not found:
        return Needs(
            "runs at two or more n on problems that the base model never solves in 128 samples "
            "(set = 'extremely_hard'), with best@k and worst@k"
        )
    return draw_competitions(found)


def elsewhere(evidence: Evidence) -> Drawing | Needs:
    """Figure 23: the same runs on problems they were not trained for."""
    metrics = other_sets(evidence)
    found = []
    for metric in metrics:
        for condition in evidence.conditions:
            fits = evidence.fits(condition, metric=metric)
            groups = by_problems(fits)
            if groups:
                title = f"{condition.name} · {metric}".strip(" ·")
                found.append(of_fits(title, evidence, metric, groups[fullest(fits)]))
    if not metrics:
        return Needs("an evaluation on another problem set during training (a metric such as aime/avg@4)")
    return draw_competitions(found) if found else Needs(f"{_TWO_N}, with the metric {metrics[0]}")


def other_sets(evidence: Evidence) -> list[str]:
    """Metrics like the report's own on other problem sets: `NAME/avg@k`, or `avg@k/NAME` where logs write that."""
    bare = re.sub(r".*?((?:avg|best|worst)@\d+).*", r"\1", evidence.metric)
    own = evidence.metric
    names = dict.fromkeys(name for run in evidence.runs for name in run.metrics)
    fits = re.compile(rf"(?!exact/|train/|val/)[^/]+/{re.escape(bare)}|{re.escape(bare)}/(?!error$).+")
    return [name for name in names if name != own and fits.fullmatch(name)]


def _title(condition: str, symbol: str, fixed: int | None) -> str:
    return " · ".join(filter(None, (condition, f"{symbol} = {fixed}" if fixed is not None else ""))) or "all runs"


def _both_vary(law: Law) -> bool:
    settings = {fit.setting for fit in law.settings}
    return all(None not in axis and len(axis) > 1 for axis in map(set, zip(*settings, strict=True)))


# Conditions side by side that differ in one thing: the model, the set's size, the training mixture, the algorithm, the
# baseline (IsoCompute figures 12, 13, 14, 25 and 26).

_BASELINE = "recipe.baseline_rollouts"


def models(evidence: Evidence) -> Drawing | Needs:
    """Figure 12: reward against compute for each base model."""
    return _by(
        evidence,
        lambda condition: condition.ingredient("model"),
        "",
        "runs at two or more n on each of two or more base models (model in run.json)",
        apart_from=lambda condition: condition.rest("model"),
    )


def set_sizes(evidence: Evidence) -> Drawing | Needs:
    """Figure 13: reward against compute for each size D of the training set."""
    return _by(
        evidence,
        set_size,
        "D = ",
        "runs at two or more n on each of two or more sizes of the training set (problems.size in a study)",
        apart_from=_set_of_any_size,
    )


def algorithms(evidence: Evidence) -> Drawing | Needs:
    """Figure 25: reward against compute for each algorithm."""
    return _by(
        evidence,
        algorithm,
        "",
        "runs at two or more n with each of two or more algorithms (recipe.loss and recipe.advantage: GRPO, PPO, "
        "CISPO, …)",
        apart_from=lambda condition: condition.rest("recipe."),
    )


def _set_of_any_size(condition: Condition) -> str:
    """All but the size of the set, and but its name where its source or mixture says what it is."""
    sizes = ("world.size", "problem_set.size")
    said = condition.ingredient("problem_set.source") or condition.ingredient("world.mixture")
    return condition.rest(*sizes, *(("problems", "problem_set.set", "world.set") if said else ()))


def _by(
    evidence: Evidence,
    of: Callable[[Condition], Any],
    symbol: str,
    needs: str,
    *,
    apart_from: Callable[[Condition], str],
) -> Drawing | Needs:
    """Panels of the conditions that differ in one thing alone: those with the same text of all that is `apart_from` it.

    Where several conditions have one value of it, the one that is most like the others stands for it.
    """
    groups: dict[str, dict[Any, Competition]] = {}
    for condition, law in sorted(evidence.laws(), key=lambda item: item[0].changes):
        which, tradeoff = of(condition), fullest_tradeoff(law)
        if which is not None and tradeoff is not None:
            name = f"{symbol}{which}".rsplit("/", 1)[-1]
            title = condition.name if name in condition.name else f"{condition.name} · {name}".strip(" ·")
            group = groups.setdefault(apart_from(condition), {})
            group.setdefault(which, of_tradeoff(title, law, tradeoff))
    found = [
        contest
        for group in groups.values()
        if len(group) > 1
        for _, contest in sorted(group.items(), key=lambda item: f"{item[0]}".zfill(12))
    ]
    return draw_competitions(found) if found else Needs(needs)


def mixtures(evidence: Evidence) -> Drawing | Needs:
    """Figure 14: a row for each training set, a column for each evaluation, a small and a large n in each."""
    trained = list(dict.fromkeys(str(condition.ingredient("problems")) for condition in evidence.conditions))
    others = {metric.split("/")[0]: metric for metric in other_sets(evidence) if not metric.startswith("ood/")}
    evaluated = list(dict.fromkeys([*others, *(name for name in trained if name in others)]))
    if len(trained) < 2 or not others:
        return Needs(
            "runs on two or more training mixtures, each evaluated on sets of several difficulties "
            "(problems.out_of_distribution in a study: metrics such as hard/avg@4)"
        )
    found = []
    for condition in evidence.conditions:
        for name in evaluated:
            # A set's own validation problems stand under the plain name.
            metric = evidence.metric if name == condition.ingredient("problems") else others[name]
            two = _small_and_large(evidence.fits(condition, metric=metric))
            if two:
                found.append(of_fits(f"trained on {condition.name}, evaluated on {name}", evidence, metric, two))
    if not found:
        return Needs("runs at two or more n on each training mixture")
    return replace(draw_competitions(found), columns=len(evaluated))


def _small_and_large(fits: Sequence[CurveFit]) -> tuple[CurveFit, ...]:
    groups = by_problems(fits)
    if not groups:
        return ()
    ordered = sorted(groups[fullest(fits)], key=lambda fit: fit.setting[1] or 0)
    return ordered[0], ordered[-1]


def baselines(evidence: Evidence) -> Drawing | Needs:
    """Figure 26: a small group whose baseline is estimated on more rollouts, beside plain small and large groups."""
    needs = Needs(
        "runs of one Bp with a decoupled baseline (recipe.baseline_rollouts = 256 at n = 64, say), beside plain runs "
        "of that n and of that many rollouts"
    )
    laws = evidence.laws()
    plain = {c.rest(_BASELINE): law.settings for c, law in laws if not c.ingredient(_BASELINE)}
    entries: dict[str, Entry] = {}
    for condition, law in laws:
        estimated = condition.ingredient(_BASELINE)
        beside = plain.get(condition.rest(_BASELINE), ())
        for fit in law.settings if estimated else ():
            bp, n = fit.setting
            same = [other for other in beside if other.setting in ((bp, n), (bp, estimated))]
            if same and not entries:
                entries[f"{n}/{estimated}"] = Entry(f"{n}/{estimated}", fit)
                for other in same:
                    name = f"{other.setting[1]}/{other.setting[1]}"
                    entries[name] = Entry(name, other)
    if not entries:
        return needs
    return _baselines(list(entries.values()), evidence)


def _baselines(entries: Sequence[Entry], evidence: Evidence) -> Drawing:
    at = min(entry.fit.last for entry in entries)
    reached = {entry.name: _at(entry.fit, at) for entry in entries}
    order = sorted(reached, key=lambda name: -reached[name][0])
    caption = f"At {number(at)} {evidence.unit} (n trained on / n the baseline is estimated on): " + ", ".join(
        f"{name} reaches {value(reached[name][0])} (95% {pair(reached[name][1])})" for name in order
    )
    shown = entries_panel("n trained on / estimated on", entries, metric=evidence.metric, unit=evidence.unit)
    return Drawing([shown], [caption], entries_data(entries) | {"at": at, "reached": reached})


def _at(fit: CurveFit, compute: float) -> tuple[float, tuple[float, float]]:
    at = np.array([compute])
    estimate = float(fit.at(at)[0])
    return estimate, around(estimate, fit.ensemble.at(at)[:, 0])
