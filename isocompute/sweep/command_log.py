"""The log of an outside trainer, followed while it grows, and the points made of it."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isocompute.core import files
from isocompute.core.recorder import POINTS, RunWriter
from isocompute.core.run import RunSettings
from isocompute.data.logs.literals import scalars

__all__ = ["LogTail", "PointsFile"]


class LogTail:
    """New rows of a log: whole lines only, from the start again where the trainer has begun the file anew."""

    def __init__(self, path: Path, *, table: bool, columns: Mapping[str, str]) -> None:
        self.path = path
        self._table, self._columns = table, columns
        self._start_over(0)

    def _start_over(self, inode: int) -> None:
        self._inode, self._offset = inode, 0
        self._header: list[str] | None = None

    def wanted(self) -> str:
        """What a row must have, for an error message."""
        names = [theirs for ours, theirs in self._columns.items() if ours != "step"]
        step = self._columns.get("step", "step")
        return f"with '{step}'" + (f" and {' or '.join(repr(name) for name in names)}" if names else " and a number")

    def rows(self, *, ended: bool = False) -> list[dict[str, float]]:
        """Rows since the last call; with `ended`, a last line without its newline counts if it is whole."""
        try:
            with self.path.open("rb") as file:
                stat = self.path.stat()
                if stat.st_ino != self._inode or stat.st_size < self._offset:
                    self._start_over(stat.st_ino)
                file.seek(self._offset)
                data = file.read()
        except (FileNotFoundError, NotADirectoryError):
            return []
        end = len(data) if ended else data.rfind(b"\n") + 1
        self._offset += end
        raw = (self._parse(line) for line in data[:end].decode(errors="replace").split("\n") if line.strip())
        return [row for row in map(self._renamed, raw) if row is not None]

    def _parse(self, line: str) -> dict[str, Any]:
        if not self._table:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                return {}  # torn by a kill, or something else printed into the log
            return scalars(row) if isinstance(row, dict) else {}
        cells = next(csv.reader(io.StringIO(line)), [])
        if self._header is None:
            self._header = [cell.strip() for cell in cells]
            return {}
        if len(cells) != len(self._header):
            return {}
        return dict(zip(self._header, cells, strict=True))

    def _renamed(self, row: Mapping[str, Any]) -> dict[str, float] | None:
        """A row in our names, numbers only; None without a step or without any metric, such as a line of timings."""
        columns = self._columns or {name: name for name in row}
        out = {ours: number for ours, theirs in columns.items() if (number := _number(row.get(theirs))) is not None}
        step = out.get("step")
        if step is None or step < 0 or step != int(step) or len(out) < 2:
            return None
        return {**out, "step": int(step)}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


class PointsFile:
    """`points.jsonl` with one line a step: a new step is appended, a repeated one rewrites the file as a whole."""

    def __init__(self, folder: Path, settings: RunSettings, *, batch_size: int) -> None:
        self._path = folder / POINTS
        self._batch_size = batch_size
        RunWriter(folder, settings).close()  # writes run.json and cuts a torn last line
        self._points: dict[int, dict[str, float]] = {}
        for line in self._path.read_bytes().splitlines():
            point = json.loads(line)
            self._points[int(point["step"])] = point

    @property
    def count(self) -> int:
        """How many points there are."""
        return len(self._points)

    @property
    def rollouts(self) -> int:
        """Compute of the last point."""
        return int(max((point["rollouts"] for point in self._points.values()), default=0))

    def add(self, rows: list[dict[str, float]]) -> None:
        """Take in rows; trainers often log a step in several lines, so a later line adds to an earlier one."""
        last = max(self._points, default=-1)
        new: dict[int, dict[str, float]] = {}
        for row in rows:
            step = int(row["step"])
            known = new.get(step) or self._points.get(step) or {}
            new[step] = {"step": step, "rollouts": step * self._batch_size, **known, **row}
        changed = {step: point for step, point in new.items() if self._points.get(step) != point}
        self._points |= changed
        if not changed:
            return
        if min(changed) > last:
            data = b"".join(_line(changed[step]) for step in sorted(changed))
            with self._path.open("ab", buffering=0) as file:
                file.write(data)
        else:
            files.write_atomically(self._path, b"".join(_line(self._points[step]) for step in sorted(self._points)))


def _line(point: Mapping[str, float]) -> bytes:
    return json.dumps(point).encode() + b"\n"
