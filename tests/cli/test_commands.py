"""Every command from its arguments to what it prints, writes and returns."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from isocompute import __version__
from isocompute.cli import quickstart
from isocompute.cli.main import main
from isocompute.law import read_law
from tests.conftest import CEILINGS, rising, write_points

QUICK = ("--replicates", "50")
RUNS = ("easy-32x16", "easy-32x64", "easy-32x8")
INTERVALS = re.compile(r"interval$")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on standard output; NaN and infinity are not JSON."""
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} in the output"))


Call = Callable[..., Result]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """The command line as its entry point runs it, without the cost of a new process."""

    def call(*args: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["isocompute", *map(str, args)])
        code: object = 0
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            try:
                main()
            except SystemExit as stop:
                code = stop.code or 0
        captured = capsys.readouterr()
        assert isinstance(code, int)
        return Result(code, captured.out, captured.err)

    return call


def fails(result: Result, message: str) -> None:
    """One line on standard error and code 2; nothing on standard output."""
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert re.search(message, result.err), result.err


def check_intervals(value: Any) -> None:
    """Wherever there is an interval, it is a pair in order."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if INTERVALS.search(key) and inner is not None:
                low, high = inner
                assert low <= high, key
            check_intervals(inner)
    elif isinstance(value, list):
        for inner in value:
            check_intervals(inner)


# fit


def test_fit_json(call: Call, sweep: Path) -> None:
    law = call("fit", sweep / "runs", *QUICK, "--json").json
    assert (law["metric"], law["unit"]) == ("avg@4", "rollouts")
    assert {curve["run"] for curve in law["curves"]} == set(RUNS)
    for curve in law["curves"]:
        wanted = {"run", "problems_per_batch", "rollouts_per_problem", "form", "asymptote", "asymptote_interval"}
        assert curve.keys() >= wanted | {"rmse", "records"}
        n = curve["rollouts_per_problem"]
        assert (curve["run"], curve["problems_per_batch"]) == (f"easy-32x{n}", 32)
        assert curve["form"] in ("hill", "exponential", "power")
        assert curve["asymptote"] == pytest.approx(CEILINGS[n], abs=0.03)
        assert curve["rmse"] == pytest.approx(0.004, abs=0.002)
        assert 4 <= curve["records"] <= 30
    for point in law["frontier"]:
        assert point.keys() >= {"compute", "rollouts_per_problem", "problems_per_batch", "value"}
        assert point["rollouts_per_problem"] in CEILINGS
    values = [point["value"] for point in law["frontier"]]
    assert values == sorted(values)
    assert values[-1] > 0.6
    assert law["frontier"][-1]["rollouts_per_problem"] == 64
    last = law["switches"][-1]
    assert last.keys() >= {"compute", "from", "to", "value"}
    assert last["to"] == 64
    assert last["from"] in (8, 16)
    wanted = {"L", "k", "log10_C0", "b", "floor", "ceiling", "ceiling_interval", "saturates"}
    assert law["optimal_rollouts"].keys() >= wanted
    assert law["optimal_rollouts"]["floor"] < law["optimal_rollouts"]["ceiling"]
    for best in law["best"]:
        assert set(best["probability"]) <= {"8", "16", "64"}
        assert sum(best["probability"].values()) == pytest.approx(1.0)
    assert law["best"][-1]["probability"]["64"] > 0.9
    check_intervals(law)


def test_fit_on_a_terminal(call: Call, sweep: Path) -> None:
    result = call("fit", sweep / "runs", *QUICK)
    assert result.code == 0
    assert result.err == ""
    assert re.match(r"n\* rises from .* rollouts;", result.out)
    for run in RUNS:
        assert re.search(rf"^{run} +32 +\d+ +\w+ \(\d+%\) +\.\d{{3}}", result.out, re.MULTILINE)


def test_fit_another_metric_and_its_records(call: Call, sweep: Path) -> None:
    average = call("fit", sweep / "runs", *QUICK, "--json").json
    best = call("fit", sweep / "runs", *QUICK, "--metric", "best@4", "--points", "records", "--json").json
    assert (best["metric"], best["points"]) == ("best@4", "records")
    for a, b in zip(average["curves"], best["curves"], strict=True):
        assert b["asymptote"] == pytest.approx(a["asymptote"] + 0.1, abs=0.06)
        assert b["records"] < a["records"]


def test_fit_writes_the_law(call: Call, sweep: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "law.json"
    printed = call("fit", sweep / "runs", *QUICK, "--out", path, "--json").json
    stored = read_law(path)
    assert {key: stored.summary[key] for key in printed if key != "surface"} == {
        key: value for key, value in printed.items() if key != "surface"
    }
    assert [fit.setting for fit in stored.settings] == [(32, 8), (32, 16), (32, 64)]
    assert sorted(p.name for p in path.parent.iterdir()) == ["law.json"]


def test_fit_is_repeatable_and_its_seed_counts(call: Call, sweep: Path) -> None:
    first, again, other = (call("fit", sweep / "runs", *QUICK, "--json", "--seed", s).json for s in (1, 1, 2))
    assert first == again
    assert first["curves"][0]["asymptote"] == other["curves"][0]["asymptote"]
    assert first["curves"][0]["asymptote_interval"] != other["curves"][0]["asymptote_interval"]


def test_fit_a_foreign_table(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    rows = [
        f"{kind},{n},{p['rollouts']},{p['avg@4']}"
        for kind, n, ceiling in (("easy", 8, 0.6), ("easy", 16, 0.7), ("hard", 8, 0.4))
        for p in rising(12, ceiling)
    ]
    path.write_text("set,n,C,val_reward\n" + "\n".join(rows) + "\n")
    columns = "value=val_reward,rollouts=C,rollouts_per_problem=n"
    args = ("fit", path, "--columns", columns, "--where", "set=easy", "--problems-per-batch", "32", *QUICK, "--json")
    law = call(*args).json
    assert law["metric"] == "val_reward"
    found = [(c["run"], c["problems_per_batch"], c["rollouts_per_problem"]) for c in law["curves"]]
    assert found == [("n=8", 32, 8), ("n=16", 32, 16)]
    assert law["curves"][1]["asymptote"] > law["curves"][0]["asymptote"] > 0.5


def test_one_run_without_settings_has_curves_and_no_optimum(call: Call, tmp_path: Path) -> None:
    write_points(tmp_path / "solo", rising(12))
    law = call("fit", tmp_path, *QUICK, "--json").json
    assert law["optimal_rollouts"] is None
    assert [curve["run"] for curve in law["curves"]] == ["solo"]
    text = call("fit", tmp_path, *QUICK).out
    assert "no n*(C)" in text


# forecast


def test_forecast_json(call: Call, sweep: Path) -> None:
    run = sweep / "runs" / "easy-32x8"
    made = call("forecast", run, "--to", "3x", "--fit-until", "0.5", "--level", "0.9", "--json").json
    wanted = {"at", "value", "interval", "level", "verdict", "asymptote", "weights", "fitted_points"}
    assert made.keys() >= wanted
    points = [json.loads(line) for line in (run / "points.jsonl").read_text().splitlines()]
    half = [p["rollouts"] for p in points if p["rollouts"] <= 0.5 * points[-1]["rollouts"]]
    assert made["fitted_points"] == len(half) < len(points)
    assert made["at"] == pytest.approx(3 * half[-1])
    assert made["level"] == 0.9
    assert made["interval"][0] < made["value"] < made["interval"][1]
    assert made["value"] == pytest.approx(CEILINGS[8], abs=0.03)
    assert made["asymptote"] == pytest.approx(CEILINGS[8], abs=0.05)
    assert sum(made["weights"].values()) == pytest.approx(1.0)
    assert made["verdict"] in ("improving", "flat", "declining", "too_early")


def test_forecast_to_a_compute_until_a_compute(call: Call, sweep: Path) -> None:
    made = call("forecast", sweep / "runs" / "easy-32x8", "--to", "5e6", "--fit-until", "400000", "--json").json
    assert made["at"] == 5e6
    assert made["fitted_until"] <= 400_000


@pytest.mark.parametrize(
    ("shape", "verdict"),
    [(lambda i: 0.2 + 0.02 * i, "improving"), (lambda i: 0.6 - 0.02 * max(i - 6, 0), "declining")],
)
def test_forecast_verdicts(call: Call, tmp_path: Path, shape: Callable[[int], float], verdict: str) -> None:
    points = [{"step": i, "avg@4": shape(i) + 0.002 * (-1) ** i} for i in range(1, 21)]
    made = call("forecast", write_points(tmp_path / "run", points), "--json").json
    assert made["verdict"] == verdict
    assert made["at"] == 40


def test_forecast_on_a_terminal(call: Call, sweep: Path) -> None:
    result = call("forecast", f"{sweep / 'runs'}::easy-32x64", "--fit-until", "0.3")
    assert (result.code, result.err) == (0, "")
    assert re.match(
        r"(improving|flat|too_early): avg@4 \.\d{3} at \d[\d.]*[kM] rollouts \(80%: \.\d{3}–\.\d{3}\)", result.out
    )


def test_backtest_json(call: Call, sweep: Path, tmp_path: Path) -> None:
    write_points(tmp_path / "short", rising(6))
    write_points(tmp_path / "flat", [p | {"avg@4": 0.5} for p in rising(20)])
    data = call("forecast", "--backtest", sweep / "runs", tmp_path, "--json").json
    assert [run["run"] for run in data["runs"]] == list(RUNS)
    assert data["skipped"] == ["flat", "short"]
    for run in data["runs"]:
        assert run.keys() >= {"run", "error", "last_three_error", "hill_error", "covered"}
        assert run["error"] == pytest.approx(abs(run["forecast"] - run["target"]))
        assert run["covered"] == (run["interval"][0] <= run["target"] <= run["interval"][1])
    for baseline in ("", "last_three_", "hill_"):
        errors = sorted(run[f"{baseline}error"] for run in data["runs"])
        assert data[f"{baseline}median_error"] == pytest.approx(errors[1])
        assert data[f"{baseline}mean_error"] == pytest.approx(sum(errors) / 3)
    assert data["coverage"] == pytest.approx(sum(run["covered"] for run in data["runs"]) / 3)
    assert data["median_error"] < data["last_three_median_error"]


def test_backtest_on_a_terminal(call: Call, sweep: Path, tmp_path: Path) -> None:
    write_points(tmp_path / "short", rising(6))
    result = call("forecast", "--backtest", sweep / "runs", tmp_path)
    assert (result.code, result.err) == (0, "")
    assert re.search(r"80% intervals hold \d+% of 3 runs", result.out)
    assert "too short and skipped: short" in result.out


# compare


def test_compare_json(call: Call, sweep: Path) -> None:
    runs = sweep / "runs"
    data = call("compare", runs / "easy-32x8", runs / "easy-32x64", *QUICK, "--json").json
    assert (data["a"]["runs"], data["b"]["runs"]) == (["easy-32x8"], ["easy-32x64"])
    assert data["difference"] == pytest.approx(data["a"]["asymptote"] - data["b"]["asymptote"])
    assert data["difference"] == pytest.approx(CEILINGS[8] - CEILINGS[64], abs=0.03)
    assert data["interval"][1] - data["interval"][0] >= 0.0399  # one seed: ScaleRL's ±.02 at least
    assert data["interval"][1] < 0
    assert data["higher"] == "b"
    assert data["overtakes"][-1]["winner"] == "b"
    check_intervals(data)


def test_compare_speed(call: Call, tmp_path: Path) -> None:
    """The same curve at twice the price."""
    cheap, dear = (write_points(tmp_path / str(every), rising(20, every=every)) for every in (1000, 2000))
    data = call("compare", cheap, dear, *QUICK, "--json").json
    assert data["speed_ratio"] == pytest.approx(2.0, rel=1e-3)
    assert data["efficiency_ratio"] == pytest.approx(1.0, rel=1e-3)
    assert data["difference"] == pytest.approx(0.0, abs=1e-4)
    assert (data["higher"], data["faster"]) == ("same", "a")


def test_compare_turned_round(call: Call, sweep: Path) -> None:
    a, b = sweep / "runs" / "easy-32x8", sweep / "runs" / "easy-32x64"
    one, other = call("compare", a, b, *QUICK, "--json").json, call("compare", b, a, *QUICK, "--json").json
    assert one["difference"] == pytest.approx(-other["difference"], abs=1e-6)
    assert (one["higher"], other["higher"]) == ("b", "a")
    assert one["speed_ratio"] == pytest.approx(1 / other["speed_ratio"], rel=1e-3)


def test_compare_pools_seeds(call: Call, tmp_path: Path) -> None:
    for side, ceiling in (("a", 0.6), ("b", 0.7)):
        for seed in (0, 1, 2):
            write_points(tmp_path / side / f"seed{seed}", rising(14 + seed, ceiling), seed=seed)
    data = call("compare", tmp_path / "a", tmp_path / "b", *QUICK, "--json").json
    assert len(data["a"]["runs"]) == len(data["b"]["runs"]) == 3
    assert (data["error_rule"], data["higher"]) == ("bootstrap", "b")


def test_compare_on_a_terminal_tells_equal_names_apart(call: Call, sweep: Path, tmp_path: Path) -> None:
    other = write_points(tmp_path / "easy-32x8", rising(20, 0.8))
    result = call("compare", sweep / "runs" / "easy-32x8", other, *QUICK)
    assert (result.code, result.err) == (0, "")
    assert "easy-32x8 (second) has the higher ceiling" in result.out
    assert "easy-32x8 (first)" in result.out


# charts

MAGIC = {".html": b"<!DOCTYPE html>", ".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<svg", ".pdf": b"%PDF-"}


class Page(HTMLParser):
    """The elements of a page and what they would make a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "data")]


@pytest.mark.parametrize("suffix", list(MAGIC))
@pytest.mark.parametrize("command", ["fit", "forecast", "compare"])
def test_charts(call: Call, sweep: Path, tmp_path: Path, command: str, suffix: str) -> None:
    runs = sweep / "runs"
    args = {
        "fit": (runs, *QUICK),
        "forecast": (runs / "easy-32x8", "--fit-until", "0.5"),
        "compare": (runs / "easy-32x8", runs / "easy-32x64", *QUICK),
    }[command]
    path = tmp_path / "charts" / f"chart{suffix.upper() if command == 'fit' else suffix}"
    result = call(command, *args, "--chart", path)
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith(f"wrote {path}\n")
    data = path.read_bytes()
    assert data.startswith(MAGIC[suffix])
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    if suffix == ".html":
        page = Page()
        page.feed(data.decode())
        assert "script" in page.tags
        assert page.fetched == []
        assert not re.search(rb"@import|\bimport\b[^;\n]{0,80}[\"']https?:", data)
        assert b"avg@4" in data


def test_a_chart_with_json_prints_json_only(call: Call, sweep: Path, tmp_path: Path) -> None:
    path = tmp_path / "chart.svg"
    made = call("forecast", sweep / "runs" / "easy-32x8", "--chart", path, "--json").json
    assert f"{made['value']:.3f}" in path.read_text()


# quickstart


def test_quickstart(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a corner of its grid and a small part of its budget."""
    grid = "problems_per_batch = [32, 64]\nrollouts_per_problem = [8, 32, 128]\n"
    spec = re.sub(r"problems_per_batch = .*\nrollouts_per_problem = .*\n", grid, quickstart._SPEC)
    assert grid in spec
    monkeypatch.setattr(quickstart, "_SPEC", spec)
    result = call("quickstart", "--out", tmp_path / "q", "--budget", "1000000", "--workers", "2")
    assert (result.code, result.err) == (0, "")
    assert re.search(r"^A plan for 500k rollouts$", result.out, re.MULTILINE)
    for name in ("easy", "hard"):
        law = read_law(tmp_path / "q" / name / "law.json")
        assert law.summary["metric"] == "exact/avg@4"
        assert {fit.setting for fit in law.settings} == {(bp, n) for bp in (32, 64) for n in (8, 32, 128)}
        assert (tmp_path / "q" / name / "law.png").read_bytes().startswith(MAGIC[".png"])
        assert re.search(rf"^ {name}: \d+ problems × \d+ rollouts × \d+ updates, expect", result.out, re.MULTILINE)
    # Again: everything is there already, and the JSON says what the text said.
    data = call("quickstart", "--out", tmp_path / "q", "--budget", "1000000", "--workers", "2", "--json").json
    assert len(data["laws"]) == 6
    for plan in data["plans"]:
        size = plan["problems_per_batch"] * plan["rollouts_per_problem"]
        assert plan["compute"] == size * plan["update_steps"] <= 500_000 < plan["compute"] + size
        assert f"{plan['set']}: {plan['problems_per_batch']} problems × {plan['rollouts_per_problem']}" in result.out
    for rule in data["rules"]:
        assert rule["rule"] in result.out


# wrong input

BAD_POINTS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "few": (rising(3), r"run 'bad', column 'avg@4': 3 of 3 points have a value, a fit needs 4; evaluate more often"),
    "constant": ([p | {"avg@4": 0.5} for p in rising(9)], r"run 'bad', column 'avg@4': all 9 values are 0.5; .*leave"),
    "backwards": (
        [p | {"rollouts": 10**6 - p["rollouts"]} for p in rising(9)],
        r"run 'bad', column 'rollouts': compute goes backwards, from 997440 to 994880 in row 2; sort the rows",
    ),
    "other": (
        [{"step": p["step"], "rollouts": p["rollouts"], "loss": p["avg@4"]} for p in rising(9)],
        r"no run has a metric 'avg@4'; say --metric NAME with one of 'loss'",
    ),
    "text": (
        [p | {"avg@4": "n/a" if p["step"] == 20 else str(p["avg@4"])} for p in rising(9)],
        r"run 'bad', column 'avg@4': 'n/a' \(row 2\) is not a number; mend the cell or leave it empty",
    ),
}


@pytest.mark.parametrize("command", ["fit", "forecast", "compare"])
@pytest.mark.parametrize("kind", list(BAD_POINTS))
def test_bad_runs(call: Call, sweep: Path, tmp_path: Path, command: str, kind: str) -> None:
    points, message = BAD_POINTS[kind]
    bad = write_points(tmp_path / "bad", points)
    good = (sweep / "runs" / "easy-32x8",) if command == "compare" else ()
    before = sorted(tmp_path.rglob("*"))
    out = ("--out", tmp_path / "law.json") if command == "fit" else ()
    result = call(command, bad, *good, *out, "--metric", "avg@4", "--chart", tmp_path / "chart.png", "--json")
    fails(result, message)
    assert sorted(tmp_path.rglob("*")) == before


def test_nan_in_a_table(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("run,step,avg@4\n" + "".join(f"a,{i},{'nan' if i == 3 else i / 10}\n" for i in range(1, 9)))
    fails(call("fit", path), r"run 'a', column 'avg@4': the value in row 3 is nan; delete that row or empty the cell")


def test_mixed_units(call: Call, sweep: Path, tmp_path: Path) -> None:
    write_points(tmp_path / "tokens-only", [{"tokens": i, "avg@4": i / 10} for i in range(1, 9)])
    message = r"mixed units: run 'easy-32x16' counts compute in rollouts, run 'tokens-only' cannot; add the column"
    fails(call("fit", sweep / "runs", tmp_path), message)
    result = call("compare", sweep / "runs" / "easy-32x8", tmp_path / "tokens-only")
    fails(result, r"easy-32x8 counts compute in rollouts, .*tokens-only in tokens; say --unit")


def test_two_different_runs_with_one_name(call: Call, sweep: Path, tmp_path: Path) -> None:
    write_points(tmp_path / "easy-32x8", rising(9))
    fails(call("fit", sweep / "runs", tmp_path), r"two different runs are named 'easy-32x8'; rename one")


def test_compare_needs_one_metric(call: Call, sweep: Path, tmp_path: Path) -> None:
    other = write_points(tmp_path / "x", [{"rollouts": i, "reward": i / 10} for i in range(1, 9)])
    fails(call("compare", sweep / "runs" / "easy-32x8", other), r"has 'avg@4', .*x 'reward'; say --metric")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("fit", "nowhere"), r"nowhere: no such file or folder"),
        (("fit", "s3n://bucket/x"), r"s3n://bucket/x: cannot be read \("),
        (("fit", "runs", "--chart", "chart.gif"), r"--chart chart.gif: the ending must be one of .html, .png, .svg,"),
        (("fit", "runs", "--out", "law.json", "--chart", "chart.gif"), r"--chart chart.gif: the ending must be one of"),
        (("fit", "runs", "--chart", "chart"), r"--chart chart: the ending must be one of"),
        (("fit", "runs", "--points", "some"), r"--points some: it is 'all' or 'records'"),
        (("fit", "runs", "--bin", "0"), r"the reward bin is 0; it must be above 0"),
        (("fit", "runs", "--points", "records", "--bin", "1"), r"run 'easy-32x16', column 'avg@4': 1 record.* --bin"),
        (("fit", "runs", "--unit", "hours"), r"--unit hours: a unit is one of rollouts, tokens, gpu_hours, steps"),
        (("fit", "runs", "--metric", "avg@8"), r"runs: no run has a metric 'avg@8'; say --metric NAME with one of"),
        (("fit", "runs", "--columns", "value"), r"--columns value: give NAME=VALUE pairs, such as --columns value=rew"),
        (("fit", "runs", "--where", "seed=7"), r"--where seed=7 leaves no runs of runs; 'seed' in run.json is '0'"),
        (("forecast", "runs"), r"forecast takes one run, these are 3: name one as PATH::NAME, of 'easy-32x16', "),
        (("forecast", "runs::nope"), r"runs: there is no run 'nope'; there are 'easy-32x16', "),
        (("forecast", "runs/easy-32x8", "--to", "later"), r"--to later: give a factor such as 2x or a compute such as"),
        (("forecast", "runs/easy-32x8", "--to", "inf"), r"--to inf: give a factor such as 2x or a compute such as"),
        (("forecast", "runs/easy-32x8", "--to", "1x"), r"run 'easy-32x8': .* is not beyond its last point at"),
        (("forecast", "runs/easy-32x8", "--fit-until", "0"), r"--fit-until 0: give a share of the run such as 0.5"),
        (("forecast", "runs/easy-32x8", "--fit-until", "0.001"), r"run 'easy-32x8': 0 points up to --fit-until 0.001"),
        (("forecast", "runs", "--backtest", "--chart", "x.png"), r"--chart draws one forecast; leave it out"),
        (("compare", "runs/easy-32x8", "nowhere"), r"nowhere: no such file or folder"),
        (("compare", "runs/easy-32x8", "runs/easy-32x8", "--chart", "x.bmp"), r"--chart x.bmp: the ending must be"),
        (("quickstart", "--out", "file"), r"--out file: there is a file of that name; give another folder"),
    ],
)  # fmt: skip
def test_wrong_arguments(
    call: Call, sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], message: str
) -> None:
    (tmp_path / "runs").symlink_to(sweep / "runs")
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    fails(call(*args), message)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "runs"]


def test_a_backtest_needs_long_runs(call: Call, tmp_path: Path) -> None:
    write_points(tmp_path / "short", rising(14))
    fails(call("forecast", "--backtest", tmp_path), r"no run has 15 values of 'avg@4'.*a backtest needs that many")


@pytest.mark.parametrize("target", ["--out", "--chart"])
def test_a_place_that_cannot_be_written(call: Call, sweep: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "taken").write_text("")
    path = tmp_path / "taken" / "file.svg"
    fails(call("fit", sweep / "runs", *QUICK, target, path, "--json"), r"taken/file.svg: cannot be written \(")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize(
    "args", [("fit",), ("nope",), ("fit", "x", "--replicates", "3"), ("forecast", "x", "--level", "2")]
)
def test_usage_errors(call: Call, args: tuple[str, ...]) -> None:
    result = call(*args)
    assert (result.code, result.out) == (2, "")
    assert "Usage: isocompute" in result.err
    assert "Traceback" not in result.err


# what else a user sees


def test_warnings_go_to_standard_error(call: Call, tmp_path: Path) -> None:
    path = write_points(tmp_path / "torn", rising(12)) / "points.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    result = call("forecast", tmp_path / "torn", "--json")
    assert result.json["fitted_points"] == 11
    assert result.err == f"warning: {path}: the last line is torn and was dropped\n"


def test_names_are_shown_as_they_are(call: Call, tmp_path: Path) -> None:
    for name in ("lr[/b]", "[red]x", ":smile:"):
        write_points(tmp_path / "runs" / name.replace("/", "\u2044"), rising(12))
    table = tmp_path / "t.csv"
    rows = [f"lr[/b],{p['step']},{p['avg@4']}" for p in rising(12)]
    table.write_text("run,step,avg@4\n" + "\n".join(rows) + "\n")
    assert re.search(r"^lr\[/b\] ", call("fit", table, *QUICK).out, re.MULTILINE)
    text = call("fit", tmp_path / "runs", *QUICK).out
    assert "[red]x" in text
    assert ":smile:" in text


@pytest.mark.parametrize("command", ["fit", "forecast", "compare", "quickstart"])
def test_help(call: Call, command: str) -> None:
    result = call(command, "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: isocompute {command}")
    assert "--chart" in result.out or command == "quickstart"


def test_help_lists_the_commands(call: Call) -> None:
    result = call("--help")
    for command in ("fit", "forecast", "compare", "quickstart"):
        assert re.search(rf"^  {command} ", result.out, re.MULTILINE)


def test_version(call: Call) -> None:
    assert call("--version") == Result(0, f"isocompute {__version__}\n", "")


def test_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "isocompute", "fit", "nowhere"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: nowhere: no such file or folder.\n"


def test_start_up_is_light() -> None:
    """`--help` answers at once: nothing heavy is imported before a command runs."""
    script = (
        "import runpy, sys\n"
        "sys.argv = ['isocompute', '--help']\n"
        "try: runpy.run_module('isocompute', run_name='__main__')\n"
        "except SystemExit as stop: assert not stop.code\n"
        "print(sorted({m.split('.')[0] for m in sys.modules}), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: isocompute")
    loaded = set(re.findall(r"'(\w+)'", done.stderr))
    assert "isocompute" in loaded
    assert not loaded & {"numpy", "polars", "scipy", "altair", "pydantic", "vl_convert", "torch", "fsspec"}
