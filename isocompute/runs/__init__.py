"""Runs: settings and points of training runs, read from folders and tables and written by engines."""

from isocompute.runs.folder import RunWriter
from isocompute.runs.load import load
from isocompute.runs.model import Run, RunSet, RunSettings, RunWarning

__all__ = ["Run", "RunSet", "RunSettings", "RunWarning", "RunWriter", "load"]
