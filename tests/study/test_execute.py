from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from isocompute.engines.base import CHECKPOINT, Cell
from isocompute.engines.threads import outside, single_threaded
from isocompute.study import claim
from isocompute.study.claim import Claim, HeldError, Holder, is_alive, myself
from isocompute.study.execute import execute
from tests.study.fake import FakeEngine

CELL = Cell(name="2x2-s0", problems_per_batch=2, rollouts_per_problem=2, update_steps=12, seed=0)


class StopAfter:
    """A control that stops a cell after so many rollouts."""

    def __init__(self, rollouts: float) -> None:
        self._left = rollouts

    def stopping(self) -> bool:
        return self._left <= 0

    def advanced(self, rollouts: int) -> None:
        self._left -= rollouts


def run(folder: Path, rollouts: float = float("inf")) -> str:
    return execute(engine=FakeEngine(), cell=CELL, address=str(folder), control=StopAfter(rollouts)).state


@pytest.mark.parametrize("damage", ["none", "points cut", "points gone", "checkpoint torn", "left-overs"])
def test_a_half_finished_cell_ends_the_same_whatever_was_left(tmp_path: Path, damage: str):
    assert run(tmp_path / "whole") == "finished"
    assert run(tmp_path / "out", 28) == "stopped"
    folder = tmp_path / "out" / CELL.name
    points, checkpoint = folder / "points.jsonl", folder / CHECKPOINT
    if damage == "points cut":
        points.write_bytes(points.read_bytes()[:50])
    elif damage == "points gone":
        points.unlink()
    elif damage == "checkpoint torn":
        checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    elif damage == "left-overs":
        (folder / ".checkpoint.npz.abc").write_bytes(b"PK")
        with points.open("ab") as file:
            file.write(b'{"step": 8, "rollouts": 32}\n{"step":')
    assert run(tmp_path / "out") == "finished"
    whole = tmp_path / "whole" / CELL.name
    assert points.read_bytes() == (whole / "points.jsonl").read_bytes()
    assert sorted(p.name for p in folder.iterdir()) == sorted(p.name for p in whole.iterdir())


def test_a_claim_holds_while_its_process_lives(tmp_path: Path):
    path = tmp_path / "claim.json"
    parent = Holder(myself().host, os.getppid(), claim.start_of(os.getppid()) or "")
    path.write_text(json.dumps(parent.__dict__))
    with pytest.raises(HeldError, match=f"process {os.getppid()} on"):
        Claim(path).take()
    path.write_text(json.dumps({**parent.__dict__, "started": "1"}))  # the same id, but a later process
    Claim(path).take()
    assert json.loads(path.read_text()) == myself().__dict__
    Claim(path).release()
    assert not path.exists()
    path.write_text('{"host": "to')  # torn
    Claim(path).take()
    Claim(path).release()


def test_a_claim_of_another_host_holds_while_it_is_touched(tmp_path: Path):
    far = Holder("elsewhere", 1, "1")
    assert is_alive(far, age=claim.STALE_SECONDS - 1) and not is_alive(far, age=claim.STALE_SECONDS + 1)
    path = tmp_path / "claim.json"
    path.write_text(json.dumps(far.__dict__))
    with pytest.raises(HeldError, match="on elsewhere"):
        Claim(path).take()
    old = time.time() - 2 * claim.STALE_SECONDS
    os.utime(path, (old, old))
    Claim(path).take()
    Claim(path).release()


def test_workers_have_one_thread_and_outside_programs_what_the_user_had(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    with single_threaded():
        assert (os.environ["OMP_NUM_THREADS"], os.environ["MKL_NUM_THREADS"]) == ("1", "1")
        assert outside()["OMP_NUM_THREADS"] == "7"
        assert "MKL_NUM_THREADS" not in outside()
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ
