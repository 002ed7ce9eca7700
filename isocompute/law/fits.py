"""The curve of one configuration, as read from the posterior that contains it, and the trend of all of them.

The trend is the polynomial in log2 n and log2 Bp through ceilings, log midpoints and log efficiencies, in every sample.
Leaving out one n, its curve is predicted from the samples of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from isocompute.core.arrays import Array
from isocompute.core.curve import Curve, Setting, upper_bound
from isocompute.core.formatting import number, value
from isocompute.law.posterior import Posterior, around, fit_posterior
from isocompute.law.shape import form_names

_Powers = tuple[tuple[int, int], ...]

CEILING_SEEN = 0.8
"""A ceiling counts as seen when this share of the rise to it is done; before that, it depends on the curve's form."""
_LATE = 3
"""Number of last points whose mean is the level that a run holds."""


@dataclass(frozen=True)
class CurveFit:
    """The curve through one run, or through all seeds of a configuration, with its samples."""

    curves: tuple[Curve, ...]
    """The curves as fitted: up to a collapse, and with at most `curves.MAXIMUM_POINTS` points each."""
    posterior: Posterior
    index: int
    """Its place in the posterior."""
    first: float
    """Smallest positive compute with a value."""
    starts: float
    """Compute from which the curve is known: `first`, or less for a published curve."""

    def __repr__(self) -> str:
        more = f" and {len(self.curves) - 1} more" if len(self.curves) > 1 else ""
        return (
            f"CurveFit({self.curves[0].name}{more}: {self.form} from {value(self.base)} to "
            f"{value(self.ceiling)}, {self.rise_done:.0%} of it by {number(self.last)}; rmse {value(self.rmse)})"
        )

    @property
    def setting(self) -> Setting:
        """(problems per batch, rollouts per problem) of all its curves."""
        return self.posterior.settings[self.index]

    @property
    def last(self) -> float:
        """Largest compute with a value."""
        return float(self.posterior.last_S[self.index])

    def draws_at(self, compute_C: Array) -> Array:
        """Values of every sample, compute × samples."""
        return self.posterior.at(self.index, compute_C)

    def best_draws(self, compute_C: Array) -> Array:
        """Values of the best checkpoint by each compute, in every sample."""
        return self.posterior.best_by(self.index, compute_C)

    def at(self, compute_C: Array) -> Array:
        """The expected curve of the seeds that were run; the samples are of the mean over all seeds."""
        return self.posterior.reached(self.index, np.atleast_1d(compute_C))

    @cached_property
    def ceiling_B(self) -> Array:
        """The ceiling in every sample."""
        return self.posterior.ceilings_B(self.index)

    @cached_property
    def level(self) -> float:
        """Expected value at the last point."""
        return float(self.at(np.array([self.last]))[0])

    @cached_property
    def ceiling(self) -> float:
        """The ceiling: the median over samples, but never below the level that the last points hold."""
        return max(float(np.median(self.ceiling_B)), self._held())

    @cached_property
    def base(self) -> float:
        """Value at compute 0."""
        return float(np.median(self.posterior.base_B(self.index)))

    @property
    def rise_done(self) -> float:
        """Share of the rise from base to ceiling that is done at its last point (see `CEILING_SEEN`)."""
        rise = self.ceiling - self.base
        return 1.0 if rise <= 0 else (self.level - self.base) / rise

    @cached_property
    def rmse(self) -> float:
        """Root mean squared difference between the points and the expected curve; 0 without points."""
        points = [(curve.compute_C, curve.values_C) for curve in self.curves if len(curve.compute_C)]
        if not points:
            return 0.0
        compute_C, values_C = (np.concatenate(parts) for parts in zip(*points, strict=True))
        return float(np.sqrt(np.mean((self.at(compute_C) - values_C) ** 2)))

    @cached_property
    def form_weights(self) -> dict[str, float]:
        """Share of the samples near each named form."""
        return form_names(self.posterior.tail_B(self.index), self.posterior.stage_B)

    @property
    def form(self) -> str:
        """The name of the form that most samples are near."""
        return max(self.form_weights, key=lambda name: self.form_weights[name])

    def parameters(self) -> dict[str, float]:
        """Midpoint (compute of half the rise) and efficiency (ScaleRL's B) of the curve."""
        return {name: float(np.median(draws_B)) for name, draws_B in self._parameters().items()}

    def parameter_intervals(self) -> dict[str, tuple[float, float]]:
        """95% interval of each parameter."""
        return {name: around(float(np.median(draws_B)), draws_B) for name, draws_B in self._parameters().items()}

    def _parameters(self) -> dict[str, Array]:
        p = self.posterior
        return {"midpoint": np.exp(p.midpoint_SB[self.index]), "efficiency": np.exp(p.exponent_SB[self.index])}

    def ceiling_interval(self) -> tuple[float, float]:
        """95% interval of the ceiling; it contains the estimate."""
        return around(self.ceiling, self.ceiling_B)

    def base_interval(self) -> tuple[float, float]:
        """95% interval of the value at compute 0; it contains the estimate."""
        return around(self.base, self.posterior.base_B(self.index))

    def _held(self) -> float:
        ends = [curve.values_C[-_LATE:].mean() for curve in self.curves if len(curve.values_C)]
        return min(float(np.mean(ends)), self.posterior.upper) if ends else -np.inf


def fits_of(groups: Sequence[Sequence[Curve]], posterior: Posterior) -> list[CurveFit]:
    """The configurations of a posterior that was fitted to these groups."""
    out = []
    for index, group in enumerate(groups):
        first = min(float(curve.compute_C[curve.compute_C > 0].min()) for curve in group)
        out.append(CurveFit(tuple(group), posterior, index, first, first))
    return out


def fit_groups(
    groups: Sequence[Sequence[Curve]],
    *,
    replicates: int = 1000,
    seed: int | np.random.Generator = 0,
    upper: float | Sequence[float] | None = None,
    with_seeds: bool = True,
    in_rollouts: bool = False,
) -> list[CurveFit]:
    """Fit every group of curves (a run, or the seeds of one configuration) by itself.

    Ceilings are at most `upper`, one bound for all groups or one for each.
    """
    rng = seed if isinstance(seed, np.random.Generator) else np.random.default_rng(seed)
    if upper is None:
        upper = upper_bound(np.concatenate([curve.values_C for group in groups for curve in group]))
    uppers = np.broadcast_to(np.asarray(upper, dtype=np.float64), len(groups)).tolist()
    out: list[CurveFit] = []
    for group, bound in zip(groups, uppers, strict=True):
        posterior = fit_posterior(
            [group], upper=bound, replicates=replicates, rng=rng, with_seeds=with_seeds, in_rollouts=in_rollouts
        )
        out += fits_of([group], posterior)
    return out


@dataclass(frozen=True)
class LeftOut:
    """Error of the law without one n, at the runs with that n."""

    rollouts_per_problem: int
    rmse: float
    final_error: float
    """Mean absolute error at the last compute of its configurations."""
    edge: bool
    """Whether it is the smallest or largest n, whose prediction is an extrapolation."""


@dataclass(frozen=True)
class Surface:
    """The trend of the joint law."""

    form: str
    unit: float
    centre: tuple[float, float]
    terms: dict[str, _Powers]
    """Powers of the centred (log2 n, log2 Bp) in ceiling, log midpoint and log efficiency."""
    coefficients_Q: Array
    """The base, then the coefficients of each."""
    intervals_Q2: Array
    rmse: float
    left_out: tuple[LeftOut, ...]

    def to_json(self) -> dict[str, Any]:
        """The keys of `surface` in `fit --json`."""
        return {
            "form": self.form,
            "unit": self.unit,
            "centre": self.centre,
            "terms": self.terms,
            "coefficients": self.coefficients_Q.tolist(),
            "coefficient_intervals": self.intervals_Q2.tolist(),
            "rmse": self.rmse,
            "leave_one_out": [asdict(left) for left in self.left_out],
        }


def surface_of(fits: Sequence[CurveFit]) -> Surface | None:
    """The trend of configurations that share a posterior; None if they do not, or have fewer than three n."""
    posterior = fits[0].posterior
    if any(fit.posterior is not posterior or None in fit.setting for fit in fits):
        return None
    log_bp_S, log_n_S = np.log2(np.array([fit.setting for fit in fits], dtype=np.float64)).T
    if len(np.unique(log_n_S)) < 3:
        return None
    centre = float(log_n_S.mean()), float(log_bp_S.mean())
    u_S, v_S = log_n_S - centre[0], log_bp_S - centre[1]
    linear: _Powers = ((0, 0), (1, 0)) + (((0, 1),) if np.ptp(v_S) else ())
    square: _Powers = ((2, 0),) if len(np.unique(u_S)) > 3 else ()
    unit = posterior.first
    own = [fit.index for fit in fits]
    parts = {
        "ceiling": (linear + square, posterior.ceiling_SB[own]),
        "midpoint": (linear + square, posterior.midpoint_SB[own] - np.log(unit)),
        "efficiency": (linear, posterior.exponent_SB[own]),
    }
    draws = [posterior.base_RB[:1]]
    for powers, values_SB in parts.values():
        design_SQ = np.stack([u_S**i * v_S**j for i, j in powers], axis=1)
        draws.append(np.linalg.lstsq(design_SQ, values_SB, rcond=None)[0])
    draws_QB = np.concatenate(draws)
    return Surface(
        form=fits[0].form,
        unit=unit,
        centre=centre,
        terms={name: powers for name, (powers, _) in parts.items()},
        coefficients_Q=draws_QB.mean(axis=1),
        intervals_Q2=np.percentile(draws_QB, [2.5, 97.5], axis=1).T,
        rmse=float(np.sqrt(np.mean([fit.rmse**2 for fit in fits]))),
        left_out=_leave_one_out(fits),
    )


def _leave_one_out(fits: Sequence[CurveFit]) -> tuple[LeftOut, ...]:
    """Errors of predicting each n from the others; empty with fewer than four n."""
    tried = sorted({fit.setting[1] or 0 for fit in fits})
    if len(tried) < 4:
        return ()
    out = []
    for n in tried:
        rest = fits[0].posterior.subset([fit.index for fit in fits if fit.setting[1] != n])
        errors, final = [], []
        for fit in fits:
            bp, own = fit.setting
            if own != n:
                continue
            for curve in fit.curves:
                error_C = rest.between(bp or 1, n, curve.compute_C).mean(axis=1) - curve.values_C
                errors.append(error_C)
                final.append(abs(float(error_C[-1])))
        rmse = float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))
        out.append(LeftOut(n, rmse, float(np.mean(final)), n in (tried[0], tried[-1])))
    return tuple(out)
