from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute import InputError, RunSettings, RunWriter, load
from isocompute.core.curve import choose_metric
from isocompute.core.run import non_finite
from isocompute.data import RunWarning
from isocompute.data.folder import read_run
from isocompute.data.frames import parse_json_lines
from tests.conftest import rising, write_points


def read(folder: Path) -> pl.DataFrame:
    (run,) = load(folder)
    return run.points


def test_round_trip(tmp_path: Path) -> None:
    settings = RunSettings(
        problems_per_batch=32,
        rollouts_per_problem=8,
        update_steps=100,
        seed=-1,
        recipe={"loss": "cispo", "cap": 5.0},
        versions={"isocompute": "0.1"},
        cluster="a further key",
    )
    points = rising(5)
    with RunWriter(tmp_path / "32x8", settings) as writer:
        for point in points:
            writer.append(point)
    (run,) = load(tmp_path / "32x8")
    assert run.name == "32x8"
    assert run.settings == settings
    assert run.settings.model_dump()["cluster"] == "a further key"
    assert run.points.to_dicts() == points
    assert run.metrics == ["avg@4"]


def test_every_point_is_there_at_once(tmp_path: Path) -> None:
    with RunWriter(tmp_path, RunSettings()) as writer:
        for count in (1, 2, 3):
            writer.append({"step": count, "avg@4": 0.1 * count})
            assert read(tmp_path).height == count


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_writer_refuses_what_json_cannot_hold(tmp_path: Path, value: float) -> None:
    with RunWriter(tmp_path, RunSettings()) as writer:
        writer.append({"step": 1, "avg@4": 0.1})
        with pytest.raises(InputError, match=rf"points.jsonl: 'kl' is {value}; leave it out"):
            writer.append({"step": 2, "kl": value})
    assert read(tmp_path).to_dicts() == [{"step": 1, "avg@4": 0.1}]


def test_a_cut_at_any_byte_of_the_last_line_keeps_the_earlier_points(tmp_path: Path) -> None:
    points = [{"step": 1, "avg@4": 0.25}, {"step": 2, "avg@4": 0.5, "note": 'é"}'}]
    write_points(tmp_path, points)
    path = tmp_path / "points.jsonl"
    whole = path.read_bytes()
    start = whole.index(b"\n") + 1
    for cut in range(start, len(whole) + 1):
        path.write_bytes(whole[:cut])
        if start < cut < len(whole) - 1:
            with pytest.warns(RunWarning, match=r"points.jsonl: the last line is torn and was dropped"):
                table = read(tmp_path)
            assert table.to_dicts() == points[:1]
        else:  # nothing of the line is there, or all of it but the newline
            assert read(tmp_path).height == (1 if cut == start else 2)


@pytest.mark.parametrize(
    "torn", [b'{"step": 3, "avg', b'{"step": 3, "avg\n', b"\x00\x00\x00", b"\xff\xfe", b"[" * 100_000]
)
def test_a_writer_cuts_a_torn_line_off_before_it_goes_on(tmp_path: Path, torn: bytes) -> None:
    points = rising(4)
    write_points(tmp_path, points[:3])
    with (tmp_path / "points.jsonl").open("ab") as file:
        file.write(torn)
    write_points(tmp_path, points[3:])
    assert read(tmp_path).to_dicts() == points


def test_a_writer_ends_a_last_line_that_lacks_its_newline(tmp_path: Path) -> None:
    points = rising(4)
    path = write_points(tmp_path, points[:3]) / "points.jsonl"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    write_points(tmp_path, points[3:])
    assert read(tmp_path).to_dicts() == points


def test_a_line_that_is_wrong_in_the_middle_is_named(tmp_path: Path) -> None:
    path = write_points(tmp_path, rising(3)) / "points.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b'{"step": 15, "av\n' + b"".join(lines[1:]))
    with pytest.raises(InputError, match=r"points.jsonl, line 2: not JSON .*; fix or delete the line"):
        read(tmp_path)
    path.write_bytes(lines[0] + b"[1, 2]\n" + lines[1])
    with pytest.raises(InputError, match=r"points.jsonl, line 2: not an object but list"):
        read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"  \n", b'{"step": 1, "av', b'\n{"st'])
def test_a_run_without_points(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "points.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=r"points.jsonl: holds no points yet; let the run evaluate, or leave it out"):
        read(tmp_path)


def test_the_later_line_of_a_repeated_step_counts(tmp_path: Path) -> None:
    write_points(tmp_path, [{"step": s, "avg@4": 0.1 * s} for s in (1, 2, 3, 4)])
    write_points(tmp_path, [{"step": s, "avg@4": 0.2 * s} for s in (3, 4, 5)])
    assert read(tmp_path).rows() == [(1, 0.1), (2, 0.2), (3, pytest.approx(0.6)), (4, 0.8), (5, 1.0)]


@pytest.mark.parametrize("order", [1, -1])
def test_lines_of_a_step_with_different_metrics_make_one_point(tmp_path: Path, order: int) -> None:
    lines = [{"step": s, name: 0.1 * s} for s in (1, 2, 3) for name in ["avg@4", "train/avg"][::order]]
    write_points(tmp_path, lines)
    points = read(tmp_path)
    assert points.height == 3
    assert points["avg@4"].to_list() == points["train/avg"].to_list() == [0.1, 0.2, pytest.approx(0.3)]


def test_a_resumed_run_that_writes_two_lines_a_step_keeps_its_last_values(tmp_path: Path) -> None:
    for value in (0.1, 0.2):
        names = ("avg@4", "train/avg")
        write_points(tmp_path, [{"step": s, "seconds": s + value, name: value} for s in (1, 2) for name in names])
    assert read(tmp_path).select("step", "seconds", "avg@4", "train/avg").rows() == [
        (1, 1.2, 0.2, 0.2),
        (2, 2.2, 0.2, 0.2),
    ]


def test_a_non_finite_value_that_is_logged_again_has_its_later_value(tmp_path: Path) -> None:
    broke = {"non_finite": '{"loss": "nan", "kl": "inf"}'}
    write_points(tmp_path, [{"step": 1, "loss": 0.5, "kl": 1}, {"step": 2, "avg@4": 0.3} | broke])
    write_points(tmp_path, [{"step": 1, "avg@4": 0.2} | broke, {"step": 2, "loss": 0.4}, {"step": 3, "loss": 0.3}])
    with pytest.warns(RunWarning, match=r"left out: loss = nan in .*, step 1; kl = inf in .*, step 1 and 1 later"):
        points = read(tmp_path)
    assert points["loss"].to_list() == [None, 0.4, 0.3]
    assert points["avg@4"].to_list() == [0.2, 0.3, None]
    assert {name: (m.row, m.rows) for name, m in non_finite(points).items()} == {"loss": (0, 1), "kl": (0, 2)}


@pytest.mark.parametrize("order", [1, -1])
def test_nan_for_what_the_other_line_measures_does_not_displace_it(tmp_path: Path, order: int) -> None:
    lines = []
    for s in (1, 2, 3):
        train, held_out = {"reward": 0.1 * s, "avg@4": float("nan")}, {"reward": float("nan"), "avg@4": 0.2 * s}
        lines += [{"step": s} | line for line in (train, held_out)][::order]
    (tmp_path / "points.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    points = read(tmp_path)
    assert points["reward"].to_list() == [0.1, 0.2, pytest.approx(0.3)]
    assert points["avg@4"].to_list() == [0.2, 0.4, pytest.approx(0.6)]
    assert not non_finite(points)


def test_nan_where_no_line_of_the_step_has_a_number_is_named(tmp_path: Path) -> None:
    lines = [
        {"step": s} | logged for s in (1, 2) for logged in ({"loss": 0.1}, {"avg@4": 0.2 if s == 1 else float("nan")})
    ]
    (tmp_path / "points.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.warns(RunWarning, match=r"left out: avg@4 = nan in run .*, step 2"):
        points = read(tmp_path)
    assert points["avg@4"].to_list() == [0.2, None]


def test_text_among_the_numbers_of_a_metric_is_named(tmp_path: Path) -> None:
    lines = [{"step": s, "avg@4": "-" if s == 2 else 0.1 * s, "train/avg": 0.1 * s} for s in range(6)]
    write_points(tmp_path, lines)
    with pytest.raises(InputError, match=r"column 'avg@4': '-' \(row 3\) is not a number; fix the cell .*, or say --m"):
        choose_metric(load(tmp_path))
    assert choose_metric(load(tmp_path), "train/avg") == "train/avg"


def test_text_is_named_by_its_line_where_the_steps_are_in_no_order(tmp_path: Path) -> None:
    lines = [{"step": s, "avg@4": "-" if s == 2 else 0.1 * s, "train/avg": 0.1 * s} for s in (5, 4, 3, 2, 1)]
    write_points(tmp_path, lines)
    with pytest.raises(InputError, match=r"column 'avg@4': '-' \(row 4\) is not a number"):
        choose_metric(load(tmp_path))


def test_numbers_in_quotes_are_numbers(tmp_path: Path) -> None:
    write_points(tmp_path, [{"step": s, "avg@4": f"{0.1 * s}", "commit": "123"} for s in range(6)])
    (run,) = load(tmp_path)
    assert run.metrics == ["avg@4"]
    assert run.points["commit"].to_list() == ["123"] * 6


def test_a_resumed_run_keeps_points_of_its_first_branch(tmp_path: Path) -> None:
    """Step 2 was evaluated before the resume and not after it."""
    write_points(tmp_path, [{"step": s, "reward": 0.1 * s, "avg@4": 0.9} for s in (1, 2)])
    write_points(tmp_path, [{"step": s, "reward": 0.2 * s, "seconds": 1} for s in (2, 3)])
    assert read(tmp_path)["avg@4"].to_list() == [0.9, None, None]
    assert read(tmp_path)["reward"].to_list() == [0.1, 0.4, pytest.approx(0.6)]


def test_steps_are_put_in_order(tmp_path: Path) -> None:
    write_points(tmp_path, [{"step": s, "avg@4": 0.1 * s} for s in (9, 10, 2)])
    assert read(tmp_path)["step"].to_list() == [2, 9, 10]


def test_rows_without_a_step_are_not_taken_for_repeats(tmp_path: Path) -> None:
    write_points(tmp_path, [{"rollouts": r, "avg@4": 0.1} for r in (1, 2, 3)] + [{"step": 4, "rollouts": 4}])
    assert read(tmp_path)["rollouts"].to_list() == [1, 2, 3, 4]


def test_whole_numbers_fractions_and_nulls_share_a_column(tmp_path: Path) -> None:
    values = [0, 1, None, 0.5, None, 1]
    write_points(tmp_path, [{"step": i, "avg@4": v} for i, v in enumerate(values)])
    assert read(tmp_path)["avg@4"].to_list() == values


@pytest.mark.parametrize(
    "late",
    [
        {"avg@4": 0.5},  # a new key
        {"note": ": null", "avg@4": 0.5},  # a new key and a string that looks like an empty one
        {"x": "text"},
        {"x": {"y": 1}},
        {"loss": 0.5},  # a fraction among whole numbers
        {"loss": None, "avg@4": 0.5},
    ],
)
def test_a_key_or_a_kind_of_value_that_first_comes_late_is_not_lost(tmp_path: Path, late: dict[str, object]) -> None:
    points: list[dict[str, object]] = [{"step": i, "x": None, "note": "", "loss": 1} for i in range(500)]
    points[450] |= late
    write_points(tmp_path, points)
    table = read(tmp_path)
    for key, value in late.items():
        assert table[key].to_list()[450] == value
    assert table["loss"].to_list()[451] == 1


def test_a_truth_value_counts_as_a_number(tmp_path: Path) -> None:
    write_points(tmp_path, [{"step": 1, "solved": False}, {"step": 2, "solved": True}])
    (run,) = load(tmp_path)
    assert run.metrics == ["solved"]


def test_an_empty_metric_is_none(tmp_path: Path) -> None:
    write_points(tmp_path, [{"step": 1, "avg@4": 0.5, "kl": None}])
    assert load(tmp_path)[0].metrics == ["avg@4"]


def test_settings_may_be_missing(tmp_path: Path) -> None:
    write_points(tmp_path, rising(3))
    (tmp_path / "run.json").unlink()
    (run,) = load(tmp_path)
    assert run.settings == RunSettings()
    assert run.points.height == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"run.json: the file: Invalid JSON"),
        ("[]", r"run.json: the file: "),
        ('{"rollouts_per_problem": 0}', r"run.json: rollouts_per_problem: .*greater than or equal to 1"),
        ('{"problems_per_batch": "many"}', r"run.json: problems_per_batch: .*; fix or remove it"),
    ],
)
def test_wrong_settings_name_the_key(tmp_path: Path, content: str, message: str) -> None:
    write_points(tmp_path, rising(3))
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match=message):
        load(tmp_path)


@pytest.mark.filterwarnings("ignore::isocompute.data.RunWarning")
@given(st.binary(max_size=60))
def test_random_bytes_are_points_or_wrong_input(data: bytes) -> None:
    with suppress(InputError):
        assert parse_json_lines(data, "x").height > 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


@given(st.lists(st.dictionaries(st.sampled_from(["step", "avg@4", ":null", ""]), JSON), min_size=1, max_size=5))
def test_any_json_objects_are_points_or_wrong_input(rows: list[dict[str, object]]) -> None:
    data = "\n".join(json.dumps(row) for row in rows).encode()
    with suppress(InputError):
        table = parse_json_lines(data, "x")
        assert set(table.columns) == {key for row in rows for key in row}
        assert table.height == len(rows)


def test_digits_in_quotes_that_are_no_measurement_stay_text(tmp_path: Path) -> None:
    points = [{"step": i, "reward": f"{0.1 * i:.1f}", "node": "3", "job": "101"} for i in range(1, 7)]
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "points.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points), encoding="utf-8")
    run = read_run(str(folder))
    assert "node" not in run.metrics and "job" not in run.metrics
