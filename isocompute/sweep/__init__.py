"""Sweeps: a grid of allocations, problem sets and seeds, run here or on Ray, resumable at any moment.

from isocompute import study

study.run(spec="study.toml", out="runs/first")
[cell.state for cell in study.status(folder="runs/first")]
"""

from isocompute.sweep.folder import CellStatus, Progress, Result, StudyFolder
from isocompute.sweep.spec import StudySpec, cells, parse_spec, read_spec
from isocompute.sweep.study import run, run_spec, status

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
