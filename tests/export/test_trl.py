"""Exported configs in the real TRL: constructed, and trained for two steps on a tiny model on the CPU."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from trl import GRPOConfig

from isocompute.export import Hardware, Plan, export_plan, make_plan
from isocompute.export import trl as writer
from isocompute.export.reading import trl as reader
from isocompute.export.reading.keys import unknown_keys
from tests.export.plans import cases

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's and its dependencies' own warnings are not ours to fail on

NOT_OF_THE_CONFIG = ("model_name_or_path", "dataset_name", "reward_funcs")


def constructed(text: str, **over: Any) -> GRPOConfig:
    """What the exported Python file makes, with values for this machine in place of a GPU's."""
    made: list[dict[str, Any]] = []

    def record(**settings: Any) -> None:
        made.append(settings)

    module = mock.Mock(GRPOConfig=record)
    with mock.patch.dict("sys.modules", {"trl": module}):
        exec(compile(text, "grpo_config.py", "exec"), {})
    return GRPOConfig(**(made[0] | over))


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
def test_every_export_constructs(tmp_path: Path, case: tuple[Plan, Hardware]) -> None:
    plan, hardware = case
    python, as_yaml = export_plan(trainer="trl", plan=plan, hardware=hardware).files
    local = {"output_dir": str(tmp_path), "use_cpu": True, "report_to": "none"}
    with mock.patch.object(GRPOConfig, "world_size", hardware.gpus):
        config = constructed(python.text, **local)
        table = yaml.safe_load(as_yaml.text)
        from_yaml = {key: value for key, value in table.items() if key not in NOT_OF_THE_CONFIG}
        same = GRPOConfig(**(from_yaml | local))
    assert config.generation_batch_size == plan.batch_size
    assert config.steps_per_generation == config.gradient_accumulation_steps
    assert config.num_generations == plan.rollouts_per_problem
    assert config.max_steps == plan.update_steps * plan.recipe.updates_per_batch
    assert config.loss_type in reader.LOSS_TYPES
    for name in writer_fields():
        assert getattr(config, name) == getattr(same, name)


def writer_fields() -> list[str]:
    plan = make_plan({"Bp": 8, "n": 8, "M": 10})
    table = yaml.safe_load(export_plan(trainer="trl", plan=plan).files[1].text)
    return [key for key in table if key not in (*NOT_OF_THE_CONFIG, "output_dir")]


def test_the_list_of_keys_has_every_field_and_nothing_like_it() -> None:
    fields = {field.name for field in dataclasses.fields(GRPOConfig)}
    assert unknown_keys("trl", fields, alone=True) == {}
    assert unknown_keys("trl", [f"{name}_x" for name in fields], alone=True).keys() == {f"{name}_x" for name in fields}


def test_the_readers_defaults_are_trls() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
    assert {key: fields[key] for key in reader.DEFAULTS} == reader.DEFAULTS
    assert set(writer_fields()) <= set(fields)
    assert set(writer.LOSS_TYPES.values()) <= set(reader.LOSS_TYPES)


RECIPES = ["isocompute-easy", "dr-grpo", "gspo", "cispo"]


@pytest.mark.parametrize(
    ("recipe", "problems", "rollouts", "per_device"),
    [
        (RECIPES[0], 4, 2, 2),
        (RECIPES[1], 3, 4, 4),
        (RECIPES[2], 5, 3, 5),
        (RECIPES[3], 2, 6, 12),
    ],
)
def test_an_update_sees_bp_problems_and_n_rollouts(
    tmp_path: Path, recipe: str, problems: int, rollouts: int, per_device: int
) -> None:
    """Counted by the reward function between one optimiser step and the next."""
    from transformers import TrainerCallback
    from trl import GRPOTrainer

    plan = make_plan(
        {"Bp": problems, "n": rollouts, "M": 2, "recipe": recipe, "max_response_length": 4, "learning_rate": 1e-4}
    )
    hardware = Hardware(gpus=1, max_sequences=per_device)
    text = export_plan(trainer="trl", plan=plan, hardware=hardware).files[0].text
    config = constructed(
        text,
        output_dir=str(tmp_path),
        use_cpu=True,
        bf16=False,
        use_vllm=False,
        report_to="none",
        disable_tqdm=True,
        gradient_checkpointing=False,
        save_strategy="no",
    )
    step = 0
    seen: dict[int, Counter[str]] = {}

    def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        seen.setdefault(step, Counter()).update(prompts)
        return [float(len(completion) % 3) for completion in completions]

    class Count(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            nonlocal step
            step += 1

    tokenizer = save_tiny_model(tmp_path / "model")
    trainer = GRPOTrainer(
        model=str(tmp_path / "model"),
        reward_funcs=reward,
        args=config,
        train_dataset=questions(),
        processing_class=tokenizer,
        callbacks=[Count()],
    )
    trainer.train()
    assert step == plan.update_steps == 2
    assert sorted(seen) == [0, 1]
    for prompts in seen.values():
        assert len(prompts) == problems
        assert set(prompts.values()) == {rollouts}


def questions() -> Any:
    from datasets import Dataset

    pairs = itertools.product("0123456789", repeat=2)
    return Dataset.from_list([{"prompt": f"{a} + {b} ="} for a, b in pairs])


def save_tiny_model(folder: Path) -> Any:
    """A random two-layer Qwen3 in a folder, and a tokenizer of digits: nothing is downloaded."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    words = ["<pad>", "<eos>", "<unk>", "+", "=", *"0123456789"]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    shape = Qwen3Config(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
    )
    Qwen3ForCausalLM(shape).save_pretrained(folder)
    return tokenizer
