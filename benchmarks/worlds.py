"""Worlds to judge laws and plans on: sweeps drawn in the papers' style whose true curves are known.

    from worlds import draw_world
    world = draw_world(17, kind="easy")       # the same number, the same world
    world.runs(until=world.budget / 8)        # what a user has after an eighth of the compute
    world.truth(32, 128, world.budget)        # the noise-free mean over seeds

Nothing here uses the package: the law is not fitted to its own assumptions. A world has a shape of curve (Hill,
exponential, stretched exponential, logarithmic tail, two stages), ceilings and speeds that change with n and Bp, seed
effects that scale with the rise, evaluation noise with autocorrelation, and sometimes collapses or overfitting.

kinds
    easy      small n lead first and larger n later, up to 256 or 512: "rises"
    hard      rewards near 0; the best n rises to 32–128 and levels off
    flat      one n is best at every budget
    null      settings do not differ
    joint     as easy, over a grid of Bp and n
    falls     large n lead first and smaller n at the end (nobody has reported one)
    equal     small n are faster, and all end at one ceiling: no rise
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

KINDS = ("easy", "hard", "flat", "null", "joint", "falls", "equal")
SHAPES = ("hill", "exponential", "stretched", "log_tail", "two_stage")
BUDGET = 4e6


@dataclass(frozen=True)
class Run:
    """What a user would have of one run."""

    problems_per_batch: int
    rollouts_per_problem: int
    seed: int
    compute: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Setting:
    """The true curve of one (Bp, n), and how it ends badly, where it does."""

    ceiling: float
    scale: float
    decline_from: float = np.inf
    """Compute after which the true curve falls (overfitting)."""
    decline: float = 0.0
    """Loss for each factor e of compute after that."""


@dataclass(frozen=True)
class World:
    """A sweep and its truth."""

    number: int
    kind: str
    shape: str
    base: float
    exponent: float
    settings: dict[tuple[int, int], Setting]
    seeds: int
    seed_effect: float
    """Standard deviation of a seed's ceiling, as a share of the rise."""
    noise: float
    autocorrelation: float
    points: int
    collapse_rate: float
    budget: float = BUDGET

    def truth(self, problems_per_batch: int, rollouts_per_problem: int, compute: float | np.ndarray) -> np.ndarray:
        """The mean over seeds, without noise, of the best checkpoint so far."""
        own = self.settings[problems_per_batch, rollouts_per_problem]
        c = np.asarray(compute, dtype=float)
        peak = np.minimum(c, own.decline_from)
        return self.base + (own.ceiling - self.base) * self._growth(peak / own.scale)

    def best(self, compute: float) -> float:
        """The largest true value of a setting."""
        return float(max(self.truth(bp, n, compute) for bp, n in self.settings))

    def regret(self, problems_per_batch: int, rollouts_per_problem: int, compute: float) -> float:
        """What choosing this setting loses."""
        return self.best(compute) - float(self.truth(problems_per_batch, rollouts_per_problem, compute))

    def runs(self, *, until: float | None = None) -> list[Run]:
        """All runs, cut at a compute."""
        until = self.budget if until is None else until
        out = []
        for (bp, n), own in self.settings.items():
            for seed in range(self.seeds):
                rng = np.random.default_rng([self.number, bp, n, seed, 77])
                updates = max(int(self.budget // (bp * n)), 1)
                steps = np.unique(np.geomspace(1, updates, self.points - 1).round())
                compute = np.concatenate([[0.0], steps * bp * n])
                values = self._observed(own, compute, rng)
                kept = compute <= until * (1 + 1e-9)
                if kept.sum() >= 2:
                    out.append(Run(bp, n, seed, compute[kept], values[kept]))
        return out

    def _growth(self, x: np.ndarray) -> np.ndarray:
        """From 0 to 1 as x = C / scale grows; about one half at x = 1."""
        x = np.maximum(x, 0.0)
        if self.shape == "hill":
            return x**self.exponent / (1 + x**self.exponent)
        if self.shape == "exponential":
            return 1 - np.exp(-np.log(2) * x)
        if self.shape == "stretched":
            return 1 - np.exp(-np.log(2) * x ** (0.6 * self.exponent))
        if self.shape == "log_tail":
            return np.log1p(x) / (np.log(2) * 2 + np.log1p(x))
        return 0.35 * (1 - np.exp(-8 * x)) + 0.65 * x**self.exponent / (1 + x**self.exponent)

    def _observed(self, own: Setting, compute: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        rise = own.ceiling - self.base
        effect, speed = rng.normal(0, self.seed_effect), rng.normal(0, 1.5 * self.seed_effect)
        values = self.base + rise * (1 + effect) * self._growth(compute / (own.scale * np.exp(speed)))
        past = compute > own.decline_from
        values[past] -= own.decline * np.log(compute[past] / own.decline_from)
        if rng.random() < self.collapse_rate:
            at = self.budget * np.exp(rng.uniform(np.log(0.05), 0.0))
            fallen = compute > at
            values[fallen] = self.base + (values[fallen] - self.base) * rng.uniform(0.0, 0.4)
        white = rng.normal(0, self.noise, len(compute))
        noise, rho = np.empty_like(white), self.autocorrelation
        noise[0] = white[0]
        for i in range(1, len(white)):
            noise[i] = rho * noise[i - 1] + np.sqrt(1 - rho**2) * white[i]
        return values + noise


def draw_world(number: int, *, kind: str | None = None) -> World:
    """The world with this number."""
    rng = np.random.default_rng([number, 4242])
    kind = kind or KINDS[number % len(KINDS)]
    shape = SHAPES[int(rng.integers(len(SHAPES)))]
    exponent = float(rng.uniform(0.7, 1.6))
    hard = kind == "hard" or (kind in ("flat", "null") and rng.random() < 0.4)
    base = float(rng.uniform(0.005, 0.06) if hard else rng.uniform(0.25, 0.55))
    top = float(base + (rng.uniform(0.05, 0.2) if hard else rng.uniform(0.15, 0.35)))
    ns = [8, 16, 32, 64, 128, 256, 512] if kind != "joint" else [8, 16, 32, 64, 128, 256]
    if kind != "joint" and rng.random() < 0.3:
        ns = ns[:: int(rng.integers(1, 3))]
    bps = [32] if kind != "joint" else [16, 32, 64, 128]
    if kind == "joint":
        pairs = [(bp, n) for bp in bps for n in ns if 256 <= bp * n <= 16384]
    else:
        pairs = [(bp, n) for bp in bps for n in ns]
    start = float(np.exp(rng.uniform(np.log(4e4), np.log(3e5))))
    settings = {
        pair: _setting(kind, pair, base, top, start, rng_shape) for pair in pairs for rng_shape in [_draws(number)]
    }
    if kind not in ("null",) and rng.random() < 0.15:  # small n overfit
        small = min(n for _, n in settings)
        own = settings.get((bps[0], small))
        if own is not None:
            settings[bps[0], small] = Setting(own.ceiling, own.scale, BUDGET * float(rng.uniform(0.1, 0.5)), 0.02)
    return World(
        number=number,
        kind=kind,
        shape=shape,
        base=base,
        exponent=exponent,
        settings=settings,
        seeds=int(rng.integers(1, 4)),
        seed_effect=float(rng.choice([0.01, 0.02, 0.04])),
        noise=float((0.25 if hard else 1.0) * rng.choice([0.003, 0.006, 0.012])),
        autocorrelation=float(rng.choice([0.0, 0.3, 0.7])),
        points=int(rng.integers(18, 45)),
        collapse_rate=float(rng.choice([0.0, 0.0, 0.0, 0.04])),
    )


def _draws(number: int) -> dict[str, float]:
    """What the settings of a world have in common."""
    rng = np.random.default_rng([number, 99])
    return {
        "spread": float(rng.uniform(0.3, 0.65)),  # share of the rise between the ceilings of n = 8 and of n = ∞
        "saturation": float(rng.uniform(1.2, 3.0)),  # doublings of n over which ceilings saturate
        "slow": float(rng.uniform(0.45, 0.9)),  # scale ∝ (n / 8)^slow
        "peak": float(rng.uniform(5.0, 7.0)),  # log2 of the best n on hard sets
        "flat": float(rng.integers(3, 8)),  # log2 of the best n of a flat world
        "batch": float(rng.uniform(-0.04, 0.04)),  # effect of log2 Bp on the ceiling, as a share of the rise
    }


def _setting(
    kind: str, pair: tuple[int, int], base: float, top: float, start: float, common: dict[str, float]
) -> Setting:
    bp, n = pair
    rise, octave = top - base, np.log2(n / 8)
    if kind == "null":
        return Setting(top, start * 2)
    if kind == "equal":
        return Setting(top, 0.5 * start * (n / 8) ** (0.7 * common["slow"]))
    if kind == "flat":
        away = abs(np.log2(n) - common["flat"])
        return Setting(top - 0.05 * rise * away**1.3, start * 1.12**away)
    rising = 1 - common["spread"] * np.exp(-octave / common["saturation"])
    scale = start * (n / 8) ** common["slow"]
    if kind == "hard":
        over = max(0.0, np.log2(n) - common["peak"])
        return Setting(base + rise * (rising - 0.06 * over), scale)
    if kind == "falls":
        return Setting(
            base + rise * (1 - 0.3 * (1 - np.exp(-octave / common["saturation"]))), start * 4 / (n / 8) ** 0.4
        )
    rising += common["batch"] * np.log2(bp / 32)
    return Setting(base + rise * rising, scale * (bp / 32) ** 0.25)
