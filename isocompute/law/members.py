"""The members of a forecast and what each would have said of the run's own past (`forecasting` averages them).

- every curve family (Hill, exponential, power), fitted three times: to all points, without the first point, and
  without the first quarter. That is the rule for the early transient: the jump in which a base model learns the
  answer format says nothing about the slow climb that follows, but whether a run has such a jump is for its own past
  to say;
- `flat`: the mean of the last three evaluations;
- `drift`: the trend of the last three quarters of the compute, by its log, damped to .7 of its slope. Called
  `declining` when it points down.

No member may leave the range seen so far by more than that range for every doubling of compute: it keeps a fit to six
noisy points from promising the sky.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Array, Ints
from isocompute.law.curve import MINIMUM_POINTS, Curve, upper_bound
from isocompute.law.families import FAMILIES
from isocompute.law.solver import Batch, evaluate, solve

__all__ = ["Members", "drift", "floor_of", "origins", "predict"]

_SHARES = (0.35, 0.45, 0.55, 0.65, 0.75, 0.85)
"""Of the compute seen: origins that look a little ahead."""
_HALVINGS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)
"""Origins that look as far ahead as the question does, to the compute seen, halved so often."""
_EARLIEST = 5  # points before the first origin
_DAMPING = 0.7
_TREND = 0.25
"""Share of the compute seen from which on points make the trend."""


@dataclass(frozen=True)
class Members:
    """Predictions of all members (columns) from several prefixes of one curve (rows)."""

    names: list[str]
    values_OM: Array


def origins(curve: Curve, at: float) -> tuple[Ints, Array, Array]:
    """Prefix lengths to forecast from, where each looks to, and what was there."""
    compute_C, values_C = curve.compute_C, curve.values_C
    last, count = float(compute_C[-1]), len(compute_C)
    far = [last / at * 0.5**halvings for halvings in _HALVINGS]
    ends: list[int] = []
    ats: list[float] = []
    targets: list[float] = []
    for share in sorted({*_SHARES, *far}):
        end = int((compute_C <= share * last * (1 + 1e-12)).sum())
        if end < _EARLIEST or end >= count or (ends and ends[-1] == end):
            continue
        look = min(float(compute_C[end - 1] * at / last), last)
        window = (np.arange(count) >= end) & (compute_C >= 0.8 * look) & (compute_C <= 1.1 * look)
        if not window.any():
            window = np.arange(count) == end + int(np.abs(compute_C[end:] - look).argmin())
        ends.append(end)
        ats.append(float(compute_C[window].mean()))
        targets.append(float(values_C[window].mean()))
    return np.array(ends, dtype=np.int64), np.array(ats), np.array(targets)


def predict(curve: Curve, ends_O: Ints, ats_O: Array) -> Members:
    """Every member's prediction from every prefix: three batches of fits and two closed forms."""
    compute_C, values_C = curve.compute_C, curve.values_C
    unit = float(compute_C[compute_C > 0][0])
    index_C = np.arange(len(compute_C))
    masks, names, looks = [], [], []
    for name, first_O in (
        ("all", np.zeros_like(ends_O)),
        ("-1", np.ones_like(ends_O)),
        ("-quarter", np.maximum(1, ends_O // 4)),
    ):
        start_O = np.minimum(first_O, ends_O - MINIMUM_POINTS)
        masks.append((index_C[None] >= start_O[:, None]) & (index_C[None] < ends_O[:, None]))
        names.append(name)
        looks.append(ats_O)
    weights_RC = np.concatenate(masks).astype(np.float64)
    rows = len(weights_RC)
    batch = Batch(
        compute_GC=(compute_C / unit)[None],
        span_G=np.array([max(float(compute_C[-1]) / unit, 1.0 + 1e-9)]),
        group_R=np.zeros(rows, dtype=np.int64),
        values_RC=np.broadcast_to(values_C, (rows, len(values_C))).copy(),
        weights_RC=weights_RC,
        upper=upper_bound(values_C),
    )
    look_R1 = np.concatenate(looks)[:, None] / unit
    columns, labels = [], []
    for family in FAMILIES:
        predicted_R = evaluate(family, solve(family, batch), look_R1)[:, 0]
        columns += list(predicted_R.reshape(len(names), len(ends_O)))
        labels += [family.name] * len(names)
    prefixes = [curve.until(int(end)) for end in ends_O]
    columns.append(np.array([prefix.values_C[-3:].mean() for prefix in prefixes]))
    columns.append(np.array([drift(prefix, float(look)) for prefix, look in zip(prefixes, ats_O, strict=True)]))
    values_OM = np.stack(columns, axis=1)
    for row, (prefix, look) in enumerate(zip(prefixes, ats_O, strict=True)):
        values_OM[row] = np.clip(values_OM[row], *_credible(prefix, float(look)))
    return Members([*labels, "flat", "drift"], values_OM)


def _credible(curve: Curve, at: float) -> tuple[float, float]:
    """The smoothed range seen, widened by itself for every doubling of compute."""
    smooth_C = np.convolve(curve.values_C, np.ones(3) / 3.0, mode="valid")
    low, high = float(smooth_C.min()), float(smooth_C.max())
    reach = (high - low) * max(float(np.log2(at / curve.compute_C[-1])), 0.0)
    return low - reach, high + reach


def drift(curve: Curve, at: float) -> float:
    """The trend since `_TREND` of the compute, by its log, goes on at `_DAMPING` of its slope, inside the possible."""
    positive = curve.compute_C > 0
    compute_C, values_C = curve.compute_C[positive], curve.values_C[positive]
    size = min(len(values_C), max(_EARLIEST, int((compute_C >= _TREND * compute_C[-1]).sum())))
    x_C = np.log(compute_C[-size:] / compute_C[-1])
    spread = float(((x_C - x_C.mean()) ** 2).sum())
    slope = float((x_C - x_C.mean()) @ values_C[-size:]) / spread if spread > 0 else 0.0
    level = float(values_C[-size:].mean()) - slope * float(x_C.mean())
    value = level + _DAMPING * slope * float(np.log(at / compute_C[-1]))
    return min(max(value, floor_of(curve)), upper_bound(curve.values_C))


def floor_of(curve: Curve) -> float:
    """What no forecast may fall below: 0 where no value was negative, -1 where all lie in [-1, 1]."""
    return 0.0 if float(curve.values_C.min()) >= 0.0 else -1.0 if upper_bound(curve.values_C) == 1.0 else -np.inf
