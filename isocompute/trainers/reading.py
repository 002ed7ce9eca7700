"""A trainer's config as a `TrainerSetup`, which holds allocation and recipe for every trainer alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from isocompute.trainers.config_files import ConfigFile

NO_CLIP = 1e9
"""A gradient norm that is never reached: trainers have different values for 'do not clip'."""
_CRITIC = ("gae_discount", "gae_lambda", "critic_learning_rate", "value_clip")
"""Fields that only a setup with a critic has."""
FILE_NAMES = ("model", "train_file", "val_file")
"""Fields that do not affect any number of a setup."""


@dataclass(frozen=True)
class Note:
    """Something to know about a config; the code is stable, the message is not."""

    code: str
    message: str


@dataclass(frozen=True)
class TrainerSetup:
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
    """The maximum age in updates of a rollout that is trained on (asynchronous trainers)."""
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
    ratio_reference: str | None = None
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
    """Like the next three fields, set only if the advantage comes from a critic."""
    gae_lambda: float | None = None
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
    assumed: tuple[str, ...] = ()
    """Fields that are not in the file: the trainer's defaults, and what it does without an option for it."""

    @property
    def batch_size(self) -> int | None:
        """B = Bp · n."""
        return times(self.problems_per_batch, self.rollouts_per_problem)

    @property
    def compute(self) -> int | None:
        """C = Bp · n · M, in rollouts."""
        return times(self.batch_size, self.update_steps)

    @property
    def on_policy(self) -> bool | None:
        """Whether every update sees fresh rollouts of the policy it changes."""
        if self.updates_per_batch is None:
            return None
        return self.updates_per_batch == 1 and self.staleness == 0

    @property
    def without_defaults(self) -> TrainerSetup:
        """What the file itself sets; all else is unknown."""
        unknown: dict[str, Any] = {f.name: f.default for f in fields(self) if f.name in self.assumed}
        return replace(self, **unknown)


_KINDS = {f.name: str(f.type).partition(" ")[0] for f in fields(TrainerSetup)}
"""int, float or str of each field."""


class Keys:
    """A trainer's keys, each spelled once: `our_name=key` or `our_name=(key, default or ..., *older_spellings)`.

    A name that is a field of `TrainerSetup` is read and written as it is; a trainer's module computes with the others.
    Keys that are only written are spelled in `export`.
    """

    def __init__(self, **keys: str | tuple[Any, ...]) -> None:
        split = {name: (key,) if isinstance(key, str) else key for name, key in keys.items()}
        self.names = {name: str(key[0]) for name, key in split.items()}
        self.defaults = {str(key[0]): key[1] for key in split.values() if len(key) > 1 and key[1] is not ...}
        self.spellings = {name: (str(key[0]), *key[2:]) for name, key in split.items()}
        """The key of each name, then its older spellings: of other versions, or outside of its table."""

    def __getitem__(self, name: str) -> str:
        return self.names[name]

    def all(self, *, but: Iterable[str] = ()) -> set[str]:
        """Every spelling of every key."""
        return {key for name, spellings in self.spellings.items() if name not in but for key in spellings}

    def write(self, values: Mapping[str, Any], **computed: Any) -> dict[str, Any]:
        """Values under the trainer's own keys; names among `values` that it has no key for are left out."""
        known = {name: value for name, value in values.items() if name in self.names}
        wanted = {self.names[name]: value for name, value in (known | computed).items()}
        return {key: wanted[key] for key in self.names.values() if key in wanted}


class ConfigReader:
    """A config's values over the trainer's defaults; records which fields of the setup come from defaults.

    A key whose value comes from outside the file is unknown and has no default.
    """

    def __init__(self, file: ConfigFile, keys: Keys, *, has_defaults: bool = True) -> None:
        self._keys = keys
        self._given: dict[str, Any] = {}
        for name, spellings in keys.spellings.items():
            found = [file.settings[key] for key in spellings if key in file.settings]
            if found:
                self._given[name] = next((value for value in found if value is not None), None)
        unknown = set(file.unresolved)
        self._defaults = {
            name: keys.defaults.get(key)
            for name, key in keys.names.items()
            if has_defaults and not unknown.intersection(keys.spellings[name])
        }
        self.assumed: list[str] = []

    def has(self, *names: str) -> bool:
        """Whether the file sets all of these."""
        return all(self._given.get(name) is not None for name in names)

    def assume(self, *fields: str) -> None:
        """Record fields of the setup that the file does not determine."""
        self.assumed += fields

    def get(self, name: str, *fields: str) -> Any:
        """A value; `fields` of the setup are recorded as assumed if it is the default."""
        if name in self._given:
            return self._given[name]
        self.assume(*fields)
        return self._defaults.get(name)

    def integer(self, name: str, *fields: str) -> int | None:
        """A whole number, or `None` where it is not one."""
        value = self.number(name, *fields)
        return int(value) if value is not None and value == int(value) else None

    def number(self, name: str, *fields: str) -> float | None:
        """A finite number, or `None` where it is not one; of several the first (`--flag 4 script.py`)."""
        value = self.get(name, *fields)
        return as_number(value[0] if isinstance(value, list) and value else value)

    def flag(self, name: str, *fields: str) -> bool:
        """A truth value."""
        value = self.get(name, *fields)
        return value.strip().lower() in ("true", "1", "yes", "on") if isinstance(value, str) else bool(value)

    def text(self, name: str, *fields: str) -> str | None:
        """A word, or `None`; a list of files gives the first."""
        value = self.get(name, *fields)
        if isinstance(value, list) and value:
            value = value[0]
        return None if value is None or isinstance(value, dict | list) else str(value)

    def pair(self, name: str, *fields: str) -> tuple[float | None, float | None]:
        """Two numbers, such as Adam's betas."""
        value = self.get(name, *fields)
        if not isinstance(value, list | tuple) or len(value) != 2:
            return None, None
        return as_number(value[0]), as_number(value[1])

    def gpus(self, given: int | None) -> int:
        """GPUs of all nodes; a number that the user gives overrides the file."""
        return given or (self.integer("nodes") or 1) * (self.integer("gpus_per_node", "gpus") or 1)

    def setup(self, trainer: str, version: str, **computed: Any) -> TrainerSetup:
        """The setup: what was computed, and every other field that has a key of its own."""
        values = dict(computed)
        for name in self._keys.names.keys() & _KINDS.keys() - computed.keys():
            kind = _KINDS[name]
            read = self.integer if kind == "int" else self.number if kind == "float" else self.text
            values[name] = read(name, name)
        if "betas" in self._keys.names:
            values["beta1"], values["beta2"] = self.pair("betas", "beta1", "beta2")
        if values.get("advantage") != "gae":
            values |= dict.fromkeys(_CRITIC)
        clip = values.get("grad_clip")
        values["grad_clip"] = None if clip is None or not 0 < clip < NO_CLIP else clip
        left = [f.name for f in fields(TrainerSetup) if f.name in self.assumed and values.get(f.name) is not None]
        return TrainerSetup(trainer, version, **values, assumed=tuple(left))


def clip_fields(cispo: bool, low: float | None, high: float | None) -> dict[str, float | None]:
    """Fields of the ratio's clips; for CISPO the upper clip gives the cap, and there is no lower one."""
    if not cispo:
        return {"clip_low": low, "clip_high": high}
    return {"clip_low": None, "clip_high": None, "ratio_cap": None if high is None else 1 + high}


def as_number(value: object) -> float | None:
    """A finite number from a number or its text ('1e-6', '1_000'), else `None`."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value) if isinstance(value, str | int | float) else None
    except (ValueError, OverflowError):
        return None
    return number if number is not None and abs(number) < 1e300 else None


def invert(names: dict[str, str]) -> dict[str, str]:
    """Our word for each of a trainer's; if several of ours share one, the first counts."""
    return {theirs: ours for ours, theirs in reversed(names.items())}


def times(*factors: int | None) -> int | None:
    """The product; None if a factor is None."""
    known = [factor for factor in factors if factor is not None]
    return math.prod(known) if len(known) == len(factors) else None


def in_batches(updates: int | None, updates_per_batch: float | None) -> int | None:
    """Optimiser steps as batches, rounded up: a trainer's warm-up may count the former, a recipe's counts the latter.

    >>> in_batches(20, 2), in_batches(10, 16), in_batches(10, None)
    (10, 1, 10)
    """
    return None if updates is None else math.ceil(updates / (updates_per_batch or 1))


def group_filter(refills: bool, notes: list[Note]) -> str:
    """`refill` where zero-variance groups are replaced by freshly sampled ones."""
    if not refills:
        return "off"
    notes.append(Note("refill", "zero-variance groups are sampled again: more rollouts are spent than C counts."))
    return "refill"


def steps_from_epochs(
    epochs: int | None, problems: int | None, batch: int | None, notes: list[Note], key: str
) -> int | None:
    """M of a config that counts passes over the data: epochs · (D // Bp)."""
    if epochs and problems and batch and problems >= batch:
        return epochs * (problems // batch)
    size = "" if problems is None else f" ({problems} problems are under one batch)"
    message = f"M is {key} = {epochs} passes over the data{size}; give --problems, or set a step count."
    notes.append(Note("steps_unknown", message))
    return None


# Warnings that hold for every trainer

PAPER_RATE, PAPER_BATCH = 1e-6, 1024
"""The IsoCompute paper's learning rate and its batch; the rate grows with the square root of the batch."""


def setup_warnings(setup: TrainerSetup) -> list[Note]:
    """What is unusual about a setup, whichever trainer it is for."""
    found: list[Note] = []

    def warn(code: str, message: str) -> None:
        found.append(Note(code, message))

    updates, n, steps = setup.updates_per_batch, setup.rollouts_per_problem, setup.update_steps
    if updates is not None and updates > 1 and not updates % 1:
        warn(
            "off_policy",
            f"{updates:g} optimiser steps on each batch: all but the first are off-policy. For one, the mini-batch "
            "must be the whole batch, once.",
        )
    if setup.staleness:
        warn("stale", f"sampling runs ahead: rollouts may be {setup.staleness} update(s) old.")
    if n == 1 and setup.advantage in ("group_std", "group_mean", "batch_std"):
        warn("group", f"n = 1 with a group baseline ({setup.advantage}): there is nothing to compare a rollout with.")
    rate, rollouts = setup.learning_rate, setup.rollouts_per_update
    if rate is not None and rollouts is not None and rollouts >= 1:
        scaled = PAPER_RATE * (rollouts / PAPER_BATCH) ** 0.5
        if not 0.5 <= rate / scaled <= 2:
            warn(
                "learning_rate",
                f"learning rate {rate:.3g} at {rollouts:,} rollouts per update; {PAPER_RATE:g} at {PAPER_BATCH:,} and "
                f"the square-root rule give {scaled:.2g}. Fine if it was tuned there.",
            )
    if setup.schedule is not None and not setup.schedule.startswith("constant"):
        warn(
            "schedule",
            f"the learning rate decays: schedule '{setup.schedule}'. A law over update steps assumes a constant one.",
        )
    if setup.warmup_steps is not None and steps is not None and setup.warmup_steps >= steps:
        warn("warmup", f"warm-up of {setup.warmup_steps} steps lasts the whole run of {steps}.")
    kl, entropy = setup.kl_coef or 0, setup.entropy_coef or 0
    if "hard" in (setup.train_file or "").lower() and (kl > 0 or entropy > 0):
        warn("regularisers", f"KL {kl:g} and entropy {entropy:g} on a hard set: the playbook has neither.")
    if setup.loss == "cispo" and setup.on_policy and setup.ratio_reference == "trainer" and setup.tis_cap is None:
        warn(
            "cispo_anchor",
            "CISPO's ratio is 1 with one update per batch against the trainer's own log-probs: its cap has no effect.",
        )
    if setup.gpus and setup.batch_size and setup.batch_size % setup.gpus and setup.trainer not in ("trl", "prime-rl"):
        warn("shares", f"{setup.batch_size} rollouts cannot be split equally over {setup.gpus} GPUs.")
    if setup.temperature == 0 and (n or 1) > 1:
        warn("greedy", "temperature 0: all rollouts of a problem are the same.")
    return found


# A setup in one paragraph

_MOST_UNKNOWN = 6


def describe(setup: TrainerSetup, title: str, warnings: Sequence[Note], unknown: Mapping[str, str | None]) -> str:
    """Allocation, whether it is on-policy, the recipe, what is assumed, warnings, and keys that the trainer lacks."""
    bp, n, m = (_count(x) for x in (setup.problems_per_batch, setup.rollouts_per_problem, setup.update_steps))
    batch, compute = _count(setup.batch_size), _count(setup.compute)
    sentences = [
        f"{title}: Bp = {bp} problems × n = {n} rollouts × M = {m} batches: B = {batch} rollouts per batch, "
        f"C = {compute} rollouts in all.",
        _on_policy(setup),
        _recipe(setup),
    ]
    named = {"problems_per_batch": "Bp", "rollouts_per_problem": "n", "learning_rate": "the learning rate"}
    if any(note.code == "processes" for note in warnings):
        del named["problems_per_batch"]  # from a guessed process count, see the warning
    missing = [named[name] for name in named if name in setup.assumed]
    if missing:
        listed = missing[0] if len(missing) == 1 else ", ".join(missing[:-1]) + " and " + missing[-1]
        sentences.append(f"The file does not set {listed}; that is {title} {setup.version}'s default.")
    if warnings:
        numbered = [f"({i}) {note.message}" for i, note in enumerate(warnings, 1)]
        sentences.append("Warnings: " + " ".join(numbered) if len(numbered) > 1 else f"Warning: {warnings[0].message}")
    if unknown:
        shown = [key if near is None else f"{key} (meant: {near}?)" for key, near in unknown.items()]
        shown.sort(key=lambda text: not text.endswith("?)"))
        more = f" and {len(shown) - _MOST_UNKNOWN} more" if len(shown) > _MOST_UNKNOWN else ""
        are = "Not a key" if len(shown) == 1 else "Not keys"
        sentences.append(f"{are} of {title} {setup.version}: {', '.join(shown[:_MOST_UNKNOWN])}{more}.")
    return " ".join(sentences)


def _on_policy(setup: TrainerSetup) -> str:
    if setup.updates_per_batch is None:
        return "How many optimiser steps a batch gets is unknown."
    if setup.updates_per_batch % 1:
        return f"It does not run as it stands: a batch would make {setup.updates_per_batch:g} optimiser steps."
    if setup.on_policy and setup.batch_size is None:
        return "One optimiser step per batch, as far as the file defines a batch."
    if setup.on_policy:
        return "On-policy: one optimiser step per batch."
    if setup.staleness and setup.updates_per_batch == 1:
        return f"Off-policy: one optimiser step per batch, on rollouts up to {setup.staleness} update(s) old."
    size = "" if setup.rollouts_per_update is None else f", of {setup.rollouts_per_update:,} rollouts each"
    return f"Off-policy: {setup.updates_per_batch:g} optimiser steps per batch{size}."


def _recipe(setup: TrainerSetup) -> str:
    def value(number: float | None) -> str:
        return "?" if number is None else "off" if number == 0 else f"{number:g}"

    parts = []
    if setup.loss is not None:
        bounds = ""
        if setup.ratio_cap is not None:
            bounds = f" capped at {setup.ratio_cap:g}"
        elif setup.clip_low is not None and setup.clip_high is not None and setup.loss != "reinforce":
            bounds = f" {setup.clip_low:g}/{setup.clip_high:g}"
        parts.append(f"{setup.loss} loss{bounds}, averaged by {setup.aggregation}")
    if setup.advantage is not None:
        parts.append(f"advantage {setup.advantage}")
    if setup.learning_rate is not None:
        warm = f" after {setup.warmup_steps} steps of warm-up" if setup.warmup_steps else ""
        parts.append(f"learning rate {setup.learning_rate:.3g}{warm}")
    parts.append(f"KL {value(setup.kl_coef)}, entropy {value(setup.entropy_coef)}")
    parts.append(f"temperature {value(setup.temperature)}")
    if setup.tis_cap is not None:
        parts.append(f"truncated importance sampling at {setup.tis_cap:g}")
    text = "; ".join(parts) + "."
    return text[:1].upper() + text[1:]


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


# Misspelled keys: most trainers ignore them and train with the default

_CLOSE = 0.8
"""The least similarity of two words, of 1 (difflib)."""


@cache
def _keys_of(trainer: str) -> frozenset[str]:
    """Every key of a trainer, including its tables: `keys/*.txt`, from the version and commit named there.

    A table that is listed without keys below it may hold any keys, such as keyword arguments.
    """
    text = (files("isocompute.trainers") / "keys" / f"{trainer.replace('-', '_')}.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if not line.startswith("#"))


def unknown_keys(
    trainer: str, keys: Iterable[str], *, known: Iterable[str] = (), alone: bool = False
) -> dict[str, str | None]:
    """Keys of a config that the trainer does not have, each with the one that was probably meant.

    `known` are further keys, such as older spellings. A script may contain arguments of other programs. A key outside
    the trainer's tables therefore counts only if it resembles one of its keys, or if the file is the trainer's `alone`.
    """
    listed = _keys_of(trainer)
    every = listed | set(known)
    tables = {key.rpartition(".")[0] for key in listed}
    split = [key.split(".") for key in sorted(every)]
    out: dict[str, str | None] = {}
    for key in keys:
        parts = key.split(".")
        above = [".".join(parts[:depth]) for depth in range(1, len(parts))]
        if key in every or any(table in listed and table not in tables for table in above):
            continue
        near = _meant(parts, [other for other in split if len(other) == len(parts)])
        if alone or near is not None or parts[0] in tables:
            out[key] = near
    return out


def _meant(parts: list[str], others: list[list[str]]) -> str | None:
    """The key that was probably meant: one that differs in a single part, and only slightly."""
    for at, part in enumerate(parts):
        beside = {
            other[at]: other for other in others if other[:at] == parts[:at] and other[at + 1 :] == parts[at + 1 :]
        }
        near = get_close_matches(part, beside, n=1, cutoff=_CLOSE)
        if near:
            return ".".join(beside[near[0]])
    return None
