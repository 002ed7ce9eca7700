"""Functions that all exports share: notes, the run's name, a plan's values, and config files as text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from textwrap import TextWrapper
from typing import Any

from isocompute.core.errors import InputError
from isocompute.core.recipe import learning_rate
from isocompute.trainers.plan_input import RunPlan, Share
from isocompute.trainers.reading import NO_CLIP, Note

Flat = dict[str, Any]
"""A config as dotted keys and plain values."""


class Notes(list[Note]):
    """Parts of the plan that the trainer cannot do, and values to fill in; the first note about a field counts."""

    def add(self, code: str, message: str) -> None:
        """Note something about a field of the plan or its recipe."""
        if all(note.code != code for note in self):
            self.append(Note(code, message))


@dataclass(frozen=True)
class File:
    """One file of an export."""

    name: str
    text: str


@dataclass(frozen=True)
class Exported:
    """A plan as one trainer's config. The first file is printed where only one can be."""

    trainer: str
    version: str
    files: tuple[File, ...]
    notes: tuple[Note, ...]
    micro_batch: int | None = None
    """Sequences per device and micro-batch; `None` if the trainer packs by tokens."""
    accumulation: int | None = None
    """Micro-batches per update on each device, whose gradients add up."""


# Plans

_IDENTITY = {"learning_rate", "recipe", "max_prompt_length", "max_response_length", "problems", "model", "train_file"}
"""Fields besides Bp, n, M and the seed that distinguish runs."""


def run_name(plan: RunPlan) -> str:
    """The name of the run's checkpoints and logs: trainers resume from what they find under a name.

    It shows Bp, n, M and the seed; six characters of a hash distinguish runs that differ in anything else.

    >>> from isocompute.trainers.plan_input import make_plan
    >>> run_name(make_plan({"Bp": 32, "n": 8, "M": 100, "seed": 3})).rpartition("-")[0]
    'bp32-n8-m100-seed3'
    """
    seed = "" if plan.seed is None else f"-seed{plan.seed}"
    rest = sha256(plan.model_dump_json(include=_IDENTITY).encode()).hexdigest()[:6]
    return f"bp{plan.problems_per_batch}-n{plan.rollouts_per_problem}-m{plan.update_steps}{seed}-{rest}"


def plan_values(plan: RunPlan, notes: Notes, share: Share | None = None) -> Flat:
    """All values of a plan that a trainer may have a key for, by our names; values that are not set are left out.

    The critic's learning rate is scaled to this batch size as the policy's is.
    """
    recipe = plan.recipe
    critic_rate = 10 * plan.learning_rate
    if recipe.critic_learning_rate is not None:
        of_critic = recipe.model_copy(update={"learning_rate": recipe.critic_learning_rate, "warmup_steps": 0})
        critic_rate = learning_rate(of_critic, batch_size=plan.batch_size, step=0)
    critic = {
        "gae_discount": recipe.gae_discount,
        "gae_lambda": recipe.gae_lambda,
        "critic_learning_rate": critic_rate,
        "value_clip": recipe.value_clip,
    }
    of_recipe = ("kl_coef", "entropy_coef", "temperature", "top_p", "beta1", "beta2", "epsilon", "weight_decay")
    of_plan = (
        *("problems_per_batch", "rollouts_per_problem", "update_steps", "learning_rate"),
        *("max_prompt_length", "max_response_length", "validation_samples", "seed"),
    )
    values = {
        **{name: getattr(plan, name) for name in of_plan},
        **{name: getattr(recipe, name) for name in of_recipe},
        **(critic if recipe.advantage == "gae" else {}),
        "model": file_name(plan, "model", notes, "path/to/model"),
        "micro_batch": None if share is None else share.micro_batch,
        "betas": [recipe.beta1, recipe.beta2],
        "grad_clip": NO_CLIP if recipe.grad_clip is None else recipe.grad_clip,
        "epochs_per_batch": recipe.updates_per_batch,
    }
    return {name: value for name, value in values.items() if value is not None}


def file_name(plan: RunPlan, field: str, notes: Notes, placeholder: str) -> str:
    """The plan's model or file, or a placeholder with a note to fill it in."""
    fill = {
        "model": "fill in the model (or export with --model).",
        "train_file": "fill in the training problems.",
        "val_file": "fill in the validation problems.",
    }
    given: str | None = getattr(plan, field)
    if given is None:
        notes.add(field, fill[field])
    return given or placeholder


def require_full_batch(plan: RunPlan, title: str) -> None:
    """Refuse problems that are fewer than a batch, for trainers whose batches come from one pass over the data."""
    if plan.problems is not None and plan.problems < plan.problems_per_batch:
        raise InputError(
            f"plan: problems = {plan.problems}, fewer than the Bp = {plan.problems_per_batch} of a batch: {title} "
            "fills a batch from one pass over the data, so that none would be whole. Plan again with a Bp of "
            f"{plan.problems} or less, or with more problems."
        )


def warmup_updates(plan: RunPlan) -> int:
    """Warm-up in optimiser steps, for trainers whose schedule advances with each of them; a recipe's counts batches."""
    return plan.recipe.warmup_steps * plan.recipe.updates_per_batch


def tis_cap(plan: RunPlan, notes: Notes) -> float | None:
    """The cap of truncated importance sampling, which also expresses a token's ratio to the sampler.

    With one update per batch the trainer's own ratio is 1. Then min(π/π_sampler, cap) as a constant weight on the
    gradient of the log-probability is exactly CISPO against the sampler. With the cap 1 + clip_high it is a clip
    against the sampler for every ratio inside the clip. GSPO's ratio is that of a sequence, which token weights cannot
    express, and REINFORCE has no ratio.
    """
    recipe = plan.recipe
    if recipe.ratio_reference == "trainer":
        return recipe.tis_cap
    if recipe.loss == "cispo":
        message = (
            "the sampler's ratio is capped by truncated importance sampling, which is the same at one update per batch."
        )
        notes.add("ratio_reference", message)
        notes.add("tis_cap", f"{recipe.ratio_cap:g}: the cap of the ratio to the sampler, see ratio_reference.")
        return recipe.ratio_cap
    if recipe.loss == "clip":
        cap = 1 + recipe.clip_high
        notes.add(
            "ratio_reference",
            "the ratio is taken against the trainer's own log-probs; truncated importance sampling weighs tokens by "
            "the ratio to the sampler's. At one update per batch that is the same inside the clip; outside it every "
            f"token keeps a weight, {cap:g} at most, where the clip drops those whose advantage pushes further out.",
        )
        notes.add("tis_cap", f"{cap:g}: 1 + clip_high, see ratio_reference.")
        return cap
    messages = {
        "gspo": "the sequence's ratio is taken against the trainer's own log-probs, and nothing corrects for the "
        "sampler's: truncated importance sampling weighs tokens, not sequences.",
        "reinforce": "REINFORCE has no ratio, so there is none to take against the sampler.",
    }
    notes.add("ratio_reference", messages[recipe.loss])
    return None


def note_general(plan: RunPlan, notes: Notes) -> None:
    """Note what the plan left to the export, and parts of a recipe that no supported trainer has."""
    recipe = plan.recipe
    chosen = {
        "recipe": "not in the plan: the playbook's, GRPO with truncated importance sampling; KL and entropy as the "
        "plan has them, or off.",
        "learning_rate": f"not in the plan: {plan.learning_rate:.3g}, from {recipe.learning_rate:g} at a batch of "
        f"{recipe.lr_reference_batch:,} by the {recipe.lr_scaling} rule.",
        "max_prompt_length": f"not in the plan: {plan.max_prompt_length}.",
        "max_response_length": f"not in the plan: {plan.max_response_length}.",
    }
    for name in plan.assumed:
        notes.add(name, chosen[name])
    if recipe.no_positive_resampling is not None:
        notes.add(
            "no_positive_resampling",
            f"problems whose pass rate reached {recipe.no_positive_resampling} stay in: no option for it; leave them "
            "out of the data between runs.",
        )
    if recipe.baseline_rollouts is not None:
        notes.add(
            "baseline_rollouts",
            f"the baseline is estimated on the n rollouts that are trained on, not on {recipe.baseline_rollouts}: no "
            "option for it.",
        )
    warmup, updates = recipe.warmup_steps, plan.update_steps
    if warmup >= updates:
        notes.add(
            "warmup_steps",
            f"{warmup} updates of warm-up in a run of {updates}: the learning rate rises to the very end, where it is "
            f"at most {updates / warmup:.0%} of the plan's {plan.learning_rate:.3g}. Give the plan warmup_steps below "
            f"{updates}, or more updates.",
        )
    if recipe.pipeline_steps or recipe.off_policy_steps > 1:
        field = "pipeline_steps" if recipe.pipeline_steps else "off_policy_steps"
        notes.add(
            field,
            f"written as on-policy training, not {field} = {getattr(recipe, field)}: asynchronous modes differ in what "
            "they promise about old tokens; switch yours on by hand, with that bound.",
        )
    if recipe.length_control == "interrupt":
        notes.add("length_control", "long responses are cut, not interrupted: no trainer forces an answer.")
    if recipe.length_control == "penalty":
        notes.add("length_control", "no length penalty: it belongs in your reward function (docs/reference/recipe.md).")
    if recipe.optimizer != "adamw":
        notes.add("optimizer", f"AdamW replaces {recipe.optimizer}, which is for theory only.")


def note_whitened(plan: RunPlan, notes: Notes) -> None:
    """Note advantages over the batch, for trainers whose only such advantage is REINFORCE++."""
    if plan.recipe.advantage == "batch_std":
        notes.add("advantage", "the batch's deviation is taken over tokens, and its mean is subtracted once more.")
    if plan.recipe.advantage == "none":
        notes.add("advantage", "a bare reward is not offered: rewards are whitened over the batch.")


def note_unfiltered(plan: RunPlan, notes: Notes, option: str) -> None:
    """Note a filter of zero-variance problems, for trainers whose `option` would refill the batch."""
    if plan.recipe.zero_variance_filter != "off":
        message = f"zero-variance problems stay in the average: {option} would sample others in their place, which "
        notes.add("zero_variance_filter", f"{message}spends more than the plan.")


def note_no_option(plan: RunPlan, notes: Notes, *fields: str) -> None:
    """Note `fields` that this trainer has no option for, if the recipe uses them."""
    recipe = plan.recipe
    used = {
        "kl_coef": (recipe.kl_coef > 0, f"no KL term to the base model; the plan asks for {recipe.kl_coef:g}."),
        "entropy_coef": (recipe.entropy_coef > 0, f"no entropy bonus; the plan asks for {recipe.entropy_coef:g}."),
        "top_p": (recipe.top_p < 1, f"the nucleus is always 1; the plan asks for {recipe.top_p:g}."),
        "tis_cap": (
            recipe.tis_cap is not None,
            f"no cap on trainer over sampler probability; the plan asks for {recipe.tis_cap}.",
        ),
        "epsilon": (recipe.epsilon != 1e-8, f"AdamW's epsilon stays 1e-8; the plan asks for {recipe.epsilon:g}."),
        "fp32_head": (
            recipe.fp32_head and "fp32_head" in recipe.model_fields_set,
            "no option for FP32 logits on both sides; on one side only they do harm.",
        ),
        "updates_per_batch": (
            recipe.updates_per_batch > 1,
            f"one update per batch; the plan asks for {recipe.updates_per_batch}.",
        ),
        "seed": (plan.seed is not None, f"no option for the seed; the plan asks for {plan.seed}."),
    }
    for field in fields:
        in_use, message = used[field]
        if in_use:
            notes.add(field, message)


# Files

_WIDTH = 118
_WRAP = TextWrapper(_WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
_NOT_TEXT = ("null", "true", "false", "nan", "inf")
"""Words that are values of another kind unless they are quoted."""


def header(plan: RunPlan, trainer: str, notes: Iterable[Note], *start: str) -> str:
    """Comment lines for the top of a file: what the plan is, how to start it, and every note."""
    lines = [
        f"{plan.problems_per_batch} problems × {plan.rollouts_per_problem} rollouts × {plan.update_steps} updates = "
        f"{plan.compute:,} rollouts, for {trainer}, by isocompute.",
        *start,
        *(f"note ({note.code}): {note.message}" for note in notes),
    ]
    rows = [row for line in lines for row in _WRAP.wrap(" ".join(line.splitlines()))]
    return "".join(f"# {row}\n" for row in rows)


def _number(value: float) -> str:
    """A float that reads back equal, in every format here (YAML 1.1 takes 1e-06 for text, so there is always a dot)."""
    text = repr(float(value))
    if "e" in text and "." not in text:
        mantissa, exponent = text.split("e")
        text = f"{mantissa}.0e{exponent}"
    return text


def hydra(key: str, value: Any) -> str:
    r"""One Hydra override, `key=value`: a backslash means itself there, unless a quote follows.

    >>> print(hydra("path", "it's"), hydra("path", r"a\b"))
    path='it\'s' path='a\b'
    """

    def quoted(text: str) -> str:
        before_a_quote = re.sub(r"(\\*)'", r"\1\1\\'", text)
        return "'" + re.sub(r"(\\+)$", r"\1\1", before_a_quote) + "'"

    return f"{key}={_word(value, quoted)}"


def dotlist(key: str, value: Any) -> str:
    """One override for OmegaConf's own command line, whose values are YAML.

    >>> print(dotlist("path", "it's"))
    path='it''s'
    """

    def quoted(text: str) -> str:
        return "'" + text.replace("'", "''") + "'"

    return f"{key}={_word(value, quoted)}"


def _word(value: Any, quoted: Callable[[str], str]) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool | int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(_word(item, quoted) for item in value) + "]"
    text = str(value)
    if re.fullmatch(r"[A-Za-z_./][\w./@%-]*", text) and text.lower() not in _NOT_TEXT:
        return text
    return quoted(text)


def flags(settings: Flat) -> list[list[str]]:
    """Command-line flags: `--key value`, `--key a b` for a list, a bare `--key` for True and nothing for False."""
    out = []
    for key, value in settings.items():
        if value is False:
            continue
        values = [] if value is True else value if isinstance(value, list | tuple) else [value]
        out.append([f"--{key}", *(_number(v) if isinstance(v, float) else str(v) for v in values)])
    return out


def shell_script(top: str, command: str, arguments: Iterable[Sequence[str]], as_written: Iterable[str] = ()) -> str:
    """A bash script: comments, then one command with an argument per line; bash expands those `as_written`.

    `"$@"` lets a caller add arguments, which override the ones before.
    """
    quoted = (" ".join(shlex.quote(word) for word in words) for words in arguments)
    rows = [command, *quoted, *as_written, '"$@"']
    return f"#!/usr/bin/env bash\n{top}set -euo pipefail\n\n" + " \\\n    ".join(rows) + "\n"


def _nested(settings: Flat) -> dict[str, Any]:
    """Dotted keys as nested tables."""
    out: dict[str, Any] = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        table = out
        for part in path:
            table = table.setdefault(part, {})
        table[last] = value
    return out


def yaml_text(top: str, settings: Flat) -> str:
    """A YAML file with nested tables."""
    import yaml

    body: str = yaml.safe_dump(_nested(settings), sort_keys=False, allow_unicode=True, width=_WIDTH)
    return top + body


def toml(top: str, settings: Flat) -> str:
    """A TOML file with nested tables."""
    import tomlkit

    return top + "\n" + tomlkit.dumps(_nested(settings))


def python_call(top: str, module: str, name: str, settings: Flat) -> str:
    """A Python file with one call: `config = NAME(key=value, …)`."""
    rows = "".join(f"    {key}={value!r},\n" for key, value in settings.items())
    return f"{top}from {module} import {name}\n\nconfig = {name}(\n{rows})\n"
