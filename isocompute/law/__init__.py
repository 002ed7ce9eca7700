"""The law: from learning curves to forecasts, comparisons and n*(C), with an error on every number."""

from isocompute.law.comparison import Comparison, compare
from isocompute.law.curve import Curve
from isocompute.law.forecasting import Backtest, Forecast, backtest, forecast
from isocompute.law.from_runs import curves_of
from isocompute.law.law import Law, fit_law
from isocompute.law.store import StoredLaw, law_to_json, read_law, write_law

__all__ = [
    "Backtest",
    "Comparison",
    "Curve",
    "Forecast",
    "Law",
    "StoredLaw",
    "backtest",
    "compare",
    "curves_of",
    "fit_law",
    "forecast",
    "law_to_json",
    "read_law",
    "write_law",
]
