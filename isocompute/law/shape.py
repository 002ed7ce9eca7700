"""The form of a reward curve, one family that contains those of the papers.

    R(C) = R0 + (A - R0) · g(x),   x = C / Cmid
    g(x) = w · (1 - exp(-8 x)) + (1 - w) · (1 - (1 + κ x^B)^-β),   κ = 2^(1/β) - 1

The second term is the Burr XII distribution function, scaled so that it is a half at Cmid:

| β | B | form | source |
| --- | --- | --- | --- |
| 1 | free | Hill | ScaleRL eq. 1 |
| ∞ | 1 | exponential, 1 - exp(-C/τ) | figure 6 of the IsoCompute paper follows it to pixel error |
| ∞ | free | stretched exponential | |
| free | 1 | power law, 1 - (1 + C/s)^-β | Kaplan-style, finite at C = 0 |

With w > 0 a fast first stage, such as learning the answer format, comes before a slow climb.

Learning rates are warmed up, so that first updates do little. The curve therefore counts M² / (M + d) of M updates:
all but d of them once M is large.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Array, Ints

LN2 = float(np.log(2.0))
_FAST = 8.0
"""Ratio of the speeds of the first stage and of the climb."""
LARGEST_TAIL = 6.0
"""From this log β on, the form is an exponential to four digits."""
_FORMS = ("hill", "exponential", "power", "two_stage")
_HILL_TAIL, _TWO_STAGE = float(np.log(3.0)), 0.05


@dataclass(frozen=True)
class Stage:
    """Priors of one kind of curve: (mean, deviation) of log B and of log β (two stages: logit w), and its weight."""

    name: str
    exponent: tuple[float, float]
    tail: tuple[float, float]
    weight: float


ONE, TWO = Stage("one", (0.2, 0.4), (0.6, 1.3), 0.75), Stage("two", (0.2, 0.4), (-0.8, 0.7), 0.25)
STAGES = (ONE, TWO)


def growth(log_x: Array, exponent: Array, tail: Array, stage: Stage) -> Array:
    """g at log x; `exponent` is log B, `tail` is log β for one stage, logit w for two (β = 1)."""
    beta, log_sum = _burr(log_x, exponent, tail if stage is ONE else np.zeros_like(tail))[:2]
    climb = np.asarray(-np.expm1(-beta * log_sum))
    if stage is ONE:
        return climb
    weight = 1.0 / (1.0 + np.exp(-tail))
    return np.asarray(weight * _first_stage(log_x)[0] + (1.0 - weight) * climb)


def growth_and_slopes(log_x: Array, exponent: Array, tail: Array, stage: Stage) -> tuple[Array, Array, Array, Array]:
    """g, and its derivatives with respect to log x, log B and the tail."""
    beta, log_sum, v = _burr(log_x, exponent, tail if stage is ONE else np.zeros_like(tail))
    left = np.exp(-beta * log_sum)
    by_v = left * beta * np.exp(v - log_sum)
    climb, by_x = 1.0 - left, by_v * np.exp(exponent)
    by_exponent = by_x * log_x
    by_tail = left * beta * log_sum - by_v * (LN2 / beta) / -np.expm1(-LN2 / beta)
    if stage is ONE:
        return climb, by_x, by_exponent, by_tail
    weight, (first, first_by_x) = 1.0 / (1.0 + np.exp(-tail)), _first_stage(log_x)
    return (
        np.asarray(weight * first + (1.0 - weight) * climb),
        np.asarray(weight * first_by_x + (1.0 - weight) * by_x),
        np.asarray((1.0 - weight) * by_exponent),
        np.asarray(weight * (1.0 - weight) * (first - climb)),
    )


def _burr(log_x: Array, exponent: Array, tail: Array) -> tuple[Array, Array, Array]:
    """β, log(1 + κ x^B) and log(κ x^B)."""
    beta = np.exp(np.clip(tail, -4.0, LARGEST_TAIL))
    v = np.exp(exponent) * log_x + np.log(np.expm1(LN2 / beta))
    return beta, np.maximum(v, 0.0) + np.log1p(np.exp(-np.abs(v))), v


def _first_stage(log_x: Array) -> tuple[Array, Array]:
    x = _FAST * np.exp(np.minimum(log_x, 50.0))
    left = np.exp(-np.minimum(x, 700.0))
    return 1.0 - left, np.minimum(x, 700.0) * left


def effective_log_compute(compute: Array, batch: float, delay: Array) -> Array:
    """log of compute without what the warm-up loses: `delay` updates of `batch`; a batch of NaN has no delay."""
    compute = np.maximum(compute, 1e-12)
    if np.isnan(batch):
        return np.asarray(np.log(compute) + np.zeros_like(delay))
    return np.asarray(2.0 * np.log(compute) - np.log(compute + delay * batch))


def form_names(tail_B: Array, stage_B: Ints) -> dict[str, float]:
    """Share of samples near each named form.

    >>> form_names(np.array([0.0, 0.2, 5.0, -2.0]), np.array([0, 0, 0, 0]))
    {'hill': 0.5, 'exponential': 0.25, 'power': 0.25, 'two_stage': 0.0}
    """
    two_B = (stage_B == 1) & (tail_B > np.log(_TWO_STAGE))
    tail_B = np.where(stage_B == 1, 0.0, tail_B)
    kinds = np.select([two_B, np.abs(tail_B) <= _HILL_TAIL, tail_B > 0], [3, 0, 1], 2)
    return {name: float((kinds == i).mean()) for i, name in enumerate(_FORMS)}
