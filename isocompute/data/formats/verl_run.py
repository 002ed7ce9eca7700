"""The run that a veRL console tells of: its config, its last attempt, the base model's validation, what steps count.

veRL before 01/2025 counts its updates from 0 and logs one, and a validation after it, under the number it began with:
`step:9` is the end of the tenth batch. Its first versions print the base model's validation and log it nowhere.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

from isocompute.core.formatting import plural
from isocompute.core.run import RunWarning
from isocompute.data.logs.collect import Rows, Sink
from isocompute.data.logs.dumps import ConfigWatch
from isocompute.data.logs.literals import as_float
from isocompute.data.logs.names import is_validation
from isocompute.data.logs.settings import from_config
from isocompute.data.logs.source import strip

__all__ = ["VerlRun"]

_TOTAL = re.compile(rb"Total training steps: (\d{1,12})")
_INITIAL = b"Initial validation metrics: {"
_PAIR = re.compile(r"'([^']{1,300})': *([^\s,}]{1,40})")
_SEAM = re.compile(r'"\s*"')
"""Where `pprint` has cut a long text in two."""
_LONGEST = 20_000
_TRAINS = ("actor/", "critic/")
"""How keys begin that only an update has."""
_COUNTED_FROM_0 = "steps count finished batches: one more than the number this version of veRL prints"

_CONFIG = b"actor_rollout_ref"
"""In the first line of a config, and in every command line."""
_FEWEST = 3
"""Updates of an attempt that stands for the run, where one before it has more."""
_BATCH = {"problems_per_batch": "Bp", "rollouts_per_problem": "n"}

Pairs = tuple[tuple[str, ...], list[float]]


class VerlRun:
    """Fed with the lines of a console in their order, it fills the rows of its run.

    A console may hold several attempts at it: where updates begin again at the first one, what came before is left out
    together with its config. Where they go on from a later one, the run was resumed.
    """

    def __init__(self, sink: Sink, log: str) -> None:
        self._sink = sink
        self._log = log
        self._rows = sink.run()
        self._found: Rows | None = self._rows
        """Takes in the config that was printed since the last update; None where there is none."""
        self._watch: ConfigWatch | None = ConfigWatch(self._rows)
        self._initial: str | None = None
        """The printed validation of the base model, as far as it was read."""
        self._held: list[tuple[int, Pairs]] = []
        """Validations since the last update: of this attempt, or of one that begins."""
        self._kinds: dict[tuple[str, ...], bool] = {}
        """Whether rows of these names are an attempt's updates, as the first one is."""
        self._first: int | None = None
        self._last = 0
        self._ahead = 0
        """By how much steps are more than their number."""
        self._attempts = self._left = 0
        """Attempts and points that were left out."""
        self._earlier: Rows | None = None
        """The last attempt before this one that had more than begun, or the first."""
        self._updates = 0
        """Of this attempt."""

    def line(self, line: bytes) -> None:
        """Any line that is no step's: a config and what follows it up to the next step are looked at."""
        if self._watch is None:
            if _CONFIG not in line:
                return
            self._found = Rows() if self._found is None else self._found
            self._watch = ConfigWatch(self._found)
        assert self._found is not None
        self._watch.feed(line)
        if b"Total training steps" in line:
            _total(line, self._found)
        if _INITIAL in line:
            self._initial = strip(line).split(_INITIAL, 1)[1].decode(errors="replace")
        elif self._initial is not None and "}" not in self._initial and len(self._initial) < _LONGEST:
            self._initial += strip(line).decode(errors="replace")

    def row(self, step: int, pairs: Pairs | None) -> None:
        """The line of a step; None for what it says where that cannot be read."""
        self._watch = None
        if pairs is None:
            self._rows.skipped_lines += 1
        elif all(map(is_validation, pairs[0])):
            self._held.append((step, pairs))  # before training or after it: as many batches are over
        else:
            if self._is_update(pairs[0]):
                self._update(step)
            self.end()
            self._rows.add(step + self._ahead, *pairs)

    def finish(self) -> None:
        """The log is over. A last attempt that has only begun does not stand for a longer one before it."""
        self.end()
        if self._earlier is not None and self._updates < _FEWEST and self._earlier.count_steps() > _FEWEST:
            points = self._rows.count_steps()
            self._earlier.notes.append(
                f"{plural(points, 'point')} of a last attempt in the same log left out: it has only begun"
            )
            self._sink.runs[self._earlier.name] = self._earlier

    def end(self) -> None:
        """Nothing more is to come of what is held."""
        for step, pairs in self._held:
            self._rows.add(step, *pairs)
        self._held = []

    def _is_update(self, names: tuple[str, ...]) -> bool:
        """Whether a row is one of training, with half of what the first one says."""
        known = self._kinds.get(names)
        if known is None:
            first = next(iter(self._kinds), names)
            known = any(name.startswith(_TRAINS) for name in names) and 2 * len({*first} & {*names}) >= len(first)
            if known or self._kinds:
                self._kinds[names] = known
        return known

    def _update(self, step: int) -> None:
        """An update is about to be taken in: the first one, one more, or one that goes back."""
        if self._first is None:
            self._begin(step)
        elif step <= self._first and (self._last > self._first or self._found is not None):
            self._begin_again(step)
        if self._found is not None and self._found is not self._rows:
            self._resume(step, self._found)
        self._updates += 1
        self._last, self._found, self._initial = step, None, None

    def _begin(self, step: int) -> None:
        """The first update of an attempt, whose number says what steps count."""
        self._first = step
        self._ahead = 0 if step > 0 else 1
        if self._ahead:
            self._rows.notes.append(_COUNTED_FROM_0)
            if not self._held:
                self._rows.add_mapping(0, _validation(self._initial or ""))

    def _begin_again(self, step: int) -> None:
        """Leave all that came before; its config stands where this attempt prints none that tells its batch."""
        later = [held for held in self._held if held[0] <= step]
        self._held = [held for held in self._held if held[0] > step]
        self.end()
        self._held = later
        before, own = self._rows, Rows() if self._found is None else self._found
        if self._earlier is None or self._updates >= _FEWEST:
            self._earlier = before
        self._updates = 0
        self._attempts += 1
        self._left += before.count_steps()
        self._rows = self._sink.begin_again(before.name)
        self._rows.skipped_lines = before.skipped_lines
        self._rows.config, self._rows.settings = own.config, own.settings
        if len(_batch(own)) < len(_BATCH):
            self._rows.found(before.config)
            self._rows.settings = {**before.settings, **own.settings}
        attempts = "an earlier attempt" if self._attempts == 1 else f"{self._attempts} earlier attempts"
        points = plural(self._left, "point")
        self._rows.notes.append(f"{points} of {attempts} in the same log left out: the run begins again")
        self._found = None
        self._begin(step)

    def _resume(self, step: int, found: Rows) -> None:
        """A config in the middle of a run: it fills in for one that is not there, and is compared with one that is."""
        if not self._rows.config:
            self._rows.found(found.config)
            return
        was, now = _batch(self._rows), _batch(found)
        both = [key for key in _BATCH if key in was and key in now]
        changed = [f"{_BATCH[key]} = {now[key]} (it was {was[key]})" for key in both if now[key] != was[key]]
        if changed:
            warnings.warn(
                f"{self._log}: the run goes on at step {step} with {' and '.join(changed)}; all of its rollouts are "
                "counted with what it began with. Split the log there to import the parts.",
                RunWarning,
                stacklevel=2,
            )


def _batch(rows: Rows) -> dict[str, Any]:
    settings, _ = from_config(rows.config, trainer="verl")
    return {key: settings[key] for key in _BATCH if key in settings}


def _validation(text: str) -> dict[str, float]:
    """The numbers of a dict as `pprint` writes a text of it."""
    found = _PAIR.findall(_SEAM.sub("", text.partition("}")[0]))
    return {key: number for key, value in found if (number := as_float(value)) is not None}


def _total(line: bytes, rows: Rows) -> None:
    total = _TOTAL.search(line)
    if total and int(total[1]) > 0:
        rows.settings.setdefault("update_steps", int(total[1]))
