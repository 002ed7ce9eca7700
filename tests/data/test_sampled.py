"""Rollouts that were sampled but not trained on, as the trainers that refill batches log them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from isocompute.data.counters import LOWER_BOUND, sampled_rollouts
from isocompute.data.importing import Imported, import_logs
from tests.data import made_up as made

VERL = "{'data': {'train_batch_size': 4%s}, 'actor_rollout_ref': {'rollout': {'n': 8, 'temperature': 1.0}}%s}\n"
FILTER = ", 'algorithm': {'filter_groups': {'enable': True}}"


def verl(pairs: list[dict[str, Any]], tmp_path: Path, *, data: str = "", config: str = FILTER) -> Imported:
    """A console with these pairs at steps 1, 2, …, after a validation of the base model."""
    rows = [{"val-core/g/acc/mean@4": 0.1}]
    rows += [{"critic/score/mean": 0.3, "response_length/mean": 100.0, **more} for more in pairs]
    log = tmp_path / "train.log"
    log.write_text(VERL % (data, config) + "".join(made.verl_line(k, row) + "\n" for k, row in enumerate(rows)))
    (item,) = import_logs(log)
    return item


def columns(item: Imported, *names: str) -> list[list[float]]:
    return [item.run.points[name].to_list() for name in names]


def test_veRLs_generation_batches_are_counted(tmp_path: Path) -> None:
    pairs = [{"train/num_gen_batches": k} for k in (3, 1, 2)]
    item = verl(pairs, tmp_path, data=", 'gen_batch_size': 12")
    rollouts, tokens = columns(item, "rollouts", "tokens")
    assert rollouts == [0, 288, 384, 576]
    assert tokens == [0.0, 28800.0, 38400.0, 57600.0]  # the first batch is the largest: it is still the first
    (note,) = item.notes
    assert note == "rollouts are all that were sampled (train/num_gen_batches), 576; 96 of them were trained on"


def test_a_generation_batch_defaults_to_the_training_batch(tmp_path: Path) -> None:
    item = verl([{"train/num_gen_batches": 2}, {"train/num_gen_batches": 1}], tmp_path)
    assert columns(item, "rollouts") == [[0, 64, 96]]


def test_veRLs_evicted_problems_are_counted(tmp_path: Path) -> None:
    evicted = "training/filter_groups/evicted_samples"
    surplus = "training/filter_groups/discarded_surplus_samples"
    item = verl([{evicted: 5, surplus: 1}, {}, {evicted: 2}], tmp_path)  # no key where nothing was evicted
    assert columns(item, "rollouts") == [[0, 80, 112, 160]]


def test_openrlhfs_pass_rate_in_percent(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(made.openrlhf())
    (item,) = import_logs(log)
    bp, n = item.run.settings.problems_per_batch, item.run.settings.rollouts_per_problem
    assert bp is not None
    assert n is not None
    per_step = bp * n / 0.75
    expected = np.rint(item.run.points["step"].to_numpy() * per_step).astype(int).tolist()
    assert columns(item, "rollouts") == [expected]
    assert any("OpenRLHF from 04/2026 on logs n times that" in note for note in item.notes)


def test_openrlhfs_rate_of_rollouts_over_problems() -> None:
    points = pl.DataFrame({"step": [1, 2, 3], "dynamic_filtering_pass_rate": [200.0, None, 80.0]})
    found = sampled_rollouts(points, problems=32, rollouts=8, config={})
    assert found is not None
    assert found.rollouts.to_list() == [1024, 1024 + 2560, 1024 + 2 * 2560]  # a quarter, then a tenth passed
    assert not found.ambiguity


def prime_rl(tmp_path: Path, config: str) -> Imported:
    rows = [{"step": k, "progress/rollouts": 40, "progress/total_rollouts": 40 * (k - 1)} for k in range(1, 5)]
    rows = [row | {"train/agg/effective/solver/reward/mean": 0.1} for row in rows]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rl.toml").write_text(config)
    (item,) = import_logs(tmp_path)
    return item


def test_prime_rls_rollouts_are_those_that_arrived(tmp_path: Path) -> None:
    item = prime_rl(tmp_path, "[orchestrator]\nbatch_size = 16\ngroup_size = 8\n")
    assert columns(item, "rollouts") == [[40, 80, 120, 160]]
    assert any("160; 64 of them were trained on" in note for note in item.notes)


def test_prime_rls_rollouts_need_no_config(tmp_path: Path) -> None:
    item = prime_rl(tmp_path, "")
    assert columns(item, "rollouts") == [[40, 80, 120, 160]]
    assert item.notes == ("rollouts are all that were sampled (progress/rollouts)",)


def test_nemo_rls_generation_batches() -> None:
    points = pl.DataFrame({"step": [0, 1, 2], "train/dynamic_sampling_num_gen_batches": [None, 3.0, 1.0]})
    found = sampled_rollouts(points, problems=32, rollouts=16, config={"grpo.batch_multiplier": 1.5})
    assert found is not None
    assert found.rollouts.to_list() == [0, 3 * 48 * 16, 4 * 48 * 16]
    assert sampled_rollouts(points, problems=None, rollouts=16, config={}) is None


def test_steps_that_are_not_logged_count_like_the_next() -> None:
    points = pl.DataFrame({"step": [10, 15, 20, 25], "progress/rollouts": [40.0, None, 20.0, None]})
    found = sampled_rollouts(points, problems=None, rollouts=None, config={})
    assert found is not None
    assert found.rollouts.to_list() == [400, 500, 600, 700]


@pytest.mark.parametrize(("config", "notes"), [(FILTER, (LOWER_BOUND,)), ("", ())])
def test_compute_is_a_lower_bound_if_the_log_does_not_count_samples(
    config: str, notes: tuple[str], tmp_path: Path
) -> None:
    item = verl([{}, {}], tmp_path, config=config)
    assert columns(item, "rollouts") == [[0, 32, 64]]
    assert item.notes == notes


def test_broken_counts_are_ignored() -> None:
    points = pl.DataFrame({"step": [1, 2], "progress/rollouts": [1e300, 1e300]})
    assert sampled_rollouts(points, problems=2, rollouts=2, config={}) is None
