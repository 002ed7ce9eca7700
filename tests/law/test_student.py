"""Student's t without SciPy, held against SciPy's."""

from __future__ import annotations

import subprocess
import sys

import pytest
from scipy import special

from isocompute.law.student import widening


@pytest.mark.parametrize("degrees", [*range(1, 60), 100, 251, 5000, 10**6])
def test_is_scipys_quantile_over_the_normal_one(degrees: int) -> None:
    expected = special.stdtrit(degrees, 0.975) / special.ndtri(0.975)
    assert widening(degrees) == pytest.approx(expected, rel=3e-6)


def test_fitting_curves_loads_no_scipy() -> None:
    """It takes as long to load as a rough law takes to fit."""
    script = """
import sys
import numpy as np
from isocompute.law.curve import Curve
from isocompute.law.law import fit_law
x = np.geomspace(1e3, 1e6, 12)
curves = [Curve(f"r{n}", x, 0.3 + 0.4 / (1 + 1e4 * n / x), 32, n, 0, "") for n in (8, 16)]
fit_law(curves, metric="reward", replicates=20, with_surface=False)
print(sorted(name for name in sys.modules if name.startswith("scipy")))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
