"""`isocompute compare`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.tools import QUICK, check_intervals
from tests.commands import Call
from tests.conftest import CEILINGS, rising, write_points


def test_compare_json(call: Call, sweep: Path) -> None:
    runs = sweep / "runs"
    data = call("compare", runs / "easy-32x8", runs / "easy-32x64", *QUICK, "--json").json
    assert (data["a"]["runs"], data["b"]["runs"]) == (["easy-32x8"], ["easy-32x64"])
    assert data["difference"] == pytest.approx(data["a"]["asymptote"] - data["b"]["asymptote"])
    assert data["difference"] == pytest.approx(CEILINGS[8] - CEILINGS[64], abs=0.03)
    assert data["interval"][1] - data["interval"][0] >= 0.0399  # one seed: ScaleRL's ±.02 at least
    assert data["interval"][1] < 0
    assert data["higher"] == "b"
    check_intervals(data)


def test_compare_speed(call: Call, tmp_path: Path) -> None:
    """The same curve at twice the price."""
    cheap, dear = (write_points(tmp_path / str(every), rising(20, every=every)) for every in (1000, 2000))
    data = call("compare", cheap, dear, *QUICK, "--json").json
    assert data["speed_ratio"] == pytest.approx(2.0, rel=1e-3)
    assert data["efficiency_ratio"] == pytest.approx(1.0, rel=1e-3)
    assert data["difference"] == pytest.approx(0.0, abs=5e-4)
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
    assert (data["error_rule"], data["higher"]) == ("seeds", "b")


def test_compare_on_a_terminal_tells_equal_names_apart(call: Call, sweep: Path, tmp_path: Path) -> None:
    other = write_points(tmp_path / "easy-32x8", rising(20, 0.8))
    result = call("compare", sweep / "runs" / "easy-32x8", other, *QUICK)
    assert (result.code, result.err) == (0, "")
    assert "easy-32x8 (second) has the higher ceiling" in result.out
    low, high = re.findall(r"by [\d.]+ \(\+([\d.]+) to \+([\d.]+)", " ".join(result.out.split()))[0]
    assert 0.0 < float(low) < float(high), "the lead of the one that is named"
    assert "easy-32x8 (first)" in result.out


def test_compare_on_a_terminal_names_a_run_that_fell(call: Call, sweep: Path, tmp_path: Path) -> None:
    points = rising(20, 0.8)
    for point in points[15:]:
        point["avg@4"] = 0.05
    told = call("compare", sweep / "runs" / "easy-32x8", write_points(tmp_path / "fallen", points), *QUICK).out
    assert "fallen collapsed after 38.4k and is at .050: all of this but who is ahead now" in " ".join(told.split())


def test_compare_on_a_terminal_says_that_a_run_has_not_begun_to_rise(call: Call, sweep: Path, tmp_path: Path) -> None:
    started = [{**point, "avg@4": 0.3 + 0.001 * (i % 2)} for i, point in enumerate(rising(6, every=300))]
    told = call("compare", sweep / "runs" / "easy-32x8", write_points(tmp_path / "new", started), *QUICK).out
    said = "which ceiling is higher is undecided: new was run for less and has not begun to rise"
    assert said in " ".join(told.split())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            [{"recipe": {"learning_rate": rate}} for rate in (1e-6, 1e-4)],
            "'learning_rate 1e-06', 'learning_rate 0.0001'",
        ),
        ([{"model": model} for model in ("8b", "17b")], "'8b', '17b'"),
        ([{"problems": problems} for problems in ("easy", "hard")], "'easy', 'hard'"),
    ],
    ids=["recipe", "model", "problems"],
)
def test_runs_that_are_no_seeds_of_one_recipe_are_named(
    call: Call, tmp_path: Path, settings: list[dict[str, Any]], said: str
) -> None:
    for seed, different in enumerate(settings):
        write_points(tmp_path / "mixed" / f"{seed}", rising(14 + seed), seed=seed, **different)
        write_points(tmp_path / "seeds" / f"{seed}", rising(14 + seed), seed=seed, **settings[0])
    mixed = call("compare", tmp_path / "mixed", tmp_path / "seeds", *QUICK)
    assert mixed.code == 0 and mixed.err.count("warning:") == 1
    assert f"mixed: its runs differ in more than their seed ({said})" in mixed.err
    assert call("compare", tmp_path / "seeds", tmp_path / "seeds", *QUICK).err == ""
