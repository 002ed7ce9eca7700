"""Shares of a batch: cut responses, groups without a signal, and problems given up."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from isocompute.core.arrays import Array
from isocompute.data.pass_rates import BINS, PassRates
from isocompute.diagnose.health.series import Series, trailing_mean
from isocompute.planner.difficulty import zero_variance_share

__all__ = ["as_share", "first_above", "first_excess", "first_given_up", "near_zero"]

WINDOW = 5
"""Points a share is averaged over: one bad batch is no state of a run."""
EXCESS = 0.1
"""Groups without a signal beyond what the pass rates predict, that count."""
GIVEN_UP = 0.05
"""Problems that have newly come near a pass rate of 0, that count."""
SIGMAS = 3.0
_WHOLE, _PERCENT = 1.0 + 1e-6, 100.0 * (1.0 + 1e-6)
"""The most that a share is, of 1 and of 100, with what rounding adds."""


def near_zero(rates: PassRates) -> float:
    """Share of problems in the lowest twentieth of pass rates."""
    return float(rates.share_K[: BINS // 20].sum())


def same_scores(rates: PassRates, n: int) -> float:
    """Expected share of groups of n whose rollouts all score the same: of pass rates in bins, the most it can be."""
    return float(rates.share_K @ _same_scores_of_bins(n))


@cache
def _same_scores_of_bins(n: int) -> Array:
    """The share at each bin's edge that lies further from a half."""
    low_K = np.arange(BINS) / BINS
    edge_K = np.where(low_K < 0.5, low_K, low_K + 1.0 / BINS)
    return np.array([zero_variance_share(edge_K[k : k + 1], n) for k in range(BINS)])


def as_share(series: Series) -> Series | None:
    """A share of 1; None where it is none. What goes beyond 1 is in percent, also where it does not."""
    low, high = float(series.values_T.min()), float(series.values_T.max())
    if low < 0.0 or high > _PERCENT:
        return None
    return series if high <= _WHOLE else replace(series, values_T=series.values_T / 100.0)


def first_above(series: Series, mark: float, *, window: int = WINDOW) -> int | None:
    """The first point from which the mean of the last `window` lies above a mark; a full window is needed."""
    above_T = trailing_mean(series.values_T, window) > mark
    above_T[: window - 1] = False
    return int(above_T.argmax()) if above_T.any() else None


def first_excess(
    series: Series, rates: dict[int, PassRates], *, n: int, problems: int
) -> tuple[int, float, float] | None:
    """Where more groups score all the same than the pass rates predict: the index, the share seen and the predicted.

    `rates` are by row of the run; of those up to a point, the last one counts.
    """
    seen_T = trailing_mean(series.values_T, WINDOW)
    rows = sorted(rates)
    last_T = np.searchsorted(rows, series.row_T, side="right") - 1
    for t in range(WINDOW - 1, len(series)):
        if last_T[t] < 0:
            continue
        predicted = same_scores(rates[rows[last_T[t]]], n)
        error = float(np.sqrt(max(predicted * (1.0 - predicted), 1e-3) / (problems * WINDOW)))
        if seen_T[t] - predicted >= max(EXCESS, SIGMAS * error):
            return t, float(seen_T[t]), predicted
    return None


def first_given_up(rates: dict[int, PassRates]) -> int | None:
    """The row where the share of problems near a pass rate of 0 has risen while the mean has not fallen."""
    rows = sorted(rates)
    for row in rows[1:]:
        first, now = rates[rows[0]], rates[row]
        share = near_zero(now)
        error = float(np.sqrt(max(share * (1.0 - share), 1e-3) * 2.0 / min(first.problems, now.problems)))
        if share - near_zero(first) >= max(GIVEN_UP, SIGMAS * error) and now.mean >= first.mean:
            return row
    return None
