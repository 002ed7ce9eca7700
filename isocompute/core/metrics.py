"""avg@k, best@k and worst@k from counts of correct samples, without bias and with errors.

Let c of m samples of a problem be correct, and draw k of them without replacement. All k are wrong with probability
C(m-c, k) / C(m, k), and all are right with probability C(c, k) / C(m, k). So

    avg@k = c / m        best@k = 1 - C(m-c, k) / C(m, k)        worst@k = C(c, k) / C(m, k)

are exact expectations over the subsets of size k (Chen et al. 2021 for best@k, there called pass@k). Drawing with
replacement, as some trainers do, is biased: 1 right of 4 has best@4 = 1, not .684.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from isocompute.core.arrays import Array
from isocompute.core.errors import InputError


@dataclass(frozen=True)
class Estimate:
    """A mean over problems, its standard error and the number of problems."""

    value: float
    standard_error: float
    problems: int


def avg_at_k(correct_P: npt.ArrayLike, samples_P: npt.ArrayLike, *, k: int) -> Array:
    """Expected share of k samples that are correct, per problem. It does not depend on k, which is only checked.

    >>> avg_at_k([1, 3], [4, 4], k=2).tolist()
    [0.25, 0.75]
    """
    c_P, m_P = _counts(correct_P, samples_P, k)
    return c_P / m_P


def best_at_k(correct_P: npt.ArrayLike, samples_P: npt.ArrayLike, *, k: int) -> Array:
    """Chance that at least one of k samples is correct, per problem.

    >>> best_at_k([1, 0], [4, 4], k=4).tolist()
    [1.0, 0.0]
    """
    c_P, m_P = _counts(correct_P, samples_P, k)
    return 1.0 - _all_from(m_P - c_P, m_P, k)


def worst_at_k(correct_P: npt.ArrayLike, samples_P: npt.ArrayLike, *, k: int) -> Array:
    """Chance that all of k samples are correct, per problem.

    >>> worst_at_k([4, 3], [4, 4], k=4).tolist()
    [1.0, 0.0]
    """
    c_P, m_P = _counts(correct_P, samples_P, k)
    return _all_from(c_P, m_P, k)


def mean_with_error(values_P: npt.ArrayLike) -> Estimate:
    """Mean over problems with its standard error, which treats the problems as a sample.

    >>> mean_with_error([0.0, 1.0, 1.0, 0.0])
    Estimate(value=0.5, standard_error=0.288..., problems=4)
    """
    values_P = _numbers("values_P", values_P)
    if values_P.ndim != 1 or values_P.size == 0:
        raise InputError(f"values_P has the shape {values_P.shape}; give one value per problem, at least one.")
    if not np.isfinite(values_P).all():
        raise InputError("values_P has NaN or infinite values; leave out problems that were not evaluated.")
    n = values_P.size
    error = float(values_P.std(ddof=1) / np.sqrt(n)) if n > 1 else float("nan")
    return Estimate(float(values_P.mean()), error, n)


def _numbers(name: str, values_P: npt.ArrayLike) -> Array:
    try:
        return np.asarray(values_P, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is not an array of numbers ({error}).") from error


def _counts(correct_P: npt.ArrayLike, samples_P: npt.ArrayLike, k: int) -> tuple[Array, Array]:
    c_P, m_P = _numbers("correct_P", correct_P), _numbers("samples_P", samples_P)
    if m_P.ndim and m_P.shape != c_P.shape:
        raise InputError(f"correct_P has the shape {c_P.shape}, samples_P {m_P.shape}; give one count per problem.")
    m_P = np.broadcast_to(m_P, c_P.shape)
    for name, a in (("correct_P", c_P), ("samples_P", m_P)):
        if not np.isfinite(a).all() or (a != np.floor(a)).any():
            raise InputError(f"{name} has a value that is not a whole number; give counts, not rates.")
    if not (k >= 1 and float(k).is_integer()):
        raise InputError(f"k = {k}; k must be a whole number of at least 1.")
    if (c_P < 0).any() or (c_P > m_P).any():
        worst = int(np.flatnonzero((c_P < 0) | (c_P > m_P))[0])
        raise InputError(
            f"problem {worst} has {c_P.flat[worst]:g} correct of {m_P.flat[worst]:g} samples; "
            "correct must lie between 0 and the number of samples."
        )
    if (m_P < k).any():
        short = int(np.flatnonzero(m_P < k)[0])
        raise InputError(
            f"k = {k}, but problem {short} has only {m_P.flat[short]:g} samples; "
            f"take at least {k} samples per problem or ask for a smaller k."
        )
    return c_P, m_P


def _all_from(hits_P: Array, m_P: Array, k: int) -> Array:
    """C(hits, k) / C(m, k) as a product of k ratios: exact at 0 and 1, no large binomials."""
    i_K = np.arange(k, dtype=np.float64)
    ratios_PK = np.maximum(hits_P[..., None] - i_K, 0.0) / (m_P[..., None] - i_K)
    return np.asarray(ratios_PK.prod(axis=-1), dtype=np.float64)


def zero_variance_share(rates_P: Array, rollouts_per_problem: int) -> float:
    """Expected share of zero-variance groups, whose n rollouts all score the same: the mean of p^n + (1 - p)^n.

    >>> round(zero_variance_share(np.array([0.5]), 2), 3)
    0.5
    """
    n = rollouts_per_problem
    return float(np.mean(rates_P**n + (1.0 - rates_P) ** n))
