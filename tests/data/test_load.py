"""Addresses, studies, and wrong input: the message names the run, the column and the fix."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import polars as pl
import pytest

from isocompute import InputError, Run, RunSet, RunSettings, load
from isocompute.core.curve import Curve, curves_of
from isocompute.data import RunWarning
from isocompute.law.law import fit_law
from isocompute.law.store import write_law
from tests.conftest import rising, write_points


def names(*args: Any, **kwargs: Any) -> list[str]:
    return [run.name for run in load(*args, **kwargs)]


def test_a_study_is_all_run_folders_below(tmp_path: Path) -> None:
    for name in ("a/32x8", "b/32x8", "b/deep/er/run", "top"):
        write_points(tmp_path / name, rising(4))
    for hidden in (".cache/32x8", "b/.git/run"):
        write_points(tmp_path / hidden, rising(5))
    (tmp_path / "study.toml").write_text("")
    (tmp_path / "b" / "notes.jsonl").write_text("not a run")
    runs = load(tmp_path)
    assert [run.name for run in runs] == ["a/32x8", "b/32x8", "b/deep/er/run", "top"]
    assert runs.source == str(tmp_path)


@pytest.mark.parametrize("address", ["runs", "runs/", "./runs", "../{here}/runs", "runs/../runs"])
def test_a_run_is_named_by_its_path_however_the_study_is_spelled(in_sweep: Path, address: str) -> None:
    found = names(address.format(here=in_sweep.name))
    assert found == ["easy-32x16", "easy-32x64", "easy-32x8"]


def test_the_working_folder(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sweep / "runs")
    assert names(".") == ["easy-32x16", "easy-32x64", "easy-32x8"]
    monkeypatch.chdir(sweep / "runs" / "easy-32x8")
    assert names(".") == ["easy-32x8"]
    assert names("../easy-32x16") == ["easy-32x16"]


def test_one_run_of_many(sweep: Path) -> None:
    (run,) = load(f"{sweep / 'runs'}::easy-32x64")
    assert (run.name, run.settings.rollouts_per_problem) == ("easy-32x64", 64)
    with pytest.raises(InputError, match=r"runs: there is no run '32x64'; there are 'easy-32x16', 'easy-32x64', "):
        load(f"{sweep / 'runs'}::32x64")


def test_several_paths_and_the_same_run_twice(sweep: Path) -> None:
    a, b = sweep / "runs" / "easy-32x8", sweep / "runs" / "easy-32x16"
    assert names([a, str(b), a]) == ["easy-32x8", "easy-32x16"]


def test_two_different_runs_with_one_name(sweep: Path, tmp_path: Path) -> None:
    write_points(tmp_path / "easy-32x8", rising(6))
    with pytest.raises(InputError, match=r"two different runs are named 'easy-32x8'; rename one, or leave one of the"):
        load([sweep / "runs", tmp_path])
    same = tmp_path / "copy" / "easy-32x8"
    shutil.copytree(sweep / "runs" / "easy-32x8", same)
    write_points(same, [], problems_per_batch=64)  # the points agree, the settings do not
    with pytest.raises(InputError, match=r"two different runs are named 'easy-32x8'"):
        load([sweep / "runs" / "easy-32x8", same])


def test_a_run_set_has_distinct_names() -> None:
    run = Run("a", RunSettings(), pl.DataFrame(rising(4)))
    with pytest.raises(InputError, match="two different runs are named 'a'"):
        RunSet((run, run))


def test_a_study_elsewhere(sweep: Path) -> None:
    memory = fsspec.filesystem("memory")
    for path in (sweep / "runs").rglob("*.*"):
        if path.is_file():
            memory.pipe(f"/study/deep/{path.parent.name}/{path.name}", path.read_bytes())
    memory.pipe("/study/table.csv", b"run,step,avg@4\na,1,0.1\na,2,0.2\n")
    try:
        for address in ("memory://study", "memory:///study/"):
            runs = load(address)
            assert [run.name for run in runs] == [f"deep/easy-32x{n}" for n in (16, 64, 8)]
            assert [run.settings.rollouts_per_problem for run in runs] == [16, 64, 8]
            assert runs[0].points.equals(load(sweep / "runs")[0].points)
        assert names("memory://study/deep/easy-32x8") == ["easy-32x8"]
        assert names("memory://study/table.csv") == ["a"]
        with pytest.raises(InputError, match=r"memory://study/nowhere: no such file or folder"):
            load("memory://study/nowhere")
    finally:
        memory.rm("/study", recursive=True)


def test_a_law_is_not_runs(tmp_path: Path) -> None:
    compute_C = np.geomspace(1e3, 1e5, 12)
    curve = Curve("a", compute_C, 0.5 - 0.3 / (1 + compute_C / 1e4), 32, 8)
    write_law(fit_law([curve], metric="avg@4", replicates=10), tmp_path / "law.json")
    with pytest.raises(
        InputError, match=r"law\.json: a law, not runs; `isocompute plan --law .*` plans with it\. Name"
    ):
        load(tmp_path / "law.json")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nowhere", r"nowhere: no such file or folder"),
        ("empty", r"empty: no run folders \(with points.jsonl\) in it"),
        ("notes.txt", r"notes.txt: not a run folder and not a table \(.csv, .tsv, .jsonl, .ndjson, .parquet\)"),
        ("odd://bucket/runs", r"odd://bucket/runs: cannot be read \(.*odd"),
        ("broken", r"broken/points.jsonl: cannot be read \("),
    ],
)
def test_addresses_that_do_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty" / "sub").mkdir(parents=True)
    (tmp_path / "broken" / "points.jsonl").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match=message):
        load(address)


def test_no_paths() -> None:
    with pytest.raises(InputError, match="no runs were given; name a run folder"):
        load([])


def test_where_filters_a_study_by_its_settings(sweep: Path, tmp_path: Path) -> None:
    assert names(sweep / "runs", where={"rollouts_per_problem": "64"}) == ["easy-32x64"]
    write_points(tmp_path / "a", rising(4), kl=True)
    write_points(tmp_path / "b", rising(4), kl=False)
    assert names(tmp_path, where={"kl": "true"}) == ["a"]
    write_points(tmp_path / "c", rising(6), recipe={"learning_rate": 1e-6, "loss": "clip"})
    assert names(tmp_path, where={"recipe.learning_rate": "0.000001"}) == ["c"]
    assert names(tmp_path, where={"recipe.loss": "clip"}) == ["c"]
    with pytest.raises(InputError, match=r"'recipe.loss' in run.json is 'clip'"):
        load(tmp_path, where={"recipe.loss": "cispo"})
    with pytest.raises(InputError, match=r"--where model=x leaves no runs of .*; 'model' in run.json is none"):
        load(tmp_path, where={"model": "x"})
    with pytest.raises(InputError, match=r"--where kl=x leaves no runs of .*; 'kl' in run.json is 'false', 'true'"):
        load(tmp_path, where={"kl": "x"})


def test_given_settings_fill_gaps_and_replace_nothing(sweep: Path, tmp_path: Path) -> None:
    write_points(tmp_path / "bare", rising(4), rollouts_per_problem=4)
    (run,) = load(tmp_path, problems_per_batch=16, rollouts_per_problem=999)
    assert (run.settings.problems_per_batch, run.settings.rollouts_per_problem) == (16, 4)
    runs = load(sweep / "runs", problems_per_batch=16)
    assert {run.settings.problems_per_batch for run in runs} == {32}


def test_a_table_without_step_or_compute_is_reported_in_a_folder_too(tmp_path: Path) -> None:
    """In the words that the table by itself gets from a law."""
    (tmp_path / "mixed").mkdir()
    lost, good = tmp_path / "mixed" / "lost.csv", tmp_path / "mixed" / "good.csv"
    lost.write_text("avg@4,loss\n" + "".join(f"{i / 10},{i}\n" for i in range(8)))
    with pytest.raises(InputError) as alone:
        curves_of(load(lost))
    with pytest.raises(InputError, match=re.escape(str(alone.value))):
        load(tmp_path / "mixed")
    good.write_text("step,avg@4\n" + "".join(f"{i},{i / 10}\n" for i in range(8)))
    with pytest.warns(RunWarning, match=re.escape(f"mixed: 1 table left out: {alone.value}")):
        (run,) = load(tmp_path / "mixed")
    assert run.name == "good"


# What a law can read


def run_set(points: list[dict[str, Any]], name: str = "bad", **settings: Any) -> RunSet:
    """A good run and one with these points."""
    good = Run("good", RunSettings(problems_per_batch=32, rollouts_per_problem=8), pl.DataFrame(rising(12)))
    return RunSet((good, Run(name, RunSettings(**settings), pl.DataFrame(points))))


def changed(row: int, **cells: Any) -> list[dict[str, Any]]:
    points = rising(8)
    points[row] |= {key.replace("avg4", "avg@4"): value for key, value in cells.items()}
    return points


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (
            [p | {"avg@4": 0.5} for p in rising(8)],
            r"run 'bad', column 'avg@4': all 8 values are 0.5; a constant has no curve: check the metric or leave the",
        ),
        (changed(4, avg4=float("nan")), r"run 'bad', column 'avg@4': the value in row 5 is nan; delete that row or"),
        (changed(0, avg4=float("inf")), r"run 'bad', column 'avg@4': the value in row 1 is inf; delete that row or"),
        (changed(0, avg4=1e300), r"run 'bad', column 'avg@4': the value in row 1 is 1e\+300"),
        (
            changed(4, rollouts=10),
            r"run 'bad', column 'rollouts': compute goes backwards, from 10240 to 10 in row 5; sort the rows, .*names",
        ),
        (
            changed(4, rollouts=10240),
            r"run 'bad', column 'rollouts': compute stands still at 10240 in row 5; .*one row",
        ),
        (changed(4, rollouts=None), r"run 'bad', column 'rollouts': row 5 is empty, negative or not finite; fix or"),
        (changed(0, rollouts=-1), r"run 'bad', column 'rollouts': row 1 is empty, negative or not finite; fix or"),
        (
            [{"step": i, "rollouts": i, "reward": 0.1 * i} for i in range(1, 9)],
            r"run 'bad', column 'avg@4': it is not there or empty; say --metric with one of 'reward', or leave the run",
        ),
        (
            [{"step": i, "rollouts": i, "avg@4": "0.1" if i < 6 else "n/a"} for i in range(1, 9)],
            r"run 'bad', column 'avg@4': 'n/a' \(row 6\) is not a number; fix the cell or leave it empty",
        ),
        (
            [{"tokens": i, "avg@4": 0.1 * i} for i in range(1, 9)],
            r"mixed units: run 'good' counts compute in rollouts, run 'bad' cannot; add the column 'rollouts', or",
        ),
    ],
)
def test_bad_input_names_run_column_and_fix(points: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        curves_of(run_set(points), metric="avg@4")
    assert "\n" not in str(caught.value)


def test_the_good_run_alone_is_fine() -> None:
    curves, metric, unit = curves_of(RunSet(run_set(rising(8)).runs))
    assert (metric, unit, [curve.name for curve in curves]) == ("avg@4", "rollouts", ["good", "bad"])
    assert curves[0].values_C.tolist() == [point["avg@4"] for point in rising(12)]


def test_points_without_a_value_are_left_out() -> None:
    curves, _, _ = curves_of(run_set(changed(3, avg4=None)), metric="avg@4")
    assert curves[1].compute_C.tolist() == [2560.0 * i for i in (1, 2, 3, 5, 6, 7, 8)]


def test_where_picks_rows_that_a_foreign_table_was_named_by(tmp_path: Path) -> None:
    """Columns that tell runs apart are in their names, and can be asked for."""
    lines = ["set,n,compute_rollouts,reward"]
    lines += [f"{kind},{n},{1000 * i},{0.1 * i}" for kind in ("easy", "hard") for n in (8, 16) for i in range(1, 7)]
    table = tmp_path / "curves.csv"
    table.write_text("\n".join(lines) + "\n")
    assert len(load(table)) == 4
    for address in (table, tmp_path):
        picked = load(address, where={"set": "easy"})
        assert {run.settings.rollouts_per_problem for run in picked} == {8, 16}
        assert all("easy" in run.name for run in picked)


def test_a_decline_is_data() -> None:
    falling = [point | {"avg@4": 1 - point["avg@4"]} for point in rising(8)]
    curves, _, _ = curves_of(run_set(falling), metric="avg@4")
    assert curves[1].values_C[-1] < curves[1].values_C[0]


def test_a_metric_that_is_nowhere(sweep: Path) -> None:
    with pytest.raises(InputError, match=r"runs: no run has a metric 'avg@8'; say --metric NAME with one of 'avg@4'"):
        curves_of(load(sweep / "runs"), metric="avg@8")


@pytest.mark.parametrize(
    ("columns", "chosen"),
    [
        (["loss", "best@4", "avg@4"], "avg@4"),
        (["loss", "value"], "value"),
        (["loss", "val/reward"], "val/reward"),
        (["loss", "reward"], "reward"),
        (["pass_rate"], "pass_rate"),
    ],
)
def test_the_metric_that_is_meant(columns: list[str], chosen: str) -> None:
    points = [{"step": i} | dict.fromkeys(columns, 0.1 * i) for i in range(1, 6)]
    _, metric, unit = curves_of(RunSet((Run("a", RunSettings(), pl.DataFrame(points)),)))
    assert (metric, unit) == (chosen, "steps")


def test_a_choice_of_metrics_is_the_users() -> None:
    points = [{"step": i, "loss": 0.1 * i, "kl": 0.2 * i} for i in range(1, 6)]
    with pytest.raises(InputError, match=r"which metric\? Say --metric NAME with one of 'loss', 'kl'"):
        curves_of(RunSet((Run("a", RunSettings(), pl.DataFrame(points)),)))


@pytest.mark.parametrize("cells", [{}, {"model": "qwen"}])
def test_no_numbers_at_all(cells: dict[str, str]) -> None:
    points = [{"step": i} | cells for i in range(1, 6)]
    with pytest.raises(InputError, match=r"no column holds numbers to fit"):
        curves_of(RunSet((Run("a", RunSettings(), pl.DataFrame(points)),)))


def unit_run(settings: dict[str, int] | None = None, **columns: float) -> RunSet:
    points = [{name: i * by for name, by in columns.items()} | {"avg@4": 0.1 * i} for i in range(1, 6)]
    return RunSet((Run("a", RunSettings(**(settings or {})), pl.DataFrame(points)),))


@pytest.mark.parametrize(
    ("runs", "asked", "unit", "first"),
    [
        (unit_run(step=1, rollouts=100, tokens=1000), None, "rollouts", 100),
        (unit_run(step=1, rollouts=100, tokens=1000), "tokens", "tokens", 1000),
        (unit_run(step=1, rollouts=100), "steps", "steps", 1),
        (unit_run({"problems_per_batch": 32, "rollouts_per_problem": 8}, step=2), None, "rollouts", 512),
        (unit_run({"gpus": 8}, seconds=900), None, "gpu_hours", 2),
        (unit_run(step=3, tokens=7), None, "tokens", 7),
        (unit_run(step=3), None, "steps", 3),
    ],
)
def test_units_of_compute(runs: RunSet, asked: str | None, unit: str, first: float) -> None:
    (curve,), _, chosen = curves_of(runs, unit=asked)
    assert (chosen, curve.compute_C[0]) == (unit, first)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("hours", r"--unit hours: a unit is one of rollouts, tokens, gpu_hours, steps"),
        ("tokens", r"no run counts compute in tokens; add the column 'tokens', or use --unit rollouts"),
        ("gpu_hours", r"no run counts compute in gpu_hours; add the column 'gpu_hours', or 'seconds' with gpus in"),
    ],
)
def test_units_that_are_not_there(asked: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        curves_of(unit_run(step=1, rollouts=100), unit=asked)


def test_text_where_compute_should_be() -> None:
    points = [{"rollouts": "1k" if i == 3 else str(i), "avg@4": 0.1 * i} for i in range(1, 6)]
    with pytest.raises(InputError, match=r"run 'a', column 'rollouts': '1k' \(row 3\) is not a number; fix the cell"):
        curves_of(RunSet((Run("a", RunSettings(), pl.DataFrame(points)),)))


def test_mixed_units_in_one_table(tmp_path: Path) -> None:
    """Both columns are there, each run fills one."""
    rows = [f"a,{i},,{i / 10}" for i in range(1, 6)] + [f"b,,{i},{i / 10}" for i in range(1, 6)]
    path = tmp_path / "table.csv"
    path.write_text("run,rollouts,tokens,avg@4\n" + "\n".join(rows) + "\n")
    with pytest.raises(InputError, match=r"mixed units: run 'a' counts compute in rollouts, run 'b' cannot; add the"):
        curves_of(load(path))


@pytest.mark.parametrize("path", ["", " "])
def test_no_path_is_not_the_working_folder(path: str) -> None:
    with pytest.raises(InputError, match="an empty path was given"):
        load(path)


def test_a_folder_without_files(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"no run folders \(with points.jsonl\) in it; .*: no file that could be a log\.$"
    ):
        load(tmp_path)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_set_of_problems_is_no_run(tmp_path: Path, suffix: str) -> None:
    table = pl.DataFrame({"question": ["1 + 1?", "2 + 2?"], "answer": ["2", "4"], "level": [1, 2]})
    path = tmp_path / f"problems.{suffix}"
    table.write_csv(path) if suffix == "csv" else table.write_parquet(path)
    with pytest.raises(InputError, match=r"this is a set of problems .*; isocompute split reads those"):
        load(path)


def test_a_value_that_is_not_a_path_is_refused_with_a_hint() -> None:
    table = pl.DataFrame({"run": ["a"], "step": [1], "avg@4": [0.5]})
    run = Run("a", RunSettings(), table)
    frame = 'as DataFrame: write the table to a file, such as frame.write_parquet("runs.parquet"), and name that.'
    rows = 'as dict: write the table to a file, such as polars.DataFrame(rows).write_parquet("runs.parquet")'
    cases: list[tuple[Any, str]] = [
        (table, frame),
        ([table], frame),
        (table.lazy(), "as LazyFrame: write the table to a file, such as frame.collect().write_parquet("),
        (table.to_dicts(), rows),
        (table.to_dict(as_series=False), rows),
        (run, "as Run: loaded runs are given as a RunSet, such as isocompute.RunSet((run,))."),
        (RunSet((run,)), "as RunSet: loaded runs"),
        ([run], "as Run: loaded runs"),
        (3, "as int: give text or a Path, or a list of those."),
        (["a", None], "as NoneType: give text or a Path, or a list of those."),
        (b"runs", "as int: give text"),
    ]
    for given, words in cases:
        with pytest.raises(InputError, match=re.escape(f"runs are named by their paths, not given {words}")):
            load(given)


def test_a_pandas_table_is_refused_with_a_hint() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"run": ["a"], "step": [1], "avg@4": [0.5]})
    with pytest.raises(
        InputError, match=re.escape('write the table to a file, such as frame.to_csv("runs.csv", index=False)')
    ):
        load(table)


def test_paths_in_any_iterable_are_taken(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_points(tmp_path / name, rising(5))
    paths = [str(tmp_path / "a"), tmp_path / "b"]
    given: list[Any] = [paths, tuple(paths), iter(paths), dict.fromkeys(paths).keys(), pl.Series(map(str, paths))]
    for each in given:
        assert [run.name for run in load(each)] == ["a", "b"]
