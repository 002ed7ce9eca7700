"""How difficult each problem is: the posterior of its pass rate, free of regression to the mean.

A problem that was chosen because few of its 16 samples were correct is easier than these samples say: among many
problems some were unlucky, and choosing low counts chooses them. The posterior under the fitted distribution of pass
rates (empirical Bayes) takes that out: the mean of the posterior means of any chosen problems estimates their true
mean.

What is not known for sure has two parts, and intervals hold both: the pass rates given the distribution (posterior
variance) and the distribution itself (bootstrap over problems, refitted; deviations are taken from the estimate, so the
bias of the refits counts too). Intervals are the union of a normal one on the plain scale, which can reach 0 and 1, and
one on the logit scale, which is skewed as pass rates near 0 and 1 are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit
from scipy.stats import chi2, norm

from isocompute.core.arrays import Array, Bools
from isocompute.core.errors import InputError
from isocompute.problems.pass_rates import Cells, Kept, Mixing, counts_in, fit_mixing, gather, log_kernel, rate_grid

__all__ = ["LEVEL", "Difficulty", "SubsetMean", "fit_difficulty"]

LEVEL = 0.95
REPLICATES = 200


@dataclass(frozen=True)
class SubsetMean:
    """Mean pass rate of chosen problems."""

    size: int
    naive: float
    """Of the counts that chose them."""
    corrected: float
    """Of the posterior means: what fresh samples would give."""
    interval: tuple[float, float]
    """95%, of the problems' true mean."""


@dataclass(frozen=True)
class Difficulty:
    """Counts, the distribution behind them, and each distinct count's posterior."""

    cells: Cells
    mixing: Mixing
    posterior_DK: Array
    """Rows sum to 1."""
    replicate_means_RD: Array
    """Posterior means under the refitted distributions."""
    misfit: float
    """Chance of counts this far from any distribution of pass rates; near 0 for a set that was filtered by them."""

    @property
    def mean_D(self) -> Array:
        """Posterior mean of each distinct count. Rises with the count (at equal samples)."""
        return np.asarray(self.posterior_DK @ self.mixing.rate_K)

    @property
    def variance_D(self) -> Array:
        """Posterior variance."""
        return np.asarray(np.maximum(self.posterior_DK @ self.mixing.rate_K**2 - self.mean_D**2, 0))

    @property
    def mean_P(self) -> Array:
        """Posterior mean of each problem."""
        return self.mean_D[self.cells.cell_P]

    def chance_D(self, low: float, high: float) -> Array:
        """Posterior probability of a true pass rate in [low, high]."""
        inside_K = (self.mixing.rate_K >= low) & (self.mixing.rate_K <= high)
        return np.asarray(self.posterior_DK[:, inside_K].sum(axis=1))

    def all_wrong_D(self, samples: int) -> Array:
        """Posterior predictive chance that none of this many fresh samples is correct."""
        return np.asarray(self.posterior_DK @ (1 - self.mixing.rate_K) ** samples)

    def subset_mean(self, chosen_D: Bools | None = None) -> SubsetMean | None:
        """Naive and corrected mean of the problems whose count is chosen (all by default); None where none is."""
        number_D = self.cells.problems_D * (1 if chosen_D is None else chosen_D)
        size = int(number_D.sum())
        if size == 0:
            return None
        weight_D = number_D / size
        corrected = float(weight_D @ self.mean_D)
        around_R = self.replicate_means_RD @ weight_D - corrected
        # One success more or less: the smallest step that the samples could show.
        resolution = 1 / float(number_D @ self.cells.samples_D)
        variance = float(weight_D**2 @ (self.variance_D / np.maximum(number_D, 1))) + resolution**2
        variance += float(np.mean(around_R**2))
        centre = min(max(corrected, resolution / 2), 1 - resolution / 2)
        reach = float(norm.ppf((1 + LEVEL) / 2)) * np.sqrt(variance)
        sides = np.array([-1.0, 1.0])
        logits = logit(centre) + sides * reach / (centre * (1 - centre))
        (low, high), (lower, higher) = expit(logits), np.clip(corrected + sides * reach, 0, 1)
        interval = (float(min(low, lower)), float(max(high, higher)))
        return SubsetMean(size, float(weight_D @ self.cells.rate_D), corrected, interval)


def fit_difficulty(
    correct_P: npt.ArrayLike,
    samples_P: npt.ArrayLike,
    *,
    kept: Kept | None = None,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Difficulty:
    """Fit the distribution of pass rates and each problem's posterior.

    `kept`: the set holds only problems whose measured rate lay in this range when it was filtered by these same counts.

    >>> found = fit_difficulty([0] * 50 + [8] * 50, 16)
    >>> [round(float(mean), 1) for mean in found.mean_D]
    [0.0, 0.5]
    """
    cells = gather(correct_P, samples_P)
    rate_K = rate_grid(int(cells.samples_D.max()))
    if kept is not None:
        _check_kept(cells, kept)
        # A rate of exactly 0 or 1 whose only count is filtered out explains nothing that is there.
        rate_K = rate_K[(0 if kept[0] <= 0 else 1) : rate_K.size - (0 if kept[1] >= 1 else 1)]
    kernel_DK = np.exp(log_kernel(cells, rate_K, kept=kept))
    number_D = cells.problems_D.astype(np.float64)
    mixing = fit_mixing(kernel_DK, number_D, rate_K)
    rng = np.random.default_rng(seed)
    resampled_RD = rng.multinomial(int(number_D.sum()), number_D / number_D.sum(), size=replicates)
    means_RD = np.empty((replicates, number_D.size))
    for r, resampled_D in enumerate(resampled_RD):
        refit = fit_mixing(kernel_DK, resampled_D.astype(np.float64), rate_K, start_K=mixing.weight_K)
        means_RD[r] = _posterior(kernel_DK, refit.weight_K) @ rate_K
    posterior_DK = _posterior(kernel_DK, mixing.weight_K)
    return Difficulty(cells, mixing, posterior_DK, means_RD, _misfit(cells, kernel_DK @ mixing.weight_K))


def _posterior(kernel_DK: Array, weight_K: Array) -> Array:
    """Bayes. A trace of a flat distribution is added, so that a count that a refit did not see has a posterior too."""
    joint_DK = kernel_DK * ((1 - 1e-9) * weight_K + 1e-9 / weight_K.size)
    return np.asarray(joint_DK / joint_DK.sum(axis=1, keepdims=True))


def _check_kept(cells: Cells, kept: Kept) -> None:
    low, high = kept
    if not 0 <= low < high <= 1:
        raise InputError(
            f"kept = {low:g}:{high:g}: give the range of measured pass rates that the set was filtered to."
        )
    outside = [
        int(number)
        for c, m, number in zip(cells.correct_D, cells.samples_D, cells.problems_D, strict=True)
        if c not in counts_in(int(m), kept)
    ]
    if outside:
        raise InputError(
            f"kept = {low:g}:{high:g}: {sum(outside)} problems have a measured pass rate outside; "
            "widen the range or leave these problems out."
        )


def _misfit(cells: Cells, marginal_D: Array) -> float:
    """Likelihood-ratio test against free shares of every count, with as many degrees of freedom as these: cautious."""
    number_D = cells.problems_D.astype(np.float64)
    group_D = np.array([number_D[cells.samples_D == m].sum() for m in cells.samples_D])
    statistic = 2 * float(number_D @ (np.log(number_D / group_D) - np.log(marginal_D)))
    freedom = int(sum(int(m) for m in np.unique(cells.samples_D)))
    return float(chi2.sf(max(statistic, 0.0), freedom))
