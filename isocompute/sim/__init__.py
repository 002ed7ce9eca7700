"""The simulator: a softmax policy over problems that share features, trained by the real update rules in seconds."""

from isocompute.sim.engine import SimEngine

__all__ = ["SimEngine"]
