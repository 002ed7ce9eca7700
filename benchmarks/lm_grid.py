"""Which n leads in a sweep by its points alone, without any fit.

    python benchmarks/lm_grid.py results/2026-11-16-lm-grid.csv [--metric avg@4] [--budgets 1e4,1e5,1e6] [--last]

For every `set` of the table: what each n has reached by C (best value so far, on a line in log C between evaluations,
a run that ended before with the best it had), mean over seeds; which n leads; and its lead over the smallest n, with
the standard error of that difference. An n takes part where three in four of its runs go to C. With `--last` it is the
value at C (of a run that ended before, its last one), for somebody who keeps no checkpoints; the second line is of
medians, which a run that collapsed does not move, with the bootstrap's error of the lead.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

BUDGETS = "1e4,3e4,6e4,1e5,2e5,3e5,5e5,1e6,2e6"
SLACK, MOST = 1.03, 0.75
DRAWS = 2000

Middle = Callable[[list[float]], Any]


def reached(run: pl.DataFrame, metric: str, budgets: list[float], *, last: bool = False) -> list[float]:
    """The best value of one run up to each budget, or its last one."""
    after = run.filter(pl.col("rollouts") > 0).sort("rollouts")
    compute_C, value_C = after["rollouts"].to_numpy(), after[metric].to_numpy()
    out = []
    for budget in budgets:
        there = float(np.interp(math.log(budget), np.log(compute_C), value_C))
        out.append(there if last else max([there, *value_C[compute_C <= budget]]))
    return out


def of_set(table: pl.DataFrame, metric: str, budgets: list[float], *, last: bool) -> dict[int, list[list[float]]]:
    """For every n and budget the seeds' values; nothing where too few runs go so far."""
    out: dict[int, list[list[float]]] = {}
    for (n,), part in sorted(table.group_by("rollouts_per_problem")):
        runs = part.partition_by("seed")
        values_SC = np.array([reached(run, metric, budgets, last=last) for run in runs])
        ends_S = np.sort([run["rollouts"].to_numpy().max() for run in runs])[::-1]
        end = ends_S[math.ceil(MOST * len(ends_S)) - 1] * SLACK
        out[int(n)] = [list(values_SC[:, i]) if budget <= end else [] for i, budget in enumerate(budgets)]
    return out


def error(values: list[float]) -> float:
    """Standard error of a mean."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def median_error(values: list[float]) -> float:
    """Standard error of a median, by bootstrap."""
    rng = np.random.default_rng(0)
    return float(np.median(rng.choice(values, (DRAWS, len(values))), axis=1).std())


def line(tried: Iterable[int], seeds: dict[int, list[float]], middle: Middle, spread: Middle) -> str:
    """The middle of every n, which of them leads, and by how much."""
    values = {n: float(middle(of)) for n, of in seeds.items()}
    best, least = max(values, key=lambda n: values[n]), min(values)
    noise = math.hypot(spread(seeds[best]), spread(seeds[least]))
    lead = f"{values[best] - values[least]:.4f} ± {noise:.4f}" if best != least else ""
    return "".join(f"{values[n]:9.4f}" if n in values else f"{'-':>9}" for n in tried) + f"{best:8d}  {lead}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--metric", action="append")
    parser.add_argument("--budgets", default=BUDGETS)
    parser.add_argument("--last", action="store_true")
    args = parser.parse_args()
    budgets = [float(one) for one in args.budgets.split(",")]
    table = pl.read_csv(args.table, infer_schema_length=None)
    for name in table["set"].unique(maintain_order=True):
        for metric in args.metric or ["avg@4", "worst@4", "best@4"]:
            found = of_set(table.filter(pl.col("set") == name), metric, budgets, last=args.last)
            print(f"\n{name}, {metric} (seeds: {', '.join(f'{len(v[0])} of n = {n}' for n, v in found.items())})")
            print("C       " + "".join(f"{f'n = {n}':>9}" for n in found) + "   leads  over the smallest n")
            for i, budget in enumerate(budgets):
                seeds = {n: v[i] for n, v in found.items() if v[i]}
                if len(seeds) < 2:
                    continue
                print(f"{budget:<8.0e}{line(found, seeds, np.mean, error)}")
                if args.last:
                    print(f"{'median':<8}{line(found, seeds, np.median, median_error)}")


if __name__ == "__main__":
    main()
