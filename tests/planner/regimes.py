"""Setups of the simulator with one known limit each, and small sweeps on them."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from isocompute.core.allocation import Cell
from isocompute.data import Run, RunSet, RunSettings
from isocompute.sim import SimEngine
from tests.sim.helpers import Patient


@dataclass(frozen=True)
class Setup:
    """A world, a recipe and a grid."""

    problems: dict[str, Any]
    recipe: dict[str, Any] = field(default_factory=lambda: {"name": "grpo"})
    budget: int = 100_000
    problems_per_batch: int = 64
    rollouts_per_problem: tuple[int, ...] = (4, 32)
    repeats: int = 1
    """Seeds of every n: with one seed, a small lead of a larger n may be chance."""


WORLD = {"size": 4000, "noise": 0.0, "features": 16, "responses": 16, "validation": 600, "out_of_distribution": 0}
SETUPS: dict[str, Setup] = {
    # Fresh problems whose answers the features express: nothing is in the way but the number of updates.
    "updates": Setup(WORLD),
    # Steps that do not shrink with the batch, against a decay: small groups hover far from the optimum.
    "noise": Setup(
        WORLD,
        {"name": "grpo", "learning_rate": 0.1, "lr_scaling": "constant", "weight_decay": 0.1},
        rollouts_per_problem=(2, 8),
        repeats=3,
    ),
    # Thousands of problems in three features, most answers beyond them: some are won at the cost of others.
    "interference": Setup(
        {**WORLD, "features": 3, "responses": 32, "noise": 0.95}, {"name": "grpo", "learning_rate": 0.05}
    ),
    # A set that is soon known by heart.
    "data": Setup({**WORLD, "size": 150, "noise": 0.5}),
    # Problems that the base never solves, and too few rollouts to find a success.
    "coverage": Setup(
        {**WORLD, "set": "extremely_hard", "features": 64, "responses": 32, "noise": 0.5},
        {"name": "isocompute-hard"},
        budget=30_000,
    ),
}


def sweep(setup: Setup, *, seed: int) -> RunSet:
    """Runs of every n in a world of this seed."""
    runs = []
    for n in setup.rollouts_per_problem:
        updates = setup.budget // (setup.problems_per_batch * n)
        problems = {**setup.problems, "seed": seed}
        for own in range(seed, seed + setup.repeats):
            cell = Cell("cell", setup.problems_per_batch, n, updates, own, problems, setup.recipe, {"points": 12})
            with tempfile.TemporaryDirectory() as folder:
                SimEngine().check(cell)
                SimEngine().run(cell, Path(folder), Patient())
                lines = (Path(folder) / "points.jsonl").read_text().splitlines()
            points = [json.loads(line) for line in lines]
            settings = RunSettings(problems_per_batch=setup.problems_per_batch, rollouts_per_problem=n, seed=own)
            runs.append(Run(f"{n}-{own}", settings, pl.DataFrame(points)))
    return RunSet(tuple(runs))
