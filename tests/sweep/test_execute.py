from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from isocompute.core.recorder import CHECKPOINT, Cell
from isocompute.sweep import claim, remote
from isocompute.sweep.claim import Claim, HeldError, Holder, LostError, is_alive, myself
from isocompute.sweep.execute import Outcome, execute
from isocompute.sweep.folder import StudyFolder
from isocompute.sweep.progress import Progress, Tally
from isocompute.sweep.threads import outside, single_threaded
from tests.sweep.fake import FakeEngine
from tests.sweep.tools import until

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


def far_away(path: Path) -> bytes:
    """Let a process of another host take a claim over, as after a long sleep of ours."""
    data = json.dumps(Holder("elsewhere", 1, "1").__dict__).encode()
    path.write_bytes(data)
    return data


def test_a_claim_that_another_took_over_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(claim, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(claim, "_heart", claim._Heart())
    path = tmp_path / "claim.json"
    held = Claim(path)
    held.take()
    os.utime(path, (1.0, 1.0))
    until(lambda: path.stat().st_mtime > 1.0)
    theirs = far_away(path)
    os.utime(path, (1.0, 1.0))
    time.sleep(0.1)
    assert path.stat().st_mtime == 1.0, "ours beats no more"
    with pytest.raises(LostError, match="taken over by process 1 on elsewhere"):
        held.release()
    assert path.read_bytes() == theirs
    path.unlink()
    with pytest.raises(LostError, match="its claim is gone"):
        held.release()


def test_a_study_that_another_host_took_over_ends_and_leaves_it_the_claim(tmp_path: Path):
    with StudyFolder(tmp_path).locked():
        theirs = far_away(tmp_path / "runner.json")
    assert (tmp_path / "runner.json").read_bytes() == theirs


def test_the_age_of_a_claim_is_told_by_the_clock_of_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "claim.json"
    far_away(path)
    monkeypatch.setattr(claim.time, "time", lambda: 1e12)  # the clock of this host is years ahead
    with pytest.raises(HeldError, match="on elsewhere"):
        Claim(path).take()
    assert [found.name for found in tmp_path.iterdir()] == ["claim.json"]


class TakenOver(StopAfter):
    """A control under which another host takes the cell over after so many rollouts: its claim, then its files."""

    def __init__(self, folder: Path, rollouts: float, *, ended: bool = False, stops: bool = False) -> None:
        super().__init__(rollouts)
        self._folder, self._ended, self._stops = folder, ended, stops
        self.left: dict[str, bytes] = {}

    def advanced(self, rollouts: int) -> None:
        super().advanced(rollouts)
        if self._left <= 0 and not self.left:
            far_away(self._folder / "running.json")
            (self._folder / "points.jsonl").write_text("theirs\n")
            if self._ended:
                (self._folder / "running.json").unlink()
            self.left = contents(self._folder)

    def stopping(self) -> bool:
        return self._stops and bool(self.left)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("rollouts", [4, 20, 48])  # a point, a checkpoint, the end
def test_a_cell_that_another_host_took_over_stops_and_writes_nothing(
    tmp_path: Path, rollouts: float, stops: bool, ended: bool
):
    folder = tmp_path / CELL.name
    control = TakenOver(folder, rollouts, ended=ended, stops=stops)
    outcome = execute(engine=FakeEngine(), cell=CELL, address=str(tmp_path), control=control)
    assert outcome.state == "unwritable"
    gone = "its claim is gone: another process took it over and ended, or somebody removed it"
    assert outcome.error == f"{folder}: " + (
        gone if ended else "taken over by process 1 on elsewhere while this one was silent"
    )
    assert contents(folder) == control.left


def test_a_folder_without_a_claim_is_written_freely(tmp_path: Path):
    folder = tmp_path / CELL.name
    folder.mkdir()
    assert FakeEngine().run(CELL, folder, StopAfter(float("inf")))
    assert (folder / "finished.json").exists()


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize(("told", "rollouts"), [(b'{"rollouts": 12, "ended": "early"}', 12), (b"{}", 48)])
def test_a_finished_cell_has_spent_what_its_summary_says(told: bytes, rollouts: int, scheme: str, tmp_path: Path):
    folder = tmp_path / CELL.name
    folder.mkdir()
    (folder / "finished.json").write_bytes(told)
    waits = replace(CELL, name="2x2-s1")
    statuses = StudyFolder(f"{scheme}{tmp_path}").status([CELL, waits])
    assert [(s.state, s.rollouts) for s in statuses] == [("finished", rollouts), ("waiting", 0)]
    seen: list[Progress] = []
    Tally(statuses, seen.append, lambda: 0).tell()
    assert (seen[0].rollouts, seen[0].total_rollouts) == (rollouts, rollouts + 48)


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize("left", [b"", b'{"roll', b"null"])
def test_a_cell_whose_end_was_torn_by_a_power_cut_is_run_again(tmp_path: Path, left: bytes, scheme: str):
    assert run(tmp_path / "whole") == "finished"
    folder = tmp_path / "out" / CELL.name
    folder.mkdir(parents=True)
    for name in ("finished.json", "points.jsonl"):
        (folder / name).write_bytes(left)
    address = f"{scheme}{tmp_path}/out"
    assert [s.state for s in StudyFolder(address).status([CELL])] == ["waiting"]
    outcome = execute(engine=FakeEngine(), cell=CELL, address=address, control=StopAfter(float("inf")))
    assert (outcome.name, outcome.state) == (CELL.name, "finished")
    assert contents(folder) == contents(tmp_path / "whole" / CELL.name)
    assert [s.state for s in StudyFolder(address).status([CELL])] == ["finished"]


def test_a_torn_end_is_gone_while_its_cell_runs_again(tmp_path: Path):
    folder = tmp_path / CELL.name
    folder.mkdir()
    (folder / "finished.json").touch()
    assert run(tmp_path, 28) == "stopped"
    assert {path.name for path in folder.iterdir()} == {"run.json", "points.jsonl", CHECKPOINT}


def test_a_remote_end_that_cannot_be_read_for_a_moment_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run(tmp_path)
    monkeypatch.setattr(remote, "read_all", lambda *_: {})
    (status,) = StudyFolder(f"file://{tmp_path}").status([CELL])
    assert (status.state, status.rollouts) == ("finished", 48)


def test_cells_that_all_ended_are_not_stopped(tmp_path: Path):
    """A Ctrl-C while the last ones run to their end has stopped nothing."""
    cells = [CELL, replace(CELL, name="2x2-s1"), replace(CELL, name="2x2-s2")]
    tally = Tally(StudyFolder(tmp_path).status(cells), lambda _: None, lambda: 0)
    tally.add(Outcome("2x2-s0", "finished"))
    tally.add(Outcome("2x2-s1", "failed", "why"))
    assert tally.result(folder="x", stopping=True).stopped
    tally.add(Outcome("2x2-s2", "stopped"))
    assert tally.result(folder="x", stopping=True).stopped
    tally.add(Outcome("2x2-s2", "finished"))
    ended = tally.result(folder="x", stopping=True)
    assert (ended.stopped, ended.interrupted) == (False, True)
    tally.add(Outcome("2x2-s2", "unwritable", "full"))
    ended = tally.result(folder="x", stopping=True)
    assert (ended.stopped, ended.interrupted, ended.unwritable) == (False, False, "full")


def test_workers_have_one_thread_and_outside_programs_what_the_user_had(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    with single_threaded():
        assert (os.environ["OMP_NUM_THREADS"], os.environ["MKL_NUM_THREADS"]) == ("1", "1")
        assert outside()["OMP_NUM_THREADS"] == "7"
        assert "MKL_NUM_THREADS" not in outside()
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ
