"""Files written by the trackers and trainers themselves, where they are installed."""

from __future__ import annotations

import importlib
import json
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

from isocompute import load
from isocompute.data.importing import import_logs
from isocompute.data.live import LiveRun, trl_callback
from tests.data.made_up import reward, verl_pairs


def test_event_files_of_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(tmp_path / "run1")) as writer:
            for step in range(1, 8):
                for name, value in verl_pairs(step, validated=step % 2 == 0).items():
                    writer.add_scalar(name, value, step)
            writer.add_text("note", "not a number", 3)
        with SummaryWriter(str(tmp_path / "run2")) as writer:
            for step in range(5):
                writer.add_scalar("validation/accuracy", 0.5, step, new_style=True)
    a, b = import_logs(tmp_path)
    assert (a.run.name, a.format, a.run.points.height, a.validation_points) == ("run1", "tensorboard", 7, 3)
    assert {"avg@4", "best@4", "worst@4", "train/avg", "kl"} <= set(a.run.metrics)
    assert a.run.points["train/avg"].to_list() == pytest.approx([reward(s) for s in range(1, 8)])
    assert (b.run.points.height, b.validation_points) == (5, 5)


def test_an_offline_run_of_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = {"data": {"train_batch_size": 32}, "actor_rollout_ref": {"rollout": {"n": 8}}}
        run = wandb.init(project="p", name="my run", dir=str(tmp_path), config=config)
        for step in range(1, 41):
            run.log({**verl_pairs(step, validated=step % 10 == 0), "note": "x" * 3000}, step=step)
        run.finish()
        wandb.teardown()  # ends the process that writes the file, which a busy machine may leave behind
    (item,) = import_logs(tmp_path)
    assert (item.run.name, item.format, item.run.points.height, item.validation_points) == ("my run", "wandb", 40, 4)
    assert (item.run.settings.problems_per_batch, item.run.settings.rollouts_per_problem) == (32, 8)
    assert item.run.points["train/avg"].to_list() == pytest.approx([reward(s) for s in range(1, 41)])
    assert "seconds" in item.run.points.columns


class State:
    is_world_process_zero = True
    max_steps = 20
    global_step = 0


class Arguments:
    world_size = 2

    def to_dict(self) -> dict[str, Any]:
        return {
            "num_generations": 4,
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 2,
            "learning_rate": 1e-6,
            "max_steps": -1,
        }


def test_the_callback_on_a_trainer_of_paper(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    callback, state = trl_callback(tmp_path / "run"), State()
    for step in (5, 10):
        state.global_step = step
        callback.on_log(Arguments(), state, None, logs={"reward": 0.1 * step, "loss": float("nan"), "kl": 0.01})
    callback.on_log(Arguments(), state, None, logs={"eval_reward": 0.75})
    callback.on_log(Arguments(), state, None, logs={"train_runtime": 5.0})
    callback.on_train_end(Arguments(), state, None)
    (run,) = load(tmp_path / "run")
    assert (run.settings.problems_per_batch, run.settings.rollouts_per_problem, run.settings.update_steps) == (8, 4, 20)
    assert run.points.to_dicts() == [
        {"step": 5, "rollouts": 160, "train/avg": 0.5, "kl": 0.01, "avg@1": None},
        {"step": 10, "rollouts": 320, "train/avg": 1.0, "kl": 0.01, "avg@1": 0.75},
    ]
    state.is_world_process_zero = False
    other = trl_callback(tmp_path / "other")
    other.on_log(Arguments(), state, None, logs={"reward": 1.0})
    assert not (tmp_path / "other").exists()


def test_the_callback_on_a_real_trainer(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        words = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(40))]
        model = tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>")
        raw = tokenizers.Tokenizer(model)
        raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
        )
        shape = transformers.Qwen2Config(
            vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, pad_token_id=0, eos_token_id=1, bos_token_id=1,
        )  # fmt: skip
        arguments = trl.GRPOConfig(
            output_dir=str(tmp_path / "out"), max_steps=2, num_generations=4, per_device_train_batch_size=8,
            gradient_accumulation_steps=1, max_completion_length=4, logging_steps=1, report_to="none", use_cpu=True,
            save_strategy="no", bf16=False, disable_tqdm=True,
        )  # fmt: skip
        trainer = trl.GRPOTrainer(
            model=transformers.Qwen2ForCausalLM(shape),
            reward_funcs=lambda completions, **_: [float(len(c) % 2) for c in completions],
            args=arguments,
            train_dataset=datasets.Dataset.from_dict({"prompt": [f"w{i} w{i + 1}" for i in range(8)]}),
            processing_class=tokenizer,
            callbacks=[trl_callback(tmp_path / "run")],
        )
        trainer.train()
        trainer.save_state()
    (run,) = load(tmp_path / "run")
    assert run.points["step"].to_list() == [1, 2]
    assert run.points["rollouts"].to_list() == [8, 16]
    assert (run.settings.problems_per_batch, run.settings.rollouts_per_problem) == (2, 4)
    assert {"train/avg", "response_length", "zero_variance", "entropy", "grad_norm"} <= set(run.metrics)
    # What the callback wrote is what the trainer's own state says.
    (item,) = import_logs(tmp_path / "out" / "trainer_state.json")
    assert item.run.points["train/avg"].to_list() == run.points["train/avg"].to_list()


def test_verls_tracking_with_one_logger_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example's hook on a class that hands rows on as veRL 0.9.1's does."""

    class Tracking:
        def __init__(self, *_: str, config: Any) -> None:
            assert config
            self.logger: dict[str, Any] = {}

        def log(self, data: Any, step: int) -> None:
            for logger in self.logger.values():
                logger.log(data=data, step=step)

    module = types.ModuleType("verl.utils.tracking")
    vars(module)["Tracking"] = Tracking
    for name in ("verl", "verl.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "verl.utils.tracking", module)
    monkeypatch.setenv("ISOCOMPUTE_RUN", str(tmp_path / "run"))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    hook = importlib.import_module("verl_live")
    monkeypatch.delitem(sys.modules, "verl_live")
    hook.install()
    hook.install()
    config = {"data": {"train_batch_size": 32}, "actor_rollout_ref": {"rollout": {"n": 8}}}
    tracking = module.Tracking("p", "e", "console", config=config)
    for step in range(1, 5):
        tracking.log(data=verl_pairs(step), step=step)
    tracking.log(data={"val-core/x/acc/mean@4": 0.5}, step=4)
    (run,) = load(tmp_path / "run")
    assert run.points["rollouts"].to_list() == [256, 512, 768, 1024]
    assert run.points["train/avg"].to_list() == pytest.approx([reward(s) for s in range(1, 5)])
    assert run.points["avg@4"].to_list() == [None, None, None, 0.5]


def test_a_live_run_goes_on_where_it_was(tmp_path: Path) -> None:
    for steps in (range(1, 4), range(3, 6)):
        live = LiveRun(tmp_path / "run", engine="verl", config={})
        for step in steps:
            live.log(step, {"critic/score/mean": reward(step)})
        live.close()
    (run,) = load(tmp_path / "run")
    assert run.points["step"].to_list() == [1, 2, 3, 4, 5]
    assert json.loads((tmp_path / "run" / "run.json").read_text()) == {"engine": "verl"}
