"""What a health check says: a verdict, the findings behind it, and which checks could run at all."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Check", "Finding", "Health", "Severity", "Verdict"]

Severity = Literal["warning", "problem"]
Verdict = Literal["healthy", "unknown", "warning", "problem"]
"""From best to worst; `unknown` is a run that no check could say anything of."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a run, from a point of its training on."""

    code: str
    severity: Severity
    since_step: int | None
    """The point at which it showed: what came later was not needed to see it."""
    since_rollouts: float | None
    evidence: str
    advice: str
    source: str
    """Where the advice comes from."""

    def to_json(self) -> dict[str, Any]:
        """As plain data, the keys as here."""
        return asdict(self)


@dataclass(frozen=True)
class Check:
    """One check: which finding it looks for, on which metrics, and why it could not run where it could not."""

    code: str
    metrics: tuple[str, ...]
    ran: bool
    needs: str | None = None
    """What to log for it to run, and how many points of it; None where it ran."""


@dataclass(frozen=True)
class Health:
    """A run's health."""

    run: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    """In the order in which they showed."""
    checks: tuple[Check, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain data: `run`, `verdict`, `findings`, `checks[{code, metrics, ran, needs}]`."""
        return {
            "run": self.run,
            "verdict": self.verdict,
            "findings": [finding.to_json() for finding in self.findings],
            "checks": [asdict(check) | {"metrics": list(check.metrics)} for check in self.checks],
        }
