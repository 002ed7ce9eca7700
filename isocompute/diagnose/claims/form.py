"""The claim about the form of a learning curve: a sigmoid extrapolates better than a power law."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from isocompute.diagnose.claims.model import Claim, Statement
from isocompute.diagnose.claims.setups import Study
from isocompute.diagnose.claims.statistics import above, mean_of
from isocompute.law.curve import Curve, upper_bound
from isocompute.law.families import HILL, POWER, Family
from isocompute.law.solver import Batch, evaluate, solve

__all__ = ["about_form"]

_POINTS = 12
_RUNS = 5


def about_form(study: Study) -> Iterator[Claim]:
    """Fit the first half of every run by both, and predict its last tenth."""
    what = Statement(
        "sigmoid_beats_power",
        "A sigmoid fitted to the first half of a run predicts its end better than a power law.",
        "ScaleRL section 2.1, appendix A.4",
    )
    gains: dict[str, float] = {}
    for setup in study.setups:
        for run in setup.runs:
            made = study.curves([run])
            gain = None if made is None else _gain(made[0][0], study)
            if gain is not None:
                gains[run.name] = gain
    if len(gains) < _RUNS:
        yield what.lacks(f"at least {_RUNS} runs with {_POINTS} evaluations, {_POINTS // 2} of them in the first half")
        return
    difference = mean_of(list(gains.values()))
    verdict = above(difference.interval)
    yield what.judged(
        verdict,
        statistic={
            "value": difference.value,
            "unit": "error at the end, of the scale: power law less sigmoid",
            "sigmoid_better": sum(gain > 0 for gain in gains.values()),
            "curves": len(gains),
            "rule": f"{difference.rule} runs",
        },
        interval=difference.interval,
        needs="more runs, or longer ones: the errors do not differ" if verdict == "undecided" else None,
        runs=tuple(gains),
    )


def _gain(curve: Curve, study: Study) -> float | None:
    """Error of the power law less that of the sigmoid, of the curve's scale; None where it is too short to say."""
    half = int((curve.compute_C <= 0.5 * curve.compute_C[-1]).sum())
    if len(curve.compute_C) < _POINTS or half < _POINTS // 2 or np.ptp(curve.values_C[:half]) == 0:
        return None
    last = curve.compute_C >= 0.9 * curve.compute_C[-1]
    truth = float(curve.values_C[last].mean())
    errors = [abs(_predict(curve, half, family) - truth) for family in (HILL, POWER)]
    return (errors[1] - errors[0]) / study.scale(curve.values_C)


def _predict(curve: Curve, half: int, family: Family) -> float:
    compute_C, values_C = curve.compute_C[:half], curve.values_C[:half]
    unit = float(compute_C[compute_C > 0][0])
    batch = Batch(
        compute_GC=(compute_C / unit)[None],
        span_G=np.array([max(float(compute_C[-1]) / unit, 1.0 + 1e-9)]),
        group_R=np.zeros(1, dtype=np.int64),
        values_RC=values_C[None],
        weights_RC=np.ones((1, half)),
        upper=upper_bound(curve.values_C),
    )
    last_C = curve.compute_C[curve.compute_C >= 0.9 * curve.compute_C[-1]]
    return float(evaluate(family, solve(family, batch), (last_C / unit)[None])[0].mean())
