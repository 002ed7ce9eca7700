"""Pass rates of problems: their distribution at each point of a run, and those of the base model from a file.

Two sources: `pass_rates.jsonl` beside a run's points (counts of each problem, docs/reference/run-folder.md), and the
histogram in the simulator's points (`train/pass_rates`, exact rates in equal bins).
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from isocompute.core import files
from isocompute.core.arrays import Array
from isocompute.core.errors import InputError
from isocompute.core.recorder import PASS_RATES
from isocompute.core.run import Run

BINS = 20
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.IGNORECASE)
_ALONE = "pass_rate"
"""The column's name for files without column names."""
_HISTOGRAM = "train/pass_rates"


@dataclass(frozen=True)
class PassRates:
    """The distribution at one step: shares of problems in equal bins of pass rate."""

    step: int
    set: str
    problems: int
    share_K: Array
    """In `BINS` bins from 0 to 1."""
    samples: int | None
    """Samples per problem; None if rates are exact, 0 if problems have different numbers of samples."""
    zero: float
    """Share of problems that were never solved (exact rates: under .01)."""
    mean: float
    rate_P: Array | None = None
    """The rate of each problem; None if only the histogram was kept."""
    bins: int = BINS
    """A number of bins that shows the distribution of problems, not the grid of rates that the samples allow."""

    def shares(self, bins: int) -> Array:
        """Shares of problems in this many equal bins; without the problems' rates, the stored histogram."""
        return self.share_K if self.rate_P is None else _histogram(self.rate_P, bins)


def read_pass_rates(run: Run, paths: Sequence[str]) -> tuple[PassRates, ...]:
    """All pass rates of a run, in order of step; `paths` are those that the runs were loaded from."""
    if isinstance(run.points.schema.get(_HISTOGRAM), pl.List):
        return _from_points(run)
    for path in paths:
        whole = path.split("::", 1)[0]  # PATH::NAME is one run of a folder
        for folder in (files.join(whole, run.name), whole):
            address = files.join(folder, PASS_RATES)
            if files.exists(address):
                return _from_counts(files.read_bytes(address))
    return ()


def _histogram(rate_P: Array, bins: int) -> Array:
    """Shares of problems in equal bins, which are closed below; the last one is closed on both sides.

    The tolerance keeps a rate on an edge, such as 3 of 10, out of the bin below.
    """
    index_P = np.clip(np.floor(rate_P * bins + 1e-9).astype(np.int64), 0, bins - 1)
    share_K: Array = np.bincount(index_P, minlength=bins) / len(rate_P)
    return share_K


def _even_bins(samples: int) -> int:
    """About `BINS` bins that hold equally many of the S + 1 rates 0/S, 1/S … 1, if possible.

    16 samples give 17 rates: 20 bins would have gaps, and 16 would have a last bin with two rates. If no such number
    divides S + 1, the result is the smaller of S + 1 and `BINS`.
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


def read_base_rates(path: str, *, column: str | None = None) -> Array:
    """Pass rates of the base model from a table, a JSON list, or a text file with one number per line.

    Tables (CSV, TSV, JSON lines, parquet) have a column of rates, or the columns `correct` and `samples`.
    """
    table = _read(path, files.read_bytes(path))
    if all(cells.null_count() == len(cells) for cells in table):  # a blank line is a row of nulls
        raise InputError(f"{path}: the table has no rows; write the pass rate of every problem, one per line.")
    rates = _as_numbers(_rates(table, path, column), path)
    if rates.null_count():
        row = rates.is_null().arg_max() or 0
        raise InputError(f"{path}: row {row + 1} of '{rates.name}' is not a number; fix or delete it.")
    rates_P = rates.to_numpy().astype(np.float64)
    wrong = np.flatnonzero(~((rates_P >= 0) & (rates_P <= 1)))
    if len(wrong):
        i = int(wrong[0])
        percent = bool(np.median(rates_P) > 1 and rates_P.min() >= 0 and rates_P.max() <= 100)
        hint = "these look like percent: divide by 100" if percent else "fix or delete it"
        raise InputError(f"{path}: row {i + 1} of '{rates.name}' is {rates_P[i]:g}, outside [0, 1]; {hint}.")
    return rates_P


def _read(path: str, data: bytes) -> pl.DataFrame:
    suffix = path.rsplit(".", 1)[-1].lower()
    try:
        if suffix == "parquet":
            return pl.read_parquet(io.BytesIO(data))
        if suffix in ("jsonl", "ndjson"):
            return pl.read_ndjson(io.BytesIO(data), infer_schema_length=None)
        if suffix in ("csv", "tsv"):
            return pl.read_csv(io.BytesIO(data), separator="\t" if suffix == "tsv" else ",", infer_schema_length=None)
        if suffix == "json":
            return pl.DataFrame({_ALONE: _numbers(json.loads(data))}, schema={_ALONE: pl.Float64})
        if suffix == "txt":
            return pl.DataFrame({_ALONE: data.decode().split()}, schema={_ALONE: pl.String})
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError, OverflowError) as error:
        raise InputError(f"{path}: not a readable {suffix} file ({str(error).splitlines()[0]}).") from error
    raise InputError(f"{path}: pass rates are read from .csv, .tsv, .jsonl, .parquet, .json or .txt.")


def _numbers(listed: object) -> list[float]:
    if not isinstance(listed, list) or not all(type(x) in (int, float) for x in listed):
        raise ValueError("it is not a list of numbers; write a table as .jsonl, one object per line")
    return [float(x) for x in listed]


def _as_numbers(cells: pl.Series, path: str) -> pl.Series:
    """A column as numbers; null for a cell that is not a number."""
    if cells.dtype.is_nested():
        raise InputError(f"{path}: '{cells.name}' holds lists, not numbers; write one number per row.")
    return cells.cast(pl.Float64, strict=False)


def _flat(table: pl.DataFrame) -> pl.DataFrame:
    """Turn the fields of structs into columns `struct.field`: veRL's data keep pass rates in `extra_info`."""
    structs = [name for name, kind in table.schema.items() if isinstance(kind, pl.Struct)]
    fields = [
        pl.col(name).struct.field(field.name).alias(f"{name}.{field.name}")
        for name in structs
        for field in table.schema[name].fields  # type: ignore[attr-defined]  # a Struct, as checked above
    ]
    return table.select(pl.exclude(structs), *fields) if structs else table


def _column_named(column: str, columns: list[str], path: str) -> str:
    """The column with exactly this name, else the only field of a struct with it."""
    if column in columns:
        return column
    nested = [name for name in columns if name.endswith(f".{column}")]
    if len(nested) == 1:
        return nested[0]
    if nested:
        raise InputError(
            f"{path}: several fields are named '{column}'; say --pass-rate-column with one of {', '.join(nested[:12])}."
        )
    raise InputError(f"{path}: no column '{column}'; there are {', '.join(columns[:12])}.")


def _rates(table: pl.DataFrame, path: str, column: str | None) -> pl.Series:
    table = _flat(table)
    if column is not None:
        return table[_column_named(column, table.columns, path)]
    if {"correct", "samples"} <= set(table.columns):
        correct, samples = (_as_numbers(table[name], path) for name in ("correct", "samples"))
        return (correct / samples).alias("correct / samples")
    numeric = [name for name, kind in table.schema.items() if kind.is_numeric() and not name.startswith("__")]
    words = ("pass_rate", "passrate", "pass@1", "solve_rate", "accuracy", "avg@")
    text = [name for name, kind in table.schema.items() if kind == pl.String]  # with a cell that is not a number
    named, misread = ([name for name in of if any(word in name.lower() for word in words)] for of in (numeric, text))
    names = named or numeric or misread
    if not names:
        raise InputError(
            f"{path}: no column holds numbers; there {'are' if len(table.columns) > 1 else 'is'} "
            f"{', '.join(table.columns[:12])}: write pass rates, from 0 to 1, as a column pass_rate."
        )
    if len(names) > 1:
        raise InputError(
            f"{path}: which column holds pass rates? Say --pass-rate-column with one of {', '.join(names[:12])}."
        )
    if _NUMBER.fullmatch(names[0]):
        raise InputError(
            f"{path}: the first line, '{names[0]}', is a number where the column's name should be; put pass_rate above "
            "it, or save one number per line as .txt."
        )
    return table[names[0]]
