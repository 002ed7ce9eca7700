"""What to believe about a setting past its last point.

Curves fitted one by one fan out there (a large n that made thirty updates can be drawn to any ceiling), and the
surface through all of them is good at growth that has begun and bad at growth that has not. So growth is believed in
proportion to how much has been seen of it. With the growth g that the surface gives, the rise r seen so far and
w = max(0, 1 - g/r),

    value(C) = w · (own(last) + g) + (1 - w) · (reference(C) + (own - reference)(last) · 2^-d),

where the reference is the setting that leads among those run furthest and d is the number of doublings from `last` to
C: what is not believed is replaced by "it stays behind or ahead of the leader, by half as much after each doubling".

Chosen on simulated sweeps fitted up to C/8 and run to C, against the plain curves, the plain surface, the leader at
C/8, and five other weights (docs/planning.md says what each cost). All of these level off as their form does, and most
runs go on for longer: what laws up to C/8 expected at C lay below what came by 13 to 16% of the rise seen, on the
simulator and on a language model (`benchmarks/plan_ahead.py`). So half of the members let the trend of the last points
go on instead (`going_on`), by the same amount for all settings: what one setting's trend says beside another's was as
often wrong as right. What is left, shared by all settings and tilted along log n, is the `drift` between members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Array
from isocompute.law.fits import CurveFit
from isocompute.law.frontier import EARLY_FACTOR
from isocompute.law.surface import Surface

__all__ = ["BLIND", "Curves", "Drift", "KNOWN", "SAME", "TREND", "centred", "drift", "extrapolate", "going_on", "held"]


SAME = 1.02
"""Budgets that differ by a batch are the same budget."""
TREND = 0.7
"""Share of its slope, for each doubling of compute, with which a trend goes on, as in the forecasts of single runs."""
_FURTHEST = 4.0
"""Doublings for which it does: nobody has looked further."""
_HALVINGS = 40


@dataclass(frozen=True)
class Drift:
    """Standard deviations of what growth may get wrong, as shares of the rise seen, for each doubling of compute."""

    shared: float
    """By all settings."""
    along_rollouts: float
    """Between the middle of log n and its ends, in opposite directions."""
    along_problems: float
    """The same of log Bp."""
    own: float
    """By each setting for itself."""


KNOWN = Drift(shared=0.015, along_rollouts=0.05, along_problems=0.025, own=0.02)
"""Of laws that know where their runs were heading. 80% intervals at eight times the data's compute hold 92% of values
and 81 to 92% of differences between settings, which are what a plan is made of, on 70 simulated sets, and 77 to 82% and
62 to 100% on a language model's sweeps (docs/plan_quality.md)."""
BLIND = Drift(shared=0.05, along_rollouts=0.03, along_problems=0.015, own=0.01)
"""Of others, such as published ones, which level off as their form does."""


def extrapolate(
    *,
    own_AB: Array,
    growth_AB: Array,
    reference_AB: Array,
    reference_there_AB: Array,
    base: float,
    doublings_A: Array,
) -> Array:
    """Values of settings this many doublings past their last points, under every member.

    `own_AB` and `reference_AB` are a setting and the reference at the setting's last point, `reference_there_AB` the
    reference where the value is asked for; `base` is where all curves start from.
    """
    rise_A1 = np.maximum(own_AB.mean(axis=1, keepdims=True) - base, 1e-9)
    believed_A1 = np.maximum(0.0, 1.0 - growth_AB.mean(axis=1, keepdims=True) / rise_A1)
    follows_AB = reference_there_AB + (own_AB - reference_AB) * 0.5 ** doublings_A[:, None]
    return np.asarray(believed_A1 * (own_AB + growth_AB) + (1.0 - believed_A1) * follows_AB)


def going_on(*, trend_S: Array, growth_SA: Array, doublings_A: Array) -> Array:
    """How much higher settings end, so many doublings past their last points, if they go on as they did there and not
    as their form has it: the median over settings, never below 0.

    `trend_S` is the rise of each setting over a doubling where its runs end, `growth_SA` what its form expects.
    """
    further_A = TREND * np.minimum(doublings_A, _FURTHEST)
    return np.asarray(np.maximum(0.0, np.median(trend_S[:, None] * further_A - growth_SA, axis=0)))


def drift(
    *,
    settings: Sequence[tuple[int, int]],
    problems_A: Array,
    rollouts_A: Array,
    doublings_A: Array,
    rise: float,
    shares: Drift,
    members: int,
    seed: int,
) -> Array:
    """What extrapolation may get wrong; its mean over the members is zero."""
    rng = np.random.default_rng([seed, 2])
    run_S2 = np.array(settings, dtype=np.float64)
    shared_QB = centred(rng, (3, members))
    own = dict(zip(settings, centred(rng, (len(settings), members)), strict=True))
    none_B = np.zeros(members)
    keys = zip(problems_A.astype(int).tolist(), rollouts_A.astype(int).tolist(), strict=True)
    own_AB = np.stack([own.get(key, none_B) for key in keys])
    drift_AB = (
        shares.shared * shared_QB[0]
        + shares.along_rollouts * _position(rollouts_A, run_S2[:, 1])[:, None] * shared_QB[1]
        + shares.along_problems * _position(problems_A, run_S2[:, 0])[:, None] * shared_QB[2]
        + shares.own * own_AB
    )
    return np.asarray(rise * doublings_A[:, None] * drift_AB)


def _position(values_A: Array, among: Array) -> Array:
    """log2 of a value on a scale on which those that were run go from -1 to 1."""
    low, high = np.log2(among.min()), np.log2(among.max())
    return np.asarray((2.0 * np.log2(values_A) - low - high) / max(high - low, 1.0))


def centred(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Standard normal draws whose rows have mean zero."""
    z = rng.standard_normal(shape)
    return np.asarray(z - z.mean(axis=1, keepdims=True))


def held(values_AB: Array, low: float, high: float) -> Array:
    """Values that no member takes out of these bounds, and whose means stay where they were.

    Cut alone, members that go both ways from .99 would have a mean of .96: the closer to a ceiling and the less sure a
    setting is, the less would be expected of it. So a row is moved until the cut leaves its mean. One whose mean is
    itself outside is only cut.
    """
    out_AB, all_A = np.clip(values_AB, low, high), values_AB.mean(axis=1)
    off_A = (out_AB != values_AB).any(axis=1) & (low < all_A) & (all_A < high)
    if not off_A.any():
        return np.asarray(out_AB)
    some_AB = values_AB[off_A]
    mean_A1, most_A1 = all_A[off_A, None], np.ptp(some_AB, axis=1, keepdims=True)
    least_A1 = -most_A1
    for _ in range(_HALVINGS):  # the mean rises with the shift
        shift_A1 = (least_A1 + most_A1) / 2
        under_A1 = np.clip(some_AB + shift_A1, low, high).mean(axis=1, keepdims=True) < mean_A1
        least_A1, most_A1 = np.where(under_A1, shift_A1, least_A1), np.where(under_A1, most_A1, shift_A1)
    out_AB[off_A] = np.clip(some_AB + most_A1, low, high)
    return np.asarray(out_AB)


# A law of reward curves: its settings inside their range, and what to believe beyond it.

_ABOUT_AS_FAR = 2.0
"""Settings were run about as far as each other where their last evaluations lie within this many times."""


@dataclass(frozen=True)
class Curves:
    """Reward curves of settings, each with its ensemble, and the surface through them where there is one."""

    fits: tuple[CurveFit, ...]
    surface: Surface | None = None
    problems_per_batch: int | None = None
    """Stands in for the Bp of runs that do not say theirs."""
    seed: int = 0
    fallen: frozenset[tuple[int, int]] = frozenset()
    """Settings of which no run held: nothing is expected of them beyond where the furthest fell."""

    def _key(self, fit: CurveFit) -> tuple[int, int]:
        bp, n = fit.setting
        return int(bp or self.problems_per_batch or 1), int(n or 1)

    def settings(self) -> list[tuple[int, int]]:
        """The settings that were run."""
        return sorted({self._key(fit) for fit in self.fits})

    def interpolates(self) -> bool:
        """A surface knows settings between those that were run."""
        return self.surface is not None

    def noise(self) -> float:
        """Evaluation noise of a run, from the median residual of the fits."""
        return float(np.median([fit.rmse for fit in self.fits]))

    def last(self, bp: int, n: int) -> float:
        """How far a setting was run; 0 where it was not."""
        return max((fit.last for fit in self.fits if self._key(fit) == (bp, n)), default=0.0)

    def begun(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """From a quarter below the first evaluation on, as on the frontier."""
        starts = {self._key(fit): fit.starts / EARLY_FACTOR for fit in self.fits}
        keys = zip(problems_A.astype(int).tolist(), rollouts_A.astype(int).tolist(), strict=True)
        return np.asarray(compute_A >= np.array([starts.get(key, 0.0) for key in keys]))

    def values(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Allocations × members."""
        keys = list(zip(problems_A.astype(int).tolist(), rollouts_A.astype(int).tolist(), strict=True))
        known = set(self.settings())
        run_A = np.array([key in known for key in keys])
        out_AB = np.empty((len(keys), self._members()))
        end = max(fit.last for fit in self.fits)
        last_A = np.array([self.last(*key) or end for key in keys])
        fallen_A = np.array([key in self.fallen for key in keys])
        compute_A = np.where(fallen_A, np.minimum(compute_A, last_A), compute_A)
        longer_A = run_A & (compute_A > last_A * SAME)
        for key in known:
            mine_A = ~longer_A & np.array([each == key for each in keys])  # its rows inside its range
            if mine_A.any():
                out_AB[mine_A] = self._own(key, compute_A[mine_A])
        if longer_A.any():
            out_AB[longer_A] = self._longer(problems_A[longer_A], rollouts_A[longer_A], compute_A[longer_A])
        if not run_A.all():
            out_AB[~run_A] = self._between(problems_A[~run_A], rollouts_A[~run_A], compute_A[~run_A])
        upper = self.surface.upper if self.surface is not None else np.inf
        doublings_A = np.log2(np.maximum(compute_A / last_A, 1.0))
        doublings_A[doublings_A < np.log2(SAME)] = 0.0
        if doublings_A.any():
            # No trend leads through a ceiling; what may be wrong on top of that goes both ways from there.
            out_AB = np.minimum(out_AB + self._going_on(compute_A), upper)
            out_AB += drift(
                settings=self.settings(),
                problems_A=problems_A,
                rollouts_A=rollouts_A,
                doublings_A=doublings_A,
                rise=float(np.median([abs(fit.at(np.array([fit.last]))[0] - fit.base) for fit in self.fits])),
                shares=KNOWN if self._heading() else BLIND,
                members=self._members(),
                seed=self.seed,
            )
        return held(out_AB, -np.inf, upper)

    def _members(self) -> int:
        return len(self.fits[0].ensemble.base_B)

    def _own(self, key: tuple[int, int], compute_C: Array) -> Array:
        """A setting's own curve, compute × members; of several recipes the best, since that is what one would run."""
        curves_FCB = np.stack([fit.ensemble.at(compute_C).T for fit in self.fits if self._key(fit) == key])
        best_C = curves_FCB.mean(axis=2).argmax(axis=0)
        return np.asarray(curves_FCB[best_C, np.arange(len(compute_C))])

    def _longer(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Settings past their last point, against the setting that leads among those run furthest."""
        keys = list(zip(problems_A.astype(int).tolist(), rollouts_A.astype(int).tolist(), strict=True))
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

    def _heading(self) -> list[CurveFit]:
        """Settings that say where runs are heading: those that held, were run about as far as any, and have a trend.
        Others were cut off in their steep part; published curves have no points, and so no trend.
        """
        standing = self._standing()
        end = max((fit.last for fit in standing), default=np.inf)
        return [fit for fit in standing if fit.trend is not None and fit.last >= end / _ABOUT_AS_FAR]

    def _standing(self) -> list[CurveFit]:
        """Settings of which some run held."""
        return [fit for fit in self.fits if self._key(fit) not in self.fallen]

    def _going_on(self, compute_A: Array) -> Array:
        """What half of the members, always the same ones, expect on top beyond the furthest runs: that settings go on
        as they did there. Allocations × members, the same for all at one compute.
        """
        known = self._heading()
        end = max((fit.last for fit in self._standing()), default=np.inf)
        doublings_A = np.log2(np.maximum(compute_A / end, 1.0))
        if not known or doublings_A.max() < np.log2(SAME):
            return np.zeros((len(compute_A), self._members()))
        growth_SA = np.stack([self._form(fit, fit.last * 2.0**doublings_A) for fit in known])
        growth_SA -= np.stack([self._form(fit, np.full(len(compute_A), fit.last)) for fit in known])
        trend_S = np.array([fit.trend for fit in known])
        more_A = going_on(trend_S=trend_S, growth_SA=growth_SA, doublings_A=doublings_A)
        half_B = np.random.default_rng([self.seed, 4]).permutation(self._members()) % 2
        return np.outer(more_A, half_B)

    def _form(self, fit: CurveFit, compute_C: Array) -> Array:
        """What a setting is by the form of the surface, or where there is none by its own."""
        if self.surface is None:
            return fit.at(compute_C)
        bp, n = self._key(fit)
        return self.surface.at(compute_C, np.array(float(n)), np.array(float(bp)))

    def _grown(self, key: tuple[int, int], compute_A: Array) -> Array:
        """A setting's own curve, and past its last point what the surface adds."""
        end = self.last(*key)
        further_AB = self._growth([key] * len(compute_A), np.full(len(compute_A), end), np.maximum(compute_A, end))
        return self._own(key, np.minimum(compute_A, end)) + further_AB

    def _growth(self, keys: Sequence[tuple[int, int]], from_A: Array, to_A: Array) -> Array:
        """How far settings rise between two computes: on the surface where there is one, else on their own curves."""
        if self.surface is None:
            pairs = zip(keys, np.stack([from_A, to_A], axis=1), strict=True)
            return np.stack([np.maximum(np.diff(self._own(key, pair_C), axis=0)[0], 0.0) for key, pair_C in pairs])
        bp_A, n_A = (np.array([float(key[i]) for key in keys]) for i in (0, 1))
        both_B2A = self.surface.replicates_at(np.stack([from_A, to_A]), n_A, bp_A)
        growth_BA = np.maximum(both_B2A[:, 1] - both_B2A[:, 0], 0.0)
        return np.asarray(growth_BA[np.arange(self._members()) % len(growth_BA)].T)

    def _reference(self) -> tuple[int, int]:
        """Of the settings that were run furthest, the one that leads where all of them were.

        Evaluations of different settings do not fall on the same compute: the last ones of a sweep that goes to one
        budget may lie a good part of a doubling apart.
        """
        end = max(fit.last for fit in self.fits)
        far = [fit for fit in self.fits if fit.last >= end / _ABOUT_AS_FAR]
        there = np.array([min(fit.last for fit in far)])
        return self._key(max(far, key=lambda fit: float(fit.ensemble.at(there)[:, 0].mean())))

    def _between(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Settings that were not run: the surface, give or take what it got wrong about an n it was not shown."""
        if self.surface is None:
            raise ValueError("no surface: only settings that were run can be asked for")
        error = float(np.mean([left.rmse for left in self.surface.left_out if not left.edge] or [self.surface.rmse]))
        values_BA = self.surface.replicates_at(compute_A, rollouts_A, problems_A)
        values_AB = values_BA[np.arange(self._members()) % len(values_BA)].T
        rng = np.random.default_rng([self.seed, 1])
        return np.asarray(values_AB + error * centred(rng, (len(problems_A), self._members())))
