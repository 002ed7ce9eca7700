"""What a claim is: a statement from a paper, and what these runs say of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Claim", "Statement", "Verdict"]

Verdict = Literal["holds", "fails", "undecided"]


@dataclass(frozen=True)
class Claim:
    """A claim with its statistic and verdict."""

    code: str
    statement: str
    source: str
    verdict: Verdict
    statistic: dict[str, Any]
    """Named numbers and texts the verdict rests on; `value` is the one that `interval` is about."""
    interval: tuple[float, float] | None
    """95% of `statistic["value"]`."""
    needs: str | None
    """Undecided: the runs that would decide it."""
    runs: tuple[str, ...]
    """The runs it used."""

    def to_json(self) -> dict[str, Any]:
        """As plain data, the keys as here."""
        return asdict(self) | {
            "interval": None if self.interval is None else list(self.interval),
            "runs": list(self.runs),
        }


@dataclass(frozen=True)
class Statement:
    """What a paper says, before any runs are looked at."""

    code: str
    text: str
    source: str

    def judged(
        self,
        verdict: Verdict,
        *,
        statistic: dict[str, Any],
        interval: tuple[float, float] | None,
        runs: tuple[str, ...],
        needs: str | None = None,
        where: str = "",
    ) -> Claim:
        """The claim with what was found; `where` tells one setup from another."""
        code = f"{self.code}/{where}" if where else self.code
        return Claim(code, self.text, self.source, verdict, statistic, interval, needs, runs)

    def lacks(self, needs: str) -> Claim:
        """The claim where the runs that it takes are not there."""
        return Claim(self.code, self.text, self.source, "undecided", {}, None, needs, ())
