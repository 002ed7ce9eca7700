"""Reward against compute for each n (IsoCompute figures 6, 16 to 20, 22 and 23)."""

from __future__ import annotations

import re

from isocompute.law.law import Law, Tradeoff
from isocompute.report.charts.competition import by_problems, draw_competitions, fullest, of_fits, of_tradeoff
from isocompute.report.evidence import Evidence
from isocompute.report.model import Drawing, Needs

__all__ = [
    "at_fixed_batch",
    "at_fixed_problems",
    "elsewhere",
    "extremely_hard",
    "fullest_tradeoff",
    "joint_frontier",
    "other_sets",
    "reward_against_compute",
]

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
