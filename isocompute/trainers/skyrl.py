"""SkyRL 0.3: arguments of `skyrl.train.entrypoints.main_base`; defaults are those of its configs.

`train_batch_size` and `policy_mini_batch_size` both count problems. The KL loss is on by default. Only SkyRL
averages by problem and has an option for CISPO's ratio to the sampler. A run resumes from the latest checkpoint under
`ckpt_path`, which has to be absolute: Ray's workers start in a copy of the working folder.
"""

from __future__ import annotations

from isocompute.trainers import reading, writing
from isocompute.trainers.config_files import ConfigFile
from isocompute.trainers.plan_input import RunPlan, TrainingHardware, share_out
from isocompute.trainers.reading import ConfigReader, Keys, Note, TrainerSetup
from isocompute.trainers.writing import Exported, File, Flat, Notes

NAME, TITLE, VERSION = "skyrl", "SkyRL", "0.3.0"
COMMIT = "a9564572eb8e91076be43c1bd5e4615e3de17265"
ALGORITHM, OPTIMIZER, PLACEMENT = "trainer.algorithm", "trainer.policy.optimizer_config", "trainer.placement"
CORRECTION, SAMPLING = f"{ALGORITHM}.off_policy_correction", "generator.sampling_params"
KEYS = Keys(
    train_file="data.train_data",
    val_file="data.val_data",
    model="trainer.policy.model.path",
    problems_per_batch=("trainer.train_batch_size", 1024, "train_batch_size"),
    mini_batch=("trainer.policy_mini_batch_size", 256),
    epochs_per_batch=("trainer.update_epochs_per_batch", 1),
    micro_batch=("trainer.micro_train_batch_size_per_gpu", 1),
    epochs=("trainer.epochs", 1),
    update_steps="trainer.max_training_steps",
    max_prompt_length=("trainer.max_prompt_length", 512),
    seed=("trainer.seed", 42),
    fully_async=("trainer.fully_async.enabled", False),
    max_staleness=("trainer.fully_async.max_staleness_steps", 4),
    rollouts_per_problem=("generator.n_samples_per_prompt", 5, "n_samples_per_prompt"),
    validation_samples=("generator.eval_n_samples_per_prompt", 1),
    temperature=(f"{SAMPLING}.temperature", 1.0),
    top_p=(f"{SAMPLING}.top_p", 1.0),
    max_response_length=(f"{SAMPLING}.max_generate_length", 1024),
    estimator=(f"{ALGORITHM}.advantage_estimator", "grpo"),
    norm_by_std=(f"{ALGORITHM}.grpo_norm_by_std", True),
    batch_normalize=(f"{ALGORITHM}.advantage_batch_normalize", False),
    loss_type=(f"{ALGORITHM}.policy_loss_type", "regular"),
    loss_reduction=(f"{ALGORITHM}.loss_reduction", "token_mean"),
    clip_low=(f"{ALGORITHM}.eps_clip_low", 0.2),
    clip_high=(f"{ALGORITHM}.eps_clip_high", 0.2),
    use_kl_loss=(f"{ALGORITHM}.use_kl_loss", True),
    use_kl_in_reward=(f"{ALGORITHM}.use_kl_in_reward", False),
    kl_coef=(f"{ALGORITHM}.kl_loss_coef", 0.001),
    use_entropy_loss=(f"{ALGORITHM}.use_entropy_loss", False),
    entropy_coef=(f"{ALGORITHM}.entropy_loss_coef", 0.01),
    zero_variance_only=(f"{ALGORITHM}.zero_variance_filter", False),
    dynamic_sampling=(f"{ALGORITHM}.dynamic_sampling.type", None),
    tis_level=(f"{CORRECTION}.tis_ratio_type", None),
    token_cap=(f"{CORRECTION}.token_tis_ratio_clip_high", 2.0),
    sequence_cap=(f"{CORRECTION}.sequence_tis_ratio_clip_high", 5.0),
    use_tis=f"{ALGORITHM}.use_tis",  # before 0.3
    older_tis_cap=f"{ALGORITHM}.tis_imp_ratio_cap",
    cispo_high=(f"{ALGORITHM}.cispo.cispo_eps_clip_high", 4.0),
    cispo_anchor=(f"{ALGORITHM}.cispo.cispo_anchor", "old"),
    learning_rate=(f"{OPTIMIZER}.lr", 1e-6),
    betas=(f"{OPTIMIZER}.adam_betas", [0.9, 0.999]),
    weight_decay=(f"{OPTIMIZER}.weight_decay", 1e-2),
    grad_clip=(f"{OPTIMIZER}.max_grad_norm", 1.0),
    warmup_updates=(f"{OPTIMIZER}.num_warmup_steps", 0),
    schedule=(f"{OPTIMIZER}.scheduler", "constant_with_warmup"),
    gae_discount=f"{ALGORITHM}.gamma",
    gae_lambda=f"{ALGORITHM}.lambd",
    value_clip=f"{ALGORITHM}.value_clip",
    critic_learning_rate="trainer.critic.optimizer_config.lr",
    nodes=(f"{PLACEMENT}.policy_num_nodes", 1),
    gpus_per_node=(f"{PLACEMENT}.policy_num_gpus_per_node", 1),
)
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


def export(plan: RunPlan, hardware: TrainingHardware) -> Exported:
    """`run_skyrl.sh`: a script with one argument per line."""
    writing.require_full_batch(plan, TITLE)
    notes = Notes()
    share = share_out(plan, hardware)
    recipe = plan.recipe
    values = writing.plan_values(plan, notes, share)
    estimator, norm_by_std, batch_normalize = ADVANTAGES[recipe.advantage]
    settings = KEYS.write(
        values,
        train_file=[writing.file_name(plan, "train_file", notes, "path/to/train.parquet")],
        val_file=[writing.file_name(plan, "val_file", notes, "path/to/validation.parquet")],
        mini_batch=plan.problems_per_batch,
        epochs=plan.update_steps,  # an epoch has at least one step, so this never ends the run first
        validation_samples=plan.validation_samples or 1,
        estimator=estimator,
        norm_by_std=norm_by_std,
        batch_normalize=batch_normalize,
        loss_type=LOSSES[recipe.loss],
        loss_reduction=AGGREGATIONS[recipe.aggregation],
        clip_low=recipe.clip_low,
        clip_high=recipe.clip_high,
        use_kl_loss=recipe.kl_coef > 0,
        use_entropy_loss=recipe.entropy_coef > 0,
        zero_variance_only=recipe.zero_variance_filter != "off",
        warmup_updates=writing.warmup_updates(plan),
        schedule="constant_with_warmup",
        nodes=hardware.nodes,
        gpus_per_node=hardware.gpus_on_node,
        **_correction(plan, notes),
    )
    settings |= {
        "environment.env_class": "gsm8k",
        "trainer.run_name": writing.run_name(plan),
        "trainer.logger": "console",  # W&B by default, which stops a run without a key at its start
        "trainer.strategy": "fsdp",
        f"{PLACEMENT}.colocate_all": True,
        **{f"{PLACEMENT}.{model}_num_nodes": hardware.nodes for model in ("ref", "critic")},
        **{f"{PLACEMENT}.{model}_num_gpus_per_node": hardware.gpus_on_node for model in ("ref", "critic")},
        "generator.inference_engine.num_engines": hardware.gpus,
        "generator.inference_engine.tensor_parallel_size": 1,
        "trainer.micro_forward_batch_size_per_gpu": share.micro_batch,
        "trainer.eval_interval": plan.validation_every,
        "trainer.eval_before_train": True,
        "trainer.ckpt_interval": plan.validation_every,
        f"{SAMPLING}.logprobs": 1,
        "generator.eval_sampling_params.temperature": recipe.temperature,
        "generator.eval_sampling_params.top_p": recipe.top_p,
        "generator.eval_sampling_params.max_generate_length": plan.max_response_length,
    }
    if share.tokens is not None:
        settings["trainer.max_tokens_per_microbatch"] = share.tokens
    if recipe.loss == "cispo":
        settings[f"{ALGORITHM}.cispo.cispo_eps_clip_low"] = 1.0
    if recipe.aggregation == "fixed":
        settings[f"{ALGORITHM}.max_seq_len"] = plan.max_response_length
    if recipe.advantage == "gae":
        settings["trainer.critic.model.path"] = values["model"]
        settings["trainer.critic_mini_batch_size"] = plan.problems_per_batch
    if recipe.loss == "reinforce":
        notes.add("loss", "the clipped loss replaces REINFORCE; at one update per batch the gradients are equal.")
    writing.note_whitened(plan, notes)
    if recipe.zero_variance_filter == "policy":
        notes.add("zero_variance_filter", "zero-variance problems leave the whole loss, not the policy's part alone.")
    writing.note_general(plan, notes)
    writing.note_no_option(plan, notes, "epsilon", "fp32_head")
    notes.add("reward", "fill in environment.env_class: it scores the answers.")
    notes.add("logger", "the console, which `import` reads; with WANDB_API_KEY set, trainer.logger=wandb is W&B's.")
    # Where checkpoints and exported models go, below the home folder as by default.
    folders = {"trainer.ckpt_path": "ckpts", "trainer.export_path": "exports"}
    script = writing.shell_script(
        writing.header(plan, f"{TITLE} {VERSION} ({COMMIT[:8]})", notes),
        "uv run --isolated --extra fsdp -m skyrl.train.entrypoints.main_base",
        [[writing.dotlist(key, settings[key])] for key in sorted(settings)],
        [f'"{key}=$HOME/{folder}/{writing.run_name(plan)}"' for key, folder in folders.items()],
    )
    file = File("run_skyrl.sh", script)
    return Exported(NAME, VERSION, (file,), tuple(notes), share.micro_batch, share.accumulation)


def _correction(plan: RunPlan, notes: Notes) -> Flat:
    """Truncated importance sampling, or CISPO's ratio to the sampler, which already corrects for it."""
    recipe = plan.recipe
    cispo: Flat = {}
    if recipe.loss == "cispo":
        anchor = "rollout" if recipe.ratio_reference == "sampler" else "old"
        cispo = {"cispo_high": recipe.ratio_cap - 1, "cispo_anchor": anchor}
        if recipe.ratio_reference == "sampler":
            return cispo
    cap = writing.tis_cap(plan, notes)
    return cispo if cap is None else cispo | {"tis_level": "token", "token_cap": cap}


def matches(file: ConfigFile) -> int:
    """How much of a config is SkyRL's alone."""
    tables = ("generator.", "trainer.algorithm.", "trainer.policy.", "trainer.placement.")
    return sum(key.startswith(tables) for key in file.keys) + 3 * any("skyrl" in word for word in file.words)


def read(file: ConfigFile, gpus: int | None, problems: int | None) -> tuple[TrainerSetup, list[Note]]:
    """The setup that a config describes, and what is unusual about it in SkyRL."""
    notes: list[Note] = []
    config = ConfigReader(file, KEYS)
    batch = config.integer("problems_per_batch", "problems_per_batch")
    n = config.integer("rollouts_per_problem", "rollouts_per_problem", "rollouts_per_update")
    mini = config.integer("mini_batch", "updates_per_batch", "rollouts_per_update")
    if "problems_per_batch" in config.assumed:
        config.assume("updates_per_batch")
    updates = None if not batch or not mini else (config.integer("epochs_per_batch") or 1) * batch / mini
    if batch and mini and batch % mini:
        message = f"train_batch_size = {batch} is not a multiple of policy_mini_batch_size = {mini}: SkyRL refuses it."
        notes.append(Note("mini_batch", message))
        updates = None
    steps = config.integer("update_steps")
    if steps is None:
        steps = reading.steps_from_epochs(config.integer("epochs"), problems, batch, notes, KEYS["epochs"])
    loss = config.text("loss_type", "loss")
    cispo = loss == "cispo"
    low = config.number("clip_low", "clip_low")
    high = config.number("cispo_high", "ratio_cap") if cispo else config.number("clip_high", "clip_high")
    to_sampler = cispo and config.text("cispo_anchor") == "rollout"
    config.assume("epsilon", *(() if to_sampler else ("ratio_reference",)))  # no option for them
    reduction = config.text("loss_reduction", "aggregation")
    has_entropy = config.flag("use_entropy_loss", "entropy_coef")
    setup = config.setup(
        NAME,
        VERSION,
        problems_per_batch=batch,
        rollouts_per_problem=n,
        update_steps=steps,
        updates_per_batch=updates,
        rollouts_per_update=reading.times(mini, n),
        staleness=(config.integer("max_staleness", "staleness") or 0) if config.flag("fully_async") else 0,
        warmup_steps=reading.in_batches(config.integer("warmup_updates", "warmup_steps"), updates),
        kl_coef=_kl(config, notes),
        entropy_coef=config.number("entropy_coef", "entropy_coef") if has_entropy else 0.0,
        loss=(reading.invert(LOSSES) | {"dual_clip": "clip"}).get(loss or "", loss),
        advantage=_advantage(config),
        aggregation=reading.invert(AGGREGATIONS).get(reduction or "", reduction),
        **reading.clip_fields(cispo, low, high),
        ratio_reference="sampler" if to_sampler else "trainer",
        tis_cap=_tis(config),
        zero_variance_filter=_filter(config, notes),
        epsilon=1e-8,
        gpus=config.gpus(gpus),
    )
    return setup, notes


def _kl(config: ConfigReader, notes: list[Note]) -> float | None:
    if config.flag("use_kl_in_reward"):
        notes.append(Note("kl_in_reward", "KL is taken off the reward, not added to the loss."))
    elif not config.flag("use_kl_loss", "kl_coef"):
        return 0.0
    return config.number("kl_coef", "kl_coef")


def _advantage(config: ConfigReader) -> str | None:
    estimator = config.text("estimator", "advantage")
    if estimator == "grpo":
        if config.flag("batch_normalize"):
            return "batch_std"
        return "group_std" if config.flag("norm_by_std") else "group_mean"
    return {"reinforce++": "none", "rloo": "group_mean"}.get(estimator or "", estimator)


def _tis(config: ConfigReader) -> float | None:
    level = config.text("tis_level")
    if level in ("token", "sequence"):
        return config.number(f"{level}_cap", "tis_cap")
    return config.number("older_tis_cap") if config.flag("use_tis") else None


def _filter(config: ConfigReader, notes: list[Note]) -> str:
    if config.text("dynamic_sampling") in ("filter", "replace"):
        return reading.group_filter(True, notes)
    return "all" if config.flag("zero_variance_only", "zero_variance_filter") else "off"
