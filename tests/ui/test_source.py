from __future__ import annotations

from pathlib import Path

import pytest

from isocompute.errors import InputError
from isocompute.ui.source import Source


def _run(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "points.jsonl").write_text('{"step": 1}\n')


def test_a_change_of_any_file_changes_the_version(tmp_path: Path) -> None:
    _run(tmp_path / "a")
    source = Source(str(tmp_path))
    first = source.snapshot().version
    assert source.snapshot().version == first
    with (tmp_path / "a" / "points.jsonl").open("a") as file:
        file.write('{"step": 2}\n')
    second = source.snapshot().version
    (tmp_path / "a" / "finished").touch()
    assert len({first, second, source.snapshot().version}) == 3


def test_flat_runs_are_one_part(tmp_path: Path) -> None:
    for name in ("32x8", "32x16"):
        _run(tmp_path / name)
    (part,) = Source(str(tmp_path)).snapshot().parts
    assert (part.name, part.runs) == ("", 2)


def test_problem_sets_are_parts_and_the_first_is_meant_where_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "study.toml").touch()
    for name in ("hard/32x8", "hard/32x16", "easy/32x8", "easy/32x16"):
        _run(tmp_path / name)
    snapshot = Source(str(tmp_path)).snapshot()
    assert [(part.name, part.runs) for part in snapshot.parts] == [("easy", 2), ("hard", 2), ("", 4)]
    assert snapshot.part(None) == "easy"
    assert snapshot.spec_of("hard") == ""


def test_a_study_inside_is_named_by_its_own_folder(tmp_path: Path) -> None:
    for name in ("easy", "hard"):
        for cell in ("32x8", "32x16"):
            _run(tmp_path / name / name / cell)
        (tmp_path / name / "study.toml").touch()
    snapshot = Source(str(tmp_path)).snapshot()
    assert [part.name for part in snapshot.parts] == ["easy", "hard", ""]
    assert (snapshot.spec_of("easy"), snapshot.spec_of("")) == ("easy", None)


@pytest.mark.parametrize("name", ["..", "/etc", "easy/../..", "missing"])
def test_what_is_not_a_part_is_refused(tmp_path: Path, name: str) -> None:
    _run(tmp_path / "a")
    with pytest.raises(InputError, match="no such part"):
        Source(str(tmp_path)).snapshot().part(name)


def test_a_link_out_of_the_study_is_not_followed(tmp_path: Path) -> None:
    _run(tmp_path / "outside" / "secret")
    _run(tmp_path / "study" / "a")
    (tmp_path / "study" / "link").symlink_to(tmp_path / "outside")
    source = Source(str(tmp_path / "study"))
    before = source.snapshot()
    _run(tmp_path / "outside" / "other")
    assert source.snapshot() == before


def test_addresses_elsewhere_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="on this machine"):
        Source("s3://bucket/study")
    with pytest.raises(InputError, match="no such file"):
        Source(str(tmp_path / "nothing"))
