"""isocompute: how to spend compute on reinforcement learning of language models.

    import isocompute

    law = isocompute.fit("runs/")
    law.joint.rollouts.ceiling, law.joint.rollouts.ceiling_interval
    isocompute.forecast("runs/easy-32x8", to="4x").verdict

Names load on first use, so that importing the package, and starting the command line, costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from isocompute._version import __version__

if TYPE_CHECKING:
    from isocompute.api import (
        ablate,
        backtest,
        backtest_plans,
        check_health,
        compare,
        fit,
        forecast,
        forecast_all,
        judge_claims,
        plan,
        split,
    )
    from isocompute.core.errors import InputError
    from isocompute.data import Run, RunSet, RunSettings, RunWriter, load
    from isocompute.data.importing import import_logs
    from isocompute.report.page import write_report
    from isocompute.trainers import explain, export_plan

_HOMES = {
    "ablate": "isocompute.api",
    "backtest": "isocompute.api",
    "backtest_plans": "isocompute.api",
    "check_health": "isocompute.api",
    "compare": "isocompute.api",
    "fit": "isocompute.api",
    "forecast": "isocompute.api",
    "forecast_all": "isocompute.api",
    "judge_claims": "isocompute.api",
    "plan": "isocompute.api",
    "InputError": "isocompute.core.errors",
    "explain": "isocompute.trainers",
    "export_plan": "isocompute.trainers",
    "split": "isocompute.api",
    "import_logs": "isocompute.data.importing",
    "Run": "isocompute.data",
    "RunSet": "isocompute.data",
    "RunSettings": "isocompute.data",
    "RunWriter": "isocompute.data",
    "load": "isocompute.data",
    "write_report": "isocompute.report.page",
}

_MODULES = {
    "health": "isocompute.diagnose.health",
    "metrics": "isocompute.core.metrics",
    "study": "isocompute.sweep",
    "data": "isocompute.data",
    "diagnose": "isocompute.diagnose",
    "law": "isocompute.law",
    "problems": "isocompute.problems",
    "report": "isocompute.report",
    "sweep": "isocompute.sweep",
    "trainers": "isocompute.trainers",
}
"""Parts of the package that load on first use too: `isocompute.study.run(…)`."""

__all__ = [
    "InputError",
    "Run",
    "RunSet",
    "RunSettings",
    "RunWriter",
    "__version__",
    "ablate",
    "backtest",
    "backtest_plans",
    "check_health",
    "compare",
    "explain",
    "export_plan",
    "fit",
    "forecast",
    "forecast_all",
    "import_logs",
    "judge_claims",
    "load",
    "plan",
    "split",
    "write_report",
]


def __dir__() -> list[str]:
    """Names that load on first use, too, so that an interpreter can complete them."""
    return sorted({*globals(), *__all__, *_MODULES})


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(_MODULES[name])
    raise AttributeError(f"module 'isocompute' has no attribute '{name}'")
