"""Run folders written while a trainer runs, without a log in between.

    from isocompute.data.live import trl_callback

    trainer = GRPOTrainer(..., callbacks=[trl_callback("runs/32x8")])

`LiveRun` knows no trainer: rows in the trainer's names go in, points in ours come out. For veRL see
`examples/verl_live.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isocompute.core.metric_names import our_names
from isocompute.core.recorder import RunSettings, RunWriter
from isocompute.core.run import NON_FINITE, marks_as_json
from isocompute.data.config import read_run_config
from isocompute.data.rows import NUMBERS_BEFORE
from isocompute.data.source import as_float, flatten


class LiveRun:
    """Writes one run folder as rows arrive; an existing folder is continued."""

    def __init__(self, folder: str | Path, *, engine: str, config: Mapping[str, Any]) -> None:
        self._config = read_run_config(flatten(dict(config), separator="."), trainer=engine)
        self._settings = RunSettings.model_validate({"engine": engine} | self._config.settings)
        self._writer = RunWriter(folder, self._settings)
        self._metrics: dict[str, float] = {}
        self._numbers: dict[str, float] = {}
        """How often each metric was finite before it was not; -inf if its NaN means 'not measured'."""
        self._step: int | None = None
        self._written = True

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add what a trainer logs for a step; the rows of a step make one point."""
        if step != self._step:
            self.flush()
            self._step, self._metrics = step, {}
        self._metrics |= {str(k): n for k, v in metrics.items() if (n := as_float(_scalar(v))) is not None}
        self._written = False

    def flush(self) -> None:
        """Write the current point; if a step has several lines, the last one counts."""
        if self._written or self._step is None:
            return
        self._written = True
        finite = {name: value for name, value in self._metrics.items() if math.isfinite(value)}
        seen = [name for name in self._metrics if name in finite or self._numbers.get(name, 0) > 0]
        names = our_names(seen, samples=self._config.evaluation_samples)
        marks = {
            names.ours.get(name, name): value for name, value in self._metrics.items() if self._is_non_finite(name)
        }
        if not finite and not marks:
            return
        point: dict[str, Any] = {"step": self._step}
        bp, n = self._settings.problems_per_batch, self._settings.rollouts_per_problem
        if bp and n:
            rollouts = self._step * bp * n / self._config.steps_per_batch
            point["rollouts"] = int(rollouts) if rollouts.denominator == 1 else float(rollouts)
        point |= {names.ours.get(name, name): value for name, value in finite.items()}
        for metric, subsets in names.means.items():
            if all(subset in point for subset in subsets):
                point.setdefault(metric, sum(point[subset] for subset in subsets) / len(subsets))
        if marks:
            point[NON_FINITE] = marks_as_json(marks)
        self._writer.append(point)

    def _is_non_finite(self, name: str) -> bool:
        """Whether a metric that was measured has become non-finite, by the same rule as imports (data/rows.py)."""
        before = self._numbers.get(name, 0)
        if math.isfinite(self._metrics[name]):
            self._numbers[name] = before + 1
            return False
        if before < NUMBERS_BEFORE:
            self._numbers[name] = -math.inf
        return before >= NUMBERS_BEFORE

    def close(self) -> None:
        """Write the last point and close the run folder."""
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
            """Add every row that the trainer logs, except its closing summary."""
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
            """Close the run folder."""
            if self.run is not None:
                self.run.close()
                self.run = None

    return IsocomputeCallback()


def _scalar(value: Any) -> Any:
    """The number in a numpy or torch scalar; None for an array of several."""
    item = getattr(value, "item", None)
    if not callable(item):
        return value
    try:
        return item()
    except (TypeError, ValueError, RuntimeError):
        return None
