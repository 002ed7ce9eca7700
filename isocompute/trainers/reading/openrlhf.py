"""OpenRLHF's arguments as a Setup; defaults are those of 0.11. Flags of 0.10 and older (underscores) are understood."""

from __future__ import annotations

import math

from isocompute.trainers import openrlhf as writer
from isocompute.trainers.reading.setup import Config, Odd, Settings, Setup
from isocompute.trainers.reading.shared import gradient_norm, group_filter, in_batches, invert

__all__ = ["DEFAULTS", "NAME", "OLD", "READ", "VERSION", "matches", "read"]

NAME, VERSION = "openrlhf", writer.VERSION
DEFAULTS = {
    "rollout.batch_size": 1024,
    "rollout.n_samples_per_prompt": 1,
    "train.batch_size": 128,
    "train.micro_batch_size": 1,
    "train.max_epochs": 1,
    "train.num_episodes": 1,
    "train.seed": 42,
    "train.async_enable": False,
    "data.max_samples": int(1e8),
    "data.max_len": 2048,
    "actor.adam.lr": 1e-6,
    "actor.adam.betas": [0.9, 0.95],
    "actor.adam.eps": 1e-8,
    "actor.adam.weight_decay": 0.0,
    "actor.lr_scheduler": "cosine_with_min_lr",
    "actor.lr_warmup_ratio": 0.03,
    "actor.max_norm": 1.0,
    "actor.eps_clip": 0.2,
    "actor.policy_loss_type": "ppo",
    "actor.entropy_coef": None,
    "actor.num_nodes": 1,
    "actor.num_gpus_per_node": 8,
    "algo.kl.init_coef": 0.01,
    "algo.kl.use_loss": False,
    "algo.advantage.estimator": "gae",
    "algo.advantage.is_correction_enable": False,
    "algo.advantage.is_correction_type": "tis",
    "algo.advantage.is_correction_threshold": [0.5, 5.0],
    "algo.dynamic_filtering_enable": False,
    "rollout.temperature": 1.0,
    "rollout.top_p": 1.0,
    "eval.n_samples_per_prompt": 4,
}
OLD = {
    "rollout_batch_size": "rollout.batch_size",
    "n_samples_per_prompt": "rollout.n_samples_per_prompt",
    "train_batch_size": "train.batch_size",
    "micro_train_batch_size": "train.micro_batch_size",
    "max_epochs": "train.max_epochs",
    "num_episodes": "train.num_episodes",
    "async_train": "train.async_enable",
    "seed": "train.seed",
    "max_samples": "data.max_samples",
    "max_len": "data.max_len",
    "generate_max_len": "rollout.max_new_tokens",
    "prompt_data": "data.prompt_dataset",
    "actor_learning_rate": "actor.adam.lr",
    "critic_learning_rate": "critic.adam.lr",
    "gamma": "algo.advantage.gamma",
    "lambd": "algo.advantage.lambd",
    "value_clip": "critic.value_clip",
    "adam_betas": "actor.adam.betas",
    "l2": "actor.adam.weight_decay",
    "lr_scheduler": "actor.lr_scheduler",
    "lr_warmup_ratio": "actor.lr_warmup_ratio",
    "max_norm": "actor.max_norm",
    "eps_clip": "actor.eps_clip",
    "eps_clip_low_high": "actor.eps_clip_low_high",
    "policy_loss_type": "actor.policy_loss_type",
    "entropy_loss_coef": "actor.entropy_coef",
    "actor_num_nodes": "actor.num_nodes",
    "actor_num_gpus_per_node": "actor.num_gpus_per_node",
    "pretrain": "actor.model_name_or_path",
    "init_kl_coef": "algo.kl.init_coef",
    "use_kl_loss": "algo.kl.use_loss",
    "advantage_estimator": "algo.advantage.estimator",
    "enable_vllm_is_correction": "algo.advantage.is_correction_enable",
    "vllm_is_truncated_threshold": "algo.advantage.is_correction_threshold",
    "dynamic_filtering": "algo.dynamic_filtering_enable",
    "temperature": "rollout.temperature",
    "top_p": "rollout.top_p",
    "eval_n_samples_per_prompt": "eval.n_samples_per_prompt",
    "eval_dataset": "eval.dataset",
}
_ADVANTAGES = invert(writer.ADVANTAGES) | {"rloo": "group_mean"}
_MARKS = ("rollout.n_samples_per_prompt", "rollout.batch_size", "actor.adam.lr", "algo.advantage.estimator")
_CRITIC = {
    "gae_discount": "algo.advantage.gamma",
    "gae_trace": "algo.advantage.lambd",
    "critic_learning_rate": "critic.adam.lr",
    "value_clip": "critic.value_clip",
}
"""Fields of a critic, and their keys."""
READ = frozenset(DEFAULTS) | frozenset(OLD) | {"rollout.max_new_tokens"}
"""Keys that a setup depends on."""


def matches(config: Config) -> int:
    """How many settings only OpenRLHF has."""
    keys = {OLD.get(key, key) for key in config.keys}
    return sum(mark in keys for mark in _MARKS) + 4 * any("openrlhf" in name for name in config.names)


def read(config: Config, gpus: int | None, problems: int | None) -> tuple[Setup, list[Odd]]:
    """What the settings amount to, and what is odd about them in OpenRLHF."""
    odd: list[Odd] = []
    given = Settings(config, DEFAULTS, OLD)
    batch = given.integer("rollout.batch_size", "problems_per_batch")
    n = given.integer("rollout.n_samples_per_prompt", "rollouts_per_problem")
    train = given.integer("train.batch_size", "updates_per_batch")
    if {"problems_per_batch", "rollouts_per_problem"} & set(given.assumed):
        given.assume("updates_per_batch")
    epochs = given.integer("train.max_epochs") or 1
    updates = None if not batch or not n or not train else epochs * batch * n / train
    if updates is not None and updates < epochs:
        odd.append(
            Odd("mini_batch", f"train.batch_size = {train} counts rollouts and is above the {batch} × {n} of a batch.")
        )
        updates = None
    steps = _steps(given, batch, problems, odd)
    optimizer_steps = None if steps is None or updates is None else steps * updates
    clip = given.pair("actor.eps_clip_low_high") if given.has("actor.eps_clip_low_high") else ()
    low, high = clip or (given.number("actor.eps_clip", "clip_low"), given.number("actor.eps_clip", "clip_high"))
    loss = given.text("actor.policy_loss_type", "loss")
    beta1, beta2 = given.pair("actor.adam.betas", "beta1", "beta2")
    total, response = given.integer("data.max_len"), given.integer("rollout.max_new_tokens")
    corrected = given.flag("algo.advantage.is_correction_enable")
    advantage = _ADVANTAGES.get(given.text("algo.advantage.estimator", "advantage") or "")
    given.assume("aggregation", *(() if corrected and loss == "gspo" else ("ratio_anchor",)))  # no options for them
    setup = Setup(
        trainer=NAME,
        version=VERSION,
        problems_per_batch=batch,
        rollouts_per_problem=n,
        update_steps=steps,
        updates_per_batch=updates,
        rollouts_per_update=train,
        staleness=1 if given.flag("train.async_enable") else 0,
        learning_rate=given.number("actor.adam.lr", "learning_rate"),
        schedule=given.text("actor.lr_scheduler"),
        warmup_steps=in_batches(_warmup(given, optimizer_steps), updates),
        kl_coef=_kl(given, odd),
        entropy_coef=given.number("actor.entropy_coef", "entropy_coef") or 0.0,
        loss={"ppo": "clip"}.get(loss or "", loss),
        advantage=advantage,
        aggregation="sequence" if loss == "gspo" else "token",
        clip_low=low,
        clip_high=high,
        ratio_anchor="sampler" if corrected and loss == "gspo" else "trainer",
        tis_cap=_tis(given, odd) if corrected and loss != "gspo" else None,
        zero_variance_filter=group_filter(given.flag("algo.dynamic_filtering_enable", "zero_variance_filter"), odd),
        temperature=given.number("rollout.temperature", "temperature"),
        top_p=given.number("rollout.top_p", "top_p"),
        beta1=beta1,
        beta2=beta2,
        epsilon=given.number("actor.adam.eps", "epsilon"),
        weight_decay=given.number("actor.adam.weight_decay", "weight_decay"),
        grad_clip=gradient_norm(given.number("actor.max_norm", "grad_clip")),
        **(given.numbers(_CRITIC) if advantage == "gae" else {}),
        max_prompt_length=None if total is None or response is None else total - response,
        max_response_length=response,
        validation_samples=given.integer("eval.n_samples_per_prompt", "validation_samples"),
        seed=given.integer("train.seed", "seed"),
        gpus=gpus or (given.integer("actor.num_nodes") or 1) * (given.integer("actor.num_gpus_per_node", "gpus") or 1),
        micro_batch=given.integer("train.micro_batch_size", "micro_batch"),
        model=given.text("actor.model_name_or_path"),
        train_file=given.text("data.prompt_dataset"),
        val_file=given.text("eval.dataset"),
        assumed=tuple(given.assumed),
    )
    return setup, odd


def _steps(given: Settings, batch: int | None, problems: int | None, odd: list[Odd]) -> int | None:
    """M = problems used // Bp · episodes; the problems used are max_samples, or the whole set where that is smaller."""
    episodes, samples = given.integer("train.num_episodes"), given.integer("data.max_samples")
    if not batch or not episodes:
        return None
    if not given.has("data.max_samples") and problems is None:
        odd.append(
            Odd(
                "steps_unknown",
                f"M is {episodes} episode(s) over the data, and data.max_samples is not set; say --problems.",
            )
        )
        return None
    known = [count for count in (samples, problems) if count is not None]
    if not known:
        return None
    used = min(known)
    if problems is None:
        given.assume("update_steps")
        odd.append(Odd("data_size", f"M holds if the data have at least data.max_samples = {used:,} problems."))
    return used // batch * episodes


def _kl(given: Settings, odd: list[Odd]) -> float | None:
    coefficient = given.number("algo.kl.init_coef", "kl_coef")
    if coefficient and not given.flag("algo.kl.use_loss"):
        odd.append(Odd("kl_in_reward", f"KL ({coefficient:g}) is taken off the reward: --algo.kl.use_loss is not set."))
    return coefficient


def _tis(given: Settings, odd: list[Odd]) -> float | None:
    kind = given.text("algo.advantage.is_correction_type")
    if kind != "tis":
        odd.append(Odd("tis", f"the correction for the sampler is {kind}, not truncated importance sampling."))
    low, high = given.pair("algo.advantage.is_correction_threshold", "tis_cap")
    if low:
        odd.append(Odd("tis_floor", f"importance weights are floored at {low:g} as well as capped."))
    return high


def _warmup(given: Settings, optimizer_steps: float | None) -> int | None:
    ratio = given.number("actor.lr_warmup_ratio", "warmup_steps") or 0.0
    if ratio == 0:
        return 0
    return None if optimizer_steps is None else math.ceil(int(optimizer_steps) * ratio)
