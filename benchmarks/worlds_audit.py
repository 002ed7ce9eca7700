"""A second generator of worlds, made apart from `worlds.py` and the package: an audit of what was tuned on the first.

    from worlds_audit import draw_world
    world = draw_world(17, kind="easy")       # the same number, the same world
    world.runs(until=world.budget / 8)        # what a user has after an eighth of the compute
    world.truth(32, 128, world.budget)        # the noise-free mean over seeds of the best checkpoint so far
    world.direction()                         # "rises", "flat" or "falls"

The first generator's interface, with other curves: growth has eight shapes whose form drifts a little with n; ceilings
rise with log n as a power, a logistic, a kinked line or as interference that shrinks with n; midpoints grow as a power
of n or as gradient noise has it (n + n0); and each configuration departs a little from these rules, which belongs to
the truth. A draw is repeated until the truth is what the kind promises (`_keeps_promise`).

kinds (`KINDS` is the cycle of default kinds: each twice, "falls" once, so `dict.fromkeys(KINDS)` lists them)
    easy      small n lead first and larger n later, up to 256 or 512; two or more switches within .05–4M rollouts
    hard      rewards near 0; the best n rises to 32–128 and levels off
    flat      one n is best at every budget
    null      configurations do not differ
    joint     as easy or as hard, over 8–16 pairs of Bp and n
    mild      ceilings within .01 and small n faster: the best n rises late or never
    falls     large n lead first and smaller n at the end
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

KINDS = ("easy", "hard", "flat", "null", "joint", "mild") * 2 + ("falls",)
BUDGET = 4e6
SEPARATED, BEATEN = 0.002, 0.003  # see World.direction
N = (4, 8, 16, 32, 64, 128, 256, 512)
GRIDS_OF_N: tuple[tuple[int, ...], ...] = (N[1:], N, N[:-1], N[1::2], N[2::2])
GRIDS_OF_PAIRS = (  # problems per batch, rollouts per problem
    ((32, 128), N[1::2]),
    ((32, 64, 128), N[1::2]),
    ((16, 64), N[1:-1]),
    ((16, 32, 64, 128), N[1::2]),
)


def _blend(share: float, other: np.ndarray, x: np.ndarray) -> np.ndarray:
    """An exponential, but for a share of another curve."""
    return share * other + (1 - share) * (1 - np.exp2(-x))


def _gompertz(x: np.ndarray, form: float) -> np.ndarray:
    delay = 1 + 3 * form
    rate = -np.log(-np.log((1 + np.exp(-delay)) / 2) / delay)
    return np.expm1(-delay * np.expm1(-rate * x)) / np.expm1(delay)


def _mechanistic(x: np.ndarray, form: float) -> np.ndarray:
    """Solves dq/dx ∝ (q + e) (1 - q)^g: solved problems help with others, and few are left at the end.

    By quadrature of dx = dq / ((q + e) (1 - q)^g). `_settings` gives a mechanistic world what each update is worth,
    n / (n + n0), and the ceiling that interference leaves.
    """
    left = np.geomspace(1, 1e-6, 600)  # 1 - q
    per_x = 1 / ((1 - left + 0.15 + 0.5 * form) * left ** (1 + 0.6 * form))
    x_at = np.concatenate([[0.0], np.cumsum((per_x[1:] + per_x[:-1]) / 2 * -np.diff(left))])
    return 1 - np.interp(x * np.interp(0.5, 1 - left, x_at), x_at, left)


# From 0 to 1 as x = compute / midpoint grows, about one half at x = 1; `form`, in 0–1, picks a member of the family.
GROWTH: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "hill": lambda x, form: 1 - 1 / (1 + x ** (0.9 + 1.4 * form)),
    "exponential": lambda x, _: 1 - np.exp2(-x),
    "stretched": lambda x, form: 1 - np.exp2(-(x ** (0.55 + 0.4 * form))),
    "log_tail": lambda x, form: _blend(0.15 + 0.3 * form, np.log1p(x) / np.log1p(100), x),
    "gompertz": _gompertz,
    "power_law": lambda x, form: 1 - (1 + np.expm1(np.log(2) / (0.8 + 1.7 * form)) * x) ** -(0.8 + 1.7 * form),
    "double_exponential": lambda x, form: _blend(0.1 + 0.25 * form, 1 - np.exp(-12 * x), x),  # the format, then more
    "mechanistic": _mechanistic,
}
SHAPES = tuple(GROWTH)
LACKS = ("power", "logistic", "kinked", "interference")


@dataclass(frozen=True)
class Run:
    """What a user would have of one run; compute begins with 0, the base model, where that was evaluated."""

    problems_per_batch: int
    rollouts_per_problem: int
    seed: int
    compute: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Setting:
    """The true curve of one (Bp, n)."""

    ceiling: float
    midpoint: float
    form: float
    overfit_from: float = np.inf
    """Compute after which the true curve falls."""
    overfit: float = 0.0
    """Loss for each factor e of compute after that."""
    stopped_at: float = np.inf
    """Compute at which its runs were ended."""


@dataclass(frozen=True)
class World:
    """A sweep and its truth."""

    number: int
    kind: str
    shape: str
    base: float
    rise: float
    settings: dict[tuple[int, int], Setting]
    seeds: int
    seed_effect: float
    """Standard deviation of a seed's rise, as a share of it; of its log midpoint, twice that."""
    samples: int
    """Problems × samples of an evaluation."""
    autocorrelation: float
    smoothed: bool
    """Noise is a moving average: less of it, not only correlated."""
    points: int
    linear: bool
    """Evaluations evenly spaced in steps; otherwise in log steps."""
    base_evaluated: bool
    dip_rate: float
    collapse_rate: float
    missing: tuple[int, int] | None = None
    """The configuration without its last seed."""
    budget: float = BUDGET

    def curve(self, problems_per_batch: int, rollouts_per_problem: int, compute: float | np.ndarray) -> np.ndarray:
        """The noise-free mean of the checkpoint at this compute; falls where a setting overfits."""
        return self._curve(self.settings[problems_per_batch, rollouts_per_problem], np.asarray(compute, dtype=float))

    def truth(self, problems_per_batch: int, rollouts_per_problem: int, compute: float | np.ndarray) -> np.ndarray:
        """The noise-free mean of the best checkpoint so far."""
        own = self.settings[problems_per_batch, rollouts_per_problem]
        return self._curve(own, np.minimum(compute, own.overfit_from))

    def best(self, compute: float) -> float:
        """The largest true value of a setting."""
        return float(max(self.truth(bp, n, compute) for bp, n in self.settings))

    def regret(self, problems_per_batch: int, rollouts_per_problem: int, compute: float) -> float:
        """What choosing this setting loses."""
        return self.best(compute) - float(self.truth(problems_per_batch, rollouts_per_problem, compute))

    def best_n(self, compute: float | np.ndarray) -> np.ndarray:
        """The n of the setting whose truth is largest, at each compute; the smallest among equals."""
        pairs = sorted(self.settings, key=lambda pair: pair[1])
        values_SC = np.stack([self.truth(bp, n, np.atleast_1d(compute)) for bp, n in pairs])
        return np.array([n for _, n in pairs])[values_SC.argmax(axis=0)]

    def separation(self) -> float:
        """The first compute from .02 budget on at which best and worst truth differ by over .002, or the budget."""
        compute_C = np.geomspace(0.02 * self.budget, self.budget, 200)
        values_SC = np.stack([self.truth(bp, n, compute_C) for bp, n in self.settings])
        apart_C = np.ptp(values_SC, axis=0) > SEPARATED
        return float(compute_C[apart_C.argmax()]) if apart_C.any() else self.budget

    def direction(self) -> str:
        """Where the true best n goes between `separation` and the budget.

        "rises" or "falls" if it differs and, at the budget, beats the best setting with the earlier n by over .003.
        """
        early, late = (int(self.best_n(compute)[0]) for compute in (self.separation(), self.budget))
        kept = max(float(self.truth(bp, n, self.budget)) for bp, n in self.settings if n == early)
        if early == late or self.best(self.budget) - kept <= BEATEN:
            return "flat"
        return "rises" if late > early else "falls"

    def runs(self, until: float | None = None) -> list[Run]:
        """All runs, cut at a compute."""
        until = self.budget if until is None else until
        out = []
        for (bp, n), own in self.settings.items():
            for seed in range(self.seeds - (self.missing == (bp, n))):
                rng = np.random.default_rng([self.number, bp, n, seed, 555])
                updates = self.budget / (bp * n)
                first, spaced = (1 / self.points, np.linspace) if self.linear else (1 / 300, np.geomspace)
                steps = np.unique(spaced(max(first * updates, 1.0), updates, self.points).astype(int))
                compute = np.concatenate([[0.0] * self.base_evaluated, steps * float(bp * n)])
                values = self._observed(own, compute, rng)
                kept = compute <= min(until, own.stopped_at) * (1 + 1e-9)
                if kept.sum() >= 2:
                    out.append(Run(bp, n, seed, compute[kept], values[kept]))
        return out

    def _curve(self, own: Setting, compute: np.ndarray) -> np.ndarray:
        grown = GROWTH[self.shape](np.minimum(compute, own.overfit_from) / own.midpoint, own.form)
        lost = own.overfit * np.log(np.maximum(compute / own.overfit_from, 1.0))
        return self.base + (own.ceiling - self.base) * grown - lost

    def _observed(self, own: Setting, compute: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        effect, speed = rng.normal(0, self.seed_effect, 2)
        ceiling = self.base + (own.ceiling - self.base) * (1 + effect)
        mine = replace(own, ceiling=ceiling, midpoint=own.midpoint * np.exp(2 * speed))
        gain = self._curve(mine, compute) - self.base
        if rng.random() < self.collapse_rate:
            at, depth = self.budget * np.exp(rng.uniform(np.log(0.05), 0)), rng.uniform(0.4, 1.1)
            gain *= 1 - depth * -np.expm1(-np.maximum(compute - at, 0) / (0.05 * self.budget))
        gain -= (rng.random(len(gain)) < self.dip_rate) * rng.uniform(0.1, 0.5, len(gain)) * self.rise
        rate = np.clip(self.base + gain, 0.002, 0.998)
        sd = np.sqrt(0.25 * rate * (1 - rate) / self.samples)  # about a quarter of p (1 - p) is within problems
        rho = self.autocorrelation
        noise = rng.normal(size=len(compute))
        for i in range(1, len(noise)):
            noise[i] = rho * noise[i - 1] + np.sqrt(1 - rho**2) * noise[i]
        return np.clip(rate + sd * noise * (np.sqrt((1 - rho) / (1 + rho)) if self.smoothed else 1.0), 0, 1)


def draw_world(number: int, kind: str | None = None) -> World:
    """The world with this number."""
    kind = kind or KINDS[number % len(KINDS)]
    rng = np.random.default_rng([number, 90210])
    while not _keeps_promise(world := _drawn(number, kind, rng)):
        pass
    return world


def _drawn(number: int, kind: str, rng: np.random.Generator) -> World:
    hard = kind == "hard" or (kind in ("flat", "null", "joint", "mild") and rng.random() < 0.35)
    shape = str(rng.choice(SHAPES))
    low, high = ((0.005, 0.05), (0.06, 0.2)) if hard else ((0.25, 0.1), (0.55, 0.3))
    base, rise = rng.uniform(low, high).tolist()
    if kind == "joint":
        bps, ns = GRIDS_OF_PAIRS[rng.integers(len(GRIDS_OF_PAIRS))]
    else:
        bps, ns = (int(rng.choice([16, 32, 64], p=[0.15, 0.7, 0.15])),), GRIDS_OF_N[rng.integers(len(GRIDS_OF_N))]
    pairs = [(bp, n) for bp in bps for n in ns]
    settings = _settings(kind, hard, shape, base, rise, pairs, rng)
    if kind not in ("null", "flat") and rng.random() < 0.2:
        small = rng.random() < 0.5
        start, fall = BUDGET * rng.uniform(0.1, 0.5 if small else 0.8), rise * rng.uniform(0.03, 0.15)
        hit = ns[: rng.integers(1, 3)] if small else ns[-1:]
        settings = {p: replace(s, overfit_from=start, overfit=fall) if p[1] in hit else s for p, s in settings.items()}
    if rng.random() < 0.25:
        stop, hit = BUDGET / rng.choice([2, 4]), ns[: rng.integers(1, 3)]
        settings = {p: replace(s, stopped_at=stop) if p[1] in hit else s for p, s in settings.items()}
    seeds, linear = int(rng.integers(1, 4)), bool(rng.random() < 0.5)
    return World(
        number=number,
        kind=kind,
        shape=shape,
        base=base,
        rise=rise,
        settings=settings,
        seeds=seeds,
        seed_effect=float(rng.uniform(0.01, 0.06)),
        samples=int(rng.choice([300, 500, 1000]) * rng.choice([1, 2, 4])),
        autocorrelation=float(rng.choice([0.0, 0.0, 0.3, 0.6, 0.9])),
        smoothed=bool(rng.random() < 0.5),
        points=int(rng.integers(24, 61) if linear else rng.integers(12, 41)),
        linear=linear,
        base_evaluated=bool(rng.random() < 0.75),
        dip_rate=float(rng.choice([0.0, 0.0, 0.0, 0.03])),
        collapse_rate=float(rng.choice([0.0, 0.0, 0.0, 0.06])),
        missing=pairs[rng.integers(len(pairs))] if seeds > 1 and rng.random() < 0.2 else None,
    )


def _lack(rule: str, octave: float, reach: float) -> float:
    """What a ceiling lacks, `octave` doublings above n = 8, as interference shrinks: about 1, then 0 past `reach`."""
    if rule == "power":
        return 2.0 ** (-2 * octave / reach)  # n^-kappa
    if rule == "logistic":
        return 1 / (1 + np.exp(6 * octave / reach - 3.5))
    if rule == "kinked":
        return max(0.0, 1 - octave / reach)
    half = 2.0 ** (reach / 2)
    return (1 + half) / (2.0**octave + half)


def _settings(
    kind: str, hard: bool, shape: str, base: float, rise: float, pairs: list[tuple[int, int]], rng: np.random.Generator
) -> dict[tuple[int, int], Setting]:
    rule = "interference" if shape == "mechanistic" else str(rng.choice(LACKS))
    reach, spread = rng.uniform((2, 0.2), (4, 0.5)) if hard else rng.uniform((3.5, 0.1), (7, 0.35))
    start, slow, noise_n = 10 ** rng.uniform(4.6, 5.5), rng.uniform(0.3, 0.65), 2 ** rng.uniform(4, 7)
    noisy = (
        shape == "mechanistic" or rng.random() < 0.4
    )  # midpoints ∝ n + noise_n, i.e. updates are worth n / (n + noise_n)
    past, favourite, tilt, bend = rng.uniform(0, 0.04), rng.choice(pairs)[1], rng.normal(0, 0.01), rng.uniform(0, 0.015)
    mild = min(rng.uniform(0.001, 0.01) / rise, 0.2)
    slow_bp, form, drift = rng.uniform(0, 0.4), rng.uniform(0.2, 0.8), rng.uniform(-0.03, 0.03)
    rough, rough_mid = (0.0, 0.0) if kind == "null" else (rng.uniform(0, 0.02), rng.uniform(0, 0.1))
    out = {}
    for bp, n in pairs:
        octave, batch = np.log2(n / 8), np.log2(bp / 32)
        share, midpoint = 1.0, start * ((n + noise_n) / (8 + noise_n) if noisy else 2 ** (slow * octave))
        if kind == "null":
            midpoint = 2 * start
        elif kind == "flat":
            away = abs(np.log2(n / favourite))
            share, midpoint = 1 - spread * away / (2 + away), 2 * start * 1.12**away
        elif kind == "mild":
            share, midpoint = share - mild * _lack(rule, octave, reach), 1.2 * midpoint
        elif kind == "falls":
            share, midpoint = 1 - spread + spread * _lack(rule, octave, reach), 4 * start / 2 ** (slow * octave)
        else:
            share -= spread * _lack(rule, octave, reach) + (past * max(0.0, octave - reach) if hard else 0.0)
        share += tilt * batch - bend * (batch - 1) ** 2 if kind == "joint" else 0.0
        out[bp, n] = Setting(
            ceiling=base + rise * (share + rough * rng.uniform(-1, 1)),
            midpoint=float(midpoint * 2 ** (slow_bp * batch) * np.exp(rough_mid * rng.uniform(-1, 1))),
            form=float(form if kind == "null" else form + drift * octave),
        )
    return out


def _keeps_promise(world: World) -> bool:
    """Whether the truth is what the kind says."""
    ns = world.best_n(np.geomspace(5e4, world.budget, 200))
    switches, last, way = np.count_nonzero(np.diff(ns)), ns[-1], world.direction()
    ends = [own.ceiling for own in world.settings.values()]
    return {
        "easy": way == "rises" and switches >= 2 and last >= 256,
        "hard": way == "rises" and 32 <= last <= 128 and world.best_n(4 * world.budget)[0] <= 128,
        "flat": switches == 0,
        "null": np.ptp(ends) == 0,
        "joint": way == "rises" and switches >= 1 and last >= 32,
        "mild": way != "falls" and np.ptp(ends) <= 0.01,
        "falls": way == "falls",
    }[world.kind]
