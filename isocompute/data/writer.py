"""Writing the run folder: `run.json` (settings) and `points.jsonl` (append-only, one evaluation a line).

Engines write runs on machines that have no table library, so this module and what it imports use none.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from isocompute.core import files
from isocompute.core.errors import InputError
from isocompute.core.run_settings import RunSettings

__all__ = ["POINTS", "SETTINGS", "RunWriter", "whole_lines"]

SETTINGS = "run.json"
POINTS = "points.jsonl"


class RunWriter:
    """Appends points to a run folder. Each point is one line, flushed as a whole, so a reader sees at most one torn
    line.

    Opening a folder whose last line is torn (the writer was killed) cuts that line off first.
    """

    def __init__(self, folder: str | Path, settings: RunSettings) -> None:
        self.folder = Path(folder)
        data = json.dumps(settings.model_dump(exclude_none=True), indent=1, allow_nan=False)
        files.write_atomically(self.folder / SETTINGS, data.encode() + b"\n")
        path = self.folder / POINTS
        whole = b""
        if path.exists():
            whole = path.read_bytes()
            whole = whole[: whole_lines(whole)]
            with path.open("r+b") as file:
                file.truncate(len(whole))
        self._file = path.open("ab", buffering=0)
        if whole and not whole.endswith(b"\n"):
            self._file.write(b"\n")

    def append(self, point: dict[str, Any]) -> None:
        """Add one evaluation; NaN and infinity are refused, leave a metric out instead."""
        for name, value in point.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"{self.folder / POINTS}: '{name}' is {value}; leave it out of the point.")
        self._file.write(json.dumps(point, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        """Close the file; the folder is complete after every `append` already."""
        self._file.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def whole_lines(data: bytes) -> int:
    """How many bytes are whole lines: all of them, unless the last line is not JSON."""
    end = len(data)
    while end and data[end - 1 : end].isspace():
        end -= 1
    start = data.rfind(b"\n", 0, end) + 1
    return len(data) if start == end or _is_json(data[start:end]) else start


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
