"""Student's t against the normal distribution, without SciPy: loading it takes as long as fitting two hundred runs."""

from __future__ import annotations

__all__ = ["widening"]

_RATIO = (6.4828766, 2.1952713, 1.6237269, 1.4165797, 1.3115454, 1.2484474, 1.2064631, 1.1765543, 1.1541830, 1.1368264)
"""t / z at 97.5% with 1 to 10 degrees of freedom, as tables have it."""
_TERMS = (1.0, 1.2103647051735311, 1.4400767759015576, 1.3040289003614036, 0.8110016642815197)
"""Fisher and Cornish's expansion of the same in 1 / degrees (Abramowitz and Stegun 26.7.5)."""


def widening(degrees: int) -> float:
    """How much wider a 95% interval is when its noise is estimated with this many degrees of freedom, at least one."""
    if degrees <= len(_RATIO):
        return _RATIO[degrees - 1]
    return sum(term / float(degrees) ** power for power, term in enumerate(_TERMS))
