"""The allocations a budget and its constraints allow: every (Bp, n) of a grid with as many updates as fit.

M = ⌊C / (Bp · n)⌋, so an allocation never exceeds the budget and no integer M uses more of it. The three modes of the
IsoCompute paper are three choices of what is held: Bp (section 4.1), B = Bp · n (4.2), or nothing (4.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral

import numpy as np

from isocompute.core.allocation import Allocation
from isocompute.core.arrays import Array
from isocompute.core.errors import InputError
from isocompute.core.formatting import number
from isocompute.planner.budget import Budget
from isocompute.planner.cost.prices import Prices
from isocompute.planner.decide import Ranked
from isocompute.planner.extrapolation import SAME, Curves, centred, held
from isocompute.planner.law import OWN, OptimumOnly, PlanningLaw
from isocompute.planner.warnings import SMALL_SET, SMALL_SET_ROLLOUTS, Warned

__all__ = [
    "Constraints",
    "FAR",
    "allocations",
    "allowed_rollouts",
    "asked_settings",
    "begun",
    "columns",
    "figure_10",
    "hold_to_set",
    "left_out_rollouts",
    "only_problems",
    "planned_range",
    "problems_between",
    "range_warnings",
    "setting_warnings",
    "started",
    "values",
]


def allowed_rollouts(given: int | Sequence[int] | None) -> tuple[int, ...] | None:
    """The n of `Constraints` from one number or several.

    >>> allowed_rollouts(32), allowed_rollouts([16, 8, 16]), allowed_rollouts(None)
    ((32,), (8, 16), None)
    """
    if given is None:
        return None
    return tuple(sorted(set(given))) if isinstance(given, Iterable) else (given,)


@dataclass(frozen=True)
class Constraints:
    """What an allocation must keep to; None where nothing is asked."""

    problems_per_batch: int | None = None
    """Fixed Bp: the trade-off is n against M."""
    batch_size: int | None = None
    """Fixed B: the trade-off is Bp against n."""
    rollouts_per_problem: tuple[int, ...] | None = None
    """Allowed n."""
    problems_range: tuple[int, int] | None = None
    """Smallest and largest stable Bp."""
    max_batch: int | None = None
    min_updates: int = 1
    gpus: int | None = None
    """A batch must divide evenly over them."""
    problems: int | None = None
    """D: a batch holds no problem twice."""
    most_rollouts: int | None = None
    """The largest n on so few problems (`plan.small_sets`)."""

    @property
    def mode(self) -> str:
        """`n` (n against M), `batch` (Bp against n) or `joint`."""
        if self.batch_size is not None:
            return "batch"
        return "n" if self.problems_per_batch is not None else "joint"

    def check(self) -> None:
        """Refuse invalid constraints, and those that exclude each other whatever the law and the budget."""
        self._check_numbers()
        bp, b = self.problems_per_batch, self.batch_size
        if b and self.max_batch and b > self.max_batch:
            raise InputError(f"--batch {b} with --max-batch {self.max_batch}: raise --max-batch to {b}.")
        if self.problems_range and self.problems_range[0] > self.problems_range[1]:
            low, high = self.problems_range
            raise InputError(f"--stable-problems {low}-{high}: the range is empty; say {high}-{low}.")
        if bp and self.problems_range and not self.problems_range[0] <= bp <= self.problems_range[1]:
            low, high = self.problems_range
            raise InputError(
                f"--problems-per-batch {bp} with --stable-problems {low}-{high}: say --problems-per-batch "
                f"{min(max(bp, low), high)}."
            )

    def _check_numbers(self) -> None:
        """The command line asks for whole numbers of at least 1; from Python anything can come."""
        single = {
            "--problems-per-batch": (self.problems_per_batch, 32),
            "--batch": (self.batch_size, 8192),
            "--max-batch": (self.max_batch, 8192),
            "--min-updates": (self.min_updates, 1),
            "--gpus": (self.gpus, 8),
            "--problems": (self.problems, 6000),
        }
        for option, (value, example) in single.items():
            if value is not None and not _counts(value):
                raise InputError(f"{option} {value}: give a whole number of at least 1, such as {example}.")
        wanted, span = self.rollouts_per_problem, self.problems_range
        if wanted is not None and not (wanted and all(map(_counts, wanted))):
            listed = ",".join(map(str, wanted)) or "of nothing"
            raise InputError(f"--n {listed}: give whole numbers of at least 1, such as 8,16,32.")
        if span is not None and not all(map(_counts, span)):
            listed = "-".join(map(str, span))
            raise InputError(f"--stable-problems {listed}: give the smallest and the largest Bp, such as 32-256.")

    def broken_by(self, bp: int, n: int) -> list[str]:
        """The constraints that (Bp, n) breaks, as the options that say them."""
        b, low, high = bp * n, *(self.problems_range or (1, bp))
        wanted = self.rollouts_per_problem
        held = {
            f"--problems-per-batch {self.problems_per_batch}": self.problems_per_batch in (None, bp),
            f"--batch {self.batch_size}": self.batch_size in (None, b),
            f"--n {','.join(map(str, wanted or ()))}": wanted is None or n in wanted,
            f"--stable-problems {low}-{high}": low <= bp <= high,
            f"--max-batch {self.max_batch}": self.max_batch is None or b <= self.max_batch,
            f"--gpus {self.gpus}": self.gpus is None or b % self.gpus == 0,
            f"--problems {self.problems}": (self.problems is None or bp <= self.problems)
            and (self.most_rollouts is None or n <= self.most_rollouts),
        }
        return [option for option, kept in held.items() if not kept]


def _counts(value: object) -> bool:
    return isinstance(value, Integral) and int(value) >= 1


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
    """The allocations of a grid of (Bp, n) that keep to the constraints, with the most updates the budget allows.

    `budget` is in rollouts; a function of (Bp, n) where GPU-hours or money buy more rollouts in one batch than another.
    The rest is for the messages, so that what they suggest works: `asked` is the budget as the user has it, `least` and
    `most` the rollouts that the law plans without being asked to extrapolate, `problems_between` the Bp that it answers
    for without having run them.

    >>> allocations(budget=2e6, settings=[(32, 256), (32, 512)], constraints=Constraints(max_batch=8192))
    [Allocation(problems_per_batch=32, rollouts_per_problem=256, update_steps=244)]
    """
    held = constraints or Constraints()
    held.check()
    total = _whole(budget)
    pairs = sorted(set(settings))
    able = [pair for pair in pairs if not held.broken_by(*pair)]
    if not able:
        raise InputError(_nothing_left(pairs, held, problems_between))
    out = [Allocation(bp, n, total(bp, n) // (bp * n)) for bp, n in able]
    out = [a for a in out if a.update_steps >= held.min_updates]
    if out:
        return out
    bp, n = min(able, key=lambda pair: pair[0] * pair[1])
    b, have = bp * n, total(bp, n)
    exact = float(budget(bp, n) if callable(budget) else budget)
    asked = asked or Budget(exact, "rollouts")
    buys = f"{asked}" if asked.unit == "rollouts" else f"{asked} ({have:,} rollouts)"
    enough = asked.times(max(held.min_updates * b, least) / exact)
    enough += " with --extrapolate" if held.min_updates * b > most else ""
    if have < b:
        raise InputError(
            f"--budget: {buys} is under one batch of {bp} × {n} = {b:,} rollouts; the smallest that works is {enough}"
            + ("." if have < least else _also(pairs, held, have))
        )
    fewer = "" if have < least else f"say --min-updates {have // b} or "
    raise InputError(
        f"--min-updates {held.min_updates} with a budget of {buys} leaves no batch of {bp} × {n} = {b:,}, the smallest "
        f"there is: {fewer}raise the budget to {enough}."
    )


def _whole(budget: float | Callable[[int, int], float]) -> Callable[[int, int], int]:
    """The budget of a setting in whole rollouts; one that a conversion left a hair below a whole number is that."""

    def whole(rollouts: float) -> int:
        return int(rollouts + min(1e-12 * rollouts, 0.25))

    if callable(budget):
        return lambda bp, n: whole(budget(bp, n))
    return lambda _bp, _n: whole(budget)


def _also(pairs: Sequence[tuple[int, int]], held: Constraints, total: int) -> str:
    smaller = [pair for pair in pairs if pair[0] * pair[1] * held.min_updates <= total]
    if not smaller:
        return "."
    bp, n = max(smaller, key=lambda pair: pair[0] * pair[1])
    return f"; without {' and '.join(held.broken_by(bp, n))}, {bp} × {n} would fit."


def _nothing_left(pairs: Sequence[tuple[int, int]], held: Constraints, between: tuple[int, int] | None) -> str:
    """Which constraints contradict the law or each other, and the changes that let the nearest setting through."""
    bp, n = min(pairs, key=lambda pair: _distance(pair, held))
    broken = held.broken_by(bp, n)
    names = sorted({text for pair in pairs for text in held.broken_by(*pair)[:1]} | set(broken))
    changes = {
        "--problems-per-batch": f"--problems-per-batch {bp}",
        "--batch": f"--batch {bp * n}",
        "--n": f"--n {n}",
        "--stable-problems": f"a --stable-problems with {bp} in it",
        "--max-batch": f"--max-batch {bp * n}",
        "--gpus": f"--gpus {_divisor(bp * n, held.gpus or 1)}",
        "--problems": f"at least {bp} problems",
    }
    needed = " and ".join(changes[option.split()[0]] for option in broken)
    other = None
    if broken == [f"--gpus {held.gpus}"]:
        other = _divided(bp, n, held, between)
    elif broken == [f"--problems {held.problems}"]:
        other = _smaller(n, held, between)
    instead = "" if other is None else f", or {other} × {n} with --problems-per-batch {other}"
    return f"no setting of the law keeps to {' and '.join(names)}; {bp} × {n} would with {needed}{instead}."


def _divisor(b: int, wanted: int) -> int:
    """The number of GPUs that divides a batch and is nearest to the one wanted, in ratio."""
    return min((d for d in range(1, b + 1) if b % d == 0), key=lambda d: abs(math.log(d / wanted)))


def _divided(bp: int, n: int, held: Constraints, between: tuple[int, int] | None) -> int | None:
    """The nearest Bp that the law answers for and that makes a batch of this n divide by the GPUs."""
    gpus = held.gpus or 1
    low, high = between or (bp, bp)
    odd = gpus // math.gcd(gpus, n)
    sizes = [odd * 2**k for k in range(high.bit_length()) if low <= odd * 2**k <= high]
    kept = [x for x in sizes if not replace(held, problems_per_batch=x).broken_by(x, n)]
    return min(kept, key=lambda x: abs(math.log(x / bp)), default=None)


def _smaller(n: int, held: Constraints, between: tuple[int, int] | None) -> int | None:
    """The largest Bp that the law answers for and that the set fills."""
    low, high = between or (1, 0)
    sizes = range(min(high, held.problems or 0), low - 1, -1)
    return next((x for x in sizes if not replace(held, problems_per_batch=x).broken_by(x, n)), None)


def _distance(pair: tuple[int, int], held: Constraints) -> tuple[int, float]:
    """How many constraints a setting breaks, then how many times its Bp, n and batch are off those asked for."""
    bp, n = pair
    low, high = held.problems_range or (1, bp)
    most = min(high, held.problems or high)
    off = abs(math.log(bp / (held.problems_per_batch or min(max(bp, low), max(most, 1)))))
    off += min(abs(math.log(n / wanted)) for wanted in held.rollouts_per_problem or (n,))
    b = bp * n
    off += abs(math.log(b / (held.batch_size or min(b, held.max_batch or b))))
    return len(held.broken_by(bp, n)), off


# Which settings a law is asked about, at which compute, and what stands in for a Bp that was not run.

NEAR_PROBLEMS = 8
"""A law of one Bp answers for others up to this many times smaller or larger."""
_LOOKS = 256
_TOGETHER = 1.25
"""Settings whose first points are this many times apart begin together."""


@dataclass(frozen=True)
class Sensitivity:
    """What figure 10 shows of a problem set: best rewards over Bp = 32…1,024 at n = 16, and over n at Bp = 32."""

    problems_range: float
    rollouts_range: float
    problems_spread: float
    """Standard deviation over the six Bp."""


_FIGURE_10 = {"easy": Sensitivity(0.019, 0.092, 0.0065), "hard": Sensitivity(0.022, 0.031, 0.0085)}


def figure_10(law: PlanningLaw) -> Sensitivity | None:
    """The paper's figure, for the paper's laws."""
    return _FIGURE_10.get(law.difficulty or "") if law.name.startswith("isocompute/") else None


def only_problems(law: PlanningLaw) -> int | None:
    """The Bp of a law of one Bp."""
    found = {bp for bp, _ in law.model.settings()}
    return next(iter(found)) if len(found) == 1 else None


def problems_between(law: PlanningLaw) -> tuple[int, int] | None:
    """The range of Bp that a law answers for besides those it has; None where it has only those."""
    only, found = only_problems(law), [bp for bp, _ in law.model.settings()]
    if law.batch_size is not None:
        return None
    if only is not None:
        return -(-only // NEAR_PROBLEMS), only * NEAR_PROBLEMS
    return (min(found), max(found)) if law.model.interpolates() else None


def asked_settings(law: PlanningLaw, held: Constraints) -> list[tuple[int, int]]:
    """The law's settings, and those that were asked for and that it answers for without having run them."""
    known = law.model.settings()
    if law.batch_size is not None:
        return known
    problems, rollouts = {bp for bp, _ in known}, {n for _, n in known}
    bp, wanted = held.problems_per_batch or _stable(problems, held), held.rollouts_per_problem or ()
    between = problems_between(law)
    if bp and bp not in problems and between and only_problems(law) is not None:
        if not between[0] <= bp <= between[1]:
            raise InputError(_too_far(law, bp, between, held))
        known, problems = [(bp, n) for _, n in known], {bp}
    if law.model.interpolates():
        more = {n for n in wanted if min(rollouts) <= n <= max(rollouts)} - rollouts
        other = {bp} - problems if bp and between and between[0] <= bp <= between[1] else set()
        biggest = law.max_batch or max(bp * n for bp, n in known)
        if more or other:
            known = [(x, n) for x in sorted(problems | other) for n in sorted(rollouts | more) if x * n <= biggest]
        if held.batch_size is not None and held.batch_size <= biggest:
            known = sorted({*known, *_of_batch(held.batch_size, problems | other, rollouts | more)})
    return known


def _stable(problems: set[int], held: Constraints) -> int | None:
    """The Bp that a range of stable ones asks for where the law has none in it: the nearest of its ends."""
    if held.problems_range is None:
        return None
    low, high = held.problems_range
    if low > high or any(low <= bp <= high for bp in problems):
        return None
    return low if min(problems) < low else high


def _of_batch(batch: int, problems: set[int], rollouts: set[int]) -> list[tuple[int, int]]:
    """Settings of one batch with a Bp or an n of the law and the other between those it has: Bp against n at fixed B
    needs several, and a grid of both need not have them.
    """
    low, high = min(problems), max(problems)
    least, most = min(rollouts), max(rollouts)
    by_problems = [(bp, batch // bp) for bp in problems if batch % bp == 0 and least <= batch // bp <= most]
    by_rollouts = [(batch // n, n) for n in rollouts if batch % n == 0 and low <= batch // n <= high]
    return by_problems + by_rollouts


def left_out_rollouts(law: PlanningLaw, held: Constraints, settings: Sequence[tuple[int, int]]) -> list[Warned]:
    """Say which n were asked for that the law knows nothing about; `settings` are those it was asked about."""
    known = {n for _, n in settings}
    missing = [n for n in held.rollouts_per_problem or () if n not in known]
    if not missing:
        return []
    listed, there = (", ".join(map(str, each)) for each in (missing, sorted({n for _, n in law.model.settings()})))
    return [
        Warned("n_not_in_law", f"n = {listed} of --n was left out: {law.name} says nothing of it; it has n = {there}")
    ]


def _too_far(law: PlanningLaw, bp: int, between: tuple[int, int], held: Constraints) -> str:
    instead = (
        f"run Bp = {bp} and fit it"
        if figure_10(law) is None
        else f"--law isocompute/joint-{law.difficulty}, which has Bp from 32 to 1,024"
    )
    nearest = min(max(bp, between[0]), between[1])
    said, say = f"--problems-per-batch {bp}", f"--problems-per-batch {nearest}"
    if held.problems_per_batch is None and held.problems_range is not None:
        said, say = "--stable-problems {}-{}".format(*held.problems_range), f"a --stable-problems with {nearest} in it"
    return (
        f"{said}: {law.name} is of Bp = {only_problems(law)} and answers for {between[0]} to {between[1]}; say {say}, "
        f"or {instead}."
    )


def columns(law: PlanningLaw, prices: Prices, targets: Sequence[Allocation]) -> tuple[Array, Array, Array]:
    """Bp, n and compute in the law's unit."""
    bp_A = np.array([float(a.problems_per_batch) for a in targets])
    n_A = np.array([float(a.rollouts_per_problem) for a in targets])
    per_A = [law.per_rollout(prices.rates(a.problems_per_batch, a.rollouts_per_problem)) for a in targets]
    return bp_A, n_A, np.array([a.compute for a in targets]) * np.array(per_A)


def values(law: PlanningLaw, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
    """Allocations × members; where the law's only Bp stands in for another, with what that may change."""
    own_A = _own(law, problems_A)
    values_AB = law.values(own_A, rollouts_A, compute_A)
    foreign_A = own_A != problems_A
    if not (law.bounded and foreign_A.any()):
        return values_AB
    spread = (figure_10(law) or _FIGURE_10["hard"]).problems_spread  # the wider of the two for other laws
    effect_B = spread * centred(np.random.default_rng(10), (1, values_AB.shape[1]))[0]
    return held(values_AB + foreign_A[:, None] * effect_B, 0.0, 1.0)


def begun(law: PlanningLaw, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
    """Which allocations the law says anything about at so little compute; where it is none, the settings that begin
    first, give or take a quarter: before that, values are where fits of different n happen to meet the axis.
    """
    begun_A = started(law, problems_A, rollouts_A, compute_A)
    for compute in np.geomspace(compute_A.max(), max(law.last, compute_A.max()), _LOOKS):
        if begun_A.any():
            break
        if started(law, problems_A, rollouts_A, np.full(len(begun_A), compute)).any():
            begun_A = started(law, problems_A, rollouts_A, np.full(len(begun_A), _TOGETHER * compute))
    return begun_A


def started(law: PlanningLaw, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
    """Which allocations the law says anything about."""
    return law.model.begun(_own(law, problems_A), rollouts_A, compute_A).astype(np.bool_)


def _own(law: PlanningLaw, problems_A: Array) -> Array:
    """A law of one Bp answers with that one."""
    only = only_problems(law)
    return problems_A if only is None else np.full(len(problems_A), float(only))


# A small training set caps n: IsoCompute figure 13.

LARGE_SET = 5000
"""A law of this many problems was not measured on a small set."""


def hold_to_set(
    law: PlanningLaw, held: Constraints, settings: Sequence[tuple[int, int]]
) -> tuple[Constraints, list[Warned]]:
    """The constraints with the largest n that the set allows, and the warning that names what is left out.

    n that are asked for by name stay, and so does everything where a smaller n is in none of the `settings` left.
    """
    foreign = law.setup != OWN and (law.problems or 0) >= LARGE_SET
    small = held.problems is not None and held.problems <= SMALL_SET
    able = {n for bp, n in settings if not held.broken_by(bp, n)}
    dropped = {n for n in able if n > SMALL_SET_ROLLOUTS}
    if not (foreign and small and dropped and able - dropped) or held.rollouts_per_problem is not None:
        return held, []
    warned = Warned(
        "small_set",
        f"{held.problems:,} problems: n above {SMALL_SET_ROLLOUTS} is left out, since on 500 the paper's frontier ends "
        f"there and n = 512 overfits (figure 13); ask for it with --n {max(able)}",
    )
    return replace(held, most_rollouts=SMALL_SET_ROLLOUTS), [warned]


# How far a law carries along compute: what is outside its range, what is too far, and what is then expected.

FAR = 10.0
"""A budget this many times outside a law's range is refused unless asked for."""
_ENDED = 2.0
"""A setting whose own runs end this many times before what the law covers is extrapolated, though the law is not."""


def planned_range(law: PlanningLaw, prices: Prices, *, extrapolate: bool = False) -> tuple[float, float]:
    """The fewest and the most rollouts that are planned; any, where a rollout is not known in the law's unit."""
    bp, n = min(law.model.settings(), key=lambda pair: pair[0] * pair[1])
    rates = prices.rates(bp, n)
    known = rates.known(law.unit) or law.gpu_hours_per_rollout is not None
    if extrapolate or not known:
        return 0.0, math.inf
    return law.first / FAR / law.per_rollout(rates), law.last * FAR / law.per_rollout(rates)


def range_warnings(
    law: PlanningLaw, budget: Budget, prices: Prices, targets: Sequence[Allocation], extrapolate: bool
) -> list[Warned]:
    """Refuse what is far outside the law's range, say what is outside."""
    rates = [prices.rates(a.problems_per_batch, a.rollouts_per_problem) for a in targets]
    most = max(r.rollouts(budget) * law.per_rollout(r) for r in rates)
    times = law.outside(most)
    unit = law.unit.replace("gpu_hours", "GPU-hours")
    span = f"{number(law.first)}–{number(law.last)} {unit}"
    told = f"{number(most)} {unit}"
    if law.unit == "gpu_hours" and law.gpu_hours_per_rollout is not None and law.setup != OWN:
        # What the budget buys, on the machines that the law was measured on: not the hours that a user has.
        told = f"{budget} buys rollouts that took {told} on the machines of {law.name}'s paper, which"
    far = max(times, 1 / times) > FAR * (1 + 1e-6)  # the budget that the message names is not far
    if far and not extrapolate:
        nearest = law.last * FAR if times > 1 else law.first / FAR
        raise InputError(
            f"--budget: {told} is {_times(times)} the range of {law.name}, {span}; plan for at "
            f"{'most' if times > 1 else 'least'} --budget {budget.times(nearest / most, at_most=times > 1)}, or say "
            "--extrapolate."
        )
    if 1 / SAME <= times <= SAME:
        return []
    return [
        Warned(
            "far_extrapolation" if far else "extrapolation",
            f"{told} is {_times(times)} the range of {law.name}, {span}: {_outside(law, times > 1)}",
        )
    ]


def setting_warnings(
    law: PlanningLaw, targets: Sequence[Allocation], compute_A: Sequence[float], ranking: Sequence[Ranked]
) -> list[Warned]:
    """Say where the chosen setting's own runs end long before the budget while others of the law go on.

    `compute_A` are the targets' computes in the law's unit. The choice stays: the members' drift has counted that.
    """
    if not isinstance(law.model, Curves):
        return []
    last_A = [law.model.last(only_problems(law) or a.problems_per_batch, a.rollouts_per_problem) for a in targets]
    chosen = ranking[0].index
    a, compute, last = targets[chosen], compute_A[chosen], last_A[chosen]
    if last == 0.0 or min(compute, law.last) <= _ENDED * last:
        return []
    unit = law.unit.replace("gpu_hours", "GPU-hours")
    seen = [targets[r.index] for r in ranking if r.ties and compute_A[r.index] <= SAME * last_A[r.index]]
    other = "nothing within one error of it was run that far"
    if seen:
        b = seen[0]
        other = f"{b.problems_per_batch} × {b.rollouts_per_problem}, within one error of it, was run that far"
    return [
        Warned(
            "extrapolated_setting",
            f"{a.problems_per_batch} × {a.rollouts_per_problem} was run to {number(last)} {unit}; its value at "
            f"{number(compute)}, {compute / last:.2g} times that, is extrapolated; {other}",
        )
    ]


def _outside(law: PlanningLaw, beyond: bool) -> str:
    """What an expectation outside the range is made of."""
    if not isinstance(law.model, OptimumOnly):
        return "the expectation rests on the form of the curves and the trend at their ends, not on data"
    made = "stays at" if beyond else "follows, down to the base, the slope of"
    points = "the law's last point" if beyond else "the law's first two points"
    return f"the expectation {made} {points}, less sure with each doubling of compute"


def _times(times: float) -> str:
    factor = max(times, 1 / times)
    text = f"{factor:,.0f}" if factor >= 10 else f"{factor:.2g}"
    return f"{text} times {'above' if times > 1 else 'below'}"
