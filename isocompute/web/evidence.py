"""Evidence for figures that need not fit again what the app has fitted."""

from __future__ import annotations

from isocompute.data import RunSet
from isocompute.data.conditions import Condition
from isocompute.law import Law
from isocompute.report.evidence import Evidence

__all__ = ["KnownEvidence"]


class KnownEvidence(Evidence):
    """Evidence of runs whose law may be known: that of all of them, where they belong together and all have curves."""

    known: Law | None = None

    @classmethod
    def over(cls, runs: RunSet, *, metric: str | None, unit: str | None, replicates: int) -> KnownEvidence:
        """Of loaded runs, with no law known yet."""
        made = cls.of(runs, metric=metric, unit=unit, replicates=replicates)
        assert isinstance(made, cls)
        return made

    def law(self, condition: Condition, *, unit: str | None = None) -> Law:
        """The law of a condition's runs."""
        if self.known is not None and unit in (None, self.unit) and len(self.conditions) == 1 and not self.left_out:
            return self.known
        return super().law(condition, unit=unit)
