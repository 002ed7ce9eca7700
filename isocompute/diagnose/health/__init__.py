"""Is this run healthy? What the papers watch, read off a run's own log as it grows."""

from isocompute.diagnose.health.checks import check
from isocompute.diagnose.health.model import Check, Finding, Health

__all__ = ["Check", "Finding", "Health", "check"]
