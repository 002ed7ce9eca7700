"""Lists the allocations that a plan compares, and checks them against the law's range.

Candidates are the (Bp, n) that the law covers, the constraints allow and the budget pays for. M = ⌊C / (Bp · n)⌋ is the
largest number of updates within the budget. The three modes of the IsoCompute paper differ in what is fixed: Bp
(section 4.1), B = Bp · n (4.2), or nothing (4.3).

Curves of one Bp predict another one approximately. In figure 10 of the paper (n = 16), Bp moves the reward by 1.9
points on the easy set and by 2.2 on the hard set. n moves it by 9.2 and 3.1. So a law of one Bp is used for others
within a factor of `NEAR_PROBLEMS`, with the standard deviation of that figure in its draws.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from isocompute.core.allocation import Allocation
from isocompute.core.arrays import Array
from isocompute.core.errors import InputError
from isocompute.core.formatting import number
from isocompute.law.posterior import SAME
from isocompute.planner.cost.prices import Prices
from isocompute.planner.law import OWN, Curves, OptimumOnly, PlanningLaw
from isocompute.planner.published import published, siblings
from isocompute.planner.request import Budget, PlanRequest
from isocompute.planner.warnings import SMALL_SET, SMALL_SET_ROLLOUTS, PlanWarning

NEAR_PROBLEMS = 8
"""A law of one Bp is used for others up to this factor smaller or larger."""
FAR = 10.0
"""A budget outside a law's range by this factor is refused unless `extrapolate` is set."""
_OTHER_BASE = 0.05
"""If the base model's mean pass rate differs from the law's by more, the rewards differ too."""
LARGE_SET = 5000
"""A law measured on at least this many problems does not show how small sets overfit."""
_COMPUTES = 256
"""Computes at which the start of the law's range is searched."""
_TOGETHER = 1.25
"""Settings whose first points lie within this factor begin together."""


@dataclass(frozen=True)
class Constraints:
    """What an allocation must satisfy; None where there is no constraint."""

    problems_per_batch: int | None = None
    """Fixed Bp: the trade-off is n against M."""
    batch_size: int | None = None
    """Fixed B: the trade-off is Bp against n."""
    rollouts_per_problem: tuple[int, ...] | None = None
    """Allowed n."""
    stable_problems: tuple[int, int] | None = None
    """Smallest and largest stable Bp."""
    max_batch: int | None = None
    min_updates: int = 1
    gpus: int | None = None
    """GPUs over which a batch must divide evenly."""
    problems: int | None = None
    """D: a batch contains no problem twice."""
    most_rollouts: int | None = None
    """The largest n on a small set (`small_set_limit`)."""

    @classmethod
    def of(cls, request: PlanRequest) -> Constraints:
        """The constraints among a request's fields."""
        return cls(**request.model_dump(include=set(cls.__dataclass_fields__) - {"most_rollouts"}))

    @property
    def mode(self) -> str:
        """`n` (n against M), `batch` (Bp against n) or `joint`."""
        if self.batch_size is not None:
            return "batch"
        return "n" if self.problems_per_batch is not None else "joint"

    def violated_by(self, bp: int, n: int) -> list[str]:
        """The constraints that (Bp, n) violates, as the options that set them."""
        b, (low, high) = bp * n, self.stable_problems or (1, bp)
        allowed = self.rollouts_per_problem
        satisfied = {
            f"--problems-per-batch {self.problems_per_batch}": self.problems_per_batch in (None, bp),
            f"--batch {self.batch_size}": self.batch_size in (None, b),
            f"--n {','.join(map(str, allowed or ()))}": allowed is None or n in allowed,
            f"--stable-problems {low}-{high}": low <= bp <= high,
            f"--max-batch {self.max_batch}": self.max_batch is None or b <= self.max_batch,
            f"--gpus {self.gpus}": self.gpus is None or b % self.gpus == 0,
            f"--problems {self.problems}": (self.problems is None or bp <= self.problems)
            and (self.most_rollouts is None or n <= self.most_rollouts),
        }
        return [option for option, ok in satisfied.items() if not ok]


@dataclass(frozen=True)
class Sensitivity:
    """Ranges of the best reward in the paper's figure 10: over Bp = 32…1,024 at n = 16, and over n at Bp = 32."""

    problems_range: float
    rollouts_range: float
    problems_spread: float
    """Standard deviation over the six Bp."""


_FIGURE_10 = {"easy": Sensitivity(0.019, 0.092, 0.0065), "hard": Sensitivity(0.022, 0.031, 0.0085)}


def figure_10(law: PlanningLaw) -> Sensitivity | None:
    """The sensitivities of figure 10, for the paper's own laws; else None."""
    return _FIGURE_10.get(law.difficulty or "") if law.name.startswith("isocompute/") else None


def problems_between(law: PlanningLaw) -> tuple[int, int] | None:
    """The range of Bp that a law covers besides those it was measured at; None if it covers no others."""
    only, found = law.only_problems_per_batch(), [bp for bp, _ in law.model.settings()]
    if law.batch_size is not None:
        return None
    if only is not None:
        return -(-only // NEAR_PROBLEMS), only * NEAR_PROBLEMS
    return (min(found), max(found)) if law.model.interpolates() else None


def candidate_settings(law: PlanningLaw, constraints: Constraints) -> tuple[list[tuple[int, int]], list[PlanWarning]]:
    """The law's settings, and those asked for that it interpolates; a warning names any n that it does not cover."""
    known = law.model.settings()
    rollouts, wanted = {n for _, n in known}, constraints.rollouts_per_problem or ()
    found = known if law.batch_size is not None else _with_asked(law, constraints)
    missing = [n for n in wanted if n not in {n for _, n in found}]
    if not missing:
        return found, []
    listed, there = (", ".join(map(str, each)) for each in (missing, sorted(rollouts)))
    message = f"n = {listed} of --n was left out: {law.name} says nothing of it; it has n = {there}"
    return found, [PlanWarning("n_not_in_law", message)]


def _with_asked(law: PlanningLaw, constraints: Constraints) -> list[tuple[int, int]]:
    """The law's settings and those that the constraints ask for and the law covers."""
    known = law.model.settings()
    problems, rollouts = {bp for bp, _ in known}, {n for _, n in known}
    bp = constraints.problems_per_batch
    stable, between = constraints.stable_problems, problems_between(law)
    if bp is None and stable and not any(stable[0] <= each <= stable[1] for each in problems):
        bp = stable[0] if min(problems) < stable[0] else stable[1]  # the end nearest to the law's
    if bp and bp not in problems and between and law.only_problems_per_batch() is not None:
        if not between[0] <= bp <= between[1]:
            raise InputError(_too_far(law, bp, between, constraints))
        known, problems = [(bp, n) for _, n in known], {bp}
    if not law.model.interpolates():
        return known
    more = {n for n in constraints.rollouts_per_problem or () if min(rollouts) <= n <= max(rollouts)} - rollouts
    other = {bp} - problems if bp and between and between[0] <= bp <= between[1] else set()
    biggest = law.max_batch or max(bp * n for bp, n in known)
    if more or other:
        known = [(x, n) for x in sorted(problems | other) for n in sorted(rollouts | more) if x * n <= biggest]
    b = constraints.batch_size
    if b is None or b > biggest:
        return known
    # Bp against n at one B needs several settings of that B, which the law's grid may lack.
    problems, rollouts = problems | other, rollouts | more
    by_problems = [(x, b // x) for x in problems if b % x == 0 and min(rollouts) <= b // x <= max(rollouts)]
    by_rollouts = [(b // n, n) for n in rollouts if b % n == 0 and min(problems) <= b // n <= max(problems)]
    return sorted({*known, *by_problems, *by_rollouts})


def _too_far(law: PlanningLaw, bp: int, between: tuple[int, int], constraints: Constraints) -> str:
    """The message for a Bp outside the range that a law of one Bp covers."""
    instead = (
        f"run Bp = {bp} and fit it"
        if figure_10(law) is None
        else f"--law isocompute/joint-{law.difficulty}, which has Bp from 32 to 1,024"
    )
    nearest = min(max(bp, between[0]), between[1])
    asked, say = f"--problems-per-batch {bp}", f"--problems-per-batch {nearest}"
    if constraints.problems_per_batch is None and constraints.stable_problems is not None:
        asked = "--stable-problems {}-{}".format(*constraints.stable_problems)
        say = f"a --stable-problems with {nearest} in it"
    return (
        f"{asked}: {law.name} is of Bp = {law.only_problems_per_batch()} and answers for {between[0]} to {between[1]}; "
        f"say {say}, or {instead}."
    )


def small_set_limit(
    law: PlanningLaw, constraints: Constraints, settings: Sequence[tuple[int, int]]
) -> tuple[Constraints, list[PlanWarning]]:
    """A small training set caps n (IsoCompute figure 13): on 500 of the paper's problems n = 512 overfits.

    A law published for thousands of problems does not show this, so its larger n are left out on a small set. They stay
    if the user asks for them or if the `settings` have no smaller n.
    """
    foreign = law.setup != OWN and (law.problems or 0) >= LARGE_SET
    small = constraints.problems is not None and constraints.problems <= SMALL_SET
    able = {n for bp, n in settings if not constraints.violated_by(bp, n)}
    dropped = {n for n in able if n > SMALL_SET_ROLLOUTS}
    if not (foreign and small and dropped and able - dropped) or constraints.rollouts_per_problem is not None:
        return constraints, []
    message = (
        f"{constraints.problems:,} problems: n above {SMALL_SET_ROLLOUTS} is left out, since on 500 the paper's "
        f"frontier ends there and n = 512 overfits (figure 13); ask for it with --n {max(able)}"
    )
    return replace(constraints, most_rollouts=SMALL_SET_ROLLOUTS), [PlanWarning("small_set", message)]


def allocations(
    *,
    budget: float | Callable[[int, int], float],
    settings: Sequence[tuple[int, int]],
    constraints: Constraints | None = None,
    asked: Budget | None = None,
    least: float = 0.0,
    most: float = math.inf,
    problems_between: tuple[int, int] | None = None,
) -> list[Allocation]:
    """The allocations among these (Bp, n) that satisfy the constraints, with the most updates the budget allows.

    `budget` is in rollouts, or a function of (Bp, n) if GPU-hours or money buy more rollouts in some batches. The other
    arguments serve the suggestions in error messages. `asked` is the budget as given, `least` and `most` are the
    rollouts that the law plans without extrapolating, and `problems_between` are the Bp that it interpolates.

    >>> allocations(budget=2e6, settings=[(32, 256), (32, 512)], constraints=Constraints(max_batch=8192))
    [Allocation(problems_per_batch=32, rollouts_per_problem=256, update_steps=244)]
    """
    c = constraints or Constraints()

    def total(bp: int, n: int) -> int:
        rollouts = float(budget(bp, n) if callable(budget) else budget)
        return int(rollouts + min(1e-12 * rollouts, 0.25))  # conversions may end just below a whole number

    pairs = sorted(set(settings))
    able = [pair for pair in pairs if not c.violated_by(*pair)]
    if not able:
        raise InputError(_nothing_left(pairs, c, problems_between))
    out = [Allocation(bp, n, total(bp, n) // (bp * n)) for bp, n in able]
    out = [a for a in out if a.update_steps >= c.min_updates]
    if out:
        return out
    bp, n = min(able, key=lambda pair: pair[0] * pair[1])
    b, have = bp * n, total(bp, n)
    exact = float(budget(bp, n) if callable(budget) else budget)
    asked = asked or Budget(exact, "rollouts")
    buys = f"{asked}" if asked.unit == "rollouts" else f"{asked} ({have:,} rollouts)"
    enough = asked.times(max(c.min_updates * b, least) / exact)
    enough += " with --extrapolate" if c.min_updates * b > most else ""
    if have < b:
        smaller = [pair for pair in pairs if pair[0] * pair[1] * c.min_updates <= have and have >= least]
        also = ""
        if smaller:
            x, y = max(smaller, key=lambda pair: pair[0] * pair[1])
            also = f"; without {' and '.join(c.violated_by(x, y))}, {x} × {y} would fit"
        raise InputError(
            f"--budget: {buys} is under one batch of {bp} × {n} = {b:,} rollouts; the smallest that works is {enough}"
            f"{also}."
        )
    fewer = "" if have < least else f"say --min-updates {have // b} or "
    raise InputError(
        f"--min-updates {c.min_updates} with a budget of {buys} leaves no batch of {bp} × {n} = {b:,}, the smallest "
        f"there is: {fewer}raise the budget to {enough}."
    )


def _nothing_left(pairs: Sequence[tuple[int, int]], c: Constraints, between: tuple[int, int] | None) -> str:
    """The message if no setting is left: the constraints that exclude all, and changes that admit the nearest one."""

    def distance(pair: tuple[int, int]) -> tuple[int, float]:
        """Number of constraints that it violates, then how far its Bp, n and batch are from those asked for, in log."""
        bp, n = pair
        low, high = c.stable_problems or (1, bp)
        most = min(high, c.problems or high)
        off = abs(math.log(bp / (c.problems_per_batch or min(max(bp, low), max(most, 1)))))
        off += min(abs(math.log(n / wanted)) for wanted in c.rollouts_per_problem or (n,))
        off += abs(math.log(bp * n / (c.batch_size or min(bp * n, c.max_batch or bp * n))))
        return len(c.violated_by(bp, n)), off

    bp, n = min(pairs, key=distance)
    b, gpus, violated = bp * n, c.gpus or 1, c.violated_by(bp, n)
    names = sorted({text for pair in pairs for text in c.violated_by(*pair)[:1]} | set(violated))
    divisors = [d for d in range(1, b + 1) if b % d == 0] if f"--gpus {gpus}" in violated else [1]
    changes = {
        "--problems-per-batch": f"--problems-per-batch {bp}",
        "--batch": f"--batch {b}",
        "--n": f"--n {n}",
        "--stable-problems": f"a --stable-problems with {bp} in it",
        "--max-batch": f"--max-batch {b}",
        "--gpus": f"--gpus {min(divisors, key=lambda d: abs(math.log(d / gpus)))}",
        "--problems": f"at least {bp} problems",
    }
    needed = " and ".join(changes[option.split()[0]] for option in violated)
    # Another Bp that the law covers: one whose batch divides over the GPUs, or the largest that the set fills.
    low, high = between or (bp, bp)
    others: list[int] = []
    if violated == [f"--gpus {c.gpus}"]:
        odd = gpus // math.gcd(gpus, n)
        others = [odd * 2**k for k in range(high.bit_length()) if low <= odd * 2**k <= high]
    elif violated == [f"--problems {c.problems}"] and between:
        others = list(range(low, min(high, c.problems or 0) + 1))
    others = [x for x in others if not replace(c, problems_per_batch=x).violated_by(x, n)]
    instead = ""
    if others:
        x = min(others, key=lambda x: abs(math.log(x / bp)))
        instead = f", or {x} × {n} with --problems-per-batch {x}"
    return f"no setting of the law keeps to {' and '.join(names)}; {bp} × {n} would with {needed}{instead}."


def columns(law: PlanningLaw, prices: Prices, targets: Sequence[Allocation]) -> tuple[Array, Array, Array]:
    """Bp, n and compute in the law's unit, each as one array over the targets."""
    bp_A = np.array([float(a.problems_per_batch) for a in targets])
    n_A = np.array([float(a.rollouts_per_problem) for a in targets])
    per_A = [law.per_rollout(prices.rates(a.problems_per_batch, a.rollouts_per_problem)) for a in targets]
    return bp_A, n_A, np.array([a.compute for a in targets]) * np.array(per_A)


def values(law: PlanningLaw, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
    """Values, allocations × draws; if the law's only Bp replaces another, with the standard deviation of figure 10."""
    own_A = _own(law, problems_A)
    values_AB = law.values(own_A, rollouts_A, compute_A)
    foreign_A = own_A != problems_A
    if not (law.bounded and foreign_A.any()):
        return values_AB
    spread = (figure_10(law) or _FIGURE_10["hard"]).problems_spread  # the wider of the two for other laws
    z_B: Array = np.random.default_rng(10).standard_normal((1, values_AB.shape[1]))
    return np.asarray(np.clip(values_AB + foreign_A[:, None] * spread * (z_B - z_B.mean()), 0.0, 1.0))


def begun(law: PlanningLaw, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
    """Which allocations the law covers at their compute; if none, those whose curves begin first, within a quarter.

    Before a setting's first point its fitted curve is arbitrary.
    """

    def covered(compute_A: Array) -> Array:
        return law.model.begun(_own(law, problems_A), rollouts_A, compute_A).astype(np.bool_)

    begun_A = covered(compute_A)
    for compute in np.geomspace(compute_A.max(), max(law.last, compute_A.max()), _COMPUTES):
        if begun_A.any():
            break
        if covered(np.full(len(begun_A), compute)).any():
            begun_A = covered(np.full(len(begun_A), _TOGETHER * compute))
    return begun_A


def _own(law: PlanningLaw, problems_A: Array) -> Array:
    """The Bp at which the law is evaluated: its only one, or those asked for."""
    only = law.only_problems_per_batch()
    return problems_A if only is None else np.full(len(problems_A), float(only))


def planned_range(law: PlanningLaw, prices: Prices, *, extrapolate: bool = False) -> tuple[float, float]:
    """The fewest and most rollouts that may be planned; unlimited if a rollout's cost in the law's unit is unknown."""
    bp, n = min(law.model.settings(), key=lambda pair: pair[0] * pair[1])
    rates = prices.rates(bp, n)
    known = rates.known(law.unit) or law.gpu_hours_per_rollout is not None
    if extrapolate or not known:
        return 0.0, math.inf
    return law.first / FAR / law.per_rollout(rates), law.last * FAR / law.per_rollout(rates)


def range_warnings(
    law: PlanningLaw, budget: Budget, prices: Prices, targets: Sequence[Allocation], extrapolate: bool
) -> list[PlanWarning]:
    """Raise if the budget is far outside the law's range, and warn if it is outside."""
    rates = [prices.rates(a.problems_per_batch, a.rollouts_per_problem) for a in targets]
    most = max(r.rollouts(budget) * law.per_rollout(r) for r in rates)
    times = law.outside(most)
    unit = law.unit.replace("gpu_hours", "GPU-hours")
    span = f"{number(law.first)}–{number(law.last)} {unit}"
    given = f"{number(most)} {unit}"
    if law.unit == "gpu_hours" and law.gpu_hours_per_rollout is not None and law.setup != OWN:
        # These are hours of the machines that the law was measured on, not the user's.
        given = f"{budget} buys rollouts that took {given} on the machines of {law.name}'s paper, which"
    far, factor = max(times, 1 / times) > FAR * (1 + 1e-6), max(times, 1 / times)
    off = f"{factor:,.0f}" if factor >= 10 else f"{factor:.2g}"
    off += f" times {'above' if times > 1 else 'below'}"
    if far and not extrapolate:
        nearest = law.last * FAR if times > 1 else law.first / FAR
        raise InputError(
            f"--budget: {given} is {off} the range of {law.name}, {span}; plan for at "
            f"{'most' if times > 1 else 'least'} --budget {budget.times(nearest / most, at_most=times > 1)}, or say "
            "--extrapolate."
        )
    if factor <= SAME:
        return []
    basis = "the expectation rests on the form of the curves and the trend at their ends, not on data"
    if isinstance(law.model, OptimumOnly):
        made = (
            "stays at the law's last point"
            if times > 1
            else "follows, down to the base, the slope of the law's first two points"
        )
        basis = f"the expectation {made}, less certain with each doubling of compute"
    code = "far_extrapolation" if far else "extrapolation"
    return [PlanWarning(code, f"{given} is {off} the range of {law.name}, {span}: {basis}")]


def law_warnings(
    law: PlanningLaw, *, difficulty: str | None, anchor_given: bool, mean_rate: float | None = None
) -> list[PlanWarning]:
    """Warn of a law of another difficulty or base model, and of a learning rate that the law's runs do not give."""
    out = []
    base = _base(law)
    if mean_rate is not None and base is not None and abs(mean_rate - base) > _OTHER_BASE:
        out.append(
            PlanWarning(
                "base_differs",
                f"the expectation is of the law's own set, where the base model is at {base:.2f}; at yours it is at "
                f"{mean_rate:.2f}: take the allocation, not the reward",
            )
        )
    if law.setup != OWN and law.difficulty and difficulty and law.difficulty != difficulty:
        wanted, of = law.name.replace("easy", difficulty).replace("hard", difficulty), siblings(law.name, difficulty)
        near = difflib.get_close_matches(wanted, of, n=1, cutoff=0.0)
        family = law.name.partition("/")[0]
        use = f"use --law {near[0]}" if near else f"none of {family}'s laws is of a {difficulty} set"
        out.append(
            PlanWarning(
                "difficulty_differs",
                f"the law is of {'an' if law.difficulty == 'easy' else 'a'} {law.difficulty} set, yours is "
                f"{difficulty}: n* and the reward differ between the two; {use}",
            )
        )
    runs = law.runs_recipe
    if runs is not None and "learning_rate" not in runs.fields and not anchor_given:
        out.append(
            PlanWarning(
                "anchor_unknown",
                "the learning rate is scaled from the paper's 1e-06 at a batch of 1,024 (Qwen2.5-7B-Instruct); "
                f"{runs.why_not('learning_rate')}: say --lr-reference RATE@BATCH",
            )
        )
    return out


def _base(law: PlanningLaw) -> float | None:
    """The reward before training of a published law's set; None for a law of the user's runs."""
    if law.runs_recipe is not None or not law.metric.startswith("avg@"):
        return None
    if isinstance(law.model, OptimumOnly):
        return law.model.base
    return float(np.median([fit.base for fit in law.model.fits])) if isinstance(law.model, Curves) else None


def way_to_find_out(law: PlanningLaw, rollouts: float) -> str:
    """How to test whether a published law holds on the user's setup, with the command to type.

    The command's budget is in rollouts, so it needs no throughput. A law of a single setting has no run to propose.
    """
    known = law.model.settings()
    if len(known) == 1:
        bp, n = known[0]
        return f"it knows {bp} × {n} alone; run other n or Bp on yours (`isocompute study`) and plan with --law RUNS"
    command, name = "this command with --next 4", law.name
    if law.runs_recipe is None:
        if not isinstance(law.model, Curves):  # only a law of curves can propose runs
            curves = [s for s in siblings(name, law.difficulty) if isinstance(published(s, replicates=2).model, Curves)]
            name = difflib.get_close_matches(name, curves, n=1, cutoff=0.0)[0]
            law = published(name, replicates=2)
        within = law.outside(rollouts * (law.gpu_hours_per_rollout or 1.0 if law.unit == "gpu_hours" else 1.0))
        far = " --extrapolate" if not 1 / FAR < within < FAR else ""
        command = f"`isocompute plan --budget {int(rollouts)} --law {name} --next 4{far}`"
    return f"run a few of its settings on yours; {command} says which it is least sure of"
