"""The two papers' claims as testable statements: what these runs say of each."""

from isocompute.diagnose.claims.judging import judge
from isocompute.diagnose.claims.model import Claim

__all__ = ["Claim", "judge"]
