"""The compute-optimal frontier, the optimum n*(C) along it, and how much the reward depends on n and Bp.

All of it is read from the samples of the posterior, on one grid of compute (`Grid`).

*Frontier* (IsoCompute section 4.1): at every budget C, the best value that any configuration reached with at most C, by
the expected curve of its runs. Its interval is that of the mean over all seeds. A configuration takes part from a
quarter below its first evaluated compute. After its last point it keeps its last value, since a larger budget can also
stop there. `bounds` marks where a larger n had already ended.

*Optimum* (figure 7): `log2 n* = L / (1 + exp(-k (log10 C - log10 C0))) + b`. This is a Hill curve in C with exponent
k / ln 10, so the solver of such curves fits it, for the estimate and all samples at once. It is fitted rising (L > 0)
and falling (L < 0), and the better fit is kept. Its far end stays within the observed optima, since the data do not
show others.

*Direction*: n* rises if smaller n lead somewhere and larger n lead at the end. Both leads have to be beyond chance, so
the p-value is the larger of the two: an intersection-union test (Berger 1982). Leaders at small compute are no
reference, because nothing has been learned there and the best of equal values is noise. A lead counts from a share of
the rise on: with several values to choose from, one of equals always leads by a little.

*Sensitivity* (figure 10): the best minus the worst value along n at one Bp, or along Bp at one n, at the largest
compute of all runs of the slice. Noise alone makes values differ: the best minus the worst of six equal configurations
is two and a half standard errors. This bias is subtracted (`uncertainty.basic`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isocompute.core.arrays import Array, Bools, Ints
from isocompute.law.fits import CurveFit
from isocompute.law.posterior import around, basic, percentiles, shortest
from isocompute.law.solver import HILL, FitRows, Fits, evaluate, solve

EARLY_FACTOR = 1.25
"""A setting takes part in the frontier from its first compute divided by this."""
_GRID_POINTS = 96
_SLACK = 1.02  # budgets that differ by a batch are the same budget
_ENOUGH = 3.0
"""Least range of compute, as a factor, over which all settings are compared."""

_LN10 = float(np.log(10.0))
_STEEPEST = 50.0
"""Largest slope k of the sigmoid."""
_CHANCE = 0.2
"""Largest p-value at which n* counts as moving: on worlds without a move, 1% have one (`benchmarks/law_worlds.py`)."""
_EARLY_LEAD, _FINAL_LEAD = 0.003, 0.03
"""Shares of the rise from which a lead counts, somewhere and at the end."""
_EQUAL = 0.005
"""Values that differ by less than this share of the rise are equal."""
_CANDIDATES = 24
"""Computes at which an early lead is looked for."""
_LEVEL = 3.0
"""n* levels off if it does not change within the last factor of this of compute."""
_STILL = 0.5
"""Doublings by which the optimum must move to count as moving."""
_SIGMOID_POINTS = 60
_SIGMOID_REPLICATES = 400
"""n* itself uses all points and draws; the sigmoid through it needs fewer."""
_SIGMOID = replace(
    HILL,
    name="sigmoid",
    bounds=lambda span: np.array([[0.0, np.log(span)], [np.log(0.5 / _LN10), np.log(_STEEPEST / _LN10)]]),
    grid_sizes=(40, 16),
)


@dataclass(frozen=True)
class Switch:
    """The compute at which the frontier passes from one setting (an index) to another."""

    compute: float
    before: int
    after: int
    value: float
    crosses: bool
    """Whether both settings were running and the lead changed.

    If not, the new setting begins there, already above the old one, or the old one had ended."""


@dataclass(frozen=True)
class Grid:
    """Values of configurations in every sample on log-spaced compute, computed once for everything that is read."""

    compute_C: Array
    values_SCB: NDArray[np.float32]
    """Held at its last value after the end of a configuration."""
    ends_SCB: NDArray[np.float32]
    """As the posterior extrapolates them."""

    @classmethod
    def of(cls, fits: Sequence[CurveFit]) -> Grid:
        """From the first evaluation to the last."""
        first, last = min(fit.first for fit in fits), max(fit.last for fit in fits)
        compute_C = np.geomspace(first, max(last, first * (1 + 1e-9)), _GRID_POINTS)
        shape = len(fits), _GRID_POINTS, len(fits[0].posterior)
        values_SCB = np.empty(shape, dtype=np.float32)
        for s, fit in enumerate(fits):
            values_SCB[s] = fit.best_draws(np.minimum(compute_C, fit.last))
        ends_SCB = values_SCB
        if any(fit.last * _SLACK < last for fit in fits):
            ends_SCB = values_SCB.copy()
            for s, fit in enumerate(fits):
                past_C = compute_C > fit.last
                if past_C.any():
                    ends_SCB[s, past_C] = fit.best_draws(compute_C[past_C])
        return cls(compute_C, values_SCB, ends_SCB)

    def part(self, keep: Sequence[int]) -> Grid:
        """The grid of some of the configurations."""
        k = list(keep)
        return Grid(self.compute_C, self.values_SCB[k], self.ends_SCB[k])


@dataclass(frozen=True)
class Frontier:
    """The envelope on a grid of compute, expected and in every sample."""

    compute_C: Array
    best_C: Ints
    """Index of the configuration on the frontier."""
    values_C: Array
    switches: tuple[Switch, ...]
    best_BC: Ints
    """Index of the configuration on the frontier of every sample."""
    values_BC: Array
    """The envelope of every sample."""


def frontier(fits: Sequence[CurveFit], grid: Grid | None = None) -> Frontier:
    """Envelope, switches and the samples' envelopes."""
    grid = grid or Grid.of(fits)
    compute_C = grid.compute_C
    live_SC = live(fits, compute_C)
    none_C = ~live_SC.any(axis=0)  # before the first configuration of a part of the law
    keep_C = slice(int(none_C.sum()), None)
    compute_C, live_SC = compute_C[keep_C], live_SC[:, keep_C]
    values_SCB = grid.values_SCB[:, keep_C]
    values_SC = np.where(live_SC, np.stack([reached(fit, compute_C) for fit in fits]), -np.inf)
    best_C = _leaders(values_SC, _EQUAL * max(fit.posterior.rise for fit in fits))
    best_BC = np.zeros(values_SCB.shape[:0:-1], dtype=np.int64)
    highest_BC = np.full(best_BC.shape, -np.inf)
    for s in range(len(fits)):  # a running maximum, so that memory stays at one configuration's samples
        candidate_BC = np.where(live_SC[s], values_SCB[s].T, -np.inf)
        better_BC = candidate_BC > highest_BC
        best_BC[better_BC] = s
        highest_BC[better_BC] = candidate_BC[better_BC]
    switches = tuple(_switch(fits, compute_C, best_C, live_SC, i) for i in np.flatnonzero(np.diff(best_C)).tolist())
    return Frontier(compute_C, best_C, values_SC.max(axis=0), switches, best_BC, highest_BC)


def _leaders(values_SC: Array, tolerance: float) -> Ints:
    """The leader at each compute; it changes where another passes it, if that leads by more than a tolerance later on.

    Before the first rises by as much, nothing has been learned, and it stands.
    """
    raw_C = values_SC.argmax(axis=0)
    clear = np.flatnonzero(values_SC.max(axis=0) - values_SC[np.isfinite(values_SC)].min() > tolerance)
    leader = int(raw_C[clear[0]] if len(clear) else raw_C[-1])
    out_C = np.full(len(raw_C), leader, dtype=np.int64)
    for c in range(int(clear[0]) if len(clear) else len(raw_C), len(raw_C)):
        best = int(raw_C[c])
        if values_SC[best, c] - values_SC[leader, c] > tolerance:
            behind = np.flatnonzero(values_SC[best, :c] <= values_SC[leader, :c])
            since = max(int(behind[-1]) + 1 if len(behind) else 0, int(clear[0]))
            out_C[since:] = best
            leader = best
    return out_C


def _switch(fits: Sequence[CurveFit], compute_C: Array, best_C: Ints, live_SC: Bools, i: int) -> Switch:
    """The switch between two points of the grid; leads are linear in log compute between them."""
    old, new = int(best_C[i]), int(best_C[i + 1])
    low, high = float(compute_C[i]), float(compute_C[i + 1])
    if not live_SC[new, i]:
        low = max(low, fits[new].starts / EARLY_FACTOR)
    ends = np.array([low, high])
    before, after = (reached(fits[new], ends) - reached(fits[old], ends)).tolist()
    changes = before < 0 < after
    at = low * (high / low) ** (before / (before - after)) if changes else low
    crosses = changes and at <= min(fits[old].last, fits[new].last) * _SLACK
    return Switch(at, old, new, float(reached(fits[new], np.array([at]))[0]), crosses)


def reached(fit: CurveFit, compute_C: Array) -> Array:
    """Value that a setting reaches with at most this compute: the best of its curve so far."""
    seen_C = np.minimum(compute_C, fit.last)
    return np.asarray(fit.at(seen_C) + fit.posterior.kept(fit.index, seen_C))


def live(fits: Sequence[CurveFit], compute_C: Array) -> Bools:
    """Whether each setting (rows) takes part at each compute."""
    starts_S = np.array([fit.starts for fit in fits])
    return np.asarray(compute_C[None, :] >= starts_S[:, None] / EARLY_FACTOR)


def compared(fits: Sequence[CurveFit], compute_C: Array) -> slice:
    """The range of the grid on which configurations can be compared: until only one is left.

    It begins where all have begun, or where two have, if less than a factor of three of compute would be left.
    """
    last_S, begun_SC = np.array([fit.last for fit in fits]), live(fits, compute_C)
    running_C = (begun_SC & (compute_C[None, :] <= last_S[:, None] * _SLACK)).sum(axis=0)
    several = np.flatnonzero(running_C >= min(2, len(fits)))
    if not len(several):
        return slice(0, 0)
    stop = int(several[-1]) + 1
    all_of_them = np.flatnonzero(begun_SC.all(axis=0))
    start = int(all_of_them[0]) if len(all_of_them) else stop
    if start >= stop or compute_C[stop - 1] < _ENOUGH * compute_C[start]:
        start = int(several[0])
    return slice(start, stop)


@dataclass(frozen=True)
class Movement:
    """Whether the best of the values that were run moves with compute, and how sure that is."""

    rises: float
    """p-value of a rise: the chance that smaller values lead nowhere, or no larger one leads at the end."""
    falls: float
    lead: float
    """Expected lead of the best at the end over the best of the values that led before it."""
    lead_interval: tuple[float, float]
    """95% interval of that lead."""

    @property
    def direction(self) -> str | None:
        """`rises` or `falls` where one of them is significant."""
        if min(self.rises, self.falls) > _CHANCE:
            return None
        return "rises" if self.rises <= self.falls else "falls"


def movement(fits: Sequence[CurveFit], grid: Grid, part: slice, axis: int) -> Movement:
    """Test whether the optimal n (axis 1) or Bp (axis 0) moves within a part of the grid.

    It rises where some values lead somewhere and one larger value leads all of them at the end, both beyond chance.
    """
    rise = max(fit.posterior.rise for fit in fits)
    every = np.linspace(part.start, part.stop - 1, min(_CANDIDATES, part.stop - part.start)).round().astype(int)
    tried_S = np.array([fit.setting[axis] or 0 for fit in fits])
    tried = np.unique(tried_S)
    best_VCB = np.stack([grid.ends_SCB[tried_S == v][:, every].max(axis=0) for v in tried])
    found = {}
    for way, values_VCB in (("rises", best_VCB), ("falls", best_VCB[::-1])):
        so_far_VCB = np.maximum.accumulate(values_VCB)
        later_VCB = np.maximum.accumulate(values_VCB[::-1])[::-1]
        tests = [(1.0, 1, 1)]
        for k in range(1, len(tried)):
            ahead_CB = so_far_VCB[k - 1, :-1] - later_VCB[k, :-1]
            early = float((ahead_CB <= _EARLY_LEAD * rise).mean(axis=1).min(initial=1.0))
            for v in range(k, len(tried)):
                lead_B = values_VCB[v, -1] - so_far_VCB[k - 1, -1]
                tests.append((max(early, float((lead_B <= _FINAL_LEAD * rise).mean())), k, v))
        found[way] = min(tests)
    way = min(found, key=lambda name: found[name][0])
    _, k, _ = found[way]
    sides = (best_VCB if way == "rises" else best_VCB[::-1])[:, -1]
    lead_B = sides[k:].max(axis=0) - sides[:k].max(axis=0) if len(tried) > 1 else np.zeros(1)
    lead = float(lead_B.mean())
    return Movement(found["rises"][0], found["falls"][0], lead, around(lead, lead_B))


def ended(fits: Sequence[CurveFit], best_C: Ints, compute_C: Array, *, axis: int = 1) -> list[tuple[int, float] | None]:
    """At each compute, the next n (axis 1) or Bp (axis 0) above the best and its last compute; None if it still runs.

    If it had ended before, it might have led by then.
    """
    value_S = np.array([fit.setting[axis] or 0 for fit in fits])
    last: dict[int, float] = {}
    for value, fit in zip(value_S.tolist(), fits, strict=True):
        last[value] = max(last.get(value, 0.0), fit.last)
    above: dict[int, int] = dict(pairwise(sorted(last)))
    larger = [above.get(value) for value in value_S[best_C].tolist()]
    return [
        (n, last[n]) if n is not None and last[n] * _SLACK < compute else None
        for n, compute in zip(larger, compute_C.tolist(), strict=True)
    ]


def bounds(fits: Sequence[CurveFit], best_C: Ints, compute_C: Array, *, axis: int = 1) -> list[str | None]:
    """At each compute, `>=` or `<=` if the optimal n (axis 1) or Bp (axis 0) may lie beyond the best one, else None.

    `>=`: the best is the largest that was run, or the next larger one had ended. `<=`: it is the smallest.
    """
    value_S = [fit.setting[axis] or 0 for fit in fits]
    cut = ended(fits, best_C, compute_C, axis=axis)
    edge = {min(value_S): "<=", max(value_S): ">="}
    return [">=" if gone else edge.get(value_S[best]) for best, gone in zip(best_C.tolist(), cut, strict=True)]


@dataclass(frozen=True)
class Optimum:
    """The fitted sigmoid of a quantity that doubles (n or Bp) along compute or update steps."""

    x_C: Array
    """Compute (or update steps) at which the optimum was read."""
    estimate_C: Array
    """The optimum on the frontier: a step function whose values were run."""
    interval_C2: Array
    """Its 95% interval over the bootstrap."""
    sigmoid_C: Array
    L: float
    k: float
    log10_C0: float
    b: float
    k_at_bound: bool
    """Whether k is only known to be large, as for a single jump."""
    L_interval: tuple[float, float]
    k_interval: tuple[float, float]
    b_interval: tuple[float, float]
    midpoint_interval: tuple[float, float]
    direction: str
    """`rises`, `falls`, `flat` (the estimate does not move), or `unclear` (it moves, but perhaps by chance)."""
    movement: Movement
    probability_rises: float
    """1 less the p-value of a rise."""
    saturates: bool
    bound_C: tuple[str | None, ...]
    """`<=` or `>=` if the optimum on the frontier is only a bound there (see `bounds`), else None."""
    smallest: float
    largest: float

    @property
    def start(self) -> int:
        """Where on `x_C` the optimum starts to move: at its smallest value if it rises, at its largest if it falls.

        Before that, nothing has been learned.
        """
        away = {"rises": 1.0, "falls": -1.0}.get(self.direction, 0.0)
        return int(np.argmin(away * self.estimate_C))

    @property
    def floor_bound(self) -> str | None:
        """The bound at small compute."""
        return self.bound_C[min(self.start, len(self.bound_C) - 1)]

    @property
    def ceiling_bound(self) -> str | None:
        """The bound at large compute."""
        return self.bound_C[-1]

    @property
    def rises(self) -> bool:
        """Whether the optimum rises with compute."""
        return self.direction == "rises"

    @property
    def floor(self) -> float:
        """The optimum at small compute, which was run; the sigmoid's is 2^b."""
        return float(self.estimate_C[self.start])

    @property
    def floor_interval(self) -> tuple[float, float]:
        """Its 95% interval."""
        low, high = self.interval_C2[self.start].tolist()
        return low, high

    @property
    def ceiling(self) -> float:
        """The optimum at the largest compute, which was run; the sigmoid's is 2^(L + b)."""
        return float(self.estimate_C[-1])

    @property
    def ceiling_interval(self) -> tuple[float, float]:
        """Its 95% interval."""
        low, high = self.interval_C2[-1].tolist()
        return low, high

    @property
    def halfway(self) -> float:
        """Compute at which the optimum has moved half of its way, in doublings."""
        moved_C = np.log2(self.estimate_C[self.start :] / self.floor) / np.log2(self.ceiling / self.floor)
        return float(self.x_C[self.start + np.argmax(moved_C >= 0.5 - 1e-9)])

    def to_json(self, axis: str) -> dict[str, Any]:
        """The keys of `optimal_rollouts` in `fit --json`; `axis` is `C` or `M`."""
        same = ["L", "L_interval", "k", "k_interval", "b", "b_interval", "floor", "floor_interval", "floor_bound"]
        same += ["ceiling", "ceiling_interval", "ceiling_bound", "k_at_bound", "direction", "rises"]
        same += ["probability_rises", "saturates"]
        moved = self.movement
        return {
            f"log10_{axis}0": self.log10_C0,
            f"log10_{axis}0_interval": self.midpoint_interval,
            **{name: getattr(self, name) for name in same},
            "p_rises": moved.rises,
            "p_falls": moved.falls,
            "final_lead": moved.lead,
            "final_lead_interval": moved.lead_interval,
        }


@dataclass(frozen=True)
class Reading:
    """An optimum read along log-spaced compute (or update steps)."""

    x_C: Array
    optimum_C: Array
    optimum_BC: Array
    """The optimum of every draw."""
    tried: Array
    """The values that were run."""
    movement: Movement
    bound_C: tuple[str | None, ...] = (None,)
    """`<=` or `>=` if the optimum is only a bound there, else None."""


def fit_optima(readings: Sequence[Reading]) -> list[Optimum]:
    """Fit the sigmoid to all readings and their draws at once."""
    if not readings:
        return []
    x_G, rows_G = [], []
    for reading in readings:
        thin = slice(None, None, max(1, len(reading.x_C) // _SIGMOID_POINTS))
        rows_RC = np.concatenate([reading.optimum_C[None], reading.optimum_BC[:_SIGMOID_REPLICATES]])[:, thin]
        x_G.append(reading.x_C[thin])
        rows_G.append(np.log2(rows_RC))
    return [_optimum(*each) for each in zip(readings, _sigmoids(x_G, rows_G), strict=True)]


def _optimum(reading: Reading, fits: Fits) -> Optimum:
    x_C, tried = reading.x_C, reading.tried
    start_R, end_R = fits.base_R, fits.ceiling_R
    k_R = np.exp(fits.theta_RK[:, 1]) * _LN10
    middle_R = np.log10(np.exp(fits.theta_RK[:, 0]) * x_C[0])
    rest = slice(1, None) if len(start_R) > 1 else slice(None)
    sigmoid_C = evaluate(_SIGMOID, fits[:1], (x_C / x_C[0])[None])[0]
    move, move_B = float(end_R[0] - start_R[0]), end_R[rest] - start_R[rest]
    still = "flat" if len(np.unique(reading.optimum_C)) == 1 or abs(move) <= _STILL else "unclear"
    direction = reading.movement.direction or still
    end = float(reading.optimum_C[-1])
    if (direction == "rises" and end <= reading.optimum_C.min()) or (
        direction == "falls" and end >= reading.optimum_C.max()
    ):
        direction = "unclear"  # the frontier, of the seeds that were run, does not move so
    levels_off = len(np.unique(reading.optimum_C[x_C >= x_C[-1] / _LEVEL])) == 1
    draws_BC = reading.optimum_BC if len(reading.optimum_BC) else reading.optimum_C[None]
    interval_C2 = np.array([shortest(each_B, at) for each_B, at in zip(draws_BC.T, reading.optimum_C, strict=True)])
    return Optimum(
        x_C=x_C,
        estimate_C=reading.optimum_C,
        interval_C2=interval_C2,
        sigmoid_C=2.0**sigmoid_C,
        L=move,
        k=float(k_R[0]),
        log10_C0=float(middle_R[0]),
        b=float(start_R[0]),
        k_at_bound=bool(direction != "flat" and k_R[0] > 0.99 * _STEEPEST),
        L_interval=percentiles(move_B),
        k_interval=percentiles(k_R[rest]),
        b_interval=percentiles(start_R[rest]),
        midpoint_interval=percentiles(middle_R[rest]),
        direction=direction,
        movement=reading.movement,
        probability_rises=1.0 - reading.movement.rises,
        saturates=bool(direction == "rises" and reading.bound_C[-1] is None and levels_off),
        bound_C=reading.bound_C,
        smallest=float(tried.min()),
        largest=float(tried.max()),
    )


def _sigmoids(x_G: Sequence[Array], rows_G: Sequence[Array]) -> list[Fits]:
    """The better of a rising and a falling sigmoid for every row (log2 of the optimum) of every group."""
    # Draws share many step functions: each distinct one is fitted once.
    known: dict[tuple[int, bytes], int] = {}
    row_GR = [[known.setdefault((g, row_C.tobytes()), len(known)) for row_C in rows] for g, rows in enumerate(rows_G)]
    first_G = [np.unique(row_R, return_index=True)[1] for row_R in row_GR]
    values = [row_C for rows_RC, first_U in zip(rows_G, first_G, strict=True) for row_C in rows_RC[first_U]]
    values_UC, weights_UC = _padded(values, 0.0), _padded([np.ones_like(row_C) for row_C in values], 0.0)
    batch = FitRows(
        compute_GC=_padded([x_C / x_C[0] for x_C in x_G], 1.0),
        span_G=np.array([max(float(x_C[-1] / x_C[0]), 1.0 + 1e-9) for x_C in x_G]),
        group_R=np.repeat(np.arange(len(x_G)), [len(first_U) for first_U in first_G]),
        values_RC=values_UC,
        weights_RC=weights_UC,
        upper=0.0,
    )
    change_UC = np.diff(values_UC, axis=1) * weights_UC[:, 1:]
    up_U, down_U = (np.asarray(each_UC.any(axis=1)) for each_UC in (change_UC > 0, change_UC < 0))
    # A monotone sigmoid gains nothing on a row that moves the other way only.
    rising, falling = _fit_signed(batch, up_U | ~down_U, 1.0), _fit_signed(batch, down_U, -1.0)
    falls_U = np.flatnonzero(falling.sse_R < rising.sse_R * (1.0 - 1e-9) - 1e-12)
    better = rising.updated(falls_U, falling[falls_U])
    return [better[np.array(row_R)] for row_R in row_GR]


def _fit_signed(batch: FitRows, wanted_R: Bools, sign: float) -> Fits:
    """Sigmoids of the wanted rows that rise (sign 1) or fall (sign -1); other rows have an infinite sum of squares.

    A rising sigmoid ends at most at the row's highest value, a falling one at least at its lowest.
    """
    count = len(wanted_R)
    out = Fits(np.zeros((count, 2)), np.zeros(count), np.zeros(count), np.full(count, np.inf))
    rows_R = np.flatnonzero(wanted_R)
    if not len(rows_R):
        return out
    weights_RC, values_RC = batch.weights_RC[rows_R], sign * batch.values_RC[rows_R]
    top_R = np.where(weights_RC > 0, values_RC, -np.inf).max(axis=1)
    centred_RC = np.where(weights_RC > 0, values_RC - top_R[:, None], 0.0)
    part = replace(batch, group_R=batch.group_R[rows_R], values_RC=centred_RC, weights_RC=weights_RC)
    fits = solve(_SIGMOID, part)
    signed = Fits(fits.theta_RK, sign * (fits.base_R + top_R), sign * (fits.ceiling_R + top_R), fits.sse_R)
    return out.updated(rows_R, signed)


def _padded(lines: Sequence[Array], fill: float) -> Array:
    """Lines of different lengths as the rows of one array."""
    out = np.full((len(lines), max(len(line) for line in lines)), fill)
    for row, line in zip(out, lines, strict=True):
        row[: len(line)] = line
    return out


def what_to_run(best: Optimum) -> str:
    """What to run if the optimum at the end is a lower bound: larger n, or longer runs of the next larger n."""
    last = best.estimate_C[-1]
    if last == best.largest:
        return f"n above {best.largest:.0f}"
    return f"n above {last:.0f} run to the end of the range: the next larger one ends before"


def at_end(value: float, bound: str | None) -> str:
    """The optimum at one end of the data, as a bound where it is one.

    >>> at_end(64.0, ">="), at_end(64.0, None)
    ('≥ 64', '64')
    """
    return {"<=": "≤ ", ">=": "≥ ", None: ""}[bound] + f"{value:.0f}"


@dataclass(frozen=True)
class Slice:
    """Rewards at one compute along n or Bp, with the other fixed."""

    varied: str
    fixed: int | None
    compute: float
    settings: tuple[int, ...]
    """Values of the varied axis."""
    values: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...]
    range: float
    range_interval: tuple[float, float]

    def to_json(self) -> dict[str, Any]:
        """The keys of one entry of `sensitivity` in `fit --json`."""
        return {
            **{name: getattr(self, name) for name in ("varied", "fixed", "compute", "range", "range_interval")},
            "values": [
                {self.varied: setting, "value": value, "interval": interval}
                for setting, value, interval in zip(self.settings, self.values, self.intervals, strict=True)
            ],
        }


def sensitivity(fits: Sequence[CurveFit]) -> list[Slice]:
    """All slices with at least two values, the widest first for each axis; never across models or problem sets."""
    slices = []
    for varied, axis in (("rollouts_per_problem", 1), ("problems_per_batch", 0)):
        groups: dict[tuple[int | None, object, object], list[int]] = {}
        for i, fit in enumerate(fits):
            if fit.setting[axis] is not None:
                fields = fit.curves[0].recipe_fields
                same = (fit.setting[1 - axis], str(fields.get("model")), str(fields.get("problems")))
                groups.setdefault(same, []).append(i)
        found = []
        for (fixed, *_), group in groups.items():
            compute = min(fits[i].last for i in group)
            begun = sorted((i for i in group if fits[i].first <= compute), key=lambda i: fits[i].setting[axis] or 0)
            if len({fits[i].setting[axis] for i in begun}) > 1:
                found.append(_slice(varied, axis, fixed, compute, [fits[i] for i in begun]))
        slices += sorted(found, key=lambda s: -len(s.settings))
    return slices


def _slice(varied: str, axis: int, fixed: int | None, compute: float, fits: Sequence[CurveFit]) -> Slice:
    draws_SB: Array = np.stack([fit.best_draws(np.array([compute]))[0] for fit in fits])
    values_S = draws_SB.mean(axis=1)
    span, (low, high) = basic(lambda values_SB: np.ptp(values_SB, axis=0), values_S, draws_SB)
    return Slice(
        varied=varied,
        fixed=fixed,
        compute=compute,
        settings=tuple(int(fit.setting[axis] or 0) for fit in fits),
        values=tuple(values_S.tolist()),
        intervals=tuple(around(v, draws_B) for v, draws_B in zip(values_S.tolist(), draws_SB, strict=True)),
        range=max(0.0, span),
        range_interval=(max(0.0, low), max(0.0, high)),
    )
