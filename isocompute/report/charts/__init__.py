"""Charts, one function each; they take results and know nothing of files."""

from isocompute.report.charts.comparison import comparison_chart
from isocompute.report.charts.forecast import forecast_chart
from isocompute.report.charts.law import law_chart

__all__ = ["comparison_chart", "forecast_chart", "law_chart"]
