"""`isocompute health` from its arguments to what it prints and returns."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isocompute import check_health
from isocompute.cli.main import main
from isocompute.logs import follow as following
from tests.conftest import rising, write_points

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    def call(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["isocompute", "health", *map(str, args)])
        code: object = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        assert isinstance(code, int)
        return code, captured.out, captured.err

    return call


def falling(count: int = 30) -> list[dict[str, Any]]:
    """A run that collapses in its last third, its entropy with it."""
    points = rising(count)
    for i, point in enumerate(points):
        point["entropy"] = 0.4
        if i >= 20:
            point["avg@4"] = round(0.6 - 0.05 * (i - 19), 3)
            point["entropy"] = 0.4 * 0.6 ** (i - 19)
    return points


def test_a_healthy_run(call: Call, tmp_path: Path) -> None:
    run = write_points(tmp_path / "good", rising(), problems_per_batch=32, rollouts_per_problem=8)
    code, out, _ = call(run)
    assert code == 0
    assert out.startswith("healthy  good")
    assert "not run: " in out


def test_a_collapse_ends_with_code_1(call: Call, tmp_path: Path) -> None:
    run = write_points(tmp_path / "bad", falling(), problems_per_batch=32, rollouts_per_problem=8)
    code, out, _ = call(run)
    assert code == 1
    assert "reward_fall: avg@4 fell from" in out
    code, out, _ = call(run, "--json")
    data = json.loads(out)
    assert (code, out.count("\n"), data["verdict"]) == (1, 1, "problem")
    (told,) = data["runs"]
    first = told["findings"][0]
    assert set(first) == {"code", "severity", "since_step", "since_rollouts", "evidence", "advice", "source"}
    assert first["since_rollouts"] == first["since_step"] * 256
    assert told == check_health(run)[0].to_json()


def test_warnings_fail_with_strict_only(call: Call, tmp_path: Path) -> None:
    points = [point | {"truncated": 0.3} for point in rising()]
    run = write_points(tmp_path / "cut", points)
    assert call(run)[0] == 0
    assert call(run, "--strict")[0] == 1


def test_a_folder_of_runs_is_summed_up(call: Call, tmp_path: Path) -> None:
    write_points(tmp_path / "good", rising())
    write_points(tmp_path / "bad", falling())
    code, out, _ = call(tmp_path)
    assert code == 1
    assert "2 runs: 1 healthy, 0 warning, 1 problem" in out


def test_pass_rates_beside_the_points_are_read(call: Call, tmp_path: Path) -> None:
    """Problems given up while the mean rises, told by `pass_rates.jsonl` alone."""
    run = write_points(tmp_path / "run", rising(12))
    lines = []
    for i in range(1, 13):
        correct = np.where(np.arange(400) < 15 * i, 0, 8 + (i > 6) * 8)
        lines.append({"step": 10 * i, "set": "train", "samples": 16, "correct": correct.tolist()})
    (run / "pass_rates.jsonl").write_text("\n".join(map(json.dumps, lines)))
    _, out, _ = call(run, "--json")
    assert "polarisation" in [finding["code"] for finding in json.loads(out)["runs"][0]["findings"]]


@pytest.mark.parametrize("content", ["", "hello\nworld\n"])
def test_what_is_no_run_is_refused(call: Call, tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.log"
    path.write_text(content)
    for wrong in (path, tmp_path / "nothing"):
        code, out, err = call(wrong)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("error: ")


def test_follow_prints_each_finding_once(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = falling()
    log = tmp_path / "metrics.jsonl"
    lines = [json.dumps(point) + "\n" for point in points]
    log.write_text("".join(lines[:15]))
    pieces = iter([lines[15:24], lines[24:]])

    def wait(_: float) -> None:
        piece = next(pieces, None)
        if piece is None:
            raise KeyboardInterrupt
        with log.open("a") as file:
            file.writelines(piece)

    monkeypatch.setattr(following, "follow", partial(following.follow, wait=wait))
    code, out, _ = call(log, "--follow")
    told = out.splitlines()
    assert code == 1
    assert len(told) == len(set(told)) == len(check_health(log)[0].findings)
    assert any("reward_fall" in line for line in told)
