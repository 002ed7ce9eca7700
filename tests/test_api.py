"""The package from Python: the same answers as the command line, and nothing heavy before it is asked for."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import isocompute
from isocompute import InputError, api
from isocompute.cli.forecast import backtest_json
from isocompute.cli.main import app
from tests.conftest import rising, write_points


def printed(*args: str) -> Any:
    """What the command prints with --json."""
    result = CliRunner().invoke(app, [*args, "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.output)


def as_json(data: dict[str, Any]) -> Any:
    return json.loads(json.dumps(data))


@pytest.mark.usefixtures("in_sweep")
def test_fit_is_the_command() -> None:
    law = isocompute.fit("runs", metric="best@4", unit="steps", points="records", replicates=60, seed=3, bin_width=0.01)
    options = "--metric best@4 --unit steps --points records --replicates 60 --seed 3 --bin 0.01"
    assert as_json(law.to_json()) == printed("fit", "runs", *options.split())
    assert (law.metric, law.unit, law.points, law.replicates) == ("best@4", "steps", "records", 60)


@pytest.mark.usefixtures("in_sweep")
def test_forecast_is_the_command() -> None:
    made = isocompute.forecast("runs/easy-32x64", to=4e6, fit_until=0.5, metric="avg@4", level=0.5)
    options = "--to 4e6 --fit-until 0.5 --metric avg@4 --level 0.5"
    assert as_json(made.to_json()) == printed("forecast", "runs/easy-32x64", *options.split())
    assert (made.at, made.level) == (4e6, 0.5)


@pytest.mark.usefixtures("in_sweep")
def test_backtest_is_the_command() -> None:
    assert as_json(backtest_json(*isocompute.backtest("runs"))) == printed("forecast", "--backtest", "runs")


@pytest.mark.usefixtures("in_sweep")
def test_compare_is_the_command() -> None:
    result = isocompute.compare("runs/easy-32x8", "runs/easy-32x16", replicates=60, seed=1)
    options = "--replicates 60 --seed 1"
    assert as_json(result.to_json()) == printed("compare", "runs/easy-32x8", "runs/easy-32x16", *options.split())


def test_every_kind_of_source_is_the_same(in_sweep: Path) -> None:
    runs = isocompute.load("runs")
    sources = ["runs", in_sweep / "runs", [f"runs/{run.name}" for run in runs], runs]
    laws = [isocompute.fit(source, replicates=50).to_json() for source in sources]
    assert all(law == laws[0] for law in laws)


def test_runs_made_in_memory() -> None:
    import polars as pl

    settings = isocompute.RunSettings(problems_per_batch=16, rollouts_per_problem=4)
    run = isocompute.Run("mine", settings, pl.DataFrame(rising(12)))
    law = isocompute.fit(isocompute.RunSet((run,)), replicates=50)
    assert [(c.curve.name, c.curve.setting) for c in law.runs] == [("mine", (16, 4))]


@pytest.mark.usefixtures("in_sweep")
def test_runs_that_are_loaded_are_taken_singly_and_in_lists() -> None:
    runs = isocompute.load("runs")
    one = runs["easy-32x8"]
    assert isocompute.forecast(one) == isocompute.forecast("runs/easy-32x8")
    assert list(isocompute.forecast_all(runs[:2])[0]) == list(isocompute.forecast_all([*runs[:2]])[0])
    assert [health.run for health in isocompute.check_health(one)] == ["easy-32x8"]
    assert [health.run for health in isocompute.check_health(runs[:2])] == [run.name for run in runs[:2]]
    assert [test.run for test in isocompute.backtest(one)[0]] == ["easy-32x8"]
    sides = (
        isocompute.compare(one, runs["easy-32x64"], replicates=50),
        isocompute.compare("runs/easy-32x8", "runs/easy-32x64", replicates=50),
    )
    assert as_json(sides[0].to_json()) == as_json(sides[1].to_json())
    with pytest.raises(InputError, match=r"^easy-32x8: no run has a metric 'nothing'"):
        isocompute.forecast(one, metric="nothing")


def test_tables_in_memory_are_refused_by_every_function_that_takes_runs() -> None:
    import polars as pl

    table = pl.DataFrame(rising(12))
    asks: list[Callable[[Any], Any]] = [
        isocompute.load,
        isocompute.fit,
        isocompute.forecast,
        isocompute.forecast_all,
        isocompute.backtest,
        isocompute.check_health,
        isocompute.judge_claims,
        lambda given: isocompute.compare(given, given),
        lambda given: isocompute.plan(budget=1e6, law=given),
    ]
    for ask in asks:
        for given in (table, table.lazy()):
            with pytest.raises(InputError, match="Frame: write the table to a file, such as frame"):
                ask(given)


@pytest.mark.usefixtures("in_sweep")
def test_a_plan_says_what_a_law_is() -> None:
    (run,) = isocompute.load("runs/easy-32x8")
    cases: list[tuple[Any, str]] = [
        (run, "not as Run: loaded runs are given as a RunSet"),
        (["runs/easy-32x8", "runs/easy-32x64"], r"not as list: isocompute.load reads runs\."),
    ]
    for given, words in cases:
        with pytest.raises(InputError, match=f"a law is given as a name, a path, a Law or a RunSet, {words}"):
            isocompute.plan(budget=1e6, law=given)


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, float("nan")])
def test_a_level_is_a_share(sweep: Path, level: float) -> None:
    for ask in (isocompute.forecast, isocompute.backtest):
        with pytest.raises(InputError, match=r"level = .*: give the share that the interval is to hold, such as 0.8"):
            ask(sweep / "runs" / "easy-32x8", level=level)


def test_a_wider_level_is_a_wider_interval(sweep: Path) -> None:
    low, high = (isocompute.forecast(sweep / "runs" / "easy-32x8", level=level).interval for level in (0.5, 0.9))
    assert high[0] < low[0] < low[1] < high[1]


def test_a_run_too_many(sweep: Path, tmp_path: Path) -> None:
    write_points(tmp_path / "broken", [{"step": 1}])
    with pytest.raises(InputError, match="forecast takes one run, these are 4: name one as PATH::NAME"):
        isocompute.forecast([sweep / "runs", tmp_path])


def test_input_errors_are_value_errors() -> None:
    with pytest.raises(ValueError, match="no such file or folder"):
        isocompute.load("nowhere")


@pytest.mark.usefixtures("in_sweep")
def test_docstring_examples() -> None:
    result = doctest.testmod(api)
    assert result.attempted >= 5
    assert result.failed == 0


@pytest.mark.usefixtures("in_sweep")
def test_the_package_docstring_runs() -> None:
    lines = (isocompute.__doc__ or "").splitlines()
    code = textwrap.dedent("\n".join(line for line in lines if line.startswith("    ")))
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["law"].metric == "avg@4"


def test_every_public_name_is_there() -> None:
    for name in isocompute.__all__:
        assert getattr(isocompute, name) is not None
    with pytest.raises(AttributeError, match="module 'isocompute' has no attribute 'nothing'"):
        _ = isocompute.nothing


def test_an_interpreter_lists_the_public_names_before_their_first_use() -> None:
    script = "import isocompute; print(*dir(isocompute))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {*isocompute.__all__, "health", "study", "__doc__"} <= set(done.stdout.split())


@pytest.mark.usefixtures("in_sweep")
def test_what_a_notebook_shows_of_a_result_is_a_few_lines() -> None:
    law = isocompute.fit("runs", replicates=60)
    assert repr(law).startswith("Law(avg@4 over rollouts; 3 runs, 3 settings; n* ")
    plan = isocompute.plan(budget=2e6, law="isocompute/bp32-easy")
    assert repr(plan).startswith("Plan(32 problems × 256 rollouts × 244 updates = 2M rollouts; expect avg@4 .633 (")
    comparison = isocompute.compare("runs/easy-32x8", "runs/easy-32x64", replicates=60)
    assert "higher: b" in repr(comparison)
    assert repr(law.settings[0]).startswith("CurveFit(easy-32x8: ")
    assert repr(law.settings[0].posterior) == "Posterior(3 configurations, 60 samples)"
    forecast = isocompute.forecast("runs/easy-32x8")
    shown = [law, plan, comparison, law.runs[0], law.settings[0], law.settings[0].posterior, law.joint, forecast]
    assert {type(each).__name__: len(repr(each)) for each in shown if len(repr(each)) > 700} == {}


def test_importing_the_package_imports_nothing_heavy() -> None:
    script = "import sys, isocompute; print(*sorted({m.split('.')[0] for m in sys.modules} - sys.stdlib_module_names))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "isocompute" in loaded
    assert not loaded & {"numpy", "polars", "scipy", "altair", "pydantic", "typer", "rich", "torch"}


def test_parts_of_the_package_load_on_first_use() -> None:
    """As the docs write them, in an interpreter that has imported nothing else."""
    names = "isocompute.study.run, isocompute.health.check, isocompute.metrics.avg_at_k, isocompute.data.load"
    subprocess.run([sys.executable, "-c", f"import isocompute; {names}"], check=True)
    assert not hasattr(isocompute, "nothing")


@pytest.mark.usefixtures("in_sweep")
def test_too_few_replicates_are_refused() -> None:
    for call in (
        lambda few: isocompute.fit("runs", replicates=few),
        lambda few: isocompute.compare("runs/easy-32x8", "runs/easy-32x64", replicates=few),
        lambda few: isocompute.plan(budget=3e4, law="runs", replicates=few),
        lambda few: isocompute.backtest_plans("runs", replicates=few),
    ):
        for few in (-1, 0, 19):
            with pytest.raises(InputError, match=f"^replicates = {few}: intervals need at least 20"):
                call(few)


def test_plan_is_one_thing_and_shows_its_options() -> None:
    """Before and after the planner's modules are imported."""
    script = (
        "import inspect, isocompute; before = isocompute.plan; import isocompute.planner.decide; "
        "assert isocompute.plan is before; assert {'budget', 'law'} <= set(inspect.signature(before).parameters)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    with pytest.raises(TypeError, match=r"plan\(\) takes 0 positional arguments"):
        isocompute.plan("2e6", "isocompute/bp32-easy")  # type: ignore[misc]  # as a user may try
