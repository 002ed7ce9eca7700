"""Several attempts at a run in one veRL console."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path

import pytest

from isocompute.data import RunWarning
from isocompute.data.importing import Imported, import_logs
from tests.data import made_up as made

OTHER = made.VERL_CONFIG.replace("'train_batch_size': 16", "'train_batch_size': 64").replace("{'n': 8,", "{'n': 32,")


def config(text: str) -> str:
    return "".join(made.TASK + line + "\n" for line in text.splitlines())


def steps(numbers: Iterable[int]) -> str:
    return made.verl(numbers, config=False)


def read(text: str, tmp_path: Path) -> Imported:
    log = tmp_path / "train.log"
    log.write_text(text)
    (item,) = import_logs(log)
    return item


def batch(item: Imported) -> tuple[int | None, int | None]:
    return item.run.settings.problems_per_batch, item.run.settings.rollouts_per_problem


BASE = "step:0 - val-core/openai/gsm8k/acc/mean@4:"


def test_the_last_attempt_counts_with_its_own_config(tmp_path: Path) -> None:
    first = config(made.VERL_CONFIG) + f"{BASE}0.25\n" + steps(range(1, 31))
    item = read(first + config(OTHER) + f"{BASE}0.125\n" + steps(range(1, 21)), tmp_path)
    assert batch(item) == (64, 32)
    assert item.run.points["step"].to_list() == list(range(21))
    assert item.run.points["rollouts"][-1] == 20 * 64 * 32
    assert item.run.points["avg@4"][0] == 0.125
    assert item.notes == ("31 points of an earlier attempt in the same log left out: the run begins again",)
    assert item.replaced == 0


def test_an_attempt_that_prints_no_config_has_the_one_before(tmp_path: Path) -> None:
    item = read(config(made.VERL_CONFIG) + steps(range(1, 6)) + steps(range(1, 4)) + steps(range(1, 5)), tmp_path)
    assert batch(item) == (16, 8)
    assert item.run.points["step"].to_list() == [1, 2, 3, 4]
    assert item.notes == ("8 points of 2 earlier attempts in the same log left out: the run begins again",)


@pytest.mark.parametrize("begun", [1, 2])
def test_an_attempt_that_has_only_begun_does_not_replace_the_run(begun: int, tmp_path: Path) -> None:
    again = config(OTHER) + steps(range(1, begun + 1))
    item = read(config(made.VERL_CONFIG) + steps(range(1, 31)) + again + again, tmp_path)
    assert batch(item) == (16, 8)
    assert item.run.points["step"].to_list() == list(range(1, 31))
    points = "1 point" if begun == 1 else "2 points"
    assert item.notes == (f"{points} of a last attempt in the same log left out: it has only begun",)


def test_attempts_that_count_from_0(tmp_path: Path) -> None:
    item = read(made.verl_2024(range(10), logged=False) + "{'actor_rollout_ref': {}}\n" + made.verl_2024(), tmp_path)
    assert item.run.points["step"].to_list() == list(range(11))
    assert item.notes[0] == "11 points of an earlier attempt in the same log left out: the run begins again"


@pytest.mark.parametrize("start", [7, 11])
def test_a_resumed_run_whose_batch_changed_is_warned_of(start: int, tmp_path: Path) -> None:
    first = config(made.VERL_CONFIG) + steps(range(1, 11))
    changed = rf"continues at step {start} with Bp = 64 \(it was 16\) and n = 32 \(it was 8\)"
    with pytest.warns(RunWarning, match=changed):
        item = read(first + config(OTHER) + steps(range(start, 15)), tmp_path)
    assert (batch(item), item.run.points.height) == ((16, 8), 14)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = read(first + config(made.VERL_CONFIG) + steps(range(start, 15)), tmp_path)
    assert (batch(again), again.notes) == ((16, 8), ())


def test_a_config_that_comes_late_is_taken(tmp_path: Path) -> None:
    assert batch(read(steps(range(5, 8)) + config(made.VERL_CONFIG) + steps(range(8, 10)), tmp_path)) == (16, 8)


def test_text_that_looks_like_a_step_is_no_attempt(tmp_path: Path) -> None:
    text = "step:1 - x:4 - actor/y:2\n"
    item = read(config(made.VERL_CONFIG) + steps(range(1, 6)) + text + steps(range(6, 8)), tmp_path)
    assert item.run.points["step"].to_list() == list(range(1, 8))
    assert item.notes == ()
