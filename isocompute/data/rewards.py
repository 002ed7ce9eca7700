"""Which metric is meant where none is named: held-out problems before training's, averages before the rest."""

from __future__ import annotations

import re

__all__ = ["REWARDS", "TRAINED", "rank"]

TRAINED = "train/avg"
REWARDS = (
    r"avg@\d+",
    r"best@\d+",
    r"worst@\d+",
    r"(avg|best|worst)@\d+/.+",
    "value",
    r"(.*/)?((final|best|last)_)?(val|eval)\w*/?.*(reward|acc|score).*",
    "reward",
    TRAINED,
)
"""Metrics that are rewards, the one that is meant first."""


def rank(name: str) -> int:
    """A metric's place among the rewards; their number where it is none."""
    return next((at for at, pattern in enumerate(REWARDS) if re.fullmatch(pattern, name)), len(REWARDS))
