"""The difficulty of each problem, corrected for regression to the mean, and the paper's subsets by difficulty.

A problem chosen because few of its 16 samples were correct is on average easier than its samples show. The posterior
under the fitted distribution of pass rates (empirical Bayes) corrects this: the average posterior mean of chosen
problems estimates their true mean.

Intervals include the posterior variance given the distribution and the uncertainty of the distribution, from a
bootstrap over problems. The refits' deviations are measured from the estimate, so their bias counts too. Each interval
is the union of a normal interval on the plain scale, which can reach 0 and 1, and a skewed one on the logit scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import betaln, expit, logit
from scipy.stats import beta, chi2, norm

from isocompute.core.arrays import Array, Bools
from isocompute.core.errors import InputError
from isocompute.problems.pass_rates import Counts, Kept, Mixing, counts_in, fit_mixing, log_kernel, rate_grid, tabulate
from isocompute.problems.problem_set import Problem, draw

LEVEL = 0.95
REPLICATES = 200
_FRESH_SAMPLES = 128
_ROUNDING = 1e-9


@dataclass(frozen=True)
class SubsetMean:
    """The mean pass rate of chosen problems."""

    size: int
    naive: float
    """Mean of the measured rates that the choice was based on."""
    corrected: float
    """Mean of the posterior means: the expected rate of fresh samples."""
    interval: tuple[float, float]
    """95% interval of the problems' true mean."""


def mean_to_json(mean: SubsetMean | None) -> dict[str, Any]:
    """The keys of a mean in `split --json`."""
    if mean is None:
        return {"size": 0, "naive_mean": None, "corrected_mean": None, "interval": None}
    interval = list(mean.interval)
    return {"size": mean.size, "naive_mean": mean.naive, "corrected_mean": mean.corrected, "interval": interval}


@dataclass(frozen=True)
class Difficulty:
    """Counts, the distribution of pass rates fitted to them, and the posterior of each distinct count."""

    counts: Counts
    mixing: Mixing
    posterior_DK: Array
    """Rows sum to 1."""
    replicate_means_RD: Array
    """Posterior means under the distributions refitted to bootstrap samples."""
    misfit: float
    """p-value of the fit: near 0 if no distribution of pass rates gives such counts, as for a filtered set."""

    @property
    def mean_D(self) -> Array:
        """Posterior mean of each distinct count. Rises with the count (at equal samples)."""
        return np.asarray(self.posterior_DK @ self.mixing.rate_K)

    @property
    def variance_D(self) -> Array:
        """Posterior variance."""
        return np.asarray(np.maximum(self.posterior_DK @ self.mixing.rate_K**2 - self.mean_D**2, 0))

    @property
    def _bounds(self) -> tuple[float, float]:
        """Clopper–Pearson interval of all samples: as wide as any mix of problems needs."""
        right = int(self.counts.problems_D @ self.counts.correct_D)
        wrong = int(self.counts.problems_D @ self.counts.samples_D) - right
        outside = (1 - LEVEL) / 2
        low = float(beta.ppf(outside, right, wrong + 1)) if right else 0.0
        return low, float(beta.ppf(1 - outside, right + 1, wrong)) if wrong else 1.0

    def chance_D(self, low: float, high: float) -> Array:
        """Posterior probability of a true pass rate in [low, high]."""
        inside_K = (self.mixing.rate_K >= low) & (self.mixing.rate_K <= high)
        return np.asarray(self.posterior_DK[:, inside_K].sum(axis=1))

    def all_wrong_D(self, samples: int) -> Array:
        """Posterior predictive chance that none of this many fresh samples is correct.

        Where all samples seen were wrong, a rate of 0 stands for all rates that are too small to be seen by them.
        """
        fresh_K = (1 - self.mixing.rate_K) ** samples
        if self.mixing.rate_K[0] == 0:
            wrong = float((self.counts.problems_D * self.counts.samples_D)[self.counts.correct_D == 0].sum())
            fresh_K[0] = np.exp(betaln(0.5, wrong + 0.5 + samples) - betaln(0.5, wrong + 0.5))
        return np.asarray(self.posterior_DK @ fresh_K)

    def subset_mean(self, chosen_D: Bools | None = None) -> SubsetMean | None:
        """Naive and corrected mean of the problems with chosen counts (all by default); None if there are none."""
        number_D = self.counts.problems_D * (1 if chosen_D is None else chosen_D)
        size = int(number_D.sum())
        if size == 0:
            return None
        weight_D = number_D / size
        corrected = float(weight_D @ self.mean_D)
        around_R = self.replicate_means_RD @ weight_D - corrected
        # One success more or less is the smallest difference that the samples can show.
        resolution = 1 / float(number_D @ self.counts.samples_D)
        variance = float(weight_D**2 @ (self.variance_D / np.maximum(number_D, 1))) + resolution**2
        variance += float(np.mean(around_R**2))
        centre = min(max(corrected, resolution / 2), 1 - resolution / 2)
        margin_2 = np.array([-1.0, 1.0]) * norm.ppf((1 + LEVEL) / 2) * np.sqrt(variance)
        low, high = expit(logit(centre) + margin_2 / (centre * (1 - centre)))
        lower, higher = np.clip(corrected + margin_2, 0, 1)
        interval = (float(min(low, lower)), float(max(high, higher)))
        if size == self.counts.problems_D.sum():  # nothing was chosen, so the samples bound their mean as they are
            low, high = self._bounds
            interval = min(max(interval[0], low), corrected), max(min(interval[1], high), corrected)
        return SubsetMean(size, float(weight_D @ self.counts.rate_D), corrected, interval)


def fit_difficulty(
    correct_P: npt.ArrayLike,
    samples_P: npt.ArrayLike,
    *,
    kept: Kept | None = None,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Difficulty:
    """Fit the distribution of pass rates and each problem's posterior.

    `kept` is the range of measured rates if the set was filtered by these same counts.

    >>> found = fit_difficulty([0] * 50 + [8] * 50, 16)
    >>> [round(float(mean), 1) for mean in found.mean_D]
    [0.0, 0.5]
    """
    counts = tabulate(correct_P, samples_P)
    rate_K = rate_grid(int(counts.samples_D.max()))
    if kept is not None:
        low, high = kept
        if not 0 <= low < high <= 1:
            raise InputError(f"kept = {low:g}:{high:g}: give the range of measured pass rates of the filter.")
        pairs = zip(counts.correct_D, counts.samples_D, counts.problems_D, strict=True)
        outside = sum(int(number) for c, m, number in pairs if c not in counts_in(int(m), kept))
        if outside:
            raise InputError(
                f"kept = {low:g}:{high:g}: {outside} problems have a measured pass rate outside; "
                "widen the range or leave these problems out."
            )
        # A rate of exactly 0 or 1 has one possible count; where the filter drops it, the rate cannot occur.
        rate_K = rate_K[(0 if low <= 0 else 1) : rate_K.size - (0 if high >= 1 else 1)]
    kernel_DK = np.exp(log_kernel(counts, rate_K, kept=kept))
    number_D = counts.problems_D.astype(np.float64)
    mixing = fit_mixing(kernel_DK, number_D, rate_K)
    rng = np.random.default_rng(seed)
    resampled_RD = rng.multinomial(int(number_D.sum()), number_D / number_D.sum(), size=replicates)
    means_RD = np.empty((replicates, number_D.size))
    for r, resampled_D in enumerate(resampled_RD):
        refit = fit_mixing(kernel_DK, resampled_D.astype(np.float64), rate_K, start_K=mixing.weight_K)
        means_RD[r] = _posterior(kernel_DK, _with_doubt(refit.weight_K, rate_K, number_D)) @ rate_K
    posterior_DK = _posterior(kernel_DK, _with_doubt(mixing.weight_K, rate_K, number_D))
    return Difficulty(counts, mixing, posterior_DK, means_RD, _misfit(counts, kernel_DK @ mixing.weight_K))


def _with_doubt(weight_K: Array, rate_K: Array, number_D: Array) -> Array:
    """The distribution with one more problem, of any rate: P problems say little of what one in P does."""
    problems = float(number_D.sum())
    any_K = np.gradient(np.arcsin(np.sqrt(rate_K)))  # Jeffreys
    return np.asarray((problems * weight_K + any_K / any_K.sum()) / (problems + 1))


def _posterior(kernel_DK: Array, weight_K: Array) -> Array:
    """Posterior by Bayes' rule; a trace of a flat prior covers counts that are missing in a bootstrap sample."""
    joint_DK = kernel_DK * ((1 - 1e-9) * weight_K + 1e-9 / weight_K.size)
    return np.asarray(joint_DK / joint_DK.sum(axis=1, keepdims=True))


def _misfit(counts: Counts, marginal_D: Array) -> float:
    """p-value of a likelihood-ratio test against free shares of each count; its degrees of freedom are conservative."""
    number_D = counts.problems_D.astype(np.float64)
    group_D = np.array([number_D[counts.samples_D == m].sum() for m in counts.samples_D])
    statistic = 2 * float(number_D @ (np.log(number_D / group_D) - np.log(marginal_D)))
    freedom = int(sum(int(m) for m in np.unique(counts.samples_D)))
    return float(chi2.sf(max(statistic, 0.0), freedom))


# Subsets and mixtures (IsoCompute, sections 3 and 5.3). The paper takes problems by their measured rate: avg@16 in
# [.3, .6] is Easy, avg@16 up to .0625 Hard, pass@128 in [.6, .9] Very easy, no success in 128 samples Extremely hard.
# Here a problem belongs to a band when its posterior mean lies in it. The true mean of the chosen problems then lies in
# the band too, a subset is still a range of counts, and many samples give the paper's rule. No posterior mean is 0, so
# a problem is extremely hard when none of its samples is correct and 128 fresh ones would probably all fail.


@dataclass(frozen=True)
class Band:
    """A range of pass rates that includes both ends, except the lower one if `above` is set."""

    low: float
    high: float
    above: bool = False

    def contains(self, rate_D: Array) -> Bools:
        """Whether rates lie in the band, with a tolerance for rounding."""
        low_D = rate_D > self.low + _ROUNDING if self.above else rate_D >= self.low - _ROUNDING
        return low_D & (rate_D <= self.high + _ROUNDING)


BANDS = {
    "easy": Band(0.3, 0.6),
    "hard": Band(0.0, 0.0625),
    "very-easy": Band(0.6, 0.9, above=True),
    "extremely-hard": Band(0.0, 0.0),
}


@dataclass(frozen=True)
class Subset:
    """A subset of problems, chosen by the counts or by the posterior."""

    chosen_D: Bools
    mean: SubsetMean | None
    """None if the subset is empty."""
    in_band: float | None
    """Expected share of its problems whose true pass rate lies in the band (extremely hard: that fail 128 samples)."""

    def to_json(self) -> dict[str, Any]:
        """The keys of a subset in `split --json`."""
        return mean_to_json(self.mean) | {"in_band": self.in_band}


def choose_subsets(difficulty: Difficulty, *, naive: bool = False) -> dict[str, Subset]:
    """The problems of each band, by posterior or (`naive`) by measured rate as in the paper."""
    out = {}
    for name, band in BANDS.items():
        never = band.high == 0
        chance_D = difficulty.all_wrong_D(_FRESH_SAMPLES) if never else difficulty.chance_D(band.low, band.high)
        if naive:
            chosen_D = band.contains(difficulty.counts.rate_D)
        elif never:
            chosen_D = (chance_D >= 0.5) & (difficulty.counts.correct_D == 0)
        else:
            chosen_D = band.contains(difficulty.mean_D)
        mean = difficulty.subset_mean(chosen_D)
        number_D = difficulty.counts.problems_D * chosen_D
        out[name] = Subset(chosen_D, mean, None if mean is None else float(number_D @ chance_D) / mean.size)
    return out


def mixture(
    subsets: Mapping[str, Sequence[Problem]], shares: Mapping[str, float], *, size: int | None = None, seed: int = 0
) -> tuple[Problem, ...]:
    """Distinct problems of several subsets in given shares; by default as many as the subsets allow.

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
    # The smallest subset chooses first: extremely hard problems are also hard, and each problem is taken once.
    order = sorted(shares, key=lambda name: len(subsets[name]))

    def sizes(size: int) -> dict[str, int]:
        """Whole numbers that sum to `size`, by largest remainder."""
        out = {name: math.floor(share * size + _ROUNDING) for name, share in shares.items()}
        by_remainder = sorted(shares, key=lambda name: out[name] - shares[name] * size)
        for name in by_remainder[: size - sum(out.values())]:
            out[name] += 1
        return out

    def take(wanted: Mapping[str, int]) -> dict[str, tuple[Problem, ...]]:
        """The wanted number of problems of each subset, or as many as it has."""
        taken: dict[str, tuple[Problem, ...]] = {}
        used: set[str] = set()
        for name in order:
            taken[name] = draw([p for p in subsets[name] if p.id not in used], wanted[name], seed=seed)
            used.update(problem.id for problem in taken[name])
        return taken

    if size is None:  # the largest that the subsets allow, by bisection
        size, above = 0, sum(len(subsets[name]) for name in shares) + 1
        while above - size > 1:
            middle = (size + above) // 2
            wanted = sizes(middle)
            fits = all(len(problems) == wanted[name] for name, problems in take(wanted).items())
            size, above = (middle, above) if fits else (size, middle)
    wanted = sizes(size)
    taken = take(wanted)
    for name, number in wanted.items():
        if len(taken[name]) < number:
            raise InputError(
                f"mixture: {size} problems with {shares[name]:g} {name} need {number} of them, and "
                f"{len(taken[name])} are there ({len(subsets[name])} in the subset); ask for fewer or another share."
            )
    return tuple(problem for name in shares for problem in taken[name])
