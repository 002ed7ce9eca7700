"""The model behind a law: how reward curves depend on (n, Bp), and what makes evaluations differ from them.

*Curves.* Every configuration has a curve of one form (`law.shape`) with its own ceiling, midpoint and exponent. These
are Gaussian processes along log n and log Bp, so configurations inform each other:

- the ceiling moves along log n at a rate that dies out within `CEILING_MEMORY` doublings, since the best n levels off;
- the log of the midpoint is a line in log n and log Bp plus a random walk;
- each has a deviation of its own besides.

The base R0, the tail of the form and the updates lost to warm-up are the same for all configurations.

*Evaluations* differ from the curve by four things, all estimated by their marginal likelihood:

- noise with autocorrelation ρ between evaluations of a run;
- a seed effect that grows with the rise, and a smaller one on speed;
- the model's error: a Brownian motion in log compute that the seeds of a configuration share. It keeps the curve at the
  level that the last evaluations hold, whatever the form says.

*Fit.* The posterior mode is found by Gauss-Newton, once for each kind of curve (one stage, two stages). Samples are
drawn from Student's t around it, because its noise levels are estimates. The kinds are weighted by their tempered
evidence: neither is exactly right, so no amount of data makes one certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
from scipy.linalg import solve_triangular

from isocompute.core.arrays import Array, Bools, Ints
from isocompute.core.curve import Curve, noise_level
from isocompute.law.shape import LN2, STAGES, Stage, effective_log_compute, growth_and_slopes

# Priors of the ceiling: α in `ceiling_of`.
SHIFT = 0.5
"""Shift of the log: samples of ceilings are skewed upwards, and curves that do not rise are possible."""
CEILING, _CEILING_SD = 0.6, 0.6
_CEILING_SPEED, CEILING_MEMORY = 0.1, 2.0  # per doubling of n, and doublings over which it dies out
_CEILING_BP, _CEILING_OWN = 0.028, 0.008  # per doubling of Bp; of each configuration
# Priors of the log of the midpoint.
_MIDPOINT_SD, _MIDPOINT_OWN = 4.0, 0.05
_MIDPOINT_N, _MIDPOINT_N_SD, _MIDPOINT_WALK = 0.5, 0.5, 0.07  # per doubling of n: slope, its deviation, random walk
_MIDPOINT_BP, _MIDPOINT_BP_SD = 0.7 * LN2, 0.4
# Priors of the log of the exponent, in units of the stage's own deviation.
_EXPONENT_N, _EXPONENT_OWN = 0.1, 0.07
_DELAY_SD = 1.5  # of the log of the updates lost to warm-up, around one
_BASE_SD, _UNSEEN_BASE_SD = 0.3, 1.0  # of the base, in units of the rise: with an evaluation of it, and without

_ROUGH = 0.05
"""Share of the noise level that is independent even where evaluations are smoothed."""
_LEAST_ROOM = 0.02
"""Of the rise: room below the largest possible value that a curve has at least."""
_HUBER = 4.0
"""Residuals beyond this many standard deviations are glitches."""
_GLITCH = 8.0
"""Noise levels by which a single evaluation lies beyond both of its neighbours for it to be left out."""
_TEMPER = 4.0
"""Differences in log evidence count by this divisor."""
_OUTER, _STEPS = 3, 25
BEFORE = 0.25
"""The model's error starts at this share of the first compute."""
MOST_POINTS, LEAST_POINTS = 48, 24
"""Longer runs are averaged to 48 points; from three seeds of a configuration on, to 96 points of all of them."""


def room_of(base: Array | float, upper: float, rise: float) -> Array:
    """What is left above the base, and at least a small share of the rise."""
    return np.asarray(np.maximum(upper - base, _LEAST_ROOM * rise))


def ceiling_of(alpha: Array, base: Array | float, upper: float, rise: float) -> Array:
    """The ceiling for a ceiling parameter: exp(α) - `SHIFT` rises above the base, bent so as never to pass `upper`."""
    gain = (np.exp(alpha) - SHIFT) * rise
    if not np.isfinite(upper):
        return np.asarray(base + gain)
    room = room_of(base, upper, rise)
    return np.asarray(upper - room * np.exp(-gain / room))


@dataclass(frozen=True)
class Noise:
    """Levels of the four kinds of error."""

    evaluation: float = 1.0
    """Standard deviation of evaluations over what second differences of the runs say at this autocorrelation."""
    autocorrelation: float = 0.3
    model: float = 0.008
    """Standard deviation of the model's error per e-fold of compute, as a share of the rise."""
    seed: float = 0.03
    """Standard deviation of the seed effect, as a share of the rise."""
    speed: float = 0.1
    """Standard deviation of the seed effect on log speed."""

    @property
    def level(self) -> float:
        """Deviation of evaluations over the runs' noise level; second differences of smooth noise are small."""
        rho = self.autocorrelation
        return float(self.evaluation * np.sqrt(6.0 / (6.0 - 8.0 * rho + 2.0 * rho**2)))


_GRID = {
    "evaluation": (0.5, 0.7, 1.0, 1.4, 2.0, 2.8),
    "autocorrelation": (0.0, 0.3, 0.5, 0.7, 0.85, 0.95),
    "model": (0.002, 0.005, 0.01, 0.02, 0.04),
    "seed": (0.007, 0.015, 0.025, 0.04, 0.065, 0.1),
    "speed": (0.02, 0.05, 0.1, 0.2),
}
_BETWEEN_SEEDS = ("seed", "speed")
"""Levels that only several seeds of a configuration tell."""


def _log_prior(noise: Noise) -> float:
    """Log-normal around the defaults; the seed's are ScaleRL's ±.02 on a rise of .2 to .3."""
    usual, widths = Noise(), {"evaluation": 0.7, "model": 0.8, "seed": 0.5, "speed": 0.7}
    logs = np.array([np.log(getattr(noise, name) / getattr(usual, name)) / sd for name, sd in widths.items()])
    return -0.5 * float(logs @ logs + ((np.arctanh(noise.autocorrelation) - 0.3) / 0.6) ** 2)


@dataclass(frozen=True)
class Points:
    """The evaluations of one configuration, seed after seed."""

    compute_N: Array
    values_N: Array
    run_N: Ints
    place_N: Ints
    """Index of each evaluation in its run."""

    @cached_property
    def lag_NN(self) -> Ints:
        """Evaluations between two of them."""
        return np.asarray(np.abs(self.place_N[:, None] - self.place_N))

    @cached_property
    def same_NN(self) -> Bools:
        """Whether two evaluations are of one run."""
        return np.asarray(self.run_N[:, None] == self.run_N)

    @classmethod
    def of(cls, curves: Sequence[Curve]) -> Points:
        """All points of the seeds, averaged where there are many."""
        most = min(MOST_POINTS, max(LEAST_POINTS, 2 * MOST_POINTS // len(curves)))
        few = [_without_glitches(curve).averaged(most) for curve in curves]
        sizes = [len(curve.compute_C) for curve in few]
        return cls(
            np.concatenate([curve.compute_C for curve in few]),
            np.concatenate([curve.values_C for curve in few]),
            np.repeat(np.arange(len(few)), sizes),
            np.concatenate([np.arange(size) for size in sizes]),
        )


def _without_glitches(curve: Curve) -> Curve:
    """The curve without single evaluations far above or far below both of their neighbours."""
    values_C = curve.values_C
    left_C, right_C = values_C[1:-1] - values_C[:-2], values_C[1:-1] - values_C[2:]
    far = max(_GLITCH * noise_level(values_C), 0.05 * float(np.ptp(values_C)))
    alone_C = np.minimum(np.abs(left_C), np.abs(right_C)) > np.maximum(far, 2.0 * np.abs(left_C - right_C))
    kept_C = np.concatenate([[True], ~(alone_C & (left_C * right_C > 0)), [True]])
    return curve if kept_C.all() else replace(curve, compute_C=curve.compute_C[kept_C], values_C=values_C[kept_C])


@dataclass(frozen=True)
class Problem:
    """What is fitted: the points of all configurations, their place along log n and log Bp, and the scales."""

    points_S: tuple[Points, ...]
    log_n_S: Array
    log_bp_S: Array
    batch_S: Array
    """Bp · n, or NaN where compute does not count rollouts or they are unknown."""
    base: float
    rise: float
    sigma: float
    """Noise level of the runs."""
    first: float
    """Smallest positive compute."""
    last_S: Array
    upper: float
    with_seeds: bool
    """Whether curves are means over seeds; if not, they are the runs themselves."""
    base_sd: float
    """Prior deviation of the base, in units of the rise."""

    @classmethod
    def of(
        cls, groups: Sequence[Sequence[Curve]], *, upper: float, with_seeds: bool = True, in_rollouts: bool = True
    ) -> Problem:
        """The problem of fitting these configurations, each given by its seeds."""
        points_S = tuple(Points.of(group) for group in groups)
        curves = [curve for group in groups for curve in group]
        settings = [group[0].setting for group in groups]
        starts = [float(c.values_C[0]) for c in curves if c.compute_C[0] <= 0]
        base = float(np.median(starts) if starts else min(c.values_C[0] for c in curves))
        sigma = float(np.median([noise_level(c.values_C) for c in curves]))
        top = max(float(np.convolve(c.values_C, np.ones(3) / 3.0, mode="valid").max()) for c in curves)
        batch = [float(bp * n) if in_rollouts and bp and n else np.nan for bp, n in settings]
        return cls(
            points_S,
            np.log2([float(n or 1) for _, n in settings]),
            np.log2([float(bp or 1) for bp, _ in settings]),
            np.array(batch),
            base,
            max(top - base, 3.0 * sigma, 1e-9 + 1e-6 * abs(base)),
            sigma,
            min(float(c.compute_C[c.compute_C > 0].min()) for c in curves),
            np.array([points.compute_N.max() for points in points_S]),
            upper,
            with_seeds,
            (_BASE_SD if starts else _UNSEEN_BASE_SD),
        )

    def __len__(self) -> int:
        return len(self.points_S)

    def log_time(self, compute: Array) -> Array:
        """Log compute since the model's error starts, at least 0."""
        start = BEFORE * self.first
        return np.asarray(np.log(np.maximum(compute, start) / start))

    def ceiling(self, base: Array, alpha: Array) -> Array:
        """The ceiling A for a ceiling parameter."""
        return ceiling_of(alpha, base, self.upper, self.rise)

    def curve(self, q: Array, s: int, stage: Stage, compute_N: Array | None = None) -> tuple[Array, Array]:
        """The curve of configuration s, at its points or elsewhere, and its slopes (columns) by its six parameters."""
        size, batch = len(self), float(self.batch_S[s])
        compute_N = self.points_S[s].compute_N if compute_N is None else compute_N
        base, tail, alpha, exponent = q[0], q[1], q[3 + s], q[3 + 2 * size + s]
        delay = np.exp(q[2])
        log_x = effective_log_compute(compute_N, batch, delay) - q[3 + size + s]
        g, by_x, by_exponent, by_tail = growth_and_slopes(log_x, exponent, tail, stage)
        ceiling = self.ceiling(base, alpha)
        by_alpha, by_base = self.rise * float(np.exp(alpha)), 1.0
        if np.isfinite(self.upper):
            room, above = float(room_of(base, self.upper, self.rise)), by_alpha - SHIFT * self.rise
            left = float(np.exp(-above / room))
            by_alpha, by_base = by_alpha * left, left * (1.0 - above / room)
        gain = ceiling - base
        lost = 0.0 if np.isnan(batch) else delay * batch / (compute_N + delay * batch)
        slopes = [
            1.0 - g + by_base * g,
            gain * by_tail,
            -gain * by_x * lost,
            by_alpha * g,
            -gain * by_x,
            gain * by_exponent,
        ]
        return base + gain * g, np.stack([np.broadcast_to(slope, g.shape) for slope in slopes], axis=1)

    def places(self, s: int) -> list[int]:
        """Indices of configuration s's parameters: base, tail, delay, ceiling, midpoint, exponent."""
        return [0, 1, 2, 3 + s, 3 + len(self) + s, 3 + 2 * len(self) + s]


@dataclass(frozen=True)
class Kernels:
    """Prior covariances of ceiling, midpoint and exponent between configurations, and the midpoint's prior mean."""

    ceiling: Array
    midpoint: Array
    exponent: Array
    midpoint_mean: Array

    @classmethod
    def of(cls, log_n: Array, log_bp: Array, own: Array, *, centre: tuple[float, float], smallest: float) -> Kernels:
        """Between configurations at these places; `own` is 1 for equal configurations, else 0."""
        x, z, since = log_n - centre[0], log_bp - centre[1], np.maximum(log_n - smallest, 0.0)
        along_n, along_bp, walk = np.outer(x, x), np.outer(z, z), np.minimum(since[:, None], since)
        return cls(
            _CEILING_SD**2
            + _CEILING_SPEED**2 * _dying_speed(since, CEILING_MEMORY)
            + _CEILING_BP**2 * along_bp
            + _CEILING_OWN**2 * own,
            _MIDPOINT_SD**2
            + _MIDPOINT_N_SD**2 * along_n
            + _MIDPOINT_WALK**2 * walk
            + _MIDPOINT_BP_SD**2 * along_bp
            + _MIDPOINT_OWN**2 * own,
            1.0 + _EXPONENT_N**2 * along_n + _EXPONENT_OWN**2 * own,
            _MIDPOINT_N * x + _MIDPOINT_BP * z,
        )


def _dying_speed(since: Array, memory: float) -> Array:
    """Covariance of a walk whose speed is an Ornstein-Uhlenbeck process of this memory, per unit of speed variance."""
    decay, apart = np.exp(-since / memory), np.exp(-np.abs(since[:, None] - since) / memory)
    both = 2.0 * np.minimum(since[:, None], since) / memory
    return np.asarray(memory**2 * (both + decay[:, None] + decay - 1.0 - apart))


@dataclass(frozen=True)
class Mode:
    """The posterior mode for one kind of curve."""

    stage: Stage
    noise: Noise
    q: Array
    """Base, tail, log delay, then ceiling, midpoint and exponent of every configuration."""
    precision: Array
    roots_S: tuple[Array, ...]
    """Cholesky factor of the covariance of each configuration's evaluations."""
    seeds_S: tuple[tuple[Array, Array], ...]
    """What the seed effects scale with in it: the risen share, and the slope by the midpoint."""
    log_evidence: float


def fit_modes(problem: Problem) -> tuple[list[Mode], Array]:
    """The modes of both kinds of curve, and their weights."""
    noise, modes = None, []
    for stage in STAGES:
        mode = _mode(problem, stage, noise)
        noise = mode.noise
        modes.append(mode)
    evidence = np.array([mode.log_evidence for mode in modes])
    weights = np.array([stage.weight for stage in STAGES]) * np.exp((evidence - evidence.max()) / _TEMPER)
    return modes, weights / weights.sum()


def kernels(problem: Problem) -> Kernels:
    """The prior of a problem's configurations."""
    n, bp = problem.log_n_S, problem.log_bp_S
    return Kernels.of(n, bp, np.eye(len(problem)), centre=(float(n.mean()), float(bp.mean())), smallest=float(n.min()))


def prior_centre(problem: Problem) -> float:
    """Prior mean of the log midpoint: the median of the evaluated computes."""
    return float(np.log(np.median(np.concatenate([p.compute_N[p.compute_N > 0] for p in problem.points_S]))))


def _prior(problem: Problem, stage: Stage) -> tuple[Array, Array, float]:
    """Mean and precision of all parameters, and the log determinant of their covariance."""
    size, k = len(problem), kernels(problem)
    mean, precision = np.zeros(3 + 3 * size), np.zeros((3 + 3 * size, 3 + 3 * size))
    mean[:3] = problem.base, stage.tail[0], 0.0
    precision[range(3), range(3)] = np.array([problem.base_sd * problem.rise, stage.tail[1], _DELAY_SD]) ** -2.0
    parts: tuple[tuple[Array | float, Array], ...] = (
        (CEILING, k.ceiling),
        (prior_centre(problem) + k.midpoint_mean, k.midpoint),
        (stage.exponent[0], stage.exponent[1] ** 2 * k.exponent),
    )
    log_determinant = -float(np.log(precision[range(3), range(3)]).sum())
    for i, (centre, covariance) in enumerate(parts):
        part = slice(3 + i * size, 3 + (i + 1) * size)
        mean[part], precision[part, part] = centre, np.linalg.inv(covariance)
        log_determinant += float(np.linalg.slogdet(covariance)[1])
    return mean, precision, log_determinant


def _covariance(problem: Problem, s: int, noise: Noise, risen_N: Array, by_midpoint_N: Array) -> Array:
    """Covariance of a configuration's evaluations around its curve."""
    points = problem.points_S[s]
    time_N = problem.log_time(points.compute_N)
    by_lag = (noise.level * problem.sigma) ** 2 * noise.autocorrelation ** np.arange(len(time_N))
    own_NN = by_lag[points.lag_NN]
    if problem.with_seeds:
        own_NN = own_NN + (noise.seed * problem.rise) ** 2 * np.outer(risen_N, risen_N)
        own_NN += noise.speed**2 * np.outer(by_midpoint_N, by_midpoint_N)
    covariance_NN = (noise.model * problem.rise) ** 2 * np.minimum(time_N[:, None], time_N)
    covariance_NN += own_NN * points.same_NN
    covariance_NN[np.diag_indices(len(time_N))] += (_ROUGH * problem.sigma) ** 2 + 1e-12 * problem.rise**2
    return np.asarray(covariance_NN)


def _roots(problem: Problem, noise: Noise, risen: Sequence[Array], by_midpoint: Sequence[Array]) -> tuple[Array, ...]:
    return tuple(
        np.asarray(np.linalg.cholesky(_covariance(problem, s, noise, risen[s], by_midpoint[s])), dtype=np.float64)
        for s in range(len(problem))
    )


def _mode(problem: Problem, stage: Stage, noise: Noise | None) -> Mode:
    """Gauss-Newton with Huber's loss; `noise` is estimated on the way where it is not given."""
    mean, precision, log_prior = _prior(problem, stage)
    size = len(problem)

    def objective(q: Array, roots: Sequence[Array]) -> tuple[float, Array, Array]:
        normal, gradient = precision.copy(), precision @ (mean - q)
        loss = float((q - mean) @ precision @ (q - mean))
        for s in range(size):
            value_N, slopes_NK = problem.curve(q, s, stage)
            both = np.column_stack([slopes_NK, problem.points_S[s].values_N - value_N])
            white = solve_triangular(roots[s], both, lower=True, check_finite=False)
            far_N = np.abs(white[:, -1])
            weight_N = np.minimum(1.0, _HUBER / np.maximum(far_N, 1e-9))
            loss += float(np.where(far_N < _HUBER, far_N**2, 2.0 * _HUBER * far_N - _HUBER**2).sum())
            weighted = (white[:, :-1] * weight_N[:, None]).T
            places = problem.places(s)
            normal[np.ix_(places, places)] += weighted @ white[:, :-1]
            gradient[places] += weighted @ white[:, -1]
        return loss, normal, gradient

    estimate, found = noise is None, noise or Noise()
    risen = [np.clip((p.values_N - problem.base) / problem.rise, 0.0, 1.2) for p in problem.points_S]
    by_midpoint = [np.zeros_like(each) for each in risen]
    q = mean.copy()
    for outer in range(_OUTER):
        if estimate and outer == _OUTER - 1:
            found = _best_noise(problem, stage, q, risen, by_midpoint)
        roots, seeds = _roots(problem, found, risen, by_midpoint), tuple(zip(risen, by_midpoint, strict=True))
        loss, normal, gradient = objective(q, roots)
        damping = 1e-3 if outer else 1e-2
        for _ in range(_STEPS):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
            step[1:] = np.clip(step[1:], -1.0, 1.0)
            trial = objective(q + step, roots)
            if trial[0] < loss:
                saved, q, damping = loss - trial[0], q + step, max(damping / 6.0, 1e-6)
                loss, normal, gradient = trial
                if saved < 1e-2:
                    break
            else:
                damping *= 8.0
                if damping > 1e6:
                    break
        curves = [problem.curve(q, s, stage) for s in range(size)]
        risen = [np.clip((value_N - q[0]) / problem.rise, 0.0, 1.5) for value_N, _ in curves]
        by_midpoint = [slopes_NK[:, 4] for _, slopes_NK in curves]
    log_noise = 2.0 * sum(float(np.log(np.diag(root)).sum()) for root in roots)
    evidence = -0.5 * (loss + log_noise + log_prior + float(np.linalg.slogdet(normal)[1]))
    return Mode(stage, found, q, normal, roots, seeds, evidence)


def _best_noise(
    problem: Problem, stage: Stage, q: Array, risen: Sequence[Array], by_midpoint: Sequence[Array]
) -> Noise:
    """The noise levels with the largest marginal likelihood, curves linearised; one level after the other."""
    linear = [problem.curve(q, s, stage) for s in range(len(problem))]
    loose = np.diag(np.array([0.05 * problem.rise, 0.3, 0.3, 0.15, 0.5, 0.15]) ** -2.0)

    def log_likelihood(noise: Noise) -> float:
        total = _log_prior(noise)
        for s, (value_N, slopes_NK) in enumerate(linear):
            root = np.linalg.cholesky(_covariance(problem, s, noise, risen[s], by_midpoint[s]))
            both = np.column_stack([slopes_NK, problem.points_S[s].values_N - value_N])
            white = solve_triangular(root, both, lower=True, check_finite=False)
            rest_N = np.clip(white[:, -1], -_HUBER, _HUBER)
            normal, pull = white[:, :-1].T @ white[:, :-1] + loose, white[:, :-1].T @ rest_N
            total -= float(np.log(np.diag(root)).sum()) + 0.5 * float(np.linalg.slogdet(normal)[1])
            total -= 0.5 * float(rest_N @ rest_N - pull @ np.linalg.solve(normal, pull))
        return total

    repeated = problem.with_seeds and any(points.run_N[-1] > 0 for points in problem.points_S)
    best = Noise()
    highest = log_likelihood(best)
    # Smooth noise and a wandering model explain much the same, so one level after the other may end in the wrong one.
    names = [name for name in _GRID if repeated or name not in _BETWEEN_SEEDS]
    for search in (("autocorrelation", "model"), *((name,) for name in (*names, *names))):
        for levels in product(*(_GRID[name] for name in search)):
            tried = replace(best, **dict(zip(search, levels, strict=True)))
            if tried != best and (likelihood := log_likelihood(tried)) > highest:
                best, highest = tried, likelihood
    return best


def _rest(problem: Problem, mode: Mode, rest: Array) -> Array:
    """Differences of evaluations from the curve, cut where they are so large that only a glitch explains them."""
    most = 6.0 * mode.noise.level * problem.sigma + 0.3 * problem.rise
    return np.clip(rest, -most, most)


def residual_paths(problem: Problem, mode: Mode, s: int, curve_NB: Array, knots_K: Array, z_KB: Array) -> Array:
    """The model's error of configuration s at these log times, for every sample of the parameters.

    `curve_NB` are the sampled curves at the points, and `z_KB` draws of independent errors.
    """
    points, root = problem.points_S[s], mode.roots_S[s]
    variance = (mode.noise.model * problem.rise) ** 2
    time_N = problem.log_time(points.compute_N)
    cross_NK = solve_triangular(root, variance * np.minimum(time_N[:, None], knots_K), lower=True, check_finite=False)
    rest_NB = _rest(problem, mode, points.values_N[:, None] - curve_NB)
    mean_KB = cross_NK.T @ solve_triangular(root, rest_NB, lower=True, check_finite=False)
    left_KK = variance * np.minimum(knots_K[:, None], knots_K) - cross_NK.T @ cross_NK
    left_KK[np.diag_indices(len(knots_K))] += 1e-6 * variance * (1.0 + knots_K)
    return np.asarray(mean_KB + np.linalg.cholesky(left_KK) @ z_KB)


def seed_effects(problem: Problem, mode: Mode, s: int, knots_K: Array) -> Array:
    """The expected mean effect of the seeds that were run of configuration s, at these log times.

    The posterior's curves are means over all seeds. What these seeds reached is that plus their effect.
    """
    if not problem.with_seeds:
        return np.zeros(len(knots_K))
    points = problem.points_S[s]
    value_N, _ = problem.curve(mode.q, s, mode.stage)
    at_K, slopes_KK = problem.curve(mode.q, s, mode.stage, BEFORE * problem.first * np.exp(knots_K))
    risen_K = np.clip((at_K - mode.q[0]) / problem.rise, 0.0, 1.5)
    risen_N, by_midpoint_N = mode.seeds_S[s]
    seed = mode.noise.seed
    cross_KN = (seed * problem.rise) ** 2 * np.outer(risen_K, risen_N)
    cross_KN += mode.noise.speed**2 * np.outer(slopes_KK[:, 4], by_midpoint_N)
    root = mode.roots_S[s]
    white_N = solve_triangular(root, _rest(problem, mode, points.values_N - value_N), lower=True, check_finite=False)
    pull_N = solve_triangular(root.T, white_N, lower=False, check_finite=False)
    return np.asarray(cross_KN @ pull_N / (points.run_N[-1] + 1))
