"""Messages of the commands in the words of the API: their options are its parameters."""

from __future__ import annotations

import re

from isocompute.web.planning import PlanQuery

__all__ = ["as_parameters"]

_OTHERS = {"stable_problems": "stable_low and stable_high", "unit": "unit", "to": "to", "fit_until": "fit_until"}


def as_parameters(text: str) -> str:
    """A message with `--options` named as the parameters they are here; those that only a command has stay, and so do
    commands in backticks.

    >>> as_parameters("--budget 1e12: beyond the law; say --extrapolate, or fit with --columns.")
    'budget 1e12: beyond the law; say extrapolate=true, or fit with --columns.'
    >>> as_parameters("--n 3: not run; try `isocompute plan --n 8`.")
    'n 3: not run; try `isocompute plan --n 8`.'
    """
    parts = text.split("`")
    return "`".join(part if i % 2 else _spelt(part) for i, part in enumerate(parts))


def _spelt(text: str) -> str:
    return re.sub(r"(?<![\w-])--([a-z](?:[a-z-]*[a-z])?)", lambda found: _parameter(found[1]) or found[0], text)


def _parameter(option: str) -> str | None:
    name = option.replace("-", "_")
    field = PlanQuery.model_fields.get(name)
    if field is not None:
        return f"{name}=true" if field.annotation is bool else name
    return _OTHERS.get(name)
