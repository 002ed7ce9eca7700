"""Which n leads in a sweep by its points alone, without any fit.

    python benchmarks/lm_grid.py results/2026-11-16-lm-grid.csv [--metric avg@4] [--budgets 1e4,1e5,1e6]

For every `set` of the table: what each n has reached by C (best value so far, on a line in log C between evaluations,
a run that ended before with the best it had), mean over seeds; which n leads; and its lead over the smallest n, with
the standard error of that difference. An n takes part where three in four of its runs go to C.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import polars as pl

BUDGETS = "1e4,3e4,6e4,1e5,2e5,3e5,5e5,1e6,2e6"
SLACK, MOST = 1.03, 0.75


def reached(run: pl.DataFrame, metric: str, budgets: list[float]) -> list[float]:
    """The best value of one run up to each budget."""
    after = run.filter(pl.col("rollouts") > 0).sort("rollouts")
    compute_C, value_C = after["rollouts"].to_numpy(), after[metric].to_numpy()
    out = []
    for budget in budgets:
        there = float(np.interp(math.log(budget), np.log(compute_C), value_C))
        out.append(max([there, *value_C[compute_C <= budget]]))
    return out


def of_set(table: pl.DataFrame, metric: str, budgets: list[float]) -> dict[int, list[list[float]]]:
    """For every n and budget the seeds' values; nothing where too few runs go so far."""
    out: dict[int, list[list[float]]] = {}
    for (n,), part in sorted(table.group_by("rollouts_per_problem")):
        runs = part.partition_by("seed")
        values_SC = np.array([reached(run, metric, budgets) for run in runs])
        ends_S = np.sort([float(run["rollouts"].max()) for run in runs])[::-1]  # type: ignore[arg-type]  # a number
        end = ends_S[math.ceil(MOST * len(ends_S)) - 1] * SLACK
        out[int(n)] = [list(values_SC[:, i]) if budget <= end else [] for i, budget in enumerate(budgets)]
    return out


def error(values: list[float]) -> float:
    """Standard error of a mean."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--metric", action="append")
    parser.add_argument("--budgets", default=BUDGETS)
    args = parser.parse_args()
    budgets = [float(one) for one in args.budgets.split(",")]
    table = pl.read_csv(args.table, infer_schema_length=None)
    for name in table["set"].unique(maintain_order=True):
        for metric in args.metric or ["avg@4", "worst@4", "best@4"]:
            found = of_set(table.filter(pl.col("set") == name), metric, budgets)
            print(f"\n{name}, {metric} (seeds: {', '.join(f'{len(v[0])} of n = {n}' for n, v in found.items())})")
            print("C       " + "".join(f"{f'n = {n}':>9}" for n in found) + "   leads  over the smallest n")
            for i, budget in enumerate(budgets):
                means = {n: float(np.mean(v[i])) for n, v in found.items() if v[i]}
                if len(means) < 2:
                    continue
                best, least = max(means, key=lambda n: means[n]), min(means)
                lead = means[best] - means[least]
                noise = math.hypot(error(found[best][i]), error(found[least][i]))
                line = "".join(f"{means[n]:9.4f}" if n in means else f"{'-':>9}" for n in found)
                print(f"{budget:<8.0e}{line}{best:8d}  " + (f"{lead:.4f} ± {noise:.4f}" if best != least else ""))


if __name__ == "__main__":
    main()
