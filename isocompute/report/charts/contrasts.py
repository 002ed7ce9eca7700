"""Conditions side by side that differ in one thing: the model, the set's size, the training mixture, the algorithm, the
baseline (IsoCompute figures 12, 13, 14, 25 and 26).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from isocompute.core.formatting import number, pair, value
from isocompute.data.conditions import Condition, algorithm, set_size
from isocompute.law.fits import CurveFit
from isocompute.law.intervals import around
from isocompute.report.charts.competition import (
    Competition,
    by_problems,
    draw_competitions,
    fullest,
    of_fits,
    of_tradeoff,
)
from isocompute.report.charts.entries import Entry, entries_data, entries_panel
from isocompute.report.charts.reward import fullest_tradeoff, other_sets
from isocompute.report.evidence import Evidence
from isocompute.report.model import Drawing, Needs

__all__ = ["algorithms", "baselines", "mixtures", "models", "set_sizes"]

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
