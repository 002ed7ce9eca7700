"""What a plan does not wait for: libraries that only other things need, each a tenth of a second or more to load."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("modules", "without"),
    [
        ("isocompute.planner.decide, isocompute.planner.law", {"polars", "scipy"}),
        ("isocompute.law.law", {"polars", "scipy"}),
    ],
)
def test_loads_without(modules: str, without: set[str]) -> None:
    script = f"import sys, {modules}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert without.isdisjoint(loaded.split())
