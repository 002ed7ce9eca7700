"""How far n*(C) of `fit` is to be trusted: fit three seeds of a sweep, and judge by the points of the others.

    python benchmarks/optimum_coverage.py results/2026-11-16-lm-grid.csv [--seeds 3] [--replicates 300]

For every `set` of the table with at least nine seeds, every three of them in turn, three metrics and seven budgets:
whether the 95% interval of n* at that budget holds the n that is best by the others' points (as `lm_grid.py` reads
them), how many of the n that were run it holds, what the estimate loses to the best, and what somebody loses who takes
the n that leads by the three seeds' own points, or always the smallest. An interval that holds all n is never wrong:
the line `says something` is of those that leave one out, from 100,000 rollouts on (before, the smallest n is plain).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from lm_grid import reached

from isocompute.core.curve import Curve
from isocompute.law.law import fit_law

BUDGETS = [3e4, 6e4, 1e5, 2e5, 3e5, 5e5, 9e5]
METRICS = ["avg@4", "worst@4", "best@4"]
FEWEST = 9
PLAIN = 1e5
END = 1.02e6
"""Runs are cut here, so that all seeds of a set are of one length."""

Runs = dict[tuple[int, int], pl.DataFrame]


@dataclass(frozen=True)
class Judged:
    """One law at one budget."""

    name: str
    budget: float
    covers: bool
    width: int
    """How many of the n that were run lie in the interval."""
    whole: bool
    """All of them do."""
    loss: float
    leader_loss: float
    smallest_loss: float


def curve(run: pl.DataFrame, metric: str, n: int, seed: int) -> Curve:
    """A run as `fit` sees it."""
    compute_C, values_C = run["rollouts"].to_numpy(), run[metric].to_numpy()
    bp = int(run["problems_per_batch"][0])
    return Curve(f"{n}-{seed}", compute_C, values_C, bp, n, seed=seed)


def judge(name: str, runs: Runs, metric: str, taken: list[int], replicates: int) -> Iterator[Judged]:
    """A law of the seeds `taken`, held against the rest."""
    tried, seeds = (sorted({key[i] for key in runs}) for i in (0, 1))
    rest = [seed for seed in seeds if seed not in taken]
    values = {key: reached(run, metric, BUDGETS) for key, run in runs.items()}
    truth_NC, own_NC = (
        np.array([np.mean([values[n, seed] for seed in of], axis=0) for n in tried]) for of in (rest, taken)
    )
    curves = [curve(runs[n, seed], metric, n, seed) for n in tried for seed in taken]
    front = fit_law(curves, metric=metric, replicates=replicates).joint.frontier
    for c, budget in enumerate(BUDGETS):
        at = int(np.abs(np.log(front.compute_C / budget)).argmin())
        # Settings are in order of n, as the curves are.
        low, high = np.percentile(front.best_BC[:, at], [2.5, 97.5], method="inverted_cdf")
        truth_N = truth_NC[:, c]
        best = int(truth_N.argmax())
        yield Judged(
            name,
            budget,
            bool(low <= best <= high),
            int(high - low) + 1,
            int(high - low) + 1 == len(tried),
            float(truth_N[best] - truth_N[front.best_C[at]]),
            float(truth_N[best] - truth_N[own_NC[:, c].argmax()]),
            float(truth_N[best] - truth_N[0]),
        )


def report(label: str, judged: list[Judged]) -> None:
    """One line."""
    fields = ("covers", "width", "whole", "loss", "leader_loss", "smallest_loss")
    covers, width, whole, loss, leader, smallest = ([float(getattr(one, f)) for one in judged] for f in fields)
    print(
        f"{label:<16}{len(judged):6}{np.mean(covers):9.2f}{np.mean(width):8.2f}{np.mean(whole):8.2f}"
        f"{np.mean(loss):9.4f} {np.percentile(loss, 90):8.4f}{np.mean(leader):10.4f}{np.mean(smallest):10.4f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--replicates", type=int, default=300)
    args = parser.parse_args()
    table = pl.read_csv(args.table, infer_schema_length=None).filter(pl.col("rollouts") <= END)
    judged: list[Judged] = []
    for name in table["set"].unique(maintain_order=True):
        part = table.filter(pl.col("set") == name).sort("rollouts")
        seeds = sorted(part["seed"].unique())
        if len(seeds) < FEWEST:
            continue
        runs: Runs = {(int(n), int(s)): run for (n, s), run in part.group_by("rollouts_per_problem", "seed")}
        for metric in METRICS:
            for first in range(0, len(seeds) - args.seeds + 1, args.seeds):
                judged += judge(name, runs, metric, seeds[first : first + args.seeds], args.replicates)
    print(
        f"{'':<16}{'cases':>6}{'covers':>9}{'of n':>8}{'all n':>8}{'loss':>9} {'90th':>8}{'leader':>10}{'smallest':>10}"
    )
    groups = {"all": judged, "says something": [one for one in judged if not one.whole and one.budget >= PLAIN]}
    for one in judged:
        groups.setdefault(one.name, []).append(one)
    groups |= {f"C = {budget:g}": [one for one in judged if one.budget == budget] for budget in BUDGETS}
    for label, members in groups.items():
        report(label, members)


if __name__ == "__main__":
    main()
