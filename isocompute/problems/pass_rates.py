"""The distribution of pass rates behind counts of correct samples, by nonparametric maximum likelihood.

Problem P has a pass rate p_P from an unknown distribution G, and c_P ~ Binomial(m_P, p_P) of its m_P samples are
correct. G is fitted as weights on a grid of rates, a concave problem (Laird 1978, Lindsay 1983) without any assumed
shape. The solver is the constrained Newton method of Wang (2007): a quadratic step by non-negative least squares over
the support and the local maxima of the gradient, shortened until the likelihood rises. The largest gradient times the
number of problems bounds the distance to the maximum. Only distinct pairs (c, m) enter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls
from scipy.special import logsumexp
from scipy.stats import binom

from isocompute.core.arrays import Array, Ints
from isocompute.core.errors import InputError

Kept = tuple[float, float]
"""The range of measured pass rates that a set was filtered to, both ends included."""

GAP = 1e-4
"""Tolerance of the log-likelihood, far below what data could show."""
_STEPS = 200
_POINTS_PER_DEVIATION = 8
_SUM_WEIGHT = 1e3
_ROUNDING = 1e-9
"""Rates such as 5/16 and bounds such as .3125 are compared with this much room."""


@dataclass(frozen=True)
class Counts:
    """The distinct pairs (correct, samples), how many problems have each, and the pair of each problem."""

    correct_D: Ints
    samples_D: Ints
    problems_D: Ints
    index_P: Ints

    @property
    def rate_D(self) -> Array:
        """Measured pass rates."""
        return np.asarray(self.correct_D / self.samples_D, dtype=np.float64)


def tabulate(correct_P: npt.ArrayLike, samples_P: npt.ArrayLike) -> Counts:
    """Check the counts and group equal ones."""
    c_P = np.asarray(correct_P)
    m_P = np.broadcast_to(np.asarray(samples_P), c_P.shape)
    if c_P.ndim != 1 or c_P.size == 0:
        raise InputError(f"correct counts have the shape {c_P.shape}; give one count a problem, at least one.")
    whole = np.isfinite(c_P) & np.isfinite(m_P) & (c_P == np.floor(c_P)) & (m_P == np.floor(m_P))
    wrong = np.flatnonzero(~(whole & (m_P >= 1) & (c_P >= 0) & (c_P <= m_P)))
    if wrong.size:
        i = int(wrong[0])
        raise InputError(
            f"problem {i + 1} has {c_P[i]} correct of {m_P[i]} samples; "
            "give whole numbers, at least one sample and no more correct than samples."
        )
    pairs, index_P, number = np.unique(
        np.stack([m_P, c_P], axis=1).astype(np.int64), axis=0, return_inverse=True, return_counts=True
    )
    return Counts(pairs[:, 1], pairs[:, 0], number.astype(np.int64), index_P.reshape(-1).astype(np.int64))


def rate_grid(samples: int) -> Array:
    """Rates from 0 to 1, equally spaced in standard deviations of a count (arcsine scale)."""
    points = int(np.ceil(_POINTS_PER_DEVIATION * np.pi * np.sqrt(samples))) + 1
    return np.asarray(np.sin(np.linspace(0, np.pi / 2, points)) ** 2)


def log_kernel(counts: Counts, rate_K: Array, *, kept: Kept | None = None) -> Array:
    """log P(c of m correct | p), counts × rates; with a filter, conditional on a measured rate in `kept`.

    With a filter the weights are those of the problems that passed it: h(p) ∝ g(p) P(passes | p). A problem's posterior
    is the same either way, since g(p) Bin(c | p) ∝ h(p) Bin(c | p) / P(passes | p).
    """
    log_DK = np.asarray(binom.logpmf(counts.correct_D[:, None], counts.samples_D[:, None], rate_K))
    if kept is None:
        return log_DK
    for samples in np.unique(counts.samples_D):
        passes_K = logsumexp(binom.logpmf(counts_in(int(samples), kept)[:, None], samples, rate_K), axis=0)
        log_DK[counts.samples_D == samples] -= passes_K
    return log_DK


def counts_in(samples: int, kept: Kept) -> Ints:
    """The counts whose rate lies in a range."""
    counts = np.arange(samples + 1)
    return counts[(counts >= (kept[0] - _ROUNDING) * samples) & (counts <= (kept[1] + _ROUNDING) * samples)]


@dataclass(frozen=True)
class Mixing:
    """The fitted distribution of pass rates."""

    rate_K: Array
    weight_K: Array
    log_likelihood: float
    gap: float
    """An upper bound on the distance of the log-likelihood to its maximum on the grid."""


def fit_mixing(kernel_DK: Array, problems_D: Array, rate_K: Array, *, start_K: Array | None = None) -> Mixing:
    """Maximise Σ_D N_D log Σ_K w_K L_DK over weights w on the grid."""
    seen_D = problems_D > 0
    total = float(problems_D.sum())
    share_D, kernel_DK = problems_D[seen_D] / total, kernel_DK[seen_D]
    weight_K = np.full(rate_K.shape, 1 / rate_K.size) if start_K is None else 0.99 * start_K + 0.01 / rate_K.size
    value, gap = float(share_D @ np.log(kernel_DK @ weight_K)), np.inf
    for _ in range(_STEPS):
        marginal_D = kernel_DK @ weight_K
        gradient_K = (share_D / marginal_D) @ kernel_DK - 1
        gap = total * float(gradient_K.max())
        if gap <= GAP:
            break
        towards_K = _quadratic_step(kernel_DK, share_D, marginal_D, weight_K, gradient_K)
        slope = float(gradient_K @ (towards_K - weight_K))
        step = 1.0
        while step > 1e-8:
            trial_K = weight_K + step * (towards_K - weight_K)
            with np.errstate(divide="ignore"):
                reached = float(share_D @ np.log(kernel_DK @ trial_K))
            if reached >= value + 1e-4 * step * slope:
                break
            step /= 2
        if step <= 1e-8 or reached <= value:
            break
        weight_K, value = trial_K, reached
    return Mixing(rate_K, weight_K, value * total, max(gap, 0.0))


def _quadratic_step(kernel_DK: Array, share_D: Array, marginal_D: Array, weight_K: Array, gradient_K: Array) -> Array:
    """The maximum of the likelihood's quadratic expansion: least squares of 2 on L/f (Wang 2007, eq. 10)."""
    rising_K = np.r_[True, gradient_K[1:] >= gradient_K[:-1]]
    falling_K = np.r_[gradient_K[:-1] >= gradient_K[1:], True]
    chosen = np.flatnonzero((weight_K > 1e-12) | (rising_K & falling_K))
    root_D = np.sqrt(share_D)
    design = np.vstack(
        [root_D[:, None] * kernel_DK[:, chosen] / marginal_D[:, None], np.full(chosen.size, _SUM_WEIGHT)]
    )
    found, _ = nnls(design, np.r_[2 * root_D, _SUM_WEIGHT], maxiter=50 * chosen.size)
    out_K = np.zeros_like(weight_K)
    out_K[chosen] = found / found.sum()
    return out_K


# Latent pass rates of a whole set. A problem solved in 3% of cases usually has no right answer among 16 samples, so
# measured rates have too many zeros and ones and vary too much. The maximum-likelihood distribution is a few spikes. A
# few dozen EM steps from a flat start are half as far from the true distribution on small sets: early stopping smooths.
# A set that was filtered by these counts ends abruptly. If the fit expects more than `_MISSING` problems outside the
# observed range, it is repeated with the likelihood of counts inside that range.

_MOST_SAMPLES = 64
"""Rates of more samples are nearly exact, and any rate with few digits would be a whole share of so many."""
_FEWEST_PROBLEMS = 20
_FEWEST_SAMPLES, _FEWEST_RATES = 4, 4
_DIGITS = range(2, 13)
"""Numbers of decimals to which rates may be rounded; more mean that they are not."""
_EXACT = 1e-12
_EM_STEPS = 60
_MISSING = 7.0
"""A set counts as filtered if this many problems should lie outside its range; none would by a chance of 1 in 1,000."""
_GRID = 64
"""The grid of this many samples is fine enough for any number."""


def infer_samples(rates_P: Array) -> int | None:
    """The number of samples per problem behind the rates: the fewest of which all rates are whole shares.

    None if there is no such number, or if there are too few rates to tell.

    >>> infer_samples(np.tile([0.0, 0.25, 0.0625, 0.5], 5)), infer_samples(np.linspace(0.3, 0.6, 50))
    (16, None)
    """
    if len(rates_P) < _FEWEST_PROBLEMS:
        return None
    distinct = np.unique(rates_P)
    if len(distinct) < _FEWEST_RATES and distinct[0] > 0.0:
        return None  # several numbers of samples would fit
    digits = next((d for d in _DIGITS if np.abs(distinct.round(d) - distinct).max() < _EXACT), _DIGITS.stop)
    rounding = 0.5 * 10.0**-digits + _EXACT
    for samples in range(1, _MOST_SAMPLES + 1):
        if np.abs((distinct * samples).round() / samples - distinct).max() <= rounding:
            return samples if samples >= _FEWEST_SAMPLES else None
    return None


def latent_pass_rates(rates_P: Array) -> Array:
    """The set's pass rates without sampling noise: as many, in ascending order; unchanged if `infer_samples` is None.

    >>> measured = np.repeat([0, 1, 2, 3], [60, 28, 10, 2]) / 16  # problems of which some 3% of the samples are right
    >>> bool((measured < 0.005).mean() > 0.5 and (latent_pass_rates(measured) < 0.005).mean() < 0.2)
    True
    """
    samples = infer_samples(rates_P)
    if samples is None:
        return rates_P
    counts, rate_K, size = tabulate((rates_P * samples).round(), samples), rate_grid(_GRID), len(rates_P)
    weight_K = _em_from_flat(counts, rate_K, None)
    seen = (float(counts.rate_D.min()), float(counts.rate_D.max()))
    if size * float(weight_K @ (1.0 - _passing(rate_K, samples, seen))) > _MISSING:
        weight_K = _em_from_flat(counts, rate_K, seen)
    # Quantiles at the middles of equal shares; the weight of a grid rate is centred on it.
    return np.asarray(np.interp((np.arange(size) + 0.5) / size, np.cumsum(weight_K) - weight_K / 2, rate_K))


def _em_from_flat(counts: Counts, rate_K: Array, kept: Kept | None) -> Array:
    """Weights of the rates after `_EM_STEPS` of EM; the start is flat, times the chance to pass the filter."""
    start_K = np.ones(len(rate_K)) if kept is None else _passing(rate_K, int(counts.samples_D[0]), kept)
    possible_K = start_K > _EXACT  # a rate of exactly 0 passes no filter of successes
    kernel_DK = np.exp(log_kernel(counts, rate_K[possible_K], kept=kept))
    share_D = counts.problems_D / counts.problems_D.sum()
    weight_K = start_K[possible_K] / start_K[possible_K].sum()
    for _ in range(_EM_STEPS):
        weight_K = weight_K * ((share_D / (kernel_DK @ weight_K)) @ kernel_DK)
    out_K = np.zeros(len(rate_K))
    out_K[possible_K] = weight_K
    return out_K


def _passing(rate_K: Array, samples: int, kept: Kept) -> Array:
    """The chance that a problem of each rate has a measured rate in the range."""
    low, high = (round(bound * samples) for bound in kept)
    return np.asarray(binom.cdf(high, samples, rate_K) - binom.cdf(low - 1, samples, rate_K))
