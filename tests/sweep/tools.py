"""Specs, study folders and `isocompute study` as a process, for the tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FAKE = "tests.sweep.fake:FakeEngine"
ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


def write_spec(path: Path, **changes: Any) -> Path:
    """A small study of the fake engine; `changes` replace top-level fields."""
    table: dict[str, Any] = {
        "engine": FAKE,
        "seeds": [0, 1],
        "grid": {"problems_per_batch": [2], "rollouts_per_problem": [2, 4]},
        "budget": {"rollouts": 80},
        **changes,
    }
    path.write_text("".join(f"{key} = {_toml(value)}\n" for key, value in table.items()))
    return path


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """`isocompute study …` as a process of its own, which gets our signals and nobody else's."""
    command = [sys.executable, "-m", "isocompute", "study", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, output and errors."""
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        raise
    return process.returncode, out, err


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that will happen."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def points(folder: Path) -> dict[str, bytes]:
    """Bytes of every run's points."""
    return {str(path.parent.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("points.jsonl"))}


def files_in(folder: Path) -> set[str]:
    """Names of all files below."""
    return {path.name for path in folder.rglob("*") if path.is_file()}
