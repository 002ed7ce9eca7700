"""The pass rates behind measured ones: what a few samples a problem say of the whole set.

Of 16 samples of a problem that is solved in 3% of cases, most often none is right. So measured rates hold too many
zeros and ones and spread too far, and what is computed from them (how strong rewards pull, how many groups are all
wrong) is off by a third or more on hard sets. The distribution behind the counts has neither. The most likely one
(`pass_rates`) is a handful of spikes where a set has a range; a few dozen steps of EM towards it from a flat start are
half as far from the true one on small sets (docs/planning.md): stopping early is the smoothing.
"""

from __future__ import annotations

import numpy as np

from isocompute.arrays import Array
from isocompute.problems.pass_rates import gather, log_kernel, rate_grid

__all__ = ["rates_behind", "samples_behind"]

_MOST_SAMPLES = 64
"""Rates of more samples are as good as exact, and any number with few digits would look like one of them."""
_FEWEST_PROBLEMS = 20
_ROUNDING = 0.011
"""How far from a whole count a rate may be that was written with three digits."""
_STEPS = 60
_GRID = 64
"""Samples whose grid is fine enough for any number of them."""


def samples_behind(rates_P: Array) -> int | None:
    """How many samples a problem the rates were measured with: the fewest of which all are whole shares.

    None where they are not such shares, or too few problems to tell.

    >>> samples_behind(np.tile([0.0, 0.25, 0.0625, 0.5], 5)), samples_behind(np.linspace(0.3, 0.6, 50))
    (16, None)
    """
    if len(rates_P) < _FEWEST_PROBLEMS:
        return None
    distinct = np.unique(rates_P)
    for samples in range(1, _MOST_SAMPLES + 1):
        counts = distinct * samples
        if np.abs(counts - counts.round()).max() <= _ROUNDING:
            return samples
    return None


def rates_behind(rates_P: Array) -> Array:
    """As many rates, in ascending order, as the set would show with endless samples; as given where they are not shares
    of few samples.

    >>> measured = np.repeat([0, 1, 2, 3], [60, 28, 10, 2]) / 16  # problems of which some 3% of the samples are right
    >>> bool((measured < 0.005).mean() > 0.5 and (rates_behind(measured) < 0.005).mean() < 0.2)
    True
    """
    samples = samples_behind(rates_P)
    if samples is None:
        return rates_P
    cells, rate_K, count = gather((rates_P * samples).round(), samples), rate_grid(_GRID), len(rates_P)
    kernel_DK, share_D = np.exp(log_kernel(cells, rate_K)), cells.problems_D / count
    weight_K = np.full(len(rate_K), 1.0 / len(rate_K))
    for _ in range(_STEPS):
        weight_K = weight_K * ((share_D / (kernel_DK @ weight_K)) @ kernel_DK)
    # The middles of equal shares of the distribution: as many numbers as problems, and no further luck. A rate of the
    # grid stands for those half-way to its neighbours.
    return np.asarray(np.interp((np.arange(count) + 0.5) / count, np.cumsum(weight_K) - weight_K / 2, rate_K))
