"""Imported runs as run folders: `run.json`, `points.jsonl`, `import.json` (their origin), `pass_rates.jsonl`."""

from __future__ import annotations

import itertools
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from isocompute.core import files
from isocompute.core.errors import InputError
from isocompute.core.run import POINT_COLUMNS, RunWarning
from isocompute.data.finite import NON_FINITE
from isocompute.data.folder import POINTS, SETTINGS
from isocompute.data.logs.importing import Imported, Imports

__all__ = ["folder_of", "summary", "write"]

_SLICE = 4_000
_COMPARED = 3
"""First points that tell one run from another."""
_NO_VALUES = {*POINT_COLUMNS[1:], NON_FINITE}
_MOST_NAMED = 3
_UNSAFE = re.compile(r"[^\w.@=+,% -]+")


def write(imports: Imports, out: Path) -> list[Path]:
    """A folder for each run below `out`; every file appears as a whole or not at all.

    A run that is there already is written again. Where it was another one, which its first points tell, one warning
    names what is gone.
    """
    folders = []
    gone = []
    taken: set[str] = set()
    for item in imports:
        name = base = folder_of(item.run.name)
        number = 2
        while name.lower() in taken:  # names that differ in a character no folder can have
            name, number = f"{base}-{number}", number + 1
        taken.add(name.lower())
        if _is_another(item.run.points, out / name / POINTS):
            gone.append(f"'{name}' ({_origin(out / name)})")
        folders.append(_one(item, out / name))
    if gone:
        named = ", ".join(gone[:_MOST_NAMED]) + (
            f" and {len(gone) - _MOST_NAMED} more" if len(gone) > _MOST_NAMED else ""
        )
        runs = "a different run" if len(gone) == 1 else f"{len(gone)} different runs"
        message = f"{out}: replaced {runs} of the same name: {named}; use another --out to keep both."
        warnings.warn(message, RunWarning, stacklevel=2)
    return folders


def _is_another(points: pl.DataFrame, path: Path) -> bool:
    """Whether the first points that were written there differ from these; compute is not looked at, only values.

    Points that have no metric in common are another run's too.
    """
    try:
        with path.open("rb") as file:
            before = [json.loads(line) for line in itertools.islice(file, _COMPARED)]
    except (OSError, ValueError):
        return False
    now = [{k: v for k, v in row.items() if v is not None} for row in points.head(len(before)).to_dicts()]
    were, are = ({key for row in rows for key in row} - {"step", *_NO_VALUES} for rows in (before, now))
    if were and are and not were & are:
        return True
    pairs = zip(before, now, strict=False)
    return any(old[key] != new[key] for old, new in pairs for key in old.keys() & new.keys() - _NO_VALUES)


def _origin(folder: Path) -> str:
    """Where the run of a folder came from."""
    try:
        sources = json.loads((folder / "import.json").read_bytes())["sources"]
        return f"from {sources[0]}"
    except (OSError, ValueError, LookupError, TypeError):
        return "not imported"


def folder_of(run: str) -> str:
    """A run's name as the name of a folder, whatever is in it."""
    parts = [_UNSAFE.sub("_", part).strip(" .")[:120] for part in run.replace("\\", "/").split("/")]
    return "/".join([part for part in parts if part][-4:]) or "run"


def summary(item: Imported) -> dict[str, Any]:
    """One run of `import --json`."""
    return {
        "name": item.run.name,
        "format": item.format,
        "points": item.run.points.height,
        "validation_points": item.validation_points,
        "problems_per_batch": item.run.settings.problems_per_batch,
        "rollouts_per_problem": item.run.settings.rollouts_per_problem,
        "metrics": item.run.metrics,
        "replaced": item.replaced,
        "skipped_lines": item.skipped_lines,
        "update_steps": item.run.settings.update_steps,
        "learning_rate": (item.run.settings.recipe or {}).get("learning_rate"),
        "problems": len({problem for _, problem in item.pass_rates}) or None,
        "notes": list(item.notes),
        "sources": list(item.sources),
    }


def _one(item: Imported, folder: Path) -> Path:
    settings = json.dumps(item.run.settings.model_dump(exclude_none=True), indent=1, default=str)
    files.write_atomically(folder / SETTINGS, settings.encode() + b"\n")
    rates = folder / "pass_rates.jsonl"
    if item.pass_rates:
        _in_pieces(rates, _pass_rates(item))
    elif not Path(item.sources[0]).resolve().is_relative_to(folder.resolve()):  # a run may be written onto itself
        rates.unlink(missing_ok=True)
    kept = ("format", "replaced", "skipped_lines", "notes", "sources")
    came_from = {k: v for k, v in summary(item).items() if k in kept}
    files.write_atomically(folder / "import.json", json.dumps(came_from, indent=1).encode() + b"\n")
    _in_pieces(folder / POINTS, _points(item.run.points))  # the last: a folder with points is a run
    return folder


def _points(points: pl.DataFrame) -> Iterator[bytes]:
    """Points as JSON lines, without what is not there."""
    kept = [c for c, kind in points.schema.items() if kind.is_numeric() or kind == pl.Boolean or c == NON_FINITE]
    points = points.select(kept)
    for part in points.iter_slices(_SLICE):
        yield b"".join(_lines(part))


def _lines(part: pl.DataFrame) -> list[bytes]:
    """The rows' lines: rows that lack the same columns are written at once, which is most of them."""
    missing_RC = np.packbits(part.select(pl.all().is_null()).to_numpy(), axis=1)
    _, kind_R = np.unique(missing_RC, axis=0, return_inverse=True)
    kind_R = kind_R.reshape(-1)
    order_R = np.argsort(kind_R, kind="stable")
    out = [b""] * part.height
    for rows in np.split(order_R, np.flatnonzero(np.diff(kind_R[order_R])) + 1):
        same = part[rows]
        there = [c for c in same.columns if same[c].null_count() == 0]
        for row, line in zip(rows.tolist(), same.select(there).write_ndjson().encode().splitlines(True), strict=True):
            out[row] = line
    return out


def _pass_rates(item: Imported) -> Iterator[bytes]:
    """A line a step, as engines write them (docs/lm.md)."""
    ordered = sorted(item.pass_rates.items(), key=lambda entry: entry[0][0])
    for step, entries in itertools.groupby(ordered, key=lambda entry: entry[0][0]):
        rows = [(problem, correct, samples) for (_, problem), (correct, samples) in entries]
        problems, correct, samples = zip(*rows, strict=True)
        line = {"step": step, "set": item.pass_rates_set, "problems": problems, "samples": samples, "correct": correct}
        yield json.dumps(line).encode() + b"\n"


def _in_pieces(path: Path, pieces: Iterator[bytes]) -> None:
    """Like `write_atomically`, for what is too large to hold as a whole."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}).") from error
    finally:
        temporary.unlink(missing_ok=True)
