"""How steady the runs of a setting were: how many of them fell for good, how early, and which share falls.

A law is fitted to what a run reaches before a lasting fall, so what a plan expects is what the best checkpoint has. A
setting whose runs tend to collapse looks as good there as one whose runs hold; this is where the difference is told.

Runs end at different computes, and one that ended in good health says nothing of what comes after. The share that has
fallen by a compute is therefore Kaplan and Meier's (J. Am. Stat. Assoc. 53, 1958): at every fall, of the runs that were
still being watched. Its error is that of as many runs as, all watched to the end, would leave as many to go on as there
are: those that do, over the share that holds (Peto et al., Br. J. Cancer 35, 1977). Without early ends both are the
plain counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from isocompute.core.allocation import Allocation
from isocompute.core.curve import Setting
from isocompute.core.formatting import number, value
from isocompute.law.fits import CurveFit
from isocompute.law.law import Law
from isocompute.law.store import StoredLaw
from isocompute.planner.decide import LEVEL, Ranked
from isocompute.planner.warnings import Warned

__all__ = ["Fallen", "Falls", "Steadiness", "fall_warnings", "falls_of", "steadiness"]

_JEFFREYS = 0.5
_ABOUT = 1.1
"""Runs that end so little before a compute have gone to it."""
_SAME = 0.005
"""Shares that differ by less read the same in whole percent."""


@dataclass(frozen=True)
class Fallen:
    """What had become of the runs of a setting by a compute."""

    runs: int
    """Those that were watched until the first fell, or all the way where none did."""
    fallen: int
    first: float | None
    """Compute after which the first one fell."""
    share: float
    """Share of runs that have fallen by then, each counted as far as it went (Kaplan and Meier)."""
    effective: float
    """Runs that, all watched all the way, would say as much of it (Peto)."""

    def __str__(self) -> str:
        return f"{self.fallen} of {self.runs}" + ("" if self.plain else f" ({self.share:.0%})")

    @property
    def plain(self) -> bool:
        """Whether the share is what the two counts say."""
        return abs(self.share - self.fallen / self.runs) < _SAME

    def interval(self) -> tuple[float, float]:
        """Central 80% interval of the share that falls by then (Jeffreys; to the end where none or all fell)."""
        from scipy.special import betaincinv

        a, b = self.effective * self.share + _JEFFREYS, self.effective * (1 - self.share) + _JEFFREYS
        low, high = (float(betaincinv(a, b, q)) for q in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        return (0.0 if self.fallen == 0 else low, 1.0 if self.share == 1.0 else high)


@dataclass(frozen=True)
class Steadiness:
    """The compute after which each of a setting's fallen runs fell, and to which each of the others was run."""

    fell_after: tuple[float, ...]
    held_to: tuple[float, ...]

    def by(self, compute: float) -> Fallen | None:
        """What had become of them by this much compute, or by the furthest that one was run; None where none fell and
        none was run so far. Runs that ended before in good health count until then.
        """
        early = sorted(after for after in self.fell_after if after < compute)
        last = max((*self.fell_after, *self.held_to))
        if not early and compute > last * _ABOUT:
            return None
        far = min(compute, last)
        went = len([after for after in self.fell_after if after >= compute])
        went += len([end for end in self.held_to if end >= far / _ABOUT])
        ended = [end for end in self.held_to if end < far / _ABOUT]
        if not early:
            return Fallen(went, 0, None, 0.0, float(went))
        holds, effective = 1.0, 0.0
        for at in sorted(set(early)):
            watched = went + len([after for after in early if after >= at]) + len([end for end in ended if end >= at])
            effective = watched / holds  # where none is left after the last fall
            holds *= 1 - early.count(at) / watched
        if went:
            effective = went / holds
        runs = went + len(early) + len([end for end in ended if end >= early[0]])
        return Fallen(runs, len(early), early[0], round(1 - holds, 12), effective)


@dataclass(frozen=True)
class Falls:
    """The runs of a law that fell for good."""

    after: Mapping[str, float] = field(default_factory=dict)
    """By name of those with a curve: compute of the last point before."""
    early: tuple[tuple[Setting, float], ...] = ()
    """Settings of those that fell too early for a curve, and when."""
    ends: Mapping[str, float] = field(default_factory=dict)
    """By name of all with a curve: compute of the last evaluation."""


def falls_of(law: Law | StoredLaw) -> Falls:
    """Those of a law, fitted here or stored."""
    if isinstance(law, Law):
        return Falls(
            {run.curve.name: run.collapse_after for run in law.runs if run.collapse_after is not None},
            tuple((lost.curve.setting, lost.collapse_after) for lost in law.early_collapses),
            {run.curve.name: float(run.curve.compute_C[-1]) for run in law.runs},
        )
    curves, early = law.summary.get("curves", []), law.summary.get("early_falls", [])
    return Falls(
        {str(c.get("run")): float(c["falls_after"]) for c in curves if c.get("falls_after") is not None},
        tuple(((e["problems_per_batch"], e["rollouts_per_problem"]), float(e["falls_after"])) for e in early),
        {str(c.get("run")): float(c["last"]) for c in curves if c.get("last") is not None},
    )


def steadiness(
    fits: Sequence[CurveFit], falls: Falls, problems_per_batch: int | None
) -> dict[tuple[int, int], Steadiness]:
    """By (Bp, n), for all settings of a law; `problems_per_batch` stands in for a Bp that runs do not say."""
    ends: dict[tuple[int, int], list[tuple[str, float]]] = {}
    for fit in fits:
        key = int(fit.setting[0] or problems_per_batch or 1), int(fit.setting[1] or 1)
        # A stored law of before does not say: there all runs went as far as the furthest, for all that is known.
        ends.setdefault(key, []).extend((c.name, falls.ends.get(c.name, fit.last)) for c in fit.curves)
    early: dict[tuple[int, int], list[float]] = {}
    for setting, at in falls.early:
        early.setdefault((int(setting[0] or problems_per_batch or 1), int(setting[1] or 1)), []).append(at)
    return {
        key: Steadiness(
            tuple(sorted([falls.after[name] for name, _ in runs if name in falls.after] + early.get(key, []))),
            tuple(sorted(end for name, end in runs if name not in falls.after)),
        )
        for key, runs in ends.items()
    }


def fall_warnings(
    targets: Sequence[Allocation], fallen_A: Sequence[Fallen | None], ranking: Sequence[Ranked], *, unit: str
) -> list[Warned]:
    """Say that runs of the chosen setting fell for good before the budget's compute, and which setting's did not."""
    mine = fallen_A[ranking[0].index]
    if mine is None or mine.first is None:
        return []
    share = "" if mine.plain else f" ({mine.share:.0%} by this compute, each run counted as far as it went)"
    steady = "no setting within one error of it held in all its runs"
    for r in ranking[1:]:
        other = fallen_A[r.index]
        if r.ties and other is not None and other.fallen == 0:
            held = "its one run" if other.runs == 1 else f"all its {other.runs} runs"
            steady = f"{_name(targets[r.index])} (−{value(r.regret)}), within one error of it, held in {held}"
            break
    return [
        Warned(
            "falls",
            f"{mine.fallen} of {mine.runs} runs of {_name(targets[ranking[0].index])} fell for good{share}, the first "
            f"after {number(mine.first)} {unit.replace('gpu_hours', 'GPU-hours')}: what is expected is of the best "
            f"checkpoint, so keep checkpoints and watch the run (`isocompute health`); {steady}",
        )
    ]


def _name(a: Allocation) -> str:
    return f"{a.problems_per_batch} × {a.rollouts_per_problem}"
