"""Runs: settings and points of training runs, read from folders and tables and written by engines.

Names load on first use: engines write runs on machines without the table library that reading them needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isocompute.runs.loading import load
    from isocompute.runs.model import Run, RunSet, RunWarning
    from isocompute.runs.settings import RunSettings
    from isocompute.runs.writer import RunWriter

_HOMES = {
    "Run": "isocompute.runs.model",
    "RunSet": "isocompute.runs.model",
    "RunSettings": "isocompute.runs.settings",
    "RunWarning": "isocompute.runs.model",
    "RunWriter": "isocompute.runs.writer",
    "load": "isocompute.runs.loading",
}

__all__ = ["Run", "RunSet", "RunSettings", "RunWarning", "RunWriter", "load"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'isocompute.runs' has no attribute '{name}'")
