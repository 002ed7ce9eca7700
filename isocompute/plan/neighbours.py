"""What neighbouring settings say of a setting: n = 64 between n = 32 and n = 128 is no island.

A measured value is off by what its seeds and evaluations gave, and the best of several such values is most likely one
that was lucky. But reward changes little from one n, or one Bp, to the next. So the values v of all settings at the
budget are taken as a smooth function f of log n and log Bp, a Gaussian process around an unknown level, seen with the
error that the law gives each of them (universal kriging: Rasmussen and Williams 2006, section 2.7). With the prior's
covariance K and the errors' variances N,

    estimate = M v,   M = 1 wᵀ + K (K + N)⁻¹ (I - 1 wᵀ),   w = (K + N)⁻¹ 1 / 1ᵀ (K + N)⁻¹ 1,

and what f may be beside that is, for draws g of the prior and e of the errors, M e + (I - M) g. How far settings differ
at all is the scale of K: members have scales in proportion to how likely these make the values. Precise values are
hardly moved, noisy ones lean on their neighbours. On sweeps of one seed that loses half of what following each value
does (docs/planning.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isocompute.allocation import Allocation
from isocompute.arrays import Array
from isocompute.plan.advice import Warned
from isocompute.plan.decision import TOLERANCE, Ranked
from isocompute.words import value

__all__ = ["borrow", "higher_by_itself"]

LENGTH_ROLLOUTS, LENGTH_PROBLEMS = 2.5, 3.0
"""Doublings of n, and of Bp, over which values stay alike: a correlation of .92 and .95 between neighbours."""
_SCALES = 4.0 ** np.arange(-2, 4)
"""Of K, in units of the variance between the values."""
_FEWEST = 3
_JITTER = 1e-9


def borrow(values_AB: Array, problems_A: Array, rollouts_A: Array, *, seed: int = 0) -> Array:
    """Values of allocations under every member, each with what the others say of it.

    A row's error is its spread over the members, without what all rows share there: that favours none. Members stay
    what they are, draws of what is true: where one has a setting high, it still has.
    """
    mean_A, settings = values_AB.mean(axis=1), len(values_AB)
    spread = float(mean_A.var())
    if settings < _FEWEST or spread == 0.0:
        return values_AB
    one_AA = np.eye(settings)
    noise_AA = np.diag(_own_variances(values_AB)) + _JITTER * spread * one_AA
    priors = [scale * spread * _likeness(problems_A, rollouts_A) for scale in _SCALES]
    evidence_S = np.array([_evidence(mean_A, prior_AA + noise_AA) for prior_AA in priors])
    chance_S = np.exp(evidence_S - evidence_S.max())
    chance_S /= chance_S.sum()
    members = values_AB.shape[1]
    scale_B = np.searchsorted(np.cumsum(chance_S), (np.arange(members) + 0.5) / members)
    normal_AB = np.random.default_rng([seed, 3]).standard_normal(values_AB.shape)
    out_AB, expected_A = np.empty_like(values_AB), np.zeros(settings)
    for i, prior_AA in enumerate(priors):
        lean_AA, own_B = _leaning(prior_AA, noise_AA), scale_B == i
        expected_A += chance_S[i] * (lean_AA @ mean_A)
        prior_AB = np.linalg.cholesky(prior_AA + _JITTER * prior_AA[0, 0] * one_AA) @ normal_AB[:, own_B]
        out_AB[:, own_B] = lean_AA @ values_AB[:, own_B] + prior_AB - lean_AA @ prior_AB
    return np.asarray(out_AB + (expected_A - out_AB.mean(axis=1))[:, None])  # not by which members had which scale


def _own_variances(values_AB: Array) -> Array:
    """Variance of each row over the members without what all rows share, an effect of the member (Grubbs 1948)."""
    count = len(values_AB)
    around_A = (values_AB - values_AB.mean(axis=0)).var(axis=1)
    total = around_A.sum() * count / (count - 1)
    return np.asarray(np.maximum((around_A - total / count**2) * count / (count - 2), 0.0))


def _likeness(problems_A: Array, rollouts_A: Array) -> Array:
    """Correlations of the prior."""
    at_A2 = np.stack([np.log2(problems_A) / LENGTH_PROBLEMS, np.log2(rollouts_A) / LENGTH_ROLLOUTS], axis=1)
    apart_AA = ((at_A2[:, None] - at_A2[None]) ** 2).sum(axis=2)
    return np.asarray(np.exp(-0.5 * apart_AA))


def _level(covariance_AA: Array) -> Array:
    """Weights of the values in their common level."""
    solved_A = np.linalg.solve(covariance_AA, np.ones(len(covariance_AA)))
    return np.asarray(solved_A / solved_A.sum())


def _evidence(mean_A: Array, covariance_AA: Array) -> float:
    """Log-likelihood of the values whatever their level (restricted maximum likelihood), up to a constant."""
    off_A = mean_A - _level(covariance_AA) @ mean_A
    _, log_size = np.linalg.slogdet(covariance_AA)
    precision = float(np.linalg.solve(covariance_AA, np.ones(len(mean_A))).sum())
    return float(-0.5 * (off_A @ np.linalg.solve(covariance_AA, off_A) + log_size + np.log(precision)))


def _leaning(prior_AA: Array, noise_AA: Array) -> Array:
    """M: rows add up to 1."""
    both_AA, one_A = prior_AA + noise_AA, np.ones(len(prior_AA))
    level_AA = np.outer(one_A, _level(both_AA))
    follow_AA = np.linalg.solve(both_AA, prior_AA).T
    return np.asarray(level_AA + follow_AA @ (np.eye(len(one_A)) - level_AA))


def higher_by_itself(targets: Sequence[Allocation], ranking: Sequence[Ranked]) -> list[Warned]:
    """Say so where a setting measured higher than the chosen one, which its neighbours do not bear out."""
    chosen, highest = ranking[0], max(ranking, key=lambda ranked: ranked.value)
    if highest.value <= chosen.value + TOLERANCE:
        return []
    other, own = (
        f"{targets[r.index].problems_per_batch} × {targets[r.index].rollouts_per_problem}" for r in (highest, chosen)
    )
    return [
        Warned(
            "neighbours",
            f"{other} measured higher by itself ({value(highest.value)}, {own} {value(chosen.value)}); the settings "
            "next to it do not bear that out, and the choice and the regrets count them, too",
        )
    ]
