"""How pass rates are spread over problems, at each point of a run.

Two sources: `pass_rates.jsonl` beside a run's points (counts of each problem, docs/lm.md), and the histogram that the
simulator writes into its points (`train/pass_rates`, exact rates in equal bins).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from isocompute.core import files
from isocompute.core.arrays import Array
from isocompute.core.run import Run

__all__ = ["BINS", "PassRates", "read_pass_rates"]

BINS = 20
_FILE = "pass_rates.jsonl"
_HISTOGRAM = "train/pass_rates"


@dataclass(frozen=True)
class PassRates:
    """The spread at one step: shares of problems in equal bins of pass rate."""

    step: int
    set: str
    problems: int
    share_K: Array
    """In `BINS` bins from 0 to 1."""
    samples: int | None
    """Of each problem; None where rates are exact, 0 where problems were sampled unequally often."""
    zero: float
    """Share of problems that were never solved (exact rates: under .01)."""
    mean: float
    rate_P: Array | None = None
    """Of each problem; None where only the histogram was kept."""
    bins: int = BINS
    """So many bins show the problems' spread and not the grid of rates that the samples allow."""

    def shares(self, bins: int) -> Array:
        """Shares of problems in this many equal bins; a histogram that was kept stays as it is."""
        return self.share_K if self.rate_P is None else _histogram(self.rate_P, bins)


def read_pass_rates(run: Run, paths: Sequence[str]) -> tuple[PassRates, ...]:
    """All that a run kept, in order of step; `paths` are where the runs were read from."""
    if isinstance(run.points.schema.get(_HISTOGRAM), pl.List):
        return _from_points(run)
    for path in paths:
        whole = path.split("::", 1)[0]  # PATH::NAME is one run of a folder
        for folder in (files.join(whole, run.name), whole):
            address = files.join(folder, _FILE)
            if files.exists(address):
                return _from_counts(files.read_bytes(address))
    return ()


def _histogram(rate_P: Array, bins: int) -> Array:
    """Bins are closed below, the last one on both sides. A rate on an edge, such as 3 of 10, must not fall below it by
    rounding.
    """
    index_P = np.clip(np.floor(rate_P * bins + 1e-9).astype(np.int64), 0, bins - 1)
    share_K: Array = np.bincount(index_P, minlength=bins) / len(rate_P)
    return share_K


def _even_bins(samples: int) -> int:
    """About `BINS` bins that each hold as many of the S + 1 rates 0/S, 1/S … 1 as any other, where there are such.

    16 samples give 17 rates: 20 bins would have gaps, 16 a last bin with two rates. Where no such number divides S + 1,
    the rates are so many that `BINS` bins have no gaps.
    """
    rates = samples + 1
    even = (bins for bins in range(BINS + 1, BINS // 2 - 1, -1) if rates % bins == 0)
    return next(even, min(BINS, rates))


def _from_points(run: Run) -> tuple[PassRates, ...]:
    columns = [name for name in ("step", _HISTOGRAM, "train/zero_pass", "train/exact") if name in run.points.columns]
    out = []
    for row in run.points.select(columns).iter_rows(named=True):
        counts_K = np.array(row[_HISTOGRAM] or [], dtype=np.float64)
        if len(counts_K) == BINS and counts_K.sum() > 0:
            share_K = counts_K / counts_K.sum()
            middle_K = (np.arange(BINS) + 0.5) / BINS
            zero, mean = row.get("train/zero_pass"), row.get("train/exact")
            out.append(
                PassRates(
                    step=int(row.get("step") or 0),
                    set="train",
                    problems=int(counts_K.sum()),
                    share_K=share_K,
                    samples=None,
                    zero=float(share_K[0] if zero is None else zero),
                    mean=float(share_K @ middle_K if mean is None else mean),
                )
            )
    return tuple(out)


def _from_counts(data: bytes) -> tuple[PassRates, ...]:
    out = []
    for line in data.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # a line that is being written
        if not isinstance(row, dict):
            continue
        correct_P = np.asarray(row.get("correct", []), dtype=np.float64)
        samples_P = np.broadcast_to(np.asarray(row.get("samples", 0), dtype=np.float64), correct_P.shape)
        if not len(correct_P) or (samples_P <= 0).any():
            continue
        rate_P = correct_P / samples_P
        out.append(
            PassRates(
                step=int(row.get("step", 0)),
                set=str(row.get("set", "train")),
                problems=len(rate_P),
                share_K=_histogram(rate_P, BINS),
                samples=int(samples_P[0]) if (samples_P == samples_P[0]).all() else 0,
                zero=float((correct_P == 0).mean()),
                mean=float(rate_P.mean()),
                rate_P=rate_P,
                bins=_even_bins(max(1, int(samples_P.min()))),
            )
        )
    return tuple(sorted(out, key=lambda rates: rates.step))
