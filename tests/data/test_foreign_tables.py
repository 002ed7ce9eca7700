"""Tables of other tools: the role of each column, and the points of each run."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from isocompute import InputError, load
from isocompute.data import RunWarning
from isocompute.data.importing import import_logs
from tests.data import made_up as made
from tests.data.made_up import reward, table


def sizes(path: Path) -> dict[str, int]:
    return {item.run.name: item.run.points.height for item in import_logs(path)}


def text(tmp_path: Path, data: str, name: str = "some.csv") -> Path:
    (tmp_path / name).write_text(data)
    return tmp_path / name


def test_long(tmp_path: Path) -> None:
    a, b = import_logs(text(tmp_path, made.long_csv()))
    assert (a.run.name, a.run.points.height, a.validation_points) == ("a", 20, 4)
    assert b.run.metrics == ["avg@1", "grad_norm"]


@pytest.mark.parametrize(
    "header",
    [
        ["run_id", "key", "step", "value"],
        ["experiment", "tag", "global_step", "Value"],
        ["Run", "Metric", "Step", "value"],
    ],
)
def test_long_under_other_names(tmp_path: Path, header: list[str]) -> None:
    rows = [("x", "eval/reward", s, 0.5) for s in range(6)] + [("x", "loss", s, 0.1) for s in range(9)]
    (item,) = import_logs(text(tmp_path, table(header, rows)))
    assert (item.run.name, item.run.points.height, item.validation_points) == ("x", 9, 6)


def test_a_tracker_exports_a_chart(tmp_path: Path) -> None:
    assert sizes(text(tmp_path, made.tracker_csv())) == {"one": 10, "two": 5}
    chart = table(["Step", "0.6b", "14b"], [[s, "" if s % 4 else reward(s), reward(s)] for s in range(20)])
    items = import_logs(text(tmp_path, chart))
    assert {i.run.name: i.run.points.height for i in items} == {"0.6b": 5, "14b": 20}
    assert items[0].run.metrics == ["value"]
    assert "called 'value'" in items[0].notes[0]


@pytest.mark.parametrize("separator", [",", "\t", ";"])
def test_metrics_across_the_columns(tmp_path: Path, separator: str) -> None:
    rows = [[s, reward(s), "" if s % 2 else 0.5, "nan"] for s in range(8)]
    (item,) = import_logs(text(tmp_path, table(["step", "train/reward", "eval_reward", "kl"], rows, separator)))
    assert (item.run.points.height, item.validation_points) == (8, 4)
    assert item.run.metrics == ["avg@1", "train/avg"]


def test_a_figures_table(tmp_path: Path) -> None:
    rows = [
        (s, n, 1000 * n * i, 0.1 * i, "solid" if i < 3 else "dashed")
        for s in ("easy", "hard")
        for n in (8, 32)
        for i in range(1, 6)
    ]
    items = import_logs(text(tmp_path, table(["set", "n", "C_rollouts", "val_reward", "line"], rows)))
    assert [i.run.name for i in items] == ["set=easy,n=8", "set=easy,n=32", "set=hard,n=8", "set=hard,n=32"]
    assert [i.run.settings.rollouts_per_problem for i in items] == [8, 32, 8, 32]
    assert items[0].run.points["rollouts"].to_list() == [8000 * i for i in range(1, 6)]


def test_thousands_of_gpu_hours(tmp_path: Path) -> None:
    rows = [("8b", "fit" if i < 3 else "predicted", 1.5 * i, 0.4 + 0.01 * i) for i in range(1, 8)]
    (item,) = import_logs(text(tmp_path, table(["run", "split", "gpu_hours_k", "pass_rate"], rows)))
    assert item.run.points.columns == ["gpu_hours", "pass_rate"]
    assert item.run.points["gpu_hours"][1] == 3000.0
    (run,) = load(tmp_path / "some.csv")
    assert run.points.equals(item.run.points)


def test_end_points(tmp_path: Path) -> None:
    rows = [("a", 4, 0.5), ("b", 64, 0.7), ("b", 64, 0.6)]
    items = import_logs(text(tmp_path, table(["run_name", "num_rollouts", "final_validation_accuracy"], rows)))
    assert [(i.run.name, i.run.points.height, i.run.settings.rollouts_per_problem) for i in items] == [
        ("a", 1, 4),
        ("b", 1, 64),
        ("b-2", 1, 64),
    ]


def test_end_points_on_held_out_problems(tmp_path: Path) -> None:
    header = [
        "run_name",
        "false_positive_rate",
        "final_validation_accuracy",
        "final_train_accuracy",
        "best_eval_reward",
    ]
    (item,) = import_logs(text(tmp_path, table(header, [("a", 0, 0.5, 0.6, 0.7)])))
    assert item.validation_points == 1
    assert item.run.metrics == [header[2], header[4], header[1], header[3]]


def test_parquet_and_json(tmp_path: Path) -> None:
    rows = [{"run_name": r, "step": s, "train/reward": reward(s)} for r in "ab" for s in range(6)]
    pl.DataFrame(rows).write_parquet(tmp_path / "t.parquet")
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "t.json").write_text(json.dumps(rows))
    for name in ("t.parquet", "t.jsonl", "t.json"):
        assert sizes(tmp_path / name) == {"a": 6, "b": 6}, name
    columns = {"step": list(range(6)), "reward": [reward(s) for s in range(6)], "note": "x"}
    (tmp_path / "c.json").write_text(json.dumps(columns, indent=1))
    assert sizes(tmp_path / "c.json") == {"c": 6}


def test_one_run_in_several_files(tmp_path: Path) -> None:
    rows = [("a", "eval/reward", s, reward(s)) for s in range(5)]
    header = ["run_name", "metric", "step", "value"]
    more = [*rows, *(("a", "train/entropy", s, 0.5) for s in range(9)), ("b", "eval/reward", 1, 0.2)]
    text(tmp_path, table(header, rows), "1.csv")
    text(tmp_path, table(header, more), "2.csv")
    text(tmp_path, table(["run_name", "best_eval_reward"], [("a", 0.9), ("c", 0.1)]), "summary.csv")
    items = import_logs(tmp_path)
    assert {i.run.name: i.run.points.height for i in items} == {"a": 9, "b": 1, "c": 1}
    assert next(i.sources for i in items if i.run.name == "a") == (str(tmp_path / "1.csv"), str(tmp_path / "2.csv"))
    assert items.left_out == (f"{tmp_path / 'summary.csv'}: end points of 1 run whose curve is there",)
    # Another run under the same name is not the same run.
    text(tmp_path, table(header, [("a", "eval/reward", s, 0.9) for s in range(5)]), "3.csv")
    assert [i.run.name for i in import_logs(tmp_path)].count("a") == 1
    assert f"{tmp_path.name}/a" in [i.run.name for i in import_logs(tmp_path)]


def test_a_table_of_ours_is_read_as_before(tmp_path: Path) -> None:
    path = text(tmp_path, table(["run", "step", "a", "b"], [("x", s, 1.5, 2.5) for s in range(4)]))
    (run,) = load(path)
    assert (run.name, run.metrics) == ("x", ["a", "b"])


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        (["index", "data_source", "q_pass_rate"], [(1, "m", 0.5), (2, "m", 0.1)], "a set of problems"),
        (["set", "L", "k"], [("easy", 6.1, 4.7), ("hard", 4.5, 7.2)], "no run counts compute in rollouts or tokens"),
    ],
)
def test_tables_that_hold_no_runs(tmp_path: Path, header: list[str], rows: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        import_logs(text(tmp_path, table(header, rows)))


@pytest.mark.parametrize("cell", ["-", "n.a.", "0,5"])
def test_a_cell_that_is_not_a_number_is_reported(tmp_path: Path, cell: str) -> None:
    rows = [[s, reward(s), cell if s == 2 else 0.5, f"v{s}", "a1" if s > 2 else 1] for s in range(8)]
    path = text(tmp_path, table(["step", "train_reward", "eval_reward", "host", "what"], rows))
    warning = rf"some.csv: column 'eval_reward': '{cell}' \(row 3\) is not a number: the whole column is left out; fix"
    with pytest.warns(RunWarning, match=warning) as result:
        (item,) = import_logs(path)
    assert (item.run.metrics, len(result)) == (["train/avg"], 1)


@pytest.mark.parametrize("cells", ["58.7%", "20,480"])
def test_a_column_of_numbers_in_another_spelling_is_reported(tmp_path: Path, cells: str) -> None:
    path = text(tmp_path, table(["step", "reward", "eval_accuracy"], [[s, reward(s), cells] for s in range(8)]))
    with pytest.warns(RunWarning, match=r"column 'eval_accuracy': '.*' \(row 1\) is not a number"):
        import_logs(path)
    path = text(tmp_path, table(["step", "eval_accuracy"], [[s, cells] for s in range(8)]))
    with pytest.raises(
        InputError, match=r"no column of numbers besides the step; column 'eval_accuracy': '.*' \(row 1"
    ):
        import_logs(path)


def test_values_of_a_long_table_that_are_not_numbers_are_reported(tmp_path: Path) -> None:
    rows = [("a", "eval/reward", s, "-" if s == 3 else reward(s)) for s in range(8)]
    with pytest.warns(RunWarning, match=r"column 'value': '-' \(row 4\) is not a number: such cells are left out"):
        (item,) = import_logs(text(tmp_path, table(["run", "metric", "step", "value"], rows)))
    assert item.run.points.height == 7


@pytest.mark.parametrize("cells", [["1", "2", "b"], ["0.5", "1.5", "none"]])
def test_text_that_tells_runs_apart_is_no_metric(tmp_path: Path, cells: list[str]) -> None:
    rows = [[cell, s, reward(s)] for cell in cells for s in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sizes(text(tmp_path, table(["ablation", "step", "reward"], rows))) == dict.fromkeys(
            [f"ablation={cell}" for cell in cells], 4
        )
        rows = [["x", *row] for row in rows[:4]]
        assert sizes(text(tmp_path, table(["run", "group", "step", "reward"], rows))) == {"x": 4}


def test_rows_without_a_run_are_reported(tmp_path: Path) -> None:
    rows = [("a" if s < 5 else "", s, reward(s)) for s in range(8)]
    with pytest.warns(RunWarning, match=r"some.csv: 3 rows have an empty 'run', left out; fill it in"):
        (item,) = import_logs(text(tmp_path, table(["run", "step", "eval_reward"], rows)))
    assert (item.run.points.height, item.skipped_lines) == (5, 3)


@pytest.mark.parametrize("columns", [["eval_reward"], ["eval_reward", "length"]])
def test_decimal_commas_are_named(tmp_path: Path, columns: list[str]) -> None:
    rows = [[s, f"0,2{s}", *([100 + s] if len(columns) > 1 else [])] for s in range(8)]
    path = text(tmp_path, table(["step", *columns], rows, ";"))
    with pytest.raises(InputError, match=r"^\S*some.csv: separated by ';' with decimal commas \(0,20\); save it with"):
        import_logs(path)
    with pytest.raises(InputError, match=r"some.csv: separated by ';' with decimal commas \(0,20\); save it with dec"):
        load(path)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_rows_that_are_too_long_count_as_skipped(tmp_path: Path, end: str) -> None:
    rows = [[s, reward(s), 0.5] for s in range(20)]
    rows[3] = [3, 20, 480, 0.5]
    rows[4] = [4, 0.1, 0.5, ""]
    data = table(["step", "train_reward", "eval_reward"], rows).replace("\n", end)
    (item,) = import_logs(text(tmp_path, data))
    assert (item.run.points.height, item.skipped_lines) == (19, 1)
    assert item.run.points["step"].to_list() == [0, 1, 2, *range(4, 20)]


def test_lines_of_json_that_are_none_count_as_skipped(tmp_path: Path) -> None:
    lines = [f'{{"step": {s}, "train_reward": {reward(s)}}}' for s in range(8)]
    lines[3] = lines[3][:-5]
    (item,) = import_logs(text(tmp_path, "\n".join(lines) + "\n", "some.json"))
    assert (item.run.points.height, item.skipped_lines) == (7, 1)


def test_a_list_with_commas_is_no_number(tmp_path: Path) -> None:
    path = tmp_path / "gpus.tsv"
    path.write_text("step\tcuda_devices\treward\n" + "".join(f"{i}\t0,1\t.{i:02d}\n" for i in range(1, 41)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert import_logs(path)[0].run.points.height == 40


def test_commas_in_thousands_are_not_decimal(tmp_path: Path) -> None:
    path = tmp_path / "thousands.csv"
    path.write_text("step;rollouts;reward\n" + "".join(f"{i};{i},480;.{i}\n" for i in range(1, 9)))
    with pytest.raises(InputError, match=r"with commas in thousands \(1,480\); save it without them \(1480\)"):
        import_logs(path)


def test_rows_that_are_left_out_are_reported_by_every_command(tmp_path: Path) -> None:
    path = tmp_path / "grown.csv"
    rows = [f"{i},.{i:02d}" + (",7" if i > 37 else "") for i in range(1, 41)]
    path.write_text("\n".join(["global_step,reward", *rows]) + "\n")
    with pytest.warns(RunWarning, match=r"grown.csv: 3 lines that could not be read left out"):
        assert load(path)[0].points.height == 37


CHARTED = ["one - eval/reward", "one - eval/reward__MIN", "one - eval/reward__MAX", "two - eval/reward"]


def test_a_trackers_chart_over_time(tmp_path: Path) -> None:
    path = tmp_path / "chart.csv"
    rows: list[tuple[Any, ...]] = [(10.5, 0.1, 0.1, 0.1, ""), (20.75, 0.2, 0.1, 0.3, ""), (21.5, "", "", "", 0.4)]
    path.write_text(made.table(["Relative Time (Process)", *CHARTED], rows))
    one, two = import_logs(path)
    assert [one.run.name, two.run.name] == ["one", "two"]
    assert one.run.points.to_dict(as_series=False) == {"seconds": [10.5, 20.75], "avg@1": [0.1, 0.2]}
    assert two.run.points.to_dict(as_series=False) == {"seconds": [21.5], "avg@1": [0.4]}


def test_a_trackers_chart_over_something_else(tmp_path: Path) -> None:
    path = tmp_path / "chart.csv"
    path.write_text(
        made.table(["Relative Time (Wall)", *CHARTED], [(0.5, 0.1, 0.1, 0.1, 0.2), (1.5, 0.2, 0.2, 0.2, 0.3)])
    )
    with pytest.raises(
        InputError, match=r"a tracker's chart over 'Relative Time \(Wall\)'; export it with Step as its"
    ):
        import_logs(path)


@pytest.mark.parametrize(
    "header",
    [["step", "avg@1"], ["Step", "one - eval/reward"], ["Step", "baseline"], ["run", "metric", "step", "value"]],
    ids=["rows", "tracker", "runs", "long"],
)
def test_parts_of_steps_are_refused(header: list[str], tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    cells = {"run": "a", "metric": "eval/reward"}
    rows = [[cells.get(c, step if c.lower() == "step" else 0.25) for c in header] for step in (1.0, 1.5, 2.0)]
    path.write_text(made.table(header, rows))
    with pytest.raises(InputError, match=r"column '[Ss]tep' is 1\.5 in row 2: a step is a whole number") as caught:
        import_logs(path)
    assert "\n" not in str(caught.value)
    path.write_text(made.table(header, [row for row in rows if 1.5 not in row]))
    (item,) = import_logs(path)
    assert item.run.points["step"].to_list() == [1, 2]
