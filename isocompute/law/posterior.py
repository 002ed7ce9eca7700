"""The posterior of a law: samples of R(C; n, Bp) for every configuration, run or not, at every compute.

Everything that is printed is computed from these samples: the frontier and n*(C), expected rewards and losses, ties,
the ceilings of runs and recipes, and the value of another run. A sample is one set of curves; point noise, seed
effects, the form of the curves and the model's error are in it (`law.model`).

Between the points a sample is its curve plus the model's error. Beyond the last point of a configuration,

    value(C) = value(last) + growth · (1 - DISCOUNT · exp(-updates / EARLY) + error),

where `growth` is that of the curve and `updates` what the configuration has made by its last point. The first updates
of a run, with warm-up and the answer format still to learn, promise more than later ones keep. The errors are what runs
did beyond their quarters and eighths (`benchmarks/law_worlds.py`, docs/studies/plan-quality.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from isocompute.core.arrays import Array, Bools, Ints
from isocompute.core.curve import Curve, Setting
from isocompute.law.model import (
    BEFORE,
    CEILING,
    SHIFT,
    Kernels,
    Mode,
    Noise,
    Points,
    Problem,
    ceiling_of,
    fit_modes,
    prior_centre,
    residual_paths,
    room_of,
    seed_effects,
)
from isocompute.law.shape import LARGEST_TAIL, LN2, STAGES, effective_log_compute, growth
from isocompute.law.solver import blas_on_one_core

DISCOUNT, EARLY = 0.5, 30.0
"""Share of its growth that a run does not keep after its first update, and the updates over which this dies out."""
_GROWTH_ERROR, _GROWTH_ERROR_OWN = 0.28, 0.08
"""Standard deviations of the error of growth: shared by all configurations, and of each."""
_FREEDOM = 5
"""Degrees of freedom of Student's t, since the noise levels are estimates."""
_KNOTS = 12
"""Computes at which the model's error is sampled; it is interpolated between them."""
SAME = 1.02
"""Budgets that differ by a batch are the same budget."""
_NO_DELAY = -30.0


@dataclass(frozen=True)
class Posterior:
    """Samples (`_B`) of the curves of configurations (`_S`) that share a base, a form and a prior."""

    settings: tuple[Setting, ...]
    """(Bp, n) of each configuration."""
    batch_S: Array
    """Bp · n, or NaN where updates are not counted."""
    last_S: Array
    """Last compute of each configuration."""
    first: float
    upper: float
    lower: float
    rise: float
    """The largest rise that was seen: the unit of the prior."""
    ended_S: Bools
    """Configurations whose runs all collapsed; their value stays constant after the last point."""
    stage_B: Ints
    """Index into `law.shape.STAGES`."""
    base_RB: Array
    """One row for all configurations, or one for each."""
    tail_RB: Array
    """The form's log β or logit w (`law.shape`); one row, or one for each configuration."""
    delay_B: Array
    """Log of the updates lost to warm-up."""
    ceiling_SB: Array
    midpoint_SB: Array
    """Log of the compute of half the rise."""
    exponent_SB: Array
    knots_SK: Array
    """Log times at which the model's error was sampled."""
    path_SKB: Array
    seen_SK: Array
    """Expected effect of the seeds that were run, at the knots: what they reached less the mean over all seeds."""
    model_error: float
    """Standard deviation of the model's error per e-fold of compute."""
    seed_effect: float = 0.0
    """Standard deviation between seeds, as a share of the rise."""
    autocorrelation: float = 0.0
    """Between one evaluation of a run and the next."""
    seed: int = 0
    centre: float = 0.0
    """Prior mean of the log midpoint."""
    _cache: dict[str, Array] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"Posterior({len(self.settings)} configurations, {len(self)} samples)"

    def __len__(self) -> int:
        return len(self.stage_B)

    def base_B(self, s: int) -> Array:
        """The base of configuration s."""
        return np.asarray(self.base_RB[min(s, len(self.base_RB) - 1)])

    def tail_B(self, s: int) -> Array:
        """The tail of configuration s's form."""
        return np.asarray(self.tail_RB[min(s, len(self.tail_RB) - 1)])

    def _draws(self, name: str, size: int) -> Array:
        """Standard normal draws, `size` × samples, that stay the same however often they are asked for."""
        key = f"{name}{size}"
        if key not in self._cache:
            stream = np.random.default_rng([self.seed, sum(map(ord, name))])
            z = stream.standard_normal((size, len(self)))
            self._cache[key] = z - z.mean(axis=1, keepdims=True)
        return self._cache[key]

    def at(self, s: int, compute_C: Array) -> Array:
        """Values of configuration s, compute × samples."""
        compute_C = np.atleast_1d(np.asarray(compute_C, dtype=np.float64))
        end = float(self.last_S[s])
        inside_CB = self._inside(s, np.minimum(compute_C, end))
        past_C = compute_C > end * SAME
        if not past_C.any() or self.ended_S[s]:
            return self._clipped(inside_CB)
        values_B = self._inside(s, np.array([end]))[0]
        more_CB = self._curve(s, compute_C[past_C]) - self._curve(s, np.array([end]))
        errors_B = _GROWTH_ERROR * self._draws("growth", 1)[0] + _GROWTH_ERROR_OWN * self._own("growth of", s)
        inside_CB[past_C] = values_B + _believed(more_CB, end / float(self.batch_S[s]), errors_B)
        inside_CB[past_C] += self._wander(s, compute_C[past_C] / end)
        return self._clipped(inside_CB)

    def reached(self, s: int, compute_C: Array) -> Array:
        """Expected values of the seeds of configuration s that were run; their effect stays as it was at the end."""
        values_C = self.at(s, compute_C).mean(axis=1)
        if not self.knots_SK.shape[1]:
            return np.asarray(values_C)
        time_C = self._log_time(np.minimum(compute_C, self.last_S[s]))
        effect_C = np.interp(time_C, np.append(0.0, self.knots_SK[s]), np.append(0.0, self.seen_SK[s]))
        return self._clipped(values_C + effect_C)

    def between(self, problems_per_batch: int, rollouts_per_problem: int, compute_C: Array) -> Array:
        """Values of a (Bp, n) that was not run, compute × samples: its parameters given those of the others."""
        compute_C = np.atleast_1d(np.asarray(compute_C, dtype=np.float64))
        alpha_B, midpoint_B, exponent_B = self._conditional(problems_per_batch, rollouts_per_problem)
        near = self._nearest(problems_per_batch, rollouts_per_problem)
        base_B, tail_B = self.base_B(near), self.tail_B(near)
        batch = float(problems_per_batch * rollouts_per_problem)
        batch = batch if np.isfinite(self.batch_S).all() else np.nan
        end = float(self.last_S.max())
        ceiling_B = ceiling_of(alpha_B, base_B, self.upper, self.rise)

        def curve(at_C: Array) -> Array:
            return self._form(at_C, (base_B, tail_B, ceiling_B, midpoint_B, exponent_B), batch)

        key = problems_per_batch * 100_003 + rollouts_per_problem
        own_B = np.random.default_rng([self.seed, 5, key]).standard_normal((2, len(self)))
        time_C = self._log_time(np.minimum(compute_C, end))
        values_CB = curve(np.minimum(compute_C, end)) + self.model_error * np.sqrt(time_C)[:, None] * own_B[0]
        past_C = compute_C > end * SAME
        if past_C.any():
            errors_B = _GROWTH_ERROR * self._draws("growth", 1)[0] + _GROWTH_ERROR_OWN * own_B[1]
            there_B = curve(np.array([end]))[0]
            values_CB[past_C] += _believed(curve(compute_C[past_C]) - there_B, end / batch, errors_B)
        return self._clipped(values_CB)

    def level_B(self, s: int) -> Array:
        """Value of configuration s at its last point."""
        return np.asarray(self._inside(s, self.last_S[s : s + 1])[0])

    def ceilings_B(self, s: int) -> Array:
        """The ceiling of configuration s: what its curve still adds, on top of the level it holds."""
        left_B = np.maximum(self.ceiling_SB[s] - self._curve(s, self.last_S[s : s + 1])[0], 0.0)
        return self._clipped(np.maximum(self.level_B(s) + left_B, self.level_B(s)))

    def subset(self, keep: Sequence[int]) -> Posterior:
        """The posterior of some of its configurations."""
        k = list(keep)
        rows = {name: getattr(self, name) for name in ("base_RB", "tail_RB")}
        rows = {name: each if len(each) == 1 else each[k] for name, each in rows.items()}
        parts = {name: getattr(self, name)[k] for name in ("batch_S", "last_S", "ended_S", "ceiling_SB", "midpoint_SB")}
        parts |= rows | {"exponent_SB": self.exponent_SB[k], "path_SKB": self.path_SKB[k]}
        parts |= {"knots_SK": self.knots_SK[k], "seen_SK": self.seen_SK[k]}
        rest = {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            if name not in parts and name not in ("settings", "_cache")
        }
        return Posterior(settings=tuple(self.settings[i] for i in k), **parts, **rest)

    def _log_time(self, compute_C: Array) -> Array:
        start = BEFORE * self.first
        return np.asarray(np.log(np.maximum(compute_C, start) / start))

    def _clipped(self, values_CB: Array) -> Array:
        return np.asarray(np.clip(values_CB, self.lower, self.upper))

    def _form(self, compute_C: Array, parameters: Sequence[Array], batch: float) -> Array:
        """Curves with these bases, tails, ceilings, midpoints and exponents."""
        out_CB = np.empty((len(compute_C), len(self)))
        for index, stage in enumerate(STAGES):
            mine = np.flatnonzero(self.stage_B == index)
            if not len(mine):
                continue
            log_x = effective_log_compute(compute_C[:, None], batch, np.exp(self.delay_B[mine]))
            base_B, tail_B, ceiling_B, midpoint_B, exponent_B = (each_B[mine] for each_B in parameters)
            g = growth(log_x - midpoint_B, exponent_B, tail_B, stage)
            out_CB[:, mine] = base_B + (ceiling_B - base_B) * g
        return out_CB

    def _curve(self, s: int, compute_C: Array) -> Array:
        """The curves of configuration s, without the model's error."""
        own = (self.ceiling_SB[s], self.midpoint_SB[s], self.exponent_SB[s])
        return self._form(compute_C, (self.base_B(s), self.tail_B(s), *own), float(self.batch_S[s]))

    def _inside(self, s: int, compute_C: Array) -> Array:
        """Curve and model's error, up to the last point."""
        values_CB = self._curve(s, compute_C)
        if not self.knots_SK.shape[1]:
            return values_CB
        time_C = self._log_time(compute_C)
        knots = np.concatenate([[0.0], self.knots_SK[s]])
        right_C = np.clip(np.searchsorted(knots, time_C, side="left"), 1, len(knots) - 1)
        width = np.maximum(knots[right_C] - knots[right_C - 1], 1e-12)
        share_C1 = np.clip((time_C - knots[right_C - 1]) / width, 0.0, 1.0)[:, None]
        path_KB = np.concatenate([np.zeros((1, len(self))), self.path_SKB[s]])
        return np.asarray(values_CB + (1.0 - share_C1) * path_KB[right_C - 1] + share_C1 * path_KB[right_C])

    def _own(self, name: str, s: int) -> Array:
        bp, n = self.settings[s]
        return np.random.default_rng([self.seed, sum(map(ord, name)), bp or 0, n or 0, s]).standard_normal(len(self))

    def _nearest(self, bp: int, n: int) -> int:
        """Index of the configuration closest to a (Bp, n)."""
        return int(np.argmin([abs(np.log((b or bp) / bp)) + abs(np.log((m or n) / n)) for b, m in self.settings]))

    def _wander(self, s: int, times_C: Array) -> Array:
        """The model's error past the last point, which grows with the root of log compute."""
        return np.outer(self.model_error * np.sqrt(np.log(times_C)), self._own("path of", s))

    def _alpha(self) -> Array:
        """The ceilings as the prior sees them (the inverse of `ceiling_of`)."""
        above_SB = self.ceiling_SB - self.base_RB
        if np.isfinite(self.upper):
            room_RB = room_of(self.base_RB, self.upper, self.rise)
            above_SB = -np.log(np.maximum((self.upper - self.ceiling_SB) / room_RB, 1e-9)) * room_RB
        return np.asarray(np.log(np.maximum(above_SB / self.rise + SHIFT, 1e-9)))

    def _conditional(self, bp: int, n: int) -> tuple[Array, Array, Array]:
        """Ceiling parameter, log midpoint and log exponent of a (Bp, n) that was not run, given the others."""
        pairs = np.array([(b or bp, m or n) for b, m in self.settings], dtype=np.float64)
        log_bp, log_n = np.log2(np.append(pairs[:, 0], bp)), np.log2(np.append(pairs[:, 1], n))
        own = np.eye(len(log_n))
        centre, smallest = (float(log_n[:-1].mean()), float(log_bp[:-1].mean())), float(log_n.min())
        prior = Kernels.of(log_n, log_bp, own, centre=centre, smallest=smallest)
        spread_B = np.array([stage.exponent[1] for stage in STAGES])[self.stage_B]
        mean_B = np.array([stage.exponent[0] for stage in STAGES])[self.stage_B]
        midpoint_prior = self.centre + prior.midpoint_mean
        z_3B = np.random.default_rng([self.seed, 7, bp, n]).standard_normal((3, len(self)))
        out = []
        for covariance, values_SB, mean_S, z_B, unit_B in (
            (prior.ceiling, self._alpha(), np.full(len(log_n), CEILING), z_3B[0], np.ones(len(self))),
            (prior.midpoint, self.midpoint_SB, midpoint_prior, z_3B[1], np.ones(len(self))),
            (prior.exponent, (self.exponent_SB - mean_B) / spread_B, np.zeros(len(log_n)), z_3B[2], spread_B),
        ):
            gain_S = np.linalg.solve(covariance[:-1, :-1], covariance[:-1, -1])
            left = max(float(covariance[-1, -1] - gain_S @ covariance[:-1, -1]), 0.0)
            value_B = mean_S[-1] + gain_S @ (values_SB - mean_S[:-1, None]) + np.sqrt(left) * z_B
            out.append(value_B * unit_B + (mean_B if unit_B is spread_B else 0.0))
        return out[0], out[1], out[2]


def _believed(more_CB: Array, updates: float, errors_B: Array) -> Array:
    """How much of a curve's growth to expect past its last point, by the module's equation; NaN updates are many."""
    discount = 0.0 if np.isnan(updates) else DISCOUNT * float(np.exp(-updates / EARLY))
    return np.asarray(np.maximum(more_CB, 0.0) * (1.0 - discount + errors_B))


def fit_posterior(
    groups: Sequence[Sequence[Curve]],
    *,
    upper: float,
    replicates: int,
    rng: np.random.Generator,
    with_seeds: bool = True,
    in_rollouts: bool = True,
    ended: Sequence[bool] = (),
) -> Posterior:
    """The posterior of configurations, each given by its seeds.

    Without `with_seeds` the curves are those of the runs themselves, not means over seeds. `ended` are configurations
    whose runs all collapsed.
    """
    problem = Problem.of(groups, upper=upper, with_seeds=with_seeds, in_rollouts=in_rollouts)
    with blas_on_one_core():
        return _fit(problem, [group[0].setting for group in groups], replicates, rng, ended)


def _fit(
    problem: Problem, settings: Sequence[Setting], replicates: int, rng: np.random.Generator, ended: Sequence[bool]
) -> Posterior:
    modes, weights = fit_modes(problem)
    size = len(problem)
    seed = int(rng.integers(2**31))
    stage_B = rng.permutation(
        np.searchsorted(np.cumsum(weights)[:-1], (np.arange(replicates) + rng.random()) / max(replicates, 1))
    )
    knots_SK = np.stack([_knots(problem, points) for points in problem.points_S])
    q_QB = np.empty((3 + 3 * size, replicates))
    path_SKB = np.zeros((size, _KNOTS, replicates))
    seen_SK = np.zeros((size, _KNOTS))
    for index, (mode, weight) in enumerate(zip(modes, weights.tolist(), strict=True)):
        seen_SK += weight * np.stack([seed_effects(problem, mode, s, knots_SK[s]) for s in range(size)])
        mine = np.flatnonzero(stage_B == index)
        if len(mine):
            q_QB[:, mine], path_SKB[:, :, mine] = _sampled(problem, mode, len(mine), knots_SK, rng)
    alpha_SB, midpoint_SB, exponent_SB = (q_QB[3 + i * size : 3 + (i + 1) * size] for i in range(3))
    values = np.concatenate([points.values_N for points in problem.points_S])
    lower = 0.0 if values.min() >= 0.0 else -1.0 if problem.upper == 1.0 else -np.inf
    return Posterior(
        settings=tuple(settings),
        batch_S=problem.batch_S,
        last_S=problem.last_S,
        first=problem.first,
        upper=problem.upper,
        lower=lower,
        rise=problem.rise,
        ended_S=np.array(list(ended) or [False] * size),
        stage_B=np.asarray(stage_B, dtype=np.int64),
        base_RB=q_QB[:1],
        tail_RB=q_QB[1:2],
        delay_B=q_QB[2],
        ceiling_SB=problem.ceiling(q_QB[0], alpha_SB),
        midpoint_SB=midpoint_SB,
        exponent_SB=exponent_SB,
        knots_SK=knots_SK,
        path_SKB=path_SKB,
        seen_SK=seen_SK,
        model_error=modes[0].noise.model * problem.rise,
        seed_effect=modes[0].noise.seed,
        autocorrelation=modes[0].noise.autocorrelation,
        seed=seed,
        centre=prior_centre(problem),
    )


def _knots(problem: Problem, points: Points) -> Array:
    """Log times at which the model's error of a configuration is sampled: from its first point to its last."""
    ends = problem.log_time(np.array([points.compute_N[points.compute_N > 0].min(), points.compute_N.max()]))
    return np.linspace(float(ends[0]), float(ends[1]), _KNOTS)


def curve_of_form(form_B: Array, theta_BK: Array, unit: float) -> tuple[Array, Array, Array]:
    """Log midpoint, log exponent and tail of curves of three forms, from their own parameters in logs.

    hill: midpoint and exponent. exponential: scale. power: exponent, with the unit as its scale.
    """
    first_B, second_B = theta_BK[:, 0], theta_BK[:, -1]
    half_B = np.log(np.expm1(LN2 / np.exp(np.where(form_B == "power", first_B, 0.0))))
    midpoint_B = np.select([form_B == "hill", form_B == "exponential"], [first_B, first_B + np.log(LN2)], half_B)
    exponent_B = np.where(form_B == "hill", second_B, 0.0)
    tail_B = np.select([form_B == "hill", form_B == "exponential"], [0.0, LARGEST_TAIL], first_B)
    return midpoint_B + np.log(unit), exponent_B, tail_B


def independent(
    settings: Sequence[Setting],
    *,
    last_S: Array,
    base_SB: Array,
    ceiling_SB: Array,
    curves: Sequence[tuple[Array, Array, Array]],
    first: float,
    seed: int = 0,
) -> Posterior:
    """A posterior of curves that were fitted one by one, or published."""
    midpoint_SB, exponent_SB, tail_SB = (np.stack(rows) for rows in zip(*curves, strict=True))
    size, count = base_SB.shape
    rise = max(float(np.median(ceiling_SB - base_SB)), 1e-9) if count else 1.0
    high = max(float(ceiling_SB.max(initial=0.0)), float(base_SB.max(initial=0.0)))
    return Posterior(
        settings=tuple(settings),
        batch_S=np.full(size, np.nan),
        last_S=last_S,
        first=first,
        upper=1.0 if high <= 1.0 else np.inf,
        lower=-np.inf,
        rise=rise,
        ended_S=np.zeros(size, dtype=np.bool_),
        stage_B=np.zeros(count, dtype=np.int64),
        base_RB=base_SB,
        tail_RB=tail_SB,
        delay_B=np.full(count, _NO_DELAY),
        ceiling_SB=ceiling_SB,
        midpoint_SB=midpoint_SB,
        exponent_SB=exponent_SB,
        knots_SK=np.empty((size, 0)),
        path_SKB=np.empty((size, 0, count)),
        seen_SK=np.empty((size, 0)),
        model_error=Noise().model * rise,
        seed=seed,
        centre=float(np.mean(midpoint_SB)) if count else 0.0,
    )


def _sampled(
    problem: Problem, mode: Mode, count: int, knots_SK: Array, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Parameters (rows) and the model's error at the knots, for `count` samples of one kind of curve."""
    size = len(problem)
    scale_B = np.sqrt(_FREEDOM / rng.chisquare(_FREEDOM, count))
    root = np.linalg.cholesky(mode.precision)
    q_QB = mode.q[:, None] + np.linalg.solve(root.T, _centred(scale_B * rng.standard_normal((len(mode.q), count))))
    path_SKB = np.empty((*knots_SK.shape, count))
    ceiling_SB = problem.ceiling(q_QB[0], q_QB[3 : 3 + size])
    for s, knots_K in enumerate(knots_SK):
        compute_K = BEFORE * problem.first * np.exp(knots_K)
        places = problem.places(s)
        moved_PB = q_QB[places] - mode.q[places, None]
        (curve_N, slopes_NP), (curve_K, slopes_KP) = (
            problem.curve(mode.q, s, mode.stage, at) for at in (problem.points_S[s].compute_N, compute_K)
        )
        log_x = effective_log_compute(compute_K[:, None], float(problem.batch_S[s]), np.exp(q_QB[2])) - q_QB[places[4]]
        g_KB = growth(log_x, q_QB[places[5]], q_QB[1], mode.stage)
        sampled_KB = q_QB[0] + (ceiling_SB[s] - q_QB[0]) * g_KB
        z_KB = _centred(scale_B * rng.standard_normal((len(knots_K), count)))
        # The samples are those of the linearised curve; what the curve differs from that is in the path.
        path_SKB[s] = residual_paths(problem, mode, s, curve_N[:, None] + slopes_NP @ moved_PB, knots_K, z_KB)
        path_SKB[s] += curve_K[:, None] + slopes_KP @ moved_PB - sampled_KB
    return q_QB, path_SKB


def _centred(draws_KB: Array) -> Array:
    """Draws whose means are exactly 0, so that the expected curve does not depend on their number."""
    return np.asarray(draws_KB - draws_KB.mean(axis=1, keepdims=True))
