"""Plans as trainers' configs, and configs explained."""

from isocompute.trainers.exporting import TRAINERS, export_plan
from isocompute.trainers.hardware import Hardware
from isocompute.trainers.plan_input import Plan, make_plan, read_plan
from isocompute.trainers.reading import Explanation, Setup, explain, explain_text, read_settings
from isocompute.trainers.result import Exported, File, Note

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
    "explain_text",
    "export_plan",
    "make_plan",
    "read_plan",
    "read_settings",
]
