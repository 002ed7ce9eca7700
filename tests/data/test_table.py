from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute import InputError, RunSet, load
from isocompute.core.curve import choose_metric, curves_of
from isocompute.data import RunWarning
from isocompute.data.frames import with_numbers

WRITERS: dict[str, Callable[[pl.DataFrame, Path], object]] = {
    "csv": lambda table, path: table.write_csv(path),
    "tsv": lambda table, path: table.write_csv(path, separator="\t"),
    "jsonl": lambda table, path: table.write_ndjson(path),
    "ndjson": lambda table, path: table.write_ndjson(path),
    "parquet": lambda table, path: table.write_parquet(path),
}
SUFFIXES = list(WRITERS)
WHERES: list[dict[str, str]] = [{}, {"set": "easy"}]


def sweep_table(run: str = "run") -> pl.DataFrame:
    """Two runs of five evaluations, one of them left out."""
    rows = [
        {
            run: f"32x{n}",
            "problems_per_batch": 32,
            "rollouts_per_problem": n,
            "step": step,
            "rollouts": 32 * n * step,
            "avg@4": None if step == 3 else round(0.4 + 0.05 * step + n / 1000, 4),
            "set": "easy" if n == 8 else "hard",
        }
        for n in (8, 16)
        for step in (1, 2, 3, 4, 5)
    ]
    return pl.DataFrame(rows)


def write(folder: Path, table: pl.DataFrame, suffix: str = "csv") -> Path:
    path = folder / f"table.{suffix}"
    WRITERS[suffix](table, path)
    return path


def text(folder: Path, content: str, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_text(content)
    return path


def summary(runs: RunSet) -> list[tuple[str, int | None, int | None, list[float], list[float]]]:
    curves, _, _ = curves_of(runs)
    return [
        (c.name, c.problems_per_batch, c.rollouts_per_problem, c.compute_C.tolist(), c.values_C.tolist())
        for c in curves
    ]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_gives_the_same_runs(tmp_path: Path, suffix: str) -> None:
    runs = load(write(tmp_path, sweep_table(), suffix))
    assert [run.metrics for run in runs] == [["avg@4"], ["avg@4"]]
    assert summary(runs) == [
        ("32x8", 32, 8, [256.0, 512.0, 1024.0, 1280.0], [0.458, 0.508, 0.608, 0.658]),
        ("32x16", 32, 16, [512.0, 1024.0, 2048.0, 2560.0], [0.466, 0.516, 0.616, 0.666]),
    ]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_columns_name_those_of_a_foreign_table(tmp_path: Path, suffix: str) -> None:
    foreign = sweep_table().rename(
        {"run": "name", "rollouts": "C", "avg@4": "val", "rollouts_per_problem": "n", "problems_per_batch": "bp"}
    )
    # A column that already has our name but another meaning must give way to the one that was named.
    foreign = foreign.with_columns(rollouts=pl.lit(7), other=pl.lit(1.0))
    columns = {"run": "name", "rollouts": "C", "value": "val", "rollouts_per_problem": "n", "problems_per_batch": "bp"}
    runs = load(write(tmp_path, foreign, suffix), columns=columns)
    assert runs.value_column == "val"
    assert summary(runs) == summary(load(write(tmp_path, sweep_table(), suffix)))


def test_columns_may_swap_names_and_share_a_column(tmp_path: Path) -> None:
    table = pl.DataFrame({"step": [10, 20], "rollouts": [1, 2], "r": [0.1, 0.2]})
    (run,) = load(write(tmp_path, table), columns={"step": "rollouts", "rollouts": "step"})
    assert run.points.select("step", "rollouts").rows() == [(1, 10), (2, 20)]
    (run,) = load(write(tmp_path, table), columns={"tokens": "rollouts", "seconds": "rollouts", "value": "r"})
    assert run.points["tokens"].to_list() == run.points["seconds"].to_list() == [1, 2]
    assert run.metrics == ["r"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"n": "rollouts_per_problem"}, r"--columns n=rollouts_per_problem: 'n' is not one of 'run', 'value', "),
        ({"value": "reward"}, r"table.csv: there is no column 'reward'; there are 'run', .*'avg@4'"),
    ],
)
def test_wrong_columns(tmp_path: Path, columns: dict[str, str], message: str) -> None:
    path = write(tmp_path, sweep_table())
    with pytest.raises(InputError, match=message):
        load(path, columns=columns)


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ({"set": "easy"}, ["32x8"]),
        ({"rollouts_per_problem": "16"}, ["32x16"]),
        ({"rollouts_per_problem": "1.6e1"}, ["32x16"]),
        ({"run": "32x16", "set": "hard"}, ["32x16"]),
    ],
)
def test_where_keeps_rows(tmp_path: Path, where: dict[str, str], kept: list[str]) -> None:
    assert [run.name for run in load(write(tmp_path, sweep_table()), where=where)] == kept


def test_where_filters_by_the_tables_own_names(tmp_path: Path) -> None:
    path = write(tmp_path, sweep_table("name"))
    runs = load(path, columns={"run": "name"}, where={"name": "32x8"})
    assert [run.name for run in runs] == ["32x8"]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"split": "easy"}, r"--where split=easy: .*table.csv has no column 'split'; it has 'run', "),
        ({"set": "medium"}, r"--where set=medium leaves no rows of .*table.csv; 'set' has 'easy', 'hard'"),
        ({"step": "first"}, r"--where step=first: the column holds numbers; give a number"),
        ({"set": "easy", "run": "32x16"}, r"--where run=32x16 leaves no rows"),
    ],
)
def test_wrong_where(tmp_path: Path, where: dict[str, str], message: str) -> None:
    path = write(tmp_path, sweep_table())
    with pytest.raises(InputError, match=message):
        load(path, where=where)


def test_a_truth_value_is_filtered_as_it_is_shown(tmp_path: Path) -> None:
    path = text(tmp_path, "run,step,ok,avg@4\na,1,true,.1\nb,1,false,.2\n")
    assert [run.name for run in load(path, where={"ok": "true"})] == ["a"]
    with pytest.raises(InputError, match="'ok' has 'true', 'false'"):
        load(path, where={"ok": "yes"})


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_without_a_run_column_the_settings_are_the_runs(tmp_path: Path, suffix: str) -> None:
    runs = load(write(tmp_path, sweep_table().drop("run"), suffix))
    assert [run.name for run in runs] == ["Bp=32,n=8", "Bp=32,n=16"]
    assert [run.points.height for run in runs] == [5, 5]
    assert runs[1].settings.rollouts_per_problem == 16


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_without_any_of_them_the_table_is_one_run(tmp_path: Path, suffix: str) -> None:
    (run,) = load(write(tmp_path, pl.DataFrame({"step": [1, 2], "avg@4": [0.1, 0.2]}), suffix))
    assert (run.name, run.points["avg@4"].to_list()) == ("table", [0.1, 0.2])


def test_seeds_are_runs_of_their_own(tmp_path: Path) -> None:
    path = text(tmp_path, "rollouts_per_problem,seed,step,avg@4\n8,0,1,.1\n8,0,2,.2\n8,1,1,.3\n8,1,2,.4\n")
    runs = load(path)
    assert [(run.name, run.settings.seed) for run in runs] == [("n=8,seed=0", 0), ("n=8,seed=1", 1)]
    assert runs["n=8,seed=1"].points["avg@4"].to_list() == [0.3, 0.4]


def test_a_metric_belongs_to_the_runs_that_fill_it(tmp_path: Path) -> None:
    path = text(tmp_path, "run,step,avg@4,loss\na,1,.1,2\na,2,.2,1\nb,1,,2\nb,2,,1\n")
    assert [run.metrics for run in load(path)] == [["avg@4", "loss"], ["loss"]]


def test_names_stay_as_they_are_written(tmp_path: Path) -> None:
    path = text(tmp_path, "run,step,avg@4\n007,1,.1\n7,1,.2\n1e3,1,.3\n")
    assert [run.name for run in load(path)] == ["007", "7", "1e3"]


def test_an_empty_run_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"table.csv: a row has an empty 'run'; fill it in"):
        load(text(tmp_path, "run,step,avg@4\na,1,.1\n,2,.2\n"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_one_name_for_two_settings_is_two_different_runs(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, sweep_table().with_columns(run=pl.lit("a")), suffix)
    message = r"run 'a' has rollouts_per_problem = 8 and 16: two different runs with one name; give them their own"
    with pytest.raises(InputError, match=message):
        load(path)


@pytest.mark.parametrize("order", ["run", "step"])
def test_a_run_that_comes_back_to_its_first_step_is_two_different_runs(tmp_path: Path, order: str) -> None:
    table = sweep_table().with_columns(run=pl.lit("a")).drop("problems_per_batch", "rollouts_per_problem", "rollouts")
    path = write(tmp_path, table.sort("step", maintain_order=True) if order == "step" else table)
    with pytest.raises(InputError, match=r"run 'a', column 'step': 1 comes twice with different values: two different"):
        load(path)


def test_a_resumed_run_goes_on_after_its_first_step(tmp_path: Path) -> None:
    path = text(tmp_path, "run,step,avg@4\na,1,.1\na,2,.2\na,3,.3\na,2,.4\na,3,.5\na,4,.6\n")
    assert load(path)[0].points.rows() == [(1, 0.1), (2, 0.4), (3, 0.5), (4, 0.6)]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_validation_row_and_a_training_row_a_step_are_one_point(tmp_path: Path, suffix: str) -> None:
    rows = [
        {"step": s, "time": 10 * s + at, "val_reward": None, "train_reward": None} | {name: s / 10}
        for s in range(1, 6)
        for at, name in enumerate(("val_reward", "train_reward"))
    ]
    runs = load(write(tmp_path, pl.DataFrame(rows), suffix))
    (curve,), metric, _ = curves_of(runs)
    assert (metric, curve.values_C.tolist()) == ("val_reward", [0.1, 0.2, 0.3, 0.4, 0.5])
    assert runs[0].points["train_reward"].to_list() == [0.1, 0.2, 0.3, 0.4, 0.5]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_validation_row_and_a_training_row_may_have_nan_for_each_others_metrics(tmp_path: Path, suffix: str) -> None:
    nan = float("nan")
    rows = [{"step": s, "loss": (0.1, nan)[i], "avg@4": (nan, 0.2)[i]} for s in range(1, 6) for i in (0, 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (run,) = load(write(tmp_path, pl.DataFrame(rows), suffix))
    assert run.points.rows() == [(s, 0.1, 0.2) for s in range(1, 6)]


def test_rows_that_come_twice_count_once(tmp_path: Path) -> None:
    table = sweep_table()
    assert summary(load(write(tmp_path, pl.concat([table, table])))) == summary(load(write(tmp_path, table)))


@pytest.mark.parametrize("value", ["8.5", "0", "-3", "eight", "inf"])
def test_settings_are_whole_numbers(tmp_path: Path, value: str) -> None:
    path = text(tmp_path, f"run,rollouts_per_problem,step,avg@4\na,{value},1,.1\n")
    with pytest.raises(InputError, match=r"run 'a' has rollouts_per_problem = .*; it must be a whole number above 0"):
        load(path)


def test_settings_that_are_not_known_stay_unknown(tmp_path: Path) -> None:
    path = text(tmp_path, "run,rollouts_per_problem,step,avg@4\na,nan,1,.1\nb,8,1,.1\n")
    assert [run.settings.rollouts_per_problem for run in load(path)] == [None, 8]


@pytest.mark.parametrize("cell", ["5e-1", ".5", " 0.5", "1"])
def test_a_cell_of_another_look_leaves_its_column_numeric(tmp_path: Path, cell: str) -> None:
    (run,) = load(text(tmp_path, f"step,avg@4\n1,0.25\n2,{cell}\n3,\n"))
    assert run.metrics == ["avg@4"]
    assert run.points["avg@4"].to_list() == [0.25, float(cell), None]


@pytest.mark.parametrize("cell", ["nan", "NaN", "inf", "-Infinity", "1e200"])
def test_what_is_no_finite_number_is_left_out_and_named(tmp_path: Path, cell: str) -> None:
    warning = re.escape(f"left out: avg@4 = {float(cell):g} in run 'table', step 2.")
    with pytest.warns(RunWarning, match=rf"table.csv: {warning}$"):
        (run,) = load(text(tmp_path, f"step,avg@4,loss\n1,0.25,1\n2,{cell},2\n3,,3\n"))
    assert run.metrics == ["avg@4", "loss"]
    assert run.points["avg@4"].to_list() == [0.25, None, None]
    assert run.points["non_finite"].to_list() == [None, f'{{"avg@4": "{float(cell)}"}}', None]
    assert run.points["loss"].to_list() == [1, 2, 3]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize(
    ("column", "cells", "row"),
    [
        ("eval_reward", ["0.1", "0.2", "-", "0.4", "0.5"], 3),
        ("eval_accuracy", ["58.7%", "60%", "61.2%", "62%", "62.5%"], 1),
        ("avg@4", ["0.1", "n/a", None, None, "0.5"], 2),
        ("rollouts", ["512", "1,024", "20,480", "40,960", "81,920"], 2),
        ("reward", ["0,1", "0,2", "0,3", "0,4", "0,5"], 1),
    ],
)
def test_another_column_does_not_answer_for_one_with_text_in_it(
    tmp_path: Path, column: str, cells: list[str | None], row: int, suffix: str
) -> None:
    table = pl.DataFrame({"step": range(5), column: cells, "train/avg": [0.1, 0.2, 0.3, 0.4, 0.5]})
    path = write(tmp_path, table, suffix)
    warning = rf"column '{column}': '{cells[row - 1]}' \(row {row}\) is not a number; fix the cell or"
    with pytest.raises(InputError, match=warning):
        choose_metric(load(path))
    if column != "rollouts":
        assert load(path, columns={"value": "train/avg"})[0].metrics == ["train/avg"]


def test_text_in_an_unused_column_is_reported(tmp_path: Path) -> None:
    path = text(tmp_path, "step,avg@4,kl\n" + "".join(f"{i},.{i},{i or '-'}\n" for i in range(6)))
    with pytest.warns(RunWarning, match=r"table.csv: column 'kl': '-' \(row 1\) is not a number: taken for text; fix"):
        (run,) = load(path)
    assert run.metrics == ["avg@4"]


def test_a_cell_is_named_by_its_row_in_the_file(tmp_path: Path) -> None:
    """Rows that `where` leaves out and blank lines count."""
    rows = [f"{which},{i},.{i},{i or '-'}" for which in ("hard", "easy") for i in range(6)]
    path = text(tmp_path, "\n".join(["set,step,avg@4,kl", *rows[:6], "", *rows[6:]]) + "\n")
    with pytest.warns(RunWarning, match=r"column 'kl': '-' \(row 8\) is not a number"):
        load(path, where={"set": "easy"})


def test_text_that_where_leaves_out_does_no_harm(tmp_path: Path) -> None:
    rows = [
        f"{which},{i},{'-' if (which, i) == ('hard', 3) else 0.1 * i}"
        for which in ("hard", "easy")
        for i in range(1, 6)
    ]
    path = text(tmp_path, "\n".join(["set,step,avg@4", *rows]) + "\n")
    assert load(path, where={"set": "easy"})[0].metrics == ["avg@4"]


@pytest.mark.parametrize("where", WHERES)
def test_a_cell_of_a_reward_is_named_by_its_row_in_the_file(tmp_path: Path, where: dict[str, str]) -> None:
    table = sweep_table().sort("rollouts_per_problem", descending=True).cast({"avg@4": pl.String})
    cells = table["avg@4"].to_list()
    cells[7] = "n/a"
    path = write(tmp_path, table.with_columns(pl.Series("avg@4", cells)))
    with pytest.raises(InputError, match=r"run '32x8', column 'avg@4': 'n/a' \(row 8\) is not a number"):
        curves_of(load(path, where=where), metric="avg@4")


def test_a_cell_of_a_step_with_several_rows_is_named_by_the_step(tmp_path: Path) -> None:
    rows = [f"{i},,{'-' if i == 2 else 0.1 * i}\n{i},0.{i},\n" for i in range(1, 6)]
    path = text(tmp_path, "step,loss,avg@4\n" + "".join(rows))
    with pytest.raises(InputError, match=r"column 'avg@4': '-' \(step 2\) is not a number"):
        choose_metric(load(path), "avg@4")


def test_decreasing_compute_is_named_by_its_row_in_the_file(tmp_path: Path) -> None:
    table = sweep_table().drop("step").with_columns(pl.int_range(10).alias("avg@4"))
    table = table.with_columns(pl.Series("rollouts", [1, 2, 3, 4, 5, 1, 2, 3, 2, 5]))
    with pytest.raises(InputError, match=r"run '32x16', .* goes backwards, from 3 to 2 in row 9; sort the rows"):
        curves_of(load(write(tmp_path, table)))


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_numbers_in_quotes_are_numbers(tmp_path: Path, suffix: str) -> None:
    table = sweep_table().cast(dict.fromkeys(("rollouts_per_problem", "rollouts", "avg@4"), pl.String))
    names = {"model": pl.lit("7"), "wandb_id": pl.lit("12")}
    runs = load(write(tmp_path, table.with_columns(**names), suffix))
    assert summary(runs) == summary(load(write(tmp_path, sweep_table(), suffix)))
    if suffix != "csv":  # where a string is known from a number
        assert runs[0].settings.model == "7"
        assert "wandb_id" not in runs[0].metrics


def test_numbers_of_which_some_are_in_quotes_are_numbers(tmp_path: Path) -> None:
    rows = [{"step": i, "avg@4": 0.1 * i if i % 2 else f"{0.1 * i}" if i else ""} for i in range(6)]
    path = text(tmp_path, "".join(f"{json.dumps(row)}\n" for row in rows), "table.jsonl")
    (run,) = load(path)
    assert run.metrics == ["avg@4"]
    assert run.points["avg@4"].to_list() == [None, *(pytest.approx(0.1 * i) for i in range(1, 6))]


def test_names_ids_and_dates_are_text(tmp_path: Path) -> None:
    rows = [f"{i},.{i},{i or 'x1'},2026-01-0{i},{'0.8.5'},{'a' * i or 7},{i or 'b'}\n" for i in range(6)]
    header = "step,avg@4,wandb_id,date,vllm,what,model\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(text(tmp_path, header + "".join(rows)))


def test_a_fraction_or_a_first_value_far_down_the_table(tmp_path: Path) -> None:
    rows = [f"{i},{'0.5' if i == 1999 else '1'},{'0.25' if i == 1998 else ''}" for i in range(2000)]
    (run,) = load(text(tmp_path, "step,a,b\n" + "\n".join(rows) + "\n"))
    assert run.points["a"].to_list()[-2:] == [1.0, 0.5]
    assert run.points["b"].to_list()[-2:] == [0.25, None]
    assert run.metrics == ["a", "b"]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_a_torn_last_line_is_dropped(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, sweep_table().drop("set"), suffix)
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    path.write_bytes(whole[: last + 7])
    with pytest.warns(RunWarning, match="the last line is torn and was dropped"):
        runs = load(path)
    assert [run.points.height for run in runs] == [5, 4]


def test_blank_lines_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b"\xef\xbb\xbfrun,step,avg@4\r\na,1,0.1\r\n\r\na,2,0.2\r\n\r\n")
    assert load(path)[0].points.rows() == [(1, 0.1), (2, 0.2)]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_empty_files(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"table.{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"table.{suffix}: the file is empty"):
        load(path)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_a_table_without_rows(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, sweep_table().head(0), suffix)
    with pytest.raises(InputError, match=rf"table.{suffix}: the table has no rows"):
        load(path)


@pytest.mark.filterwarnings("ignore::isocompute.data.RunWarning")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_of_another_format_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"table.{suffix}"
    path.write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\xff\xfe\n\x00,,,,,,\n")
    with pytest.raises(InputError, match=rf"table.{suffix}"):
        load(path)


@pytest.mark.filterwarnings("ignore::isocompute.data.RunWarning")
@pytest.mark.parametrize("suffix", SUFFIXES)
@given(data=st.data())
def test_random_bytes_are_runs_or_wrong_input(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject
) -> None:
    """Noise, and a good table with some of its bytes replaced."""
    path = write(tmp_path_factory.getbasetemp(), sweep_table(), suffix)
    good = path.read_bytes()
    noise = data.draw(st.binary(max_size=12))
    at = data.draw(st.none() | st.integers(0, len(good) - 1))
    path.write_bytes(noise if at is None else good[:at] + noise + good[at + len(noise) :])
    with suppress(InputError):
        assert all(len(name) > 0 for name, *_ in summary(load(path, where=data.draw(st.sampled_from(WHERES)))))


def test_whole_numbers_in_quotes_stay_whole() -> None:
    """Seeds and steps are counted; a step of 2^53 + 1 is none as a float."""
    cells = {"step": ["1", " 9007199254740993"], "avg@4": ["0.5", ""], "note": ["1", "x"]}
    read = with_numbers(pl.DataFrame(cells), text=())
    assert dict(read.schema) == {"step": pl.Int64, "avg@4": pl.Float64, "note": pl.String}
    assert read["step"].to_list() == [1, 9007199254740993]
