"""The run that a veRL console tells of: its config, the base model's validation, and what its steps count.

veRL before 01/2025 counts its updates from 0 and logs one, and a validation after it, under the number it began with:
`step:9` is the end of the tenth batch. Its first versions print the base model's validation and log it nowhere.
"""

from __future__ import annotations

import re

from isocompute.logs.collect import Rows, Sink
from isocompute.logs.dumps import ConfigWatch
from isocompute.logs.literals import as_float
from isocompute.logs.names import is_validation
from isocompute.logs.source import strip

__all__ = ["VerlRun"]

_TOTAL = re.compile(rb"Total training steps: (\d{1,12})")
_INITIAL = b"Initial validation metrics: {"
_PAIR = re.compile(r"'([^']{1,300})': *([^\s,}]{1,40})")
_SEAM = re.compile(r'"\s*"')
"""Where `pprint` has cut a long text in two."""
_LONGEST = 20_000
_TRAINS = ("actor/", "critic/")
"""How keys begin that only an update has."""
_COUNTED_FROM_0 = "steps are batches that are over, one more than this veRL prints"

Pairs = tuple[tuple[str, ...], list[float]]


class VerlRun:
    """Fed with the lines of a console in their order, it fills the rows of its run."""

    def __init__(self, sink: Sink) -> None:
        self._rows = sink.run()
        self._watch: ConfigWatch | None = ConfigWatch(self._rows)
        self._initial: str | None = None
        """The printed validation of the base model, as far as it was read."""
        self._ahead: int | None = None
        """By how much steps are more than their number; None before the first row of training."""

    def line(self, line: bytes) -> None:
        """Any line that is no step's: those before the first step are looked at."""
        if self._watch is None:
            return
        self._watch.feed(line)
        if b"Total training steps" in line:
            _total(line, self._rows)
        if _INITIAL in line:
            self._initial = strip(line).split(_INITIAL, 1)[1].decode(errors="replace")
        elif self._initial is not None and "}" not in self._initial and len(self._initial) < _LONGEST:
            self._initial += strip(line).decode(errors="replace")

    def row(self, step: int, pairs: Pairs | None) -> None:
        """The line of a step; None for what it says where that cannot be read."""
        self._watch = None
        if pairs is None:
            self._rows.skipped_lines += 1
            return
        if all(map(is_validation, pairs[0])):
            self._rows.add(step, *pairs)  # before training or after it: as many batches are over
            return
        if self._ahead is None and any(name.startswith(_TRAINS) for name in pairs[0]):
            self._ahead = self._begin(step)
        self._rows.add(step + (self._ahead or 0), *pairs)

    def _begin(self, step: int) -> int:
        """By how much steps are more than their number, now that the first of training is there."""
        if step > 0:
            return 0
        self._rows.notes.append(_COUNTED_FROM_0)
        if not len(self._rows):
            self._rows.add_mapping(0, _validation(self._initial or ""))
        return 1


def _validation(text: str) -> dict[str, float]:
    """The numbers of a dict as `pprint` writes a text of it."""
    found = _PAIR.findall(_SEAM.sub("", text.partition("}")[0]))
    return {key: number for key, value in found if (number := as_float(value)) is not None}


def _total(line: bytes, rows: Rows) -> None:
    total = _TOTAL.search(line)
    if total and int(total[1]) > 0:
        rows.settings.setdefault("update_steps", int(total[1]))
