"""How hard a problem set is for the base model: pass rates from a file, the mix they make, and what n will see of it.

The bands are the IsoCompute paper's (section 3, figure 14): easy .3–.6, hard up to .0625, very easy from .6.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from isocompute.core import files
from isocompute.core.arrays import Array
from isocompute.core.errors import InputError

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Mix", "classify", "read_pass_rates", "zero_variance_behind", "zero_variance_share"]

HARD = 0.0625
EASY = 0.3
VERY_EASY = 0.6
_MOST = 0.5
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.IGNORECASE)
_PERCENT = 100.0
_ALONE = "pass_rate"
"""What the one column of a file without names is called."""


@dataclass(frozen=True)
class Mix:
    """A problem set in the paper's bands."""

    problems: int
    mean: float
    shares: dict[str, float]
    """Shares of `unsolved` (exactly 0), `hard` (up to .0625, unsolved ones included), `between` (.0625–.3), `easy`
    (.3–.6) and `very_easy` (from .6)."""
    difficulty: str
    """`hard` when more than half of the problems are, else `easy`: it decides the regularisers."""


def classify(rates_P: Array) -> Mix:
    """The mix of a set of pass rates.

    >>> classify(np.array([0.0, 0.05, 0.02, 0.5])).difficulty
    'hard'
    """
    hard_P = rates_P <= HARD
    shares = {
        "unsolved": float((rates_P <= 0).mean()),
        "hard": float(hard_P.mean()),
        "between": float((~hard_P & (rates_P < EASY)).mean()),
        "easy": float(((rates_P >= EASY) & (rates_P <= VERY_EASY)).mean()),
        "very_easy": float((rates_P > VERY_EASY).mean()),
    }
    return Mix(len(rates_P), float(rates_P.mean()), shares, "hard" if shares["hard"] > _MOST else "easy")


def zero_variance_share(rates_P: Array, rollouts_per_problem: int) -> float:
    """Expected share of groups whose n rollouts all score the same: p^n + (1 - p)^n, averaged.

    >>> round(zero_variance_share(np.array([0.5]), 2), 3)
    0.5
    """
    n = rollouts_per_problem
    return float(np.mean(rates_P**n + (1.0 - rates_P) ** n))


def zero_variance_behind(rates_P: Array, rollouts_per_problem: int) -> float:
    """The same by the rates behind those that were measured with few samples, which have too many zeros and ones."""
    from isocompute.problems.pass_rates import latent_pass_rates  # loads SciPy

    return zero_variance_share(latent_pass_rates(rates_P), rollouts_per_problem)


def read_pass_rates(path: str, *, column: str | None = None) -> Array:
    """Pass rates from a CSV, JSON-lines or parquet table (a column of rates, or `correct` and `samples`), a JSON list
    or a text file of one number a line."""
    table = _read(path, files.read_bytes(path))
    if all(cells.null_count() == len(cells) for cells in table):  # a blank line is a row of nulls
        raise InputError(f"{path}: the table has no rows; write the pass rate of every problem, one a line.")
    rates = _as_numbers(_rates(table, path, column), path)
    if rates.null_count():
        row = rates.is_null().arg_max() or 0
        raise InputError(f"{path}: row {row + 1} of '{rates.name}' is not a number; fix or delete it.")
    rates_P = rates.to_numpy().astype(np.float64)
    wrong = np.flatnonzero(~((rates_P >= 0) & (rates_P <= 1)))
    if len(wrong):
        i = int(wrong[0])
        percent = bool(np.median(rates_P) > 1 and rates_P.min() >= 0 and rates_P.max() <= _PERCENT)
        hint = "these look like percent: divide by 100" if percent else "fix or delete it"
        raise InputError(f"{path}: row {i + 1} of '{rates.name}' is {rates_P[i]:g}, outside [0, 1]; {hint}.")
    return rates_P


def _read(path: str, data: bytes) -> pl.DataFrame:
    import polars as pl

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
        raise ValueError("it is no list of numbers; write a table as .jsonl, an object a line")
    return [float(x) for x in listed]


def _as_numbers(cells: pl.Series, path: str) -> pl.Series:
    """A column as numbers, null where a cell is none."""
    import polars as pl

    if cells.dtype.is_nested():
        raise InputError(f"{path}: '{cells.name}' holds lists, not numbers; write one number a row.")
    return cells.cast(pl.Float64, strict=False)


def _flat(table: pl.DataFrame) -> pl.DataFrame:
    """Fields of structs as columns `struct.field`: veRL's data keep pass rates in `extra_info`."""
    import polars as pl

    structs = [name for name, kind in table.schema.items() if isinstance(kind, pl.Struct)]
    fields = [
        pl.col(name).struct.field(field.name).alias(f"{name}.{field.name}")
        for name in structs
        for field in table.schema[name].fields  # type: ignore[attr-defined]  # a Struct, as asked above
    ]
    return table.select(pl.exclude(structs), *fields) if structs else table


def _asked_for(column: str, columns: list[str], path: str) -> str:
    """The column of exactly this name, else the one field of a struct that is called so."""
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
    import polars as pl

    table = _flat(table)
    if column is not None:
        return table[_asked_for(column, table.columns, path)]
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
            "it, or save one number a line as .txt."
        )
    return table[names[0]]
