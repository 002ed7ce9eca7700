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

from collections.abc import Callable, Sequence
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
    Points,
    Problem,
    ceiling_of,
    fit_modes,
    prior_centre,
    residual_paths,
    room_of,
    seed_effects,
)
from isocompute.law.shape import STAGES, effective_log_compute, growth
from isocompute.law.solver import blas_on_one_core

DISCOUNT, EARLY = 0.5, 30.0
"""Share of its growth that a run does not keep after its first update, and the updates over which this dies out."""
_GROWTH_ERROR, _GROWTH_ERROR_OWN = 0.25, 0.08
"""Standard deviations of the error of growth: shared by all configurations, and of each."""
_FREEDOM = 5
"""Degrees of freedom of Student's t, since the noise levels are estimates."""
_GRID = 64
"""Computes at which the best checkpoint so far is looked for."""
_KNOTS = 12
"""Computes at which the model's error is sampled; it is interpolated between them."""
SAME = 1.02
"""Budgets that differ by a batch are the same budget."""


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

    def best_by(self, s: int, compute_C: Array) -> Array:
        """Values of configuration s's best checkpoint by each compute, compute × samples."""
        values_CB, end = self.at(s, compute_C), float(self.last_S[s])
        grid_G, best_G, mean_G = self._best(s)
        place_C = np.clip(np.searchsorted(grid_G, compute_C * (1 + 1e-9), side="right") - 1, 0, None)
        lost_C = np.where(compute_C > end, best_G[-1] - mean_G[-1], best_G[place_C] - values_CB.mean(axis=1))
        return np.asarray(np.minimum(values_CB + np.maximum(lost_C, 0.0)[:, None], self.upper))

    def kept(self, s: int, compute_C: Array) -> Array:
        """How far the expected curve of configuration s lies below its best so far: checkpoints can be kept."""
        grid_G, best_G, mean_G = self._best(s)
        return np.asarray(np.interp(np.log(compute_C), np.log(grid_G), best_G - mean_G))

    def _best(self, s: int) -> Array:
        """Computes up to the last point, the highest expected value so far, and the expected value."""
        key, end = f"best of {s}", float(self.last_S[s])
        if key not in self._cache:
            kinks_K = BEFORE * self.first * np.exp(self.knots_SK[s])  # the expected curve may turn there
            grid_G = np.unique(np.concatenate([np.geomspace(min(self.first, end), end, _GRID), kinks_K]))
            mean_G = self._inside(s, grid_G).mean(axis=1)
            self._cache[key] = np.stack([grid_G, np.maximum.accumulate(mean_G), mean_G])
        return self._cache[key]

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
        """The values within their bounds; what clipping takes from their mean is given to those with room left."""
        out_CB = np.clip(values_CB, self.lower, self.upper)
        if np.isfinite(self.upper) and values_CB.ndim == 2:
            lost_C1 = np.minimum(values_CB.mean(axis=1), self.upper)[:, None] - out_CB.mean(axis=1, keepdims=True)
            room_CB = self.upper - out_CB
            out_CB += np.maximum(lost_C1, 0.0) / np.maximum(room_CB.mean(axis=1, keepdims=True), 1e-12) * room_CB
        return np.asarray(np.clip(out_CB, self.lower, self.upper))

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
        z_B = np.random.default_rng([self.seed, sum(map(ord, name)), bp or 0, n or 0, s]).standard_normal(len(self))
        return np.asarray(z_B - z_B.mean())

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
    return np.asarray(np.maximum(more_CB, 0.0) * np.maximum(1.0 - discount + errors_B, 0.0))


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


def percentiles(values_B: Array, level: float = 0.95) -> tuple[float, float]:
    """The central interval that contains a share `level` of the samples."""
    low, high = np.quantile(values_B, [0.5 - 0.5 * level, 0.5 + 0.5 * level])
    return float(low), float(high)


def around(value: float, values_B: Array, level: float = 0.95) -> tuple[float, float]:
    """The central interval of the samples, widened to contain the estimate; without samples, the estimate alone."""
    if not len(values_B):
        return value, value
    low, high = percentiles(values_B, level)
    return min(low, value), max(high, value)


def shortest(values_B: Array, estimate: float, level: float = 0.9) -> tuple[float, float]:
    """The shortest interval between values that were run with a share `level` of the samples, and the estimate.

    >>> shortest(np.array([8.0, 8, 8, 8, 8, 8, 8, 8, 16, 64]), 8.0, level=0.9)
    (8.0, 16.0)
    """
    values, counts = np.unique(values_B, return_counts=True)
    total = np.concatenate([[0.0], np.cumsum(counts)]) / len(values_B)
    low, high = float(values[0]), float(values[-1])
    best = (np.inf, 0.0)
    for i in range(len(values)):
        j = int(np.searchsorted(total, total[i] + level - 1e-12))
        if j <= len(values):
            ratio = float(values[j - 1] / values[i])
            if (ratio, -(total[j] - total[i])) < best:
                best, low, high = (ratio, -float(total[j] - total[i])), float(values[i]), float(values[j - 1])
    return min(low, float(estimate)), max(high, float(estimate))


def basic(
    statistic: Callable[[Array], Array], values_S: Array, replicates_SB: Array, level: float = 0.95
) -> tuple[float, tuple[float, float]]:
    """A statistic over configurations (axis 0), such as their best, corrected for selection: estimate and interval.

    The best of several noisy values is biased upwards, and the best of their samples even more. The second bias can be
    measured and is subtracted. That removes half of the bias between equal settings, and all of it between others.
    """
    seen = float(statistic(values_S[:, None])[0])
    if not replicates_SB.shape[1]:
        return seen, (seen, seen)
    again_B = statistic(values_S[:, None] + replicates_SB - replicates_SB.mean(axis=1, keepdims=True))
    low, high = percentiles(again_B, level)
    estimate = 2.0 * seen - float(again_B.mean())
    return estimate, (min(2.0 * seen - high, estimate), max(2.0 * seen - low, estimate))
