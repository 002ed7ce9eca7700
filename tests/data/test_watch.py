"""`--follow`: files are read again whenever they grow, and missing files are waited for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from isocompute.core.errors import InputError
from isocompute.data.importing import Imports, import_logs
from isocompute.data.watch import watch
from tests.conftest import rising, write_points


def turns(*acts: Callable[[], object]) -> Callable[[float], None]:
    """A wait that does one of these things each time, then interrupts."""
    left = iter(acts)

    def wait(_: float) -> None:
        act = next(left, None)
        if act is None:
            raise KeyboardInterrupt
        act()

    return wait


def follow(paths: list[str], *, changed: Callable[[Imports], None], wait: Callable[[float], object]) -> None:
    watch(paths, read=lambda: import_logs(paths), changed=changed, wait=wait)


def nothing() -> None:
    """Let time pass."""


def add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_every_growth_of_a_log_or_a_run_folder_is_imported(tmp_path: Path) -> None:
    """And nothing is read where nothing has changed."""
    points = [json.dumps(point) + "\n" for point in rising(9)]
    write_points(tmp_path / "cell", rising(4))
    log = tmp_path / "metrics.jsonl"
    log.write_text("".join(points[:5]))
    seen: list[list[int]] = []
    follow(
        [str(tmp_path)],
        changed=lambda imports: seen.append(sorted(item.run.points.height for item in imports)),
        wait=turns(
            nothing,
            lambda: add(log, points[5]),
            nothing,
            lambda: add(tmp_path / "cell" / "points.jsonl", points[4] + points[5]),
        ),
    )
    assert seen == [[4, 5], [4, 6], [6, 6]]


def test_pass_rates_that_come_later_are_noticed(tmp_path: Path) -> None:
    run = write_points(tmp_path / "cell", rising(4))
    readings: list[None] = []
    wait = turns(nothing, lambda: add(run / "pass_rates.jsonl", "{}\n"), nothing)
    watch([str(tmp_path)], read=nothing, changed=readings.append, wait=wait)
    assert len(readings) == 2


def test_missing_files_are_waited_for_and_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "later.jsonl"
    seen: list[int] = []
    follow(
        [str(path)],
        changed=lambda imports: seen.append(len(imports)),
        wait=turns(nothing, nothing, lambda: add(path, "".join(json.dumps(p) + "\n" for p in rising(5)))),
    )
    assert seen == [1]
    assert capsys.readouterr() == ("", f"waiting for {path}\n")


def test_a_log_without_a_point_yet_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.txt"
    path.write_text("loading the model\n")
    seen: list[int] = []
    follow([str(path)], changed=lambda imports: seen.append(len(imports)), wait=turns(nothing))
    out, err = capsys.readouterr()
    assert (seen, out, err.count("\n")) == ([], "", 1)
    assert err.startswith(f"waiting for points: {path}")


def test_standard_input_cannot_be_followed() -> None:
    with pytest.raises(InputError, match="standard input"):
        follow(["-"], changed=lambda _: None, wait=turns())
