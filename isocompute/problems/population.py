"""The pass rates behind measured ones: what a few samples a problem say of the whole set.

Of 16 samples of a problem that is solved in 3% of cases, most often none is right. So measured rates hold too many
zeros and ones and spread too far, and what is computed from them (how strong rewards pull, how many groups are all
wrong) is off by a third or more on hard sets. The distribution behind the counts has neither. The most likely one
(`pass_rates`) is a handful of spikes where a set has a range; a few dozen steps of EM towards it from a flat start are
half as far from the true one on small sets: stopping early is the smoothing.

A set that was filtered by these same counts (kept from .3 to .6, or up to .0625) ends abruptly; where many more
problems should lie outside the range that was seen than none, the likelihood is that of counts inside it.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import binom

from isocompute.core.arrays import Array
from isocompute.problems.pass_rates import Cells, Kept, gather, log_kernel, rate_grid

__all__ = ["rates_behind", "samples_behind"]

_MOST_SAMPLES = 64
"""Rates of more samples are as good as exact, and any number with few digits would look like one of them."""
_FEWEST_PROBLEMS = 20
_DIGITS = range(2, 13)
"""With which rates are written; more are a computer's own."""
_EXACT = 1e-12
_STEPS = 60
_MISSING = 7.0
"""Problems that should have counts outside the range that was seen, from which on the set was filtered by its counts:
that none has would be a chance of one in a thousand."""
_FEWEST_SAMPLES, _FEWEST_RATES = 4, 4
_GRID = 64
"""Samples whose grid is fine enough for any number of them."""


def samples_behind(rates_P: Array) -> int | None:
    """How many samples a problem the rates were measured with: the fewest of which all are whole shares.

    None where they are not such shares, of fewer samples than say anything, or too few problems to tell.

    >>> samples_behind(np.tile([0.0, 0.25, 0.0625, 0.5], 5)), samples_behind(np.linspace(0.3, 0.6, 50))
    (16, None)
    """
    if len(rates_P) < _FEWEST_PROBLEMS:
        return None
    distinct = np.unique(rates_P)
    if len(distinct) < _FEWEST_RATES and distinct[0] > 0.0:
        return None  # any number of samples would do
    digits = next((d for d in _DIGITS if np.abs(distinct.round(d) - distinct).max() < _EXACT), _DIGITS.stop)
    rounding = 0.5 * 10.0**-digits + _EXACT
    for samples in range(1, _MOST_SAMPLES + 1):
        if np.abs((distinct * samples).round() / samples - distinct).max() <= rounding:
            return samples if samples >= _FEWEST_SAMPLES else None
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
    weight_K = _climbed(cells, rate_K, None)
    seen = (float(cells.rate_D.min()), float(cells.rate_D.max()))
    if count * float(weight_K @ (1.0 - _passing(rate_K, samples, seen))) > _MISSING:
        weight_K = _climbed(cells, rate_K, seen)
    # The middles of equal shares of the distribution: as many numbers as problems, and no further luck. A rate of the
    # grid stands for those half-way to its neighbours.
    return np.asarray(np.interp((np.arange(count) + 0.5) / count, np.cumsum(weight_K) - weight_K / 2, rate_K))


def _climbed(cells: Cells, rate_K: Array, kept: Kept | None) -> Array:
    """Weights of the rates after some steps of EM from a flat start: flat before the filter, where there was one, since
    a rate that hardly ever passes it explains what did as well as any other.
    """
    start_K = np.ones(len(rate_K)) if kept is None else _passing(rate_K, int(cells.samples_D[0]), kept)
    can_K = start_K > _EXACT  # a rate of exactly 0 passes no filter of successes
    kernel_DK, share_D = np.exp(log_kernel(cells, rate_K[can_K], kept=kept)), cells.problems_D / cells.problems_D.sum()
    weight_K = start_K[can_K] / start_K[can_K].sum()
    for _ in range(_STEPS):
        weight_K = weight_K * ((share_D / (kernel_DK @ weight_K)) @ kernel_DK)
    out_K = np.zeros(len(rate_K))
    out_K[can_K] = weight_K
    return out_K


def _passing(rate_K: Array, samples: int, kept: Kept) -> Array:
    """Chances that the measured rate of a problem lies in a range."""
    low, high = (round(bound * samples) for bound in kept)
    return np.asarray(binom.cdf(high, samples, rate_K) - binom.cdf(low - 1, samples, rate_K))
