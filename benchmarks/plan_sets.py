"""Problem sets drawn at random for `plan_regret.py`, and their sweeps on the simulator (kept in a folder)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isocompute import sweep as study
from isocompute.core import files
from isocompute.data import load
from isocompute.planner.warnings import classify

PROBLEMS_PER_BATCH = (32, 128)
LAW_SEEDS, TRUTH_SEEDS = (0, 1), tuple(range(10, 18))


def anchoring_kl(rates_P: np.ndarray) -> float:
    """A weight of the KL divergence that holds the simulator's policy back as the paper's models were held back.

    The pull of rewards on a problem goes by √(p (1 − p)), the standard deviation that advantages are divided by. With
    three times its mean the simulator has the paper's figure 6 (docs/studies/simulator-n.md); without, every n ends at
    about the same reward.
    """
    return round(3.0 * float(np.sqrt(rates_P * (1.0 - rates_P)).mean()), 3)


@dataclass(frozen=True)
class Population:
    """What sets are drawn from, and what is run on them."""

    sizes: tuple[int, int]
    interference: tuple[float, ...] = ()
    """Choices; where there are any, the rest of the simulator's world is drawn too, else it has its defaults."""
    anchored: bool = False
    """Whether training holds on to the base model (`anchoring_kl`)."""
    rollouts: tuple[int, ...] = (4, 8, 16, 32, 64, 128)
    max_batch: int = 4096
    budget: int = 1_000_000


POPULATIONS = {
    "sets": Population((100, 8000)),
    "wide": Population((200, 8000), (1.0, 0.9, 0.7)),
    "small": Population((100, 3000), (1.0, 1.0, 1.0, 0.9)),
    "anchored": Population(
        (100, 8000),
        anchored=True,
        rollouts=(4, 8, 16, 32, 64, 128, 256, 512),
        max_batch=16_384,
        budget=4_000_000,
    ),
}
"""In `small`, a budget of 1M rollouts exhausts most sets. `anchored` is the one in which n matters, as in the paper's
figure 6 (docs/studies/simulator-n.md)."""
Setting = tuple[int, int]


@dataclass(frozen=True)
class ProblemSet:
    """A drawn set: what the simulator is told of it, and what a user would know (pass rates, size)."""

    seed: int
    kind: str
    table: dict[str, Any]
    rates_P: np.ndarray
    population: Population

    @property
    def size(self) -> int:
        return int(self.table["size"])

    @property
    def recipe(self) -> dict[str, Any]:
        """The paper's recipe for the set's difficulty."""
        own = {"kl_coef": anchoring_kl(self.rates_P)} if self.population.anchored else {}
        return {"name": f"isocompute-{classify(self.rates_P).difficulty}", **own}

    def measured_rates(self, samples: int = 16) -> np.ndarray:
        """The share of right answers among 16, for as many problems of the same kind as the set has: a little less
        than a user knows, who measures the very problems that he trains on.
        """
        rng = np.random.default_rng([self.seed, 16])
        return np.asarray(rng.binomial(samples, np.resize(self.rates_P, self.size)) / samples)


def draw(seed: int, population: str = "wide") -> ProblemSet:
    """Size and pass rates are random; but for `sets` so are features, responses, interference, alignment and noise."""
    rng = np.random.default_rng([seed, 77])
    kind = ("easy", "hard", "mixed", "skewed")[int(rng.integers(4))]
    of = POPULATIONS[population]
    size = int(np.exp(rng.uniform(np.log(of.sizes[0]), np.log(of.sizes[1]))))
    count = 2000
    if kind == "easy":
        rates_P = rng.uniform(0.3, 0.6, count)
    elif kind == "hard":
        rates_P = rng.uniform(0, 0.0625, count)
    elif kind == "mixed":
        share = rng.uniform(0.2, 0.8)
        rates_P = np.where(rng.random(count) < share, rng.uniform(0.3, 0.6, count), rng.uniform(0, 0.0625, count))
    else:
        rates_P = rng.beta(rng.uniform(0.3, 1.5), rng.uniform(0.5, 3), count)
    table: dict[str, Any] = {"set": f"set{seed}", "size": size, "out_of_distribution": 0, "seed": seed}
    if of.interference:
        table |= {
            "features": int(rng.choice([32, 64, 128])),
            "responses": int(rng.choice([16, 32, 64])),
            "interference": float(rng.choice(list(of.interference))),
            "alignment": round(float(rng.uniform(0.3, 0.7)), 3),
            "noise": round(float(rng.uniform(0.2, 0.7)), 3),
        }
    return ProblemSet(seed, kind, table, np.round(rates_P, 4), of)


def sweep(folder: Path, of: ProblemSet, *, budget: int, seeds: tuple[int, ...]) -> None:
    """Run what is missing of a sweep."""
    problems = [bp for bp in PROBLEMS_PER_BATCH if bp <= of.size]
    lines = ['engine = "sim"', f"seeds = {list(seeds)}", "[problems]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in of.table.items()]
    lines += [f"pass_rates = {of.rates_P.tolist()}", "[recipe]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in of.recipe.items()]
    lines += ["[grid]", f"problems_per_batch = {problems}", f"rollouts_per_problem = {list(of.population.rollouts)}"]
    lines += [f"max_batch = {of.population.max_batch}", "[budget]", f"rollouts = {budget}"]
    spec = folder.with_suffix(".toml")
    files.write_atomically(spec, ("\n".join(lines) + "\n").encode())
    result = study.run(spec=spec, out=folder, workers=1)
    if result.failed or result.stopped:
        raise SystemExit(f"{folder}: {result.failed or 'stopped'}")


@dataclass(frozen=True)
class Truth:
    """Exact avg@4 on held-out problems of every cell at the full budget, mean over seeds."""

    best: dict[Setting, float]
    """Of the best checkpoint up to the budget: the paper's "highest reward achievable with at most C"."""
    final: dict[Setting, float]
    """Of the last checkpoint."""
    kept: dict[Setting, float]
    """Of the checkpoint that each run's own sampled evaluations are best at: what somebody has who keeps that one. The
    best of a mean over seeds is a little better than any checkpoint, the more the longer a curve is level.
    """
    seed_sd: float
    halves: tuple[dict[Setting, float], dict[Setting, float]]
    """`best` of every other seed, and of the rest: what the whole sweep knows of itself."""


def truth(folder: Path) -> Truth:
    curves: dict[Setting, list[np.ndarray]] = {}
    kept: dict[Setting, list[float]] = {}
    for run in sorted(load(folder), key=lambda run: run.settings.seed or 0):
        key = (int(run.settings.problems_per_batch or 0), int(run.settings.rollouts_per_problem or 0))
        curves.setdefault(key, []).append(run.points["exact/avg@4"].to_numpy())
        kept.setdefault(key, []).append(float(curves[key][-1][run.points["avg@4"].to_numpy().argmax()]))

    def best_of(seeds: slice) -> dict[Setting, float]:
        return {key: float(np.mean(of[seeds], axis=0).max()) for key, of in curves.items()}

    final = {key: float(np.mean([values[-1] for values in of])) for key, of in curves.items()}
    spread = float(np.sqrt(np.mean([np.var([values[-1] for values in of], ddof=1) for of in curves.values()])))
    return Truth(
        best=best_of(slice(None)),
        final=final,
        kept={key: float(np.mean(values)) for key, values in kept.items()},
        seed_sd=spread,
        halves=(best_of(slice(0, None, 2)), best_of(slice(1, None, 2))),
    )
