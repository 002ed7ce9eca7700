"""SkyRL: arguments of `skyrl.train.entrypoints.main_base`.

`train_batch_size` and `policy_mini_batch_size` both count problems. The KL loss is on by default. The only trainer here
that averages by problem and that anchors CISPO to the sampler by an option of its own. A run goes on from the latest
checkpoint under `ckpt_path`, which has to be absolute: Ray's workers start in a copy of the working folder.
"""

from __future__ import annotations

from isocompute.trainers import common, render
from isocompute.trainers.hardware import Hardware, Share, share_out
from isocompute.trainers.plan_input import Plan
from isocompute.trainers.result import Exported, File, Flat, Notes

__all__ = ["ADVANTAGES", "AGGREGATIONS", "LOSSES", "VERSION", "export"]

VERSION = "0.3.0"
COMMIT = "a9564572eb8e91076be43c1bd5e4615e3de17265"
LOSSES = {"clip": "regular", "gspo": "gspo", "cispo": "cispo", "reinforce": "regular"}
ADVANTAGES = {
    "group_std": ("grpo", True, False),
    "group_mean": ("grpo", False, False),
    "batch_std": ("grpo", False, True),
    "none": ("reinforce++", False, False),
    "gae": ("gae", True, False),
}
"""`advantage_estimator`, `grpo_norm_by_std`, `advantage_batch_normalize`."""
AGGREGATIONS = {
    "token": "token_mean",
    "sequence": "sequence_mean",
    "prompt": "prompt_mean",
    "fixed": "seq_mean_token_sum_norm",
}
ALGORITHM = "trainer.algorithm"


def export(plan: Plan, hardware: Hardware) -> Exported:
    """A script with the arguments, one a line."""
    notes = Notes()
    common.fills_a_batch(plan, "SkyRL")
    share = share_out(plan, hardware)
    settings = _data(plan, notes) | _batches(plan, hardware, share) | _algorithm(plan, notes) | _correction(plan, notes)
    settings |= _generator(plan) | _optimizer(plan)
    common.general(plan, notes)
    common.no_option(plan, notes, "epsilon", "fp32_head")
    notes.add("reward", "fill in environment.env_class: it scores the answers.")
    notes.add("logger", "the console, which `import` reads; with WANDB_API_KEY set, trainer.logger=wandb is W&B's.")
    return Exported(
        "skyrl",
        VERSION,
        (
            File(
                "run_skyrl.sh",
                render.shell_script(
                    render.header(plan, f"SkyRL {VERSION} ({COMMIT[:8]})", notes),
                    "uv run --isolated --extra fsdp -m skyrl.train.entrypoints.main_base",
                    [[render.dotlist(key, value)] for key, value in settings.items()],
                    [f'"{key}=$HOME/{folder}"' for key, folder in _folders(plan).items()],
                ),
            ),
        ),
        tuple(notes),
        share.micro_batch,
        share.accumulation,
    )


def _data(plan: Plan, notes: Notes) -> Flat:
    return {
        "data.train_data": [common.train_file(plan, notes)],
        "data.val_data": [common.val_file(plan, notes)],
        "environment.env_class": "gsm8k",
        "trainer.policy.model.path": common.model(plan, notes),
        "trainer.run_name": common.run_name(plan),
        "trainer.logger": "console",  # W&B by default, which stops a run without a key at its start
        "trainer.max_prompt_length": plan.max_prompt_length,
        **({} if plan.seed is None else {"trainer.seed": plan.seed}),
    }


def _folders(plan: Plan) -> Flat:
    """Where checkpoints and exported models go, below the home folder as by default."""
    name = common.run_name(plan)
    return {"trainer.ckpt_path": f"ckpts/{name}", "trainer.export_path": f"exports/{name}"}


def _batches(plan: Plan, hardware: Hardware, share: Share) -> Flat:
    placement = "trainer.placement"
    settings: Flat = {
        "trainer.strategy": "fsdp",
        f"{placement}.colocate_all": True,
        **{f"{placement}.{who}_num_nodes": hardware.nodes for who in ("policy", "ref", "critic")},
        **{f"{placement}.{who}_num_gpus_per_node": hardware.gpus_on_node for who in ("policy", "ref", "critic")},
        "generator.inference_engine.num_engines": hardware.gpus,
        "generator.inference_engine.tensor_parallel_size": 1,
        "trainer.max_training_steps": plan.update_steps,
        "trainer.epochs": plan.update_steps,  # an epoch has at least one step, so this never ends the run first
        "trainer.train_batch_size": plan.problems_per_batch,
        "trainer.policy_mini_batch_size": plan.problems_per_batch,
        "trainer.update_epochs_per_batch": plan.recipe.updates_per_batch,
        "trainer.micro_train_batch_size_per_gpu": share.micro_batch,
        "trainer.micro_forward_batch_size_per_gpu": share.micro_batch,
        "trainer.eval_interval": plan.validation_every,
        "trainer.eval_before_train": True,
        "trainer.ckpt_interval": plan.validation_every,
    }
    if share.tokens is not None:
        settings["trainer.max_tokens_per_microbatch"] = share.tokens
    return settings


def _algorithm(plan: Plan, notes: Notes) -> Flat:
    recipe = plan.recipe
    estimator, by_group, by_batch = ADVANTAGES[recipe.advantage]
    if recipe.loss == "reinforce":
        notes.add("loss", "the clipped loss stands in for REINFORCE; at one update a batch the gradients are equal.")
    if recipe.advantage == "batch_std":
        notes.add("advantage", "the batch's deviation is taken over tokens, and its mean is subtracted once more.")
    if recipe.advantage == "none":
        notes.add("advantage", "a bare reward is not offered: rewards are whitened over the batch.")
    if recipe.zero_variance_filter == "policy":
        notes.add("zero_variance_filter", "zero-variance problems leave the whole loss, not the policy's part alone.")
    settings: Flat = {
        f"{ALGORITHM}.advantage_estimator": estimator,
        f"{ALGORITHM}.grpo_norm_by_std": by_group,
        f"{ALGORITHM}.advantage_batch_normalize": by_batch,
        f"{ALGORITHM}.policy_loss_type": LOSSES[recipe.loss],
        f"{ALGORITHM}.loss_reduction": AGGREGATIONS[recipe.aggregation],
        f"{ALGORITHM}.eps_clip_low": recipe.clip_low,
        f"{ALGORITHM}.eps_clip_high": recipe.clip_high,
        f"{ALGORITHM}.use_kl_loss": recipe.kl_coef > 0,
        f"{ALGORITHM}.kl_loss_coef": recipe.kl_coef,
        f"{ALGORITHM}.use_entropy_loss": recipe.entropy_coef > 0,
        f"{ALGORITHM}.entropy_loss_coef": recipe.entropy_coef,
        f"{ALGORITHM}.zero_variance_filter": recipe.zero_variance_filter != "off",
    }
    if recipe.aggregation == "fixed":
        settings[f"{ALGORITHM}.max_seq_len"] = plan.max_response_length
    if recipe.advantage == "gae":
        settings |= {
            f"{ALGORITHM}.gamma": recipe.gae_discount,
            f"{ALGORITHM}.lambd": recipe.gae_trace,
            f"{ALGORITHM}.value_clip": recipe.value_clip,
            "trainer.critic.model.path": common.model(plan, notes),
            "trainer.critic.optimizer_config.lr": common.critic_rate(plan),
            "trainer.critic_mini_batch_size": plan.problems_per_batch,
        }
    return settings


def _correction(plan: Plan, notes: Notes) -> Flat:
    """Truncated importance sampling, or CISPO's own anchor to the sampler, which is one already."""
    recipe = plan.recipe
    settings: Flat = {}
    if recipe.loss == "cispo":
        settings = {
            f"{ALGORITHM}.cispo.cispo_eps_clip_low": 1.0,
            f"{ALGORITHM}.cispo.cispo_eps_clip_high": recipe.ratio_cap - 1,
            f"{ALGORITHM}.cispo.cispo_anchor": "rollout" if recipe.ratio_anchor == "sampler" else "old",
        }
        if recipe.ratio_anchor == "sampler":
            if recipe.tis_cap is not None:
                notes.add("tis_cap", "left out: a ratio to the sampler is the correction already.")
            return settings
    cap = common.truncation(plan, notes)
    if cap is not None:
        correction = f"{ALGORITHM}.off_policy_correction"
        settings |= {f"{correction}.tis_ratio_type": "token", f"{correction}.token_tis_ratio_clip_high": cap}
    return settings


def _generator(plan: Plan) -> Flat:
    recipe = plan.recipe
    return {
        "generator.n_samples_per_prompt": plan.rollouts_per_problem,
        "generator.sampling_params.temperature": recipe.temperature,
        "generator.sampling_params.top_p": recipe.top_p,
        "generator.sampling_params.max_generate_length": plan.max_response_length,
        "generator.sampling_params.logprobs": 1,
        "generator.eval_n_samples_per_prompt": plan.validation_samples or 1,
        "generator.eval_sampling_params.temperature": recipe.temperature,
        "generator.eval_sampling_params.top_p": recipe.top_p,
        "generator.eval_sampling_params.max_generate_length": plan.max_response_length,
    }


def _optimizer(plan: Plan) -> Flat:
    recipe = plan.recipe
    optimizer = "trainer.policy.optimizer_config"
    return {
        f"{optimizer}.lr": plan.learning_rate,
        f"{optimizer}.adam_betas": [recipe.beta1, recipe.beta2],
        f"{optimizer}.weight_decay": recipe.weight_decay,
        f"{optimizer}.max_grad_norm": common.grad_clip(plan),
        f"{optimizer}.num_warmup_steps": common.warmup_updates(plan),
        f"{optimizer}.scheduler": "constant_with_warmup",
    }
