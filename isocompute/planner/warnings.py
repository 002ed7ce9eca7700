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
from isocompute.core.allocation import Allocation
from isocompute.core.arrays import Array
from isocompute.core.errors import InputError
from isocompute.core.formatting import number, plural, thousands

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "Mix",
    "Warned",
    "classify",
    "data_advice",
    "enough_updates",
    "epochs_of",
    "metric_advice",
    "read_pass_rates",
    "run_advice",
    "zero_variance_behind",
    "zero_variance_share",
]


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


# What to know before running a plan: warnings with a code, a sentence and, where there is one, its source.

SMALL_SET = 1000
"""Between the paper's D = 500, where n = 512 overfits, and D = 6,000, where it does not."""
SMALL_SET_ROLLOUTS = 256
_MANY_EPOCHS = 100.0
"""The paper's own longest easy run at n = 8, 4M rollouts over 6,000 problems, is 83 epochs."""
_OFTEN_SMALL = 250.0
"""Rollouts of each problem, C/D, from which on a small set overfits. A small decoder's validation reward fell from 1e5
rollouts on with 400 problems, whatever n; with 200 it fell from 1,500 to 2,500 of each on (docs/lm_law.md)."""
_OFTEN_LARGE = 700.0
"""The same on a larger set: beyond what anybody looked at. The paper's 6,000 problems had 4M rollouts, 667 of each, and
validation rose to the end; a small decoder had a gap of .1 at 333 of each of 6,000, none at 160 of each of 100,000."""
_WARMUPS = 10
"""A run should be this many times as long as its warm-up."""
_FEW_UPDATES = 20
_WASTED = 0.5
"""Share of groups without variance from which on a larger n is named."""
_UNSTABLE_TRUNCATION = 0.10
_HEALTHY_TRUNCATION = 0.05
_HARD_ONLY, _MANY_VERY_EASY, _MOSTLY_UNSOLVED = 0.9, 0.25, 0.5
"""Shares of a problem set above which its mix is remarked on."""


@dataclass(frozen=True)
class Warned:
    """A warning: `code` for programs, `message` for people."""

    code: str
    message: str


def epochs_of(allocation: Allocation, problems: int) -> float:
    """Passes over a set of so many problems: how often each of them is drawn.

    >>> epochs_of(Allocation(32, 256, 250), 400)
    20.0
    """
    return allocation.problems_per_batch * allocation.update_steps / problems


def _overfitting(allocation: Allocation, problems: int) -> list[Warned]:
    """Whether problems are seen too often, or some of them never.

    What overfits is few problems with many rollouts of each, C/D, in few passes with a large n as in many with a small
    one: with 200 problems validation turned after 375 passes at n = 4 and after 20 to 40 at n = 64 and 128, which are
    1,500 to 2,500 rollouts of each problem in all of them. A problem that is drawn once is not learnt by heart.
    """
    epochs, each = epochs_of(allocation, problems), allocation.compute / problems
    few = problems <= SMALL_SET
    if epochs < 1:
        return [
            Warned(
                "under_one_epoch",
                f"{epochs:.0%} of the {thousands(problems, 'problem')} are seen; the rest plays no part",
            )
        ]
    if epochs <= _MANY_EPOCHS and (epochs <= 1 or each <= (_OFTEN_SMALL if few else _OFTEN_LARGE)):
        return []
    seen = (
        "a small model's validation reward fell from 250 of each of 400 on"
        if few and each > _OFTEN_SMALL
        else "the paper's 6,000 problems had 83 passes and 667 of each at most, and nobody looked further"
    )
    return [
        Warned(
            "many_epochs" if epochs > _MANY_EPOCHS else "overfitting",
            f"{number(epochs)} passes over {thousands(problems, 'problem')}, {number(each)} rollouts of each: expect "
            f"overfitting ({seen}); watch the gap between training and validation reward, keep the best checkpoint, or "
            "add problems",
        )
    ]


def enough_updates(warmup_steps: int) -> int:
    """Updates below which a run is said to be too short to learn much."""
    return max(_WARMUPS * warmup_steps, _FEW_UPDATES)


def run_advice(allocation: Allocation, *, problems: int | None, warmup_steps: int) -> list[Warned]:
    """Epochs over the set, a set too small for this n, too few updates for the warm-up."""
    out = []
    n, m = allocation.rollouts_per_problem, allocation.update_steps
    if problems is not None:
        if problems <= SMALL_SET and n > SMALL_SET_ROLLOUTS:
            out.append(
                Warned(
                    "small_set",
                    f"{thousands(problems, 'problem')}: on 500 the paper's frontier ends at n = {SMALL_SET_ROLLOUTS} "
                    "and n = 512 overfits (figure 13); cap it with --n or add problems",
                )
            )
        out += _overfitting(allocation, problems)
    if m < enough_updates(warmup_steps):
        out.append(
            Warned(
                "few_updates",
                f"{plural(m, 'update')}, {warmup_steps} of them warm-up: too few to learn much; a smaller "
                "batch gives more (--max-batch, --min-updates)",
            )
        )
    return out


def _even_groups(n: int, rates_P: Array, *, filtered: bool) -> list[Warned]:
    """Where more than half of the groups will be all right or all wrong, and whether that is the samples' doing."""
    share = zero_variance_share(rates_P, n)
    if share <= _WASTED:
        return []
    from isocompute.problems.pass_rates import infer_samples, latent_pass_rates  # loads SciPy

    behind_P, samples = latent_pass_rates(rates_P), infer_samples(rates_P)
    said = f"{share:.0%} of groups are expected to be all right or all wrong at n = {n}, at the start"
    less = zero_variance_share(behind_P, n)
    if samples is not None and less < share:
        said += (
            f", by the rates as measured; {less:.0%} by those behind them: {plural(samples, 'sample')} a problem "
            "show too many zeros and ones"
        )
    kept = (
        "the filter drops such groups"
        if filtered
        else "their rollouts have no advantage: only KL and entropy terms, where there are any, move them"
    )
    useful = (2**i for i in range(1, 12) if 2**i > n and zero_variance_share(behind_P, 2**i) <= _WASTED)
    more = (
        "no n brings it under a half" if (m := next(useful, None)) is None else f"n = {m} would bring it under a half"
    )
    return [Warned("zero_variance", f"{said}; {kept}" + (f"; {more}" if less > _WASTED else ""))]


def data_advice(
    *,
    allocation: Allocation,
    mix: Mix | None,
    difficulty: str | None,
    rates_P: Array | None,
    truncated: float | None,
    filtered: bool,
) -> list[Warned]:
    """Zero-variance groups, hard-only and very easy sets, a difficulty that is not the mix's, truncation."""
    out = []
    if rates_P is not None:
        out += _even_groups(allocation.rollouts_per_problem, rates_P, filtered=filtered)
    if mix is not None:
        if difficulty != mix.difficulty:
            out.append(
                Warned(
                    "difficulty_contradicts",
                    f"--difficulty {difficulty}, but with {mix.shares['hard']:.0%} of the pass rates up to {HARD} "
                    f"the set is {mix.difficulty}: KL and entropy follow --difficulty; without it, the pass rates",
                )
            )
        if mix.shares["hard"] > _HARD_ONLY:
            out.append(
                Warned(
                    "hard_only",
                    f"{mix.shares['hard']:.0%} of the problems are hard: training on hard ones alone forgets easy "
                    "ones; mixing easy ones in costs little on the hard (IsoCompute figure 14)",
                )
            )
        if mix.shares["very_easy"] > _MANY_VERY_EASY:
            out.append(
                Warned(
                    "very_easy",
                    f"{mix.shares['very_easy']:.0%} of the problems are above a pass rate of .6: such data does not "
                    "help and can hurt (IsoCompute figure 14); leave them out",
                )
            )
        if mix.shares["unsolved"] > _MOSTLY_UNSOLVED:
            out.append(
                Warned(
                    "no_coverage",
                    f"{mix.shares['unsolved']:.0%} of the problems were never solved by the base model: they teach "
                    "nothing until a rollout succeeds; larger n, or easier problems first",
                )
            )
    if truncated is not None and truncated > _HEALTHY_TRUNCATION:
        state = "10–15% is what unstable runs show" if truncated >= _UNSTABLE_TRUNCATION else "healthy runs show less"
        out.append(
            Warned(
                "truncation",
                f"{truncated:.0%} of responses are cut off: {state}, ScaleRL stays under 5% (arXiv 2510.13786); raise "
                "the response length or shorten the responses",
            )
        )
    return out


def metric_advice(metric: str, difficulty: str | None, *, law_metric: str) -> list[Warned]:
    """Coverage (best@k) against sharpening (worst@k): figure 8 of the paper, where the law is of another metric."""
    kind = metric.rpartition("/")[2].partition("@")[0]
    if kind not in ("best", "worst") or metric == law_metric:
        return []
    larger = (kind == "best") == (difficulty == "hard")
    what = "coverage (best@k)" if kind == "best" else "sharpening (worst@k)"
    return [
        Warned(
            "metric_differs",
            f"the law is of {law_metric}; {what} wants a {'larger' if larger else 'smaller'} n than "
            f"{'worst' if kind == 'best' else 'best'}@k does on {'hard' if difficulty == 'hard' else 'easy'} sets "
            f"(IsoCompute figure 8): fit runs on {metric} instead",
        )
    ]
