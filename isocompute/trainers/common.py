"""What every exporter has to say about a recipe, whatever the trainer."""

from __future__ import annotations

from hashlib import sha256

from isocompute.core.errors import InputError
from isocompute.core.recipe import learning_rate
from isocompute.trainers.plan_input import Plan
from isocompute.trainers.result import Notes

__all__ = [
    "NO_CLIP",
    "critic_rate",
    "fills_a_batch",
    "general",
    "grad_clip",
    "model",
    "no_option",
    "run_name",
    "train_file",
    "truncation",
    "val_file",
    "warmup_updates",
]

NO_CLIP = 1e9
"""A gradient norm that is never reached: trainers disagree on how to say 'do not clip'."""


_DECIDES = {"learning_rate", "recipe", "max_prompt_length", "max_response_length", "problems", "model", "train_file"}
"""Fields beside Bp, n, M and the seed that make a run another one."""


def run_name(plan: Plan) -> str:
    """The run's own name, for its checkpoints and logs: trainers go on from what they find under a name.

    Bp, n, M and the seed can be read; six letters stand for all else that makes it another run.

    >>> from isocompute.trainers.plan_input import make_plan
    >>> run_name(make_plan({"Bp": 32, "n": 8, "M": 100, "seed": 3})).rpartition("-")[0]
    'bp32-n8-m100-seed3'
    """
    seed = "" if plan.seed is None else f"-seed{plan.seed}"
    rest = sha256(plan.model_dump_json(include=_DECIDES).encode()).hexdigest()[:6]
    return f"bp{plan.problems_per_batch}-n{plan.rollouts_per_problem}-m{plan.update_steps}{seed}-{rest}"


def fills_a_batch(plan: Plan, trainer: str) -> None:
    """Refuse problems that are fewer than a batch, for trainers whose batches come from one pass over the data."""
    if plan.problems is not None and plan.problems < plan.problems_per_batch:
        raise InputError(
            f"plan: problems = {plan.problems}, fewer than the Bp = {plan.problems_per_batch} of a batch: {trainer} "
            "fills a batch from one pass over the data, so that none would be whole. Plan again with a Bp of "
            f"{plan.problems} or less, or with more problems."
        )


def grad_clip(plan: Plan) -> float:
    """The largest gradient norm."""
    return NO_CLIP if plan.recipe.grad_clip is None else plan.recipe.grad_clip


def critic_rate(plan: Plan) -> float:
    """The critic's learning rate at this batch size: a given one holds at `lr_batch` and grows with B as the policy's.

    >>> from isocompute.trainers.plan_input import make_plan
    >>> recipe = {"name": "ppo", "critic_learning_rate": 1e-5, "lr_batch": 1024, "lr_scaling": "sqrt"}
    >>> critic_rate(make_plan({"Bp": 512, "n": 8, "M": 100, "recipe": recipe}))
    2e-05
    """
    recipe = plan.recipe
    if recipe.critic_learning_rate is None:
        return 10 * plan.learning_rate
    of_critic = recipe.model_copy(update={"learning_rate": recipe.critic_learning_rate, "warmup_steps": 0})
    return learning_rate(of_critic, batch_size=plan.batch_size, step=0)


def warmup_updates(plan: Plan) -> int:
    """Warm-up in optimiser steps, for trainers whose schedule goes on with each of them; a recipe's counts batches."""
    return plan.recipe.warmup_steps * plan.recipe.updates_per_batch


def general(plan: Plan, notes: Notes) -> None:
    """What had to be chosen because the plan does not say it, and parts of a recipe that no trainer here has."""
    recipe = plan.recipe
    chosen = {
        "recipe": "not in the plan: the playbook's, GRPO with truncated importance sampling; KL and entropy as the "
        "plan has them, or off.",
        "learning_rate": f"not in the plan: {plan.learning_rate:.3g}, from {recipe.learning_rate:g} at a batch of "
        f"{recipe.lr_batch:,} by the {recipe.lr_scaling} rule.",
        "max_prompt_length": f"not in the plan: {plan.max_prompt_length}.",
        "max_response_length": f"not in the plan: {plan.max_response_length}.",
    }
    for name in plan.assumed:
        notes.add(name, chosen[name])
    if recipe.no_positive_resampling is not None:
        notes.add(
            "no_positive_resampling",
            f"problems whose pass rate reached {recipe.no_positive_resampling} stay in: no option for it; leave them "
            "out of the data between runs.",
        )
    if recipe.baseline_rollouts is not None:
        notes.add(
            "baseline_rollouts",
            f"the baseline is estimated on the n rollouts that are trained on, not on {recipe.baseline_rollouts}: no "
            "option for it.",
        )
    _only_warmup(plan, notes)
    if recipe.pipeline_steps or recipe.off_policy_steps > 1:
        field = "pipeline_steps" if recipe.pipeline_steps else "off_policy_steps"
        notes.add(
            field,
            f"written as on-policy training, not {field} = {getattr(recipe, field)}: asynchronous modes differ in what "
            "they promise about old tokens; switch yours on by hand, with that bound.",
        )
    if recipe.length_control == "interrupt":
        notes.add("length_control", "long responses are cut, not interrupted: no trainer forces an answer.")
    if recipe.length_control == "penalty":
        notes.add("length_control", "no length penalty: it belongs into your reward function (docs/scalerl.md).")
    if recipe.optimizer != "adamw":
        notes.add("optimizer", f"AdamW stands in for {recipe.optimizer}, which is for theory only.")


def _only_warmup(plan: Plan, notes: Notes) -> None:
    """Note a run that ends before the learning rate has risen to the plan's."""
    warmup, updates = plan.recipe.warmup_steps, plan.update_steps
    if warmup >= updates:
        notes.add(
            "warmup_steps",
            f"{warmup} updates of warm-up in a run of {updates}: the learning rate rises to the very end, where it is "
            f"at most {updates / warmup:.0%} of the plan's {plan.learning_rate:.3g}. Give the plan warmup_steps below "
            f"{updates}, or more updates.",
        )


def model(plan: Plan, notes: Notes) -> str:
    """The model, or a place to fill it in."""
    if plan.model is None:
        notes.add("model", "fill in the model (or export with --model).")
    return plan.model or "path/to/model"


def train_file(plan: Plan, notes: Notes, suffix: str = ".parquet") -> str:
    """The training problems, or a place to fill them in."""
    if plan.train_file is None:
        notes.add("train_file", "fill in the training problems.")
    return plan.train_file or f"path/to/train{suffix}"


def val_file(plan: Plan, notes: Notes, suffix: str = ".parquet") -> str:
    """The validation problems, or a place to fill them in."""
    if plan.val_file is None:
        notes.add("val_file", "fill in the validation problems.")
    return plan.val_file or f"path/to/validation{suffix}"


def truncation(plan: Plan, notes: Notes) -> float | None:
    """The cap on trainer over sampler probability. A token's ratio to the sampler is written as one.

    With one update a batch the trainer's own ratio is 1, so that min(π/π_sampler, cap) as a constant weight on the
    log-probability's gradient is CISPO anchored to the sampler, exactly. With 1 + clip_high as the cap it is a clip
    anchored to the sampler for every ratio that the clip leaves alone. GSPO's ratio is a sequence's, which no weight of
    tokens stands for, and REINFORCE has none.
    """
    recipe = plan.recipe
    if recipe.ratio_anchor == "trainer":
        return recipe.tis_cap
    if recipe.loss == "cispo":
        message = (
            "the sampler's ratio is capped by truncated importance sampling, which is the same at one update a batch."
        )
        notes.add("ratio_anchor", message)
        notes.add("tis_cap", f"{recipe.ratio_cap:g}: the cap of the ratio to the sampler, see ratio_anchor.")
        return recipe.ratio_cap
    if recipe.loss == "clip":
        cap = 1 + recipe.clip_high
        notes.add(
            "ratio_anchor",
            "the ratio is taken against the trainer's own log-probs; truncated importance sampling weighs tokens by "
            "the ratio to the sampler's. At one update a batch that is the same inside the clip; outside it every "
            f"token keeps a weight, {cap:g} at most, where the clip drops those whose advantage pushes further out.",
        )
        notes.add("tis_cap", f"{cap:g}: 1 + clip_high, see ratio_anchor.")
        return cap
    says = {
        "gspo": "the sequence's ratio is taken against the trainer's own log-probs, and nothing corrects for the "
        "sampler's: truncated importance sampling weighs tokens, not sequences.",
        "reinforce": "REINFORCE has no ratio, so there is nothing to anchor.",
    }
    notes.add("ratio_anchor", says[recipe.loss])
    return None


def no_option(plan: Plan, notes: Notes, *fields: str) -> None:
    """Note the recipe's fields that this trainer has no option for, where the recipe uses them."""
    recipe = plan.recipe
    uses = {
        "kl_coef": recipe.kl_coef > 0,
        "entropy_coef": recipe.entropy_coef > 0,
        "top_p": recipe.top_p < 1,
        "tis_cap": recipe.tis_cap is not None,
        "epsilon": recipe.epsilon != 1e-8,
        "fp32_head": recipe.fp32_head and "fp32_head" in recipe.model_fields_set,
        "updates_per_batch": recipe.updates_per_batch > 1,
        "seed": plan.seed is not None,
    }
    says = {
        "kl_coef": f"no KL term to the base model; the plan asks for {recipe.kl_coef:g}.",
        "entropy_coef": f"no entropy bonus; the plan asks for {recipe.entropy_coef:g}.",
        "top_p": f"the nucleus is always 1; the plan asks for {recipe.top_p:g}.",
        "tis_cap": f"no cap on trainer over sampler probability; the plan asks for {recipe.tis_cap}.",
        "epsilon": f"AdamW's epsilon stays 1e-8; the plan asks for {recipe.epsilon:g}.",
        "fp32_head": "no option for FP32 logits on both sides; on one side only they do harm.",
        "updates_per_batch": f"one update a batch; the plan asks for {recipe.updates_per_batch}.",
        "seed": f"no option for the seed; the plan asks for {plan.seed}.",
    }
    for field in fields:
        if uses[field]:
            notes.add(field, says[field])
