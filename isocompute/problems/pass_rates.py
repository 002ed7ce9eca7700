"""The distribution of pass rates behind counts of correct samples, by nonparametric maximum likelihood.

Problem P has a pass rate p_P drawn from an unknown distribution G, and c_P ~ Binomial(m_P, p_P) of its m_P samples are
correct. G is fitted as weights on a fixed grid of rates, which is a concave problem with one maximum (Laird 1978,
Lindsay 1983): no shape and no smoothness are assumed, and spikes at 0 and 1 are found where there are any. The solver
is the constrained Newton method of Wang (2007): a quadratic step by non-negative least squares over the support and the
local maxima of the gradient, shortened until the likelihood rises. The likelihood never falls, and the largest gradient
times the number of problems bounds how far it is from its maximum; EM needs thousands of steps for what this does in a
dozen.

Only distinct pairs (c, m) enter, so a million problems cost what a hundred do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls
from scipy.special import gammaln, logsumexp, xlog1py, xlogy

from isocompute.core.arrays import Array, Ints
from isocompute.core.errors import InputError

__all__ = ["Cells", "Kept", "Mixing", "fit_mixing", "gather", "log_kernel", "rate_grid"]

Kept = tuple[float, float]
"""The measured pass rates that a set was filtered to, both included."""

GAP = 1e-4
"""How far the log-likelihood may stay below its maximum: far less than what any data could tell."""
_STEPS = 200
_POINTS_PER_DEVIATION = 8
_SUM_WEIGHT = 1e3
_ROUNDING = 1e-9
"""Rates such as 5/16 and bounds such as .3125 are compared with this much room."""


@dataclass(frozen=True)
class Cells:
    """The distinct pairs (correct, samples), how many problems have each, and each problem's pair."""

    correct_D: Ints
    samples_D: Ints
    problems_D: Ints
    cell_P: Ints

    @property
    def rate_D(self) -> Array:
        """Measured pass rates."""
        return np.asarray(self.correct_D / self.samples_D, dtype=np.float64)


def gather(correct_P: npt.ArrayLike, samples_P: npt.ArrayLike) -> Cells:
    """Check counts and gather equal ones."""
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
    pairs, cell_P, number = np.unique(
        np.stack([m_P, c_P], axis=1).astype(np.int64), axis=0, return_inverse=True, return_counts=True
    )
    return Cells(pairs[:, 1], pairs[:, 0], number.astype(np.int64), cell_P.reshape(-1).astype(np.int64))


def rate_grid(samples: int) -> Array:
    """Rates from 0 to 1, equally far apart in units of a count's standard deviation (arcsine scale)."""
    points = int(np.ceil(_POINTS_PER_DEVIATION * np.pi * np.sqrt(samples))) + 1
    return np.asarray(np.sin(np.linspace(0, np.pi / 2, points)) ** 2)


def _log_binomial(correct_D: npt.ArrayLike, samples_D: npt.ArrayLike, rate_K: Array) -> Array:
    c_D1 = np.asarray(correct_D, dtype=np.float64)[:, None]
    m_D1 = np.asarray(samples_D, dtype=np.float64)[:, None]
    ways_D1 = gammaln(m_D1 + 1) - gammaln(c_D1 + 1) - gammaln(m_D1 - c_D1 + 1)
    return np.asarray(ways_D1 + xlogy(c_D1, rate_K) + xlog1py(m_D1 - c_D1, -rate_K))


def log_kernel(cells: Cells, rate_K: Array, *, kept: Kept | None = None) -> Array:
    """log P(c of m correct | p), cells × rates; given that the measured rate lies in `kept`, where there is a filter.

    With a filter the weights are those of the problems that passed it: h(p) ∝ g(p) P(passes | p). A problem's posterior
    is the same either way, since g(p) Bin(c | p) ∝ h(p) Bin(c | p) / P(passes | p).
    """
    log_DK = _log_binomial(cells.correct_D, cells.samples_D, rate_K)
    if kept is None:
        return log_DK
    for samples in np.unique(cells.samples_D):
        seen = counts_in(int(samples), kept)
        passes_K = logsumexp(_log_binomial(seen, np.full(seen.shape, samples), rate_K), axis=0)
        log_DK[cells.samples_D == samples] -= passes_K
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
    """An upper bound of how far the log-likelihood lies below its maximum on the grid."""


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
