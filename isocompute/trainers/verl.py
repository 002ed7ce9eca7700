"""veRL 0.9.1: Hydra overrides of `ppo_trainer`, and a script that starts it.

`data.train_batch_size` and `ppo_mini_batch_size` both count problems; only where they are equal is an update on-policy.
A CISPO cap of 5 is `clip_ratio_high=4` here, and `clip_ratio_low=1` takes its lower bound away. Checkpoints
(`checkpoints/PROJECT/EXPERIMENT`) and the log (`PROJECT/EXPERIMENT.jsonl`) go by names, and a run goes on from whatever
checkpoint it finds there.
"""

from __future__ import annotations

import shlex

from isocompute.trainers import common, render
from isocompute.trainers.hardware import Hardware, Share, share_out
from isocompute.trainers.plan_input import Plan
from isocompute.trainers.result import Exported, File, Flat, Notes

__all__ = ["ADVANTAGES", "AGGREGATIONS", "LOSSES", "VERSION", "export"]

VERSION = "0.9.1"
LOSSES = {"clip": "vanilla", "gspo": "gspo", "cispo": "cispo", "reinforce": "gpg"}
ADVANTAGES = {
    "group_std": ("grpo", True),
    "group_mean": ("grpo", False),
    "batch_std": ("reinforce_plus_plus_baseline", True),
    "none": ("reinforce_plus_plus", True),
    "gae": ("gae", True),
}
"""`adv_estimator` and `norm_adv_by_std_in_grpo`, which only `grpo` reads."""
AGGREGATIONS = {"token": "token-mean", "sequence": "seq-mean-token-mean", "fixed": "seq-mean-token-sum-norm"}
ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"


def export(plan: Plan, hardware: Hardware) -> Exported:
    """Overrides and a script for `python3 -m verl.trainer.main_ppo`."""
    notes = Notes()
    common.fills_a_batch(plan, "veRL")
    share = share_out(plan, hardware)
    settings = _data(plan, notes) | _actor(plan, share, notes) | _rollout(plan)
    settings |= _algorithm(plan, notes) | _trainer(plan, hardware)
    common.general(plan, notes)
    notes.add("reward", "rewards come from data_source in the data, or set reward.custom_reward_function.")
    overrides = [render.hydra(key, value) for key, value in settings.items()]
    start = "to use: grep -v '^#' verl_overrides.txt | xargs python3 -m verl.trainer.main_ppo"
    return Exported(
        "verl",
        VERSION,
        (
            File(
                "run_verl.sh",
                render.shell_script(
                    render.header(plan, f"veRL {VERSION}", notes),
                    "python3 -m verl.trainer.main_ppo",
                    [[override] for override in overrides],
                ),
            ),
            File(
                "verl_overrides.txt",
                render.header(plan, f"veRL {VERSION}", notes, [start])
                + "".join(shlex.quote(override) + "\n" for override in overrides),
            ),
        ),
        tuple(notes),
        share.micro_batch,
        share.accumulation,
    )


def _data(plan: Plan, notes: Notes) -> Flat:
    return {
        "data.train_files": common.train_file(plan, notes),
        "data.val_files": common.val_file(plan, notes),
        "data.train_batch_size": plan.problems_per_batch,
        "data.max_prompt_length": plan.max_prompt_length,
        "data.max_response_length": plan.max_response_length,
        "data.filter_overlong_prompts": True,
        **({} if plan.seed is None else {"data.seed": plan.seed}),
    }


def _actor(plan: Plan, share: Share, notes: Notes) -> Flat:
    recipe = plan.recipe
    cispo = recipe.loss == "cispo"
    aggregation = AGGREGATIONS.get(recipe.aggregation)
    if aggregation is None:
        notes.add("aggregation", "there is no mean over each problem's tokens; token-mean stands in.")
    settings: Flat = {
        "actor_rollout_ref.model.path": common.model(plan, notes),
        f"{ACTOR}.ppo_mini_batch_size": plan.problems_per_batch,
        f"{ACTOR}.ppo_epochs": recipe.updates_per_batch,
        **_micro_batches(share),
        f"{ACTOR}.policy_loss.loss_mode": LOSSES[recipe.loss],
        f"{ACTOR}.clip_ratio_low": 1.0 if cispo else recipe.clip_low,
        f"{ACTOR}.clip_ratio_high": recipe.ratio_cap - 1 if cispo else recipe.clip_high,
        f"{ACTOR}.loss_agg_mode": aggregation or "token-mean",
        f"{ACTOR}.use_kl_loss": recipe.kl_coef > 0,
        f"{ACTOR}.kl_loss_coef": recipe.kl_coef,
        f"{ACTOR}.entropy_coeff": recipe.entropy_coef,
        f"{ACTOR}.optim.lr": plan.learning_rate,
        f"{ACTOR}.optim.lr_scheduler_type": "constant",
        f"{ACTOR}.optim.lr_warmup_steps": recipe.warmup_steps,
        f"{ACTOR}.optim.betas": [recipe.beta1, recipe.beta2],
        f"{ACTOR}.optim.weight_decay": recipe.weight_decay,
        f"{ACTOR}.optim.clip_grad": common.grad_clip(plan),
        f"{ACTOR}.grad_clip": common.grad_clip(plan),
    }
    if recipe.aggregation == "fixed":
        settings[f"{ACTOR}.loss_scale_factor"] = plan.max_response_length
    common.no_option(plan, notes, "epsilon", "fp32_head")
    return settings


def _micro_batches(share: Share) -> Flat:
    """Packing by tokens where a token limit is given, else equal micro-batches of sequences."""
    if share.tokens is not None:
        return {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": share.tokens}
    return {
        f"{ACTOR}.use_dynamic_bsz": False,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": share.micro_batch,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": share.micro_batch,
        f"{REF}.log_prob_micro_batch_size_per_gpu": share.micro_batch,
    }


def _rollout(plan: Plan) -> Flat:
    recipe = plan.recipe
    validation = plan.validation_samples or 1
    return {
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.n": plan.rollouts_per_problem,
        f"{ROLLOUT}.temperature": recipe.temperature,
        f"{ROLLOUT}.top_p": recipe.top_p,
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        f"{ROLLOUT}.calculate_log_probs": True,
        f"{ROLLOUT}.val_kwargs.n": validation,
        f"{ROLLOUT}.val_kwargs.do_sample": True,
        f"{ROLLOUT}.val_kwargs.temperature": recipe.temperature,
        f"{ROLLOUT}.val_kwargs.top_p": recipe.top_p,
        **({} if plan.seed is None else {f"{ROLLOUT}.seed": plan.seed, f"{ACTOR}.data_loader_seed": plan.seed}),
    }


def _algorithm(plan: Plan, notes: Notes) -> Flat:
    recipe = plan.recipe
    estimator, by_std = ADVANTAGES[recipe.advantage]
    if recipe.advantage == "batch_std":
        notes.add("advantage", "the batch's deviation is taken over tokens, and its mean is subtracted once more.")
    if recipe.advantage == "none":
        notes.add("advantage", "a bare reward is not offered: rewards are whitened over the batch.")
    if recipe.zero_variance_filter != "off":
        notes.add(
            "zero_variance_filter",
            "zero-variance problems stay in the average: algorithm.filter_groups would sample others in their place, "
            "which spends more than the plan.",
        )
    settings: Flat = {
        "algorithm.adv_estimator": estimator,
        "algorithm.norm_adv_by_std_in_grpo": by_std,
        "algorithm.use_kl_in_reward": False,
    }
    if recipe.advantage == "gae":
        settings |= {
            "algorithm.gamma": recipe.gae_discount,
            "algorithm.lam": recipe.gae_trace,
            "critic.optim.lr": common.critic_rate(plan),
            "critic.model.path": common.model(plan, notes),
            "critic.ppo_micro_batch_size_per_gpu": 1,
            "critic.cliprange_value": recipe.value_clip,
        }
    return settings | _correction(plan, notes)


def _correction(plan: Plan, notes: Notes) -> Flat:
    """Truncated importance sampling; or the sampler's log-probs in place of the trainer's old ones (`bypass_mode`).

    In bypass mode veRL corrects nothing else: the ratio to the sampler is the correction. It logs no entropy then, so
    that CISPO, which truncated importance sampling gives as well, goes without.
    """
    recipe = plan.recipe
    correction = "algorithm.rollout_correction"
    if recipe.ratio_anchor == "sampler" and recipe.loss in ("clip", "gspo"):
        return {f"{correction}.bypass_mode": True, f"{correction}.rollout_is": None}
    cap = common.truncation(plan, notes)
    settings: Flat = {f"{correction}.rollout_is": None if cap is None else "token"}
    if cap is not None:
        settings[f"{correction}.rollout_is_threshold"] = cap
    return settings


def _trainer(plan: Plan, hardware: Hardware) -> Flat:
    return {
        "trainer.project_name": "isocompute-runs",
        "trainer.experiment_name": common.run_name(plan),
        "trainer.total_training_steps": plan.update_steps,
        "trainer.total_epochs": plan.update_steps,  # an epoch has at least one step, so this never ends the run first
        "trainer.n_gpus_per_node": hardware.gpus_on_node,
        "trainer.nnodes": hardware.nodes,
        "trainer.test_freq": plan.validation_every,
        "trainer.val_before_train": True,
        "trainer.save_freq": plan.validation_every,
        "trainer.logger": ["console", "file"],
    }
