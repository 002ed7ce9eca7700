"""The API does not load heavy libraries that only some commands need; each takes a tenth of a second or more."""

from __future__ import annotations

import subprocess
import sys


def test_the_api_loads_no_heavy_library() -> None:
    script = "import sys, isocompute.api; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert {"torch", "altair", "scipy.stats", "scipy.optimize", "transformers"}.isdisjoint(loaded.split())
