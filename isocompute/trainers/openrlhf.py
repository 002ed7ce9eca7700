"""OpenRLHF 0.11: arguments of `openrlhf.cli.train_ppo_ray`.

`rollout.batch_size` counts problems and `train.batch_size` rollouts. There is no step count: M is
max_samples // Bp · episodes, and warm-up is a share of it. An M that is no such product over all of the problems ends
a little early. A run goes on from a checkpoint only with `--ckpt.load_enable`, but all write to one folder by default.
"""

from __future__ import annotations

import math

from isocompute.trainers import common, render
from isocompute.trainers.hardware import Hardware, Share, share_out
from isocompute.trainers.plan_input import Plan
from isocompute.trainers.result import Exported, File, Flat, Notes

__all__ = ["ADVANTAGES", "VERSION", "export"]

VERSION = "0.11.0"
COMMIT = "3c3be6234e0cb353e76bb8019947db9dfe99fca7"
ADVANTAGES = {
    "group_std": "group_norm",
    "group_mean": "dr_grpo",
    "batch_std": "reinforce_baseline",
    "none": "reinforce",
    "gae": "gae",
}

_WEIGHT = 10
"""Of a share of the updates that is left out, against the same share of the problems."""


def export(plan: Plan, hardware: Hardware) -> Exported:
    """A script with the arguments, one a line."""
    notes = Notes()
    common.fills_a_batch(plan, "OpenRLHF")
    share = share_out(plan, hardware)
    folder = f"ckpt/{common.run_name(plan)}"
    plan, episodes = _in_episodes(plan, notes)
    settings = (
        _placement(plan, hardware) | _data(plan, episodes, notes) | _batches(plan, share) | _algorithm(plan, notes)
    )
    settings |= _optimizer(plan) | {"ckpt.output_dir": folder, "ckpt.path": f"{folder}/checkpoints"}
    common.general(plan, notes)
    notes.add("reward", "fill in --reward.remote_url: a reward function's Python file, or a server.")
    return Exported(
        "openrlhf",
        VERSION,
        (
            File(
                "run_openrlhf.sh",
                render.shell_script(
                    render.header(plan, f"OpenRLHF {VERSION}", notes),
                    "python3 -m openrlhf.cli.train_ppo_ray",
                    render.flags(settings),
                ),
            ),
        ),
        tuple(notes),
        share.micro_batch,
        share.accumulation,
    )


def _placement(plan: Plan, hardware: Hardware) -> Flat:
    critic: Flat = {"critic.num_nodes": hardware.nodes, "critic.num_gpus_per_node": hardware.gpus_on_node}
    return {
        "actor.num_nodes": hardware.nodes,
        "actor.num_gpus_per_node": hardware.gpus_on_node,
        "ref.num_nodes": hardware.nodes,
        "ref.num_gpus_per_node": hardware.gpus_on_node,
        **(critic if plan.recipe.advantage == "gae" else {}),
        "vllm.num_engines": hardware.gpus,
        "vllm.tensor_parallel_size": 1,
        "vllm.enable_sleep": True,
        "ds.enable_sleep": True,
        "train.colocate_all": True,
    }


def _in_episodes(plan: Plan, notes: Notes) -> tuple[Plan, int]:
    """The plan with the updates that whole episodes come to, never more than it has, and the number of episodes."""
    wanted = plan.update_steps
    if plan.problems is None:
        notes.add(
            "problems",
            f"needs {plan.problems_per_batch * wanted:,} problems in the data for {wanted} updates in one episode; "
            "with fewer, give the plan its `problems` and export again.",
        )
        return plan, 1
    episodes, batches = _episodes(wanted, plan.problems // plan.problems_per_batch)
    updates, used = episodes * batches, batches * plan.problems_per_batch
    if used < plan.problems:
        notes.add(
            "problems",
            f"{used:,} of the {plan.problems:,} problems are used (data.max_samples), and at most as many to validate.",
        )
    if updates < wanted:
        notes.add(
            "update_steps",
            f"{updates} of the plan's {wanted} updates: {episodes} episode(s) of {batches}. There is no step count, "
            f"and {wanted} would leave more of the problems out.",
        )
        notes.add("compute", f"{updates * plan.batch_size:,} of {plan.compute:,} rollouts, see update_steps.")
    return plan.model_copy(update={"update_steps": updates}), episodes


def _episodes(updates: int, whole: int) -> tuple[int, int]:
    """Episodes and batches of each, at most `whole` batches and `updates` in all.

    As near to all updates on all problems as whole episodes come: a share of the updates that is left out weighs
    `_WEIGHT` times as much as one of the problems.

    >>> _episodes(101, 31), _episodes(100, 31), _episodes(20, 31)
    ((4, 25), (4, 25), (1, 20))
    """
    least = math.ceil(updates / whole)

    def left_out(episodes: int) -> float:
        batches = min(whole, updates // episodes)
        return _WEIGHT * (1 - episodes * batches / updates) + (1 - batches / whole)

    episodes = min(range(max(1, least - 1), 2 * least + 1), key=left_out)
    return episodes, min(whole, updates // episodes)


def _data(plan: Plan, episodes: int, notes: Notes) -> Flat:
    """Problems and how often: an episode is one pass over `max_samples` of them."""
    settings: Flat = {
        "actor.model_name_or_path": common.model(plan, notes),
        "reward.remote_url": "path/to/reward.py",
        "data.prompt_dataset": common.train_file(plan, notes, ".jsonl"),
        "data.max_samples": plan.problems_per_batch * plan.update_steps // episodes,
        "train.num_episodes": episodes,
        "data.max_len": plan.max_prompt_length + plan.max_response_length,
        "rollout.max_new_tokens": plan.max_response_length,
        "data.apply_chat_template": True,
        "eval.dataset": common.val_file(plan, notes, ".jsonl"),
        "eval.steps": plan.validation_every,
        "eval.temperature": plan.recipe.temperature,
    }
    if plan.validation_samples is not None:
        settings["eval.n_samples_per_prompt"] = plan.validation_samples
    if plan.seed is not None:
        settings["train.seed"] = plan.seed
    return settings


def _batches(plan: Plan, share: Share) -> Flat:
    settings: Flat = {
        "rollout.batch_size": plan.problems_per_batch,
        "rollout.n_samples_per_prompt": plan.rollouts_per_problem,
        "train.batch_size": plan.batch_size,
        "train.max_epochs": plan.recipe.updates_per_batch,
        "rollout.temperature": plan.recipe.temperature,
        "rollout.top_p": plan.recipe.top_p,
    }
    if share.tokens is not None:
        return settings | {"train.dynamic_batch_enable": True, "train.max_tokens_per_gpu": share.tokens}
    return settings | {
        "train.micro_batch_size": share.micro_batch,
        "rollout.micro_batch_size": share.micro_batch,
    }


def _algorithm(plan: Plan, notes: Notes) -> Flat:
    recipe = plan.recipe
    loss = "gspo" if recipe.loss == "gspo" else "ppo"
    if recipe.loss in ("reinforce", "cispo"):
        notes.add("loss", f"PPO's clip stands in for {recipe.loss}; at one update a batch the gradients are equal.")
        notes.add("ratio_cap", "see loss.")
    wanted = "sequence" if loss == "gspo" else "token"
    if recipe.aggregation != wanted:
        notes.add("aggregation", f"{loss} is averaged by '{wanted}' here, not by '{recipe.aggregation}'.")
    if recipe.advantage in ("batch_std", "none"):
        notes.add("advantage", "advantages are whitened over the batch's tokens.")
    settings: Flat = {
        "actor.policy_loss_type": loss,
        "actor.eps_clip_low_high": [recipe.clip_low, recipe.clip_high],
        "algo.advantage.estimator": ADVANTAGES[recipe.advantage],
        "algo.kl.init_coef": recipe.kl_coef,
    }
    if recipe.kl_coef > 0:
        settings |= {"algo.kl.use_loss": True, "algo.kl.estimator": "k3"}
    if recipe.entropy_coef > 0:
        settings["actor.entropy_coef"] = recipe.entropy_coef
    if recipe.advantage == "gae":
        settings |= {
            "algo.advantage.gamma": recipe.gae_discount,
            "algo.advantage.lambd": recipe.gae_trace,
            "critic.adam.lr": common.critic_rate(plan),
            "critic.value_clip": recipe.value_clip,
        }
    if recipe.zero_variance_filter != "off":
        notes.add(
            "zero_variance_filter",
            "zero-variance problems stay in the average: algo.dynamic_filtering would sample others in their place, "
            "which spends more than the plan.",
        )
    common.no_option(plan, notes, "fp32_head")
    return settings | _correction(plan, notes)


def _correction(plan: Plan, notes: Notes) -> Flat:
    """Truncated importance sampling; with GSPO the same flag anchors the sequence's ratio to the sampler instead."""
    recipe = plan.recipe
    if recipe.loss == "gspo":
        if recipe.tis_cap is not None:
            notes.add(
                "tis_cap", "with gspo the correction is the ratio itself, taken against the sampler, without a cap."
            )
        return {"algo.advantage.is_correction_enable": True} if recipe.ratio_anchor == "sampler" else {}
    cap = common.truncation(plan, notes)
    if cap is None:
        return {}
    return {
        "algo.advantage.is_correction_enable": True,
        "algo.advantage.is_correction_type": "tis",
        "algo.advantage.is_correction_threshold": [0.0, cap],
    }


def _optimizer(plan: Plan) -> Flat:
    recipe = plan.recipe
    steps = plan.update_steps * recipe.updates_per_batch
    # The trainer rounds steps · ratio up: half a step less makes that exact whatever the rounding of the division.
    ratio = (common.warmup_updates(plan) - 0.5) / steps if recipe.warmup_steps else 0.0
    return {
        "actor.adam.lr": plan.learning_rate,
        "actor.adam.betas": [recipe.beta1, recipe.beta2],
        "actor.adam.eps": recipe.epsilon,
        "actor.adam.weight_decay": recipe.weight_decay,
        "actor.lr_scheduler": "constant_with_warmup",
        "actor.lr_warmup_ratio": ratio,
        "actor.max_norm": common.grad_clip(plan),
        "actor.gradient_checkpointing_enable": True,
        "ckpt.save_steps": plan.validation_every,
    }
