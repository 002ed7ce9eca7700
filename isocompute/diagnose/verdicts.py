"""Claims, and how an interval decides one.

With several seeds on both sides their standard deviation gives the error: paired if the seeds are the same (Student),
else Welch's. With one seed on each side the data do not show it. Each side then gets ScaleRL's ±.02 of the scale, the
error between repetitions of one run, so the difference gets √2 times that. With one seed on only one side, the standard
deviation of the other side is used for both, with the same minimum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from isocompute.core.arrays import Array
from isocompute.law.store import SEED_MARGIN

Verdict = Literal["holds", "fails", "undecided"]
Interval = tuple[float, float]

ONE_SEED = math.sqrt(2.0) * SEED_MARGIN
"""95% error of a difference between single runs, as a share of the scale."""


@dataclass(frozen=True)
class Claim:
    """A claim with its statistic and verdict."""

    code: str
    statement: str
    source: str
    verdict: Verdict
    statistic: dict[str, Any]
    """The numbers and texts behind the verdict; `interval` is that of `value`."""
    interval: Interval | None
    """95% interval of `statistic["value"]`."""
    needs: str | None
    """The runs that would decide it, if it is undecided."""
    runs: tuple[str, ...]
    """Names of the runs that it used."""

    def to_json(self) -> dict[str, Any]:
        """The fields as plain data."""
        return asdict(self) | {"interval": self.interval and list(self.interval), "runs": list(self.runs)}


@dataclass(frozen=True)
class Statement:
    """A statement of a paper, and the runs that are needed to judge it."""

    code: str
    text: str
    source: str
    needs: str

    def judged(
        self,
        verdict: Verdict,
        interval: Interval,
        statistic: Mapping[str, Any],
        *,
        needs: str | None,
        runs: Iterable[str],
        where: str = "",
    ) -> Claim:
        """The claim with its verdict. `needs` is kept only if it is undecided; `where` names one of several setups."""
        code = f"{self.code}/{where}" if where else self.code
        lacking = needs if verdict == "undecided" else None
        return Claim(code, self.text, self.source, verdict, dict(statistic), interval, lacking, tuple(runs))

    def lacks(self) -> Claim:
        """The undecided claim if the runs it needs are missing."""
        return Claim(self.code, self.text, self.source, "undecided", {}, None, self.needs, ())


def above(interval: Interval) -> Verdict:
    """`holds` if the whole interval lies above 0, `fails` if it lies below."""
    return "holds" if interval[0] > 0 else "fails" if interval[1] < 0 else "undecided"


def inside(interval: Interval, margin: float) -> Verdict:
    """For a claim that two things are equal: `holds` within the margin, `fails` outside it."""
    if -margin < interval[0] and interval[1] < margin:
        return "holds"
    return "fails" if interval[0] > margin or interval[1] < -margin else "undecided"


def no_better(interval: Interval, margin: float) -> Verdict:
    """For a claim that one thing does no better than another: `holds` below the margin, `fails` above it."""
    return "holds" if interval[1] < margin else "fails" if interval[0] > margin else "undecided"


@dataclass(frozen=True)
class Difference:
    """A difference with its 95% interval and the rule that gave it."""

    value: float
    interval: Interval
    rule: str


def mean_of(values: Sequence[float]) -> Difference:
    """Mean of at least two values, with Student's interval."""
    mean, half = float(np.mean(values)), float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return Difference(mean, (mean - half, mean + half), f"Student over {len(values)}")


def seed_difference(
    a: Mapping[int | str, tuple[float, float]], b: Mapping[int | str, tuple[float, float]], *, scale: float
) -> Difference:
    """Difference between two recipes, from the value and standard error of each seed.

    The interval is never narrower than the errors of the values, since two seeds may agree by chance.
    """
    value_a, value_b = (np.array([v for v, _ in side.values()]) for side in (a, b))
    difference = float(value_a.mean() - value_b.mean())
    noise = 1.96 * math.sqrt(sum(sum(e**2 for _, e in side.values()) / len(side) ** 2 for side in (a, b)))
    shared = [seed for seed in a if seed in b]
    if len(shared) >= 3 and len(shared) == len(a) == len(b):
        paired = mean_of([a[seed][0] - b[seed][0] for seed in shared])
        half, rule = (paired.interval[1] - paired.interval[0]) / 2, f"{len(shared)} seeds, paired"
    elif min(len(a), len(b)) >= 2:
        half, rule = _welch(value_a, value_b), f"{len(a)} and {len(b)} seeds, Welch"
    else:
        several, least = max(value_a, value_b, key=len), ONE_SEED * scale
        half, rule = math.hypot(least, noise), f"one seed: at least ±{least:.3g}"
        if len(several) > 1:  # one seed against their mean
            count = len(several)
            spread = math.sqrt(float(several.var(ddof=1)) * (1.0 + 1.0 / count))
            half = max(float(stats.t.ppf(0.975, count - 1)) * spread, half)
            rule = f"{count} seeds and one, with the spread of the {count}, {rule}"
    half = max(half, noise)
    return Difference(difference, (difference - half, difference + half), rule)


def _welch(value_a: Array, value_b: Array) -> float:
    """Half the width of Welch's interval; 0 if the seeds of neither side differ."""
    parts = [float(v.var(ddof=1)) / len(v) for v in (value_a, value_b)]
    total = sum(parts)
    if total <= 0:
        return 0.0
    freedom = 1.0 / sum((p / total) ** 2 / (len(v) - 1) for p, v in zip(parts, (value_a, value_b), strict=True))
    return float(stats.t.ppf(0.975, freedom)) * math.sqrt(total)


def combined(parts: Sequence[Difference]) -> Difference:
    """The mean of several independent differences, such as those of several allocations."""
    if len(parts) == 1:
        return parts[0]
    mean = float(np.mean([p.value for p in parts]))
    low, high = (math.sqrt(sum((p.value - p.interval[i]) ** 2 for p in parts)) / len(parts) for i in (0, 1))
    return Difference(mean, (mean - low, mean + high), f"{parts[0].rule}; mean over {len(parts)} allocations")
