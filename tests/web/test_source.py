from __future__ import annotations

from pathlib import Path

import pytest

from isocompute.core.errors import InputError
from isocompute.web.source import Source


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


def test_runs_that_are_linked_are_watched_as_they_are_read(tmp_path: Path) -> None:
    for name in ("one", "two"):
        _run(tmp_path / "elsewhere" / name)
    (tmp_path / "study").mkdir()
    for name in ("one", "two"):
        (tmp_path / "study" / name).symlink_to(tmp_path / "elsewhere" / name)
    source = Source(str(tmp_path / "study"))
    before = source.snapshot()
    assert [(part.name, part.runs) for part in before.parts] == [("", len(source.load("").runs))] == [("", 2)]
    with (tmp_path / "elsewhere" / "one" / "points.jsonl").open("a") as file:
        file.write('{"step": 2}\n')
    assert source.snapshot().version != before.version


def test_links_to_a_folder_around_them_end(tmp_path: Path) -> None:
    for name in ("a/one", "b/one"):
        _run(tmp_path / name)
    for name, other in (("a/up", ""), ("a/b", "b"), ("b/a", "a")):
        (tmp_path / name).symlink_to(tmp_path / other)
    assert Source(str(tmp_path)).snapshot().parts[-1].runs == 4  # a/one, a/b/one, b/one, b/a/one


def test_addresses_elsewhere_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="on this machine"):
        Source("s3://bucket/study")
    with pytest.raises(InputError, match="no such file"):
        Source(str(tmp_path / "nothing"))
