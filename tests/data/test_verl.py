"""Logs of veRL: its console with every decoration, its configs, its rollout dumps."""

from __future__ import annotations

import gzip
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data import made_up as made
from tests.data.made_up import reward
from tests.data.tools import Write, column, one


def test_verl(write: Write) -> None:
    item = one(write(made.verl()))
    settings = item.run.settings
    assert (settings.problems_per_batch, settings.rollouts_per_problem, settings.update_steps) == (16, 8, 200)
    assert (settings.gpus, settings.model, settings.problems) == (8, "Qwen/Qwen2.5-7B", "/data/gsm8k/train.parquet")
    # 16 problems a batch in mini-batches of 16 are one update; the rest of the recipe is not in the log.
    expected = {
        "learning_rate": 2e-6,
        "kl_coef": 0.01,
        "entropy_coef": 0.001,
        "temperature": 0.6,
        "updates_per_batch": 1,
    }
    assert settings.recipe == expected
    assert settings.model_dump()["problem_set"] == {"max_new_tokens": 1024}
    assert column(item, "step") == list(range(1, 11))
    assert column(item, "rollouts") == [128 * s for s in range(1, 11)]
    assert column(item, "train/avg") == pytest.approx([reward(s) for s in range(1, 11)])
    assert column(item, "seconds") == pytest.approx([30.5 * s for s in range(1, 11)])
    assert column(item, "tokens") == pytest.approx([128 * 512.25 * s for s in range(1, 11)])
    assert column(item, "tokens_with_prompts") == pytest.approx([40960 * s for s in range(1, 11)])
    assert [s for s, v in zip(column(item, "step"), column(item, "avg@4"), strict=True) if v is not None] == [5, 10]
    assert column(item, "best@4")[4] == pytest.approx(reward(5) + 0.2)
    assert column(item, "worst@4")[9] == pytest.approx(reward(10) - 0.1)
    assert item.validation_points == 2
    for name in ("entropy", "kl", "grad_norm", "learning_rate", "response_length", "truncated", "best@2"):
        assert name in item.run.metrics
    # What is not ours keeps its name: the reward after the KL penalty, and validation of another variable.
    assert {"critic/rewards/mean", "actor/ppo_kl", "val-aux/openai/gsm8k/reward/mean@4"} <= set(item.run.metrics)


@pytest.mark.parametrize("logged", [True, False])
def test_verl_of_2024(write: Write, logged: bool) -> None:
    """Its step 4 is the end of the fifth batch, and step 0 the base model's validation."""
    item = one(write(made.verl_2024(logged=logged)), problems_per_batch=4, rollouts_per_problem=2)
    assert item.run.points["step"].to_list() == list(range(11))
    assert item.run.points["rollouts"].to_list() == [8 * k for k in range(11)]
    assert {k: column(item, "avg@1")[k] for k in (0, 5, 10)} == {k: round(reward(k), 3) for k in (0, 5, 10)}
    assert item.validation_points == 3
    assert item.run.points["tokens"][5] == pytest.approx(5 * 8 * 313.824)
    assert {"entropy", "kl", "train/avg", "actor/lr(1e-4)"} <= set(item.run.metrics)
    assert "steps count finished batches: one more than the number this version of veRL prints" in item.notes


def test_a_printed_validation_may_be_folded_and_a_logged_final_one_stays(write: Write) -> None:
    log = made.verl_2024(range(9), logged=False)
    log = log.replace("gsm8k': 0.200}\"", "gsm8k': \"\n(main_task pid=7)  \"0.200, 'test_score/math': 0.1}\")")
    item = one(write(log + "(main_task pid=7) step:9 - test_score/openai/gsm8k:0.625\n"))
    assert item.run.points["step"].to_list() == list(range(10))
    assert item.run.points["avg@1/openai/gsm8k"].to_list()[::9] == [0.2, 0.625]


def test_steps_from_0_without_an_update_are_not_moved(write: Write) -> None:
    log = "step:0 - val-core/g/acc/mean@4:0.1 - timing_s/testing:3.0\n" + made.verl(range(1, 6), config=False)
    assert one(write(log)).run.points["step"].to_list() == list(range(6))


def test_verl_config_with_lines_lost_and_a_command_line(write: Write) -> None:
    lines = [made.TASK + line for line in made.VERL_CONFIG.splitlines()]
    steps = made.verl(config=False)
    for lost in range(1, len(lines) - 1):
        kept = [*lines[:lost], *lines[lost + 1 :]]
        settings = one(write("\n".join(kept) + "\n" + steps)).run.settings
        if "'n': 8" not in lines[lost] and "'rollout'" not in lines[lost]:
            assert settings.rollouts_per_problem == 8, lines[lost]
        if "train_batch_size" not in lines[lost]:
            assert settings.problems_per_batch == 16, lines[lost]
    command = (
        "+ python3 -m verl.trainer.main_ppo data.train_batch_size=256 actor_rollout_ref.rollout.n=5 trainer.x=$Y\n"
    )
    settings = one(write(command + steps)).run.settings
    assert (settings.problems_per_batch, settings.rollouts_per_problem) == (256, 5)


@pytest.mark.parametrize("end", ["]'", ", \\"], ids=["whole", "torn"])
def test_verl_lists_on_the_command_line(end: str, write: Write) -> None:
    """`set -x` prints a quote inside of quotes as four characters; what is torn is left to the printed config."""
    q = "'\\''"
    files = f"'data.train_files=[{q}/d/a.parquet{q}, {q}/d/b.parquet{q}{end}"
    command = f"+ python3 -m verl.trainer.main_ppo data.train_batch_size=16 {files}\n"
    config = made.VERL_CONFIG.replace("'/data/gsm8k/train.parquet'", "['/d/a.parquet', '/d/b.parquet']")
    lines = "".join(made.TASK + line + "\n" for line in config.splitlines())
    settings = one(write(command + lines + made.verl(config=False))).run.settings
    assert settings.problems == "/d/a.parquet, /d/b.parquet"


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda t: t.replace("\n", "\r\n"), id="windows"),
        pytest.param(lambda t: "\ufeff" + t, id="bom"),
        pytest.param(lambda t: t.encode("utf-16"), id="utf-16"),
        pytest.param(lambda t: t.encode("utf-16-le"), id="utf-16 without mark"),
        pytest.param(lambda t: gzip.compress(t.encode()), id="gzip"),
        pytest.param(lambda t: t.replace("\x1b", ""), id="escapes lost"),
        pytest.param(lambda t: t.replace("[0m step:", "[0m 01-05 10:00,1 - INFO - step:"), id="timestamps"),
        pytest.param(lambda t: t.replace(" - critic/score", "\x1b[0m - critic/score"), id="colour inside"),
        pytest.param(lambda t: t.replace("\n", "\n\n"), id="empty lines"),
        pytest.param(lambda t: t.encode().replace(b"The answer", b"\xff\xfe\x00The answer"), id="no utf-8"),
        pytest.param(lambda t: t + "x" * 9_000_000, id="a huge line"),
    ],
)
def test_verl_with_every_decoration(spoil: Callable[[str], str | bytes], write: Write) -> None:
    plain, dressed = one(write(made.verl())), one(write(spoil(made.verl())))
    assert dressed.run.points.equals(plain.run.points)
    assert dressed.run.settings == plain.run.settings


def test_verl_values_that_are_not_plain(write: Write) -> None:
    line = "step:3 - a/b:np.float64(0.25) - c:tensor(2.5) - d:nan - e:inf - f:-1.5e-08 - g:np.int64(7) - h:text - i:1"
    item = one(write(line + "Training Progress: 5%\n"))
    assert item.run.points.drop("step").row(0, named=True) == {
        **{"a/b": 0.25, "c": 2.5, "f": -1.5e-08, "g": 7.0, "i": 1.0},
    }


@pytest.mark.parametrize("width", [80, 97, 120, 200, 211])
@pytest.mark.parametrize("how", ["hard", "stripped", "words"])
@pytest.mark.parametrize("prefix", ["", "(TaskRunner pid=4242) "])
def test_verl_lines_folded_by_a_terminal(width: int, how: str, prefix: str, write: Write) -> None:
    lines = [prefix + made.verl_line(s, made.verl_pairs(s, validated=s % 3 == 0)) for s in range(1, 9)]
    plain = one(write("\n".join(lines)))
    folded: list[str] = []
    for line in lines:
        if how == "words":
            folded += textwrap.wrap(line, width, break_on_hyphens=False)
        else:
            pieces = [line[i : i + width] for i in range(0, len(line), width)]
            folded += [p.strip() for p in pieces] if how == "stripped" else pieces
        folded.append("and some text of a model: it is - fine")
    assert one(write("\n".join(folded))).run.points.equals(plain.run.points)


def test_verl_several_validation_sets(write: Write) -> None:
    line = "step:{} - critic/score/mean:.5 - val-core/aime/acc/mean@8:{} - val-core/math/acc/mean@8:0.8\n"
    item = one(write(line.format(1, 0.2) + line.format(2, 0.4)))
    assert column(item, "avg@8") == pytest.approx([0.5, 0.6])
    assert column(item, "avg@8/aime") == [0.2, 0.4]


def test_a_resumed_run(write: Write) -> None:
    again = made.verl(range(8, 13), config=False).replace("response_length/mean:512.25", "response_length/mean:99.0")
    item = one(write(made.verl() + again))
    assert item.replaced == 3
    assert column(item, "step") == list(range(1, 13))
    assert column(item, "response_length") == [512.25] * 7 + [99.0] * 5
    # Validation of the base model again after a restart is not a step anew.
    val = "step:10 - val-core/openai/gsm8k/acc/mean@4:0.123\n"
    item = one(write(made.verl() + val))
    assert (item.replaced, column(item, "avg@4")[9]) == (1, 0.123)
    assert column(item, "train/avg")[9] == pytest.approx(reward(10))


def test_verl_rollout_dumps(write: Write, tmp_path: Path) -> None:
    for step in (1, 2, 10):
        write(made.verl_rollouts(step), f"rollouts/{step}.jsonl")
    item = one(tmp_path / "rollouts")
    assert item.run.name == "rollouts"
    assert column(item, "step") == [1, 2, 10]
    assert (item.run.settings.problems_per_batch, item.run.settings.rollouts_per_problem) == (4, 4)
    assert column(item, "train/avg") == [9 / 16, 13 / 16, 1.0]
    problems = {problem for _, problem in item.pass_rates}
    assert len(problems) == 4  # the same prompt has the same name in every step
    assert sorted(list(v) for (s, _), v in item.pass_rates.items() if s == 1) == [[1, 4], [2, 4], [3, 4], [3, 4]]
    with_ids = one(write(made.verl_rollouts(1, ids=True), "ids/1.jsonl"))
    assert {p for _, p in with_ids.pass_rates} == {"100", "101", "102", "103"}
    held_out = one(write(made.verl_rollouts(1), "val_dump/1.jsonl").parent)
    assert (held_out.run.metrics[0], held_out.validation_points) == ("avg@4", 1)
