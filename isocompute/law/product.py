"""Matrix products of many short rows, a few rows at a time.

A BLAS spreads a large product over all cores. Products of rows of some thirty numbers are done before its threads have
found each other: on a machine that has other work they took a hundred times as long. So each call stays below the size
from which a BLAS would (OpenBLAS: 2^18 multiplications).
"""

from __future__ import annotations

import numpy as np

from isocompute.core.arrays import Array

__all__ = ["product"]

_ALONE = 2**18


def product(a_RC: Array, b_CS: Array) -> Array:
    """`a_RC @ b_CS` on one core."""
    rows, step = len(a_RC), max(1, _ALONE // max(1, b_CS.size))
    out_RS = np.empty((rows, b_CS.shape[1]))
    for start in range(0, rows, step):
        np.matmul(a_RC[start : start + step], b_CS, out=out_RS[start : start + step])
    return out_RS
