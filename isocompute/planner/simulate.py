"""A first law from base pass rates alone: the simulator, its problems matched to them, swept over n.

Rates that were measured with a few samples are first made those behind them (`problems.population`): on a hard set most
of 16 samples are wrong by chance, and a simulator that takes such a problem for hopeless plans too small an n. What
pass rates do not show is drawn anew for each of a few worlds; they count as seeds of one setting, so that the law's
intervals hold the spread between worlds. It stays a law of the simulator and is labelled as such.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from isocompute.core.arrays import Array
from isocompute.core.errors import InputError
from isocompute.law import Curve, curves_of, fit_law
from isocompute.planner.as_run import as_run
from isocompute.planner.curves import Curves
from isocompute.planner.difficulty import classify
from isocompute.planner.load_law import planning_law
from isocompute.planner.model import PlanningLaw
from isocompute.planner.runs_recipe import RunsRecipe
from isocompute.planner.stability import Falls
from isocompute.problems.population import rates_behind

__all__ = ["anchoring_kl", "simulate_law"]

MOST = 4_000_000
"""Rollouts that a cell is simulated to; a larger budget is extrapolated from there."""
FEWEST = 50_000
ROLLOUTS = (4, 8, 16, 32, 64, 128, 256, 512)
_PROBLEMS_PER_BATCH = 32
_FEWEST_UPDATES = 12
_LARGEST_SET = 20_000
_WORLDS = 6
"""Draws of the simulator's world, its teacher, base policy and problems: what pass rates do not show. Two rank the best
n of other sets nearly as well, eight no better (docs/plan_quality.md)."""
_UNCERTAINTY = f"bootstrap over {_WORLDS} simulated worlds: what the simulator leaves out is not in it"


_ANCHOR = 3.0


def anchoring_kl(rates_P: Array) -> float:
    """A weight of the KL divergence that holds the simulator's policy back as the paper's models were held back.

    The pull of rewards on a problem goes by √(p (1 − p)), the standard deviation that advantages are divided by. With
    three times its mean the simulator has the paper's figure 6 (docs/simulator.md); without, every n ends at about the
    same reward.
    """
    return round(_ANCHOR * float(np.sqrt(rates_P * (1.0 - rates_P)).mean()), 3)


def simulate_law(
    rates_P: Array,
    *,
    problems: int | None = None,
    budget: float,
    metric: str = "avg@4",
    problems_per_batch: int | None = None,
    difficulty: str | None = None,
    replicates: int = 1000,
    seed: int = 0,
    tell: Callable[[str], None] = lambda _: None,
) -> PlanningLaw:
    """Sweep the simulator on problems with these pass rates and fit what comes out.

    `problems` is D; the number of pass rates where it is not given.
    """
    kind, _, k_text = metric.partition("@")
    if kind not in ("avg", "best", "worst") or not k_text.isdecimal() or not 1 <= int(k_text) <= 64:
        raise InputError(f"--metric {metric}: the simulator knows avg@k, best@k and worst@k, such as avg@4.")
    size = min(problems or len(rates_P), _LARGEST_SET)
    bp = min(problems_per_batch or _PROBLEMS_PER_BATCH, size)
    rollouts = int(np.clip(budget, FEWEST, MOST))
    ns = [n for n in ROLLOUTS if bp * n * _FEWEST_UPDATES <= rollouts]
    if not ns:
        raise InputError(
            f"--law simulate: {rollouts:,} rollouts leave under {_FEWEST_UPDATES} updates at Bp = {bp}; say a "
            f"smaller --problems-per-batch or at least {bp * ROLLOUTS[0] * _FEWEST_UPDATES:,} rollouts."
        )
    recipe = f"isocompute-{difficulty or classify(rates_P).difficulty}"
    behind_P = rates_behind(rates_P)
    curves: list[Curve] = []
    with tempfile.TemporaryDirectory(prefix="isocompute-simulate-") as scratch:
        for i in range(_WORLDS):
            tell(f"simulating world {i + 1} of {_WORLDS}: n = {ns[0]}…{ns[-1]}, {rollouts:,} rollouts each")
            table = {"size": size, "validation": 1024, "out_of_distribution": 0, "seed": seed + i}
            found = _sweep(Path(scratch) / str(i), table, behind_P, recipe, bp, ns, rollouts, int(k_text), seed)
            read, _, _ = curves_of(found, metric=f"exact/{metric}", unit="rollouts")
            curves += [replace(curve, name=f"world{i}/{curve.name}", recipe="", seed=i) for curve in read]
    law = fit_law(curves, metric=f"exact/{metric}", unit="rollouts", replicates=replicates, seed=seed)
    out = planning_law(
        law.settings,
        law.surface,
        name="simulate",
        source=f"the simulator at these pass rates, {size:,} problems, {_WORLDS} worlds",
        metric=metric,
        unit="rollouts",
        falls=Falls(),  # none of the user's runs
        seed=seed,
        uncertainty=_UNCERTAINTY,
    )
    assert isinstance(out.model, Curves)
    return replace(
        out,
        model=as_run(out.model, curves, seed=seed),
        setup="the simulator, calibrated to your pass rates: no real model was trained",
        problems=size,
        runs_recipe=RunsRecipe(unsaid="the simulator cannot say yours"),
    )


def _sweep(
    folder: Path,
    world: dict[str, Any],
    rates_P: Array,
    recipe: str,
    bp: int,
    ns: list[int],
    rollouts: int,
    k: int,
    seed: int,
) -> Any:
    from isocompute import sweep as study
    from isocompute.data import load

    kept_P = rates_P
    if len(rates_P) > _LARGEST_SET:
        kept_P = np.random.default_rng(seed).choice(rates_P, _LARGEST_SET, replace=False)
    lines = ['engine = "sim"', f"seeds = [{seed}]", "[problems]", 'set = "yours"']
    lines += [f"{key} = {json.dumps(value)}" for key, value in world.items()]
    lines += [f"pass_rates = {json.dumps(np.round(kept_P, 5).tolist())}", "[recipe]"]
    lines += [f'name = "{recipe}"', f"kl_coef = {anchoring_kl(rates_P)}", "[grid]"]
    lines += [f"problems_per_batch = [{bp}]", f"rollouts_per_problem = {json.dumps(ns)}"]
    lines += [
        "[budget]",
        f"rollouts = {rollouts}",
        "[evaluation]",
        "points = 30",
        f"k = [{k}]",
        f"samples = {max(16, k)}",
    ]
    spec = folder.with_suffix(".toml")
    spec.write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = study.run(spec=spec, out=folder)
    if result.failed or result.stopped or result.unwritable:
        why = next(iter(result.failed.values()), result.unwritable or "it was stopped")
        raise InputError(f"--law simulate: the sweep did not finish ({why}).")
    return load(folder)
