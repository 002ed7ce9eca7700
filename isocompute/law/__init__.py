"""The law: from learning curves to forecasts, comparisons and n*(C), with an error on every number.

Names load on first use: whoever wants a part of it need not wait for the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isocompute.law.comparison import Comparison, compare
    from isocompute.law.curve import Curve
    from isocompute.law.forecasting import Backtest, Forecast, backtest, forecast
    from isocompute.law.from_runs import curves_of
    from isocompute.law.law import Law, fit_law
    from isocompute.law.store import StoredLaw, check_out, is_law_file, law_to_json, read_law, write_law

_HOMES = {
    "Backtest": "forecasting",
    "Comparison": "comparison",
    "Curve": "curve",
    "Forecast": "forecasting",
    "Law": "law",
    "StoredLaw": "store",
    "backtest": "forecasting",
    "check_out": "store",
    "compare": "comparison",
    "curves_of": "from_runs",
    "fit_law": "law",
    "forecast": "forecasting",
    "is_law_file": "store",
    "law_to_json": "store",
    "read_law": "store",
    "write_law": "store",
}

__all__ = [
    "Backtest",
    "Comparison",
    "Curve",
    "Forecast",
    "Law",
    "StoredLaw",
    "backtest",
    "check_out",
    "compare",
    "curves_of",
    "fit_law",
    "forecast",
    "is_law_file",
    "law_to_json",
    "read_law",
    "write_law",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"isocompute.law.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'isocompute.law' has no attribute '{name}'")
