"""The sweep: spec, cells, local and Ray runners, resuming.

from isocompute import study

study.run(spec="study.toml", out="runs/first")
[cell.state for cell in study.status(folder="runs/first")]
"""

from isocompute.study.api import run, run_spec, status
from isocompute.study.folder import CellStatus, StudyFolder
from isocompute.study.progress import Progress, Result
from isocompute.study.spec import StudySpec, cells, parse_spec, read_spec

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
