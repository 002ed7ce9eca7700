"""Run folders written while a trainer runs, for those who want no log in between.

    from isocompute.data.logs.live import trl_callback

    trainer = GRPOTrainer(..., callbacks=[trl_callback("runs/32x8")])

`LiveRun` is the part that knows no trainer: rows in the trainer's names go in, points in ours come out. For veRL see
`examples/verl_live.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isocompute.core.run import RunSettings
from isocompute.data.finite import NON_FINITE, as_text
from isocompute.data.folder import RunWriter
from isocompute.data.logs.literals import as_float, scalars
from isocompute.data.logs.measured import NUMBERS_BEFORE
from isocompute.data.logs.names import our_names
from isocompute.data.logs.settings import evaluation_samples, from_config, in_batches, steps_per_batch

__all__ = ["LiveRun", "trl_callback"]


class LiveRun:
    """Writes one run folder as rows arrive; a folder that is there already is gone on with."""

    def __init__(self, folder: str | Path, *, engine: str, config: Mapping[str, Any]) -> None:
        flat = scalars(dict(config), separator=".")
        found, _ = from_config(flat, trainer=engine)
        self._per_batch = steps_per_batch(flat)
        self._samples = evaluation_samples(flat)
        self._settings = RunSettings.model_validate({"engine": engine} | in_batches(found, self._per_batch))
        self._writer = RunWriter(folder, self._settings)
        self._held: dict[str, float] = {}
        self._numbers: dict[str, float] = {}
        """How often a metric was a number before it was none; -inf where it is not measured."""
        self._step: int | None = None
        self._written = True

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Take in what a trainer logs for a step; a step's rows make one point."""
        if step != self._step:
            self.flush()
            self._step, self._held = step, {}
        self._held |= {str(k): n for k, v in metrics.items() if (n := as_float(_plain(v))) is not None}
        self._written = False

    def flush(self) -> None:
        """Write the point under way, all of it: of several lines of a step the last one stands."""
        if self._written or self._step is None:
            return
        self._written = True
        held = {name: value for name, value in self._held.items() if math.isfinite(value)}
        seen = [name for name in self._held if name in held or self._numbers.get(name, 0) > 0]
        names = our_names(seen, samples=self._samples)
        odd = {names.ours.get(name, name): self._held[name] for name in self._held if self._is_news(name)}
        if not held and not odd:
            return
        point: dict[str, Any] = {"step": self._step}
        bp, n = self._settings.problems_per_batch, self._settings.rollouts_per_problem
        if bp and n:
            rollouts = self._step * bp * n / self._per_batch
            point["rollouts"] = int(rollouts) if rollouts.denominator == 1 else float(rollouts)
        point |= {names.ours.get(name, name): value for name, value in held.items()}
        for metric, parts in names.means.items():
            if all(part in point for part in parts):
                point.setdefault(metric, sum(point[part] for part in parts) / len(parts))
        if odd:
            point[NON_FINITE] = as_text(odd)
        self._writer.append(point)

    def _is_news(self, name: str) -> bool:
        """Whether a metric is not finite any more, as `import` decides it (logs/measured.py)."""
        before = self._numbers.get(name, 0)
        if math.isfinite(self._held[name]):
            self._numbers[name] = before + 1
            return False
        if before < NUMBERS_BEFORE:
            self._numbers[name] = -math.inf
        return before >= NUMBERS_BEFORE

    def close(self) -> None:
        """Write what is left."""
        self.flush()
        self._writer.close()


def trl_callback(folder: str | Path) -> Any:
    """A callback for `GRPOTrainer` (and its relatives) that writes a run folder as the trainer logs."""
    from transformers import TrainerCallback

    class IsocomputeCallback(TrainerCallback):
        """Writes on the first process only."""

        def __init__(self) -> None:
            self.run: LiveRun | None = None

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002 - transformers' names
            """Every row that the trainer logs, but its closing summary."""
            if not state.is_world_process_zero or not logs or "train_runtime" in logs:
                return
            if self.run is None:
                config = {**args.to_dict(), "world_size": args.world_size}
                if (state.max_steps or 0) > 0:
                    config["max_steps"] = state.max_steps
                self.run = LiveRun(folder, engine="trl", config=config)
            self.run.log(state.global_step, {k: v for k, v in logs.items() if k != "step"})
            if any(key.startswith("eval_") for key in logs):
                self.run.flush()

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - transformers' names
            """The last point."""
            if self.run is not None:
                self.run.close()
                self.run = None

    return IsocomputeCallback()


def _plain(value: Any) -> Any:
    """The number in a numpy or torch scalar; None where it holds several."""
    item = getattr(value, "item", None)
    if not callable(item):
        return value
    try:
        return item()
    except (TypeError, ValueError, RuntimeError):
        return None
