"""`isocompute health` from its arguments to what it prints and returns."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isocompute import check_health
from isocompute.data import watch as following
from tests.commands import Call
from tests.conftest import rising, write_points


@pytest.fixture
def call(call: Call) -> Call:
    return partial(call, "health")


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


def test_a_run_that_nothing_can_be_said_of(call: Call, tmp_path: Path) -> None:
    write_points(tmp_path / "short", rising(1))
    code, out, _ = call(tmp_path / "short")
    assert code == 0
    assert out.startswith("unknown  short")
    assert "1 of 14 checks ran" in out
    assert call(tmp_path / "short", "--strict")[0] == 1
    write_points(tmp_path / "good", rising())
    assert "2 runs: 1 healthy, 1 unknown, 0 warning, 0 problem" in call(tmp_path)[1]
    assert json.loads(call(tmp_path, "--json")[1])["verdict"] == "unknown"


def test_nan_ends_with_code_1(call: Call, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "points.jsonl").write_text("".join(json.dumps(p | {"avg@4": float("nan")}) + "\n" for p in rising()))
    code, out, err = call(run)
    assert (code, err) == (1, "")
    assert "step 10: non_finite: avg@4 is NaN" in out


def grown(path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch, *, at: tuple[int, ...]) -> None:
    """Let a file grow to these numbers of lines while it is followed, then interrupt."""
    pieces = iter([lines[a:b] for a, b in zip(at, (*at[1:], None), strict=True)])

    def wait(_: float) -> None:
        piece = next(pieces, None)
        if piece is None:
            raise KeyboardInterrupt
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.writelines(piece)

    monkeypatch.setattr(following, "watch", partial(following.watch, wait=wait))


@pytest.mark.parametrize("file", ["metrics.jsonl", "bad/points.jsonl"])
def test_follow_prints_each_finding_once(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """A trainer's log, and a cell of a study."""
    lines = [json.dumps(point) + "\n" for point in falling()]
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(lines[:15]))
    grown(path, lines, monkeypatch, at=(15, 24))
    code, out, err = call(tmp_path, "--follow")
    told = out.splitlines()
    assert (code, err) == (1, "")
    assert len(told) == len(set(told)) == len(check_health(tmp_path)[0].findings)
    assert any("reward_fall" in line for line in told)


def test_follow_of_one_run_out_of_a_study(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps(point) + "\n" for point in falling()]
    write_points(tmp_path / "other", falling())
    (tmp_path / "cell").mkdir()
    (tmp_path / "cell" / "points.jsonl").write_text("".join(lines[:15]))
    grown(tmp_path / "cell" / "points.jsonl", lines, monkeypatch, at=(15,))
    code, out, _ = call(f"{tmp_path}::cell", "--follow", "--json")
    told = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert {finding["run"] for finding in told} == {"cell"}
    assert "reward_fall" in [finding["code"] for finding in told]


def test_follow_waits_for_what_is_not_there(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps(point) + "\n" for point in falling()]
    grown(tmp_path / "run" / "points.jsonl", lines, monkeypatch, at=(0, 0, 0))
    code, out, err = call(tmp_path / "run", "--follow")
    assert code == 1
    assert "reward_fall" in out
    assert err.splitlines()[0] == f"waiting for {tmp_path / 'run'}"
    assert err.count(f"waiting for {tmp_path}") == 1
