"""What a config amounts to, whichever trainer it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from isocompute.trainers.result import Note

__all__ = ["Config", "Odd", "Settings", "Setup"]


@dataclass(frozen=True)
class Config:
    """A config file, read: dotted keys and plain values, whatever the file's own form."""

    settings: dict[str, Any]
    form: str
    """How it was written: overrides, flags, yaml, toml, json, python, log."""
    names: tuple[str, ...] = ()
    """Words that say which trainer it is: modules a script starts, classes a Python file calls."""
    unresolved: tuple[str, ...] = ()
    """Keys whose value depends on something outside the file, such as an unset variable."""
    parents: tuple[str, ...] = ()
    """Configs it builds on that were not found."""
    added: tuple[str, ...] = ()
    """Keys that are meant to be new to the trainer: Hydra's `+key=value`."""

    @property
    def keys(self) -> set[str]:
        """Every key the file sets, known value or not."""
        return {*self.settings, *self.unresolved}


@dataclass(frozen=True)
class Setup:
    """Bp, n, M and the recipe; `None` is unknown. C = Bp · n · M counts rollouts sampled, so M counts batches."""

    trainer: str
    version: str
    problems_per_batch: int | None = None
    rollouts_per_problem: int | None = None
    update_steps: int | None = None
    updates_per_batch: float | None = None
    """Optimiser steps on one batch of rollouts; 1 is on-policy."""
    rollouts_per_update: int | None = None
    """Rollouts that one optimiser step sees: B, unless a batch is split into mini-batches."""
    staleness: int = 0
    """How many updates old a rollout may be that is trained on (asynchronous trainers)."""
    learning_rate: float | None = None
    schedule: str | None = None
    warmup_steps: int | None = None
    """Batches, whatever the trainer's own warm-up counts."""
    kl_coef: float | None = None
    entropy_coef: float | None = None
    loss: str | None = None
    advantage: str | None = None
    aggregation: str | None = None
    clip_low: float | None = None
    clip_high: float | None = None
    ratio_cap: float | None = None
    ratio_anchor: str | None = None
    tis_cap: float | None = None
    zero_variance_filter: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    epsilon: float | None = None
    weight_decay: float | None = None
    grad_clip: float | None = None
    gae_discount: float | None = None
    """This and the next three where the advantage comes from a critic."""
    gae_trace: float | None = None
    critic_learning_rate: float | None = None
    value_clip: float | None = None
    max_prompt_length: int | None = None
    max_response_length: int | None = None
    validation_samples: int | None = None
    seed: int | None = None
    gpus: int | None = None
    micro_batch: int | None = None
    model: str | None = None
    train_file: str | None = None
    val_file: str | None = None
    assumed: tuple[str, ...] = field(default=())
    """Fields that the file does not say: the trainer's defaults, and what it does without an option for it."""

    @property
    def batch_size(self) -> int | None:
        """B = Bp · n."""
        if self.problems_per_batch is None or self.rollouts_per_problem is None:
            return None
        return self.problems_per_batch * self.rollouts_per_problem

    @property
    def compute(self) -> int | None:
        """C = Bp · n · M, in rollouts."""
        if self.batch_size is None or self.update_steps is None:
            return None
        return self.batch_size * self.update_steps

    @property
    def on_policy(self) -> bool | None:
        """Whether every update sees fresh rollouts of the policy it changes."""
        if self.updates_per_batch is None:
            return None
        return self.updates_per_batch == 1 and self.staleness == 0

    @property
    def stated(self) -> Setup:
        """What the file itself says; all else is unknown."""
        unsaid = {f.name: f.default for f in fields(self) if f.name in self.assumed}
        return self.with_values(**unsaid)

    def with_values(self, **values: Any) -> Setup:
        """The same with other values."""
        return replace(self, **values)


Odd = Note
"""Something a reader of a config should know; its code is stable, its message is not."""


class Settings:
    """A config's values over the trainer's defaults, remembering which fields nobody set.

    A key whose value comes from outside the file is unknown, not the default. `names` maps older keys to today's.
    """

    def __init__(self, config: Config, defaults: Mapping[str, Any], names: Mapping[str, str] | None = None) -> None:
        names = names or {}
        outside = {names.get(key, key) for key in config.unresolved}
        older = {names[key]: value for key, value in config.settings.items() if key in names}
        self._given = older | dict(config.settings)
        self._defaults = {key: value for key, value in defaults.items() if key not in outside}
        self.assumed: list[str] = []

    def has(self, *keys: str) -> bool:
        """Whether the file says all of these keys."""
        return all(self._given.get(key) is not None for key in keys)

    def assume(self, *fields: str) -> None:
        """Note fields that do not depend on what the file says."""
        self.assumed += fields

    def get(self, key: str, field_name: str | None = None) -> Any:
        """The value of a key; `field_name` is noted as assumed where it is the default."""
        if key in self._given:
            return self._given[key]
        if field_name is not None:
            self.assumed.append(field_name)
        return self._defaults.get(key)

    def integer(self, key: str, field_name: str | None = None) -> int | None:
        """A whole number, or `None` where it is not one."""
        value = self.number(key, field_name)
        return int(value) if value is not None and value == int(value) else None

    def number(self, key: str, field_name: str | None = None) -> float | None:
        """A finite number, or `None` where it is not one; of several the first (`--flag 4 script.py`)."""
        value = self.get(key, field_name)
        return as_number(value[0] if isinstance(value, list) and value else value)

    def numbers(self, keys: Mapping[str, str]) -> dict[str, Any]:
        """Several fields of a setup, by their keys."""
        return {name: self.number(key, name) for name, key in keys.items()}

    def flag(self, key: str, field_name: str | None = None) -> bool:
        """A truth value."""
        value = self.get(key, field_name)
        return value.strip().lower() in ("true", "1", "yes", "on") if isinstance(value, str) else bool(value)

    def text(self, key: str, field_name: str | None = None) -> str | None:
        """A word, or `None`; a list of files gives the first."""
        value = self.get(key, field_name)
        if isinstance(value, list) and value:
            value = value[0]
        return None if value is None or isinstance(value, dict | list) else str(value)

    def pair(self, key: str, *fields: str) -> tuple[float | None, float | None]:
        """Two numbers, such as Adam's betas; `fields` are assumed where they are the default."""
        if key not in self._given:
            self.assume(*fields)
        value = self.get(key)
        if not isinstance(value, list | tuple) or len(value) != 2:
            return None, None
        return as_number(value[0]), as_number(value[1])


def as_number(value: object) -> float | None:
    """A finite number from a number or its text ('1e-6', '1_000'), else `None`."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value) if isinstance(value, str | int | float) else None
    except (ValueError, OverflowError):
        return None
    return number if number is not None and abs(number) < 1e300 else None
