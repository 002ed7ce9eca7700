"""Studies: a grid of allocations, problem sets and seeds, run on this machine or on Ray and resumable at any time.

For example:

    from isocompute import study

    study.run(spec="study.toml", out="runs/first")
    [cell.state for cell in study.status(folder="runs/first")]
"""

from isocompute.sweep.folder import STATES, CellStatus, Progress, Result, StudyFolder, status_to_json
from isocompute.sweep.local import run, run_spec, status
from isocompute.sweep.spec import StudySpec, cells, parse_spec, read_spec

__all__ = [
    "STATES",
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
    "status_to_json",
]
