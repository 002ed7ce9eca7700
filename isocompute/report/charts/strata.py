"""Tables of end points: which runs differ in n alone, and what n changes among those.

A table of results has a row a run, of several models, noise levels or learning rates, and seldom every n of each. A
mean over all rows with one n then says which models were run with it. So runs are put into strata: everything that they
say and that is no result (columns, Bp, and their names without the n) is the same in a stratum, and n is compared
inside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from isocompute.core.run import Run

__all__ = ["Cells", "Change", "Strata", "means", "strata_of"]

_RESULT = re.compile(
    r"acc|reward|score|loss|return|pass|solve|success|correct|entrop|kl|grad|norm|len|token|time|second|hour|step|best|"
    r"final|last|train|val|eval|test"
)
_OF_ROLLOUTS = re.compile(r"(?<![A-Za-z])(?:n|g|r|rollouts?|groups?|gens?|generations?|samples?)[ _=-]?(\d+)(?!\d)")
_GLUED = re.compile(r"(rollouts?|groups?|generations?|samples?)[ _=-]?(\d+)(?!\d)")
_OF_SEED = re.compile(r"(?<![A-Za-z])(?:s|seed)[ _=-]?\d+(?![\d.])")

Cells = Mapping[str, Mapping[int, float]]
"""The mean of the last values by stratum and n."""


@dataclass(frozen=True)
class Change:
    """What n changes inside the strata that have both of two neighbouring n."""

    before: int
    after: int
    mean: float
    error: float
    """Twice the standard error over the strata; 0 where there is one."""
    strata: int


@dataclass(frozen=True)
class Strata:
    """The runs of a table by what they share besides n."""

    told_apart_by: tuple[str, ...]
    """What differs between strata; empty where nothing does."""
    cells: Cells

    @property
    def compared(self) -> list[tuple[tuple[int, ...], Cells]]:
        """Strata with the same two or more n, which their means compare; the most strata first."""
        groups: dict[tuple[int, ...], dict[str, Mapping[int, float]]] = {}
        for name, by_n in self.cells.items():
            if len(by_n) > 1:
                groups.setdefault(tuple(sorted(by_n)), {})[name] = by_n
        return sorted(groups.items(), key=lambda item: (-len(item[1]), -len(item[0])))

    @property
    def balanced(self) -> bool:
        """Whether every stratum has every n."""
        return len({tuple(sorted(by_n)) for by_n in self.cells.values()}) == 1

    def changes(self) -> list[Change]:
        """From each n to the next, over the strata that have both."""
        every = sorted({n for by_n in self.cells.values() for n in by_n})
        out = []
        for before, after in pairwise(every):
            moved = [by_n[after] - by_n[before] for by_n in self.cells.values() if before in by_n and after in by_n]
            if moved:
                out.append(Change(before, after, float(np.mean(moved)), _twice_error(moved), len(moved)))
        return out


def means(cells: Cells) -> list[dict[str, Any]]:
    """The mean of each n over strata that all have it; the error is that of differences inside strata."""
    levels = {name: float(np.mean(list(by_n.values()))) for name, by_n in cells.items()}
    out = []
    for n in sorted(next(iter(cells.values()))):
        mean = float(np.mean([by_n[n] for by_n in cells.values()]))
        error = _twice_error([by_n[n] - levels[name] for name, by_n in cells.items()])
        out.append({"setting": f"{n}", "value": mean, "low": mean - error, "high": mean + error, "strata": len(cells)})
    return out


def strata_of(runs: Sequence[Run], metric: str) -> Strata:
    """The last value of every run that says its n, by stratum."""
    known = [run for run in runs if run.settings.rollouts_per_problem is not None and metric in run.metrics]
    parts = _parts(known, metric)
    varying = tuple(key for key, values in parts.items() if len(set(values)) > 1)
    values: dict[str, dict[int, list[float]]] = {}
    for i, run in enumerate(known):
        stratum = " · ".join(parts[key][i] for key in varying)
        n = int(run.settings.rollouts_per_problem or 0)
        values.setdefault(stratum, {}).setdefault(n, []).append(float(run.points[metric].drop_nulls()[-1]))
    cells = {s: {n: float(np.mean(found)) for n, found in by_n.items()} for s, by_n in values.items()}
    return Strata(varying, cells)


def _parts(runs: Sequence[Run], metric: str) -> dict[str, list[str]]:
    """What runs say besides n and results, as text, by the name of what it is."""
    out = {"Bp": [f"{run.settings.problems_per_batch}" for run in runs]}
    for column in dict.fromkeys(name for run in runs for name in run.points.columns):
        if column == metric or _RESULT.search(column.lower()):
            continue
        said = [run.points[column].unique() if column in run.points.columns else None for run in runs]
        if all(each is not None and len(each) == 1 for each in said):
            texts = [f"{each[0]}" for each in said if each is not None]
            if 2 * len(set(texts)) <= len(texts):  # what hardly two runs share is measured, not set
                out[column] = texts
    without = [_without_n(run.name, int(run.settings.rollouts_per_problem or 0)) for run in runs]
    if all(each is not None for each in without):
        out["name"] = [f"{each}" for each in without]
    return out


def _without_n(name: str, n: int) -> str | None:
    """A run's name without its n and seed; None where it does not spell its n.

    >>> _without_n("grpo0.5B-b32-r32-p0.1", 32), _without_n("batch32rollout8", 8), _without_n("first", 8)
    ('grpo0.5B-b32-#-p0.1', 'batch32#', None)
    """
    for pattern in (_OF_ROLLOUTS, _GLUED):
        found = next((m for m in pattern.finditer(name) if int(m.group(m.lastindex or 0)) == n), None)
        if found is not None:
            return _OF_SEED.sub("", f"{name[: found.start()]}#{name[found.end() :]}")
    return None


def _twice_error(values: Sequence[float]) -> float:
    return 2.0 * float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
