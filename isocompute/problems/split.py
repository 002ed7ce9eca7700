"""`isocompute split`: fits each problem's difficulty to counts of correct samples and writes the files of subsets.

The counts come from a separate table, from the pass-rate column of the problems, or from a model.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from isocompute.core import files
from isocompute.core.arrays import Ints
from isocompute.core.errors import InputError
from isocompute.problems.difficulty import (
    BANDS,
    LEVEL,
    REPLICATES,
    Band,
    Difficulty,
    Subset,
    choose_subsets,
    fit_difficulty,
    mean_to_json,
    mixture,
)
from isocompute.problems.load import (
    IDS,
    QUESTIONS,
    RATES,
    Row,
    choose_column,
    columns_of,
    index_column,
    rate_of,
    read_rows,
    text_of,
)
from isocompute.problems.pass_rates import Kept
from isocompute.problems.problem_set import Problem, ProblemSet, ProblemWarning

SUMMARY = "difficulty.json"
MIXTURE = "mixture"
_UNLIKELY = 1e-3
"""p-value of the fit below which the set is reported as filtered."""


@dataclass(frozen=True)
class Split:
    """The result of `split`: difficulty, subsets and an optional mixture."""

    problems: ProblemSet
    difficulty: Difficulty
    naive: dict[str, Subset]
    corrected: dict[str, Subset]
    mixture: tuple[Problem, ...] | None
    settings: Mapping[str, Any]
    """The settings of the split: model, samples, seed, kept, mix."""

    def subset(self, name: str) -> tuple[Problem, ...]:
        """The problems of a band, chosen by posterior."""
        inside_P = self.corrected[name].chosen_D[self.difficulty.counts.index_P]
        return tuple(problem for problem, inside in zip(self.problems.problems, inside_P, strict=True) if inside)

    @property
    def subsets(self) -> dict[str, tuple[Problem, ...]]:
        """The problems of each band, chosen by posterior."""
        return {name: self.subset(name) for name in BANDS}

    def to_json(self) -> dict[str, Any]:
        """The keys of `split --json` and of `difficulty.json` (docs/reference/make-runs.md)."""
        found, counts = self.difficulty, self.difficulty.counts
        weight_K, rate_K = found.mixing.weight_K, found.mixing.rate_K
        support = np.flatnonzero(weight_K > 1e-6)
        return {
            "problems": len(self.problems),
            "source": self.problems.name,
            "duplicates": self.problems.duplicates,
            **self.settings,
            "level": LEVEL,
            "all": mean_to_json(found.subset_mean()),
            "subsets": {
                name: {
                    "band": [BANDS[name].low, BANDS[name].high],
                    "naive": self.naive[name].to_json(),
                    "corrected": self.corrected[name].to_json(),
                }
                for name in BANDS
            },
            "mixture": None if self.mixture is None else {"size": len(self.mixture)},
            "distribution": {
                "pass_rate": rate_K[support].tolist(),
                "weight": weight_K[support].tolist(),
                "log_likelihood": found.mixing.log_likelihood,
                "gap": found.mixing.gap,
                "misfit": found.misfit,
            },
            "posterior": [
                {
                    "correct": int(c),
                    "samples": int(m),
                    "problems": int(p),
                    "naive": float(rate),
                    "corrected": float(mean),
                }
                for c, m, p, rate, mean in zip(
                    counts.correct_D, counts.samples_D, counts.problems_D, counts.rate_D, found.mean_D, strict=True
                )
            ],
        }


def make_split(
    problems: ProblemSet,
    correct_P: Ints,
    samples_P: Ints,
    *,
    model: str | None = None,
    seed: int = 0,
    kept: Kept | None = None,
    mix: Mapping[str, float] | None = None,
    mix_size: int | None = None,
    replicates: int = REPLICATES,
) -> Split:
    """Fit the difficulty of each problem to its counts and choose the paper's subsets by the posterior."""
    if kept is not None:
        problems, correct_P, samples_P = _inside(problems, correct_P, samples_P, kept)
    found = fit_difficulty(correct_P, samples_P, kept=kept, replicates=replicates, seed=seed)
    if found.misfit < _UNLIKELY:
        low, high = found.counts.rate_D.min(), found.counts.rate_D.max()
        how = "widen or narrow --kept" if kept else f"use --kept LOW:HIGH (counts reach from {low:g} to {high:g})"
        warnings.warn(
            f"{problems.name}: no distribution of pass rates gives such counts (chance {found.misfit:.0e}). Probably "
            f"the set was filtered by these counts: {how}. Until then the corrected means are wrong near the edge of "
            "the filter.",
            ProblemWarning,
            stacklevel=3,
        )
    settings = {
        "model": model,
        "samples": sorted({int(m) for m in samples_P}),
        "seed": seed,
        "kept": None if kept is None else list(kept),
        "mix": None if mix is None else dict(mix),
    }
    made = Split(problems, found, choose_subsets(found, naive=True), choose_subsets(found), None, settings)
    return replace(made, mixture=mixture(made.subsets, mix, size=mix_size, seed=seed)) if mix else made


def _inside(loaded: ProblemSet, correct_P: Ints, samples_P: Ints, kept: Kept) -> tuple[ProblemSet, Ints, Ints]:
    """Leave out problems outside the filter's range, with a warning."""
    inside_P = Band(*kept).contains(correct_P / samples_P)
    if inside_P.all():
        return loaded, correct_P, samples_P
    if not inside_P.any():
        raise InputError(f"{loaded.name}: no problem has a measured pass rate in --kept {kept[0]:g}:{kept[1]:g}.")
    warnings.warn(
        f"{loaded.name}: {int((~inside_P).sum())} problems left out, measured outside --kept {kept[0]:g}:{kept[1]:g}.",
        ProblemWarning,
        stacklevel=3,
    )
    left = tuple(problem for problem, inside in zip(loaded.problems, inside_P, strict=True) if inside)
    return replace(loaded, problems=left), correct_P[inside_P], samples_P[inside_P]


def write_split(made: Split, out: Path) -> None:
    """Write one file for each subset and then the summary; an existing file of an empty subset is removed."""
    cell = dict(zip((p.id for p in made.problems.problems), made.difficulty.counts.index_P.tolist(), strict=True))
    parts: dict[str, Sequence[Problem]] = {**made.subsets, MIXTURE: made.mixture or ()}
    for name, part in parts.items():
        path = out / f"{name}.jsonl"
        if part:
            files.write_atomically(path, b"".join(_line(problem, cell[problem.id], made) for problem in part))
        else:
            path.unlink(missing_ok=True)
    files.write_atomically(out / SUMMARY, json.dumps(made.to_json(), allow_nan=False).encode() + b"\n")


def _line(problem: Problem, cell: int, made: Split) -> bytes:
    row: dict[str, Any] = {"id": problem.id, "question": problem.question, "answer": problem.answer}
    if problem.messages is not None:
        row["messages"] = [dict(message) for message in problem.messages]
    row |= {
        "source": problem.source,
        "pass_rate": float(made.difficulty.counts.rate_D[cell]),
        "pass_rate_corrected": round(float(made.difficulty.mean_D[cell]), 6),
        "verifier": getattr(made.problems.verifier, "name", "exact"),
    }
    row |= {name: value for name, value in problem.extra.items() if name not in row}
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


# Counts

_CORRECT = ("correct", "num_correct", "n_correct", "successes", "passes")
_SAMPLES = ("samples", "num_samples", "n_samples", "total", "n")
_ROUNDING = 0.1
"""Tolerance of rate × samples to a whole number, for rates rounded to three decimals."""


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

    `question` names the question column of the problems; the table may use this name or a known one.
    """
    rows = read_rows(path)
    columns = columns_of(rows)
    key = next((name for name in IDS if name in columns), None)
    if key is None and question not in columns and not {c.lower() for c in columns} & set(QUESTIONS):
        key = index_column(rows)  # row numbers are used only without a question column
    by_id = key is not None
    if key is None:
        known = question if question in columns else None
        instead = ", or give the table the problems' id column (id or index, each once)"
        key = choose_column(rows, QUESTIONS, path=path, what="question", named=known, instead=instead)
    correct = next((name for name in _CORRECT if name in columns), None) if pass_rate is None else None
    size = next((name for name in _SAMPLES if name in columns), None)
    rate = None if correct else choose_column(rows, RATES, path=path, what="pass rate", named=pass_rate)
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        given = row.get(key)
        named = "" if given is None else " ".join(text_of(given, row, key).split())
        if not named:
            raise InputError(f"{row.place}: column '{key}' is empty; name the problem that the counts belong to.")
        if named in found:
            raise InputError(f"{row.place}: {key} '{named[:60]}' is there already; give each problem one row.")
        m = _count(row, size) if size else samples
        c = _count(row, correct) if correct else _whole(rate_of(row.get(rate), row, str(rate)), m, row.place)
        if not 0 <= c <= m:
            raise InputError(f"{row.place}: {c} correct of {m} samples; check the columns or say --samples.")
        found[named] = (c, m)
    keys = [" ".join((problem.id if by_id else problem.question).split()) for problem in problems]
    missing = [name for name in keys if name not in found]
    if missing:
        raise InputError(
            f"{path}: has no counts of {len(missing)} of {len(problems)} problems, first {key} '{missing[0][:60]}'; "
            f"the table's {key}s must be those of the problems."
        )
    pairs = np.array([found[name] for name in keys], dtype=np.int64)
    return pairs[:, 0], pairs[:, 1]


def _count(row: Row, column: str) -> int:
    value = row.get(column)
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
