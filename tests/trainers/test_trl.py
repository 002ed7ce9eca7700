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

from isocompute.trainers import RunPlan, TrainingHardware, explain_text, export_plan, make_plan
from isocompute.trainers import trl as trainer
from isocompute.trainers.reading import unknown_keys
from tests.trainers.plans import cases

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's and its dependencies' own warnings are not ours to fail on

NOT_OF_THE_CONFIG = ("model_name_or_path", "dataset_name", "datasets", "reward_funcs")
ON_THIS_MACHINE = {
    "use_cpu": True,
    "bf16": False,
    "use_vllm": False,
    "report_to": "none",
    "disable_tqdm": True,
    "gradient_checkpointing": False,
    "save_strategy": "no",
}


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
def test_every_export_constructs(tmp_path: Path, case: tuple[RunPlan, TrainingHardware]) -> None:
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
    assert config.loss_type in trainer.LOSS_TYPES
    for name in writer_fields():
        assert getattr(config, name) == getattr(same, name)


def writer_fields() -> list[str]:
    plan = make_plan({"Bp": 8, "n": 8, "M": 10})
    table = yaml.safe_load(export_plan(trainer="trl", plan=plan).files[1].text)
    return [key for key in table if key not in (*NOT_OF_THE_CONFIG, "output_dir")]


def started(as_yaml: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `trl grpo --config` gives its trainer: TRL's own parser, and its script with the trainer taken out."""
    import datasets
    import trl
    from trl.scripts import grpo

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(folder / "cache"))
    path = folder / "grpo.yaml"
    path.write_text(as_yaml)
    local = ["--output_dir", str(folder / "out"), "--use_cpu", "true", "--bf16", "false", "--report_to", "none"]
    arguments = grpo.make_parser().parse_args_and_config(["--config", str(path), *local])
    trainer = mock.Mock()
    monkeypatch.setattr(trl, "GRPOTrainer", trainer)
    grpo.main(*arguments)
    given: dict[str, Any] = trainer.call_args.kwargs
    return given


def write_problems(path: Path, prompts: list[str]) -> str:
    from datasets import Dataset

    write = {".parquet": "to_parquet", ".csv": "to_csv"}.get(path.suffix, "to_json")
    getattr(Dataset.from_dict({"prompt": prompts}), write)(path)
    return str(path)


@pytest.mark.parametrize("suffix", [".parquet", ".json", ".jsonl", ".csv", ".PARQUET"])
def test_trls_script_loads_the_training_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    file = tmp_path / f"problems{suffix}"
    write_problems(tmp_path / f"problems{suffix.lower()}", ["one", "two"])
    (tmp_path / f"problems{suffix.lower()}").rename(file)
    plan = {"Bp": 8, "n": 8, "M": 40, "train_file": str(file), "val_file": "val.parquet", "validation_samples": 4}
    text = export_plan(trainer="trl", plan=plan, hardware=TrainingHardware(gpus=1)).files[1].text
    given = started(text, tmp_path, monkeypatch)
    assert given["train_dataset"]["prompt"][:] == ["one", "two"]
    assert given["eval_dataset"] is None
    assert explain_text(text).setup.train_file == str(file)


def test_trls_script_validates_as_the_note_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One folder with both files for `dataset_name`, and the strategy; the rest is in the file."""
    folder = tmp_path / "both"
    folder.mkdir()
    train = write_problems(folder / "train.parquet", ["one", "two"])
    val = write_problems(folder / "test.parquet", ["three"])
    plan = {"Bp": 8, "n": 8, "M": 40, "train_file": train, "val_file": val, "validation_samples": 4}
    made = export_plan(trainer="trl", plan=plan, hardware=TrainingHardware(gpus=1))
    (text,) = [note.message for note in made.notes if note.code == "val_file"]
    assert all(word in text for word in ("dataset_name: FOLDER", "eval_strategy: steps", "eval_on_start: true"))
    table = yaml.safe_load(made.files[1].text)
    del table["datasets"]
    table |= {"dataset_name": str(folder), "eval_strategy": "steps", "eval_on_start": True}
    given = started(yaml.safe_dump(table), tmp_path, monkeypatch)
    assert given["train_dataset"]["prompt"][:] == ["one", "two"]
    assert given["eval_dataset"]["prompt"][:] == ["three"]
    assert (given["args"].eval_steps, given["args"].num_generations_eval) == (2, 4)


@pytest.mark.parametrize("name", ["org/problems", "data/folder"])
def test_a_dataset_of_the_hub_or_a_folder_keeps_its_name(name: str) -> None:
    table = yaml.safe_load(
        export_plan(trainer="trl", plan={"Bp": 8, "n": 8, "M": 10, "train_file": name}).files[1].text
    )
    assert table["dataset_name"] == name and "datasets" not in table


def test_validation_sees_every_problem_k_times(tmp_path: Path) -> None:
    from datasets import Dataset
    from trl import GRPOTrainer

    table = {"Bp": 2, "n": 4, "M": 2, "max_response_length": 4, "validation_samples": 3, "val_file": "val.parquet"}
    text = export_plan(trainer="trl", plan=table, hardware=TrainingHardware(gpus=1)).files[0].text
    config = constructed(text, output_dir=str(tmp_path), **ON_THIS_MACHINE)
    seen: Counter[str] = Counter()

    def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        seen.update(prompts)
        return [float(len(completion) % 3) for completion in completions]

    tokenizer = save_tiny_model(tmp_path / "model")
    held_out = [f"{digit} = {digit}" for digit in "01234"]
    trainer = GRPOTrainer(
        model=str(tmp_path / "model"),
        reward_funcs=reward,
        args=config,
        train_dataset=questions(),
        eval_dataset=Dataset.from_dict({"prompt": held_out}),
        processing_class=tokenizer,
    )
    trainer.train()
    logged = [row["step"] for row in trainer.state.log_history if "eval_reward" in row]
    assert logged == [0, 1, 2]
    assert {seen[prompt] for prompt in held_out} == {3 * len(logged)}


def test_the_list_of_keys_has_every_field_and_nothing_like_it() -> None:
    fields = {field.name for field in dataclasses.fields(GRPOConfig)}
    assert unknown_keys("trl", fields, alone=True) == {}
    assert unknown_keys("trl", [f"{name}_x" for name in fields], alone=True).keys() == {f"{name}_x" for name in fields}


def test_the_readers_defaults_are_trls() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
    assert {key: fields[key] for key in trainer.KEYS.defaults} == trainer.KEYS.defaults
    assert set(writer_fields()) <= set(fields)
    assert set(trainer.AGGREGATIONS.values()) <= set(trainer.LOSS_TYPES)


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
    hardware = TrainingHardware(gpus=1, max_sequences=per_device)
    text = export_plan(trainer="trl", plan=plan, hardware=hardware).files[0].text
    config = constructed(text, output_dir=str(tmp_path), **ON_THIS_MACHINE)
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
