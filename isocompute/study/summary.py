"""`finished.json` says that a cell is done, where it holds what `Recorder.finish` writes: an object.

Files are not forced to disk. A power cut may leave it empty, and the points beside it too: such a cell is run again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from isocompute.engines.base import FINISHED

__all__ = ["is_finished", "object_in"]


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


def is_finished(folder: Path) -> bool:
    """Whether the cell of this folder is done."""
    try:
        return object_in((folder / FINISHED).read_bytes()) is not None
    except FileNotFoundError:
        return False
