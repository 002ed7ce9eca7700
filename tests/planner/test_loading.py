"""What a plan does not wait for: libraries that only other things need, each a tenth of a second or more to load."""

from __future__ import annotations

import subprocess
import sys


def test_the_api_loads_no_heavy_library() -> None:
    script = "import sys, isocompute.api; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert {"torch", "altair", "scipy.stats", "scipy.optimize", "transformers"}.isdisjoint(loaded.split())
