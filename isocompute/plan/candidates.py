"""The allocations a budget and its constraints allow: every (Bp, n) of a grid with as many updates as fit.

M = ⌊C / (Bp · n)⌋, so an allocation never exceeds the budget and no integer M uses more of it. The three modes of the
IsoCompute paper are three choices of what is held: Bp (section 4.1), B = Bp · n (4.2), or nothing (4.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from isocompute.allocation import Allocation
from isocompute.errors import InputError
from isocompute.plan.budget import Budget

__all__ = ["Constraints", "allocations"]


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

    @property
    def mode(self) -> str:
        """`n` (n against M), `batch` (Bp against n) or `joint`."""
        if self.batch_size is not None:
            return "batch"
        return "n" if self.problems_per_batch is not None else "joint"

    def check(self, settings: Sequence[tuple[int, int]] = ()) -> None:
        """Refuse constraints that exclude each other, whatever the budget; with the law's settings, also a batch that
        no Bp of it or no number of GPUs divides.
        """
        bp, b = self.problems_per_batch, self.batch_size
        if b and self.max_batch and b > self.max_batch:
            raise InputError(f"--batch {b} with --max-batch {self.max_batch}: raise --max-batch to {b}.")
        if b and bp and settings and b % bp:
            near = _nearest(b, [x * n for x, n in settings if x == bp], [b // bp * bp or bp])
            raise InputError(f"--problems-per-batch {bp} with --batch {b}: no multiple of it; say --batch {near}.")
        if b and self.gpus and settings and b % self.gpus:
            sizes = [x * n for x, n in settings if x * n % self.gpus == 0 and bp in (None, x)]
            near = _nearest(b, sizes, [b // self.gpus * self.gpus or self.gpus])
            raise InputError(
                f"--batch {b} with --gpus {self.gpus}: a batch must divide by the GPUs; say --batch {near}."
            )
        if self.problems_range and self.problems_range[0] > self.problems_range[1]:
            low, high = self.problems_range
            raise InputError(f"--stable-problems {low}-{high}: the range is empty; say {high}-{low}.")
        if bp and self.problems_range and not self.problems_range[0] <= bp <= self.problems_range[1]:
            low, high = self.problems_range
            raise InputError(
                f"--problems-per-batch {bp} with --stable-problems {low}-{high}: say --problems-per-batch "
                f"{min(max(bp, low), high)}."
            )
        if bp and self.problems and bp > self.problems:
            raise InputError(
                f"--problems-per-batch {bp} with --problems {self.problems}: a batch holds no problem twice; say "
                f"--problems-per-batch {self.problems}."
            )

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
            f"--problems {self.problems}": self.problems is None or bp <= self.problems,
        }
        return [option for option, kept in held.items() if not kept]


def allocations(
    *,
    budget: float | Callable[[int, int], float],
    settings: Sequence[tuple[int, int]],
    constraints: Constraints | None = None,
    asked: Budget | None = None,
) -> list[Allocation]:
    """The allocations of a grid of (Bp, n) that keep to the constraints, with the most updates the budget allows.

    `budget` is in rollouts; a function of (Bp, n) where GPU-hours or money buy more rollouts in one batch than another.
    `asked` is the budget as the user has it, for the messages.

    >>> allocations(budget=2e6, settings=[(32, 256), (32, 512)], constraints=Constraints(max_batch=8192))
    [Allocation(problems_per_batch=32, rollouts_per_problem=256, update_steps=244)]
    """
    held = constraints or Constraints()
    total = _whole(budget)
    pairs = sorted(set(settings))
    held.check(pairs)
    able = [pair for pair in pairs if not held.broken_by(*pair)]
    if not able:
        raise InputError(_nothing_left(pairs, held))
    out = [Allocation(bp, n, total(bp, n) // (bp * n)) for bp, n in able]
    out = [a for a in out if a.update_steps >= max(1, held.min_updates)]
    if out:
        return out
    bp, n = min(able, key=lambda pair: pair[0] * pair[1])
    b, have = bp * n, total(bp, n)
    exact = float(budget(bp, n) if callable(budget) else budget)
    asked = asked or Budget(exact, "rollouts")
    buys = f"{asked}" if asked.unit == "rollouts" else f"{asked} ({have:,} rollouts)"
    if have < b:
        raise InputError(
            f"--budget: {buys} is under one batch of {bp} × {n} = {b:,} rollouts; the smallest that works is "
            f"{asked.times(b / exact)}" + _also(pairs, held, have)
        )
    raise InputError(
        f"--min-updates {held.min_updates} with a budget of {buys} leaves no batch of {bp} × {n} = {b:,}, the smallest "
        f"there is: say --min-updates {have // b} or raise the budget to {asked.times(held.min_updates * b / exact)}."
    )


def _whole(budget: float | Callable[[int, int], float]) -> Callable[[int, int], int]:
    """The budget of a setting in whole rollouts."""
    if callable(budget):
        return lambda bp, n: int(budget(bp, n) * (1 + 1e-12))
    return lambda _bp, _n: int(budget * (1 + 1e-12))


def _also(pairs: Sequence[tuple[int, int]], held: Constraints, total: int) -> str:
    smaller = [pair for pair in pairs if pair[0] * pair[1] <= total]
    if not smaller:
        return "."
    bp, n = max(smaller, key=lambda pair: pair[0] * pair[1])
    return f"; without {' and '.join(held.broken_by(bp, n))}, {bp} × {n} would fit."


def _nothing_left(pairs: Sequence[tuple[int, int]], held: Constraints) -> str:
    """Which constraints contradict the law or each other, and the changes that let the nearest setting through."""
    bp, n = min(pairs, key=lambda pair: _distance(pair, held))
    names = sorted({text for pair in pairs for text in held.broken_by(*pair)[:1]} | set(held.broken_by(bp, n)))
    changes = {
        "--problems-per-batch": f"--problems-per-batch {bp}",
        "--batch": f"--batch {bp * n}",
        "--n": f"--n {n}",
        "--stable-problems": f"a --stable-problems with {bp} in it",
        "--max-batch": f"--max-batch {bp * n}",
        "--gpus": f"--gpus {math.gcd(bp * n, held.gpus or 1)}",
        "--problems": f"at least {bp} problems",
    }
    needed = " and ".join(changes[option.split()[0]] for option in held.broken_by(bp, n))
    return f"no setting of the law keeps to {' and '.join(names)}; {bp} × {n} would with {needed}."


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


def _nearest(wanted: int, sizes: Sequence[int], otherwise: Sequence[int]) -> int:
    """The size nearest to the one wanted, in ratio."""
    return min(sizes or otherwise, key=lambda size: abs(math.log(size / wanted)))
