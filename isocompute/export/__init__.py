"""Plans as trainers' configs, and configs explained."""

from isocompute.export.exporting import TRAINERS, export_plan
from isocompute.export.hardware import Hardware
from isocompute.export.plan_input import Plan, make_plan, read_plan
from isocompute.export.reading import Explanation, Setup, explain
from isocompute.export.result import Exported, File, Note

__all__ = [
    "TRAINERS",
    "Explanation",
    "Exported",
    "File",
    "Hardware",
    "Note",
    "Plan",
    "Setup",
    "explain",
    "export_plan",
    "make_plan",
    "read_plan",
]
