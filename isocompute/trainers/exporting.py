"""`export_plan`: a plan as one trainer's own config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from isocompute.core.errors import InputError
from isocompute.trainers.hardware import Hardware
from isocompute.trainers.plan_input import Plan, make_plan
from isocompute.trainers.result import Exported

if TYPE_CHECKING:
    from isocompute.planner.decide import Plan as Planned

__all__ = ["TRAINERS", "export_plan"]

TRAINERS = {
    "verl": "verl",
    "trl": "trl",
    "openrlhf": "openrlhf",
    "prime-rl": "prime_rl",
    "nemo-rl": "nemo_rl",
    "skyrl": "skyrl",
}
"""Trainers and their modules here."""


def export_plan(
    *, trainer: str, plan: Mapping[str, Any] | Planned | Plan, hardware: Hardware | None = None
) -> Exported:
    """The plan as that trainer's config, so that one update sees exactly Bp · n rollouts of the current policy.

    `plan` is what `isocompute.planner` returns, what `isocompute plan --json` prints, or a table with Bp, n and M.

    >>> made = export_plan(trainer="verl", plan={"Bp": 32, "n": 8, "M": 100})
    >>> [file.name for file in made.files], made.micro_batch, made.accumulation
    (['run_verl.sh', 'verl_overrides.txt'], 8, 4)
    """
    name = trainer.lower().replace("_", "-")
    if name not in TRAINERS:
        near = get_close_matches(name, TRAINERS, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise InputError(f"'{trainer}' is no trainer here: there are {', '.join(TRAINERS)}{hint}")
    write: Callable[[Plan, Hardware], Exported] = import_module(f"isocompute.trainers.{TRAINERS[name]}").export
    return write(make_plan(plan), hardware or Hardware())
