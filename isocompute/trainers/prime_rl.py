"""prime-rl 0.8: a TOML file for its `rl` command; defaults are those of its configs.

`orchestrator.batch_size` counts rollouts. Trainer and inference have separate GPUs, and sequences are packed by tokens.
Sampling never waits: strictly on-policy training drops the rollouts that are in flight at an update.
"""

from __future__ import annotations

from isocompute.core.errors import InputError
from isocompute.trainers import writing
from isocompute.trainers.config_files import ConfigFile
from isocompute.trainers.plan_input import RunPlan, TrainingHardware
from isocompute.trainers.reading import ConfigReader, Keys, Note, TrainerSetup
from isocompute.trainers.writing import Exported, File, Flat, Notes

NAME, TITLE, VERSION = "prime-rl", "prime-rl", "0.8.0"
COMMIT = "559b44772e471d1538537b8805cc77f3824a5e64"
TRAIN, EVAL = "orchestrator.train", "orchestrator.eval"
KEYS = Keys(
    update_steps=("max_steps", ..., "trainer.max_steps", "orchestrator.max_steps"),
    sequence_length="seq_len",
    model="model.name",
    batch_rollouts=("orchestrator.batch_size", 128, "batch_size"),
    token_batch="orchestrator.token_batch_size",
    rollouts_per_problem=(
        "orchestrator.group_size",
        1,
        "orchestrator.rollouts_per_example",
        "rollouts_per_example",
        "group_size",
    ),
    staleness=("orchestrator.max_off_policy_steps", 8),
    algorithm=("orchestrator.algo.type", "grpo"),
    filter_zero_advantages=(f"{TRAIN}.filter_zero_advantages", True),
    temperature=(f"{TRAIN}.sampling.temperature", 1.0, "orchestrator.sampling.temperature"),
    max_response_length=(f"{TRAIN}.sampling.max_completion_tokens", ..., "orchestrator.sampling.max_tokens"),
    train_source=f"{TRAIN}.source",
    validation_samples=f"{EVAL}.group_size",
    validation_source=f"{EVAL}.source",
    loss_type=("trainer.loss.type", "default"),
    clip_low=("trainer.loss.dppo_mask_low", 0.2),
    clip_high=("trainer.loss.dppo_mask_high", 0.2),
    learning_rate=("trainer.optim.lr", 1e-6),
    beta1=("trainer.optim.betas1", 0.9),
    beta2=("trainer.optim.betas2", 0.999),
    weight_decay=("trainer.optim.weight_decay", 0.01),
    grad_clip=("trainer.optim.max_norm", 1.0),
    scheduler=("trainer.scheduler.type", "constant"),
    scheduler_warmup="trainer.scheduler.warmup_steps",
    scheduler_decay="trainer.scheduler.decay_steps",
    deployment="deployment.type",
    train_gpus=("deployment.num_train_gpus", 1),
    infer_gpus=("deployment.num_infer_gpus", 1),
    train_nodes="deployment.num_train_nodes",
    infer_nodes="deployment.num_infer_nodes",
    gpus_per_node=("deployment.gpus_per_node", 8),
)
_SCHEDULER_STEPS = 10
"""Steps of warm-up and of decay, if a schedule that is not constant does not set them."""
_IN_FLIGHT = 1024
"""prime-rl's default limit on rollouts in flight; a group must fit."""


def export(plan: RunPlan, hardware: TrainingHardware) -> Exported:
    """`rl.toml`."""
    if plan.rollouts_per_problem < 2:
        raise InputError(
            "n = 1: prime-rl subtracts the group's mean, which leaves nothing of one rollout; take 2 or more."
        )
    notes = Notes()
    recipe = plan.recipe
    length = plan.max_prompt_length + plan.max_response_length
    clipped = recipe.loss == "clip"
    values = writing.plan_values(plan, notes)
    settings = KEYS.write(
        values,
        sequence_length=length,
        batch_rollouts=plan.batch_size,
        staleness=0,
        algorithm="grpo",
        filter_zero_advantages=recipe.zero_variance_filter != "off",
        train_source=[_source(plan.train_file)],
        validation_samples=plan.validation_samples or 1,
        validation_source=[_source(plan.val_file)],
        loss_type="default",
        clip_low=recipe.clip_low if clipped else 1.0,
        clip_high=recipe.clip_high if clipped else 1.0,
        scheduler="linear" if recipe.warmup_steps else "constant",
        **({"scheduler_warmup": recipe.warmup_steps, "scheduler_decay": 0} if recipe.warmup_steps else {}),
        **_deployment(hardware, notes),
    )
    settings |= {
        "ckpt.interval": plan.validation_every,
        f"{EVAL}.interval": plan.validation_every,
        # Training requests tokens, with a nucleus of 1 and vLLM's defaults; validation requests chat completions, where
        # a missing value comes from the model's `generation_config.json`. So every value is written.
        f"{EVAL}.sampling.temperature": recipe.temperature,
        f"{EVAL}.sampling.top_p": 1.0,
        f"{EVAL}.sampling.top_k": -1,
        f"{EVAL}.sampling.min_p": 0.0,
        f"{EVAL}.sampling.max_completion_tokens": plan.max_response_length,
        f"{EVAL}.sampling.extra_body.repetition_penalty": 1.0,
        "trainer.loss.kl_tau": 0.0,  # a penalty to the sampler, not to the base model
        "trainer.optim.type": "adamw",
        "inference.vllm.max_model_len": length,
    }
    if hardware.nodes > 1:
        settings["slurm.job_name"] = "prime-rl"
    if hardware.max_tokens is not None:
        settings["trainer.model.seq_len"] = max(hardware.max_tokens, length)
    if plan.rollouts_per_problem > _IN_FLIGHT:
        settings["orchestrator.concurrency.max_inflight"] = plan.rollouts_per_problem
    _note_recipe(plan, notes)
    writing.note_general(plan, notes)
    writing.note_no_option(
        plan, notes, "kl_coef", "entropy_coef", "top_p", "tis_cap", "epsilon", "fp32_head", "updates_per_batch", "seed"
    )
    notes.add(
        "compute", "rollouts in flight at an update are dropped to stay on-policy: more is sampled than trained on."
    )
    notes.add("reward", "fill in the environment's taskset: it brings problems and rewards.")
    top = writing.header(plan, f"{TITLE} {VERSION} ({COMMIT[:8]})", notes, "to use: uv run rl @ rl.toml")
    return Exported(NAME, VERSION, (File("rl.toml", writing.toml(top, settings)),), tuple(notes))


def _deployment(hardware: TrainingHardware, notes: Notes) -> Flat:
    """A quarter of the machine trains, the rest samples: sampling is what takes the time."""
    if hardware.gpus < 2:
        raise InputError("prime-rl trains and samples on different GPUs: it needs --gpus 2 or more.")
    if hardware.nodes == 1:
        train = max(1, hardware.gpus // 4)
        notes.add("gpus", f"{train} GPU(s) train and {hardware.gpus - train} sample; shift them if one side waits.")
        return {
            "gpus_per_node": hardware.gpus_on_node,
            "train_gpus": train,
            "infer_gpus": hardware.gpus - train,
        }
    train = max(1, hardware.nodes // 4)
    notes.add("gpus", f"{train} node(s) train and {hardware.nodes - train} sample, started through SLURM.")
    return {
        "deployment": "multi_node",
        "gpus_per_node": hardware.gpus_on_node,
        "train_nodes": train,
        "infer_nodes": hardware.nodes - train,
    }


def _source(taskset: str | None) -> dict[str, object]:
    return {"name": "problems", "env": {"taskset": {"id": taskset or "your-environment"}}}


def _note_recipe(plan: RunPlan, notes: Notes) -> None:
    recipe = plan.recipe
    if recipe.advantage != "group_mean":
        notes.add("advantage", f"rewards minus the group's mean, not '{recipe.advantage}': there is no other scale.")
    if recipe.zero_variance_filter == "policy":
        notes.add("zero_variance_filter", "zero-advantage tokens leave the whole loss, not the policy's part alone.")
    if plan.val_file is None:
        notes.add("val_file", "fill in the validation problems: a taskset of orchestrator.eval.source.")
    if recipe.loss == "clip":
        notes.add("loss", "tokens are masked where their probability (not its ratio) moved by more than the clip.")
    else:
        notes.add("loss", f"no {recipe.loss}: rewards weigh the untruncated ratio to the sampler, masks off.")
        for field in ("clip_low", "clip_high", "ratio_cap"):
            notes.add(field, "see loss.")
    if recipe.aggregation != "token":
        notes.add("aggregation", f"the loss is averaged over tokens, not by '{recipe.aggregation}'.")
    if recipe.ratio_reference != "sampler":
        notes.add("ratio_reference", "the ratio is always taken against the sampler's log-probs.")


def matches(file: ConfigFile) -> int:
    """How much of a config is prime-rl's alone; without its tables, `group_size` could be Tinker's."""
    own = {"rollouts_per_example"} | ({"group_size"} if "batch_size" in file.keys else set())
    tables = ("orchestrator.", "trainer.optim.", "trainer.loss.")
    named = any("prime_rl" in word or "prime-rl" in word for word in file.words)
    return sum(key.startswith(tables) or key in own for key in file.keys) + 2 * named


def read(file: ConfigFile, gpus: int | None, problems: int | None) -> tuple[TrainerSetup, list[Note]]:
    """The setup that a config describes, and what is unusual about it in prime-rl."""
    del problems  # prime-rl counts steps and never derives them from the data
    notes: list[Note] = []
    config = ConfigReader(file, KEYS)
    n = config.integer("rollouts_per_problem", "rollouts_per_problem")
    rollouts = None
    if config.has("token_batch"):
        notes.append(Note("token_batch", "the batch is counted in tokens: Bp depends on how long responses are."))
    else:
        rollouts = config.integer("batch_rollouts", "problems_per_batch", "rollouts_per_update")
    if rollouts and n and rollouts % n:
        message = f"batch_size = {rollouts} counts rollouts and is not a multiple of group_size = {n}."
        notes.append(Note("mini_batch", message))
    steps = config.integer("update_steps") or None
    if steps is None:
        notes.append(Note("steps_unknown", "max_steps is not set: it runs until it is stopped."))
    stale = config.integer("staleness", "staleness")
    # No option for any of these; the ratio to the sampler comes with rollouts that may be old.
    config.assume("updates_per_batch", "kl_coef", "entropy_coef", "aggregation", "top_p", "epsilon")
    if "staleness" in config.assumed:
        config.assume("ratio_reference")
    scheduler = config.text("scheduler", "schedule", "warmup_steps")
    if scheduler != "constant" and not config.has("scheduler_warmup"):
        config.assume("warmup_steps")
    warmup, decay = (
        _SCHEDULER_STEPS if (count := config.integer(name)) is None else count
        for name in ("scheduler_warmup", "scheduler_decay")
    )
    length, response = config.integer("sequence_length"), config.integer("max_response_length")
    loss_type = config.text("loss_type", "loss")
    algorithm = config.text("algorithm", "advantage")
    filtered = config.flag("filter_zero_advantages", "zero_variance_filter")
    setup = config.setup(
        NAME,
        VERSION,
        problems_per_batch=rollouts // n if rollouts and n and rollouts % n == 0 else None,
        rollouts_per_problem=n,
        update_steps=steps,
        updates_per_batch=1,
        rollouts_per_update=rollouts,
        staleness=stale or 0,
        schedule="constant" if scheduler == "linear" and decay == 0 else scheduler,
        warmup_steps=0 if scheduler == "constant" else warmup,
        kl_coef=0.0,
        entropy_coef=0.0,
        loss="dppo" if loss_type == "default" else loss_type,
        advantage={"grpo": "group_mean", "echo": "group_mean"}.get(algorithm or "", algorithm),
        aggregation="token",
        ratio_reference="sampler",
        zero_variance_filter="all" if filtered else "off",
        top_p=1.0,
        epsilon=1e-8,
        max_prompt_length=None if length is None or response is None else length - response,
        gpus=gpus or _gpus(config),
        train_file=_taskset(config.get("train_source")),
        val_file=_taskset(config.get("validation_source")),
    )
    return setup, notes


def _taskset(sources: object) -> str | None:
    """The taskset of the first source."""
    found = sources[0] if isinstance(sources, list) and sources else None
    for key in ("env", "taskset", "id"):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


def _gpus(config: ConfigReader) -> int | None:
    if config.text("deployment") == "multi_node":
        nodes = (config.integer("train_nodes") or 0) + (config.integer("infer_nodes") or 0)
        return nodes * (config.integer("gpus_per_node") or 0) or None
    return (config.integer("train_gpus", "gpus") or 0) + (config.integer("infer_gpus", "gpus") or 0) or None
