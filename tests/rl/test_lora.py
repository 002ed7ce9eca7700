"""LoRA: only adapters are trained, the base stays and is shared, and PEFT opens what is saved."""

from __future__ import annotations

import copy
import json
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from isocompute.core.recipe import make_recipe
from isocompute.rl.critic import Critic
from isocompute.rl.model.checkpoint import load_decoder, save_policy
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout.captured import CapturedEngine
from isocompute.rl.rollout.eager import EagerEngine
from isocompute.rl.rollout.engine import SamplingSettings, sample
from isocompute.rl.update import Optimizer, score, update
from tests.rl.batches import RATE, at_once, batch_for, off_policy_rollouts, sharp_reference
from tests.rl.cells import distance, make_cell, make_training, points, run
from tests.rl.models import as_decoder, eager, logits_of, reference, requests, weights_of

LORA: dict[str, Any] = {"recipe": {"lora_rank": 4, "learning_rate": 3e-3}}
MAPS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def adapters(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model" / "adapter_model.safetensors")


def moved(decoder: Decoder) -> Decoder:
    """A policy whose adapters are not zero."""
    policy = decoder.policy(4, 2.0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for part in policy.trained():
            part.parameter.copy_(0.1 * torch.randn(part.parameter.shape, generator=generator))
    return policy


def test_an_untrained_policy_is_the_base() -> None:
    base = as_decoder(reference("qwen2"))
    tokens = torch.randint(0, 97, (2, 20), generator=torch.Generator().manual_seed(1))
    assert torch.equal(logits_of(base.policy(4, 2.0), tokens), logits_of(base, tokens))
    assert not torch.equal(logits_of(moved(base), tokens), logits_of(base, tokens))


def test_only_adapters_are_trained_and_the_base_is_shared() -> None:
    training = make_training(**LORA)
    base = weights_of(training.base.decoder)
    theirs = {id(parameter) for parameter in training.base.decoder.parameters()}
    shared = [p for name, p in training.decoder.named_parameters() if "lora_" not in name]
    own = [p for name, p in training.decoder.named_parameters() if "lora_" in name]
    assert {id(p) for p in shared} == theirs and not any(p.requires_grad for p in shared)
    assert {id(p) for p in own} == {id(p) for p in training.optimizer.parameters}
    assert len(own) == 2 * len(MAPS) * training.decoder.config.num_hidden_layers
    before = [p.detach().clone() for p in own]
    for _ in range(2):
        assert training.update()
    assert all(not torch.equal(p, b) for p, b in zip(own, before, strict=True))
    assert distance(weights_of(training.base.decoder), base) == 0.0
    assert training._since_last()["kl"] > 0


def test_gradients_are_those_of_the_sum() -> None:
    """An adapter's gradient is the weight's through W + scale · B A."""
    base = as_decoder(sharp_reference())
    policy, rollouts = moved(base), off_policy_rollouts(base)
    recipe = make_recipe({"name": "grpo", "lora_rank": 4, "kl_coef": 0.0, "optimizer": "sgd", "grad_clip": None})
    batch, whole = batch_for(recipe, rollouts, base), copy.deepcopy(base)
    whole.requires_grad_(True).copy_weights(policy)
    gradients: dict[str, Tensor] = {}
    for decoder, parts in ((policy, policy.trained()), (whole, list(whole.parts()))):
        optimizer = Optimizer(parts, recipe)
        found = {part.name: part for part in parts}
        optimizer.inner.register_step_pre_hook(
            lambda *_, found=found: gradients.update({n: p.of(p.parameter.grad).clone() for n, p in found.items()})
        )
        update(decoder, optimizer, batch, recipe, rate=RATE, sizes=at_once(7))
    start = dict(moved(base).named_parameters())
    joined = {"q_proj": ("qkv_proj", 0), "k_proj": ("qkv_proj", 1), "v_proj": ("qkv_proj", 2)}
    joined |= {"gate_proj": ("gate_up_proj", 0), "up_proj": ("gate_up_proj", 1)}
    checked = 0
    for name, weight in gradients.items():
        owner, _, one = name.removesuffix(".weight").rpartition(".")
        if one in MAPS:
            own, place = joined.get(one, (one, 0))
            a, b = (f"{owner}.{own}.lora_{x}.{place}" for x in "ab")
            torch.testing.assert_close(gradients[a], 2.0 * start[b].T @ weight, atol=1e-6, rtol=1e-4)
            torch.testing.assert_close(gradients[b], 2.0 * weight @ start[a].T, atol=1e-6, rtol=1e-4)
            checked += 1
    assert checked == 3 * len(MAPS)


@pytest.mark.parametrize("make_engine", [EagerEngine, CapturedEngine])
def test_sampler_and_trainer_agree(make_engine: type[EagerEngine | CapturedEngine]) -> None:
    """Also an engine that was made from adapters and is then given others."""
    base = as_decoder(sharp_reference())
    policy, rollouts = moved(base), off_policy_rollouts(base)
    engine = make_engine(policy, SamplingSettings(10), rows=16, prompt_tokens=7)
    groups = requests(rollouts.prompts, seed=2, per_prompt=4)
    for scale in (1.0, -1.5):
        with torch.no_grad():
            for part in policy.trained():
                part.parameter.mul_(scale)
        engine.load(policy, 1)
        out = sample(engine, groups)
        with torch.no_grad():
            logprobs_BT, _ = score(policy, out, make_recipe({}))
        torch.testing.assert_close(logprobs_BT, out.logprobs_BT, atol=2e-5, rtol=1e-5)


def test_bf16_weights_with_adapters() -> None:
    training = make_training(**LORA, engine={"dtype": "bfloat16"})
    for _ in range(3):
        assert training.update()
    assert {p.dtype for p in training.optimizer.parameters} == {torch.float32}
    assert training._since_last()["logprob_gap"] < 0.02


# Saved


@pytest.mark.parametrize("name", ["llama-bias", "qwen2", "qwen3-tied"])
def test_peft_opens_what_is_saved(name: str, tmp_path: Path) -> None:
    import peft

    reference(name).save_pretrained(tmp_path / "base")
    policy = moved(load_decoder(tmp_path / "base"))
    recipe = make_recipe({"lora_rank": 4, "lora_alpha": 8.0})
    save_policy(policy, tmp_path / "adapters", base=tmp_path / "base", recipe=recipe)
    stored = load_file(tmp_path / "adapters" / "adapter_model.safetensors")
    assert set(stored) == {
        f"base_model.model.model.layers.{layer}.{'self_attn' if one[0] in 'qkvo' else 'mlp'}.{one}.lora_{x}.weight"
        for layer in range(3)
        for one in MAPS
        for x in "AB"
    }
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapters").eval()
    tokens = torch.randint(0, 97, (2, 30), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(logits_of(policy, tokens), theirs(tokens).logits, atol=1e-4, rtol=1e-4)
        merged = theirs.merge_and_unload()
        whole = load_decoder(tmp_path / "base")
        whole.copy_weights(policy)
        torch.testing.assert_close(weights_of(whole), weights_of(as_decoder(merged)), atol=1e-6, rtol=1e-6)
    for path in (tmp_path / "adapters").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o644, path.name


def test_a_run_saves_its_adapters(tmp_path: Path) -> None:
    folder = run(make_cell(**LORA), tmp_path)
    settings = json.loads((folder / "model" / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (4, 8.0)
    assert set(settings["target_modules"]) == set(MAPS)
    assert Path(settings["base_model_name_or_path"]).is_dir()
    assert {path.name for path in (folder / "model").iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    assert not (folder / "model" / "model.safetensors").exists()
    assert any(bool(tensor.any()) for name, tensor in adapters(folder).items() if "lora_B" in name)


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    whole = run(make_cell(**LORA), tmp_path / "whole")
    stopped = run(make_cell(**LORA), tmp_path / "stopped", stops=(0, 32, 64))
    assert points(stopped) == points(whole)
    assert distance(adapters(stopped), adapters(whole)) == 0.0
    again = run(make_cell(**LORA, seed=1), tmp_path / "other")
    assert distance(adapters(again), adapters(whole)) > 0.0


def test_a_checkpoint_holds_the_adapters_alone() -> None:
    training = make_training(**LORA)
    assert training.update()
    arrays, _ = training.state()
    stored = sum(array.size for name, array in arrays.items() if name.startswith("policy/") and "." not in name)
    assert stored == sum(p.numel() for p in training.optimizer.parameters)
    assert stored < sum(p.numel() for p in training.base.decoder.parameters()) / 5


def test_a_divergence_leaves_adapters_that_count_nothing(tmp_path: Path) -> None:
    folder = run(make_cell(recipe={"lora_rank": 4, "learning_rate": 1e30}), tmp_path)
    assert "diverged" in json.loads((folder / "finished.json").read_text())
    assert not any(bool(tensor.any()) for name, tensor in adapters(folder).items() if "lora_B" in name)


def test_a_critic_beside_adapters_is_trained_whole() -> None:
    """It is a model of its own: the base stays as it is."""
    training = make_training(recipe={"name": "ppo", "lora_rank": 4, "learning_rate": 3e-3})
    base = weights_of(training.base.decoder)
    assert isinstance(training.critic, Critic)
    before = {part.name: part.of(part.parameter).detach().clone() for part in training.critic.parts()}
    for _ in range(3):
        assert training.update()
    assert all(not torch.equal(part.of(part.parameter), before[part.name]) for part in training.critic.parts())
    assert distance(weights_of(training.base.decoder), base) == 0.0


def test_samples_of_a_policy_are_not_those_of_the_base() -> None:
    base = as_decoder(sharp_reference())
    groups = requests([[5, 9, 2]], seed=2, per_prompt=8)
    both = [eager(decoder, groups, SamplingSettings(10)).responses_BT for decoder in (base, moved(base))]
    assert not torch.equal(*both)
