"""NeMo-RL's console: `===== Step N/M =====`, then bulleted results; validation in a block of its own.

Its TensorBoard files have more metrics and are read by `TensorBoard`.
"""

from __future__ import annotations

import re
from typing import ClassVar

from isocompute.data.rows import NO_MATCH, Match, Rows, Sink
from isocompute.data.source import Log, Sample, as_number
from isocompute.trainers.config_files import ConfigWatch, strip

_STEP = re.compile(rb"(?<!=)={5,} *Step (\d{1,12})/(\d{1,12}) *={5,}")
_EPOCH = re.compile(rb"(?<!=)={5,} *Epoch (\d{1,9})/\d+ *={5,}")
_VALIDATION_AT = re.compile(rb"Starting validation at step (\d{1,12})")
_BULLET = re.compile(
    "• (?P<key>[A-Za-z][\\w /().-]{0,60}?): (?P<value>[-+]?[\\d.]+(?:[eE][-+]?\\d+)?)(?=[s%\\s]|$)".encode()
)
_TRAINING = {
    "Loss": "train/loss",
    "Avg Reward": "train/reward",
    "Avg Total Reward": "train/reward",
    "Avg Filtered Reward": "train/filtered_reward",
    "Mean Generation Length": "train/mean_gen_tokens_per_sample",
    "Generation KL Error": "train/gen_kl_error",
    "Total step time": "timing/train/total_step_time",
}
_HELD_OUT = {
    "Accuracy": "validation/accuracy",
    "Average response length": "validation/avg_length",
    "Samples processed": "validation/samples",
    "Total validation time": "timing/validation/total_validation_time",
}
_DOT = "•".encode()


class NemoRL:
    """The console of `run_grpo.py`."""

    name: ClassVar[str] = "nemo-rl"
    marks: ClassVar[tuple[bytes, ...]] = (b"Step ",)
    looks_for: ClassVar[str] = "'===== Step N/M =====' and 'Training Results:' with '• Avg Reward: …'"

    def sniff(self, sample: Sample) -> Match:
        """Count headers of steps, and results."""
        steps = sum(1 for line in sample.lines if b"Step " in line and _STEP.search(line))
        results = sum(1 for line in sample.lines if b"Avg " in line and b"Reward:" in line and _DOT in line)
        if steps and results:
            return Match(0.95, results)
        return Match(0.5, steps, "steps without 'Avg Reward'") if steps else NO_MATCH

    def read(self, log: Log, sink: Sink) -> None:
        """The bullets of a step are one row; those of a validation are another."""
        rows = sink.run()
        watch: ConfigWatch | None = ConfigWatch(rows)
        block = _Block(rows)
        for line in log.lines():
            if watch is not None:
                watch.feed(line)
            text = strip(line)
            if b"Step " in text and (step := _STEP.search(text)):
                watch = None
                block.step(int(step[1]), int(step[2]))
            elif b"Epoch " in text and (epoch := _EPOCH.search(text)):
                block.epoch(int(epoch[1]))
            elif b"alidation" in text and (at := _VALIDATION_AT.search(text)):
                block.validation(int(at[1]))
            elif b"Validation Results" in text:
                block.held_out = True
            elif b"Training Results" in text:
                block.held_out = False
            elif _DOT in text and (bullet := _BULLET.search(text)):
                value = as_number(bullet["value"].decode())
                if value is not None:
                    block.bullet(bullet["key"].decode(errors="replace"), value)
        block.flush()


class _Block:
    """Collects the results of one step and of its validation."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._now: int | None = None
        self._at: int | None = None
        self._epoch = 1
        self._training: dict[str, float] = {}
        self._validation: dict[str, float] = {}
        self.held_out = False

    def step(self, number: int, total: int) -> None:
        """The header of a step, which counts within its epoch of `total` steps."""
        self.flush()
        self._now = (self._epoch - 1) * total + number

    def epoch(self, number: int) -> None:
        """The header of an epoch, the first being 1."""
        self.flush()
        self._epoch = max(1, number)

    def validation(self, step: int) -> None:
        """A validation begins."""
        self._at = step
        self.held_out = True

    def bullet(self, key: str, value: float) -> None:
        """A bulleted result."""
        if self.held_out and key in _HELD_OUT:
            self._validation[_HELD_OUT[key]] = value
        elif key in _TRAINING:
            self._training[_TRAINING[key]] = value

    def flush(self) -> None:
        """Add what was collected as rows."""
        if self._training and self._now is not None:
            self._rows.add(self._now, tuple(self._training), list(self._training.values()))
        if self._validation:
            step = self._at if self._at is not None else self._now or 0
            self._rows.add(step, tuple(self._validation), list(self._validation.values()))
        self._training, self._validation, self.held_out, self._at = {}, {}, False, None
