"""How the app was told to read its files: what they do not say, and which of their runs are meant."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isocompute.data import RunSet

__all__ = ["Reading"]


@dataclass(frozen=True)
class Reading:
    """The options that `isocompute ui` shares with the commands that read runs."""

    where: Mapping[str, str] = field(default_factory=dict)
    problems_per_batch: int | None = None
    rollouts_per_problem: int | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    @property
    def chooses(self) -> bool:
        """Whether it says which runs are meant."""
        return bool(self.where or self.without)

    @property
    def of_one(self) -> Reading:
        """How to read a run that is named: which others are left out does not matter."""
        return replace(self, without=())

    @property
    def plain(self) -> bool:
        """Whether nothing was told: the files are read as they are."""
        return not self.options

    @property
    def options(self) -> dict[str, str | int | list[str]]:
        """As a command takes them, without those that were not given.

        >>> Reading(where={"set": "easy"}, rollouts_per_problem=8).options
        {'where': 'set=easy', 'rollouts_per_problem': 8}
        """
        told = {
            "columns": _pairs(self.columns),
            "where": _pairs(self.where),
            "without": list(self.without) or None,
            "problems_per_batch": self.problems_per_batch,
            "rollouts_per_problem": self.rollouts_per_problem,
        }
        return {name: value for name, value in told.items() if value is not None}

    def load(self, address: str) -> RunSet:
        """The runs at an address, read so."""
        from isocompute.data import load

        return load(
            address,
            columns=self.columns,
            where=self.where,
            without=self.without,
            problems_per_batch=self.problems_per_batch,
            rollouts_per_problem=self.rollouts_per_problem,
        )

    def pack(self) -> str:
        """As text, for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def unpack(cls, text: str) -> Reading:
        """What was packed."""
        told = json.loads(text)
        return cls(**told | {"without": tuple(told["without"])})


def _pairs(told: Mapping[str, str]) -> str | None:
    return ",".join(f"{key}={value}" for key, value in told.items()) or None
