"""NeMo-RL: a YAML file on top of its own `examples/configs/grpo_math_1B.yaml`.

`policy.train_global_batch_size` counts rollouts: Bp · n is one update a batch. A CISPO cap of 5 is `ratio_clip_max: 4`.
"""

from __future__ import annotations

from isocompute.core.errors import InputError
from isocompute.trainers import common, render
from isocompute.trainers.hardware import Hardware, Share, share_out
from isocompute.trainers.plan_input import Plan
from isocompute.trainers.result import Exported, File, Flat, Notes

__all__ = ["ADVANTAGES", "VERSION", "export"]

VERSION = "0.6.0"
COMMIT = "7ea279abfbeb698b092856d0dab61e7cf39bc909"
ADVANTAGES = {
    "group_std": ("grpo", True, True),
    "group_mean": ("grpo", False, True),
    "batch_std": ("reinforce_plus_plus", False, True),
    "none": ("reinforce_plus_plus", False, False),
}
"""`adv_estimator.name`, `normalize_rewards`, `adv_estimator.minus_baseline`."""
ALL_PROBLEMS = 10_000_000
"""A limit on validation problems that no set reaches; the loop over them ends with the set."""


def export(plan: Plan, hardware: Hardware) -> Exported:
    """`nemo_rl.yaml`."""
    notes = Notes()
    common.fills_a_batch(plan, "NeMo-RL")
    share = share_out(plan, hardware)
    settings: Flat = {"defaults": "grpo_math_1B.yaml"}
    settings |= _grpo(plan, notes) | _loss(plan, notes) | _policy(plan, share, notes) | _cluster(plan, hardware, notes)
    common.general(plan, notes)
    common.no_option(plan, notes, "entropy_coef", "fp32_head", "updates_per_batch")
    notes.add("reward", "the `math` environment scores the answers; fill in yours.")
    start = "to use: copy beside grpo_math_1B.yaml in examples/configs, then uv run examples/run_grpo.py --config FILE"
    top = render.header(plan, f"NeMo-RL {VERSION} ({COMMIT[:8]})", notes, [start])
    file = File("nemo_rl.yaml", render.yaml_text(top, settings))
    return Exported("nemo-rl", VERSION, (file,), tuple(notes), share.micro_batch, share.accumulation)


def _grpo(plan: Plan, notes: Notes) -> Flat:
    recipe = plan.recipe
    name, by_std, baseline = ADVANTAGES.get(recipe.advantage, ADVANTAGES["group_mean"])
    if recipe.advantage == "batch_std":
        notes.add("advantage", "the batch's deviation is taken over tokens, and its mean is subtracted once more.")
    if recipe.advantage == "none":
        notes.add("advantage", "a bare reward is not offered: rewards are whitened over the batch.")
    if recipe.advantage == "gae":
        if plan.rollouts_per_problem < 2:
            raise InputError(
                "n = 1: the group's mean stands in for a critic in NeMo-RL's GRPO, and leaves nothing of one rollout; "
                "take 2 or more."
            )
        notes.add(
            "advantage", "PPO has a config of its own (ppo_math_1B.yaml); the group's mean stands in for a critic."
        )
    if recipe.zero_variance_filter != "off":
        notes.add(
            "zero_variance_filter",
            "zero-variance problems stay in the average: grpo.use_dynamic_sampling would sample others in their "
            "place, which spends more than the plan.",
        )
    settings: Flat = {
        "grpo.num_prompts_per_step": plan.problems_per_batch,
        "grpo.num_generations_per_prompt": plan.rollouts_per_problem,
        "grpo.max_num_steps": plan.update_steps,
        "grpo.max_num_epochs": plan.update_steps,  # an epoch has at least one step, so this never ends the run first
        "grpo.normalize_rewards": by_std,
        "grpo.use_leave_one_out_baseline": False,
        "grpo.adv_estimator.name": name,
        "grpo.adv_estimator.minus_baseline": baseline,
        "grpo.val_period": plan.validation_every,
        "grpo.val_at_start": True,
        "grpo.max_val_samples": ALL_PROBLEMS,
        "checkpointing.checkpoint_dir": f"results/{common.run_name(plan)}",  # a run goes on from what it finds there
        "checkpointing.save_period": plan.validation_every,
        "logger.log_dir": f"logs/{common.run_name(plan)}",
    }
    if plan.validation_samples is not None:
        settings["grpo.val_num_generations_per_prompt"] = plan.validation_samples
    if plan.seed is not None:
        settings["grpo.seed"] = plan.seed
    return settings


def _loss(plan: Plan, notes: Notes) -> Flat:
    recipe = plan.recipe
    cispo, gspo = recipe.loss == "cispo", recipe.loss == "gspo"
    token = not gspo and (cispo or recipe.aggregation != "sequence")
    if recipe.aggregation != ("token" if token else "sequence"):
        notes.add("aggregation", f"averaged over {'tokens' if token else 'responses'}, not by '{recipe.aggregation}'.")
    cap = common.truncation(plan, notes)
    return {
        "loss_fn.reference_policy_kl_penalty": recipe.kl_coef,
        "loss_fn.ratio_clip_min": 1.0 if cispo else recipe.clip_low,
        "loss_fn.ratio_clip_max": recipe.ratio_cap - 1 if cispo else recipe.clip_high,
        "loss_fn.use_cispo": cispo,
        "loss_fn.disable_ppo_ratio": recipe.loss == "reinforce",
        "loss_fn.sequence_level_importance_ratios": gspo,
        "loss_fn.token_level_loss": token,
        "loss_fn.use_importance_sampling_correction": cap is not None,
        "loss_fn.truncated_importance_sampling_type": None if cap is None else "tis",
        "loss_fn.truncated_importance_sampling_ratio": cap,
    }


def _policy(plan: Plan, share: Share, notes: Notes) -> Flat:
    recipe = plan.recipe
    total = plan.max_prompt_length + plan.max_response_length
    settings: Flat = {
        "policy.model_name": common.model(plan, notes),
        "policy.train_global_batch_size": plan.batch_size,
        "policy.train_micro_batch_size": share.micro_batch,
        "policy.max_total_sequence_length": total,
        "policy.max_grad_norm": common.grad_clip(plan),
        "policy.optimizer.name": "torch.optim.AdamW",
        "policy.optimizer.kwargs.lr": plan.learning_rate,
        "policy.optimizer.kwargs.weight_decay": recipe.weight_decay,
        "policy.optimizer.kwargs.betas": [recipe.beta1, recipe.beta2],
        "policy.optimizer.kwargs.eps": recipe.epsilon,
        "policy.scheduler": _warmup(recipe.warmup_steps),
        "policy.generation.temperature": recipe.temperature,
        "policy.generation.top_p": recipe.top_p,
        "policy.generation.max_new_tokens": plan.max_response_length,
        "data.max_input_seq_length": plan.max_prompt_length,
    }
    if share.tokens is not None:
        settings |= {
            "policy.sequence_packing.enabled": True,
            "policy.sequence_packing.train_mb_tokens": share.tokens,
            "policy.sequence_packing.logprob_mb_tokens": share.tokens,
        }
    return settings


def _warmup(steps: int) -> list[Flat]:
    """A linear rise, then constant; the last entry says where one gives way to the other."""
    rise = {"start_factor": 1 / max(1, steps), "end_factor": 1.0, "total_iters": steps}
    schedule: list[Flat] = [{"name": "torch.optim.lr_scheduler.LinearLR", "kwargs": rise}] if steps else []
    constant = {"factor": 1.0, "total_iters": 10_000_000_000}
    schedule.append({"name": "torch.optim.lr_scheduler.ConstantLR", "kwargs": constant})
    return [*schedule, {"milestones": [steps] if steps else []}]


def _cluster(plan: Plan, hardware: Hardware, notes: Notes) -> Flat:
    train: Flat = {"dataset_name": "ResponseDataset", "data_path": common.train_file(plan, notes, ".jsonl")}
    settings: Flat = {"data.train": train}
    if plan.val_file is None:
        notes.add(
            "val_file",
            "fill in the validation problems (data.validation); without them 5% of the training problems are held back "
            "to validate on.",
        )
    else:
        train["split_validation_size"] = 0.0  # the config below it holds 5% of the training data back
        settings["data.validation"] = {"dataset_name": "ResponseDataset", "data_path": plan.val_file}
    return settings | {"cluster.gpus_per_node": hardware.gpus_on_node, "cluster.num_nodes": hardware.nodes}
