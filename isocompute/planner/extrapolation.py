"""Evaluates a law of reward curves inside the range of its runs, and extrapolates it past their ends.

Inside its range a setting's value is its own fitted curve. A setting that was not run has its value from the surface
through the others, with the error of leaving one n out.

Past the ends of runs, separately fitted curves diverge. The surface predicts growth that has begun better than growth
that has not, so growth is trusted in proportion to how much of it was observed. With the growth g on the surface, the
observed rise r and w = max(0, 1 - g/r),

    value(C) = w · (own(last) + g) + (1 - w) · (reference(C) + (own - reference)(last) · 2^-d),

where the reference is the setting that leads among those run furthest, and d is the number of doublings from `last` to
C. The rule was chosen on simulated sweeps fitted up to C/8 and run to C (docs/studies/plan-quality.md).

Fitted forms level off, but most runs do not: laws fitted up to C/8 expected 13 to 16% of the rise too little
(`benchmarks/plan_ahead.py`). So half of the draws add a damped trend. It is the same for all settings, because
differences between settings' trends were as often wrong as right. `extrapolation_noise` covers the remaining error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Array
from isocompute.law.fits import CurveFit
from isocompute.law.frontier import EARLY_FACTOR
from isocompute.law.surface import Surface

SAME = 1.02
"""Budgets that differ by a batch are the same budget."""
DAMPING = 0.7
"""Share of its slope with which a trend continues, as in forecasts of single runs."""
_LONGEST = 4.0
"""Doublings of compute for which a trend continues; we have no data beyond."""
_BISECTIONS = 40
_AS_FAR = 2.0
"""Settings count as run equally far if their last evaluations lie within this factor."""


@dataclass(frozen=True)
class Curves:
    """Reward curves of settings, each with its ensemble, and the surface through them, if any."""

    fits: tuple[CurveFit, ...]
    surface: Surface | None = None
    problems_per_batch: int | None = None
    """Fills in the Bp of runs that lack it."""
    seed: int = 0
    collapsed: frozenset[tuple[int, int]] = frozenset()
    """Settings whose runs all collapsed; their value stays constant after the last of these collapses."""

    def _key(self, fit: CurveFit) -> tuple[int, int]:
        bp, n = fit.setting
        return int(bp or self.problems_per_batch or 1), int(n or 1)

    def settings(self) -> list[tuple[int, int]]:
        """The settings that were run."""
        return sorted({self._key(fit) for fit in self.fits})

    def interpolates(self) -> bool:
        """Whether there is a surface, which has values between the settings that were run."""
        return self.surface is not None

    def noise(self) -> float:
        """Evaluation noise of a run, from the median residual of the fits."""
        return float(np.median([fit.rmse for fit in self.fits]))

    def last(self, bp: int, n: int) -> float:
        """Largest compute of a setting; 0 if it was not run."""
        return max((fit.last for fit in self.fits if self._key(fit) == (bp, n)), default=0.0)

    def begun(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Whether each compute is at least a quarter below its setting's first evaluation, as on the frontier."""
        starts = {self._key(fit): fit.starts / EARLY_FACTOR for fit in self.fits}
        return np.asarray(compute_A >= np.array([starts.get(key, 0.0) for key in _pairs(problems_A, rollouts_A)]))

    def values(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Allocations × draws."""
        keys, known = _pairs(problems_A, rollouts_A), set(self.settings())
        run_A = np.array([key in known for key in keys])
        out_AB = np.empty((len(keys), self._draws()))
        end = max(fit.last for fit in self.fits)
        last_A = np.array([self.last(*key) or end for key in keys])
        collapsed_A = np.array([key in self.collapsed for key in keys])
        compute_A = np.where(collapsed_A, np.minimum(compute_A, last_A), compute_A)
        past_A = run_A & (compute_A > last_A * SAME)
        for key in known:
            inside_A = ~past_A & np.array([each == key for each in keys])
            if inside_A.any():
                out_AB[inside_A] = self._own(key, compute_A[inside_A])
        if past_A.any():
            out_AB[past_A] = self._past_end(problems_A[past_A], rollouts_A[past_A], compute_A[past_A])
        if not run_A.all():
            out_AB[~run_A] = self._between(problems_A[~run_A], rollouts_A[~run_A], compute_A[~run_A])
        upper = self.surface.upper if self.surface is not None else np.inf
        doublings_A = np.log2(np.maximum(compute_A / last_A, 1.0))
        doublings_A[doublings_A < np.log2(SAME)] = 0.0
        if doublings_A.any():
            # The bound applies to the trend before the noise, so that noise at the bound goes both ways.
            out_AB = np.minimum(out_AB + self._trend(compute_A), upper)
            out_AB += extrapolation_noise(
                settings=self.settings(),
                problems_A=problems_A,
                rollouts_A=rollouts_A,
                doublings_A=doublings_A,
                rise=float(np.median([abs(fit.at(np.array([fit.last]))[0] - fit.base) for fit in self.fits])),
                shares=WITH_TREND if self._with_trend() else WITHOUT_TREND,
                draws=self._draws(),
                seed=self.seed,
            )
        return clip_keeping_mean(out_AB, -np.inf, upper)

    def _draws(self) -> int:
        return len(self.fits[0].ensemble.base_B)

    def _own(self, key: tuple[int, int], compute_C: Array) -> Array:
        """A setting's own curve, compute × draws; with several recipes, the best one's."""
        curves_FCB = np.stack([fit.ensemble.at(compute_C).T for fit in self.fits if self._key(fit) == key])
        best_C = curves_FCB.mean(axis=2).argmax(axis=0)
        return np.asarray(curves_FCB[best_C, np.arange(len(compute_C))])

    def _past_end(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Values of settings past their last points, by the module's equation."""
        keys = _pairs(problems_A, rollouts_A)
        last_A = np.array([self.last(*key) for key in keys])
        reference = self._reference()
        ends = {key: self._own(key, np.array([self.last(*key)]))[0] for key in set(keys)}
        return extrapolate(
            own_AB=np.stack([ends[key] for key in keys]),
            growth_AB=self._growth(keys, last_A, compute_A),
            reference_AB=self._grown(reference, last_A),
            reference_there_AB=self._grown(reference, compute_A),
            base=float(np.median([fit.base for fit in self.fits])),
            doublings_A=np.log2(compute_A / last_A),
        )

    def _healthy(self) -> list[CurveFit]:
        """Fits of settings with a run that did not collapse."""
        return [fit for fit in self.fits if self._key(fit) not in self.collapsed]

    def _with_trend(self) -> list[CurveFit]:
        """Healthy settings that have a trend and were run about as far as the longest.

        Shorter ones may have ended in their steep part. Published curves have no points, and so no trend.
        """
        end = max((fit.last for fit in self._healthy()), default=np.inf)
        return [fit for fit in self._healthy() if fit.trend is not None and fit.last >= end / _AS_FAR]

    def _trend(self, compute_A: Array) -> Array:
        """The damped trend past the longest runs, allocations × draws; it is 0 in one half of the draws."""
        fits = self._with_trend()
        end = max((fit.last for fit in self._healthy()), default=np.inf)
        doublings_A = np.log2(np.maximum(compute_A / end, 1.0))
        if not fits or doublings_A.max() < np.log2(SAME):
            return np.zeros((len(compute_A), self._draws()))
        growth_SA = np.stack([self._form(fit, fit.last * 2.0**doublings_A) for fit in fits])
        growth_SA -= np.stack([self._form(fit, np.full(len(compute_A), fit.last)) for fit in fits])
        trend_S = np.array([fit.trend for fit in fits])
        more_A = damped_trend(trend_S=trend_S, growth_SA=growth_SA, doublings_A=doublings_A)
        half_B = np.random.default_rng([self.seed, 4]).permutation(self._draws()) % 2
        return np.outer(more_A, half_B)

    def _form(self, fit: CurveFit, compute_C: Array) -> Array:
        """A setting's values on the surface, or on its own curve if there is no surface."""
        if self.surface is None:
            return fit.at(compute_C)
        bp, n = self._key(fit)
        return self.surface.at(compute_C, np.array(float(n)), np.array(float(bp)))

    def _grown(self, key: tuple[int, int], compute_A: Array) -> Array:
        """A setting's own curve, extended past its last point by the growth on the surface."""
        end = self.last(*key)
        further_AB = self._growth([key] * len(compute_A), np.full(len(compute_A), end), np.maximum(compute_A, end))
        return self._own(key, np.minimum(compute_A, end)) + further_AB

    def _growth(self, keys: Sequence[tuple[int, int]], from_A: Array, to_A: Array) -> Array:
        """Rise of settings between two computes, on the surface or, without one, on their own curves."""
        if self.surface is None:
            ends = zip(keys, np.stack([from_A, to_A], axis=1), strict=True)
            return np.stack([np.maximum(np.diff(self._own(key, end_C), axis=0)[0], 0.0) for key, end_C in ends])
        bp_A, n_A = np.array(keys, dtype=np.float64).T
        both_B2A = self.surface.replicates_at(np.stack([from_A, to_A]), n_A, bp_A)
        growth_BA = np.maximum(both_B2A[:, 1] - both_B2A[:, 0], 0.0)
        return np.asarray(growth_BA[np.arange(self._draws()) % len(growth_BA)].T)

    def _reference(self) -> tuple[int, int]:
        """Of the settings run furthest, the one that leads at the largest compute they all reached."""
        end = max(fit.last for fit in self.fits)
        far = [fit for fit in self.fits if fit.last >= end / _AS_FAR]
        there = np.array([min(fit.last for fit in far)])
        return self._key(max(far, key=lambda fit: float(fit.ensemble.at(there)[:, 0].mean())))

    def _between(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Values of settings that were not run: the surface, with its error for an n that was left out."""
        if self.surface is None:
            raise ValueError("no surface: only settings that were run can be asked for")
        error = float(np.mean([left.rmse for left in self.surface.left_out if not left.edge] or [self.surface.rmse]))
        values_BA = self.surface.replicates_at(compute_A, rollouts_A, problems_A)
        values_AB = values_BA[np.arange(self._draws()) % len(values_BA)].T
        rng = np.random.default_rng([self.seed, 1])
        return np.asarray(values_AB + error * centered(rng, (len(problems_A), self._draws())))


def extrapolate(
    *, own_AB: Array, growth_AB: Array, reference_AB: Array, reference_there_AB: Array, base: float, doublings_A: Array
) -> Array:
    """The module's equation: values of settings this many doublings past their last points, in every draw.

    `own_AB` and `reference_AB` are values of a setting and of the reference at the setting's last point.
    `reference_there_AB` are those of the reference at the compute asked for, and `base` is where all curves start.
    """
    rise_A1 = np.maximum(own_AB.mean(axis=1, keepdims=True) - base, 1e-9)
    trust_A1 = np.maximum(0.0, 1.0 - growth_AB.mean(axis=1, keepdims=True) / rise_A1)
    follows_AB = reference_there_AB + (own_AB - reference_AB) * 0.5 ** doublings_A[:, None]
    return np.asarray(trust_A1 * (own_AB + growth_AB) + (1.0 - trust_A1) * follows_AB)


def damped_trend(*, trend_S: Array, growth_SA: Array, doublings_A: Array) -> Array:
    """How much more settings grow than their fitted form if the trend of their last points continues, damped.

    It is the median over settings, at least 0. `trend_S` is each setting's rise per doubling at the end of its runs,
    and `growth_SA` is the growth of its form.
    """
    further_A = DAMPING * np.minimum(doublings_A, _LONGEST)
    return np.asarray(np.maximum(0.0, np.median(trend_S[:, None] * further_A - growth_SA, axis=0)))


@dataclass(frozen=True)
class NoiseShares:
    """Standard deviations of the extrapolation noise per doubling of compute, as shares of the observed rise."""

    shared: float
    """Noise that all settings share."""
    along_rollouts: float
    """Tilt along log n: noise between the middle of the range and its ends, with opposite signs at the ends."""
    along_problems: float
    """Tilt along log Bp, likewise."""
    own: float
    """Independent noise of each setting."""


WITH_TREND = NoiseShares(shared=0.015, along_rollouts=0.05, along_problems=0.025, own=0.02)
"""For laws whose runs have a trend.

At eight times the data's compute, 80% intervals contain 92% of values and 81 to 92% of differences between settings on
70 simulated sets. On a language model's sweeps they contain 77 to 82% and 62 to 100% (docs/studies/plan-quality.md)."""
WITHOUT_TREND = NoiseShares(shared=0.05, along_rollouts=0.03, along_problems=0.015, own=0.01)
"""For other laws, such as published ones, which level off as their form does."""


def extrapolation_noise(
    *,
    settings: Sequence[tuple[int, int]],
    problems_A: Array,
    rollouts_A: Array,
    doublings_A: Array,
    rise: float,
    shares: NoiseShares,
    draws: int,
    seed: int,
) -> Array:
    """Possible errors of extrapolation, allocations × draws, with mean zero over the draws."""
    rng = np.random.default_rng([seed, 2])
    run_S2 = np.array(settings, dtype=np.float64)
    shared_QB = centered(rng, (3, draws))
    own = dict(zip(settings, centered(rng, (len(settings), draws)), strict=True))
    none_B = np.zeros(draws)
    own_AB = np.stack([own.get(key, none_B) for key in _pairs(problems_A, rollouts_A)])
    noise_AB = (
        shares.shared * shared_QB[0]
        + shares.along_rollouts * _position(rollouts_A, run_S2[:, 1])[:, None] * shared_QB[1]
        + shares.along_problems * _position(problems_A, run_S2[:, 0])[:, None] * shared_QB[2]
        + shares.own * own_AB
    )
    return np.asarray(rise * doublings_A[:, None] * noise_AB)


def _pairs(problems_A: Array, rollouts_A: Array) -> list[tuple[int, int]]:
    return list(zip(problems_A.astype(int).tolist(), rollouts_A.astype(int).tolist(), strict=True))


def _position(values_A: Array, among: Array) -> Array:
    """log2 of values, scaled so that the range that was run goes from -1 to 1."""
    low, high = np.log2(among.min()), np.log2(among.max())
    return np.asarray((2.0 * np.log2(values_A) - low - high) / max(high - low, 1.0))


def centered(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Standard normal draws whose rows have mean zero."""
    z = rng.standard_normal(shape)
    return np.asarray(z - z.mean(axis=1, keepdims=True))


def clip_keeping_mean(values_AB: Array, low: float, high: float) -> Array:
    """Rows clipped to these bounds, and shifted so that their means stay the same.

    Clipping alone would lower the mean of draws around .99 to .96. A row whose mean is out of bounds is only clipped.
    """
    out_AB, all_A = np.clip(values_AB, low, high), values_AB.mean(axis=1)
    off_A = (out_AB != values_AB).any(axis=1) & (low < all_A) & (all_A < high)
    if not off_A.any():
        return np.asarray(out_AB)
    some_AB = values_AB[off_A]
    mean_A1, most_A1 = all_A[off_A, None], np.ptp(some_AB, axis=1, keepdims=True)
    least_A1 = -most_A1
    for _ in range(_BISECTIONS):  # the mean rises with the shift
        shift_A1 = (least_A1 + most_A1) / 2
        under_A1 = np.clip(some_AB + shift_A1, low, high).mean(axis=1, keepdims=True) < mean_A1
        least_A1, most_A1 = np.where(under_A1, shift_A1, least_A1), np.where(under_A1, most_A1, shift_A1)
    out_AB[off_A] = np.clip(some_AB + most_A1, low, high)
    return np.asarray(out_AB)
