"""veRL 0.9.1: Hydra overrides of `ppo_trainer` and a script that starts it; defaults are those of its configs.

`data.train_batch_size` and `ppo_mini_batch_size` both count problems; an update is on-policy only if they are equal.
A CISPO cap of 5 is `clip_ratio_high=4` here, and `clip_ratio_low=1` removes its lower bound. Checkpoints
(`checkpoints/PROJECT/EXPERIMENT`) and the log (`PROJECT/EXPERIMENT.jsonl`) go by names, and a run resumes from whatever
checkpoint it finds there.
"""

from __future__ import annotations

import shlex

from isocompute.trainers import reading, writing
from isocompute.trainers.config_files import ConfigFile
from isocompute.trainers.plan_input import RunPlan, Share, TrainingHardware, share_out
from isocompute.trainers.reading import ConfigReader, Keys, Note, TrainerSetup
from isocompute.trainers.writing import Exported, File, Flat, Notes

NAME, TITLE, VERSION = "verl", "veRL", "0.9.1"
ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
CORRECTION = "algorithm.rollout_correction"
KEYS = Keys(
    train_file="data.train_files",
    val_file="data.val_files",
    problems_per_batch=("data.train_batch_size", 1024, "train_batch_size"),
    max_prompt_length=("data.max_prompt_length", 512),
    max_response_length=("data.max_response_length", 512),
    seed="data.seed",
    model="actor_rollout_ref.model.path",
    mini_batch=(f"{ACTOR}.ppo_mini_batch_size", 256),
    epochs_per_batch=(f"{ACTOR}.ppo_epochs", 1),
    micro_batch=f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    loss_mode=(f"{ACTOR}.policy_loss.loss_mode", "vanilla"),
    clip_both=f"{ACTOR}.clip_ratio",
    clip_low=(f"{ACTOR}.clip_ratio_low", 0.2),
    clip_high=(f"{ACTOR}.clip_ratio_high", 0.2),
    loss_agg_mode=(f"{ACTOR}.loss_agg_mode", "token-mean"),
    use_kl_loss=(f"{ACTOR}.use_kl_loss", False),
    kl_coef=(f"{ACTOR}.kl_loss_coef", 0.001),
    entropy_coef=(f"{ACTOR}.entropy_coeff", 0),
    learning_rate=(f"{ACTOR}.optim.lr", 1e-6),
    schedule=(f"{ACTOR}.optim.lr_scheduler_type", "constant"),
    warmup_steps=(f"{ACTOR}.optim.lr_warmup_steps", -1),
    warmup_share=(f"{ACTOR}.optim.lr_warmup_steps_ratio", 0.0),
    betas=(f"{ACTOR}.optim.betas", [0.9, 0.999]),
    weight_decay=(f"{ACTOR}.optim.weight_decay", 0.01),
    grad_clip=(f"{ACTOR}.optim.clip_grad", 1.0, f"{ACTOR}.grad_clip"),  # the actor's before 0.5
    rollouts_per_problem=(f"{ROLLOUT}.n", 1),
    temperature=(f"{ROLLOUT}.temperature", 1.0),
    top_p=(f"{ROLLOUT}.top_p", 1),
    log_probs=(f"{ROLLOUT}.calculate_log_probs", True),
    validation_samples=(f"{ROLLOUT}.val_kwargs.n", 1),
    validation_sampling=(f"{ROLLOUT}.val_kwargs.do_sample", False),
    adv_estimator=("algorithm.adv_estimator", "gae"),
    norm_adv_by_std=("algorithm.norm_adv_by_std_in_grpo", True),
    use_kl_in_reward=("algorithm.use_kl_in_reward", False),
    reward_kl_type="algorithm.kl_ctrl.type",
    reward_kl_coef=("algorithm.kl_ctrl.kl_coef", 0.001),
    filter_groups=("algorithm.filter_groups.enable", False),
    bypass_mode=(f"{CORRECTION}.bypass_mode", False),
    rollout_is=(f"{CORRECTION}.rollout_is", None),
    rollout_is_threshold=(f"{CORRECTION}.rollout_is_threshold", 2.0),
    gae_discount="algorithm.gamma",
    gae_lambda="algorithm.lam",
    critic_learning_rate="critic.optim.lr",
    value_clip="critic.cliprange_value",
    epochs=("trainer.total_epochs", 30),
    update_steps=("trainer.total_training_steps", None),
    nodes=("trainer.nnodes", 1),
    gpus_per_node=("trainer.n_gpus_per_node", 8),
)
LOSSES = {"clip": "vanilla", "gspo": "gspo", "cispo": "cispo", "reinforce": "gpg"}
LOSS_MODES = frozenset(
    ("vanilla", "gspo", "cispo", "gpg", "sapo", "geo_mean", "clip_cov", "kl_cov", "dppo_tv", "dppo_kl", "dro")
) | {"bypass_mode"}
ADVANTAGES = {
    "group_std": ("grpo", True),
    "group_mean": ("grpo", False),
    "batch_std": ("reinforce_plus_plus_baseline", True),
    "none": ("reinforce_plus_plus", True),
    "gae": ("gae", True),
}
"""`adv_estimator` and `norm_adv_by_std_in_grpo`, which only `grpo` reads."""
AGGREGATIONS = {"token": "token-mean", "sequence": "seq-mean-token-mean", "fixed": "seq-mean-token-sum-norm"}


def export(plan: RunPlan, hardware: TrainingHardware) -> Exported:
    """Overrides and a script for `python3 -m verl.trainer.main_ppo`."""
    writing.require_full_batch(plan, TITLE)
    notes = Notes()
    share = share_out(plan, hardware)
    recipe = plan.recipe
    cispo = recipe.loss == "cispo"
    estimator, by_std = ADVANTAGES[recipe.advantage]
    values = writing.plan_values(plan, notes, share)
    if share.tokens is not None:
        del values["micro_batch"]
    settings = KEYS.write(
        values,
        train_file=writing.file_name(plan, "train_file", notes, "path/to/train.parquet"),
        val_file=writing.file_name(plan, "val_file", notes, "path/to/validation.parquet"),
        mini_batch=plan.problems_per_batch,
        loss_mode=LOSSES[recipe.loss],
        clip_low=1.0 if cispo else recipe.clip_low,
        clip_high=recipe.ratio_cap - 1 if cispo else recipe.clip_high,
        loss_agg_mode=AGGREGATIONS.get(recipe.aggregation, "token-mean"),
        use_kl_loss=recipe.kl_coef > 0,
        schedule="constant",
        warmup_steps=recipe.warmup_steps,
        log_probs=True,
        validation_samples=plan.validation_samples or 1,
        validation_sampling=True,
        adv_estimator=estimator,
        norm_adv_by_std=by_std,
        use_kl_in_reward=False,
        epochs=plan.update_steps,  # an epoch has at least one step, so this never ends the run first
        nodes=hardware.nodes,
        gpus_per_node=hardware.gpus_on_node,
    )
    settings |= {
        "data.filter_overlong_prompts": True,
        **_micro_batches(share),
        f"{ACTOR}.grad_clip": settings[KEYS["grad_clip"]],
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        f"{ROLLOUT}.val_kwargs.temperature": recipe.temperature,
        f"{ROLLOUT}.val_kwargs.top_p": recipe.top_p,
        "trainer.project_name": "isocompute-runs",
        "trainer.experiment_name": writing.run_name(plan),
        "trainer.test_freq": plan.validation_every,
        "trainer.val_before_train": True,
        "trainer.save_freq": plan.validation_every,
        "trainer.logger": ["console", "file"],
    }
    if plan.seed is not None:
        settings |= {f"{ROLLOUT}.seed": plan.seed, f"{ACTOR}.data_loader_seed": plan.seed}
    if recipe.aggregation == "fixed":
        settings[f"{ACTOR}.loss_scale_factor"] = plan.max_response_length
    if recipe.advantage == "gae":
        settings |= {"critic.model.path": values["model"], "critic.ppo_micro_batch_size_per_gpu": 1}
    settings |= _correction(plan, notes)
    if recipe.aggregation == "prompt":
        notes.add("aggregation", "there is no mean over each problem's tokens; token-mean replaces it.")
    writing.note_whitened(plan, notes)
    writing.note_unfiltered(plan, notes, "algorithm.filter_groups")
    writing.note_no_option(plan, notes, "epsilon", "fp32_head")
    writing.note_general(plan, notes)
    notes.add("reward", "rewards come from data_source in the data, or set reward.custom_reward_function.")
    overrides = [writing.hydra(key, settings[key]) for key in sorted(settings)]
    command, name = "python3 -m verl.trainer.main_ppo", f"{TITLE} {VERSION}"
    script = writing.shell_script(writing.header(plan, name, notes), command, [[override] for override in overrides])
    top = writing.header(plan, name, notes, f"to use: grep -v '^#' verl_overrides.txt | xargs {command}")
    listed = top + "".join(shlex.quote(override) + "\n" for override in overrides)
    files = (File("run_verl.sh", script), File("verl_overrides.txt", listed))
    return Exported(NAME, VERSION, files, tuple(notes), share.micro_batch, share.accumulation)


def _micro_batches(share: Share) -> Flat:
    """Packing by tokens where a token limit is given, else equal micro-batches of sequences."""
    if share.tokens is not None:
        return {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": share.tokens}
    return {
        f"{ACTOR}.use_dynamic_bsz": False,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": share.micro_batch,
        f"{REF}.log_prob_micro_batch_size_per_gpu": share.micro_batch,
    }


def _correction(plan: RunPlan, notes: Notes) -> Flat:
    """Truncated importance sampling; or the sampler's log-probs in place of the trainer's old ones (`bypass_mode`).

    In bypass mode the ratio to the sampler is the only correction, and veRL logs no entropy. CISPO does not need it:
    truncated importance sampling gives the same.
    """
    if plan.recipe.ratio_reference == "sampler" and plan.recipe.loss in ("clip", "gspo"):
        return KEYS.write({}, bypass_mode=True, rollout_is=None)
    cap = writing.tis_cap(plan, notes)
    return KEYS.write({"rollout_is": None} if cap is None else {"rollout_is": "token", "rollout_is_threshold": cap})


def matches(file: ConfigFile) -> int:
    """How much of a config is veRL's alone."""
    started = any("verl.trainer" in word for word in file.words)
    return sum(key.startswith("actor_rollout_ref.") for key in file.keys) + 3 * started


def read(file: ConfigFile, gpus: int | None, problems: int | None) -> tuple[TrainerSetup, list[Note]]:
    """The setup that a config describes, and what is unusual about it in veRL."""
    notes: list[Note] = []
    config = ConfigReader(file, KEYS)
    batch = config.integer("problems_per_batch", "problems_per_batch")
    n = config.integer("rollouts_per_problem")
    if file.form == "settings" and config.has("temperature") and not config.has("rollouts_per_problem"):
        # A whole dump without it: veRL of 2024 sampled once a prompt.
        notes.append(Note("inferred", "n = 1, since veRL's config has no rollout.n"))
    elif not config.has("rollouts_per_problem"):
        config.assume("rollouts_per_problem")
    mini = config.integer("mini_batch", "updates_per_batch", "rollouts_per_update")
    if "problems_per_batch" in config.assumed:
        config.assume("updates_per_batch")
    updates = None if not batch or not mini else (config.integer("epochs_per_batch") or 1) * batch / mini
    if batch and mini and mini > batch:
        message = f"ppo_mini_batch_size = {mini} is above train_batch_size = {batch}: veRL refuses it."
        notes.append(Note("mini_batch", message))
        updates = None
    elif batch and mini and batch % mini:
        notes.append(
            Note("mini_batch", f"train_batch_size = {batch} is not a multiple of ppo_mini_batch_size = {mini}.")
        )
    steps = config.integer("update_steps")
    if steps is None:
        steps = reading.steps_from_epochs(config.integer("epochs"), problems, batch, notes, KEYS["epochs"])
    loss_mode = config.text("loss_mode", "loss")
    if loss_mode not in LOSS_MODES:
        message = f"policy_loss.loss_mode = {loss_mode}: veRL {VERSION} has {', '.join(sorted(LOSS_MODES))}."
        notes.append(Note("loss", message))
    low, high = (
        config.number("clip_both" if config.has("clip_both") and not config.has(side) else side, side, *more)
        for side, more in (("clip_low", ()), ("clip_high", ("ratio_cap",)))
    )
    cispo = loss_mode == "cispo"
    if cispo and low is not None and low < 1:
        message = f"clip_ratio_low = {low:g} floors CISPO's ratio at {1 - low:g}; 1 removes the floor."
        notes.append(Note("cispo_cap", message))
    aggregation = config.text("loss_agg_mode", "aggregation")
    bypassed = config.flag("bypass_mode", "ratio_reference")
    config.assume("epsilon")  # no option for it
    if (config.integer("validation_samples") or 1) > 1 and not config.flag("validation_sampling"):
        message = "val_kwargs.n > 1 without val_kwargs.do_sample=True: all samples are the same."
        notes.append(Note("validation", message))
    setup = config.setup(
        NAME,
        VERSION,
        problems_per_batch=batch,
        rollouts_per_problem=n,
        update_steps=steps,
        updates_per_batch=updates,
        rollouts_per_update=reading.times(mini, n),
        warmup_steps=_warmup(config, steps),
        kl_coef=_kl(config, notes),
        loss=reading.invert(LOSSES).get(loss_mode or "", loss_mode),
        advantage=_advantage(config),
        aggregation=reading.invert(AGGREGATIONS).get(aggregation or "", aggregation),
        **reading.clip_fields(cispo, low, high),
        ratio_reference="sampler" if bypassed else "trainer",
        tis_cap=None if bypassed else _tis(config, notes),
        zero_variance_filter=reading.group_filter(config.flag("filter_groups", "zero_variance_filter"), notes),
        epsilon=1e-8,
        gpus=config.gpus(gpus),
    )
    return setup, notes


def _kl(config: ConfigReader, notes: list[Note]) -> float | None:
    # Before 0.3 there was no switch, and every run without KL in its loss subtracted it from the reward. Such a config
    # is recognised by the other keys of KL in the reward.
    older = config.has("reward_kl_type", "reward_kl_coef") and not config.has("use_kl_in_reward")
    in_loss = config.flag("use_kl_loss", *(() if older else ("kl_coef",)))
    in_reward = not in_loss if older else config.flag("use_kl_in_reward")
    if in_reward and in_loss:
        notes.append(Note("kl_twice", "KL is in the reward and in the loss."))
    if in_loss:
        return config.number("kl_coef", "kl_coef")
    if in_reward:
        notes.append(Note("kl_in_reward", "KL is taken off the reward, not added to the loss."))
        return config.number("reward_kl_coef", "kl_coef")
    return 0.0


def _advantage(config: ConfigReader) -> str | None:
    estimator = config.text("adv_estimator", "advantage")
    if estimator in ("grpo", "grpo_vectorized"):
        return "group_std" if config.flag("norm_adv_by_std") else "group_mean"
    others = {"reinforce_plus_plus_baseline": "batch_std", "reinforce_plus_plus": "none"}
    return (others | dict.fromkeys(("rloo", "rloo_vectorized"), "group_mean")).get(estimator or "", estimator)


def _tis(config: ConfigReader, notes: list[Note]) -> float | None:
    level = config.text("rollout_is")
    if level is None:
        return None
    if not config.flag("log_probs"):
        notes.append(Note("tis_without_log_probs", "rollout_is needs rollout.calculate_log_probs=True."))
    if level != "token":
        notes.append(Note("tis", f"importance sampling by {level}, not by token."))
    return config.number("rollout_is_threshold", "tis_cap")


def _warmup(config: ConfigReader, batches: int | None) -> int | None:
    """In batches: veRL's schedule advances once a batch, however many mini-batches that is."""
    steps = config.integer("warmup_steps")
    if steps is not None and steps > 0:
        return steps
    share = config.number("warmup_share", "warmup_steps") or 0.0
    if share == 0:
        return 0
    return None if batches is None else int(share * batches)
