"""The sweep: spec, cells, local and Ray runners, resuming.

from isocompute import study

study.run(spec="study.toml", out="runs/first")
[cell.state for cell in study.status(folder="runs/first")]
"""

from isocompute.sweep.api import run, run_spec, status
from isocompute.sweep.folder import CellStatus, StudyFolder
from isocompute.sweep.progress import Progress, Result
from isocompute.sweep.spec import StudySpec, cells, parse_spec, read_spec

__all__ = [
    "CellStatus",
    "Progress",
    "Result",
    "StudyFolder",
    "StudySpec",
    "cells",
    "parse_spec",
    "read_spec",
    "run",
    "run_spec",
    "status",
]
