"""veRL's settings as a Setup; defaults are those of `ppo_trainer` in 0.9.1."""

from __future__ import annotations

from isocompute.trainers import verl as writer
from isocompute.trainers.reading.setup import Config, Odd, Settings, Setup
from isocompute.trainers.reading.shared import gradient_norm, group_filter, invert, steps_from_epochs, times

__all__ = ["DEFAULTS", "LOSS_MODES", "NAME", "READ", "VERSION", "matches", "read"]

NAME, VERSION = "verl", writer.VERSION
ACTOR, ROLLOUT = writer.ACTOR, writer.ROLLOUT
LOSS_MODES = frozenset(
    ("vanilla", "gspo", "cispo", "gpg", "sapo", "geo_mean", "clip_cov", "kl_cov", "dppo_tv", "dppo_kl", "dro")
) | {"bypass_mode"}
DEFAULTS = {
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.ppo_epochs": 1,
    f"{ACTOR}.policy_loss.loss_mode": "vanilla",
    f"{ACTOR}.clip_ratio_low": 0.2,
    f"{ACTOR}.clip_ratio_high": 0.2,
    f"{ACTOR}.loss_agg_mode": "token-mean",
    f"{ACTOR}.use_kl_loss": False,
    f"{ACTOR}.kl_loss_coef": 0.001,
    f"{ACTOR}.entropy_coeff": 0,
    f"{ACTOR}.optim.lr": 1e-6,
    f"{ACTOR}.optim.lr_scheduler_type": "constant",
    f"{ACTOR}.optim.lr_warmup_steps": -1,
    f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.0,
    f"{ACTOR}.optim.betas": [0.9, 0.999],
    f"{ACTOR}.optim.weight_decay": 0.01,
    f"{ACTOR}.optim.clip_grad": 1.0,
    f"{ROLLOUT}.n": 1,
    f"{ROLLOUT}.temperature": 1.0,
    f"{ROLLOUT}.top_p": 1,
    f"{ROLLOUT}.calculate_log_probs": True,
    f"{ROLLOUT}.val_kwargs.n": 1,
    f"{ROLLOUT}.val_kwargs.do_sample": False,
    "algorithm.adv_estimator": "gae",
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.use_kl_in_reward": False,
    "algorithm.kl_ctrl.kl_coef": 0.001,
    "algorithm.filter_groups.enable": False,
    "algorithm.rollout_correction.bypass_mode": False,
    "algorithm.rollout_correction.rollout_is": None,
    "algorithm.rollout_correction.rollout_is_threshold": 2.0,
    "trainer.total_epochs": 30,
    "trainer.total_training_steps": None,
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 8,
}
_LOSSES = invert(writer.LOSSES)
_AGGREGATIONS = invert(writer.AGGREGATIONS)
_CRITIC = {
    "gae_discount": "algorithm.gamma",
    "gae_trace": "algorithm.lam",
    "critic_learning_rate": "critic.optim.lr",
    "value_clip": "critic.cliprange_value",
}
"""Fields of a critic, and their keys."""
READ = frozenset(DEFAULTS) | {"data.seed", f"{ACTOR}.grad_clip", "algorithm.gamma", "algorithm.lam", "critic.optim.lr"}
"""Keys that a setup depends on."""


def matches(config: Config) -> int:
    """How many settings only veRL has."""
    return sum(key.startswith("actor_rollout_ref.") for key in config.keys) + 3 * any(
        "verl.trainer" in name for name in config.names
    )


def read(config: Config, gpus: int | None, problems: int | None) -> tuple[Setup, list[Odd]]:
    """What the settings amount to, and what is odd about them in veRL."""
    odd: list[Odd] = []
    given = Settings(config, DEFAULTS, {"train_batch_size": "data.train_batch_size"})
    batch = given.integer("data.train_batch_size", "problems_per_batch")
    if config.form == "settings" and given.has(f"{ROLLOUT}.temperature") and not given.has(f"{ROLLOUT}.n"):
        n = 1  # a whole dump without it: veRL of 2024 sampled once a prompt
        odd.append(Odd("inferred", "n = 1, since veRL's config has no rollout.n"))
    else:
        n = given.integer(f"{ROLLOUT}.n", "rollouts_per_problem")
    mini = given.integer(f"{ACTOR}.ppo_mini_batch_size", "updates_per_batch")
    if "problems_per_batch" in given.assumed:
        given.assume("updates_per_batch")
    epochs = given.integer(f"{ACTOR}.ppo_epochs") or 1
    updates = None if not batch or not mini else epochs * batch / mini
    if batch and mini and mini > batch:
        odd.append(
            Odd("mini_batch", f"ppo_mini_batch_size = {mini} is above train_batch_size = {batch}: veRL refuses it.")
        )
        updates = None
    elif batch and mini and batch % mini:
        odd.append(Odd("mini_batch", f"train_batch_size = {batch} is no multiple of ppo_mini_batch_size = {mini}."))
    steps = given.integer("trainer.total_training_steps")
    if steps is None:
        steps = steps_from_epochs(given.integer("trainer.total_epochs"), problems, batch, odd, "trainer.total_epochs")
    loss_mode = given.text(f"{ACTOR}.policy_loss.loss_mode", "loss")
    if loss_mode not in LOSS_MODES:
        odd.append(
            Odd("loss", f"policy_loss.loss_mode = {loss_mode}: veRL {VERSION} has {', '.join(sorted(LOSS_MODES))}.")
        )
    low, high = _clip(given, "low"), _clip(given, "high")
    cispo = loss_mode == "cispo"
    if cispo and low is not None and low < 1:
        odd.append(
            Odd("cispo_cap", f"clip_ratio_low = {low:g} floors CISPO's ratio at {1 - low:g}; 1 takes the floor away.")
        )
    beta1, beta2 = given.pair(f"{ACTOR}.optim.betas", "beta1", "beta2")
    advantage = _advantage(given)
    given.assume("epsilon")  # no option for it
    bypassed = given.flag("algorithm.rollout_correction.bypass_mode", "ratio_anchor")
    setup = Setup(
        trainer=NAME,
        version=VERSION,
        problems_per_batch=batch,
        rollouts_per_problem=n,
        update_steps=steps,
        updates_per_batch=updates,
        rollouts_per_update=times(mini, n),
        learning_rate=given.number(f"{ACTOR}.optim.lr", "learning_rate"),
        schedule=given.text(f"{ACTOR}.optim.lr_scheduler_type"),
        warmup_steps=_warmup(given, steps),
        kl_coef=_kl(given, odd),
        entropy_coef=given.number(f"{ACTOR}.entropy_coeff", "entropy_coef"),
        loss=_LOSSES.get(loss_mode or "", loss_mode),
        advantage=advantage,
        aggregation=_AGGREGATIONS.get(
            given.text(f"{ACTOR}.loss_agg_mode", "aggregation") or "", given.text(f"{ACTOR}.loss_agg_mode")
        ),
        clip_low=None if cispo else low,
        clip_high=None if cispo else high,
        ratio_cap=None if not cispo or high is None else 1 + high,
        ratio_anchor="sampler" if bypassed else "trainer",
        tis_cap=None if bypassed else _tis(given, odd),
        zero_variance_filter=group_filter(given.flag("algorithm.filter_groups.enable", "zero_variance_filter"), odd),
        temperature=given.number(f"{ROLLOUT}.temperature", "temperature"),
        top_p=given.number(f"{ROLLOUT}.top_p", "top_p"),
        beta1=beta1,
        beta2=beta2,
        epsilon=1e-8,
        weight_decay=given.number(f"{ACTOR}.optim.weight_decay", "weight_decay"),
        grad_clip=gradient_norm(_grad_clip(given)),
        **(given.numbers(_CRITIC) if advantage == "gae" else {}),
        max_prompt_length=given.integer("data.max_prompt_length", "max_prompt_length"),
        max_response_length=given.integer("data.max_response_length", "max_response_length"),
        validation_samples=given.integer(f"{ROLLOUT}.val_kwargs.n", "validation_samples"),
        seed=given.integer("data.seed"),
        gpus=gpus or (given.integer("trainer.nnodes") or 1) * (given.integer("trainer.n_gpus_per_node", "gpus") or 1),
        micro_batch=given.integer(f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
        model=given.text("actor_rollout_ref.model.path"),
        train_file=given.text("data.train_files"),
        val_file=given.text("data.val_files"),
        assumed=tuple(given.assumed),
    )
    if (setup.validation_samples or 1) > 1 and not given.flag(f"{ROLLOUT}.val_kwargs.do_sample"):
        odd.append(Odd("validation", "val_kwargs.n > 1 without val_kwargs.do_sample=True: all samples are the same."))
    return setup, odd


def _clip(given: Settings, side: str) -> float | None:
    key = f"{ACTOR}.clip_ratio_{side}"
    if given.has(key):
        return given.number(key)
    if given.has(f"{ACTOR}.clip_ratio"):
        return given.number(f"{ACTOR}.clip_ratio")
    given.assume(f"clip_{side}", *(["ratio_cap"] if side == "high" else []))
    return given.number(key)


def _grad_clip(given: Settings) -> float | None:
    """The norm is an option of the actor in configs before 0.5, and of its optimiser since."""
    older = f"{ACTOR}.grad_clip"
    if given.has(older) and not given.has(f"{ACTOR}.optim.clip_grad"):
        return given.number(older)
    return given.number(f"{ACTOR}.optim.clip_grad", "grad_clip")


def _kl(given: Settings, odd: list[Odd]) -> float | None:
    coefficient = "algorithm.kl_ctrl.kl_coef"
    # Before 0.3 there was no such option, and every run whose loss had no KL took it off the reward; a config that was
    # printed whole tells by what else is in it.
    older = given.has("algorithm.kl_ctrl.type", coefficient) and not given.has("algorithm.use_kl_in_reward")
    in_loss = given.flag(f"{ACTOR}.use_kl_loss", None if older else "kl_coef")
    in_reward = not in_loss if older else given.flag("algorithm.use_kl_in_reward")
    if in_reward and in_loss:
        odd.append(Odd("kl_twice", "KL is in the reward and in the loss."))
    if in_loss:
        return given.number(f"{ACTOR}.kl_loss_coef", "kl_coef")
    if in_reward:
        odd.append(Odd("kl_in_reward", "KL is taken off the reward, not added to the loss."))
        return given.number(coefficient, "kl_coef")
    return 0.0


def _advantage(given: Settings) -> str | None:
    estimator = given.text("algorithm.adv_estimator", "advantage")
    if estimator in ("grpo", "grpo_vectorized"):
        return "group_std" if given.flag("algorithm.norm_adv_by_std_in_grpo") else "group_mean"
    return {
        "reinforce_plus_plus_baseline": "batch_std",
        "reinforce_plus_plus": "none",
        "rloo": "group_mean",
        "rloo_vectorized": "group_mean",
    }.get(estimator or "", estimator)


def _tis(given: Settings, odd: list[Odd]) -> float | None:
    level = given.text("algorithm.rollout_correction.rollout_is")
    if level is None:
        return None
    if not given.flag(f"{ROLLOUT}.calculate_log_probs"):
        odd.append(Odd("tis_without_log_probs", "rollout_is needs rollout.calculate_log_probs=True."))
    if level != "token":
        odd.append(Odd("tis", f"importance sampling by {level}, not by token."))
    return given.number("algorithm.rollout_correction.rollout_is_threshold", "tis_cap")


def _warmup(given: Settings, batches: int | None) -> int | None:
    """In batches: veRL's schedule goes on once a batch, however many mini-batches that is."""
    steps = given.integer(f"{ACTOR}.optim.lr_warmup_steps")
    if steps is not None and steps > 0:
        return steps
    ratio = given.number(f"{ACTOR}.optim.lr_warmup_steps_ratio", "warmup_steps") or 0.0
    if ratio == 0:
        return 0
    return None if batches is None else int(ratio * batches)
