"""Claims about recipes, judged on pairs of runs that differ in one thing at the same allocation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from isocompute.core.curve import Curve, noise_level, scale_of
from isocompute.core.errors import InputError
from isocompute.diagnose.setups import REPLICATES, Difficulty, Pair, Study
from isocompute.diagnose.verdicts import (
    Claim,
    Difference,
    Statement,
    Verdict,
    above,
    combined,
    no_better,
    seed_difference,
)
from isocompute.law.comparison import compare

_Test = Callable[[Mapping[str, Any]], bool]
_LAST_EVALUATIONS = 3
"""Evaluations whose mean is the reward at the end."""
_LOSS_FIELDS = ("loss", "clip_low", "clip_high", "ratio_cap", "ratio_reference")
_MARGIN = 0.04
"""A reward that is higher by less than this share of the scale is no better: twice ScaleRL's error."""


@dataclass(frozen=True)
class _Contrast:
    """A claim that recipe a beats, does not beat or is faster than recipe b, which differs only in `fields`."""

    statement: Statement
    fields: tuple[str, ...]
    is_a: _Test
    is_b: _Test
    kind: Literal["reward", "ceiling", "speed", "no_better"]
    difficulty: Difficulty | None = None


def _is(key: str, value: Any) -> _Test:
    return lambda recipe: recipe.get(key) == value


def _regularised(recipe: Mapping[str, Any]) -> bool:
    return bool(recipe.get("kl_coef")) and bool(recipe.get("entropy_coef"))


def _bare(recipe: Mapping[str, Any]) -> bool:
    return recipe.get("kl_coef") == 0 and recipe.get("entropy_coef") == 0


def _scaling(other: str) -> _Contrast:
    text = f"A learning rate that grows with √B beats a {other} one."
    needs = (
        f"runs with recipe.lr_scaling = 'sqrt' and '{other}', all else equal, at a batch far from lr_reference_batch"
    )
    statement = Statement(f"sqrt_beats_{other}", text, "IsoCompute section 3, figure 4", needs)
    return _Contrast(statement, ("lr_scaling",), _is("lr_scaling", "sqrt"), _is("lr_scaling", other), "reward")


def _regularisers(verb: str, difficulty: Difficulty) -> _Contrast:
    text = f"KL and entropy terms {verb} on {difficulty} problems."
    article = "an" if difficulty == "easy" else "a"
    needs = f"runs on {article} {difficulty} set with kl_coef and entropy_coef above 0 and with both 0, all else equal"
    statement = Statement(f"regularisers_{verb}_{difficulty}", text, "IsoCompute section 3, figure 3", needs)
    a, b = (_regularised, _bare) if verb == "help" else (_bare, _regularised)
    return _Contrast(statement, ("kl_coef", "entropy_coef"), a, b, "reward", difficulty)


def _loss(name: str) -> _Contrast:
    text = f"{name.upper()} reaches a higher ceiling than a clipped (DAPO) loss."
    needs = f"runs with recipe.loss = '{name}' and 'clip', all else equal, long enough to near their ceilings"
    statement = Statement(f"{name}_raises_ceiling", text, "ScaleRL section 3.2, figure 5a", needs)
    return _Contrast(statement, _LOSS_FIELDS, _is("loss", name), _is("loss", "clip"), "ceiling")


_CONTRASTS = (
    _scaling("constant"),
    _scaling("linear"),
    _regularisers("help", "easy"),
    _regularisers("hurt", "hard"),
    _Contrast(
        Statement(
            "decoupled_baseline_same",
            "A baseline from more rollouts than are trained on does no better than the small n alone.",
            "IsoCompute appendix G, figure 26",
            "runs with and without recipe.baseline_rollouts at one n, three seeds each",
        ),
        ("baseline_rollouts",),
        lambda recipe: bool(recipe.get("baseline_rollouts")),
        lambda recipe: "baseline_rollouts" in recipe and recipe["baseline_rollouts"] is None,
        "no_better",
    ),
    _loss("cispo"),
    _loss("gspo"),
    _Contrast(
        Statement(
            "fp32_head_raises_ceiling",
            "Logits in FP32 raise the ceiling.",
            "ScaleRL section 3.2, figure 5b",
            "runs with recipe.fp32_head = true and false, all else equal, long enough to near their ceilings",
        ),
        ("fp32_head",),
        _is("fp32_head", True),
        _is("fp32_head", False),
        "ceiling",
    ),
    _Contrast(
        Statement(
            "pipeline_is_faster",
            "PipelineRL gets half-way with less compute than off-policy batches.",
            "ScaleRL section 3.1, figure 4a",
            "runs with recipe.pipeline_steps above 0 and with off_policy_steps above 1, all else equal, in GPU-hours",
        ),
        ("pipeline_steps", "off_policy_steps", "updates_per_batch"),
        lambda recipe: bool(recipe.get("pipeline_steps")),
        lambda recipe: not recipe.get("pipeline_steps") and (recipe.get("off_policy_steps") or 1) > 1,
        "speed",
    ),
)


def about_recipes(study: Study) -> Iterator[Claim]:
    """Every claim about a pair of recipes."""
    for contrast in _CONTRASTS:
        pairs = study.pairs(contrast.fields, contrast.is_a, contrast.is_b, difficulty=contrast.difficulty)
        judged = _judge(study, contrast, list(pairs))
        yield judged if judged is not None else contrast.statement.lacks()


def _judge(study: Study, contrast: _Contrast, pairs: Sequence[Pair]) -> Claim | None:
    found: list[tuple[Pair, Difference]] = []
    unsure: list[str] = []
    scale = 1.0
    for pair in pairs:
        sides = [study.curves(side) for side in pair]
        if sides[0] is None or sides[1] is None or sides[0][1] != sides[1][1]:
            continue
        a, b = sides[0][0], sides[1][0]
        scale = scale_of(np.concatenate([c.values_C for c in (*a, *b)]))
        if contrast.kind in ("reward", "no_better"):
            found.append((pair, _rewards_at_end(a, b, scale)))
            continue
        difference, why = _by_fit(a, b, contrast.kind)
        if difference is not None:
            found.append((pair, difference))
        if why:
            unsure.append(why)
    if not found:
        return None
    total = combined([difference for _, difference in found])
    verdict: Verdict = (
        no_better(total.interval, _MARGIN * scale) if contrast.kind == "no_better" else above(total.interval)
    )
    needs = "more seeds: the difference is not significant"
    if unsure:
        verdict, needs = "undecided", unsure[0]
    units = {"speed": "log2 of compute to half-way, the other over this", "ceiling": "ceiling, this less the other"}
    statistic = {
        "value": total.value,
        "unit": units.get(contrast.kind, "reward at the end, this less the other"),
        "rule": total.rule,
        "allocations": len(found),
    }
    runs = [run.name for (a, b), _ in found for run in (*a, *b)]
    return contrast.statement.judged(verdict, total.interval, statistic, needs=needs, runs=runs)


def _rewards_at_end(a: Sequence[Curve], b: Sequence[Curve], scale: float) -> Difference:
    """Difference of the mean last evaluations at the compute that all runs reached, collapses included."""
    end = min(float(curve.compute_C[-1]) for curve in (*a, *b))
    # Repetitions may share a seed or log none; they are then identified by name.
    seeds = [[curve.seed for curve in side] for side in (a, b)]
    by_seed = all(None not in side and len(set(side)) == len(side) for side in seeds)

    def ends(curves: Sequence[Curve]) -> dict[int | str, tuple[float, float]]:
        out: dict[int | str, tuple[float, float]] = {}
        for curve in curves:
            values_C = curve.values_C[curve.compute_C <= end * (1 + 1e-9)]
            last_C = values_C[-_LAST_EVALUATIONS:] if len(values_C) else curve.values_C[:1]
            key = curve.seed if by_seed and curve.seed is not None else curve.name
            out[key] = float(last_C.mean()), noise_level(curve.values_C) / math.sqrt(len(last_C))
        return out

    return seed_difference(ends(a), ends(b), scale=scale)


def _by_fit(a: Sequence[Curve], b: Sequence[Curve], kind: str) -> tuple[Difference | None, str | None]:
    """Difference in ceiling or speed by `isocompute compare`, and why it is undecided, if it is."""
    try:
        result = compare(a, b, replicates=REPLICATES)
    except InputError as error:
        return None, str(error)
    if kind == "ceiling":
        why = "longer runs: a ceiling lies far above what was reached" if result.higher == "undecided" else None
        value, (low, high) = result.difference, result.interval
    else:
        why = "longer runs: a midpoint lies beyond the data" if result.faster == "undecided" else None
        value, low, high = (
            float(np.log2(max(ratio, 1e-12))) for ratio in (result.speed_ratio, *result.speed_ratio_interval)
        )
    if min(len(a), len(b)) == 1:  # both sides have a seed error; `compare` counts one
        low, high = (value + math.sqrt(2.0) * (end - value) for end in (low, high))
    return Difference(value, (low, high), result.error_rule), why
