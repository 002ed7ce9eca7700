"""A `file://` address goes through fsspec like any other, which makes it a remote one that tests can look into."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from isocompute import sweep as study
from isocompute.core.allocation import Cell
from isocompute.core.errors import InputError
from isocompute.core.recorder import CHECKPOINT
from isocompute.sweep import lock
from isocompute.sweep.execute import execute
from isocompute.sweep.lock import STALE_SECONDS, LockedError, is_locked, locked
from tests.sweep.fake import FakeEngine
from tests.sweep.tools import files_in, finish, points, start, until, write_spec


def test_a_remote_study_has_the_points_of_a_local_one(tmp_path: Path):
    spec = write_spec(tmp_path / "study.toml")
    study.run(spec=spec, out=tmp_path / "local", workers=2)
    address = f"file://{tmp_path}/remote"
    result = study.run(spec=spec, out=address, workers=2)
    assert (result.folder, result.finished) == (address, 4)
    assert points(tmp_path / "remote") == points(tmp_path / "local")
    assert files_in(tmp_path / "remote") == files_in(tmp_path / "local")
    assert {status.state for status in study.status(folder=address)} == {"finished"}
    assert study.run(spec=spec, out=address).skipped == 4
    with pytest.raises(InputError, match=r"recipe\.a: absent → 1"):
        study.run(spec=write_spec(spec, recipe={"a": 1}), out=address)
    assert study.run(spec=spec, out=address, fork=True).folder == f"{address}-2"


def test_a_killed_remote_study_goes_on_from_its_uploaded_checkpoint(tmp_path: Path):
    options = {"every": 2, "wait": ["2x2-s0"]}
    spec = write_spec(tmp_path / "study.toml", seeds=[0], engine_options=options)
    study.run(spec=write_spec(tmp_path / "free.toml", seeds=[0]), out=tmp_path / "local")
    out, address = tmp_path / "remote", f"file://{tmp_path}/remote"
    process = start("run", spec, "--out", address, "--workers", "1")
    until((out / "2x2-s0" / CHECKPOINT).exists)
    until(lambda: {s.cell.name: s.state for s in study.status(folder=address)}["2x2-s0"] == "running")
    with pytest.raises(InputError, match=f"is being run by process {process.pid}"):
        study.run(spec=spec, out=address)
    process.send_signal(signal.SIGKILL)
    finish(process)
    until(lambda: {s.state for s in study.status(folder=address)} == {"stopped", "waiting"})
    process = start("run", spec, "--out", address, "--workers", "1")
    until(lambda: study.status(folder=address)[0].state == "running")
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130
    assert study.run(spec=spec, out=address).finished == 2
    assert points(out) == points(tmp_path / "local")


def test_an_unknown_kind_of_address(tmp_path: Path):
    with pytest.raises(InputError, match="nowhere://x"):
        study.run(spec=write_spec(tmp_path / "study.toml"), out="nowhere://x")


def test_a_lock_of_another_host_counts_until_it_is_old(tmp_path: Path):
    path = tmp_path / "running.json"
    for beat, counts in ((0.0, False), (time.time() - STALE_SECONDS + 5, True), (time.time() - STALE_SECONDS, False)):
        path.write_text(json.dumps({"host": "elsewhere", "pid": 1, "started": "1", "beat": beat}))
        assert is_locked(f"file://{path}") == counts


CELL = Cell(name="2x2-s0", problems_per_batch=2, rollouts_per_problem=2, update_steps=12, seed=0)
ELSEWHERE = {"host": "elsewhere", "pid": 1, "started": "1", "beat": 4e9}


class TakenOver:
    """A control under which another host takes the cell over at the fourth step."""

    def __init__(self, folder: Path, *, ended: bool) -> None:
        self._folder, self._ended, self._steps = folder, ended, 0
        self.left: dict[str, bytes] = {}

    def stopping(self) -> bool:
        return False

    def advanced(self, rollouts: int) -> None:
        self._steps += rollouts // CELL.batch_size
        if self._steps == 4:
            self._folder.mkdir(exist_ok=True)
            (self._folder / "running.json").write_text(json.dumps(ELSEWHERE))
            (self._folder / "points.jsonl").write_text("theirs\n")
            if self._ended:
                (self._folder / "running.json").unlink()
            self.left = {path.name: path.read_bytes() for path in self._folder.iterdir()}


@pytest.mark.parametrize("ended", [False, True])
def test_a_remote_cell_that_another_host_took_over_stops_and_sends_nothing(tmp_path: Path, ended: bool):
    control = TakenOver(tmp_path / CELL.name, ended=ended)
    outcome = execute(engine=FakeEngine(), cell=CELL, address=f"file://{tmp_path}", control=control)
    assert outcome.state == "unwritable"
    gone = "its lock is gone: another process took it over and ended, or somebody removed it"
    why = gone if ended else "taken over by process 1 on elsewhere while this one was silent"
    assert outcome.error == f"file://{tmp_path}/{CELL.name}: {why}"
    assert {path.name: path.read_bytes() for path in (tmp_path / CELL.name).iterdir()} == control.left


def test_a_lock_that_cannot_be_read_for_a_moment_is_still_anothers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lock._RemoteFile, "wait_seconds", 0.0)
    path = tmp_path / "running.json"
    path.write_text(json.dumps(ELSEWHERE))
    read, failures = LocalFileSystem.cat_file, []

    def failing(self: Any, *args: Any, **named: Any) -> Any:
        if failures:
            raise failures.pop()
        return read(self, *args, **named)

    monkeypatch.setattr(LocalFileSystem, "cat_file", failing)
    for count, error, says in ((2, LockedError, "process 1 on elsewhere"), (99, InputError, r"cannot be read \(503\)")):
        failures[:] = [TimeoutError("503")] * count
        with pytest.raises(error, match=says), locked(f"file://{path}"):
            pass
    assert json.loads(path.read_text()) == ELSEWHERE


class Rotating(FakeEngine):
    """An engine whose trainer removes a checkpoint of its own as soon as the next is there."""

    def run(self, cell: Cell, folder: Path, control: Any) -> bool:
        put = LocalFileSystem.put_file

        def slow(system: Any, source: str, *args: Any, **named: Any) -> Any:
            if source.endswith("old.bin"):
                Path(source).unlink()
            return put(system, source, *args, **named)

        (folder / "old.bin").write_bytes(b"x")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalFileSystem, "put_file", slow)
            control.upload()
        return super().run(cell, folder, control)


def test_a_trainers_own_file_that_is_gone_when_it_is_sent_is_passed_over(tmp_path: Path):
    class Control(TakenOver):
        def advanced(self, rollouts: int) -> None:
            pass

    outcome = execute(
        engine=Rotating(), cell=CELL, address=f"file://{tmp_path}", control=Control(tmp_path, ended=False)
    )
    assert (outcome.state, outcome.error) == ("finished", "")
    assert "old.bin" not in {path.name for path in (tmp_path / CELL.name).iterdir()}
