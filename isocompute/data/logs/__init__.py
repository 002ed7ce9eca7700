"""Trainers' logs: one reader a format, found by content, all of them giving runs in our names."""

from isocompute.data.logs.importing import Imported, Imports, import_logs

__all__ = ["Imported", "Imports", "import_logs"]
