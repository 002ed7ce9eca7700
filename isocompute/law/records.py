"""Record-breaking points: the IsoCompute paper's way to thin a run to the part that can lie on a frontier.

Point i counts iff its reward, rounded down to a bin, is above that of every point with less compute (figures 5 and 15).
"""

from __future__ import annotations

import numpy as np

from isocompute.core.arrays import Array, Ints
from isocompute.core.errors import InputError

__all__ = ["DEFAULT_BIN", "record_points"]

DEFAULT_BIN = 0.005


def record_points(compute_C: Array, values_C: Array, *, bin_width: float = DEFAULT_BIN) -> Ints:
    """Indices of the record-breaking points, in order of compute.

    >>> record_points(np.array([1.0, 2, 3, 4]), np.array([0.1, 0.3, 0.302, 0.4])).tolist()
    [0, 1, 3]
    """
    if not bin_width > 0:
        raise InputError(f"the reward bin is {bin_width:g}; it must be above 0 (the paper uses {DEFAULT_BIN}).")
    order = np.argsort(compute_C, kind="stable")
    # A value that sits on a bin's edge up to rounding belongs to that bin: .3 / .005 is 59.999…
    bins_C = np.floor(values_C[order] / bin_width + 1e-9)
    # Only points with strictly less compute can forbid a record, so ties in compute look back to before the tie.
    first_of_tie_C = np.searchsorted(compute_C[order], compute_C[order], side="left")
    best_before_C = np.concatenate([[-np.inf], np.maximum.accumulate(bins_C)])[first_of_tie_C]
    return order[bins_C > best_before_C].astype(np.int64)
