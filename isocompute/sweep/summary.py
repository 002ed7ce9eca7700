"""`finished.json` says that a cell is done, where it holds what `Recorder.finish` writes: an object.

Files are not forced to disk. A power cut may leave it empty, and the points beside it too: such a cell is run again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from isocompute.core.recorder import FINISHED

__all__ = ["is_finished", "object_in", "summary_at"]


def object_in(data: bytes) -> dict[str, Any] | None:
    """The JSON object in a file's bytes; None where they are empty, torn or something else.

    >>> object_in(b'{"rollouts": 12}'), object_in(b""), object_in(b'{"roll'), object_in(b"[]")
    ({'rollouts': 12}, None, None, None)
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def summary_at(folder: Path) -> dict[str, Any] | None:
    """How the cell of this folder ended; None where it has not."""
    try:
        return object_in((folder / FINISHED).read_bytes())
    except FileNotFoundError:
        return None


def is_finished(folder: Path) -> bool:
    """Whether the cell of this folder is done."""
    return summary_at(folder) is not None
