"""Recipes as data: one set of fields for the simulator and the language-model engine.

The IsoCompute paper's healthy recipe (table 1, appendix A) is GRPO with KL and entropy terms on easy sets and without
them on hard sets. It has no zero-variance filter, a learning rate ∝ √B from 1e-6 at B = 1,024, ten warm-up steps,
AdamW, temperature .6, top-p 1 and truncated importance sampling. The paper prints neither KL and entropy coefficients
nor a cap of the importance weights; we use .001, .001 and 2, which trainers commonly ship. The simulator has neither
tokens nor a second set of numerics. It ignores aggregation, temperature, top_p, tis_cap, ratio_reference and fp32_head.

`scalerl` is the recipe of ScaleRL (arXiv 2510.13786 section 4); its learning rate is for an 8B model at 48 × 16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, TypeAdapter, ValidationError, model_validator

from isocompute.core.errors import InputError, first_wrong

FOLLOWS_BATCH = ("learning_rate", "critic_learning_rate", "warmup_steps")
"""Fields whose logged values change with the batch size by design; compare them between runs of one batch size only."""
_Baseline = Annotated[int, Field(ge=2)]
_BASELINE = TypeAdapter(_Baseline)

RENAMED = {"ratio_anchor": "ratio_reference", "lr_batch": "lr_reference_batch", "gae_trace": "gae_lambda"}
"""Fields of version 0.1 and what they are called now."""


def current_names(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A stored recipe with today's field names."""
    return {RENAMED.get(name, name): value for name, value in stored.items()}


class Recipe(BaseModel):
    """How a policy is updated from a batch of rollouts."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    loss: Literal["reinforce", "clip", "gspo", "cispo"] = Field(
        default="clip", description="REINFORCE; PPO/GRPO clip; GSPO's sequence-level clip; CISPO's truncated ratio"
    )
    advantage: Literal["group_std", "group_mean", "batch_std", "none", "gae"] = Field(
        default="group_std",
        description="reward minus the group's mean, over the group's std (GRPO), over nothing (Dr. GRPO), over the "
        "batch's std (ScaleRL); the bare reward; or from a critic (PPO)",
    )
    aggregation: Literal["token", "sequence", "prompt", "fixed"] = Field(
        default="token",
        description="mean over tokens (DAPO); over each response, then responses (GRPO); over each problem's tokens, "
        "then problems (ScaleRL); or tokens over the response budget (Dr. GRPO)",
    )
    clip_low: float = Field(default=0.2, gt=0, le=1, description="lower clip of the ratio, 1 - clip_low")
    clip_high: float = Field(default=0.2, gt=0, description="upper clip of the ratio, 1 + clip_high")
    ratio_cap: float = Field(default=5.0, gt=0, description="CISPO: the ratio is truncated here")
    ratio_reference: Literal["trainer", "sampler"] = Field(
        default="trainer",
        description="whose log-probs the ratio is taken against: the trainer's before the first update on the batch, "
        "or those the tokens were sampled with",
    )
    tis_cap: float | None = Field(
        default=None,
        gt=0,
        description="truncated importance sampling: the policy term is weighted by trainer over sampler probability, "
        "at most this",
    )
    temperature: float = Field(default=1.0, gt=0, description="of sampling; the trainer's log-probs use it too")
    top_p: float = Field(default=1.0, gt=0, le=1, description="nucleus of sampling")
    fp32_head: bool = Field(default=True, description="logits in FP32 on sampler and trainer alike")
    updates_per_batch: int = Field(default=1, ge=1, description="gradient steps on one batch of rollouts")
    kl_coef: float = Field(default=0.0, ge=0, description="weight of the KL divergence to the base model")
    entropy_coef: float = Field(default=0.0, ge=0, description="weight of the entropy bonus")
    zero_variance_filter: Literal["off", "policy", "all", "refill"] = Field(
        default="off",
        description="leave out problems whose rollouts all score the same: from the policy term's average, from the KL "
        "and entropy terms too, or sample others in their place (DAPO's dynamic sampling)",
    )
    no_positive_resampling: float | None = Field(
        default=None, gt=0, le=1, description="never sample a problem again whose pass rate so far reached this"
    )
    pipeline_steps: int = Field(
        default=0,
        ge=0,
        description="PipelineRL-k: sampling goes on while training does, sequences in flight take new weights at once, "
        "and no token is trained on that is more than k updates old; 0 is on-policy",
    )
    off_policy_steps: int = Field(
        default=1,
        ge=1,
        description="PPO-off-policy-k: the rollouts of k updates are sampled at once, each update trains on its share",
    )
    length_control: Literal["truncate", "interrupt", "penalty"] = Field(
        default="truncate",
        description="what keeps responses short: the budget alone; an end-of-thinking phrase that is forced on them; a "
        "penalty on long right ones",
    )
    mask_truncated: bool = Field(
        default=False, description="leave responses that ran out of their budget out of the loss (DAPO's filter)"
    )
    lora_rank: int | None = Field(
        default=None, ge=1, description="train adapters of this rank on every linear map of the layers, not the weights"
    )
    lora_alpha: float | None = Field(
        default=None, gt=0, description="LoRA: adapters count alpha / rank; twice the rank"
    )
    interrupt_phrase: str | None = Field(
        default=None,
        min_length=1,
        description="the forced phrase, whose last token ends thinking; the problem set's own if not set",
    )
    interrupt_window: tuple[PositiveInt, PositiveInt] | None = Field(
        default=None, description="tokens before the phrase, from and to; up to the budget if not set"
    )
    answer_tokens: int | None = Field(
        default=None, ge=1, description="tokens after the phrase; a seventh of the budget"
    )
    penalty_length: int | None = Field(
        default=None, ge=1, description="Lmax: a right response of this length has the largest penalty"
    )
    penalty_tolerance: int | None = Field(
        default=None, ge=1, description="Lcache: tokens below penalty_length from which the penalty grows"
    )
    learning_rate: float = Field(default=1e-6, gt=0, description="at a batch of lr_reference_batch rollouts")
    lr_reference_batch: int = Field(default=1024, ge=1, description="batch size at which learning_rate holds")
    lr_scaling: Literal["constant", "linear", "sqrt"] = Field(default="sqrt", description="how it grows with B")
    warmup_steps: int = Field(default=10, ge=0, description="linear warm-up")
    optimizer: Literal["adamw", "sgd"] = Field(default="adamw", description="sgd is for theory: one plain step")
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    epsilon: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's decoupled decay")
    grad_clip: float | None = Field(default=1.0, gt=0, description="largest norm of a gradient")
    baseline_rollouts: _Baseline | None = Field(
        default=None,
        description="decoupled baseline (IsoCompute appendix G): sample this many, estimate the advantage on all, and "
        "train on rollouts_per_problem of them",
    )
    gae_discount: float = Field(default=1.0, gt=0, le=1, description="GAE: discount of a later token's reward")
    gae_lambda: float = Field(default=1.0, ge=0, le=1, description="GAE: λ; 1 compares whole returns with the critic")
    critic_learning_rate: float | None = Field(
        default=None,
        gt=0,
        description="GAE: the critic's learning rate at lr_reference_batch; ten times the policy's if not set",
    )
    value_clip: float = Field(default=0.2, gt=0, description="GAE: how far the critic's loss lets a value move")

    @model_validator(mode="before")
    @classmethod
    def _refuse_retired(cls, fields: Any) -> Any:
        """Name the successor of a field of version 0.1; `schedule` was stored as null unless n changed."""
        if not isinstance(fields, Mapping):
            return fields
        for old in RENAMED.keys() & fields.keys():
            raise ValueError(f"{old} is now called {RENAMED[old]}")
        if fields.get("schedule") not in (None, "none"):
            raise ValueError("schedule is gone: an n that grows during a run tied with the best fixed n; leave it out")
        return {name: value for name, value in fields.items() if name != "schedule"}

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        if self.advantage in ("none", "gae") and self.zero_variance_filter != "off":
            raise ValueError(f"zero_variance_filter needs a group baseline; advantage = '{self.advantage}' has none")
        if self.baseline_rollouts is not None and self.advantage in ("none", "gae"):
            raise ValueError(f"baseline_rollouts needs a group baseline; advantage = '{self.advantage}' has none")
        if self.pipeline_steps and self.off_policy_steps > 1:
            raise ValueError("pipeline_steps and off_policy_steps are two ways to be off-policy; use one")
        if self.ratio_reference == "sampler" and self.tis_cap is not None:
            raise ValueError(
                "ratio_reference = 'sampler' already weighs tokens by trainer over sampler probability; tis_cap would "
                "do it twice: use one of them"
            )
        off_policy = self.pipeline_steps or self.off_policy_steps > 1
        if off_policy and self.loss == "reinforce" and self.tis_cap is None:
            raise ValueError(
                "off-policy updates need the probability that a token was sampled with, and loss = 'reinforce' has no "
                "ratio that knows it: use tis_cap, or another loss"
            )
        if off_policy and self.loss != "reinforce" and self.ratio_reference == "trainer" and self.tis_cap is None:
            raise ValueError(
                "off-policy updates need the probability that a token was sampled with: use ratio_reference = "
                "'sampler', or tis_cap"
            )
        if self.interrupt_window is not None and self.interrupt_window[0] > self.interrupt_window[1]:
            raise ValueError(f"interrupt_window is {list(self.interrupt_window)}; give the shorter length first")
        return self

    @property
    def lora_scale(self) -> float:
        """What adapters are multiplied by."""
        return 2.0 if self.lora_rank is None or self.lora_alpha is None else self.lora_alpha / self.lora_rank

    @property
    def compares_groups(self) -> bool:
        """Whether an advantage needs at least two rollouts of a problem."""
        return self.advantage in ("group_std", "group_mean", "batch_std")


_HEALTHY: dict[str, Any] = {"loss": "clip", "advantage": "group_std", "temperature": 0.6, "top_p": 1.0, "tis_cap": 2.0}
_GRPO: dict[str, Any] = {"loss": "clip", "advantage": "group_std", "aggregation": "sequence", "kl_coef": 1e-3}
_SCALERL: dict[str, Any] = {
    "loss": "cispo",
    "ratio_cap": 5.0,
    "ratio_reference": "sampler",
    "advantage": "batch_std",
    "aggregation": "prompt",
    "fp32_head": True,
    "zero_variance_filter": "policy",
    "no_positive_resampling": 0.9,
    "length_control": "interrupt",
    "pipeline_steps": 8,
    "learning_rate": 5e-7,
    "lr_reference_batch": 768,
    "lr_scaling": "constant",
    "warmup_steps": 100,
    "epsilon": 1e-15,
    "weight_decay": 0.01,
}
RECIPES: dict[str, dict[str, Any]] = {
    "isocompute-easy": {**_HEALTHY, "kl_coef": 1e-3, "entropy_coef": 1e-3},
    "isocompute-hard": dict(_HEALTHY),
    "grpo": _GRPO,
    "dr-grpo": {"loss": "clip", "advantage": "group_mean", "aggregation": "fixed"},
    "dapo": {"loss": "clip", "advantage": "group_std", "clip_high": 0.28, "zero_variance_filter": "policy"},
    "gspo": {"loss": "gspo", "advantage": "group_std", "aggregation": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
    "cispo": {"loss": "cispo", "advantage": "batch_std", "aggregation": "prompt", "ratio_reference": "sampler"},
    "ppo": {"loss": "clip", "advantage": "gae"},
    "reinforce": {"loss": "reinforce", "advantage": "group_mean"},
    "scalerl": _SCALERL,
    # The recipes ScaleRL is compared with (its figure 2), as far as their own reports define them.
    "deepseek-grpo": {**_GRPO, "ratio_reference": "sampler", "off_policy_steps": 16},
    "qwen-dapo": {
        "loss": "clip",
        "advantage": "group_std",
        "clip_high": 0.28,
        "zero_variance_filter": "refill",
        "length_control": "penalty",
        "ratio_reference": "sampler",
        "off_policy_steps": 16,
    },
    "magistral": {
        "loss": "clip",
        "advantage": "batch_std",
        "clip_high": 0.28,
        "ratio_reference": "sampler",
        "zero_variance_filter": "policy",
        "length_control": "penalty",
        "pipeline_steps": 8,
    },
    "minimax-m1": {
        "loss": "cispo",
        "advantage": "group_std",
        "ratio_reference": "sampler",
        "zero_variance_filter": "refill",
        "off_policy_steps": 16,
    },
}
LEAVE_ONE_OUT: dict[str, dict[str, dict[str, Any]]] = {
    "scalerl": {
        "dapo-loss": {"loss": "clip", "clip_low": 0.2, "clip_high": 0.26},
        "bf16-head": {"fp32_head": False},
        "sequence-mean": {"aggregation": "sequence"},
        "group-std": {"advantage": "group_std"},
        "no-filter": {"zero_variance_filter": "off"},
        "no-curriculum": {"no_positive_resampling": "none"},
        "length-penalty": {"length_control": "penalty"},
        "ppo-off-policy-8": {"pipeline_steps": 0, "off_policy_steps": 8},
    }
}
"""For each recipe, what it becomes when one of its parts is taken out (ScaleRL figure 7)."""


def make_recipe(table: Mapping[str, Any], *, defaults: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe from a table: `name` picks one of RECIPES, other fields override it; unknown ones are refused.

    `defaults` are values measured for a model, such as its learning rate; they override those of the named recipe.
    """
    fields = dict(table)
    name = fields.pop("name", "grpo")
    if not isinstance(name, str) or name not in RECIPES:
        raise InputError(f"recipe.name: '{name}' is not one of {', '.join(sorted(RECIPES))}.")
    try:
        return Recipe(**{**RECIPES[name], **(defaults or {}), **_switched_off(fields)})
    except ValidationError as error:
        where, why = first_wrong(error, fields=Recipe.model_fields)
        raise InputError(f"recipe{'.' if where else ''}{where}: {why}.") from error


def sampled_per_problem(table: Mapping[str, Any], *, rollouts_per_problem: int) -> int:
    """Rollouts sampled for each problem: n, or `baseline_rollouts` with a decoupled baseline.

    The table need not be valid: `make_recipe` reports its errors.

    >>> sampled_per_problem({"baseline_rollouts": 16}, rollouts_per_problem=4)
    16
    """
    try:
        return _BASELINE.validate_python(table.get("baseline_rollouts"))
    except ValidationError:
        return rollouts_per_problem


def _switched_off(fields: dict[str, Any]) -> dict[str, Any]:
    """Optional fields with `none` replaced by None, since TOML has no null."""
    absent = {name for name, field in Recipe.model_fields.items() if type(None) in get_args(field.annotation)}
    return {name: None if name in absent and value == "none" else value for name, value in fields.items()}


def learning_rate(recipe: Recipe, *, batch_size: int, step: int) -> float:
    """The learning rate of update `step` (from 0) at a batch of B rollouts."""
    ratio = batch_size / recipe.lr_reference_batch
    scale = {"constant": 1.0, "linear": ratio, "sqrt": ratio**0.5}[recipe.lr_scaling]
    warm = min(1.0, (step + 1) / recipe.warmup_steps) if recipe.warmup_steps else 1.0
    return float(recipe.learning_rate * scale * warm)
