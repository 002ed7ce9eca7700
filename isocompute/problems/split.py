"""`isocompute.split(...)`: a problem set's difficulty for a model, its subsets and mixtures, written as files."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from isocompute.core import files
from isocompute.core.arrays import Ints
from isocompute.core.errors import InputError
from isocompute.problems.counts import counts_from_rates, read_counts
from isocompute.problems.difficulty import LEVEL, REPLICATES, Difficulty, SubsetMean, fit_difficulty
from isocompute.problems.load import load_problems
from isocompute.problems.model import Problem, ProblemSet, ProblemWarning
from isocompute.problems.pass_rates import Kept
from isocompute.problems.subsets import BANDS, Band, Chosen, choose_subsets, mixture

__all__ = ["SUMMARY", "Split", "split"]

SUMMARY = "difficulty.json"
MIXTURE = "mixture"
UNLIKELY = 1e-3
"""Below this chance the counts are called those of a filtered set."""


@dataclass(frozen=True)
class Split:
    """What `split` found."""

    problems: ProblemSet
    difficulty: Difficulty
    naive: dict[str, Chosen]
    corrected: dict[str, Chosen]
    mixture: tuple[Problem, ...] | None
    settings: Mapping[str, Any]
    """What was asked: model, samples, seed, kept, mix."""

    def subset(self, name: str) -> tuple[Problem, ...]:
        """The problems of a band, chosen by posterior."""
        inside_P = self.corrected[name].chosen_D[self.difficulty.cells.cell_P]
        return tuple(problem for problem, inside in zip(self.problems.problems, inside_P, strict=True) if inside)

    @property
    def subsets(self) -> dict[str, tuple[Problem, ...]]:
        """All bands."""
        return {name: self.subset(name) for name in BANDS}

    def to_json(self) -> dict[str, Any]:
        """The keys of `split --json` and of `difficulty.json` (docs/problems.md)."""
        found = self.difficulty
        weight_K, rate_K = found.mixing.weight_K, found.mixing.rate_K
        support = np.flatnonzero(weight_K > 1e-6)
        return {
            "problems": len(self.problems),
            "source": self.problems.name,
            "duplicates": self.problems.duplicates,
            **self.settings,
            "level": LEVEL,
            "all": _mean_json(found.subset_mean()),
            "subsets": {
                name: {
                    "band": [BANDS[name].low, BANDS[name].high],
                    "naive": _chosen_json(self.naive[name]),
                    "corrected": _chosen_json(self.corrected[name]),
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
                    "problems": int(number),
                    "naive": float(rate),
                    "corrected": float(mean),
                }
                for c, m, number, rate, mean in zip(
                    found.cells.correct_D,
                    found.cells.samples_D,
                    found.cells.problems_D,
                    found.cells.rate_D,
                    found.mean_D,
                    strict=True,
                )
            ],
        }


def _mean_json(mean: SubsetMean | None) -> dict[str, Any]:
    if mean is None:
        return {"size": 0, "naive_mean": None, "corrected_mean": None, "interval": None}
    return {
        "size": mean.size,
        "naive_mean": mean.naive,
        "corrected_mean": mean.corrected,
        "interval": list(mean.interval),
    }


def _chosen_json(chosen: Chosen) -> dict[str, Any]:
    return _mean_json(chosen.mean) | {"in_band": chosen.in_band}


def split(
    problems: str,
    *,
    model: str | None = None,
    counts: str | None = None,
    pass_rates: str | None = None,
    samples: int = 16,
    size: int | None = None,
    seed: int = 0,
    kept: Kept | None = None,
    mix: Mapping[str, float] | None = None,
    mix_size: int | None = None,
    question: str | None = None,
    answer: str | None = None,
    verifier: str | None = None,
    out: str | Path | None = None,
    replicates: int = REPLICATES,
) -> Split:
    """Find how difficult each problem is and choose the paper's subsets on the posterior.

    The counts come from sampling `model`, from the table `counts`, or from the column `pass_rates` of the problems (of
    the table, where both are given). `kept` says to which measured rates the set was filtered by these counts. With
    `out` the subsets are written there as JSONL files that `load_problems` reads, beside `difficulty.json`.
    """
    if samples < 1:
        raise InputError(f"samples = {samples}: take at least one sample a problem.")
    if (model is None) == (counts is None and pass_rates is None):
        raise InputError("split needs either --model to sample from, or --counts FILE and/or --pass-rates COLUMN.")
    own_rates = pass_rates if counts is None else None
    loaded = load_problems(
        problems, size=size, seed=seed, question=question, answer=answer, verifier=verifier, pass_rate=own_rates
    )
    if model is not None:
        columns = _Columns(question, answer, verifier)
        correct_P, samples_P = _sampled(loaded, problems, model, samples=samples, size=size, seed=seed, columns=columns)
    elif counts is not None:
        correct_P, samples_P = read_counts(
            counts, loaded.problems, samples=samples, pass_rate=pass_rates, question=question
        )
    else:
        correct_P, samples_P = counts_from_rates(loaded.problems, samples=samples, name=problems)
    if kept is not None:
        loaded, correct_P, samples_P = _inside(loaded, correct_P, samples_P, kept)
    found = fit_difficulty(correct_P, samples_P, kept=kept, replicates=replicates, seed=seed)
    if found.misfit < UNLIKELY:
        _warn_filtered(found, loaded.name, kept)
    settings = {
        "model": model,
        "samples": sorted({int(m) for m in samples_P}),
        "seed": seed,
        "kept": None if kept is None else list(kept),
        "mix": None if mix is None else dict(mix),
    }
    made = Split(loaded, found, choose_subsets(found, naive=True), choose_subsets(found), None, settings)
    if mix:
        chosen = mixture(made.subsets, mix, size=mix_size, seed=seed)
        made = replace(made, mixture=chosen)
    if out is not None:
        _write(made, Path(out))
    return made


class _Columns(NamedTuple):
    question: str | None
    answer: str | None
    verifier: str | None


def _sampled(
    loaded: ProblemSet, source: str, model: str, *, samples: int, size: int | None, seed: int, columns: _Columns
) -> tuple[Ints, Ints]:
    """Sample the model; its counts come with ids, in any order."""
    from isocompute.rl.difficulty import count_correct

    question, answer, verifier = columns
    ids, correct_P = count_correct(
        problems=source,
        model=model,
        samples=samples,
        seed=seed,
        size=size,
        question=question,
        answer=answer,
        verifier=verifier,
    )
    by_id = dict(zip(ids, np.asarray(correct_P).tolist(), strict=True))
    missing = [problem.id for problem in loaded.problems if problem.id not in by_id]
    if missing:
        raise RuntimeError(f"{source}: the engine returned no count of problem '{missing[0]}'")
    return (
        np.array([by_id[problem.id] for problem in loaded.problems], dtype=np.int64),
        np.full(len(loaded), samples, dtype=np.int64),
    )


def _inside(loaded: ProblemSet, correct_P: Ints, samples_P: Ints, kept: Kept) -> tuple[ProblemSet, Ints, Ints]:
    """Without the problems that the filter should not have let through: they came by another way."""
    inside_P = Band(*kept).holds(correct_P / samples_P)
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


def _warn_filtered(found: Difficulty, name: str, kept: Kept | None) -> None:
    low, high = found.cells.rate_D.min(), found.cells.rate_D.max()
    advice = (
        "widen or narrow --kept" if kept else f"say so with --kept LOW:HIGH (counts reach from {low:g} to {high:g})"
    )
    warnings.warn(
        f"{name}: no distribution of pass rates gives such counts (chance {found.misfit:.0e}). Probably the set was "
        f"filtered by these counts: {advice}. Until then the corrected means are wrong near the edge of the filter.",
        ProblemWarning,
        stacklevel=3,
    )


def _write(made: Split, out: Path) -> None:
    """One file a subset; a subset without problems leaves no file, not even an older one. The summary comes last."""
    cell = dict(zip((p.id for p in made.problems.problems), made.difficulty.cells.cell_P.tolist(), strict=True))
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
        "pass_rate": float(made.difficulty.cells.rate_D[cell]),
        "pass_rate_corrected": round(float(made.difficulty.mean_D[cell]), 6),
        "verifier": getattr(made.problems.verify, "name", "exact"),
    }
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"
