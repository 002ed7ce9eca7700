"""The two papers' claims as testable statements: what these runs say of each."""

from isocompute.claims.judging import judge
from isocompute.claims.model import Claim

__all__ = ["Claim", "judge"]
