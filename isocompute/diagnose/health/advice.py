"""What the papers say to each finding."""

from __future__ import annotations

from isocompute.diagnose.health.model import Severity

__all__ = ["advice_on"]

_ISOCOMPUTE = "IsoCompute (2603.12151)"
_SCALERL = "ScaleRL (2510.13786)"

_ADVICE: dict[str, tuple[str, str]] = {
    "non_finite": (
        "nothing is learned from here on: go back to the last checkpoint before it; lower the learning rate, clip the "
        "gradient, look for an overflow in half precision or a division by a spread of 0",
        f"{_ISOCOMPUTE} section 3, factor 3 (an unstable learning rate); {_SCALERL} section 3.2 (logits in FP32); the "
        "rest is our reading",
    ),
    "reward_fall": (
        "go back to the checkpoint of the best reward; lower the learning rate (√B scaling from a base that is stable) "
        "and make fewer updates on a batch",
        f"{_ISOCOMPUTE} section 3, factor 3 and figure 4; {_SCALERL} section 3.1",
    ),
    "no_progress": (
        "raise the learning rate (√B scaling from a base that learns), raise n, and choose problems that are neither "
        "solved nor out of reach; read some responses beside their scores",
        f"{_ISOCOMPUTE} section 3, factor 3 (the learning rate); {_SCALERL} section 3.2 (problems that are solved); "
        "the rest is our reading",
    ),
    "entropy_collapse": (
        "on easy sets add an entropy bonus together with a KL anchor; lower the learning rate; raise n",
        f"{_ISOCOMPUTE} section 3, factor 2 and figure 3",
    ),
    "entropy_explosion": (
        "on hard sets take the entropy bonus away, or anchor it with a KL term; lower the learning rate",
        f"{_ISOCOMPUTE} section 3, factor 2 and figure 3",
    ),
    "length_explosion": (
        "on hard sets take the entropy bonus away; cap lengths by forced interruption; a larger response budget where "
        "long answers are right",
        f"{_ISOCOMPUTE} section 3, factor 2; {_SCALERL} appendix A.10 and A.15",
    ),
    "length_collapse": (
        "read some responses: the policy has stopped answering or found a short cut; go back to the best checkpoint "
        "and lower the learning rate",
        f"{_ISOCOMPUTE} section 3, factor 3 (an unstable learning rate); that short answers show it is our reading",
    ),
    "truncation": (
        "a larger response budget or forced interruption; stable runs stay under 5% for over 90% of their steps, 10 to "
        "15% went with instability",
        f"{_SCALERL} appendix A.15",
    ),
    "kl_drift": (
        "the policy leaves the base model without getting better: a KL term on easy sets, a lower learning rate",
        f"{_ISOCOMPUTE} section 3, factor 2",
    ),
    "zero_variance": (
        "these groups give no gradient: drop them from the average, stop sampling problems at a pass rate of .9, or "
        "raise n on hard sets",
        f"{_SCALERL} section 3.2 and figure 6",
    ),
    "logprob_gap": (
        "compute the logits in FP32 on sampler and trainer alike, and weigh by truncated importance sampling",
        f"{_SCALERL} section 3.2 and figure 5b; {_ISOCOMPUTE} appendix A",
    ),
    "grad_norm_spikes": (
        "lower the learning rate (√B scaling), a longer warm-up, a tighter gradient clip",
        f"{_ISOCOMPUTE} section 3, factor 3",
    ),
    "polarisation": (
        "some problems are given up for others: raise n, which spreads progress; a KL term; fewer unlike problems",
        f"{_ISOCOMPUTE} section 5.1 and figure 11",
    ),
    "train_validation_gap": (
        "the set is being learned by heart: more problems, a smaller n or an earlier stop; keep the best checkpoint",
        f"{_ISOCOMPUTE} section 5.2 and figure 13",
    ),
}
"""Code → advice and source."""

_AS_A_PROBLEM: dict[str, tuple[str, str]] = {
    "no_progress": (
        "take easier problems, or a larger n so that some rollout succeeds; check the verifier on answers that are "
        "known to be right",
        f"{_SCALERL} section 3.2 (groups that score all the same give no gradient); the rest is our reading",
    ),
}
"""The same of findings that need other advice where they are a problem."""


def advice_on(code: str, severity: Severity) -> tuple[str, str]:
    """Advice and source for a finding."""
    return (_AS_A_PROBLEM if severity == "problem" else _ADVICE).get(code, _ADVICE[code])
