"""`explain`: what a trainer's config really is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from isocompute.core.errors import InputError
from isocompute.trainers.reading import nemo_rl, openrlhf, prime_rl, skyrl, trl, verl
from isocompute.trainers.reading.describe import describe
from isocompute.trainers.reading.keys import unknown_keys
from isocompute.trainers.reading.oddities import oddities
from isocompute.trainers.reading.parse import parse, read_config
from isocompute.trainers.reading.setup import Config, Odd, Setup
from isocompute.trainers.reading.values import plain, resolve

__all__ = ["Explanation", "Setup", "explain", "explain_text", "read_settings"]

_READERS: tuple[ModuleType, ...] = (verl, skyrl, nemo_rl, prime_rl, openrlhf, trl)


@dataclass(frozen=True)
class Explanation:
    """A config's setup, what is odd about it, and both in a paragraph."""

    setup: Setup
    odd: tuple[Odd, ...]
    unknown: dict[str, str | None]
    """Keys that the trainer does not have, each with the one that was probably meant."""
    form: str
    text: str


def explain(path: str, *, gpus: int | None = None, problems: int | None = None) -> Explanation:
    """Read a config of any trainer here and say what Bp, n, M, B and C it is.

    `gpus` and `problems` (the size of the data) stand in where a config does not say them.
    """
    return _explain(read_config(path), path, gpus, problems)


def explain_text(
    text: str, *, source: str = "config", gpus: int | None = None, problems: int | None = None
) -> Explanation:
    """The same for a config's text."""
    return _explain(parse(text, source=source), source, gpus, problems)


def read_settings(trainer: str | None, config: Mapping[str, Any]) -> tuple[Setup, list[str]] | None:
    """What a log's config (dotted keys) gives, without the trainer's defaults, and notes on what was inferred.

    `None` where it is no config of a trainer here; a `trainer` that is none of them leaves it to the keys.
    """
    known, unresolved = resolve({key: _value(value) for key, value in config.items()})
    settings = Config(known, "settings", (), tuple(unresolved))
    reader = next((module for module in _READERS if trainer == module.NAME), None) or _reader(settings)
    if reader is None:
        return None
    setup, odd = reader.read(settings, None, None)
    return setup.stated, [note.message for note in odd if note.code == "inferred"]


def _value(value: Any) -> Any:
    """A value of a log: what Python or Hydra spell as nothing is nothing, a list's text a list; else as it is."""
    if not isinstance(value, str):
        return value
    return plain(value) if value in ("None", "null") or value.startswith("[") else value


def _reader(config: Config) -> ModuleType | None:
    reader = max(_READERS, key=lambda module: module.matches(config))
    return reader if reader.matches(config) > 0 else None


def _explain(config: Config, source: str, gpus: int | None, problems: int | None) -> Explanation:
    reader = _reader(config)
    if reader is None:
        seen = ", ".join(list(config.settings)[:3]) or "no settings at all"
        raise InputError(
            f"{source}: no trainer's config (read as {config.form}: {seen}); known are veRL overrides and YAML, TRL's "
            "GRPOConfig in Python or YAML, OpenRLHF flags, prime-rl TOML, NeMo-RL YAML, SkyRL arguments."
        )
    setup, found = reader.read(config, gpus, problems)
    odd = [*found, *oddities(setup)]
    unresolved = [key for key in config.unresolved if key in reader.READ or key == "**"]
    if unresolved:
        keys = ", ".join(unresolved[:4]) + (" …" if len(unresolved) > 4 else "")
        odd.append(Odd("unresolved", f"{keys}: set from outside the file, so unknown here."))
    if config.parents:
        odd.append(
            Odd("builds_on", f"builds on {', '.join(config.parents)}, which was not read: what it sets is not seen.")
        )
    unique = tuple({(note.code, note.message): note for note in odd}.values())
    unknown = _unknown(config, reader)
    return Explanation(setup, unique, unknown, config.form, describe(setup, unique, unknown))


def _unknown(config: Config, reader: ModuleType) -> dict[str, str | None]:
    """What the config sets and the trainer has not; a `GRPOConfig(…)` takes nothing but the trainer's own keys."""
    keys = sorted(config.keys - {"**", *config.added})
    return unknown_keys(reader.NAME, keys, read=reader.READ, alone=config.form == "python")
