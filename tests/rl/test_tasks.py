from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from isocompute.core.errors import InputError
from isocompute.problems.load import load_problems
from isocompute.problems.problem_set import Problem, ProblemSet
from isocompute.rl.evaluation import measure_pass_rates
from isocompute.rl.model.checkpoint import save_decoder
from isocompute.rl.model.config import DecoderConfig
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout.rollouts import Rollouts
from isocompute.rl.tasks import ProblemsSpec, Tasks, TextVerifier, make_tasks
from tests.rl.cells import make_cell, points, rates, run

CPU = torch.device("cpu")
WORDS = ["<unk>", "<eos>", "<user>", "<bot>", "what", "is", "?", "+", "think", "first", *map(str, range(30))]
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}<bot> {% endif %}"
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A random model over a few words, with a chat template."""
    torch.manual_seed(0)
    config = DecoderConfig(
        "qwen3", len(WORDS), 16, 24, 1, 2, 1, 8, max_position_embeddings=32, tie_word_embeddings=True
    )
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<unk>", "<eos>", "<user>", "<bot>"])
    scratch = tmp_path / "tokenizer"
    scratch.mkdir()
    tokenizer.save(str(scratch / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "chat_template": TEMPLATE}
    (scratch / "tokenizer_config.json").write_text(json.dumps(about))
    folder = tmp_path / "model"
    save_decoder(Decoder(config), folder, tokenizer_from=scratch)
    return folder


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    """40 questions with answers."""
    path = tmp_path / "sums.jsonl"
    rows = [{"question": f"what is {a} + {b} ?", "answer": str(a + b)} for a in range(8) for b in range(5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def tasks_of(model: Path, **fields: Any) -> Tasks:
    table = {"validation": 10, "max_new_tokens": 4, "verifier": "exact", **fields}
    return make_tasks(ProblemsSpec.of(table), model, CPU)


def text(model: Path, ids: Any) -> str:
    return str(Tokenizer.from_file(str(model / "tokenizer.json")).decode(list(ids), skip_special_tokens=False))


def test_prompts_go_through_the_chat_template(model: Path, sums: Path):
    tasks = tasks_of(model, source=str(sums))
    assert (len(tasks.train), len(tasks.validation), tasks.max_new_tokens) == (30, 10, 4)
    first = load_problems(str(sums), verifier="exact").problems[0]
    place = [*tasks.train.ids, *tasks.validation.ids].index(first.id)
    prompt = [*tasks.train.prompts, *tasks.validation.prompts][place]
    assert text(model, prompt) == "<user> what is 0 + 0 ? <bot>"
    plain = tasks_of(model, source=str(sums), template="plain", instruction="think first")
    assert text(model, plain.train.prompts[0]).startswith("what is ")
    assert text(model, plain.train.prompts[0]).endswith("? think first")
    told = tasks_of(model, source=str(sums), instruction="think first")
    assert text(model, told.train.prompts[0]).endswith("? think first <bot>")


def test_the_instruction_follows_messages_of_the_file(model: Path, tmp_path: Path):
    path = tmp_path / "chat.jsonl"
    rows = [
        {
            "prompt": [{"role": "user", "content": f"what is {a} ?"}],
            "reward_model": {"ground_truth": str(a)},
            "data_source": "mine",
        }
        for a in range(4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = tasks_of(model, source=str(path), validation=1, instruction="think first")
    assert {text(model, p) for p in [*tasks.train.prompts, *tasks.validation.prompts]} == {
        f"<user> what is {a} ? think first <bot>" for a in range(4)
    }


@pytest.mark.parametrize("template", ["chat", "plain"])
def test_prompts_are_whole_whatever_the_tokenizer_stores(model: Path, sums: Path, template: str):
    """A truncation or padding that was saved into tokenizer.json is no wish about prompts."""
    path = str(model / "tokenizer.json")
    expected = tasks_of(model, source=str(sums), template=template).train.prompts
    tokenizer = Tokenizer.from_file(path)
    tokenizer.enable_truncation(3)
    tokenizer.save(path)
    assert tasks_of(model, source=str(sums), template=template).train.prompts == expected
    tokenizer.no_truncation()
    tokenizer.enable_padding(length=20, pad_id=0, pad_token="<unk>")
    tokenizer.save(path)
    assert tasks_of(model, source=str(sums), template=template).train.prompts == expected


def test_a_missing_template_is_said(model: Path, sums: Path):
    about = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**about, "chat_template": None}))
    assert text(model, tasks_of(model, source=str(sums)).train.prompts[0]).startswith("what is ")
    with pytest.raises(InputError, match="has no chat template; use plain"):
        tasks_of(model, source=str(sums), template="chat")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no system role') }}", r"problem .*: the chat template of .* fails \(no system role\)"),
        ("{% for m in messages %}{{ m.content ", "the chat template of .* fails"),
    ],
)
def test_a_template_that_fails_is_said(model: Path, sums: Path, template: str, message: str):
    path = model / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    with pytest.raises(InputError, match=message) as caught:
        tasks_of(model, source=str(sums))
    assert "template = 'plain'" in str(caught.value)
    assert tasks_of(model, source=str(sums), template="plain")


def test_a_tokenizer_that_transformers_cannot_open_is_said(model: Path, sums: Path):
    (model / "tokenizer_config.json").write_text("xx")
    with pytest.raises(InputError, match=r"cannot open its tokenizer .*template = 'plain'"):
        tasks_of(model, source=str(sums))
    assert tasks_of(model, source=str(sums), template="plain")


def test_prompts_have_to_be_in_the_models_vocabulary(model: Path, sums: Path):
    path = model / "tokenizer.json"
    data = json.loads(path.read_text())
    data["model"]["vocab"]["what"] = 5000
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match="prompts of train: token 5000 is beyond the 40 of vocab_size"):
        tasks_of(model, source=str(sums))


def rollouts_of(rows: list[list[int]]) -> Rollouts:
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    mask = torch.tensor([[t < len(row) for t in range(width)] for row in rows])
    zeros = torch.zeros(len(rows), dtype=torch.long)
    return Rollouts(zeros[:, None], zeros + 1, tokens, torch.zeros(tokens.shape), mask, torch.ones(len(rows)) > 0)


def test_equal_responses_are_verified_once(model: Path):
    asked: list[tuple[str, str]] = []

    def verify(problem: Problem, response: str) -> float:
        asked.append((problem.id, response))
        return float(response.split()[-1:] == [problem.answer])

    problems = tuple(Problem(id=f"p{i}", question=f"q{i}", answer=str(i)) for i in range(3))
    verifier = TextVerifier(ProblemSet("mine", problems, verify), model)
    zero = WORDS.index("0")
    rows = [[zero, 1], [zero, 1], [4, zero, 1], [zero + 2, 1], [zero + 2, 1], [1]]
    rewards = verifier(torch.tensor([0, 0, 0, 2, 1, 1]), rollouts_of(rows))
    assert rewards.tolist() == [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    assert asked == [("p0", "0"), ("p0", "what 0"), ("p2", "2"), ("p1", "2"), ("p1", "")]


def questions(model: Path, prompts: Any) -> set[str]:
    return {text(model, prompt) for prompt in prompts}


def test_what_is_measured_on_is_not_trained_on(model: Path, sums: Path, tmp_path: Path):
    other = tmp_path / "other.jsonl"  # half of it is in the training file, spaced otherwise
    lines = [{"question": f"what is {a}  + 0 ?", "answer": str(a)} for a in range(16)]
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tasks = tasks_of(model, source=str(sums), validation_source=str(other), validation=16)
    assert (len(tasks.train), len(tasks.validation)) == (32, 16)
    assert not questions(model, tasks.train.prompts) & questions(model, tasks.validation.prompts)
    tasks = tasks_of(model, source=str(sums), validation=10, out_of_distribution={"other": str(other)})
    outside = tasks.out_of_distribution["other"]
    assert len(outside) == 10
    for task in (tasks.validation, outside):
        assert not questions(model, tasks.train.prompts) & questions(model, task.prompts)


def test_sets_of_their_own_do_not_depend_on_the_seed(model: Path, sums: Path, tmp_path: Path):
    """What is measured on is the same in every run of a study, also where it is a part of a file of its own."""
    other = tmp_path / "other.jsonl"
    rows = [{"question": f"what is {a} + {b} + 1 ?", "answer": str(a + b + 1)} for a in range(8) for b in range(5)]
    other.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = [
        tasks_of(
            model, source=str(sums), validation_source=str(other), out_of_distribution={"far": str(other)}, seed=seed
        )
        for seed in (0, 1)
    ]
    assert made[0].validation.ids == made[1].validation.ids
    assert made[0].out_of_distribution["far"].ids == made[1].out_of_distribution["far"].ids


def test_validation_does_not_depend_on_what_is_trained_on(model: Path, sums: Path):
    wanted = questions(model, tasks_of(model, source=str(sums)).validation.prompts)
    for changes in ({"size": 5}, {"size": 30}, {"seed": 3}):
        tasks = tasks_of(model, source=str(sums), **changes)
        assert questions(model, tasks.validation.prompts) == wanted
        assert len(tasks.train) == changes.get("size", 30)
    small, large = (questions(model, tasks_of(model, source=str(sums), size=n).train.prompts) for n in (5, 12))
    assert small < large


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"validation": 40}, "has 40 problems; 0 are left to train on"),
        ({"size": 31}, "; 30 are left to train on when 10 are held out; lower problems.size"),
        ({"max_new_tokens": 30}, r"problem \S+: 8 tokens and 30 new ones do not fit the model's context of 32"),
        ({"max_new_tokens": None}, "512 new ones do not fit"),
        ({"answer": "solution"}, "solution"),
        ({"verifier": "lenient"}, "no verifier is named 'lenient'"),
    ],
)
def test_wrong_tables(fields: dict[str, Any], message: str, model: Path, sums: Path):
    with pytest.raises(InputError, match=message) as caught:
        tasks_of(model, source=str(sums), **fields)
    assert "\n" not in str(caught.value)


def test_chains_need_their_words(model: Path):
    with pytest.raises(InputError, match="the tokenizer of model has no word '<pad>'; chain modulo 23 needs a model"):
        tasks_of(model, source="chain:easy", verifier=None)


def test_text_is_trained_on(model: Path, sums: Path, tmp_path: Path):
    cell = make_cell(
        update_steps=2,
        problems={"source": str(sums), "size": None, "max_new_tokens": 4, "verifier": "exact"},
        engine={"model": str(model)},
    )
    folder = run(cell, tmp_path / "run")
    assert points(folder)[-1]["rollouts"] == 64
    assert all(len(row["correct"]) == 12 for row in rates(folder) if row["set"] == "validation")


def test_difficulty_of_text(model: Path, sums: Path, monkeypatch: pytest.MonkeyPatch):
    def known(_: TextVerifier, problems_B: Tensor, __: Rollouts) -> Tensor:
        return (torch.arange(len(problems_B)) % 4 < problems_B % 5).float()  # problem i: i modulo 5 of 4, at most 4

    monkeypatch.setattr(TextVerifier, "__call__", known)
    ids, correct = measure_pass_rates(
        problems=str(sums), model=str(model), samples=4, verifier="exact", max_new_tokens=4, device="cpu"
    )
    assert ids == [problem.id for problem in load_problems(str(sums), verifier="exact").problems]
    assert correct.tolist() == [i % 5 for i in range(40)]


def test_difficulty_of_chains():
    ids, correct = measure_pass_rates(
        problems="chain:very-easy", model="tiny", samples=8, size=60, seed=2, device="cpu"
    )
    assert ids == [problem.id for problem in load_problems("chain:very-easy", size=60, seed=2).problems]
    assert 0.5 < correct.mean() / 8 < 0.95
    _, longer = measure_pass_rates(problems="chain:8-10", model="tiny", samples=8, size=60, seed=2, device="cpu")
    assert longer.mean() < 0.5 * correct.mean()


@pytest.mark.parametrize("field", [{"template": "chat"}, {"instruction": "think"}, {"verifier": "math"}])
def test_what_chains_would_ignore_is_refused(field: dict[str, str], sums: Path):
    with pytest.raises(InputError, match=f"problems.{next(iter(field))}: chains are made of tokens"):
        ProblemsSpec.of({"source": "chain:easy", **field})
    ProblemsSpec.of({"sources": {"a": "chain:easy", "b": str(sums)}, **field})
    ProblemsSpec.of({"source": "chain:easy", "template": "auto"})
