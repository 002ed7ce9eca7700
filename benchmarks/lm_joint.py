"""Problems a batch, rollouts a problem and learning rates in a sweep, by its points alone, without any fit.

    python benchmarks/lm_joint.py results/2026-11-16-lm-joint.csv [--metric avg@4] [--budgets 1e4,1e5,1e6]

For the set `hard`: the best value so far of every Bp and n, mean over seeds with its standard error. For the draws
`few-…` of a small set: the same, and the value at C of the typical run (median over seeds), both as means over draws
with the error between draws; then settings of equal batch against each other, draw by draw. How many runs were lost by
Bp, and by setting at a batch of 512: stopped before the others' end, or ended below half of the best they had. For
`rates`: what each learning rate reached at each batch, and how many of its runs were lost.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import polars as pl
from lm_grid import reached

BUDGETS = "1e4,3e4,1e5,3e5,5e5,1e6"
PAIRS = (((32, 4), (8, 16)), ((32, 16), (8, 64)), ((128, 4), (32, 16)), ((128, 4), (8, 64)), ((128, 16), (32, 64)))
"""Settings of one batch: 128, 512 three times, 2,048."""
ACROSS = (((32, 64), (32, 4)), ((128, 4), (32, 4)), ((128, 16), (32, 4)), ((128, 16), (8, 4)))
"""Larger batches against smaller ones."""
Setting = tuple[int, int]
SETTING = ("problems_per_batch", "rollouts_per_problem")
EQUAL_BATCH = 512
FULL = 0.95
"""A run that went so far, of what the furthest did, came to its end."""


def by_seed(part: pl.DataFrame, metric: str, budgets: list[float], *, last: bool) -> np.ndarray:
    """One row a run, one column a budget."""
    return np.array([reached(run, metric, budgets, last=last) for run in part.partition_by("seed")])


def settings_of(table: pl.DataFrame) -> list[Setting]:
    """All (Bp, n), by batch and then by Bp."""
    pairs = table.select("problems_per_batch", "rollouts_per_problem").unique().rows()
    return sorted(((int(bp), int(n)) for bp, n in pairs), key=lambda pair: (pair[0] * pair[1], pair[0]))


def one(table: pl.DataFrame, setting: Setting) -> pl.DataFrame:
    """The runs of one setting."""
    return table.filter((pl.col("problems_per_batch") == setting[0]) & (pl.col("rollouts_per_problem") == setting[1]))


def with_error(values_N: np.ndarray) -> str:
    """Mean and its standard error."""
    return f"{values_N.mean():.3f} ± {values_N.std(ddof=1) / np.sqrt(len(values_N)):.3f}"


def show(title: str, rows: list[tuple[str, list[str]]], budgets: list[float]) -> None:
    """A table with a column for each budget."""
    print(f"\n{title}\n{'':22}" + "".join(f"{budget:>15g}" for budget in budgets))
    for name, cells in rows:
        print(f"{name:22}" + "".join(f"{cell:>15}" for cell in cells))


def name_of(setting: Setting) -> str:
    """A setting with its batch."""
    return f"{setting[0]:>4} × {setting[1]:<3} B = {setting[0] * setting[1]:<5}"


def large_set(table: pl.DataFrame, metric: str, budgets: list[float]) -> None:
    """Best so far by setting."""
    rows = []
    for setting in settings_of(table):
        values_SC = by_seed(one(table, setting), metric, budgets, last=False)
        rows.append((name_of(setting), [with_error(values_S) for values_S in values_SC.T]))
    show(f"hard, {metric}, best so far, mean over seeds", rows, budgets)


def small_sets(table: pl.DataFrame, metric: str, budgets: list[float]) -> None:
    """Means over draws of the problems, and pairs of settings within a draw."""
    draws = table.partition_by("set")
    for last, what in ((True, "at C, median over seeds"), (False, "best so far, mean over seeds")):
        middle = np.median if last else np.mean
        values = {
            setting: np.array([middle(by_seed(one(d, setting), metric, budgets, last=last), axis=0) for d in draws])
            for setting in settings_of(table)
        }
        rows = [(name_of(s), [with_error(values_D) for values_D in values_DC.T]) for s, values_DC in values.items()]
        show(f"{len(draws)} draws of 200 problems, {metric} {what}, mean over draws", rows, budgets)
        for title, pairs in (("of one batch", PAIRS), ("of different batches", ACROSS)):
            print(f"pairs {title}, difference at {budgets[-1]:g}, draw by draw")
            for a, b in pairs:
                difference_D = values[a][:, -1] - values[b][:, -1]
                each = " ".join(f"{x:+.3f}" for x in difference_D)
                print(f"  {a[0]:>3} × {a[1]:<3} less {b[0]:>2} × {b[1]:<3} {with_error(difference_D):>15}   ({each})")


def lost(table: pl.DataFrame, metric: str) -> str:
    """How many of these runs collapsed, of how many."""
    end = FULL * int(table["rollouts"].to_numpy().max())
    runs = [run.sort("rollouts") for run in table.partition_by("set", "seed", *SETTING)]
    gone = [run["rollouts"][-1] < end or run[metric][-1] < 0.5 * float(run[metric].to_numpy().max()) for run in runs]
    return f"{sum(gone)} of {len(gone)}"


def collapses(table: pl.DataFrame, metric: str) -> None:
    """Runs that were lost, by Bp and by setting at one batch."""
    print("\nruns that were lost")
    for what, part in (("hard", table.filter(pl.col("set") == "hard")), ("few", table.filter(pl.col("set") != "hard"))):
        groups = sorted(part.group_by("problems_per_batch"))
        print(f"{what:6}" + ", ".join(f"Bp = {bp}: {lost(runs, metric)}" for (bp,), runs in groups))
    equal = table.filter(pl.col("problems_per_batch") * pl.col("rollouts_per_problem") == EQUAL_BATCH)
    print(
        f"B = {EQUAL_BATCH}: "
        + ", ".join(f"{bp} × {n}: {lost(one(equal, (bp, n)), metric)}" for bp, n in settings_of(equal))
    )


def rates(table: pl.DataFrame, metric: str, budgets: list[float]) -> None:
    """What each learning rate reached at each batch; rates are those of a batch of 1,024, scaled with its root."""
    rows = []
    for setting in settings_of(table):
        for (rate,), part in sorted(one(table, setting).group_by("learning_rate")):
            values_SC = by_seed(part, metric, budgets, last=False)
            cells = [with_error(values_S) for values_S in values_SC.T]
            rows.append((f"B = {setting[0] * setting[1]:<5} {rate:.2g}", [*cells, f"{lost(part, metric)} lost"]))
    show(f"rates, {metric}, best so far, mean over seeds", rows, budgets)


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--metric", default="avg@4")
    parser.add_argument("--budgets", default=BUDGETS)
    args = parser.parse_args()
    budgets = [float(x) for x in args.budgets.split(",")]
    table = pl.read_csv(args.table)
    large_set(table.filter(pl.col("set") == "hard"), args.metric, budgets)
    small_sets(table.filter(pl.col("set").str.starts_with("few")), args.metric, budgets)
    collapses(table.filter(pl.col("set") != "rates"), args.metric)
    short = [budget for budget in budgets if budget <= 5e5]
    rates(table.filter(pl.col("set") == "rates"), args.metric, short)


if __name__ == "__main__":
    main()
