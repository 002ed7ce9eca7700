"""Why runs cannot be planned with: they do not say Bp or n, or are of several problem sets or models. And the command
that says it for them, or takes those of one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from isocompute.core.errors import InputError
from isocompute.web.commands import command_line

if TYPE_CHECKING:
    from isocompute.data import RunSet
    from isocompute.data.conditions import Condition
    from isocompute.web.source import Source

__all__ = ["several", "unsaid"]

_BP, _N = 32, 8
"""Examples: the user knows his own."""
_SHOWN = 4


def unsaid(runs: RunSet, source: Source) -> str | None:
    """What keeps a plan from being made and how to start the app instead; None where nothing does."""
    return _lacking(runs, source) or several(runs, source)


def several(runs: RunSet, source: Source) -> str | None:
    """That the runs are of several conditions whose rewards do not compare, which `plan.one_condition` refuses."""
    from isocompute.data.conditions import conditions_of

    found = conditions_of(runs)
    keys = list(dict.fromkeys(key for each in found for key in each.labels))
    if len(found) < 2 or all(key.startswith("recipe.") for key in keys):
        return None
    names = ", ".join(f"'{each.name}' ({len(each.runs)})" for each in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    text = (
        f"These runs are of {len(found)} conditions, {names}{more}, whose rewards do not compare: "
        "a plan is made of one."
    )
    for each in sorted(found, key=lambda each: -len(each.runs)):
        where = _where(each, keys)
        if where is not None:
            told = replace(source.reading, where={**source.reading.where, **where})
            command = command_line("ui", source.address, options=told.options)
            return f"{text} Start the app again with one of them: `{command}`"
    return f"{text} Start the app again with the folder of one of them."


def _where(condition: Condition, keys: list[str]) -> dict[str, str] | None:
    """What picks this condition's runs; None where they do not say all of it in words that a command takes."""
    settings = condition.runs[0].settings
    said = {key: getattr(settings, key, None) or condition.ingredient(key) for key in keys}
    plain = all(isinstance(value, str | int | float) and "," not in str(value) for value in said.values())
    return {key: str(value) for key, value in said.items()} if plain else None


def _lacking(runs: RunSet, source: Source) -> str | None:
    from isocompute.law.from_runs import choose_unit

    if all(run.settings.problems_per_batch and run.settings.rollouts_per_problem for run in runs):
        return None
    try:
        in_steps = choose_unit(runs) == "steps"  # which cost differently at different Bp and n: every run must say both
    except InputError as error:
        return str(error)
    enough = all if in_steps else any
    has_bp = enough(run.settings.problems_per_batch is not None for run in runs)
    has_n = enough(run.settings.rollouts_per_problem is not None for run in runs)
    if has_bp and has_n:
        return None
    told = source.reading
    if not has_bp:
        told = replace(told, problems_per_batch=_BP)
    if not has_n:
        told = replace(told, rollouts_per_problem=_N)
    words = ["their problems per batch (Bp)"] * (not has_bp) + ["their rollouts per problem (n)"] * (not has_n)
    command = command_line("ui", source.address, options=told.options)
    return (
        f"These runs do not say {' and '.join(words)}, and no plan can be made without. "
        f"Start the app again with your numbers: `{command}`"
    )
