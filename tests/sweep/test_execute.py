from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from isocompute.core import recorder
from isocompute.core.allocation import Cell
from isocompute.core.recorder import CHECKPOINT, LostError, Owner, process_start, this_process
from isocompute.sweep import lock, remote
from isocompute.sweep.execute import Outcome, execute
from isocompute.sweep.folder import Progress, StudyFolder, Tally
from isocompute.sweep.lock import STALE_SECONDS, LockedError, is_locked, locked
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


def test_a_lock_counts_while_its_process_lives(tmp_path: Path):
    path = tmp_path / "running.json"
    parent = Owner(this_process().host, os.getppid(), process_start(os.getppid()) or "")
    path.write_text(json.dumps(asdict(parent)))
    assert is_locked(str(path))
    with pytest.raises(LockedError, match=f"process {os.getppid()} on"), locked(str(path)):
        pass
    for left in (json.dumps({**asdict(parent), "started": "1"}), '{"host": "to'):  # a later process; torn
        path.write_text(left)
        assert not is_locked(str(path))
        with locked(str(path)) as check:
            assert json.loads(path.read_text()) == asdict(this_process())
            check()
        assert not path.exists()


def test_a_lock_of_another_host_counts_while_it_is_refreshed(tmp_path: Path):
    path = tmp_path / "running.json"
    far_away(path)
    with pytest.raises(LockedError, match="on elsewhere"), locked(str(path)):
        pass
    for age, counts in ((STALE_SECONDS - 5, True), (STALE_SECONDS + 5, False)):
        os.utime(path, (time.time() - age,) * 2)
        assert is_locked(str(path)) == counts
    with locked(str(path)):
        assert json.loads(path.read_text()) == asdict(this_process())


def far_away(path: Path) -> bytes:
    """Let a process of another host take a lock over, as after a long sleep of ours."""
    data = json.dumps(asdict(Owner("elsewhere", 1, "1"))).encode()
    path.write_bytes(data)
    return data


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize("ended", [False, True])
def test_a_lock_that_another_took_over_is_left_to_it(
    tmp_path: Path, ended: bool, scheme: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.01)
    path = tmp_path / "running.json"
    with locked(f"{scheme}{path}") as check:
        os.utime(path, (1.0, 1.0))
        until(lambda: path.stat().st_mtime > 1.0)
        until(lambda: path.write_text(json.dumps(ELSEWHERE)) > 0 and _stays(path))
        os.utime(path, (1.0, 1.0))
        time.sleep(0.1)
        assert path.stat().st_mtime == 1.0, "ours is refreshed no more"
        with pytest.raises(LostError, match="taken over by process 1 on elsewhere"):
            check()
        if ended:
            path.unlink()
            with pytest.raises(LostError, match="its lock is gone"):
                check()
    assert path.exists() == (not ended)
    assert ended or json.loads(path.read_text()) == ELSEWHERE


ELSEWHERE = {"host": "elsewhere", "pid": 1, "started": "1", "beat": 4e9}


def _stays(path: Path) -> bool:
    """Whether nothing overwrites what was just written; a refresh under way when it was may, once."""
    time.sleep(0.2)
    return path.exists() and path.read_text() == json.dumps(ELSEWHERE)


def test_a_study_that_another_host_took_over_ends_and_leaves_it_the_lock(tmp_path: Path):
    with StudyFolder(tmp_path).locked():
        theirs = far_away(tmp_path / "runner.json")
    assert (tmp_path / "runner.json").read_bytes() == theirs


def test_the_age_of_a_lock_is_by_the_clock_of_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "running.json"
    far_away(path)
    monkeypatch.setattr(lock.time, "time", lambda: 1e12)  # the clock of this host is years ahead
    with pytest.raises(LockedError, match="on elsewhere"), locked(str(path)):
        pass
    assert [found.name for found in tmp_path.iterdir()] == ["running.json"]


class TakenOver(StopAfter):
    """A control under which another host takes the cell over after so many rollouts: its lock, then its files."""

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


class AtOnce:
    """Writes a checkpoint before the run goes on: what is there at a moment is then known."""

    def __init__(self, *_: object) -> None:
        pass

    def submit(self, write: Callable[..., None], *arguments: Any) -> Future[None]:
        done: Future[None] = Future()
        try:
            done.set_result(write(*arguments))  # type: ignore[func-returns-value]  # a future of None
        except Exception as error:
            done.set_exception(error)
        return done

    def shutdown(self) -> None:
        pass


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("rollouts", [4, 20, 48])  # a point, a checkpoint, the end
def test_a_cell_that_another_host_took_over_stops_and_writes_nothing(
    tmp_path: Path, rollouts: float, stops: bool, ended: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recorder, "ThreadPoolExecutor", AtOnce)
    folder = tmp_path / CELL.name
    control = TakenOver(folder, rollouts, ended=ended, stops=stops)
    outcome = execute(engine=FakeEngine(), cell=CELL, address=str(tmp_path), control=control)
    assert outcome.state == "unwritable"
    gone = "its lock is gone: another process took it over and ended, or somebody removed it"
    assert outcome.error == f"{folder}: " + (
        gone if ended else "taken over by process 1 on elsewhere while this one was silent"
    )
    assert contents(folder) == control.left


def test_a_folder_without_a_lock_is_written_freely(tmp_path: Path):
    folder = tmp_path / CELL.name
    folder.mkdir()
    assert FakeEngine().run(CELL, folder, StopAfter(float("inf")))
    assert (folder / "finished.json").exists()


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize(("summary", "rollouts"), [(b'{"rollouts": 12, "ended": "early"}', 12), (b"{}", 48)])
def test_a_finished_cell_has_spent_what_its_summary_says(summary: bytes, rollouts: int, scheme: str, tmp_path: Path):
    folder = tmp_path / CELL.name
    folder.mkdir()
    (folder / "finished.json").write_bytes(summary)
    waits = replace(CELL, name="2x2-s1")
    statuses = StudyFolder(f"{scheme}{tmp_path}").status([CELL, waits])
    assert [(s.state, s.rollouts) for s in statuses] == [("finished", rollouts), ("waiting", 0)]
    seen: list[Progress] = []
    Tally(statuses, seen.append, lambda: 0).update()
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
