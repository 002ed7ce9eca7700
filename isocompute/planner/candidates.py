"""The allocations a budget and its constraints allow: every (Bp, n) of a grid with as many updates as fit.

M = ⌊C / (Bp · n)⌋, so an allocation never exceeds the budget and no integer M uses more of it. The three modes of the
IsoCompute paper are three choices of what is held: Bp (section 4.1), B = Bp · n (4.2), or nothing (4.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral

from isocompute.core.allocation import Allocation
from isocompute.core.errors import InputError
from isocompute.planner.budget import Budget

__all__ = ["Constraints", "allocations", "allowed_rollouts"]


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
