"""trackio: a project's SQLite file (`PROJECT.db`), its runs in one table with the metrics as JSON."""

from __future__ import annotations

import json
import re
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

from isocompute.core.errors import InputError
from isocompute.data.formats.jsonl import step_of
from isocompute.data.rows import NO_MATCH, Match, Sink
from isocompute.data.source import Log, Sample, flatten

_MAGIC = b"SQLite format 3\x00"
_TABLE = re.compile(rb"CREATE TABLE\s+[\"'`\[]?metrics\b", re.IGNORECASE)
_RUN = re.compile(rb"\brun_name[\"'`\]]?\s+TEXT", re.IGNORECASE)
"""The column tells trackio from other trackers, which have a table of that name too."""


class Trackio:
    """Tables `metrics` (run_name, step, metrics) and `configs` (run_name, config)."""

    name: ClassVar[str] = "trackio"
    marks: ClassVar[tuple[bytes, ...]] = (_MAGIC,)
    looks_for: ClassVar[str] = "a SQLite file with trackio's table 'metrics'"

    def sniff(self, sample: Sample) -> Match:
        """A SQLite file whose schema names the table."""
        if not sample.head.startswith(_MAGIC):
            return NO_MATCH
        if _TABLE.search(sample.head) and _RUN.search(sample.head):
            return Match(0.95, 1)
        return Match(0.4, why="a SQLite file without trackio's table of metrics")

    def read(self, log: Log, sink: Sink) -> None:
        """Add each row of the table to its run."""
        with tempfile.TemporaryDirectory() as folder:
            path = log.path
            if path is None:
                path = Path(folder) / "trackio.db"
                path.write_bytes(log.whole())
            try:
                with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as base:
                    _read(base, sink)
            except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
                raise InputError(f"{log.name}: not a readable trackio file ({error}).") from error


def _read(base: sqlite3.Connection, sink: Sink) -> None:
    base.text_factory = lambda data: data.decode(errors="replace")
    for name, step, text in base.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id"):
        rows = sink.run(str(name))
        row = flatten(_object(text))
        number = step_of({**row, "_step": row.get("_step", step)})
        metrics = {k: v for k, v in row.items() if not k.endswith("global_step") and k not in ("step", "_step")}
        if number is None or not rows.add_mapping(number, metrics):
            rows.skipped_lines += 1
    if base.execute("SELECT name FROM sqlite_master WHERE name = 'configs'").fetchone():
        for name, text in base.execute("SELECT run_name, config FROM configs"):
            if str(name) in sink.runs:
                sink.run(str(name)).add_config(flatten(_object(text), separator="."))


def _object(text: Any) -> dict[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str | bytes) else None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
