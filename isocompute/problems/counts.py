"""Counts of correct samples a problem, from a table beside the problems or from their own pass-rate column."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from isocompute.core.arrays import Ints
from isocompute.core.errors import InputError
from isocompute.problems.columns import IDS, QUESTIONS, RATES, choose, distinct_index, rate_of, text_of
from isocompute.problems.model import Problem
from isocompute.problems.tables import Row, columns_of, lookup, read_rows

__all__ = ["counts_from_rates", "read_counts"]

CORRECT = ("correct", "num_correct", "n_correct", "successes", "passes")
SAMPLES = ("samples", "num_samples", "n_samples", "total", "n")
_ROUNDING = 0.1
"""How far rate × samples may be from a whole number, for rates that were rounded to three places."""


def counts_from_rates(problems: Sequence[Problem], *, samples: int, name: str) -> tuple[Ints, Ints]:
    """(correct_P, samples_P) from the problems' own pass rates."""
    correct = []
    for problem in problems:
        if problem.pass_rate is None:
            raise InputError(f"{name}: problem '{problem.id}' has no pass rate; fill it in or leave the problem out.")
        correct.append(_whole(problem.pass_rate, samples, f"{name}, problem '{problem.id}'"))
    return np.array(correct, dtype=np.int64), np.full(len(correct), samples, dtype=np.int64)


def read_counts(
    path: str,
    problems: Sequence[Problem],
    *,
    samples: int,
    pass_rate: str | None = None,
    question: str | None = None,
) -> tuple[Ints, Ints]:
    """(correct_P, samples_P) from a table with `id` or `question`, and `correct` and `samples`, or a pass rate.

    `question` is the column of that name in the problems; the table may call it the same or by a known name.
    """
    rows = read_rows(path)
    columns = columns_of(rows)
    key, by_id = _key(rows, path, question)
    correct = next((name for name in CORRECT if name in columns), None) if pass_rate is None else None
    size = next((name for name in SAMPLES if name in columns), None)
    rate = None if correct else choose(rows, RATES, path=path, what="pass rate", named=pass_rate)
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        given = lookup(row.values, key)
        named = "" if given is None else _words(text_of(given, row, key))
        if not named:
            raise InputError(f"{row.place}: column '{key}' is empty; say which problem the counts are of.")
        if named in found:
            raise InputError(f"{row.place}: {key} '{named[:60]}' is there already; give one row a problem.")
        m = _count(row, size) if size else samples
        c = (
            _count(row, correct)
            if correct
            else _whole(rate_of(lookup(row.values, str(rate)), row, str(rate)), m, row.place)
        )
        if not 0 <= c <= m:
            raise InputError(f"{row.place}: {c} correct of {m} samples; check the columns or say --samples.")
        found[named] = (c, m)
    keys = [_words(problem.id if by_id else problem.question) for problem in problems]
    missing = [name for name in keys if name not in found]
    if missing:
        raise InputError(
            f"{path}: has no counts of {len(missing)} of {len(problems)} problems, first {key} '{missing[0][:60]}'; "
            f"the table's {key}s must be those of the problems."
        )
    pairs = np.array([found[name] for name in keys], dtype=np.int64)
    return pairs[:, 0], pairs[:, 1]


def _key(rows: Sequence[Row], path: str, question: str | None) -> tuple[str, bool]:
    """The column to join by, and whether it holds ids. A row number counts only where there is no question."""
    columns = columns_of(rows)
    by_id = next((name for name in IDS if name in columns), None)
    if by_id is None and question not in columns and not {c.lower() for c in columns} & set(QUESTIONS):
        by_id = distinct_index(rows)
    if by_id is not None:
        return by_id, True
    known = question if question in columns else None
    instead = ", or give the table the problems' id column (id or index, each once)"
    return choose(rows, QUESTIONS, path=path, what="question", named=known, instead=instead), False


def _words(text: str) -> str:
    return " ".join(text.split())


def _count(row: Row, column: str) -> int:
    value = lookup(row.values, column)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not number.is_integer() or number < 0:
        raise InputError(f"{row.place}: {column} = {value!r} is not a count; give a whole number.")
    return int(number)


def _whole(rate: float, samples: int, place: str) -> int:
    count = rate * samples
    if abs(count - round(count)) > _ROUNDING:
        raise InputError(
            f"{place}: a pass rate of {rate:g} is not a whole number of {samples} samples; "
            "say how many samples it was measured with (--samples)."
        )
    return round(count)
