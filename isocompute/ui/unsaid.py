"""Why runs cannot be planned with: they do not say Bp or n. And the command that says it for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from isocompute.errors import InputError
from isocompute.ui.commands import command_line

if TYPE_CHECKING:
    from isocompute.runs import RunSet
    from isocompute.ui.source import Source

__all__ = ["unsaid"]

_BP, _N = 32, 8
"""Examples: the user knows his own."""


def unsaid(runs: RunSet, source: Source) -> str | None:
    """What keeps a plan from being made and how to start the app instead; None where the runs say enough."""
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
