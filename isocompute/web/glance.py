"""The curves of a study in a moment, for the rough law: no table library, and nothing but the ordinary.

Ordinary runs have a `run.json` and points that all say the same things, as numbers, in order. For them these curves are
those of `curves_of(load(…))`, which reads all others: whatever is missing, torn, repeated or not a number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from isocompute.data.circumstances import CIRCUMSTANCES
from isocompute.data.rewards import REWARDS, rank
from isocompute.law.curve import MINIMUM_POINTS, Curve
from isocompute.web.source import POINTS

__all__ = ["glance"]

_SETTINGS = "run.json"
_UNIT = "rollouts"
_DEPTH = 4
_LARGEST = 1e100


class _OutOfTheOrdinaryError(Exception):
    pass


def glance(folder: str) -> tuple[list[Curve], str, str] | None:
    """The curves of the metric that is meant, its name and the unit of compute; None where a run is not ordinary."""
    try:
        rows_of = {name: _rows(path) for name, path in _runs(folder, "", _DEPTH)}
        metric = _metric([rows[0] for rows in rows_of.values()])
        curves = [_curve(name, Path(folder, name), rows, metric) for name, rows in rows_of.items()]
    except (_OutOfTheOrdinaryError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return curves, metric, _UNIT


def _runs(folder: str, name: str, depth: int) -> Iterator[tuple[str, Path]]:
    """As `load` finds and orders them."""
    entries = {entry.name: entry for entry in os.scandir(folder)}
    if POINTS in entries:
        if not name:
            raise _OutOfTheOrdinaryError  # one run, named by its folder
        yield name, Path(folder, POINTS)
    elif depth > 0:
        for part in sorted(entries):
            if not part.startswith(".") and entries[part].is_dir():
                yield from _runs(entries[part].path, f"{name}/{part}".strip("/"), depth - 1)


def _rows(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    if not data.endswith(b"\n"):
        raise _OutOfTheOrdinaryError
    rows: list[dict[str, Any]] = json.loads(b"[" + data.strip().replace(b"\n", b",") + b"]")
    if len(rows) < MINIMUM_POINTS or any(row.keys() != rows[0].keys() for row in rows):
        raise _OutOfTheOrdinaryError
    return rows


def _metric(firsts: list[dict[str, Any]]) -> str:
    """The first reward that all runs have."""
    shared = set.intersection(*(set(first) for first in firsts))
    metric = min((name for name in firsts[0] if name in shared), key=rank)
    if rank(metric) == len(REWARDS):
        raise _OutOfTheOrdinaryError
    return metric


def _curve(name: str, folder: Path, rows: list[dict[str, Any]], metric: str) -> Curve:
    step_C, compute_C, values_C = (np.array([row[key] for row in rows]) for key in ("step", _UNIT, metric))
    numbers = all(each_C.dtype.kind in "if" for each_C in (step_C, compute_C, values_C))
    if (
        not numbers
        or not (np.abs(values_C) < _LARGEST).all()
        or not (np.diff(step_C) > 0).all()
        or not (np.diff(compute_C) > 0).all()
        or not 0 <= compute_C[0] <= compute_C[-1] < _LARGEST
        or np.ptp(values_C) == 0
    ):
        raise _OutOfTheOrdinaryError
    settings = json.loads((folder / _SETTINGS).read_bytes())
    recipe = {key: value for key, value in settings.items() if key not in CIRCUMSTANCES and value is not None}
    bp, n, seed = (_whole(settings.get(key)) for key in ("problems_per_batch", "rollouts_per_problem", "seed"))
    if any(value is not None and value < 1 for value in (bp, n)):
        raise _OutOfTheOrdinaryError
    return Curve(name, compute_C, values_C, bp, n, seed, json.dumps(recipe, sort_keys=True))


def _whole(value: object) -> int | None:
    if value is not None and type(value) is not int:
        raise _OutOfTheOrdinaryError
    return value
