"""How often runs of a setting collapse, and when.

A law is fitted to what a run reaches before it collapses, so a plan expects what the best checkpoint has. Settings
whose runs tend to collapse look as good there as others; the collapse rate tells them apart.

Runs end at different computes, and a run that ended healthy says nothing of what comes after. The share that has
collapsed by a compute is therefore the Kaplan-Meier estimate (J. Am. Stat. Assoc. 53, 1958). Its error is that of the
number of runs that, all watched to the end, would leave as many healthy (Peto et al., Br. J. Cancer 35, 1977).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from isocompute.core.curve import Setting
from isocompute.law.fits import CurveFit
from isocompute.law.law import Law
from isocompute.law.store import StoredLaw

__all__ = ["CollapseRate", "Collapses", "Survival", "collapses_of", "survival_by_setting"]

LEVEL = 0.8
"""Coverage of the interval of a collapse rate."""
_JEFFREYS = 0.5
_ABOUT = 1.1
"""A run that ends within this factor of a compute has gone to it."""
_SAME_SHARE = 0.005
"""Shares that differ by less read the same in whole percent."""


@dataclass(frozen=True)
class CollapseRate:
    """How many runs of a setting had collapsed by a compute."""

    runs: int
    """Runs that were watched until the first collapse, or all the way where there was none."""
    collapsed: int
    first: float | None
    """Compute after which the first one collapsed."""
    share: float
    """Kaplan-Meier estimate of the share that has collapsed."""
    effective: float
    """Number of fully observed runs that would carry as much information (Peto)."""

    def __str__(self) -> str:
        return f"{self.collapsed} of {self.runs}" + ("" if self.plain else f" ({self.share:.0%})")

    @property
    def plain(self) -> bool:
        """Whether the share is the ratio of the two counts."""
        return abs(self.share - self.collapsed / self.runs) < _SAME_SHARE

    def interval(self) -> tuple[float, float]:
        """Central 80% interval of the collapse rate (Jeffreys; open-ended where no run or every run collapsed)."""
        from scipy.special import betaincinv

        a, b = self.effective * self.share + _JEFFREYS, self.effective * (1 - self.share) + _JEFFREYS
        low, high = (float(betaincinv(a, b, q)) for q in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        return (0.0 if self.collapsed == 0 else low, 1.0 if self.share == 1.0 else high)


@dataclass(frozen=True)
class Survival:
    """Compute after which each collapsed run of a setting collapsed, and to which each healthy one was run."""

    collapsed_after: tuple[float, ...]
    healthy_to: tuple[float, ...]

    def by(self, compute: float) -> CollapseRate | None:
        """The collapse rate by this compute, or by the furthest that a run went; None where no run says anything."""
        early = sorted(after for after in self.collapsed_after if after < compute)
        last = max((*self.collapsed_after, *self.healthy_to))
        if not early and compute > last * _ABOUT:
            return None
        far = min(compute, last)
        reached = sum(after >= compute for after in self.collapsed_after)
        reached += sum(end >= far / _ABOUT for end in self.healthy_to)
        if not early:
            return CollapseRate(reached, 0, None, 0.0, float(reached))
        censored = [end for end in self.healthy_to if end < far / _ABOUT]
        healthy, effective = 1.0, 0.0
        for at in sorted(set(early)):
            at_risk = reached + sum(after >= at for after in early) + sum(end >= at for end in censored)
            effective = at_risk / healthy  # stays where no run is left after the last collapse
            healthy *= 1 - early.count(at) / at_risk
        if reached:
            effective = reached / healthy
        runs = reached + len(early) + sum(end >= early[0] for end in censored)
        return CollapseRate(runs, len(early), early[0], round(1 - healthy, 12), effective)


@dataclass(frozen=True)
class Collapses:
    """The runs of a law that collapsed."""

    after: Mapping[str, float] = field(default_factory=dict)
    """By name, of runs with a curve: compute of the last point before the collapse."""
    early: tuple[tuple[Setting, float], ...] = ()
    """Settings of runs that collapsed too early for a curve, and when."""
    ends: Mapping[str, float] = field(default_factory=dict)
    """By name, of all runs with a curve: compute of the last evaluation."""


def collapses_of(law: Law | StoredLaw) -> Collapses:
    """The collapses of a law, fitted here or stored."""
    if isinstance(law, Law):
        return Collapses(
            {run.curve.name: run.collapse_after for run in law.runs if run.collapse_after is not None},
            tuple((lost.curve.setting, lost.collapse_after) for lost in law.early_collapses),
            {run.curve.name: float(run.curve.compute_C[-1]) for run in law.runs},
        )
    curves, early = law.summary.get("curves", []), law.summary.get("early_falls", [])
    return Collapses(
        {str(c.get("run")): float(c["falls_after"]) for c in curves if c.get("falls_after") is not None},
        tuple(((e["problems_per_batch"], e["rollouts_per_problem"]), float(e["falls_after"])) for e in early),
        {str(c.get("run")): float(c["last"]) for c in curves if c.get("last") is not None},
    )


def survival_by_setting(
    fits: Sequence[CurveFit], collapses: Collapses, problems_per_batch: int | None
) -> dict[tuple[int, int], Survival]:
    """By (Bp, n), for all settings of a law; `problems_per_batch` fills in a missing Bp."""
    ends: dict[tuple[int, int], list[tuple[str, float]]] = {}
    for fit in fits:
        key = int(fit.setting[0] or problems_per_batch or 1), int(fit.setting[1] or 1)
        # Laws stored by early versions lack the ends: all their runs count to the furthest one's.
        ends.setdefault(key, []).extend((c.name, collapses.ends.get(c.name, fit.last)) for c in fit.curves)
    early: dict[tuple[int, int], list[float]] = {}
    for setting, at in collapses.early:
        early.setdefault((int(setting[0] or problems_per_batch or 1), int(setting[1] or 1)), []).append(at)
    return {
        key: Survival(
            tuple(sorted([collapses.after[name] for name, _ in runs if name in collapses.after] + early.get(key, []))),
            tuple(sorted(end for name, end in runs if name not in collapses.after)),
        )
        for key, runs in ends.items()
    }
