"""OpenRLHF 0.11: arguments of `openrlhf.cli.train_ppo_ray`; flags of 0.10 and older (underscores) are read too.

`rollout.batch_size` counts problems and `train.batch_size` rollouts. There is no step count: M is
max_samples // Bp · episodes, and warm-up is a share of it. An M that is not such a product over all problems ends a
little early. A run resumes from a checkpoint only with `--ckpt.load_enable`, but all write to one folder by default.
"""

from __future__ import annotations

import math

from isocompute.trainers import reading, writing
from isocompute.trainers.config_files import ConfigFile
from isocompute.trainers.plan_input import RunPlan, TrainingHardware, share_out
from isocompute.trainers.reading import ConfigReader, Keys, Note, TrainerSetup
from isocompute.trainers.writing import Exported, File, Flat, Notes

NAME, TITLE, VERSION = "openrlhf", "OpenRLHF", "0.11.0"
COMMIT = "3c3be6234e0cb353e76bb8019947db9dfe99fca7"
KEYS = Keys(
    model=("actor.model_name_or_path", ..., "pretrain"),
    train_file=("data.prompt_dataset", ..., "prompt_data"),
    max_samples=("data.max_samples", int(1e8), "max_samples"),
    max_length=("data.max_len", 2048, "max_len"),
    problems_per_batch=("rollout.batch_size", 1024, "rollout_batch_size"),
    rollouts_per_problem=("rollout.n_samples_per_prompt", 1, "n_samples_per_prompt"),
    max_response_length=("rollout.max_new_tokens", ..., "generate_max_len"),
    temperature=("rollout.temperature", 1.0, "temperature"),
    top_p=("rollout.top_p", 1.0, "top_p"),
    train_batch=("train.batch_size", 128, "train_batch_size"),
    micro_batch=("train.micro_batch_size", 1, "micro_train_batch_size"),
    epochs_per_batch=("train.max_epochs", 1, "max_epochs"),
    episodes=("train.num_episodes", 1, "num_episodes"),
    asynchronous=("train.async_enable", False, "async_train"),
    seed=("train.seed", 42, "seed"),
    learning_rate=("actor.adam.lr", 1e-6, "actor_learning_rate"),
    betas=("actor.adam.betas", [0.9, 0.95], "adam_betas"),
    epsilon=("actor.adam.eps", 1e-8),
    weight_decay=("actor.adam.weight_decay", 0.0, "l2"),
    schedule=("actor.lr_scheduler", "cosine_with_min_lr", "lr_scheduler"),
    warmup_share=("actor.lr_warmup_ratio", 0.03, "lr_warmup_ratio"),
    grad_clip=("actor.max_norm", 1.0, "max_norm"),
    loss_type=("actor.policy_loss_type", "ppo", "policy_loss_type"),
    clip_both=("actor.eps_clip", 0.2, "eps_clip"),
    clip_range=("actor.eps_clip_low_high", ..., "eps_clip_low_high"),
    entropy_coef=("actor.entropy_coef", ..., "entropy_loss_coef"),
    nodes=("actor.num_nodes", 1, "actor_num_nodes"),
    gpus_per_node=("actor.num_gpus_per_node", 8, "actor_num_gpus_per_node"),
    kl_coef=("algo.kl.init_coef", 0.01, "init_kl_coef"),
    use_kl_loss=("algo.kl.use_loss", False, "use_kl_loss"),
    estimator=("algo.advantage.estimator", "gae", "advantage_estimator"),
    correction=("algo.advantage.is_correction_enable", False, "enable_vllm_is_correction"),
    correction_type=("algo.advantage.is_correction_type", "tis"),
    correction_range=("algo.advantage.is_correction_threshold", [0.5, 5.0], "vllm_is_truncated_threshold"),
    gae_discount=("algo.advantage.gamma", ..., "gamma"),
    gae_lambda=("algo.advantage.lambd", ..., "lambd"),
    critic_learning_rate=("critic.adam.lr", ..., "critic_learning_rate"),
    value_clip=("critic.value_clip", ..., "value_clip"),
    dynamic_filtering=("algo.dynamic_filtering_enable", False, "dynamic_filtering"),
    val_file=("eval.dataset", ..., "eval_dataset"),
    validation_samples=("eval.n_samples_per_prompt", 4, "eval_n_samples_per_prompt"),
)
ADVANTAGES = {
    "group_std": "group_norm",
    "group_mean": "dr_grpo",
    "batch_std": "reinforce_baseline",
    "none": "reinforce",
    "gae": "gae",
}
_WEIGHT = 10
"""The weight of a share of the updates that is left out, relative to the same share of the problems."""


def export(plan: RunPlan, hardware: TrainingHardware) -> Exported:
    """`run_openrlhf.sh`: a script with one argument per line."""
    writing.require_full_batch(plan, TITLE)
    notes = Notes()
    share = share_out(plan, hardware)
    folder = f"ckpt/{writing.run_name(plan)}"
    plan, episodes = _in_episodes(plan, notes)
    recipe = plan.recipe
    loss = "gspo" if recipe.loss == "gspo" else "ppo"
    values = writing.plan_values(plan, notes, share)
    if recipe.entropy_coef == 0:
        del values["entropy_coef"]
    if share.tokens is not None:
        del values["micro_batch"]
    # The trainer rounds steps · share up: half a step less makes that exact whatever the rounding of the division.
    steps = plan.update_steps * recipe.updates_per_batch
    settings = KEYS.write(
        values,
        max_samples=plan.problems_per_batch * plan.update_steps // episodes,
        max_length=plan.max_prompt_length + plan.max_response_length,
        train_batch=plan.batch_size,
        episodes=episodes,
        schedule="constant_with_warmup",
        warmup_share=(writing.warmup_updates(plan) - 0.5) / steps if recipe.warmup_steps else 0.0,
        loss_type=loss,
        clip_range=[recipe.clip_low, recipe.clip_high],
        nodes=hardware.nodes,
        gpus_per_node=hardware.gpus_on_node,
        estimator=ADVANTAGES[recipe.advantage],
        train_file=writing.file_name(plan, "train_file", notes, "path/to/train.jsonl"),
        val_file=writing.file_name(plan, "val_file", notes, "path/to/validation.jsonl"),
        **({"use_kl_loss": True} if recipe.kl_coef > 0 else {}),
        **_correction(plan, notes),
    )
    settings |= {
        "reward.remote_url": "path/to/reward.py",
        "data.apply_chat_template": True,
        "eval.steps": plan.validation_every,
        "eval.temperature": recipe.temperature,
        "ref.num_nodes": hardware.nodes,
        "ref.num_gpus_per_node": hardware.gpus_on_node,
        "vllm.num_engines": hardware.gpus,
        "vllm.tensor_parallel_size": 1,
        "vllm.enable_sleep": True,
        "ds.enable_sleep": True,
        "train.colocate_all": True,
        "actor.gradient_checkpointing_enable": True,
        "ckpt.save_steps": plan.validation_every,
        "ckpt.output_dir": folder,
        "ckpt.path": f"{folder}/checkpoints",
    }
    if share.tokens is not None:
        settings |= {"train.dynamic_batch_enable": True, "train.max_tokens_per_gpu": share.tokens}
    else:
        settings["rollout.micro_batch_size"] = share.micro_batch
    if recipe.kl_coef > 0:
        settings["algo.kl.estimator"] = "k3"
    if recipe.advantage == "gae":
        settings |= {"critic.num_nodes": hardware.nodes, "critic.num_gpus_per_node": hardware.gpus_on_node}
    if recipe.loss in ("reinforce", "cispo"):
        notes.add("loss", f"PPO's clip replaces {recipe.loss}; at one update per batch the gradients are equal.")
        notes.add("ratio_cap", "see loss.")
    averaged = "sequence" if loss == "gspo" else "token"
    if recipe.aggregation != averaged:
        notes.add("aggregation", f"{loss} is averaged by '{averaged}' here, not by '{recipe.aggregation}'.")
    if recipe.advantage in ("batch_std", "none"):
        notes.add("advantage", "advantages are whitened over the batch's tokens.")
    writing.note_unfiltered(plan, notes, "algo.dynamic_filtering")
    writing.note_no_option(plan, notes, "fp32_head")
    writing.note_general(plan, notes)
    notes.add("reward", "fill in --reward.remote_url: a reward function's Python file, or a server.")
    ordered = {key: settings[key] for key in sorted(settings)}
    command = "python3 -m openrlhf.cli.train_ppo_ray"
    script = writing.shell_script(writing.header(plan, f"{TITLE} {VERSION}", notes), command, writing.flags(ordered))
    file = File("run_openrlhf.sh", script)
    return Exported(NAME, VERSION, (file,), tuple(notes), share.micro_batch, share.accumulation)


def _in_episodes(plan: RunPlan, notes: Notes) -> tuple[RunPlan, int]:
    """The plan with its updates rounded down to whole episodes, and the number of episodes."""
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

    Whole episodes come as close as possible to all updates on all problems. A share of updates that is left out weighs
    `_WEIGHT` times as much as the same share of problems.

    >>> _episodes(101, 31), _episodes(100, 31), _episodes(20, 31)
    ((4, 25), (4, 25), (1, 20))
    """
    least = math.ceil(updates / whole)

    def left_out(episodes: int) -> float:
        batches = min(whole, updates // episodes)
        return _WEIGHT * (1 - episodes * batches / updates) + (1 - batches / whole)

    episodes = min(range(max(1, least - 1), 2 * least + 1), key=left_out)
    return episodes, min(whole, updates // episodes)


def _correction(plan: RunPlan, notes: Notes) -> Flat:
    """Truncated importance sampling; with GSPO the same flag takes the sequence's ratio against the sampler instead."""
    recipe = plan.recipe
    if recipe.loss == "gspo":
        if recipe.tis_cap is not None:
            notes.add(
                "tis_cap", "with gspo the correction is the ratio itself, taken against the sampler, without a cap."
            )
        return {"correction": True} if recipe.ratio_reference == "sampler" else {}
    cap = writing.tis_cap(plan, notes)
    return {} if cap is None else {"correction": True, "correction_type": "tis", "correction_range": [0.0, cap]}


def matches(file: ConfigFile) -> int:
    """How much of a config is OpenRLHF's alone."""
    own = ("problems_per_batch", "rollouts_per_problem", "learning_rate", "estimator")
    found = sum(not file.keys.isdisjoint(KEYS.spellings[name]) for name in own)
    return found + 4 * any("openrlhf" in word for word in file.words)


def read(file: ConfigFile, gpus: int | None, problems: int | None) -> tuple[TrainerSetup, list[Note]]:
    """The setup that a config describes, and what is unusual about it in OpenRLHF."""
    notes: list[Note] = []
    config = ConfigReader(file, KEYS)
    batch = config.integer("problems_per_batch", "problems_per_batch")
    n = config.integer("rollouts_per_problem", "rollouts_per_problem")
    train = config.integer("train_batch", "updates_per_batch", "rollouts_per_update")
    if {"problems_per_batch", "rollouts_per_problem"} & set(config.assumed):
        config.assume("updates_per_batch")
    epochs = config.integer("epochs_per_batch") or 1
    updates = None if not batch or not n or not train else epochs * batch * n / train
    if updates is not None and updates < epochs:
        message = f"train.batch_size = {train} counts rollouts and is above the {batch} × {n} of a batch."
        notes.append(Note("mini_batch", message))
        updates = None
    steps = _steps(config, batch, problems, notes)
    optimizer_steps = None if steps is None or updates is None else steps * updates
    if config.has("clip_range"):
        low, high = config.pair("clip_range")
    else:
        low = high = config.number("clip_both", "clip_low", "clip_high")
    loss = config.text("loss_type", "loss")
    corrected = config.flag("correction")
    to_sampler = corrected and loss == "gspo"
    config.assume("aggregation", *(() if to_sampler else ("ratio_reference",)))  # no options for them
    total, response = config.integer("max_length"), config.integer("max_response_length")
    estimator = config.text("estimator", "advantage")
    refills = config.flag("dynamic_filtering", "zero_variance_filter")
    setup = config.setup(
        NAME,
        VERSION,
        problems_per_batch=batch,
        rollouts_per_problem=n,
        update_steps=steps,
        updates_per_batch=updates,
        rollouts_per_update=train,
        staleness=1 if config.flag("asynchronous") else 0,
        warmup_steps=reading.in_batches(_warmup(config, optimizer_steps), updates),
        kl_coef=_kl(config, notes),
        entropy_coef=config.number("entropy_coef", "entropy_coef") or 0.0,
        loss={"ppo": "clip"}.get(loss or "", loss),
        advantage=(reading.invert(ADVANTAGES) | {"rloo": "group_mean"}).get(estimator or ""),
        aggregation="sequence" if loss == "gspo" else "token",
        clip_low=low,
        clip_high=high,
        ratio_reference="sampler" if to_sampler else "trainer",
        tis_cap=_tis(config, notes) if corrected and not to_sampler else None,
        zero_variance_filter=reading.group_filter(refills, notes),
        max_prompt_length=None if total is None or response is None else total - response,
        gpus=config.gpus(gpus),
    )
    return setup, notes


def _steps(config: ConfigReader, batch: int | None, problems: int | None, notes: list[Note]) -> int | None:
    """M = problems used // Bp · episodes; the problems used are max_samples, or the whole set where that is smaller."""
    episodes, samples = config.integer("episodes"), config.integer("max_samples")
    if not batch or not episodes:
        return None
    if not config.has("max_samples") and problems is None:
        message = f"M is {episodes} episode(s) over the data, and data.max_samples is not set; give --problems."
        notes.append(Note("steps_unknown", message))
        return None
    used = min((count for count in (samples, problems) if count is not None), default=None)
    if used is None:
        return None
    if problems is None:
        config.assume("update_steps")
        notes.append(Note("data_size", f"M holds if the data have at least data.max_samples = {used:,} problems."))
    return used // batch * episodes


def _kl(config: ConfigReader, notes: list[Note]) -> float | None:
    coefficient = config.number("kl_coef", "kl_coef")
    if coefficient and not config.flag("use_kl_loss"):
        message = f"KL ({coefficient:g}) is taken off the reward: --algo.kl.use_loss is not set."
        notes.append(Note("kl_in_reward", message))
    return coefficient


def _tis(config: ConfigReader, notes: list[Note]) -> float | None:
    kind = config.text("correction_type")
    if kind != "tis":
        notes.append(Note("tis", f"the correction for the sampler is {kind}, not truncated importance sampling."))
    low, high = config.pair("correction_range", "tis_cap")
    if low:
        notes.append(Note("tis_floor", f"importance weights are floored at {low:g} as well as capped."))
    return high


def _warmup(config: ConfigReader, optimizer_steps: float | None) -> int | None:
    share = config.number("warmup_share", "warmup_steps") or 0.0
    if share == 0:
        return 0
    return None if optimizer_steps is None else math.ceil(int(optimizer_steps) * share)
