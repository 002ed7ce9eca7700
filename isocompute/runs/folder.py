"""The run folder: `run.json` (settings) and `points.jsonl` (append-only, one evaluation a line)."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import ValidationError

from isocompute.errors import InputError
from isocompute.runs import files
from isocompute.runs.model import Run, RunSettings, RunWarning

__all__ = ["POINTS", "SETTINGS", "RunWriter", "is_run", "parse_points", "read_run"]

SETTINGS = "run.json"
POINTS = "points.jsonl"


class RunWriter:
    """Appends points to a run folder. Each point is one line, flushed as a whole, so a reader sees at most one torn
    line.

    Opening a folder whose last line is torn (the writer was killed) cuts that line off first.
    """

    def __init__(self, folder: str | Path, settings: RunSettings) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        data = json.dumps(settings.model_dump(exclude_none=True), indent=1, allow_nan=False)
        files.write_atomically(self.folder / SETTINGS, data.encode() + b"\n")
        path = self.folder / POINTS
        if path.exists():
            whole = _whole_lines(path.read_bytes())
            with path.open("r+b") as file:
                file.truncate(whole)
        self._file = path.open("ab", buffering=0)

    def append(self, point: dict[str, Any]) -> None:
        """Add one evaluation; NaN and infinity are refused, leave a metric out instead."""
        self._file.write(json.dumps(point, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        """Close the file; the folder is complete after every `append` already."""
        self._file.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_run(address: str) -> bool:
    """Whether a folder is a run folder."""
    return files.is_folder(address) and any(child.endswith(f"/{POINTS}") for child in files.children(address))


def read_run(address: str, *, name: str | None = None) -> Run:
    """Read a run folder."""
    settings = RunSettings()
    settings_address = files.join(address, SETTINGS)
    if any(child.endswith(f"/{SETTINGS}") for child in files.children(address)):
        try:
            settings = RunSettings.model_validate_json(files.read_bytes(settings_address))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            raise InputError(f"{settings_address}: {where}: {first['msg']}; mend or remove it.") from error
    points_address = files.join(address, POINTS)
    points = parse_points(files.read_bytes(points_address), points_address)
    return Run(name or address.rstrip("/").rsplit("/", 1)[-1], settings, points)


def _whole_lines(data: bytes) -> int:
    """How many bytes are whole lines: everything up to the last newline, plus a last line that parses on its own."""
    end = data.rfind(b"\n") + 1
    return len(data) if end < len(data) and _parses(data[end:]) else end


def _parses(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def parse_points(data: bytes, address: str) -> pl.DataFrame:
    """A table of points from JSON lines: torn last line dropped, the later line of a repeated step kept."""
    end = _whole_lines(data)
    last_start = data.rfind(b"\n", 0, max(end - 1, 0)) + 1
    if end == len(data) and end and data[last_start:end].strip() and not _parses(data[last_start:end]):
        end = last_start
    if end < len(data):
        warnings.warn(f"{address}: the last line is torn and was dropped", RunWarning, stacklevel=2)
        data = data[:end]
    if not data.strip():
        raise InputError(f"{address}: holds no points; has the run evaluated yet?")
    try:
        table = pl.read_ndjson(io.BytesIO(data), infer_schema_length=None)
    except pl.exceptions.PolarsError:
        table = _slowly(data, address)
    return tidy(table)


def _slowly(data: bytes, address: str) -> pl.DataFrame:
    """Line by line, to name the line that is wrong or to read what the fast reader would not."""
    rows = []
    for number, line in enumerate(data.splitlines(), start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(f"{address}, line {number}: not JSON ({error}); mend or delete the line.") from error
            if not isinstance(row, dict):
                raise InputError(f"{address}, line {number}: not an object but {type(row).__name__}; delete the line.")
            rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None, strict=False)


def tidy(table: pl.DataFrame) -> pl.DataFrame:
    """One row a step in order of step, the later row standing where a resumed run repeats one."""
    if "step" not in table.columns:
        return table
    repeated = table.height - table["step"].n_unique()
    if repeated:
        table = table.unique(subset="step", keep="last", maintain_order=True)
    return table if table["step"].is_sorted() else table.sort("step", maintain_order=True)
