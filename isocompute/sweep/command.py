"""The command engine runs a cell with an external trainer: it starts a command and follows the log it writes.

    [engine_options]
    command = ["python", "train.py", "--bs", "{problems_per_batch}", "--n", "{rollouts_per_problem}", "{folder}"]
    logs = {path = "{folder}/metrics.jsonl", format = "jsonl", columns = {step = "step", "avg@4" = "val/acc"}}

The command runs without a shell, so values need no quoting. Its output goes to `output.log`. Resuming starts the
command again. It has to restore its own checkpoint, and a step that it logs again replaces the earlier one.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
import signal
import string
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isocompute.core import files
from isocompute.core.allocation import Cell, Control
from isocompute.core.errors import InputError, first_wrong
from isocompute.core.recipe import Recipe, learning_rate, make_recipe
from isocompute.core.recorder import POINTS, LockGuard, LostError, Recorder, RunSettings, RunWriter, process_start
from isocompute.data.source import flatten

OUTPUT = "output.log"
_PROCESS = "process.json"
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 30.0
"""Time between SIGTERM and SIGKILL, for the trainer to write its own checkpoint."""
_SHOWN_LINES = 15


class _Logs(BaseModel):
    """The `logs` table of the options."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(min_length=1, description="the file the trainer writes; may have placeholders")
    format: Literal["jsonl", "csv", "points"] = Field(default="jsonl", description="points: jsonl in our own names")
    columns: dict[str, str] = Field(default={}, description="our names to the log's; without it all are taken")


class _Options(BaseModel):
    """The `[engine_options]` table of this engine."""

    model_config = ConfigDict(extra="forbid")

    command: list[str] = Field(min_length=1, description="program and arguments, with placeholders")
    logs: _Logs


class CommandEngine:
    """Runs a cell by starting a program and reading the log it writes."""

    def check(self, cell: Cell) -> None:
        """Refuse options that cannot work, such as unknown placeholders or a missing program."""
        options = _options(cell)
        values = _values(cell, Path("/folder"))
        for where, text in [
            *((f"command.{i}", t) for i, t in enumerate(options.command)),
            ("logs.path", options.logs.path),
        ]:
            _fill(text, values, where)
        program = _fill(options.command[0], values, "command.0")
        if shutil.which(program) is None:
            raise InputError(f"engine_options.command.0: there is no program '{program}' here.")
        if options.logs.columns and "step" not in options.logs.columns:
            raise InputError("engine_options.logs.columns: 'step' is missing; say which column counts updates.")
        if options.logs.format == "points" and options.logs.columns:
            raise InputError("engine_options.logs.columns: format 'points' has our own names; use 'jsonl' to rename.")
        if Path(_fill(options.logs.path, values, "logs.path")) == Path("/folder") / POINTS:
            raise InputError(f"engine_options.logs.path: {POINTS} is what the engine writes; log to another file.")

    def run(self, cell: Cell, folder: Path, control: Control) -> bool:
        """Start the command and follow its log until it ends or the study stops."""
        guard, folder = LockGuard(folder), folder.absolute()
        options = _options(cell)
        values = _values(cell, folder)
        _end_orphan(folder)
        points = PointsFile(folder, _settings(cell), batch_size=cell.rollouts_per_update)
        tail = LogTail(
            Path(_fill(options.logs.path, values, "logs.path")),
            table=options.logs.format == "csv",
            columns=options.logs.columns,
        )
        done = points.rollouts

        def follow(*, ended: bool = False) -> None:
            nonlocal done
            guard.check()
            points.add(tail.rows(ended=ended))
            if points.rollouts > done:
                control.advanced(points.rollouts - done)
                done = points.rollouts

        with (folder / OUTPUT).open("ab") as output:
            begin = output.tell()
            try:
                process = subprocess.Popen(
                    [_fill(text, values, "command") for text in options.command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={"PYTHONUNBUFFERED": "1", **os.environ},  # keeps errors in order with other output
                    start_new_session=True,  # so that its own children can be ended with it
                )
            except OSError as error:
                raise RuntimeError(f"the command cannot be started: {error}") from error
        (folder / _PROCESS).write_text(json.dumps({"pid": process.pid, "started": process_start(process.pid)}))
        try:
            while process.poll() is None:
                if control.stopping():
                    _end(process)
                    follow()
                    return False
                follow()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_SECONDS)
        except LostError:
            _end(process, grace=0.0)  # another process now writes to this folder
            raise
        finally:
            _end(process)
            if guard.is_ours():
                (folder / _PROCESS).unlink(missing_ok=True)
        follow(ended=True)
        if process.returncode != 0:
            raise RuntimeError(_failure(process.returncode, folder / OUTPUT, begin))
        if not points.count:
            raise RuntimeError(f"the command ended well, but {tail.path} has no row {tail.wanted()}.")
        Recorder(folder, _settings(cell)).finish({"points": points.count})
        return True


def _options(cell: Cell) -> _Options:
    try:
        return _Options.model_validate(dict(cell.engine))
    except ValidationError as error:
        where, why = first_wrong(error, fields=_Options.model_fields)
        raise InputError(f"engine_options.{where}: {why[:1].lower()}{why[1:]}.") from error


def _values(cell: Cell, folder: Path) -> dict[str, Any]:
    """Values of the placeholders: fields of the problem set, the recipe and the allocation; later ones win.

    `learning_rate` is the rate after warm-up, scaled to this cell's batch size as the recipe says.
    """
    known = {key: value for key, value in cell.recipe.items() if key in Recipe.model_fields or key == "name"}
    recipe = make_recipe(known)
    return {
        **cell.problems,
        **recipe.model_dump(),
        **{key: value for key, value in cell.recipe.items() if key not in known},
        "learning_rate": learning_rate(recipe, batch_size=cell.batch_size, step=recipe.warmup_steps),
        "problems_per_batch": cell.problems_per_batch,
        "rollouts_per_problem": cell.rollouts_per_problem,
        "update_steps": cell.update_steps,
        "batch_size": cell.batch_size,
        "seed": cell.seed,
        "folder": str(folder),
    }


def _fill(text: str, values: Mapping[str, Any], where: str) -> str:
    """Replace each `{name}` by its value; `{{` and `}}` are literal braces."""
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise InputError(f"engine_options.{where}: '{text}': {error}; write {{{{ for a brace.") from error
    out = []
    for literal, name, form, _ in parts:
        out.append(literal)
        if name is None:
            continue
        if name not in values:
            raise InputError(
                f"engine_options.{where}: there is no '{{{name}}}'; there are {', '.join(sorted(values))}."
            )
        try:
            out.append(format(values[name], form or ""))
        except (ValueError, TypeError) as error:
            raise InputError(f"engine_options.{where}: '{text}': {error}.") from error
    return "".join(out)


def _settings(cell: Cell) -> RunSettings:
    return RunSettings(
        problems_per_batch=cell.problems_per_batch,
        rollouts_per_problem=cell.rollouts_per_problem,
        update_steps=cell.update_steps,
        seed=cell.seed,
        engine="command",
        problems=cell.problems.get("set"),
        recipe=dict(cell.recipe) or None,
    )


def _end(process: subprocess.Popen[bytes], *, grace: float = _GRACE_SECONDS) -> None:
    """End the trainer and its children: with SIGTERM, then after `grace` seconds with SIGKILL."""
    if process.poll() is None and grace:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_orphan(folder: Path) -> None:
    """Kill a trainer that is still running after its worker was killed, so that two do not mix their logs."""
    path = folder / _PROCESS
    if not path.exists():
        return
    with suppress(ValueError, KeyError, TypeError):
        orphan = json.loads(path.read_text())
        while orphan["started"] and process_start(orphan["pid"]) == orphan["started"]:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(orphan["pid"], signal.SIGKILL)
            time.sleep(0.02)
    path.unlink(missing_ok=True)


def _failure(code: int, output: Path, begin: int) -> str:
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
    with output.open("rb") as file:
        file.seek(max(begin, file.seek(0, 2) - 65536))
        lines = file.read().decode(errors="replace").splitlines()[-_SHOWN_LINES:]
    if not lines:
        return f"the command ended with {how} and printed nothing."
    return f"the command ended with {how}; its last lines:\n" + "\n".join(lines)


# The log of an external trainer, followed while it grows, and the points made from it.


class LogTail:
    """Reads new complete rows of a log; starts over when the trainer has replaced or truncated the file."""

    def __init__(self, path: Path, *, table: bool, columns: Mapping[str, str]) -> None:
        self.path = path
        self._table, self._columns = table, columns
        self._start_over(0)

    def _start_over(self, inode: int) -> None:
        self._inode, self._offset = inode, 0
        self._header: list[str] | None = None

    def wanted(self) -> str:
        """A description of the columns that a row must have, for error messages."""
        names = [theirs for ours, theirs in self._columns.items() if ours != "step"]
        step = self._columns.get("step", "step")
        return f"with '{step}'" + (f" and {' or '.join(repr(name) for name in names)}" if names else " and a number")

    def rows(self, *, ended: bool = False) -> list[dict[str, float]]:
        """Rows since the last call; with `ended`, also a complete last line without a newline."""
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
                return {}  # cut off by a kill, or other output in the log
            return flatten(row) if isinstance(row, dict) else {}
        cells = next(csv.reader(io.StringIO(line)), [])
        if self._header is None:
            self._header = [cell.strip() for cell in cells]
            return {}
        if len(cells) != len(self._header):
            return {}
        return dict(zip(self._header, cells, strict=True))

    def _renamed(self, row: Mapping[str, Any]) -> dict[str, float] | None:
        """The numbers of a row under our names; None if it lacks a step or any metric."""
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
    """`points.jsonl` with one line per step: new steps are appended; a repeated step rewrites the whole file."""

    def __init__(self, folder: Path, settings: RunSettings, *, batch_size: int) -> None:
        self._path = folder / POINTS
        self._batch_size = batch_size
        RunWriter(folder, settings).close()  # writes run.json and removes an incomplete last line
        self._points: dict[int, dict[str, float]] = {}
        for line in self._path.read_bytes().splitlines():
            point = json.loads(line)
            self._points[int(point["step"])] = point

    @property
    def count(self) -> int:
        """The number of points."""
        return len(self._points)

    @property
    def rollouts(self) -> int:
        """Rollouts at the last point."""
        return int(max((point["rollouts"] for point in self._points.values()), default=0))

    def add(self, rows: list[dict[str, float]]) -> None:
        """Add rows; rows of the same step are merged, since trainers often log a step in several lines."""
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
