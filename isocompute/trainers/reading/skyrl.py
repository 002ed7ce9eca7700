"""SkyRL's arguments as a Setup; defaults are those of 0.3.0."""

from __future__ import annotations

from isocompute.trainers import skyrl as writer
from isocompute.trainers.reading.setup import Config, Odd, Settings, Setup
from isocompute.trainers.reading.shared import gradient_norm, group_filter, in_batches, invert, steps_from_epochs, times

__all__ = ["DEFAULTS", "NAME", "READ", "VERSION", "matches", "read"]

NAME, VERSION = "skyrl", writer.VERSION
ALGORITHM, OPTIMIZER = writer.ALGORITHM, "trainer.policy.optimizer_config"
DEFAULTS = {
    "trainer.train_batch_size": 1024,
    "trainer.policy_mini_batch_size": 256,
    "trainer.update_epochs_per_batch": 1,
    "trainer.micro_train_batch_size_per_gpu": 1,
    "trainer.epochs": 1,
    "trainer.max_prompt_length": 512,
    "trainer.seed": 42,
    "trainer.fully_async.enabled": False,
    "trainer.fully_async.max_staleness_steps": 4,
    "generator.n_samples_per_prompt": 5,
    "generator.eval_n_samples_per_prompt": 1,
    "generator.sampling_params.temperature": 1.0,
    "generator.sampling_params.top_p": 1.0,
    "generator.sampling_params.max_generate_length": 1024,
    f"{ALGORITHM}.advantage_estimator": "grpo",
    f"{ALGORITHM}.grpo_norm_by_std": True,
    f"{ALGORITHM}.advantage_batch_normalize": False,
    f"{ALGORITHM}.policy_loss_type": "regular",
    f"{ALGORITHM}.loss_reduction": "token_mean",
    f"{ALGORITHM}.eps_clip_low": 0.2,
    f"{ALGORITHM}.eps_clip_high": 0.2,
    f"{ALGORITHM}.use_kl_loss": True,
    f"{ALGORITHM}.use_kl_in_reward": False,
    f"{ALGORITHM}.kl_loss_coef": 0.001,
    f"{ALGORITHM}.use_entropy_loss": False,
    f"{ALGORITHM}.entropy_loss_coef": 0.01,
    f"{ALGORITHM}.zero_variance_filter": False,
    f"{ALGORITHM}.dynamic_sampling.type": None,
    f"{ALGORITHM}.off_policy_correction.tis_ratio_type": None,
    f"{ALGORITHM}.off_policy_correction.token_tis_ratio_clip_high": 2.0,
    f"{ALGORITHM}.off_policy_correction.sequence_tis_ratio_clip_high": 5.0,
    f"{ALGORITHM}.cispo.cispo_eps_clip_low": 1.0,
    f"{ALGORITHM}.cispo.cispo_eps_clip_high": 4.0,
    f"{ALGORITHM}.cispo.cispo_anchor": "old",
    f"{OPTIMIZER}.lr": 1e-6,
    f"{OPTIMIZER}.adam_betas": [0.9, 0.999],
    f"{OPTIMIZER}.weight_decay": 1e-2,
    f"{OPTIMIZER}.max_grad_norm": 1.0,
    f"{OPTIMIZER}.num_warmup_steps": 0,
    f"{OPTIMIZER}.scheduler": "constant_with_warmup",
    "trainer.placement.policy_num_nodes": 1,
    "trainer.placement.policy_num_gpus_per_node": 1,
}
_LOSSES = invert(writer.LOSSES) | {"dual_clip": "clip"}
_AGGREGATIONS = invert(writer.AGGREGATIONS)
READ = frozenset(DEFAULTS) | {"trainer.max_training_steps"}
"""Keys that a setup depends on."""


def matches(config: Config) -> int:
    """How many settings only SkyRL has."""
    return sum(
        key.startswith(("generator.", "trainer.algorithm.", "trainer.policy.", "trainer.placement."))
        for key in config.keys
    ) + 3 * any("skyrl" in name for name in config.names)


def read(config: Config, gpus: int | None, problems: int | None) -> tuple[Setup, list[Odd]]:
    """What the settings amount to, and what is odd about them in SkyRL."""
    odd: list[Odd] = []
    older = {"train_batch_size": "trainer.train_batch_size", "n_samples_per_prompt": "generator.n_samples_per_prompt"}
    given = Settings(config, DEFAULTS, older)
    batch = given.integer("trainer.train_batch_size", "problems_per_batch")
    n = given.integer("generator.n_samples_per_prompt", "rollouts_per_problem")
    mini = given.integer("trainer.policy_mini_batch_size", "updates_per_batch")
    if "problems_per_batch" in given.assumed:
        given.assume("updates_per_batch")
    epochs = given.integer("trainer.update_epochs_per_batch") or 1
    updates = None if not batch or not mini else epochs * batch / mini
    if batch and mini and batch % mini:
        odd.append(
            Odd(
                "mini_batch",
                f"train_batch_size = {batch} is no multiple of policy_mini_batch_size = {mini}: SkyRL refuses it.",
            )
        )
        updates = None
    steps = given.integer("trainer.max_training_steps")
    if steps is None:
        steps = steps_from_epochs(given.integer("trainer.epochs"), problems, batch, odd, "trainer.epochs")
    loss = given.text(f"{ALGORITHM}.policy_loss_type", "loss")
    cispo = loss == "cispo"
    cap = given.number(f"{ALGORITHM}.cispo.cispo_eps_clip_high", "ratio_cap")
    anchored = cispo and given.text(f"{ALGORITHM}.cispo.cispo_anchor") == "rollout"
    if not anchored:
        given.assume("ratio_anchor")
    beta1, beta2 = given.pair(f"{OPTIMIZER}.adam_betas", "beta1", "beta2")
    given.assume("epsilon")  # no option for it
    reduction = given.text(f"{ALGORITHM}.loss_reduction", "aggregation")
    setup = Setup(
        trainer=NAME,
        version=VERSION,
        problems_per_batch=batch,
        rollouts_per_problem=n,
        update_steps=steps,
        updates_per_batch=updates,
        rollouts_per_update=times(mini, n),
        staleness=(given.integer("trainer.fully_async.max_staleness_steps", "staleness") or 0)
        if given.flag("trainer.fully_async.enabled")
        else 0,
        learning_rate=given.number(f"{OPTIMIZER}.lr", "learning_rate"),
        schedule=given.text(f"{OPTIMIZER}.scheduler"),
        warmup_steps=in_batches(given.integer(f"{OPTIMIZER}.num_warmup_steps", "warmup_steps"), updates),
        kl_coef=_kl(given, odd),
        entropy_coef=given.number(f"{ALGORITHM}.entropy_loss_coef", "entropy_coef")
        if given.flag(f"{ALGORITHM}.use_entropy_loss", "entropy_coef")
        else 0.0,
        loss=_LOSSES.get(loss or "", loss),
        advantage=_advantage(given),
        aggregation=_AGGREGATIONS.get(reduction or "", reduction),
        clip_low=None if cispo else given.number(f"{ALGORITHM}.eps_clip_low", "clip_low"),
        clip_high=None if cispo else given.number(f"{ALGORITHM}.eps_clip_high", "clip_high"),
        ratio_cap=None if not cispo or cap is None else 1 + cap,
        ratio_anchor="sampler" if anchored else "trainer",
        tis_cap=_tis(given),
        zero_variance_filter=_filter(given, odd),
        temperature=given.number("generator.sampling_params.temperature", "temperature"),
        top_p=given.number("generator.sampling_params.top_p", "top_p"),
        beta1=beta1,
        beta2=beta2,
        epsilon=1e-8,
        weight_decay=given.number(f"{OPTIMIZER}.weight_decay", "weight_decay"),
        grad_clip=gradient_norm(given.number(f"{OPTIMIZER}.max_grad_norm", "grad_clip")),
        max_prompt_length=given.integer("trainer.max_prompt_length", "max_prompt_length"),
        max_response_length=given.integer("generator.sampling_params.max_generate_length", "max_response_length"),
        validation_samples=given.integer("generator.eval_n_samples_per_prompt", "validation_samples"),
        seed=given.integer("trainer.seed", "seed"),
        gpus=gpus
        or (given.integer("trainer.placement.policy_num_nodes") or 1)
        * (given.integer("trainer.placement.policy_num_gpus_per_node", "gpus") or 1),
        micro_batch=given.integer("trainer.micro_train_batch_size_per_gpu"),
        model=given.text("trainer.policy.model.path"),
        train_file=given.text("data.train_data"),
        val_file=given.text("data.val_data"),
        assumed=tuple(given.assumed),
    )
    return setup, odd


def _kl(given: Settings, odd: list[Odd]) -> float | None:
    if given.flag(f"{ALGORITHM}.use_kl_in_reward"):
        odd.append(Odd("kl_in_reward", "KL is taken off the reward, not added to the loss."))
        return given.number(f"{ALGORITHM}.kl_loss_coef", "kl_coef")
    if given.flag(f"{ALGORITHM}.use_kl_loss", "kl_coef"):
        return given.number(f"{ALGORITHM}.kl_loss_coef", "kl_coef")
    return 0.0


def _advantage(given: Settings) -> str | None:
    estimator = given.text(f"{ALGORITHM}.advantage_estimator", "advantage")
    if estimator == "grpo":
        if given.flag(f"{ALGORITHM}.advantage_batch_normalize"):
            return "batch_std"
        return "group_std" if given.flag(f"{ALGORITHM}.grpo_norm_by_std") else "group_mean"
    return {"reinforce++": "none", "rloo": "group_mean"}.get(estimator or "", estimator)


def _tis(given: Settings) -> float | None:
    level = given.text(f"{ALGORITHM}.off_policy_correction.tis_ratio_type")
    if level in ("token", "sequence"):
        return given.number(f"{ALGORITHM}.off_policy_correction.{level}_tis_ratio_clip_high", "tis_cap")
    if given.flag(f"{ALGORITHM}.use_tis"):
        return given.number(f"{ALGORITHM}.tis_imp_ratio_cap")
    return None


def _filter(given: Settings, odd: list[Odd]) -> str:
    refills = given.text(f"{ALGORITHM}.dynamic_sampling.type") in ("filter", "replace")
    if refills:
        return group_filter(True, odd)
    return "all" if given.flag(f"{ALGORITHM}.zero_variance_filter", "zero_variance_filter") else "off"
