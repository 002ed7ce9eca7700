"""Laws and plans on worlds of the papers' kind: regret beside simple rules, verdicts on n*, and what intervals hold.

    python benchmarks/law_worlds.py [--worlds worlds|audit] [--first 0] [--count 60]

A world of `worlds.py`, or of the independently written `worlds_audit.py`, is a sweep whose true curves are known. It
is seen up to C, C/4 and C/8, a law is fitted, and C = 4M rollouts are planned. Regret is the true value of the best
configuration less that of the chosen one. Beside `isocompute plan`: the best constant n in hindsight, always n = 32,
the leader at the end of the data, independent Hill fits, and a thirty-line hierarchical fit (`baselines.py`). Worlds
below 1,000 are for development; the others were looked at once.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse
import functools
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
import worlds
import worlds_audit
from baselines import Pair, constant, hierarchical, independent_hill, leader

import isocompute
from isocompute.core.curve import Curve
from isocompute.law.law import fit_law

CUTS = (1, 4, 8)
SAMPLES = 400
RULES: dict[str, Callable[[Sequence[worlds.Run], float], Pair]] = {
    "n = 32": functools.partial(constant, 32),
    "leader": leader,
    "Hill": independent_hill,
    "thirty lines": hierarchical,
}


@dataclass(frozen=True)
class Result:
    """What was found in one world with the data up to C / cut."""

    kind: str
    cut: int
    true_direction: str
    direction: str
    regret: dict[str, float]
    """Of the plan, of each rule, and of every n."""
    held: bool
    """Whether the 80% interval of the chosen configuration holds its true value."""
    all_held: tuple[bool, ...]
    optimum_held: tuple[bool, ...]
    """Whether the 95% interval of n* holds the best n, at computes along the data."""
    optimum_width: tuple[float, ...]
    """Doublings that it spans."""
    chance: float | None
    """Stated chance that the best expected configuration is the best."""
    is_best: bool


def curves_of(runs: Iterable[worlds.Run]) -> list[Curve]:
    """The runs as the package has them."""
    out = []
    for run in runs:
        if len(run.values) >= 4 and np.ptp(run.values) > 0:
            bp, n = run.problems_per_batch, run.rollouts_per_problem
            out.append(Curve(f"{bp}x{n}-s{run.seed}", run.compute, run.values, bp, n, seed=run.seed))
    return out


def true_direction(world: worlds.World | worlds_audit.World) -> str:
    """Whether the best n moves from where configurations first differ to the budget, and leads there by over .003."""
    pairs = sorted(world.settings, key=lambda pair: pair[1])
    compute_C = np.geomspace(0.02 * world.budget, world.budget, 200)
    values_SC = np.stack([world.truth(*pair, compute_C) for pair in pairs])
    apart_C = np.ptp(values_SC, axis=0) > worlds_audit.SEPARATED
    if not apart_C.any():
        return "flat"
    n_S = np.array([n for _, n in pairs])
    early, late = n_S[values_SC.argmax(axis=0)[[int(apart_C.argmax()), -1]]].tolist()
    kept = values_SC[n_S == early, -1].max()
    if early == late or values_SC[:, -1].max() - kept <= worlds_audit.BEATEN:
        return "flat"
    return "rises" if late > early else "falls"


def study(module: str, number: int, cut: int) -> Result | None:
    """One world, seen up to C / cut."""
    warnings.simplefilter("ignore")
    world = (worlds_audit if module == "audit" else worlds).draw_world(number)
    budget, runs = world.budget, world.runs(until=world.budget / cut)
    runs = [run for run in runs if len(run.values) >= 4 and np.ptp(run.values) > 0]
    if not runs:
        return None
    law = fit_law(curves_of(runs), metric="avg@4", replicates=SAMPLES)
    rollouts = sorted({n for _, n in world.settings})
    plan = isocompute.plan(budget=budget, law=law, rollouts_per_problem=tuple(rollouts), extrapolate=True)
    truth = {pair: float(world.truth(*pair, budget)) for pair in world.settings}
    best = max(truth.values())

    def pair(option: object) -> Pair:
        a = option.allocation  # type: ignore[attr-defined]
        return a.problems_per_batch, a.rollouts_per_problem

    regret = {"plan": best - truth[pair(plan.chosen)]}
    regret |= {name: best - truth[rule(runs, budget)] for name, rule in RULES.items()}
    for n in rollouts:
        near = min(truth, key=lambda each, n=n: (each[1] != n, abs(np.log2(each[0] / 32))))
        regret[f"n={n}"] = best - truth[near]
    low, high = plan.chosen.ranked.interval
    highest = min((plan.chosen, *plan.alternatives), key=lambda option: option.ranked.regret)
    every = [(truth[pair(o)], o.ranked.interval) for o in (plan.chosen, *plan.alternatives) if pair(o) in truth]
    optimum = law.joint.rollouts
    held, width = [], []
    if optimum is not None and cut == 1 and world.kind != "null":
        for compute in np.geomspace(max(optimum.x_C[0], 0.03 * budget), optimum.x_C[-1], 9):
            i = int(np.abs(np.log(optimum.x_C / compute)).argmin())
            at = {each: float(world.truth(*each, float(optimum.x_C[i]))) for each in world.settings}
            top = max(at.values())
            ahead = {n for (_, n), value in at.items() if value >= top - 1e-9}
            a, b = optimum.interval_C2[i]
            held.append(any(a <= n <= b for n in ahead))
            width.append(float(np.log2(b / a)))
    return Result(
        kind=world.kind,
        cut=cut,
        true_direction=true_direction(world),
        direction="none" if optimum is None else optimum.direction,
        regret=regret,
        held=low <= truth[pair(plan.chosen)] <= high,
        all_held=tuple(a <= value <= b for value, (a, b) in every),
        optimum_held=tuple(held),
        optimum_width=tuple(width),
        chance=highest.ranked.probability_best,
        is_best=truth[pair(highest)] >= best - 1e-9,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", choices=("worlds", "audit"), default="worlds")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.count)
    jobs = [(options.worlds, number, cut) for number in numbers for cut in CUTS]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = [r for r in pool.map(study, *zip(*jobs, strict=True), chunksize=4) if r is not None]
    print(f"{options.worlds} {numbers[0]}–{numbers[-1]}, {len(found)} laws")
    regrets(found)
    verdicts(found)
    intervals(found)


def name_of(cut: int) -> str:
    return "C" if cut == 1 else f"C/{cut}"


def regrets(found: Sequence[Result]) -> None:
    """Mean regret by kind of world."""
    names = ["plan", *RULES]
    everywhere = set.intersection(*({n for n in r.regret if n.startswith("n=")} for r in found))
    kinds = ["all", *dict.fromkeys(r.kind for r in found)]
    print(f"\nmean regret\n{'worlds':8s}{'data to':>8s}" + "".join(f"{n:>14s}" for n in [*names, "best constant"]))
    for kind in kinds:
        for cut in CUTS:
            mine = [r for r in found if r.cut == cut and kind in ("all", r.kind)]
            if not mine:
                continue
            means = [float(np.mean([r.regret[name] for r in mine])) for name in names]
            constants = [float(np.mean([r.regret[n] for r in mine])) for n in everywhere]
            means.append(min(constants, default=np.nan))
            print(f"{kind:8s}{name_of(cut):>8s}" + "".join(f"{mean:14.4f}" for mean in means))


def verdicts(found: Sequence[Result]) -> None:
    """How often each direction is said, by the true one."""
    print("\nn* said to rise / fall, of worlds")
    by: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for r in found:
        by[r.true_direction, r.kind, r.cut].append(r.direction)
        by[r.true_direction, "all", r.cut].append(r.direction)
    for (true, kind, cut), said in sorted(by.items()):
        counts = f"{said.count('rises')} / {said.count('falls')} of {len(said)}"
        print(f"  truly {true:6s} {kind:6s} data to {name_of(cut):4s} {counts}")
    never = [r.direction for r in found if r.true_direction != "falls"]
    flat = [r.direction for r in found if r.true_direction != "rises"]
    print(f"  false falls {np.mean([d == 'falls' for d in never]):.1%}", end=", ")
    print(f"false rises {np.mean([d == 'rises' for d in flat]):.1%}")


def intervals(found: Sequence[Result]) -> None:
    """Coverage of intervals, and calibration of chances."""
    print("\n80% intervals hold the chosen / every configuration's true value")
    for cut in CUTS:
        mine = [r for r in found if r.cut == cut]
        null = [r.held for r in mine if r.kind == "null"]
        every = [held for r in mine for held in r.all_held]
        print(f"  data to {name_of(cut):4s} {np.mean([r.held for r in mine]):.0%} / {np.mean(every):.0%}", end="")
        print(f"; null worlds {np.mean(null):.0%}" if null else "")
    held = [h for r in found for h in r.optimum_held]
    width = [w for r in found for w in r.optimum_width]
    if held:
        print(
            f"95% intervals of n* hold the best n: {np.mean(held):.1%}; median width {np.median(width):.1f} doublings"
        )
    stated = [(r.chance, r.is_best) for r in found if r.chance is not None and r.kind != "null"]
    print("stated chance of being best, and how often it was")
    for low in np.arange(0.0, 1.0, 0.1):
        mine_ = [(c, b) for c, b in stated if low <= c < low + 0.1 + (low > 0.85)]
        if mine_:
            print(f"  {low:.1f}–{low + 0.1:.1f}: {len(mine_):4d} stated {np.mean([c for c, _ in mine_]):.2f}", end="")
            print(f" was {np.mean([b for _, b in mine_]):.2f}")


if __name__ == "__main__":
    main()
