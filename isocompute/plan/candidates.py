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

    def check(self) -> None:
        """Refuse constraints that exclude each other, whatever the law and the budget."""
        bp, b = self.problems_per_batch, self.batch_size
        if bp and b and b % bp:
            raise InputError(
                f"--problems-per-batch {bp} with --batch {b}: no multiple of it; say --batch {b // bp * bp or bp}."
            )
        if b and self.max_batch and b > self.max_batch:
            raise InputError(f"--batch {b} with --max-batch {self.max_batch}: raise --max-batch to {b}.")
        if b and self.gpus and b % self.gpus:
            raise InputError(
                f"--batch {b} with --gpus {self.gpus}: a batch must divide by the GPUs; say --batch "
                f"{b // self.gpus * self.gpus or self.gpus}."
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

    def broken_by(self, bp: int, n: int) -> str | None:
        """The first constraint that (Bp, n) breaks, as the option that says it; None if it keeps to all."""
        b = bp * n
        if self.problems_per_batch is not None and bp != self.problems_per_batch:
            return f"--problems-per-batch {self.problems_per_batch}"
        if self.batch_size is not None and b != self.batch_size:
            return f"--batch {self.batch_size}"
        if self.rollouts_per_problem is not None and n not in self.rollouts_per_problem:
            return f"--n {','.join(map(str, self.rollouts_per_problem))}"
        if self.problems_range and not self.problems_range[0] <= bp <= self.problems_range[1]:
            return f"--stable-problems {self.problems_range[0]}-{self.problems_range[1]}"
        if self.max_batch is not None and b > self.max_batch:
            return f"--max-batch {self.max_batch}"
        if self.gpus is not None and b % self.gpus:
            return f"--gpus {self.gpus}"
        if self.problems is not None and bp > self.problems:
            return f"--problems {self.problems}"
        return None


def allocations(
    *,
    budget: float | Callable[[int, int], float],
    settings: Sequence[tuple[int, int]],
    constraints: Constraints | None = None,
) -> list[Allocation]:
    """The allocations of a grid of (Bp, n) that keep to the constraints, with the most updates the budget allows.

    `budget` is in rollouts; a function of (Bp, n) where GPU-hours or money buy more rollouts in one batch than another.

    >>> allocations(budget=2e6, settings=[(32, 256), (32, 512)], constraints=Constraints(max_batch=8192))
    [Allocation(problems_per_batch=32, rollouts_per_problem=256, update_steps=244)]
    """
    held = constraints or Constraints()
    held.check()
    total = _whole(budget)
    pairs = sorted(set(settings))
    able = [pair for pair in pairs if held.broken_by(*pair) is None]
    if not able:
        raise InputError(_nothing_left(pairs, held))
    out = [Allocation(bp, n, total(bp, n) // (bp * n)) for bp, n in able]
    out = [a for a in out if a.update_steps >= max(1, held.min_updates)]
    if out:
        return out
    bp, n = min(able, key=lambda pair: pair[0] * pair[1])
    b, have = bp * n, total(bp, n)
    if have < b:
        raise InputError(
            f"--budget: {have:,} rollouts are under one batch of {bp} × {n} = {b:,}; the smallest that works is {b:,}"
            + _also(pairs, held, have)
        )
    raise InputError(
        f"--min-updates {held.min_updates} with a budget of {have:,} rollouts leaves no batch of {bp} × {n} = {b:,}, "
        f"the smallest there is: say --min-updates {have // b} or raise the budget to {held.min_updates * b:,}."
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
    return f"; without {held.broken_by(bp, n)}, {bp} × {n} would fit."


def _nothing_left(pairs: Sequence[tuple[int, int]], held: Constraints) -> str:
    """Which constraints contradict the law or each other, and the change that would let the nearest setting through."""
    names = sorted({text for pair in pairs if (text := held.broken_by(*pair))})
    bp, n = min(pairs, key=lambda pair: _distance(pair, held))
    changes = {
        "--problems-per-batch": f"--problems-per-batch {bp}",
        "--batch": f"--batch {bp * n}",
        "--n": f"--n {n}",
        "--stable-problems": f"a --stable-problems with {bp} in it",
        "--max-batch": f"--max-batch {bp * n}",
        "--gpus": f"--gpus {math.gcd(bp * n, held.gpus or 1)}",
        "--problems": f"at least {bp} problems",
    }
    change = changes[(held.broken_by(bp, n) or "--n").split()[0]]
    return f"no setting of the law keeps to {' and '.join(names)}; {bp} × {n} would with {change}."


def _distance(pair: tuple[int, int], held: Constraints) -> tuple[int, float]:
    """How many constraints a setting breaks, then how far its batch is from the ones asked for."""
    alone = [
        Constraints(problems_per_batch=held.problems_per_batch),
        Constraints(batch_size=held.batch_size),
        Constraints(rollouts_per_problem=held.rollouts_per_problem),
        Constraints(problems_range=held.problems_range),
        Constraints(max_batch=held.max_batch),
        Constraints(gpus=held.gpus),
        Constraints(problems=held.problems),
    ]
    b = pair[0] * pair[1]
    wanted = held.batch_size or held.max_batch or b
    return sum(c.broken_by(*pair) is not None for c in alone), max(b / wanted, wanted / b)
