"""prime-rl: a TOML file for its `rl` command.

`orchestrator.batch_size` counts rollouts. Trainer and inference have GPUs of their own, sequences are packed by
tokens, and sampling never waits: strictly on-policy means that what is in flight at an update is thrown away.
"""

from __future__ import annotations

from isocompute.core.errors import InputError
from isocompute.trainers import common, render
from isocompute.trainers.hardware import Hardware
from isocompute.trainers.plan_input import Plan
from isocompute.trainers.result import Exported, File, Flat, Notes

__all__ = ["VERSION", "export"]

VERSION = "0.8.0"
COMMIT = "559b44772e471d1538537b8805cc77f3824a5e64"
IN_FLIGHT = 1024
"""prime-rl's own limit on rollouts in flight; a group must fit."""


def export(plan: Plan, hardware: Hardware) -> Exported:
    """`rl.toml`."""
    if plan.rollouts_per_problem < 2:
        raise InputError(
            "n = 1: prime-rl subtracts the group's mean, which leaves nothing of one rollout; take 2 or more."
        )
    notes = Notes()
    settings = _run(plan, hardware, notes) | _orchestrator(plan, notes) | _trainer(plan, hardware, notes)
    common.general(plan, notes)
    common.no_option(
        plan, notes, "kl_coef", "entropy_coef", "top_p", "tis_cap", "epsilon", "fp32_head", "updates_per_batch", "seed"
    )
    notes.add(
        "compute", "rollouts in flight at an update are dropped to stay on-policy: more is sampled than trained on."
    )
    notes.add("reward", "fill in the environment's taskset: it brings problems and rewards.")
    name = f"prime-rl {VERSION} ({COMMIT[:8]})"
    top = render.header(plan, name, notes, ["to use: uv run rl @ rl.toml"])
    return Exported("prime-rl", VERSION, (File("rl.toml", render.toml(top, settings)),), tuple(notes), None, None)


def _run(plan: Plan, hardware: Hardware, notes: Notes) -> Flat:
    settings: Flat = {
        "max_steps": plan.update_steps,
        "seq_len": plan.max_prompt_length + plan.max_response_length,
        "model.name": common.model(plan, notes),
        "ckpt.interval": plan.validation_every,
    }
    return settings | _deployment(hardware, notes)


def _deployment(hardware: Hardware, notes: Notes) -> Flat:
    """A quarter of the machine trains, the rest samples: sampling is what takes the time."""
    if hardware.gpus < 2:
        raise InputError("prime-rl trains and samples on different GPUs: it needs --gpus 2 or more.")
    if hardware.nodes == 1:
        train = max(1, hardware.gpus // 4)
        notes.add("gpus", f"{train} GPU(s) train and {hardware.gpus - train} sample; shift them if one side waits.")
        return {
            "deployment.gpus_per_node": hardware.gpus_on_node,
            "deployment.num_train_gpus": train,
            "deployment.num_infer_gpus": hardware.gpus - train,
        }
    train = max(1, hardware.nodes // 4)
    notes.add("gpus", f"{train} node(s) train and {hardware.nodes - train} sample, started through SLURM.")
    return {
        "deployment.type": "multi_node",
        "deployment.gpus_per_node": hardware.gpus_on_node,
        "deployment.num_train_nodes": train,
        "deployment.num_infer_nodes": hardware.nodes - train,
        "slurm.job_name": "prime-rl",
    }


def _orchestrator(plan: Plan, notes: Notes) -> Flat:
    recipe = plan.recipe
    environment = {"name": "problems", "env.taskset.id": plan.train_file or "your-environment"}
    if recipe.advantage != "group_mean":
        notes.add("advantage", f"rewards minus the group's mean, not '{recipe.advantage}': there is no other scale.")
    settings: Flat = {
        "orchestrator.batch_size": plan.batch_size,
        "orchestrator.group_size": plan.rollouts_per_problem,
        "orchestrator.max_off_policy_steps": 0,
        "orchestrator.algo.type": "grpo",
        "orchestrator.train.filter_zero_advantages": recipe.zero_variance_filter != "off",
        "orchestrator.train.sampling.temperature": recipe.temperature,
        "orchestrator.train.sampling.max_completion_tokens": plan.max_response_length,
        "orchestrator.train.source": [environment],
    }
    if recipe.zero_variance_filter == "policy":
        notes.add("zero_variance_filter", "zero-advantage tokens leave the whole loss, not the policy's part alone.")
    if plan.rollouts_per_problem > IN_FLIGHT:
        settings["orchestrator.concurrency.max_inflight"] = plan.rollouts_per_problem
    if plan.val_file is None:
        notes.add("val_file", "fill in the validation problems: a taskset of orchestrator.eval.source.")
    return settings | {
        "orchestrator.eval.group_size": plan.validation_samples or 1,
        "orchestrator.eval.interval": plan.validation_every,
        **_as_in_training(plan),
        "orchestrator.eval.source": [environment | {"env.taskset.id": plan.val_file or "your-environment"}],
    }


def _as_in_training(plan: Plan) -> Flat:
    """Validation's sampling, every value said.

    Rollouts to train on are requested as tokens, with a nucleus of 1 and vLLM's own defaults; validation asks for chat
    completions, where a value that is missing comes from the model's `generation_config.json`.
    """
    sampling = "orchestrator.eval.sampling"
    return {
        f"{sampling}.temperature": plan.recipe.temperature,
        f"{sampling}.top_p": 1.0,
        f"{sampling}.top_k": -1,
        f"{sampling}.min_p": 0.0,
        f"{sampling}.max_completion_tokens": plan.max_response_length,
        f"{sampling}.extra_body.repetition_penalty": 1.0,
    }


def _trainer(plan: Plan, hardware: Hardware, notes: Notes) -> Flat:
    recipe = plan.recipe
    masked = recipe.loss == "clip"
    if recipe.loss != "clip":
        notes.add("loss", f"no {recipe.loss}: rewards weigh the untruncated ratio to the sampler, masks off.")
        notes.add("clip_low", "see loss.")
        notes.add("clip_high", "see loss.")
        notes.add("ratio_cap", "see loss.")
    else:
        notes.add("loss", "tokens are masked where their probability (not its ratio) moved by more than the clip.")
    if recipe.aggregation != "token":
        notes.add("aggregation", f"the loss is averaged over tokens, not by '{recipe.aggregation}'.")
    if recipe.ratio_anchor != "sampler":
        notes.add("ratio_anchor", "the ratio is always taken against the sampler's log-probs.")
    settings: Flat = {
        "trainer.loss.type": "default",
        "trainer.loss.dppo_mask_low": recipe.clip_low if masked else 1.0,
        "trainer.loss.dppo_mask_high": recipe.clip_high if masked else 1.0,
        "trainer.loss.kl_tau": 0.0,  # a penalty to the sampler, not to the base model
        "trainer.optim.type": "adamw",
        "trainer.optim.lr": plan.learning_rate,
        "trainer.optim.betas1": recipe.beta1,
        "trainer.optim.betas2": recipe.beta2,
        "trainer.optim.weight_decay": recipe.weight_decay,
        "trainer.optim.max_norm": common.grad_clip(plan),
        "inference.vllm.max_model_len": plan.max_prompt_length + plan.max_response_length,
    }
    if recipe.warmup_steps:
        settings |= {
            "trainer.scheduler.type": "linear",
            "trainer.scheduler.warmup_steps": recipe.warmup_steps,
            "trainer.scheduler.decay_steps": 0,
        }
    else:
        settings["trainer.scheduler.type"] = "constant"
    if hardware.max_tokens is not None:
        settings["trainer.model.seq_len"] = max(hardware.max_tokens, plan.max_prompt_length + plan.max_response_length)
    return settings
