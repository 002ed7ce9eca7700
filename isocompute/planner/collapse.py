"""How often runs of a setting collapse, and when.

A law is fitted to what a run reaches before it collapses, so a plan expects what the best checkpoint has. Settings
whose runs tend to collapse look as good there as others; the collapse rate tells them apart.

Runs end at different computes, and a run that ended healthy says nothing of what comes after. The share that has
collapsed by a compute is therefore the Kaplan-Meier estimate (J. Am. Stat. Assoc. 53, 1958). Its error is that of the
number of runs that, all watched to the end, would leave as many healthy (Peto et al., Br. J. Cancer 35, 1977).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isocompute.core.curve import Setting
from isocompute.law.fits import CurveFit
from isocompute.law.law import Law
from isocompute.law.store import StoredLaw

__all__ = ["CollapseRate", "Survival", "survival_by_setting"]

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


def survival_by_setting(
    law: Law | StoredLaw, fits: Sequence[CurveFit], problems_per_batch: int | None
) -> dict[tuple[int, int], Survival]:
    """By (Bp, n), for these settings of a law; `problems_per_batch` fills in a missing Bp."""

    def key(setting: Setting) -> tuple[int, int]:
        return int(setting[0] or problems_per_batch or 1), int(setting[1] or 1)

    if isinstance(law, Law):
        after = {run.curve.name: run.collapse_after for run in law.runs if run.collapse_after is not None}
        ends = {run.curve.name: float(run.curve.compute_C[-1]) for run in law.runs}
        early = [(key(lost.curve.setting), lost.collapse_after) for lost in law.early_collapses]
    else:
        curves, lost_early = law.summary.get("curves", []), law.summary.get("early_falls", [])
        after = {str(c.get("run")): float(c["falls_after"]) for c in curves if c.get("falls_after") is not None}
        ends = {str(c.get("run")): float(c["last"]) for c in curves if c.get("last") is not None}
        settings = [(e["problems_per_batch"], e["rollouts_per_problem"]) for e in lost_early]
        early = [(key(of), float(e["falls_after"])) for of, e in zip(settings, lost_early, strict=True)]
    runs: dict[tuple[int, int], list[tuple[str, float]]] = {}
    for fit in fits:
        # Laws stored by early versions lack the ends: all their runs count to the furthest one's.
        runs.setdefault(key(fit.setting), []).extend((c.name, ends.get(c.name, fit.last)) for c in fit.curves)
    return {
        of: Survival(
            tuple(sorted([after[name] for name, _ in named if name in after] + [at for k, at in early if k == of])),
            tuple(sorted(end for name, end in named if name not in after)),
        )
        for of, named in runs.items()
    }
