"""What neighbouring settings say of a setting: n = 64 between n = 32 and n = 128 is no island.

A measured value is off by what its seeds and evaluations gave, and the best of several such values is most likely one
that was lucky. But reward mostly changes little from one n, or one Bp, to the next. So the values v of all measured
settings at one budget are taken as a function f of log n and log Bp, a Gaussian process around an unknown level, seen
with the errors that the law gives them (universal kriging: Rasmussen and Williams 2006, section 2.7). The prior's
covariance K has a smooth part and one that is each setting's own, since one may collapse beside others that do not.
With the covariance N of what each is off by for itself,

    estimate = M v,   M = 1 wᵀ + K (K + N)⁻¹ (I - 1 wᵀ),   w = (K + N)⁻¹ 1 / 1ᵀ (K + N)⁻¹ 1,

and what f may be beside that is, for draws g of the prior and e of the errors, M e + (I - M) g. How far settings differ
at all, and how much of that is each one's own, is left open: members have both in proportion to how likely they make
the values. Precise values are hardly moved, noisy ones lean on their neighbours; settings that were not run are told by
them alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from isocompute.core.arrays import Array

__all__ = ["FEWEST", "Setting", "borrow", "own_errors"]

LENGTH = 3.0
"""Doublings of n, or of Bp, over which values stay alike: a correlation of .95 between neighbours."""
FEWEST = 3
"""Settings from which on they have something to say of each other."""
_SCALES = 4.0 ** np.arange(-3, 4)
"""Of K, in units of the variance between the values and of their errors."""
_OWN = (0.0, 0.03, 0.3)
"""Shares of K that are each setting's own."""
_TRENDS = 6
"""Settings from which on errors may have trends."""
_LEAST_LEFT, _TURNS = 0.2, 20
_JITTER = 1e-9

Setting = tuple[int, int]


def borrow(values_RB: Array, measured: Sequence[Setting], asked: Sequence[Setting], *, seed: int = 0) -> Array:
    """Values of settings (Bp, n), asked × members, from those of the measured ones.

    Members stay what they are, draws of what is true: where one has a setting high, it still has. Draws of the prior
    belong to the places that are measured or asked for, in their order: with the same places they are the same.
    """
    places = sorted({*measured, *asked})
    at_R = [places.index(key) for key in measured]
    members = values_RB.shape[1]
    found = list(_weighed(values_RB, places, at_R))
    ends = np.cumsum([chance for chance, _, _ in found])
    which_B = np.searchsorted(ends, (np.arange(members) + 0.5) / members).clip(max=len(found) - 1)
    normal_UB = np.random.default_rng([seed, 3]).standard_normal((len(places), members))
    out_UB, mean_U = np.empty((len(places), members)), np.zeros(len(places))
    for i, (chance, prior_UU, lean_UR) in enumerate(found):
        own_B = which_B == i
        mean_U += chance * (lean_UR @ values_RB.mean(axis=1))
        if own_B.any():
            jitter = _JITTER * prior_UU[0, 0] * np.eye(len(places))
            prior_UB = np.linalg.cholesky(prior_UU + jitter) @ normal_UB[:, own_B]
            out_UB[:, own_B] = lean_UR @ (values_RB[:, own_B] - prior_UB[at_R]) + prior_UB
    out_UB += (mean_U - out_UB.mean(axis=1))[:, None]  # whichever members had which prior
    return out_UB[[places.index(key) for key in asked]]


def _weighed(values_RB: Array, places: Sequence[Setting], at_R: Sequence[int]) -> Iterator[tuple[float, Array, Array]]:
    """Priors over all places with their chances, and M under each; `at_R` says where the measured ones stand."""
    mean_R, measured = values_RB.mean(axis=1), [places[i] for i in at_R]
    noise_RR = np.diag(own_errors(values_RB, measured) ** 2)
    unit = float(mean_R.var() + np.diag(noise_RR).mean())
    if unit == 0.0:  # all the same, for sure
        unit = 1.0
    noise_RR = noise_RR + _JITTER * unit * np.eye(len(measured))
    like_UU, same_UU, inside = _likeness(places), np.eye(len(places)), np.ix_(at_R, at_R)
    priors = [scale * unit * ((1.0 - own) * like_UU + own * same_UU) for scale in _SCALES for own in _OWN]
    evidence = np.array([_evidence(mean_R, prior_UU[inside] + noise_RR) for prior_UU in priors])
    chances = np.exp(evidence - evidence.max())
    for chance, prior_UU in zip((chances / chances.sum()).tolist(), priors, strict=True):
        yield chance, prior_UU, _leaning(prior_UU[:, at_R], prior_UU[inside] + noise_RR)


def own_errors(values_RB: Array, measured: Sequence[Setting]) -> Array:
    """What each setting is off by for itself, as a standard deviation.

    An error that all settings share, or that grows along n or Bp, as those of extrapolation do, no neighbour can tell
    from the truth: level and trends are taken out of every member first. Members keep them. They are fitted with
    weights, so that a large error of one setting is none of the others'.
    """
    at_R2, count = np.log2(np.array(measured, dtype=np.float64)), len(measured)
    trends = [at_R - at_R.mean() for at_R in at_R2.T if np.ptp(at_R)] if count >= _TRENDS else []
    shared_RZ, whole_R = np.stack([np.ones(count), *trends], axis=1), values_RB.var(axis=1)
    least = _JITTER * float(whole_R.max())
    if least == 0.0:  # every member has the same, as where all rates are 1
        return np.zeros(count)
    own_R = whole_R + least
    for _ in range(_TURNS):
        weighed_ZR = shared_RZ.T / own_R
        out_RR = np.eye(count) - shared_RZ @ np.linalg.pinv(weighed_ZR @ shared_RZ) @ weighed_ZR
        left_R = (out_RR @ values_RB).var(axis=1) / np.maximum(np.diag(out_RR), _LEAST_LEFT)
        own_R = np.minimum(left_R, whole_R) + least
    return np.asarray(np.sqrt(own_R - least).clip(min=0.0))


def _likeness(places: Sequence[Setting]) -> Array:
    """Correlations of the prior's smooth part."""
    at_U2 = np.log2(np.array(places, dtype=np.float64)) / LENGTH
    apart_UU = ((at_U2[:, None] - at_U2[None]) ** 2).sum(axis=2)
    return np.asarray(np.exp(-0.5 * apart_UU))


def _level(covariance_RR: Array) -> Array:
    """Weights of the values in their common level."""
    solved_R = np.linalg.solve(covariance_RR, np.ones(len(covariance_RR)))
    return np.asarray(solved_R / solved_R.sum())


def _evidence(mean_R: Array, covariance_RR: Array) -> float:
    """Log-likelihood of the values whatever their level (restricted maximum likelihood), up to a constant."""
    off_R = mean_R - _level(covariance_RR) @ mean_R
    _, log_size = np.linalg.slogdet(covariance_RR)
    precision = float(np.linalg.solve(covariance_RR, np.ones(len(mean_R))).sum())
    return float(-0.5 * (off_R @ np.linalg.solve(covariance_RR, off_R) + log_size + np.log(precision)))


def _leaning(prior_UR: Array, both_RR: Array) -> Array:
    """M: rows add up to 1."""
    level_R = _level(both_RR)
    follow_UR = np.linalg.solve(both_RR, prior_UR.T).T
    return np.asarray(follow_UR + np.outer(1.0 - follow_UR.sum(axis=1), level_R))
