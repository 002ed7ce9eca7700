"""The parts below the readers: literals, names, settings, rows into points, and mutated files."""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute import InputError
from isocompute.core.metric_names import our_name_among, our_names
from isocompute.data.config import read_run_config, settings_in_name
from isocompute.data.importing import import_logs
from isocompute.data.rows import Rows
from isocompute.data.source import LiteralError, as_number, parse
from isocompute.trainers.config_files import overrides
from tests.data.made_up import corpus

plain = st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    plain | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=8), values, max_size=5))
def test_a_printed_dict_comes_back(value: dict[str, Any]) -> None:
    text = repr(value)
    assert parse(text) == ast.literal_eval(text) == value


@given(st.text(max_size=200))
def test_any_text_is_a_literal_or_refused(text: str) -> None:
    with contextlib.suppress(LiteralError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': np.float64(0.5), 'b': tensor(1.5, device='cuda:0')}", {"a": 0.5, "b": 1.5}),
        (
            "{'a': inf, 'b': PosixPath('/x'), 'c': <object at 0x7f>}",
            {"a": math.inf, "b": "/x", "c": "<object at 0x7f>"},
        ),
        ("Namespace(lr=5e-07, name='x', flag=True)", {"lr": 5e-07, "name": "x", "flag": True}),
        ("{'a': 'one' 'two'} and then some", {"a": "onetwo"}),
        ("{'a': (1, 2), 'b': []}", {"a": [1, 2], "b": []}),
    ],
)
def test_what_a_literal_parser_would_refuse(text: str, value: Any) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    "text", ["{" * 500, "[" * 100_000, "{'a': ", "{'a' 1}", "", "'", "{'a': [1, 2}", "{'a': " + "x " * 90_000]
)
def test_deep_or_torn_literals_are_refused(text: str) -> None:
    with pytest.raises(LiteralError):
        parse(text)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("0.25", 0.25),
        (" -1e-05 ", -1e-5),
        ("np.float64(2.5)", 2.5),
        ("tensor(0.5, device='cuda:0')", 0.5),
        (3, 3.0),
        (True, None),
        ("nan", None),
        (math.inf, None),
        ("1e999", None),
        (10**400, None),
        ("text", None),
        ("9" * 100_000, None),
        (None, None),
        ([1], None),
    ],
)
def test_numbers(value: Any, number: float | None) -> None:
    assert as_number(value) == number


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (["val-core/a/b/reward/mean@16"], ["avg@16"]),
        (["val-core/x/acc/mean_16", "val-core/x/acc/best_16/mean"], ["avg@16", "best@16"]),  # through TensorBoard
        (["val/test_score/openai/gsm8k"], ["avg@1"]),
        (["test_score/x"], ["avg@1"]),
        (["eval/reward", "train/reward", "train/completions/mean_length"], ["avg@1", "train/avg", "response_length"]),
        (["validation/accuracy", "train/reward", "train/grad_norm"], ["avg@1", "train/avg", "grad_norm"]),
        (["critic/rewards/mean"], ["train/avg"]),  # better than nothing
        (["critic/rewards/mean", "critic/score/mean"], ["critic/rewards/mean", "train/avg"]),
        (["eval/all/avg_score", "eval/x/avg_score", "eval/all/pass_at_8"], ["avg@8", "avg@8/x", "best@8"]),
        (["eval/gsm8k/avg@4", "eval/gsm8k/pass@2"], ["avg@4", "best@2"]),
        (["eval_aime_pass1", "eval_aime_pass16"], ["avg@16", "best@16"]),
        (["avg@4", "best@4", "worst@4", "train/avg", "kl"], ["avg@4", "best@4", "worst@4", "train/avg", "kl"]),
        (["val-aux/x/score/mean@4", "val-core/x/acc/mean@4"], ["val-aux/x/score/mean@4", "avg@4"]),
        (["something/else"], ["something/else"]),
    ],
)
def test_names(theirs: list[str], ours: list[str]) -> None:
    names = our_names(theirs).ours
    assert [names.get(name, name) for name in theirs] == ours


@pytest.mark.parametrize(
    ("theirs", "again"),
    [
        (["test_score/x", "val/test_score/x"], {"val/test_score/x": "avg@1"}),
        (["test_score/x", "val/test_score/x", "test_score/y"], {"val/test_score/x": "avg@1/x"}),
        (["eval_reward", "eval/reward", "train/reward"], {"eval/reward": "avg@1"}),
        (["val/x/acc/mean@4", "val/x/reward/mean@4"], {}),  # two metrics, not two spellings
        (["eval_reward", "eval_accuracy"], {}),
    ],
)
def test_spellings_of_one_metric(theirs: list[str], again: dict[str, str]) -> None:
    assert our_names(theirs).alternatives == again


@given(
    st.lists(
        st.sampled_from([n for data in (corpus()["verl-file"],) for n in json.loads(data.splitlines()[4])["data"]]),
        unique=True,
    )
)
def test_no_two_names_become_one(theirs: list[str]) -> None:
    names = our_names(theirs).ours
    assert len({names.get(name, name) for name in theirs}) == len(theirs)


@pytest.mark.parametrize(
    ("config", "bp", "n"),
    [
        ({"data.train_batch_size": 512, "actor_rollout_ref.rollout.n": "8"}, 512, 8),
        ({"data.train_batch_size": 512, "actor_rollout_ref.rollout.temperature": 1.0}, 512, 1),
        ({"grpo.num_prompts_per_step": 32, "grpo.num_generations_per_prompt": 16}, 32, 16),
        ({"orchestrator.batch_size": 512, "orchestrator.group_size": 16}, 32, 16),
        ({"batch_size": 512, "rollouts_per_example": 8}, 64, 8),
        (
            {
                "num_generations": 8,
                "generation_batch_size": 64,
                "steps_per_generation": 4,
                "gradient_accumulation_steps": 8,
            },
            16,
            8,
        ),
        (
            {"num_generations": 8, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "world_size": 4},
            4,
            8,
        ),
        ({"num_generations": 8}, None, 8),
        ({"num_generations": 3, "total_train_batch_size": 32}, None, 3),
        ({"finetune.train_batch_size": 1, "finetune.gradient_accumulation_passes": 1024, "attempts": 8}, 128, 8),
        ({}, None, None),
    ],
)
def test_what_a_batch_is(config: dict[str, Any], bp: int | None, n: int | None) -> None:
    settings = read_run_config(config).settings
    assert (settings.get("problems_per_batch"), settings.get("rollouts_per_problem")) == (bp, n)


def test_command_lines() -> None:
    line = "bash run.sh 'data.train_batch_size=256' +a.b=\"x y\" --rollout.batch_size 128 --n-samples=8 c.d=$E batch 32"
    assert overrides(line) == {
        **{"data.train_batch_size": "256", "a.b": "x y", "rollout.batch_size": "128", "n_samples": "8"},
    }


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "'a.files=['\\''/d/a.parquet'\\'', '\\''/d/b.parquet'\\'']' b.c=1",
            ["/d/a.parquet", "/d/b.parquet"],
        ),  # set -x
        ("a.files=[/d/a.parquet,/d/b.parquet] b.c=1", ["/d/a.parquet", "/d/b.parquet"]),
        ("a.files=\"['/d/a.parquet', '/d/b.parquet']\" b.c=1", ["/d/a.parquet", "/d/b.parquet"]),
        ("'a.files=[0.9,0.95]' b.c=1", [0.9, 0.95]),
        ("a.files=[] b.c=1", []),
        ("a.files=/d/a.parquet b.c=1", "/d/a.parquet"),
        ("b.c=1 a.files=['/d/a.parquet',", None),  # goes on on the next line
    ],
)
def test_lists_on_command_lines(line: str, found: list[Any] | str | None) -> None:
    assert overrides(line) == {"b.c": "1"} | ({} if found is None else {"a.files": found})


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("grid_Bp32_n128", {"problems_per_batch": 32, "rollouts_per_problem": 128}),
        ("gs32-gpb16-lr4e-05", {"problems_per_batch": 16, "rollouts_per_problem": 32}),
        ("bsz256-b32-batch32", {}),
        ("n8-n16", {}),
        ("gen8-main4-qwen2.5", {}),
        ("bp0", {}),
    ],
)
def test_names_that_say_it(name: str, found: dict[str, int]) -> None:
    assert settings_in_name(name) == found


steps = st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["ab", "abc", "xy", "a"])), min_size=1, max_size=40)


@given(steps)
def test_the_later_line_of_a_step_counts(logged: list[tuple[int, str]]) -> None:
    rows = Rows()
    latest: dict[int, dict[str, float]] = {}
    for i, (step, names) in enumerate(logged):
        rows.add(step, tuple(names), [float(i)] * len(names))
        latest.setdefault(step, {}).update(dict.fromkeys(names, float(i)))
    points, replaced = rows.points()
    assert points["step"].to_list() == [step for step in sorted(latest) if step <= points["step"].max()]
    assert logged[-1][0] <= points["step"].max()  # a branch that was left may go beyond
    assert rows.skipped_lines == 0
    assert replaced <= len(latest)
    for point in points.to_dicts():
        step = point.pop("step")
        for name, value in point.items():
            # A line that says most of a step again takes the whole step over: what it leaves out is gone.
            assert value is None or value == latest[step][name]
        last = [names for s, names in logged if s == step][-1]
        assert all(point[name] == latest[step][name] for name in last)


BOOKKEEPING = [("epoch",), ("epoch", "time"), ("training/epoch",), ("_runtime",), ("rollouts", "seconds", "actor/lr")]


@pytest.mark.parametrize("order", [("val_reward", "reward"), ("reward", "val_reward")])
@pytest.mark.parametrize("shared", BOOKKEEPING)
def test_a_validation_and_a_training_row_make_one_point(shared: tuple[str, ...], order: tuple[str, str]) -> None:
    rows = Rows()
    for step in range(6):
        for at, name in enumerate(order):
            rows.add(step, (*shared, name), [step + at / 10] * len(shared) + [step / 10])
    points, replaced = rows.points()
    assert (points.height, replaced) == (6, 0)
    assert points["avg@1"].to_list() == points["train/avg"].to_list() == [step / 10 for step in range(6)]


def test_a_resumed_run_with_bookkeeping_still_replaces() -> None:
    rows = Rows()
    for value in (0.1, 0.2):
        for step in range(4):
            rows.add(step, ("epoch", "val_reward"), [step, value])
            rows.add(step, ("epoch", "reward"), [step, value])
    points, replaced = rows.points()
    assert (points.height, replaced) == (4, 4)
    assert points["avg@1"].to_list() == points["train/avg"].to_list() == [0.2] * 4
    rows = Rows()
    for names in (("epoch", "reward", "kl"), ("epoch", "reward")):
        rows.add(1, names, [0.5] * len(names))
    assert (rows.points()[0].columns, len(rows)) == (["step", "epoch", "train/avg"], 2)


def test_rows_of_nothing_but_bookkeeping() -> None:
    rows = Rows()
    for names in (("epoch",), ("epoch", "reward"), ("epoch",)):
        rows.add(1, names, [0.5] * len(names))
    points, replaced = rows.points()
    assert (points.rows(), replaced) == ([(1, 0.5, 0.5)], 1)


def test_many_rows_and_sparse_columns() -> None:
    rows = Rows()
    for step in range(30_000):
        rows.add(step, ("a", "b", "c", "d"), (step, 1.0, 2.0, math.nan))
        if step % 1000 == 0:
            rows.add(step, ("rare",), (0.5,))
    points, replaced = rows.points()
    assert (points.height, replaced, points["rare"].count()) == (30_000, 0, 30)
    assert points["a"].to_list() == list(range(30_000))
    assert "d" not in points.columns


def test_rows_without_a_common_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "chaos.log"
    path.write_text("".join(f"step:{s} - name{s}:1 - other{s}:2\n" for s in range(5000)))
    with pytest.raises(InputError, match=r"chaos.log: 10000 metric names, hardly one of them"):
        import_logs(path)


@pytest.mark.filterwarnings("ignore::isocompute.data.RunWarning")
def test_mutated_files_are_read_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few hundred of what benchmarks/import_fuzz.py does a hundred thousand times."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    fuzz = importlib.import_module("import_fuzz")
    monkeypatch.delitem(sys.modules, "import_fuzz")
    logs, path, read = corpus(), tmp_path / "some.log", 0
    for seed in range(250):
        path.write_bytes(fuzz.mutated(random.Random(seed), logs))
        with contextlib.suppress(InputError):
            items = import_logs(path)
            assert all(item.run.points.height for item in items)
            read += 1
    assert 50 < read < 250


@pytest.mark.parametrize(
    ("theirs", "here", "ours"),
    [
        ("eval_reward", ["avg@1", "train/avg"], "avg@1"),
        ("reward", ["avg@1", "train/avg"], "train/avg"),
        ("val-core/aime2024/acc/mean@32", ["avg@4", "avg@32"], "avg@32"),
        ("val-core/aime2024/acc/mean@32", ["avg@32", "avg@32/aime2024", "avg@32/math"], "avg@32/aime2024"),
        ("val-core/aime2025/acc/mean@32", ["avg@32", "avg@32/aime2024", "avg@32/math"], None),  # avg@32 is a mean
        ("val-core/aime2024/acc/mean@32", ["avg@4"], None),
        ("eval_loss", ["avg@1"], None),
        ("x" * 1000, ["avg@1"], None),
    ],
)
def test_what_a_trainers_metric_is_called_here(theirs: str, here: list[str], ours: str | None) -> None:
    assert our_name_among(theirs, here) == ours
