"""Easy, Hard, Very easy and Extremely hard problems of a set, and mixtures of them (IsoCompute, sections 3 and 5.3).

The paper takes problems by their measured rate: avg@16 in [.3, .6] is Easy, avg@16 up to .0625 Hard, pass@128 in [.6,
.9] Very easy, no success in 128 samples Extremely hard. Here a problem belongs to a band when its posterior mean lies
in it. That rule is chosen for three reasons: the true mean of the chosen problems then lies in the band too, which
naive choice does not give; a posterior mean rises with the count, so a subset is a range of counts, as in the paper;
and as samples grow it becomes the paper's rule. Extremely hard is not about a rate but about an event, 128 failures,
and no posterior mean is 0: a problem belongs there when none of its samples is correct and 128 fresh ones would more
likely than not all fail.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isocompute.core.arrays import Array, Bools
from isocompute.core.errors import InputError
from isocompute.problems.difficulty import Difficulty, SubsetMean
from isocompute.problems.model import Problem, draw

__all__ = ["BANDS", "Band", "Chosen", "choose_subsets", "mixture"]

FRESH_SAMPLES = 128
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Band:
    """A range of pass rates, both ends included unless `above` says that the lower one is not."""

    low: float
    high: float
    above: bool = False

    def holds(self, rate_D: Array) -> Bools:
        """Whether rates lie in the band, with room for rounding: 5/16 is .3125."""
        low_D = rate_D > self.low + _ROUNDING if self.above else rate_D >= self.low - _ROUNDING
        return low_D & (rate_D <= self.high + _ROUNDING)


BANDS = {
    "easy": Band(0.3, 0.6),
    "hard": Band(0.0, 0.0625),
    "very-easy": Band(0.6, 0.9, above=True),
    "extremely-hard": Band(0.0, 0.0),
}


@dataclass(frozen=True)
class Chosen:
    """One subset, chosen either by the counts or by the posterior."""

    chosen_D: Bools
    mean: SubsetMean | None
    """None where no problem belongs to the subset."""
    in_band: float | None
    """Posterior share of its problems whose true pass rate lies in the band (for extremely hard: that would fail 128
    fresh samples)."""


def choose_subsets(difficulty: Difficulty, *, naive: bool = False) -> dict[str, Chosen]:
    """Every band's problems by posterior, or by the measured rate as in the paper."""
    out = {}
    for name, band in BANDS.items():
        never = band.high == 0
        chance_D = difficulty.all_wrong_D(FRESH_SAMPLES) if never else difficulty.chance_D(band.low, band.high)
        if naive:
            chosen_D = band.holds(difficulty.cells.rate_D)
        elif never:
            chosen_D = (chance_D >= 0.5) & (difficulty.cells.correct_D == 0)
        else:
            chosen_D = band.holds(difficulty.mean_D)
        mean = difficulty.subset_mean(chosen_D)
        number_D = difficulty.cells.problems_D * chosen_D
        out[name] = Chosen(chosen_D, mean, None if mean is None else float(number_D @ chance_D) / mean.size)
    return out


def mixture(
    subsets: Mapping[str, Sequence[Problem]], shares: Mapping[str, float], *, size: int | None = None, seed: int = 0
) -> tuple[Problem, ...]:
    """Problems of several subsets in given shares, none twice; by default as many as the subsets allow.

    >>> problems = [Problem(str(i), f"{i} + {i} =", str(2 * i)) for i in range(10)]
    >>> len(mixture({"easy": problems[:6], "hard": problems[6:]}, {"easy": 0.5, "hard": 0.5}))
    9
    """
    for name, share in shares.items():
        if name not in subsets:
            raise InputError(f"mixture: there is no subset '{name}'; there are {', '.join(subsets)}.")
        if not subsets[name]:
            raise InputError(f"mixture: subset {name} has 0 problems; leave it out of the mixture.")
        if not (math.isfinite(share) and share > 0):
            raise InputError(f"mixture: the share of {name} is {share:g}; give one above 0.")
    if not math.isclose(sum(shares.values()), 1, abs_tol=1e-6):
        raise InputError(f"mixture: the shares sum to {sum(shares.values()):g}; make them sum to 1.")
    # The subset with the fewest problems first: extremely hard ones are hard ones too, and a problem is taken once.
    order = sorted(shares, key=lambda name: len(subsets[name]))
    if size is None:
        size = _largest(subsets, shares, order, seed)
    taken = _take(subsets, _sizes(shares, size), order, seed)
    for name, wanted in _sizes(shares, size).items():
        if len(taken[name]) < wanted:
            raise InputError(
                f"mixture: {size} problems with {shares[name]:g} {name} need {wanted} of them, and "
                f"{len(taken[name])} are there ({len(subsets[name])} in the subset); ask for fewer or another share."
            )
    return tuple(problem for name in shares for problem in taken[name])


def _sizes(shares: Mapping[str, float], size: int) -> dict[str, int]:
    """Whole numbers that sum to `size`, by largest remainder."""
    out = {name: math.floor(share * size + _ROUNDING) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: out[name] - shares[name] * size)
    for name in by_remainder[: size - sum(out.values())]:
        out[name] += 1
    return out


def _take(
    subsets: Mapping[str, Sequence[Problem]], sizes: Mapping[str, int], order: Sequence[str], seed: int
) -> dict[str, tuple[Problem, ...]]:
    """That many problems of each subset, or as many as there are; a problem in two subsets goes to the smaller one."""
    taken: dict[str, tuple[Problem, ...]] = {}
    gone: set[str] = set()
    for name in order:
        left = [problem for problem in subsets[name] if problem.id not in gone]
        taken[name] = draw(left, sizes[name], seed=seed)
        gone.update(problem.id for problem in taken[name])
    return taken


def _largest(
    subsets: Mapping[str, Sequence[Problem]], shares: Mapping[str, float], order: Sequence[str], seed: int
) -> int:
    """The largest mixture that the subsets allow, by bisection."""

    def fits(size: int) -> bool:
        sizes = _sizes(shares, size)
        taken = _take(subsets, sizes, order, seed)
        return all(len(taken[name]) == wanted for name, wanted in sizes.items())

    low, high = 0, sum(len(subsets[name]) for name in shares)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
