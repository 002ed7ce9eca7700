"""Cells that share a device in one process against the same cells alone; kernels by Triton's interpreter on the CPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isocompute.rl import setup as setups
from isocompute.rl.checkpoint import save_decoder
from isocompute.rl.config import DecoderConfig
from isocompute.rl.decoder import Decoder
from isocompute.rl.engine import LmEngine
from isocompute.rl.fast.stack import StackedTrainings
from isocompute.rl.fast.step import Step
from isocompute.rl.fast.training import FastTraining
from isocompute.rl.model import model_folder
from isocompute.rl.unit import Member, Unit
from isocompute.rl.update import DivergedError
from isocompute.sweep.base import Cell
from tests.rl.cells import Control, make_cell, points, weights

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
pytest.importorskip("triton.runtime.interpreter", reason="Triton runs on Linux alone")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of one narrow layer with the built-in one's vocabulary."""
    folder = tmp_path_factory.mktemp("model")
    config = json.loads((model_folder("tiny") / "config.json").read_text())
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    config |= sizes | {"num_attention_heads": 1, "num_key_value_heads": 1}
    torch.manual_seed(0)
    decoder = Decoder(DecoderConfig.from_json(config))
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.normal_(std=0.5)
    save_decoder(decoder, folder, tokenizer_from=model_folder("tiny"))
    return str(folder)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole steps on a CPU too, as on a GPU."""
    monkeypatch.setattr(setups, "_kind_of_training", lambda *_: FastTraining)


def cells(model: str) -> list[Cell]:
    """Two of one shape and one of another, of different lengths."""
    one = make_cell(
        problems_per_batch=2,
        rollouts_per_problem=2,
        update_steps=3,
        problems={"size": 8, "validation": 2, "max_new_tokens": 3},
        evaluation={"points": 2, "samples": 1, "k": [1]},
        recipe={"learning_rate": 1e-3, "kl_coef": 0.0},
        engine={"model": model},
    )
    return [
        replace(one, name="a"),
        replace(one, name="b", seed=1, update_steps=2),
        replace(one, name="c", rollouts_per_problem=3, update_steps=2),
    ]


def jobs(of: list[Cell], folder: Path, control: Control) -> Iterator[tuple[Cell, Path, Control]]:
    for cell in of:
        where = folder / cell.name
        where.mkdir(parents=True, exist_ok=True)
        yield cell, where, control


def together(of: list[Cell], folder: Path, control: Control | None = None) -> dict[str, bool | Exception]:
    control = control or Control()
    return {cell.name: how for cell, how in LmEngine().run_pack(jobs(of, folder, control))}


@pytest.fixture
def alone(small: str) -> Path:
    """Each cell by itself, run once for all tests."""
    folder = Path(small) / "alone"
    if not folder.exists():
        for cell, where, control in jobs(cells(small), folder, Control()):
            assert LmEngine().run(cell, where, control)
    return folder


def assert_same(got: Path, want: Path, name: str) -> None:
    for mine, other in zip(points(got / name), points(want / name), strict=True):
        assert mine.keys() == other.keys()
        for key in mine:
            assert mine[key] == pytest.approx(other[key], rel=1e-3, abs=1e-5), (name, key)
    mine, other = weights(got / name), weights(want / name)
    for key in mine:
        torch.testing.assert_close(mine[key], other[key], atol=2e-5, rtol=1e-4)


def test_cells_run_together_as_they_do_alone(small: str, alone: Path, tmp_path: Path) -> None:
    control = Control()
    assert together(cells(small), tmp_path, control) == {"a": True, "b": True, "c": True}
    assert control.rollouts == 3 * 4 + 2 * 4 + 2 * 6
    for name in "abc":
        assert_same(tmp_path, alone, name)
        assert (tmp_path / name / "finished.json").exists()


def test_stopped_together_and_gone_on_with(small: str, alone: Path, tmp_path: Path) -> None:
    ended = together(cells(small), tmp_path, Control(stop_after=8))
    assert ended and not any(ended.values())
    assert all((tmp_path / name / "checkpoint.npz").exists() for name in ended)
    assert together(cells(small), tmp_path) == {"a": True, "b": True, "c": True}
    for name in "abc":
        assert_same(tmp_path, alone, name)


def test_one_that_fails_leaves_the_others_alone(
    small: str, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, settle = FastTraining.end_update, FastTraining.settle

    def failing(self: FastTraining) -> None:
        if self.cell.name == "c":
            raise ZeroDivisionError("told to")
        end(self)

    def diverging(self: FastTraining) -> None:  # seen when another cell ends and all are looked at
        settle(self)
        if self.cell.name == "a" and self.step:
            raise DivergedError("told to")

    monkeypatch.setattr(FastTraining, "end_update", failing)
    monkeypatch.setattr(FastTraining, "settle", diverging)
    broken = replace(cells(small)[0], name="d", problems={"source": "chain:nothing"})
    ended = together([broken, *cells(small)], tmp_path)
    assert ended["a"] is True and ended["b"] is True
    assert isinstance(ended["c"], ZeroDivisionError) and isinstance(ended["d"], Exception)
    assert json.loads((tmp_path / "a" / "finished.json").read_text())["diverged"].endswith(": told to")
    assert_same(tmp_path, alone, "b")


def test_a_stack_that_does_not_fit_is_halved(
    small: str, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, tried = Step.body, []

    def large(self: Step) -> None:
        tried.append(len(self.parts))
        if len(self.parts) > 2:
            raise torch.OutOfMemoryError("too much")
        body(self)

    monkeypatch.setattr(Step, "body", large)
    of = cells(small)[:2]
    of += [replace(of[1], name=name, seed=seed, update_steps=1) for name, seed in (("e", 2), ("f", 3))]
    with pytest.warns(UserWarning, match=r"4 cells of 4 rollouts do not run in one stack; they run in two\."):
        assert all(value is True for value in together(of, tmp_path).values())
    assert tried[0] == 4 and set(tried[1:]) == {2}
    for name in "ab":
        assert_same(tmp_path, alone, name)


def test_a_stack_that_cannot_be_built_is_halved_too(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any) -> None:
        raise torch.OutOfMemoryError("too much")

    monkeypatch.setattr(StackedTrainings, "__init__", none)
    with pytest.warns(UserWarning, match="do not run in one stack"):
        assert together([replace(c, update_steps=1) for c in cells(small)[:2]], tmp_path) == {"a": True, "b": True}


def test_a_cell_that_fits_nowhere_does_not_end_the_pack(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isocompute.rl.together._FULL", 1)  # one at a time: the first leaves nothing running
    make = Unit.__init__

    def large(self: Unit, members: list[Member], *, begun: bool = False) -> None:
        if members[0].session.cell.name == "a":
            raise torch.OutOfMemoryError("too much")
        make(self, members, begun=begun)

    monkeypatch.setattr(Unit, "__init__", large)
    ended = together([replace(cell, update_steps=1) for cell in cells(small)], tmp_path)
    assert isinstance(ended.pop("a"), torch.OutOfMemoryError)
    assert ended == {"b": True, "c": True}


def test_cells_share_the_time_by_their_rollouts(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shares: dict[str, list[float]] = {}
    settle = FastTraining.settle

    def seen(self: FastTraining) -> None:
        settle(self)
        shares.setdefault(self.cell.name, []).append(self.share)

    monkeypatch.setattr(FastTraining, "settle", seen)
    together([replace(c, update_steps=1 + (c.name == "a")) for c in cells(small)], tmp_path)
    # All three (4, 4 and 6 rollouts a batch) until the others have ended.
    assert shares["a"][:2] == [1.0, pytest.approx(4 / 14)]
    assert shares["c"] == [1.0] or shares["c"][1] == pytest.approx(6 / 14)


def test_room_is_made_as_units_end(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for one cell at a time each begins when the one before has ended."""
    monkeypatch.setattr("isocompute.rl.together._FULL", 1)
    stacks: list[Any] = []
    monkeypatch.setattr(StackedTrainings, "make_step", stacks.append)
    order: list[str] = []

    def watched() -> Iterator[tuple[Cell, Path, Control]]:
        for job in jobs([replace(cell, update_steps=1) for cell in cells(small)], tmp_path, Control()):
            order.append(f"begin {job[0].name}")
            yield job

    for cell, how in LmEngine().run_pack(watched()):
        order.append(f"end {cell.name}")
        assert how is True
    assert order == ["begin a", "end a", "begin b", "end b", "begin c", "end c"]
    assert not stacks


def test_what_is_packed(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of = cells(small)
    assert LmEngine().packs(of) == [[cell] for cell in of], "on a CPU each by itself"
    monkeypatch.setattr("isocompute.rl.spec.EngineSpec.where", property(lambda _: "cuda"))
    monkeypatch.setattr(setups, "tasks_of", lambda *_: None)
    assert LmEngine().packs(of) == [of]
    apart = [*of[:2], replace(of[2], engine={**of[2].engine, "together": False})]
    assert LmEngine().packs(apart) == [apart[:2], apart[2:]]
    assert LmEngine().packs(of[:1]) == [of[:1]]
    assert LmEngine().packs([]) == []
