"""Charts, one function each; they take results and know nothing of files."""

from isocompute.report.charts.commands import comparison_chart, forecast_chart, law_chart

__all__ = ["comparison_chart", "forecast_chart", "law_chart"]
