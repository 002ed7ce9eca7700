"""Runs: settings and points of training runs, from run folders, tables and trainers' logs.

Names load on first use: engines write runs on machines without polars, which reading them needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isocompute.core.recorder import RunSettings, RunWriter
    from isocompute.core.run import Run, RunSet, RunWarning
    from isocompute.data.loading import load

_HOMES = {
    "Run": "isocompute.core.run",
    "RunSet": "isocompute.core.run",
    "RunSettings": "isocompute.core.recorder",
    "RunWarning": "isocompute.core.run",
    "RunWriter": "isocompute.core.recorder",
    "load": "isocompute.data.loading",
}

__all__ = ["Run", "RunSet", "RunSettings", "RunWarning", "RunWriter", "load"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'isocompute.data' has no attribute '{name}'")
