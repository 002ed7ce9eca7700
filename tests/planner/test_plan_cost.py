"""The cost of a plan, and the conversion of hours and money to rollouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import isocompute
from isocompute import InputError
from isocompute.cli.plan_display import show
from tests.conftest import write_points
from tests.planner.made_up import write_timed


def config(path: Path) -> Path:
    path.write_text(
        json.dumps(
            {
                "model_type": "qwen2",
                "hidden_size": 3584,
                "intermediate_size": 18944,
                "num_hidden_layers": 28,
                "num_attention_heads": 28,
                "num_key_value_heads": 4,
                "vocab_size": 152064,
                "tie_word_embeddings": False,
            }
        )
    )
    return path


def test_a_model_and_a_gpu_turn_hours_into_rollouts(tmp_path: Path) -> None:
    plan = isocompute.plan(
        budget="300h",
        law="isocompute/bp32-easy",
        model=str(config(tmp_path / "config.json")),
        gpu="H200",
        gpus=8,
        response_tokens=1500.0,
        price_per_gpu_hour=3.0,
        replicates=100,
    )
    cost = plan.prices.cost(plan.allocation)
    assert 0 < cost["gpu_hours"] <= 300 * (1 + 1e-9)
    assert cost["money"] == pytest.approx(3 * cost["gpu_hours"])
    assert cost["bound"] and cost["source"] == "modelled"
    with pytest.raises(InputError, match="H200"):
        isocompute.plan(
            budget="300h",
            law="isocompute/bp32-easy",
            model=str(tmp_path / "config.json"),
            gpu="H2000",
            gpus=8,
            response_tokens=9,
        )


def test_prompts_that_are_assumed_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def planned(**more: Any) -> isocompute.Plan:
        return isocompute.plan(budget=2e6, law="isocompute/bp32-easy", gpus=8, replicates=50, **more)

    modelled = {"model": str(config(tmp_path / "config.json")), "gpu": "H200", "response_tokens": 1500.0}
    for plan, tokens, source in (
        (planned(**modelled), 256.0, "assumed"),
        (planned(**modelled, prompt_tokens=64.0), 64.0, "given"),
        (planned(rollouts_per_second=8.0), None, None),
        (planned(), None, None),
    ):
        cost = plan.to_json()["cost"]
        assert (cost["prompt_tokens"], cost["prompt_source"]) == (tokens, source)
        show(plan)
        printed = " ".join(capsys.readouterr().out.split())
        assert ("prompts of 256 tokens assumed (--prompt-tokens)" in printed) == (source == "assumed")


def test_a_recipe_with_kl_pays_for_its_reference_model(tmp_path: Path) -> None:
    """Forward, backward (two), recomputation and old log-probs are 5 forward passes; the reference is a sixth."""
    easy, hard = (
        isocompute.plan(
            budget=2e6,
            law="isocompute/bp32-easy",
            difficulty=difficulty,
            model=str(config(tmp_path / "config.json")),
            gpu="H100",
            gpus=1,
            response_tokens=2000.0,
            replicates=50,
        )
        for difficulty in ("easy", "hard")
    )
    phases = [p.prices.cost(p.allocation)["phases"]["training"]["flops"] for p in (easy, hard)]
    assert easy.recipe.recipe.kl_coef > 0 == hard.recipe.recipe.kl_coef
    assert phases[0] / phases[1] == pytest.approx(6 / 5, rel=0.01)
    assert "training_memory" in {w.code for w in easy.warnings}


def test_runs_that_log_times_give_the_throughput(tmp_path: Path) -> None:
    points = [
        {"step": i, "rollouts": 256 * i, "seconds": 32.0 * i, "response_length": 800.0, "avg@4": 0.3}
        for i in range(1, 12)
    ]
    write_points(tmp_path / "timed", points, problems_per_batch=32, rollouts_per_problem=8, gpus=8)
    plan = isocompute.plan(budget="100h", law="isocompute/bp32-easy", gpus=8, timed_runs=tmp_path / "timed")
    cost = plan.prices.cost(plan.allocation)
    assert plan.budget_rollouts == pytest.approx(100 * 3600, rel=1e-6)  # 8 rollouts a second on 8 GPUs
    assert cost["source"] == "measured" and cost["tokens"] == pytest.approx(800 * plan.allocation.compute)


def test_the_default_is_the_tie_with_the_fewest_gpu_hours_without_gpus_said(tmp_path: Path) -> None:
    write_timed(tmp_path, {128: 20.0, 256: 15.0, 512: 5.0})
    plan = isocompute.plan(budget="2e6", law="isocompute/bp32-easy", timed_runs=tmp_path)
    assert plan.prices.cost(plan.allocation)["seconds"] is None
    assert plan.chosen.cheapest and plan.allocation.rollouts_per_problem == 128
    assert 256 in {a.rollouts_per_problem for a in plan.tied}, "which is expected to reach higher, and takes longer"
    assert "32 × 128 is the default, the cheapest of them" in plan.answer
