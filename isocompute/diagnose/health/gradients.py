"""Gradients that jump, and a sampler that is not the policy which is trained."""

from __future__ import annotations

import math

import numpy as np

from isocompute.diagnose.health.series import Series, trailing_median

__all__ = ["FEWEST_NORMS", "MISMATCHES", "first_spikes"]

_BEFORE = 30
_FEWEST = 10
SPIKE = 5.0
"""A spike is this many times the median of the points before it …"""
SIGMAS = 6.0
"""… and this many times their spread on a log scale above it."""
SPIKES = 3
"""One spike is what gradient clipping is for; this many among the last thirty points are a state."""
FEWEST_NORMS = _FEWEST + SPIKES
"""Points before which there cannot be a third spike."""
_PRIOR_NOISE = 0.3

MISMATCHES: dict[str, float] = {
    "logprob_gap": 0.1,
    "sampling/sampling_logp_difference/mean": 0.1,
    "rollout_corr/kl": 0.01,
    "mismatch_kl/all/mean": 0.01,
    "mismatch_kl/mean": 0.01,
    "optim/kl_sample_train_v2": 0.01,
    "optim/kl_sample_train_v1": 0.01,
    "train/gen_kl_error": 0.01,
    "training/rollout_probs_diff_mean": 0.05,
}
"""Trainers' measures of the distance between sampler and trainer, and what is large for each: an importance weight
off by a tenth a token, or a KL of .01, which is about the same distance (δ²/2 at δ = .14)."""


def first_spikes(series: Series) -> tuple[int, float, float] | None:
    """Where the third spike of thirty points came: the index, its size and the median before it."""
    logs_T = np.log(np.maximum(series.values_T, 1e-12))
    before_T = trailing_median(logs_T, _BEFORE)
    high = _FEWEST + np.flatnonzero(logs_T[_FEWEST:] - before_T[_FEWEST - 1 : -1] >= math.log(SPIKE))
    spikes: list[int] = []
    for t in map(int, high):
        middle = float(before_T[t - 1])
        spread = 1.4826 * float(np.median(np.abs(logs_T[max(0, t - _BEFORE) : t] - middle)))
        if logs_T[t] - middle >= SIGMAS * max(spread, _PRIOR_NOISE):
            spikes = [s for s in spikes if s > t - _BEFORE] + [t]
            if len(spikes) >= SPIKES:
                return t, float(series.values_T[t]), math.exp(middle)
    return None
