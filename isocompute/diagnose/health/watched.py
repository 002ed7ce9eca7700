"""What the checks look at, a run with its rewards, where they were best, and its pass rates; and what they find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Ints
from isocompute.core.run import Run
from isocompute.data.pass_rates import PassRates
from isocompute.diagnose.health.model import Severity
from isocompute.diagnose.health.rewards import Reward

__all__ = ["Found", "Look", "Watched", "number_at"]

Found = tuple[int, Severity, str]
"""Row, severity and evidence of a finding."""


@dataclass(frozen=True)
class Watched:
    """A run with what several checks read."""

    run: Run
    numbers: tuple[str, ...]
    """Metrics that it logs and that must be numbers: rewards, loss, norm of the gradient, entropy."""
    validation: Reward | None
    beside: tuple[Reward, ...]
    """Rewards on further held-out sets."""
    train: Reward | None
    record_R: Ints
    """For every row, the row at which the reward last set a record."""
    held_R: Ints
    """For every row, the row at which it last held its best level."""
    rates: dict[int, PassRates]
    """How pass rates are spread over training problems, by row; empty where that is not known."""

    @property
    def rewards(self) -> tuple[Reward, ...]:
        """Those that the run is judged by, held-out first."""
        return tuple(r for r in (self.validation, self.train) if r is not None)

    @property
    def held_out(self) -> tuple[Reward, ...]:
        """Those of every held-out set, the one that the run is judged by first."""
        return (*((self.validation,) if self.validation is not None else ()), *self.beside)

    def step(self, row: int) -> str:
        """A point in words."""
        number = number_at(self.run, "step", row)
        return f"point {row + 1}" if number is None else f"step {number:.0f}"


Look = Callable[[Watched], list[Found] | str | None]
"""What is found; None where what the check needs is not logged, and in words where what is logged cannot be read."""


def number_at(run: Run, column: str, row: int) -> float | None:
    """A finite number of a column, or None."""
    series = run.points.get_column(column, default=None)
    if series is None or not series.dtype.is_numeric():
        return None
    value = series[row]
    return None if value is None or not np.isfinite(value) else float(value)
