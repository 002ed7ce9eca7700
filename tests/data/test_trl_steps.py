"""The steps of TRL's printed dicts: which of many progress bars counts, evaluations, resumed runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isocompute.data.importing import Imported, import_logs
from tests.data.made_up import reward

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "train.log"
        path.write_text(text)
        return path

    return write


def one(path: Path) -> Imported:
    (item,) = import_logs(path)
    return item


def bar(done: int, total: int, what: str = "", unit: str = "it/s") -> str:
    """A bar as tqdm draws it."""
    return f"\r{what}{100 * done // total:3d}%|███       | {done}/{total} [00:10<01:30, 10.00{unit}]"


def trained(step: int, *, per_epoch: int = 100) -> str:
    row = {"loss": 0.01, "grad_norm": 0.2, "learning_rate": 1e-6, "reward": reward(step), "reward_std": 0.1}
    return f"\n{row | {'epoch': round(step / per_epoch, 4)}}\n"


def evaluated(step: int, *, per_epoch: int = 100) -> str:
    row = {"eval_loss": 0.01, "eval_reward": reward(step), "eval_runtime": 3.0, "epoch": round(step / per_epoch, 4)}
    return f"\n{row}\n"


def run(
    steps: range = range(1, 61),
    *,
    total: int = 60,
    every: int = 10,
    eval_every: int = 0,
    batches: int = 0,
    what: str = "",
) -> Iterator[str]:
    """What a trainer prints between two steps; every write of a dict draws the bar again."""
    for step in steps:
        yield bar(step, total, what)
        if step % every == 0:
            yield trained(step) + bar(step, total, what)
        if eval_every and step % eval_every == 0:
            yield from (bar(done, batches) for done in range(1, batches + 1))
            yield evaluated(step) + bar(step, total, what)


def measured(item: Imported, name: str) -> dict[int, Any]:
    points = item.run.points.filter(item.run.points[name].is_not_null())
    return dict(zip(points["step"].to_list(), points[name].to_list(), strict=True))


TENS = list(range(10, 70, 10))
OTHERS = {
    "data being mapped": bar(7473, 7473, "Map: ", " examples/s"),
    "data without a name": bar(7473, 7473, "", " examples/s"),
    "weights being loaded": bar(427, 427, "Loading weights: "),
    "shards": bar(4, 4, "Loading checkpoint shards: "),
    "a bar of something else": "".join(bar(done, 90) for done in range(91)),
}


@pytest.mark.parametrize("before", OTHERS.values(), ids=OTHERS)
def test_another_bar_before_the_training_takes_no_steps(before: str, write: Write) -> None:
    item = one(write(before + "\n" + "".join(run())))
    assert list(measured(item, "train/avg")) == TENS
    assert item.run.settings.update_steps == 60
    assert not any("counted" in note for note in item.notes)


@pytest.mark.parametrize("batches", [25, 60, 250])
def test_an_evaluations_bar_takes_no_steps(batches: int, write: Write) -> None:
    item = one(write("".join(run(eval_every=20, batches=batches))))
    assert measured(item, "train/avg") == pytest.approx({s: reward(s) for s in TENS})
    assert measured(item, "avg@1") == pytest.approx({s: reward(s) for s in (20, 40, 60)})
    assert item.run.settings.update_steps == 60


@pytest.mark.parametrize("batches", [25, 250])
def test_bars_written_apart_from_the_dicts(batches: int, write: Write) -> None:
    """Standard error comes first: the steps of training are those of the bar that lasts."""
    parts = [part for part in run(eval_every=20, batches=batches) if "{" not in part]
    dicts = [part.split("\r")[0] for part in run(eval_every=20, batches=batches) if "{" in part]
    item = one(write(bar(0, 60) + "".join(parts) + bar(60, 60) + "\n" + "".join(dicts)))
    assert list(measured(item, "train/avg")) == TENS
    assert measured(item, "avg@1") == pytest.approx({s: reward(s) for s in (20, 40, 60)})
    assert item.run.settings.update_steps == 60
    assert any("steps are counted: 6 dicts, one every 10 of 60 steps" in note for note in item.notes)


def test_no_bar_replaces_an_announced_total(write: Write) -> None:
    announced = "***** Running training *****\n  Total optimization steps = 60\n"
    inner = "".join(bar(s, 90) + part for s, part in enumerate(run(), 1))
    item = one(write(announced + inner))
    assert list(measured(item, "train/avg")) == TENS
    assert item.run.settings.update_steps == 60


def test_a_named_bar_counts_if_it_is_the_only_one(write: Write) -> None:
    item = one(write("".join(run(what="Train: "))))
    assert list(measured(item, "train/avg")) == TENS
    assert item.run.settings.update_steps == 60


def test_several_bars_on_a_line(write: Write) -> None:
    """Copies lose carriage returns."""
    item = one(write("".join(run()).replace("\r", "")))
    assert list(measured(item, "train/avg")) == TENS
    assert not any("counted" in note for note in item.notes)


@pytest.mark.parametrize("batches", [0, 12])
@pytest.mark.parametrize(("every", "eval_every"), [(20, 5), (10, 15), (10, 10)])
def test_an_evaluation_has_the_step_of_the_bar(every: int, eval_every: int, batches: int, write: Write) -> None:
    item = one(write("".join(run(every=every, eval_every=eval_every, batches=batches))))
    assert measured(item, "train/avg") == pytest.approx({s: reward(s) for s in range(every, 61, every)})
    assert measured(item, "avg@1") == pytest.approx({s: reward(s) for s in range(eval_every, 61, eval_every)})
    assert item.replaced == 0


def test_an_evaluation_without_a_bar_has_the_step_of_its_epoch(write: Write) -> None:
    dicts = [part.split("\r")[0] for part in run(every=20, eval_every=5) if "{" in part]
    start = evaluated(0) + "  Total optimization steps = 60\n"
    item = one(write(start + "".join(dicts).replace("}\n\r", "}\n")))
    assert list(measured(item, "train/avg")) == [20, 40, 60]
    assert measured(item, "avg@1") == pytest.approx({s: reward(s) for s in range(0, 61, 5)})


@pytest.mark.parametrize("stopped", [62, 67, 70, 78])
def test_a_short_run_that_was_resumed_keeps_its_bars(stopped: int, write: Write) -> None:
    before = "".join(run(range(1, stopped + 1), total=100))
    after = bar(0, 100) + "".join(run(range(51, 101), total=100))
    item = one(write(before + "\nTraceback (most recent call last):\nKilled\n" + after))
    assert list(measured(item, "train/avg")) == list(range(10, 110, 10))
    assert item.replaced == stopped // 10 - 5
    assert item.run.settings.update_steps == 100


def test_a_run_that_was_resumed_for_more_steps(write: Write) -> None:
    after = bar(0, 100) + "".join(run(range(61, 101), total=100))
    item = one(write("".join(run()) + "\n" + after))
    assert list(measured(item, "train/avg")) == list(range(10, 110, 10))
    assert item.run.settings.update_steps == 100
