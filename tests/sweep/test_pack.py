"""Cells that one process runs at the same time: each is claimed, ended and gone on with as if it were alone."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from isocompute import sweep as study
from isocompute.sweep.claim import Claim
from isocompute.sweep.execute import Outcome, execute_pack
from isocompute.sweep.progress import Progress
from tests.sweep.fake import PackingFake
from tests.sweep.tools import finish, points, start, until, write_spec

PACKING = "tests.sweep.fake:PackingFake"


class Control:
    def stopping(self) -> bool:
        return False

    def advanced(self, rollouts: int) -> None:
        del rollouts


def spec_of(folder: Path, **options: Any) -> Path:
    return write_spec(folder / "study.toml", engine=PACKING, engine_options=options)


def states(folder: Path) -> dict[str, str]:
    return {status.cell.name: status.state for status in study.status(folder=folder)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same cells one by one."""
    top = tmp_path_factory.mktemp("whole")
    study.run(spec=write_spec(top / "study.toml"), out=top / "out", workers=1)
    return top / "out"


@pytest.mark.parametrize("alone", [[], ["2x4-s1"]])
def test_a_pack_is_its_cells(alone: list[str], tmp_path: Path, whole: Path) -> None:
    seen: list[Progress] = []
    result = study.run(spec=spec_of(tmp_path, alone=alone), out=tmp_path / "out", workers=2, report=seen.append)
    assert (result.finished, result.failed, result.new_rollouts) == (4, {}, 320)
    assert points(tmp_path / "out") == points(whole)
    assert not list((tmp_path / "out").rglob("running*")), "claims are given back"
    assert max(progress.running for progress in seen) <= 3
    again = study.run(spec=tmp_path / "study.toml", out=tmp_path / "out", workers=2)
    assert (again.skipped, again.new_rollouts) == (4, 0)


def test_a_crash_in_a_pack_leaves_the_others_alone(tmp_path: Path, whole: Path) -> None:
    result = study.run(spec=spec_of(tmp_path, crash=["2x2-s1"]), out=tmp_path / "out")
    assert result.finished == 3
    assert result.failed == {"2x2-s1": "ZeroDivisionError: told to crash"}
    assert (
        (tmp_path / "out" / "2x2-s1" / "error.txt").read_text().startswith("ZeroDivisionError: told to crash\n\nTrace")
    )
    done = points(tmp_path / "out")
    assert {name: done[name] for name in done if name != "2x2-s1"} == {
        name: data for name, data in points(whole).items() if name != "2x2-s1"
    }


def test_a_folder_that_cannot_be_given_back_is_that_cells_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the last upload of a remote folder fails."""
    study.run(spec=spec_of(tmp_path), out=tmp_path / "first", workers=1)
    cells = [status.cell for status in study.status(folder=tmp_path / "first")]
    release = Claim.release

    def failing(self: Claim) -> None:
        release(self)
        if "2x2-s1" in str(self.path):
            raise ConnectionError("gone")

    monkeypatch.setattr(Claim, "release", failing)
    began: list[str] = []
    ended: list[Outcome] = []
    execute_pack(
        engine=PackingFake(),
        cells=cells,
        address=str(tmp_path / "out"),
        control=Control(),
        began=lambda cell: began.append(cell.name),
        ended=ended.append,
    )
    assert began == [cell.name for cell in cells]
    assert {one.name: one.state for one in ended} == {**dict.fromkeys(began, "finished"), "2x2-s1": "unwritable"}


def test_cells_that_an_engine_forgets_have_failed(tmp_path: Path) -> None:
    result = study.run(spec=spec_of(tmp_path, forget=["2x4-s0"]), out=tmp_path / "out", workers=1)
    assert result.failed == {"2x4-s0": "the engine ended its pack without running this cell"}
    assert result.finished == 3
    assert not list((tmp_path / "out").rglob("running*"))


def test_a_pack_that_dies_is_tried_again_cell_by_cell(tmp_path: Path, whole: Path) -> None:
    result = study.run(spec=spec_of(tmp_path, die_once=["2x2-s1"]), out=tmp_path / "out", workers=1)
    assert (result.finished, result.failed) == (4, {})
    assert points(tmp_path / "out") == points(whole)


def test_the_cell_of_a_pack_that_always_dies_fails_alone(tmp_path: Path) -> None:
    result = study.run(spec=spec_of(tmp_path, die=["2x2-s1"]), out=tmp_path / "out", workers=1)
    assert result.finished == 3
    assert "died 3 times (signal SIGKILL)" in result.failed["2x2-s1"]
    # Once in the pack, whose death is nobody's, and three times alone.
    assert (tmp_path / "out" / "2x2-s1" / "deaths").read_text() == "xxxx"


def test_ctrl_c_stops_a_pack_and_the_study_goes_on(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "out"
    spec = spec_of(tmp_path, every=1000, wait=["2x2-s1"])  # the first to run: the second of the first two
    process = start("run", spec, "--out", out, "--workers", "1")
    until(lambda: any(len(data.splitlines()) == 2 for data in points(out).values()))
    process.send_signal(signal.SIGINT)
    code, text, err = finish(process)
    assert (code, "Traceback" in err) == (130, False)
    assert "stopped; the same command goes on" in text
    assert states(out) == {"2x2-s0": "stopped", "2x2-s1": "stopped", "2x4-s0": "waiting", "2x4-s1": "waiting"}
    # Step 3, where it waited, lies behind the checkpoint: a run from the start would wait for ever.
    assert study.run(spec=spec, out=out, workers=1).finished == 4
    assert points(out) == points(whole)
