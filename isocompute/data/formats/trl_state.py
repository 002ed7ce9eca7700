"""TRL (any Hugging Face trainer): `trainer_state.json`, whose `log_history` holds a row every `logging_steps`."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from isocompute.core.errors import InputError
from isocompute.data.logs.base import NO_MATCH, Match
from isocompute.data.logs.collect import Sink
from isocompute.data.logs.literals import as_number
from isocompute.data.logs.source import Log, Sample

__all__ = ["TrlState", "add_history"]


class TrlState:
    """The file of a checkpoint; the last one holds the whole run."""

    name: ClassVar[str] = "trl"
    looks_for: ClassVar[str] = "a JSON object with 'log_history'"

    def sniff(self, sample: Sample) -> Match:
        """An object that begins like a trainer's state."""
        start = sample.head.lstrip()[:1]
        if start == b"{" and b'"log_history"' in sample.head:
            return Match(0.95, 1)
        if (
            start == b"{"
            and b'"global_step"' in sample.head[:4096]
            and b'"best_model_checkpoint"' in sample.head[:4096]
        ):
            return Match(0.9, 1)
        return NO_MATCH

    def read(self, log: Log, sink: Sink) -> None:
        """Each row is a mean over `logging_steps`."""
        try:
            state = json.loads(log.whole())
        except (ValueError, RecursionError) as error:
            raise InputError(f"{log.name}: not a whole JSON file ({error}); was it being written?") from error
        if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
            raise InputError(f"{log.name}: a trainer_state.json needs a list 'log_history'.")
        add_history(state, sink)


def add_history(state: dict[str, Any], sink: Sink) -> None:
    """The rows of a `log_history`, and the settings that a state holds."""
    rows = sink.run()
    for row in state["log_history"]:
        step = as_number(row.get("step")) if isinstance(row, dict) else None
        if step is None or step < 0 or step != int(step):
            rows.skipped_lines += 1
        elif "train_runtime" not in row:  # the summary of the whole training is no point
            rows.add_mapping(step, {k: v for k, v in row.items() if k not in ("step", "total_flos")})
    args = state.get("args")
    rows.found({k: v for k in ("max_steps",) if (v := state.get(k))} | (args if isinstance(args, dict) else {}))
