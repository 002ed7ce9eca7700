"""`plan --next` where no study is beside the law: the recipe is that of the runs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isocompute.core.recipe import make_recipe
from tests.cli.tools import QUICK
from tests.commands import Call
from tests.conftest import write_points

OWN = {"name": "dapo", "learning_rate": 3e-6, "kl_coef": 0.02, "tis_cap": 2.0}


def write_runs(folder: Path, recipe: dict[str, Any] | None) -> Path:
    rng = np.random.default_rng(0)
    for n in (8, 16):
        points = []
        for step in range(10, 200, 10):
            value = 0.6 - 0.3 * np.exp(-step / 60) + 0.01 * rng.standard_normal()
            points.append({"step": step, "rollouts": step * 32 * n, "avg@4": float(value)})
        settings = {"problems_per_batch": 32, "rollouts_per_problem": n, "seed": 0}
        write_points(folder / f"32x{n}-s0", points, **settings, recipe=recipe)
    return folder


def next_recipe(call: Call, law: Path, out: Path) -> dict[str, Any]:
    result = call("plan", "--budget", "1e5", "--law", law, "--next", 1, "--out", out, *QUICK, "--json")
    assert result.code == 0, result.err
    table: dict[str, Any] = tomllib.loads(out.read_text())["recipe"]
    return table


@pytest.mark.parametrize("stored", [False, True])
def test_the_runs_recipe_goes_into_the_study(call: Call, tmp_path: Path, stored: bool) -> None:
    whole = make_recipe(OWN)
    law = write_runs(tmp_path / "runs", whole.model_dump())  # as engines log it: every field
    if stored:
        assert call("fit", law, "--out", tmp_path / "law.json", *QUICK).code == 0
        law = tmp_path / "law.json"
    assert make_recipe(next_recipe(call, law, tmp_path / "next.toml")) == whole


def test_runs_that_say_nothing_get_the_papers(call: Call, tmp_path: Path) -> None:
    assert next_recipe(call, write_runs(tmp_path / "runs", None), tmp_path / "next.toml")["name"].startswith(
        "isocompute-"
    )
