"""A cell as an outside trainer: a command to start and a log to watch.

    [engine_options]
    command = ["python", "train.py", "--bs", "{problems_per_batch}", "--n", "{rollouts_per_problem}", "{folder}"]
    logs = {path = "{folder}/metrics.jsonl", format = "jsonl", columns = {step = "step", "avg@4" = "val/acc"}}

The command is started without a shell, so no value can be read as one. What it prints goes to `output.log`. Resuming
starts it again: its own checkpoints are its business, and a step that it logs again replaces the one that is there.
"""

from __future__ import annotations

import json
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

from isocompute.core.cell import Cell, Control
from isocompute.core.errors import InputError, first_wrong
from isocompute.core.lock import Holding, LostError, start_of
from isocompute.core.recipe import Recipe, learning_rate, make_recipe
from isocompute.core.recorder import POINTS, Recorder
from isocompute.core.run import RunSettings
from isocompute.sweep.command_log import LogTail, PointsFile
from isocompute.sweep.threads import outside

__all__ = ["CommandEngine"]

OUTPUT = "output.log"
_PROCESS = "process.json"
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 30.0
"""What a trainer gets between SIGTERM and SIGKILL to write its own checkpoint."""
_SHOWN_LINES = 15


class _Logs(BaseModel):
    model_config = ConfigDict(extra="forbid")

    path: str = Field(min_length=1, description="the file the trainer writes; may have placeholders")
    format: Literal["jsonl", "csv", "points"] = Field(default="jsonl", description="points: jsonl in our own names")
    columns: dict[str, str] = Field(default={}, description="our names to the log's; without it all are taken")


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    command: list[str] = Field(min_length=1, description="program and arguments, with placeholders")
    logs: _Logs


class CommandEngine:
    """Runs a cell by starting a program and reading the log it writes."""

    def check(self, cell: Cell) -> None:
        """Refuse options that cannot work: unknown placeholders, a program that is not there."""
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
        holding, folder = Holding(folder), folder.absolute()
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
            holding.check()
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
                    env={"PYTHONUNBUFFERED": "1", **outside()},  # else an error stands before what was printed first
                    start_new_session=True,  # so that its own children can be ended with it
                )
            except OSError as error:
                raise RuntimeError(f"the command cannot be started: {error}") from error
        _remember(folder, process.pid)
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
            _end(process, grace=0.0)  # what it would still write is in its successor's way
            raise
        finally:
            _end(process)
            if holding.lasts():
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
    """What placeholders stand for: fields of the problem set, of the recipe, and the allocation, the later winning.

    `learning_rate` is the one after warm-up at this cell's batch size, scaled as the recipe says.
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
    """Replace `{name}`; `{{` and `}}` stand for braces."""
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
    """End the trainer with all its children: politely, then not."""
    if process.poll() is None and grace:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _remember(folder: Path, pid: int) -> None:
    (folder / _PROCESS).write_text(json.dumps({"pid": pid, "started": start_of(pid)}))


def _end_orphan(folder: Path) -> None:
    """A trainer whose worker was killed still writes here; two would mix their logs."""
    path = folder / _PROCESS
    if not path.exists():
        return
    with suppress(ValueError, KeyError, TypeError):
        told = json.loads(path.read_text())
        while told["started"] and start_of(told["pid"]) == told["started"]:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(told["pid"], signal.SIGKILL)
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
