"""How good plans are, on problem sets drawn at random for the simulator.

    python benchmarks/plan_regret.py FOLDER [--sets 16] [--first 900] [--population anchored] [--budget C]
        [--quick]

For each set: a sweep of all cells to the budget C gives the truth (exact avg@4 on held-out problems, eight seeds); a
second sweep to C/8 (other seeds, sampled avg@4, as a user would have it) gives the law that plans C. Printed are

- the regret of the planned cell against the best cell of the exhaustive sweep, by best and by last checkpoint, and by
  the one that each run's own evaluations are best at;
- whether the planned n beats n = 8 and n = 16 at the same Bp, where it differs from them; and, for what could be had at
  all, how often the best cell of half of the truth's seeds does so by the other half, and how alike their n* are;
- the share of the exhaustive sweep's rollouts after which `plan --next` has, and keeps, the whole sweep's decision;
- the time of a plan over the paper's full grid with 1,000 bootstrap laws.

`--quick` leaves out `--next`.

Sweeps and plans are kept in FOLDER, so that a second call only prints: after a change to the planner delete its
`planned.json` files. What was tuned was tuned on other seeds (docs/studies/plan-quality.md).
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from plan_sets import (
    LAW_SEEDS,
    POPULATIONS,
    PROBLEMS_PER_BATCH,
    TRUTH_SEEDS,
    ProblemSet,
    Setting,
    Truth,
    draw,
    sweep,
    truth,
)
from scipy import stats

import isocompute
from isocompute.core import files
from isocompute.core.curve import Curve, curves_of
from isocompute.data import load
from isocompute.law.law import fit_law
from isocompute.planner.decide import Plan
from isocompute.planner.law import planning_law
from isocompute.planner.next_runs import next_cells

PILOT = 1 / 16
"""Share of the budget to which every cell is run before `--next` is asked."""
CELLS, ROUNDS, MOST, WORTH = 3, 9, 0.5, 1e-4
"""`--next` is asked for so many cells at a time, so often, until so much of the sweep is spent or a run gains less."""
REPLICATES, NEXT_REPLICATES = 300, 100
ALREADY = 0.98
"""A run to so much of a compute has been there: batches are whole."""
NEAR = 0.002
"""A decision whose true value is so near that of the whole sweep's counts as the same."""


@dataclass(frozen=True)
class Asked:
    """How much of the exhaustive sweep `--next` took; 1 where it did not get there."""

    same: float
    """Until the decision is that of the whole sweep, or one whose true value is within `NEAR` of it, for good."""
    equal: float
    """Until it is one that the plan of the whole sweep has within one standard error, for good."""
    runs: int


@dataclass(frozen=True)
class Row:
    """What one set gave."""

    problems: ProblemSet
    truth: Truth
    planned: Setting
    expected: tuple[float, float, float]
    asked: Asked | None

    @property
    def best(self) -> Setting:
        return max(self.truth.best, key=lambda key: self.truth.best[key])

    @property
    def best_rollouts(self) -> int:
        """True n* at the smallest Bp."""
        return optimum(self.truth.best)

    def halves_beat(self) -> list[bool]:
        """Whether the best cell of one half of the truth's seeds beats n = 8 and 16 by the other half."""
        out = []
        for seen, unseen in (self.truth.halves, self.truth.halves[::-1]):
            bp, best = max(seen, key=lambda key: seen[key])
            out += [unseen[bp, best] > unseen[bp, n] for n in (8, 16) if n != best and (bp, n) in unseen]
        return out

    @property
    def error(self) -> float:
        """Standard error of the difference between two cells, each a mean over the truth's seeds."""
        return self.truth.seed_sd * float(np.sqrt(2 / len(TRUTH_SEEDS)))

    def regret(self, values: dict[Setting, float]) -> float:
        return max(values.values()) - values[self.planned]

    def beats(self, n: int, values: dict[Setting, float] | None = None) -> float | None:
        """Lead of the planned cell over the same Bp with another n, by best checkpoints unless other values are given;
        None where it is the same.
        """
        values = self.truth.best if values is None else values
        other = (self.planned[0], n)
        if n == self.planned[1] or other not in values:
            return None
        return values[self.planned] - values[other]


def smallest(values: dict[Setting, float]) -> dict[int, float]:
    """Values by n at the smallest Bp."""
    return {n: value for (bp, n), value in values.items() if bp == PROBLEMS_PER_BATCH[0]}


def optimum(values: dict[Setting, float]) -> int:
    """The best n at the smallest Bp."""
    at = smallest(values)
    return max(at, key=lambda n: at[n])


def setting(plan: Plan) -> Setting:
    return plan.allocation.problems_per_batch, plan.allocation.rollouts_per_problem


def plan_curves(curves: list[Curve], budget: int) -> Plan:
    law = fit_law(curves, metric="avg@4", unit="rollouts", replicates=NEXT_REPLICATES)
    return isocompute.plan(budget=budget, law=planning_law(law), extrapolate=True)


def ask_next(folder: Path, true: Truth, budget: int) -> Asked:
    """Go on from a pilot with what `--next` proposes, and compare each decision with that of the whole sweep: one run
    of every cell. A cell that is proposed a second time to where it has been is run with another seed.
    """
    seeds = _by_seed(folder)
    last = plan_curves([runs[0] for runs in seeds.values()], budget)
    goal = setting(last)
    ties = {goal} | {
        (o.allocation.problems_per_batch, o.allocation.rollouts_per_problem) for o in last.alternatives if o.ranked.ties
    }
    everything = sum(float(runs[0].compute_C[-1]) for runs in seeds.values())
    pilots = {key: _run_to(runs[0], budget * PILOT) for key, runs in seeds.items()}
    done = {key: [pilot] for key, pilot in pilots.items() if len(pilot.compute_C) >= 5}
    spent = sum(float(pilot.compute_C[-1]) for (pilot,) in done.values())
    shares: list[float] = []
    same: list[bool] = []
    equal: list[bool] = []
    proposed = 0
    for _ in range(ROUNDS):
        plan = plan_curves([curve for curves in done.values() for curve in curves], budget)
        shares.append(spent / everything)
        same.append(setting(plan) == goal or true.best[setting(plan)] >= true.best[goal] - NEAR)
        equal.append(setting(plan) in ties)
        proposals = [p for p in next_cells(plan, CELLS) if p.gain > WORTH]
        if not proposals or spent > MOST * everything:
            break
        for cell in (p.allocation for p in proposals):
            key = (cell.problems_per_batch, cell.rollouts_per_problem)
            have = done.setdefault(key, [])
            again = bool(have) and have[-1].compute_C[-1] >= cell.compute * ALREADY
            which = len(have) if again else max(len(have) - 1, 0)
            run = _run_to(seeds[key][min(which, len(TRUTH_SEEDS) - 1)], cell.compute)
            spent += float(run.compute_C[-1])
            proposed += 1
            have[len(have) if again else -1 :] = [run]
    return Asked(_from(shares, same), _from(shares, equal), proposed)


def _by_seed(folder: Path) -> dict[Setting, list[Curve]]:
    """Every cell's curves, in the order of their seeds."""
    curves, _, _ = curves_of(load(folder), metric="avg@4", unit="rollouts")
    out: dict[Setting, list[Curve]] = {}
    for curve in sorted(curves, key=lambda curve: curve.seed or 0):
        out.setdefault((int(curve.problems_per_batch or 0), int(curve.rollouts_per_problem or 0)), []).append(curve)
    return out


def _run_to(curve: Curve, compute: float) -> Curve:
    """What a run to this compute shows, of one that went further: up to its first evaluation there or beyond."""
    end = int(np.searchsorted(curve.compute_C, compute * ALREADY)) + 1
    return replace(curve, compute_C=curve.compute_C[:end], values_C=curve.values_C[:end])


def _from(shares: list[float], right: list[bool]) -> float:
    """The share from which on all decisions were right; 1 where the last was not."""
    if not right[-1]:
        return 1.0
    return shares[len(right) - next((i for i, ok in enumerate(reversed(right)) if not ok), len(right))]


def measure(folder: Path, seed: int, budget: int, population: str, *, ask: bool) -> Row:
    problems = draw(seed, population)
    sweep(folder / "law", problems, budget=budget // 8, seeds=LAW_SEEDS)
    sweep(folder / "truth", problems, budget=budget, seeds=TRUTH_SEEDS)
    true = truth(folder / "truth")
    kept = folder / "planned.json"
    if not kept.exists():
        law = folder / "law"
        plan = isocompute.plan(budget=budget, law=law, metric="avg@4", replicates=REPLICATES, extrapolate=True)
        expected = (plan.chosen.ranked.value, *plan.chosen.ranked.interval)
        found = {
            "planned": setting(plan),
            "expected": expected,
            "next": asdict(ask_next(folder / "truth", true, budget)) if ask else None,
        }
        files.write_atomically(kept, json.dumps(found).encode())
    found = json.loads(kept.read_text())
    asked = None if found["next"] is None else Asked(**found["next"])
    return Row(problems, true, tuple(found["planned"]), tuple(found["expected"]), asked)


def show(rows: list[Row]) -> None:
    print(
        "set   D     kind    pass  true best   planned    regret  (last)  expected             n=8    n=16   n*  --next"
    )
    for row in rows:
        p = row.problems
        lead = [row.beats(n) for n in (8, 16)]
        leads = "  ".join("  –  " if x is None else f"{x:+.3f}" for x in lead)
        print(
            f"{p.seed:<5d} {p.size:<5d} {p.kind:7s} {p.rates_P.mean():.3f}  {row.best[0]:>3d} × {row.best[1]:<4d}  "
            f"{row.planned[0]:>3d} × {row.planned[1]:<4d}  {row.regret(row.truth.best):.4f}  "
            f"{row.regret(row.truth.final):.4f}  {row.expected[0]:.3f} ({row.expected[1]:.3f}–{row.expected[2]:.3f})  "
            f"{leads}  {row.best_rollouts:>3d}  "
            + ("" if row.asked is None else f"{row.asked.same:.2f} {row.asked.equal:.2f} ({row.asked.runs} runs)")
        )
    regret = np.array([row.regret(row.truth.best) for row in rows])
    final = np.array([row.regret(row.truth.final) for row in rows])
    print(f"\nregret, best checkpoint: median {np.median(regret):.4f}, 90th percentile {np.quantile(regret, 0.9):.4f}")
    print(f"regret, last checkpoint: median {np.median(final):.4f}, 90th percentile {np.quantile(final, 0.9):.4f}")
    print(f"spread of a cell between seeds: {np.median([row.truth.seed_sd for row in rows]):.4f}")
    for n in (8, 16):
        leads_n = [x for row in rows if (x := row.beats(n)) is not None]
        won = sum(x > 0 for x in leads_n)
        print(f"planned n beats n = {n} in {won} of {len(leads_n)} sets where they differ, by {np.mean(leads_n):+.4f}")
    both = [x for row in rows for n in (8, 16) if (x := row.beats(n)) is not None]
    clear = [x for row in rows for n in (8, 16) if (x := row.beats(n)) is not None and abs(x) > 2 * row.error]
    print(f"together {sum(x > 0 for x in both)} of {len(both)}; {sum(x > 0 for x in clear)} of the {len(clear)} that")
    print(f"differ by more than two standard errors ({2 * np.median([row.error for row in rows]):.4f})")
    kept = [x for row in rows for n in (8, 16) if (x := row.beats(n, row.truth.kept)) is not None]
    regret_kept = [row.regret(row.truth.kept) for row in rows]
    print(f"by the checkpoint that each run's own evaluations are best at: {sum(x > 0 for x in kept)} of {len(kept)},")
    print(
        f"regret {np.median(regret_kept):.4f} in the median, {np.quantile(regret_kept, 0.9):.4f} at the 90th percentile"
    )
    could = [won for row in rows for won in row.halves_beat()]
    print(f"the best cell of half of the truth's seeds beats them by the other half in {sum(could)} of {len(could)}")
    held = np.mean([row.expected[1] <= row.truth.best[row.planned] <= row.expected[2] for row in rows])
    print(f"80% interval of the planned cell holds its true value in {held:.0%} of sets")
    halves = [[optimum(row.truth.halves[i]) for row in rows] for i in (0, 1)]
    print(f"n* of half of the truth's seeds with that of the other half {stats.spearmanr(*halves).statistic:.2f}")
    asked = [row.asked for row in rows if row.asked is not None]
    if len(asked) == len(rows):
        same, equal = ([getattr(one, name) for one in asked] for name in ("same", "equal"))
        print(f"--next: median share of the sweep {np.median(same):.2f} to the same decision,", end=" ")
        print(f"{np.median(equal):.2f} to one\nthat the whole sweep has within one standard error")


def speed() -> None:
    """A plan over the paper's full grid, inside the law's range and at five times it."""
    rng = np.random.default_rng(0)
    curves = []
    for bp in (32, 64, 128, 256, 512, 1024):
        for n in (8, 16, 32, 64, 128, 256, 512, 1024, 2048):
            if bp * n <= 65536:
                compute_C = np.geomspace(bp * n, 4e6, 30)
                top = 0.6 + 0.01 * np.log2(n)
                value_C = 0.4 + (top - 0.4) / (1 + (6e4 * n**0.6 / compute_C) ** 1.2) + 0.004 * rng.standard_normal(30)
                curves.append(Curve(f"{bp}x{n}", compute_C, value_C, bp, n, seed=0))
    law = fit_law(curves, metric="avg@4", replicates=1000)
    for budget in (2e6, 2e7):
        started, cpu = time.perf_counter(), time.process_time()
        plan = isocompute.plan(budget=budget, law=law)
        took, used = time.perf_counter() - started, time.process_time() - cpu
        members = plan.values_AB.shape[1]
        print(
            f"plan of {budget:.0e}, {len(plan.targets)} settings × {members} laws: {took:.2f} s ({used:.2f} s of CPU)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", type=int, default=16)
    parser.add_argument("--first", type=int, default=900)
    parser.add_argument("--budget", type=int, help="rollouts; the population's own where not given")
    parser.add_argument("--population", choices=sorted(POPULATIONS), default="anchored")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    rows = []
    for seed in range(args.first, args.first + args.sets):
        budget = args.budget or POPULATIONS[args.population].budget
        folder = args.folder / f"{seed}"
        rows.append(measure(folder, seed, budget, args.population, ask=not args.quick))
        print(f"set {seed} done", flush=True)
    show(rows)
    speed()


if __name__ == "__main__":
    main()
