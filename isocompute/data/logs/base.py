"""What a reader of a format is: a look at a sample, and the reading itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from isocompute.data.logs.collect import Sink
from isocompute.data.logs.source import Log, Sample

__all__ = ["NO_MATCH", "Match", "Reader"]

CLEAR = 0.8


@dataclass(frozen=True)
class Match:
    """How well a sample fits a format."""

    score: float
    """0 not at all; up to .7 it could be read so; from .8 on it is this format and no other."""
    rows: int = 0
    """Rows of metrics seen in the sample, to weigh two formats in one file."""
    why: str = ""
    """Where the score is low: what is missing."""
    other: bool = False
    """Certainly no log, and `why` says what it is: no other format need be named."""

    @property
    def clear(self) -> bool:
        """Whether this can be nothing else."""
        return self.score >= CLEAR


NO_MATCH = Match(0.0)


class Reader(Protocol):
    """One format."""

    name: ClassVar[str]
    """For `--format` and the report."""
    looks_for: ClassVar[str]
    """What its files show, for the error about a file that nobody reads."""

    def sniff(self, sample: Sample) -> Match:
        """Judge a sample: cheap, and never an error."""
        ...

    def read(self, log: Log, sink: Sink) -> None:
        """Put every row of the log into the sink."""
        ...
