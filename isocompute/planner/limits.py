"""What a setup can be up against, and what to do about it: the words in which a plan and a diagnosis speak of it.

How a limit is read off runs is in `regime`, which loads the table library that runs are read with; a plan need not.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["ADVICE", "REGIMES", "Diagnosis", "Finding", "Regime", "Verdict", "assumed_regime"]

Regime = Literal["updates", "noise", "interference", "data", "coverage"]
Verdict = Literal["yes", "no", "unclear", "unknown"]
REGIMES: tuple[Regime, ...] = ("updates", "noise", "interference", "data", "coverage")
ADVICE: dict[Regime, str] = {
    "updates": "more updates win: smaller n, and the smallest stable Bp",
    "noise": "larger n wins late: raise n with the budget, or lower the learning rate",
    "interference": "some problems are given up for others: larger n, a KL term, or fewer unlike problems together",
    "data": "the set is exhausted: more problems or an earlier stop",
    "coverage": "most problems never succeed: easier problems first, a better base, or larger n to find successes",
}


@dataclass(frozen=True)
class Finding:
    """One limit: how much reward is at stake, how sure that is, and what it was read from."""

    regime: Regime
    verdict: Verdict
    value: float | None
    interval: tuple[float, float] | None
    """95%."""
    evidence: str


@dataclass(frozen=True)
class Diagnosis:
    """The limit that the runs show, and the findings on all five."""

    regime: Regime | None
    """None where no limit is supported."""
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain data: `regime`, `advice`, `findings[{regime, verdict, value, interval, evidence}]`."""
        return {
            "regime": self.regime,
            "advice": ADVICE[self.regime] if self.regime else None,
            "findings": [asdict(f) | {"interval": list(f.interval) if f.interval else None} for f in self.findings],
        }


def assumed_regime(direction: str) -> tuple[Regime, str]:
    """The limit that a law alone suggests, where there are no runs to look at, with the reason."""
    if direction == "rises":
        return "noise", "n* rises with compute; without runs, noise, interference and data cannot be told apart"
    return "updates", "n* does not rise with compute: more updates win"
