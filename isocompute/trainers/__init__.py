"""Plans as trainers' configs, and trainers' configs as plans: one file for each trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import Any

from isocompute.core.errors import InputError
from isocompute.trainers.config_files import ConfigFile, parse_config, parse_value, read_config, resolve
from isocompute.trainers.plan_input import HasJson, RunPlan, TrainingHardware, make_plan, read_plan
from isocompute.trainers.reading import FILE_NAMES, Note, TrainerSetup, describe, setup_warnings, unknown_keys
from isocompute.trainers.writing import Exported, File

__all__ = [
    "TRAINERS",
    "Explanation",
    "Exported",
    "File",
    "Note",
    "RunPlan",
    "TrainerSetup",
    "TrainingHardware",
    "explain",
    "explain_text",
    "export_plan",
    "make_plan",
    "read_plan",
    "read_settings",
]

TRAINERS = ("verl", "trl", "openrlhf", "prime-rl", "nemo-rl", "skyrl")


def _module(trainer: str) -> ModuleType:
    """The trainer's module: KEYS, `export` (a plan as its config), `matches` and `read` (its config as a setup)."""
    return import_module(f"isocompute.trainers.{trainer.replace('-', '_')}")


def export_plan(
    *, trainer: str, plan: Mapping[str, Any] | RunPlan | HasJson, hardware: TrainingHardware | None = None
) -> Exported:
    """The plan as that trainer's config, so that one update sees exactly Bp · n rollouts of the current policy.

    `plan` is what `isocompute.plan` returns, what `isocompute plan --json` prints, or a table with Bp, n and M.

    >>> made = export_plan(trainer="verl", plan={"Bp": 32, "n": 8, "M": 100})
    >>> [file.name for file in made.files], made.micro_batch, made.accumulation
    (['run_verl.sh', 'verl_overrides.txt'], 8, 4)
    """
    name = trainer.lower().replace("_", "-")
    if name not in TRAINERS:
        near = get_close_matches(name, TRAINERS, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise InputError(f"'{trainer}' is not a supported trainer: there are {', '.join(TRAINERS)}{hint}")
    made: Exported = _module(name).export(make_plan(plan), hardware or TrainingHardware())
    return made


@dataclass(frozen=True)
class Explanation:
    """A config's setup, what is unusual about it, and both in a paragraph."""

    setup: TrainerSetup
    warnings: tuple[Note, ...]
    unknown: dict[str, str | None]
    """Keys that the trainer does not have, each with the one that was probably meant."""
    form: str
    text: str


def explain(path: str, *, gpus: int | None = None, problems: int | None = None) -> Explanation:
    """The Bp, n, M, B and C of any supported trainer's config, and what is unusual about it.

    `gpus` replaces the number in the config; `problems` is the size of the data, if a config counts epochs.
    """
    return _explain(read_config(path), path, gpus, problems)


def explain_text(
    text: str, *, source: str = "config", gpus: int | None = None, problems: int | None = None
) -> Explanation:
    """Like `explain`, for a config's text."""
    return _explain(parse_config(text, source=source), source, gpus, problems)


def _explain(file: ConfigFile, source: str, gpus: int | None, problems: int | None) -> Explanation:
    trainer = _recognise(file)
    if trainer is None:
        seen = ", ".join(list(file.settings)[:3]) or "no settings at all"
        raise InputError(
            f"{source}: not a trainer's config (read as {file.form}: {seen}); known are veRL overrides and YAML, TRL's "
            "GRPOConfig in Python or YAML, OpenRLHF flags, prime-rl TOML, NeMo-RL YAML, SkyRL arguments."
        )
    setup, notes = trainer.read(file, gpus, problems)
    warnings = [*notes, *setup_warnings(setup)]
    relevant = trainer.KEYS.all(but=FILE_NAMES) | {"**"}
    unresolved = [key for key in file.unresolved if key in relevant]
    if unresolved:
        keys = ", ".join(unresolved[:4]) + (" …" if len(unresolved) > 4 else "")
        warnings.append(Note("unresolved", f"{keys}: set from outside the file, so unknown here."))
    if file.parents:
        message = f"builds on {', '.join(file.parents)}, which was not read: what it sets is not seen."
        warnings.append(Note("builds_on", message))
    unique = tuple(dict.fromkeys(warnings))
    # A `GRPOConfig(…)` takes only the trainer's own keys.
    own = sorted(file.keys - {"**", *file.added})
    unknown = unknown_keys(trainer.NAME, own, known=trainer.KEYS.all(), alone=file.form == "python")
    return Explanation(setup, unique, unknown, file.form, describe(setup, trainer.TITLE, unique, unknown))


def read_settings(trainer: str | None, config: Mapping[str, Any]) -> tuple[TrainerSetup, list[str]] | None:
    """The setup in a log's config (dotted keys), and notes on what was inferred; None if no trainer recognises it.

    `TrainerSetup.without_defaults` is what the config itself sets. An unknown `trainer` is recognised by its keys.
    """

    def value(given: Any) -> Any:
        """Parse the text of None, null and lists; other values stay as they are."""
        if isinstance(given, str) and (given in ("None", "null") or given.startswith("[")):
            return parse_value(given)
        return given

    known, unresolved = resolve({key: value(given) for key, given in config.items()})
    file = ConfigFile(known, "settings", (), tuple(unresolved))
    module = _module(trainer) if trainer in TRAINERS else _recognise(file)
    if module is None:
        return None
    setup, notes = module.read(file, None, None)
    return setup, [note.message for note in notes if note.code == "inferred"]


def _recognise(file: ConfigFile) -> ModuleType | None:
    """The trainer that has the most of a config's keys; None if no trainer has any."""
    modules = [_module(name) for name in ("verl", "skyrl", "nemo-rl", "prime-rl", "openrlhf", "trl")]
    best = max(modules, key=lambda module: int(module.matches(file)))
    return best if best.matches(file) > 0 else None
