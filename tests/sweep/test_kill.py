"""SIGKILL at random moments: the points of a resumed study are those of one that was never interrupted."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from isocompute import sweep as study
from tests.sweep.tools import files_in, finish, points, start, until, write_spec


def test_killed_and_resumed_is_the_same_to_the_byte(tmp_path: Path):
    grid = {"problems_per_batch": [2, 4], "rollouts_per_problem": [2, 4]}
    changes = {"grid": grid, "budget": {"rollouts": 600}, "engine_options": {"every": 7, "pause": 0.003}}
    spec = write_spec(tmp_path / "study.toml", **changes)
    whole, out = tmp_path / "whole", tmp_path / "out"
    fast = write_spec(tmp_path / "fast.toml", grid=grid, budget=changes["budget"])
    study.run(spec=fast, out=whole, workers=2)
    rng = random.Random(0)
    for kill in range(2):
        process = start("run", spec, "--out", out, "--workers", "2")
        size = sum(map(len, points(out).values())) if out.exists() else 0
        until(lambda size=size: out.exists() and sum(map(len, points(out).values())) != size)
        time.sleep(rng.uniform(0.0, 0.15))
        assert process.poll() is None, f"ended before kill {kill}"
        process.send_signal(signal.SIGKILL)
        finish(process)
    assert any(state.state != "finished" for state in study.status(folder=out))
    code, _, err = finish(start("run", spec, "--out", out, "--workers", "2"))
    assert code == 0, err
    assert points(out) == points(whole)
    # A kill between a cell's last two file operations may leave these two in a finished cell; nothing reads them.
    assert files_in(out) - {"running.json", "checkpoint.npz"} == files_in(whole)
