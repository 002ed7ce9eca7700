"""prime-rl's TOML or flags as a Setup; defaults are those of 0.8.0. Older names of n and of sampling are understood."""

from __future__ import annotations

from isocompute.trainers import prime_rl as writer
from isocompute.trainers.reading.setup import Config, Odd, Settings, Setup
from isocompute.trainers.reading.shared import gradient_norm

__all__ = ["DEFAULTS", "NAME", "READ", "VERSION", "matches", "read"]

NAME, VERSION = "prime-rl", writer.VERSION
DEFAULTS = {
    "orchestrator.batch_size": 128,
    "orchestrator.group_size": 1,
    "orchestrator.max_off_policy_steps": 8,
    "orchestrator.train.filter_zero_advantages": True,
    "orchestrator.train.sampling.temperature": 1.0,
    "orchestrator.algo.type": "grpo",
    "trainer.loss.type": "default",
    "trainer.loss.dppo_mask_low": 0.2,
    "trainer.loss.dppo_mask_high": 0.2,
    "trainer.optim.lr": 1e-6,
    "trainer.optim.betas1": 0.9,
    "trainer.optim.betas2": 0.999,
    "trainer.optim.weight_decay": 0.01,
    "trainer.optim.max_norm": 1.0,
    "trainer.scheduler.type": "constant",
    "deployment.num_train_gpus": 1,
    "deployment.num_infer_gpus": 1,
    "deployment.gpus_per_node": 8,
}
_OLD = {
    "batch_size": "orchestrator.batch_size",
    "group_size": "orchestrator.group_size",
    "rollouts_per_example": "orchestrator.group_size",
    "orchestrator.rollouts_per_example": "orchestrator.group_size",
    "orchestrator.sampling.max_tokens": "orchestrator.train.sampling.max_completion_tokens",
    "orchestrator.sampling.temperature": "orchestrator.train.sampling.temperature",
}
READ = frozenset(DEFAULTS) | {"max_steps", "seq_len"}
"""Keys that a setup depends on."""


def matches(config: Config) -> int:
    """How many settings only prime-rl has."""
    own = {"rollouts_per_example"} | ({"group_size"} if "batch_size" in config.keys else set())
    return sum(
        key.startswith(("orchestrator.", "trainer.optim.", "trainer.loss.")) or key in own for key in config.keys
    ) + 2 * any("prime_rl" in name or "prime-rl" in name for name in config.names)


def read(config: Config, gpus: int | None, problems: int | None) -> tuple[Setup, list[Odd]]:
    """What the settings amount to, and what is odd about them in prime-rl."""
    del problems  # its steps are counted, never derived from the data
    odd: list[Odd] = []
    given = Settings(config, DEFAULTS, _OLD)
    n = given.integer("orchestrator.group_size", "rollouts_per_problem")
    rollouts = None
    if given.has("orchestrator.token_batch_size"):
        odd.append(Odd("token_batch", "the batch is counted in tokens: Bp depends on how long responses are."))
    else:
        rollouts = given.integer("orchestrator.batch_size", "problems_per_batch")
    if rollouts and n and rollouts % n:
        odd.append(
            Odd("mini_batch", f"batch_size = {rollouts} counts rollouts and is no multiple of group_size = {n}.")
        )
    steps = next(
        (s for s in map(given.integer, ("max_steps", "trainer.max_steps", "orchestrator.max_steps")) if s), None
    )
    if steps is None:
        odd.append(Odd("steps_unknown", "max_steps is not set: it runs until it is stopped."))
    stale = given.integer("orchestrator.max_off_policy_steps", "staleness")
    environment = _source(given.get("orchestrator.train.source"))
    scheduler = given.text("trainer.scheduler.type", "warmup_steps")
    if scheduler != "constant" and not given.has("trainer.scheduler.warmup_steps"):
        given.assume("warmup_steps")
    decay = _or(given.integer("trainer.scheduler.decay_steps"), 10)
    length = given.integer("seq_len")
    response = given.integer("orchestrator.train.sampling.max_completion_tokens")
    low = given.number("trainer.loss.dppo_mask_low", "clip_low")
    high = given.number("trainer.loss.dppo_mask_high", "clip_high")
    loss_type = given.text("trainer.loss.type", "loss")
    algorithm = given.text("orchestrator.algo.type", "advantage")
    # No option for any of these.
    given.assume("updates_per_batch", "kl_coef", "entropy_coef", "aggregation", "top_p", "epsilon")
    if "staleness" in given.assumed:
        given.assume("ratio_anchor")  # no option either; it comes with rollouts that may be old
    setup = Setup(
        trainer=NAME,
        version=VERSION,
        problems_per_batch=rollouts // n if rollouts and n and rollouts % n == 0 else None,
        rollouts_per_problem=n,
        update_steps=steps,
        updates_per_batch=1,
        rollouts_per_update=rollouts,
        staleness=stale or 0,
        learning_rate=given.number("trainer.optim.lr", "learning_rate"),
        schedule="constant" if scheduler == "linear" and decay == 0 else scheduler,
        warmup_steps=0 if scheduler == "constant" else _or(given.integer("trainer.scheduler.warmup_steps"), 10),
        kl_coef=0.0,
        entropy_coef=0.0,
        loss="dppo" if loss_type == "default" else loss_type,
        advantage={"grpo": "group_mean", "echo": "group_mean"}.get(algorithm or "", algorithm),
        aggregation="token",
        clip_low=low,
        clip_high=high,
        ratio_anchor="sampler",
        zero_variance_filter="all"
        if given.flag("orchestrator.train.filter_zero_advantages", "zero_variance_filter")
        else "off",
        temperature=given.number("orchestrator.train.sampling.temperature", "temperature"),
        top_p=1.0,
        beta1=given.number("trainer.optim.betas1", "beta1"),
        beta2=given.number("trainer.optim.betas2", "beta2"),
        epsilon=1e-8,
        weight_decay=given.number("trainer.optim.weight_decay", "weight_decay"),
        grad_clip=gradient_norm(given.number("trainer.optim.max_norm", "grad_clip")),
        max_prompt_length=None if length is None or response is None else length - response,
        max_response_length=response,
        validation_samples=given.integer("orchestrator.eval.group_size", "validation_samples"),
        gpus=gpus or _gpus(given),
        model=given.text("model.name"),
        train_file=environment,
        val_file=_source(given.get("orchestrator.eval.source")),
        assumed=tuple(given.assumed),
    )
    return setup, odd


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _source(value: object) -> str | None:
    """The taskset of the first source."""
    found = value[0] if isinstance(value, list) and value else None
    for key in ("env", "taskset", "id"):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


def _gpus(given: Settings) -> int | None:
    if given.text("deployment.type") == "multi_node":
        nodes = (given.integer("deployment.num_train_nodes") or 0) + (given.integer("deployment.num_infer_nodes") or 0)
        return nodes * (given.integer("deployment.gpus_per_node") or 0) or None
    return (given.integer("deployment.num_train_gpus") or 0) + (given.integer("deployment.num_infer_gpus") or 0) or None
