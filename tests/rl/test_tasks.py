from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from isocompute.core.errors import InputError
from isocompute.problems.answers import ExactVerifier
from isocompute.problems.load import load_problems
from isocompute.problems.problem_set import Problem, ProblemSet
from isocompute.rl.evaluation import measure_pass_rates
from isocompute.rl.model.checkpoint import model_folder, read_tokenizer, save_decoder
from isocompute.rl.model.config import DecoderConfig
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.tasks import ChainGrader, ProblemsSpec, Tasks, TextGrader, make_tasks
from tests.rl.cells import make_cell, points, rates, run

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
    return make_tasks(ProblemsSpec.of(table), model)


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


def test_the_chat_template_takes_arguments(model: Path, sums: Path):
    path = model / "tokenizer_config.json"
    about = json.loads(path.read_text())
    thinking = "{% if enable_thinking is defined and enable_thinking %}think {% endif %}"
    path.write_text(json.dumps({**about, "chat_template": TEMPLATE + thinking}))
    for arguments, end in (
        ({"enable_thinking": True}, "<bot> think"),
        ({"enable_thinking": False}, "<bot>"),
        ({}, "<bot>"),
    ):
        tasks = tasks_of(model, source=str(sums), chat_template=arguments)
        assert {text(model, p).split("? ")[1] for p in tasks.train.prompts} == {end}
    path.write_text(json.dumps({**about, "chat_template": None}))
    with pytest.raises(InputError, match=r"problems.chat_template: the tokenizer of .* has no chat template to take"):
        tasks_of(model, source=str(sums), chat_template={"enable_thinking": True})


@pytest.mark.parametrize("template", ["chat", "plain"])
def test_examples_come_before_every_question(model: Path, sums: Path, tmp_path: Path, template: str):
    other = tmp_path / "other.jsonl"
    other.write_text(
        "".join(json.dumps({"question": f"{a} + {b}", "answer": "1"}) + "\n" for a in range(5) for b in range(5))
    )
    options = {
        "max_new_tokens": 2,
        "template": template,
        "instruction": "think",
        "out_of_distribution": {"far": str(other)},
    }
    tasks = tasks_of(model, source=str(sums), few_shot=2, **options)
    answers = {problem.question: problem.answer for problem in load_problems(str(sums)).problems}
    assert (len(tasks.train), len(tasks.validation)) == (28, 10)
    shown = set(answers) - {*tasks.train.questions, *tasks.validation.questions}
    assert len(shown) == 2
    prefixes = set()
    for task in (tasks.train, tasks.validation, tasks.out_of_distribution["far"]):
        for question, prompt in zip(task.questions, task.prompts, strict=True):
            words = text(model, prompt)
            end = f"<user> {question} think <bot>" if template == "chat" else f"{question} think"
            assert words.endswith(end)
            prefixes.add(words.removesuffix(end).strip())
    (prefix,) = prefixes
    turn = "<user> {} think <assistant> {}" if template == "chat" else "{} think {}"
    first, second = sorted(shown, key=prefix.find)
    assert prefix.replace("<unk>", "<assistant>") == " ".join(turn.format(q, answers[q]) for q in (first, second))
    same = tasks_of(model, source=str(sums), few_shot=2, seed=5, size=9, **options)
    assert same.validation.prompts == tasks.validation.prompts
    assert tasks_of(model, source=str(sums), **options).validation.questions == tasks.validation.questions


def test_examples_follow_the_system_message(model: Path, tmp_path: Path):
    path = tmp_path / "chat.jsonl"
    rows = [
        {"prompt": [{"role": "system", "content": "first"}, {"role": "user", "content": f"is {a} ?"}], "answer": str(a)}
        for a in range(8)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = tasks_of(model, source=str(path), validation=1, few_shot=1)
    for question, prompt in zip(tasks.train.questions, tasks.train.prompts, strict=True):
        words = text(model, prompt).split()
        assert [word for word in words if word in ("first", "<user>", "<bot>")] == [
            "first",
            "<user>",
            "<user>",
            "<bot>",
        ]
        assert " ".join(words).endswith(f"<user> {question} <bot>")


def test_examples_have_answers(model: Path, monkeypatch: pytest.MonkeyPatch):
    problems = tuple(Problem(f"p{i}", f"what is {i} ?", "") for i in range(20))
    made = ProblemSet("mine", problems, ExactVerifier())
    monkeypatch.setattr("isocompute.problems.load.load_problems", lambda *_, **__: made)
    tasks_of(model, source="mine")
    with pytest.raises(InputError, match=r"problems.few_shot: problem p\d+ has no answer to show as an example"):
        tasks_of(model, source="mine", few_shot=1)


def test_stop_strings_are_those_of_the_table(model: Path, sums: Path):
    assert tasks_of(model, source=str(sums), stop=["?", "\n\n"]).stop_strings == ("?", "\n\n")
    assert tasks_of(model, sources={"a": str(sums)}, stop=["?"]).stop_strings == ("?",)


def test_rewards_of_a_users_function(model: Path, sums: Path, tmp_path: Path):
    path = tmp_path / "my_rewards.py"
    path.write_text("def score(responses, answers): return [len(r) / 4 for r in responses]")
    tasks = tasks_of(model, source=str(sums), verifier=None, reward=f"{path}:score", reward_seconds=5)
    assert tasks.train.grade(0, [ids("1 <eos>"), ids("is 2 <eos>")], [True, True]) == [0.25, 1.0]
    path.write_text("def score(responses, level): return [0.0] * len(responses)")
    with pytest.raises(InputError, match=r"sums.jsonl: reward .*missing a required argument: 'level'"):
        tasks_of(model, source=str(sums), verifier=None, reward=f"{path}:score")


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


def ids(words: str) -> list[int]:
    return [WORDS.index(word) for word in words.split()]


def test_a_group_is_decoded_and_graded_together(model: Path):
    asked: list[tuple[str, list[str]]] = []

    def verifier(problem: Problem, responses: Sequence[str]) -> list[float]:
        asked.append((problem.id, list(responses)))
        return [float(response.split()[-1:] == [problem.answer]) for response in responses]

    problems = tuple(Problem(id=f"p{i}", question=f"q{i}", answer=str(i)) for i in range(3))
    grade = TextGrader(ProblemSet("mine", problems, verifier), read_tokenizer(model))
    rows = [ids(row) for row in ("0 <eos>", "0 <eos>", "what 0 <eos>", "2 <eos>", "<eos>", "0 0")]
    assert grade(0, rows, [True] * 5 + [False]) == [1.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    assert grade(2, rows[3:4], [True]) == [1.0]
    assert asked == [("p0", ["0", "0", "what 0", "2", "", "0 0"]), ("p2", ["2"])]


def test_responses_are_decoded_with_their_special_tokens(model: Path, sums: Path):
    assert tasks_of(model, source=str(sums)).train.text(ids("what 0 <eos>")) == "what 0 <eos>"
    chains = make_tasks(ProblemsSpec.of({"source": "chain:easy", "size": 5, "validation": 5}), model_folder("tiny"))
    for task in (chains.train, chains.validation):
        assert [task.text(prompt) for prompt in task.prompts] == list(task.questions)


def test_chains_are_graded_by_the_number_before_the_stop_token():
    grade = ChainGrader([16, 9])
    cases = [
        (0, [12, 16, 1], True, 1.0),
        (0, [16, 1], True, 1.0),  # without its steps
        (0, [9, 1], True, 0.0),  # the other problem's answer
        (1, [9, 1], True, 1.0),
        (0, [16, 12, 1], True, 0.0),  # right at first, then another number
        (0, [16, 12, 16, 1], True, 1.0),  # extra tokens before the answer
        (0, [12, 12, 16, 12], False, 0.0),  # truncated: it does not end by itself
        (0, [16, 2, 1], True, 0.0),  # ends on another word
        (0, [1], True, 0.0),  # nothing at all
        (1, [], False, 0.0),
    ]
    assert [grade(problem, [row], [stopped]) for problem, row, stopped, _ in cases] == [[r] for *_, r in cases]
    rows = [row for problem, row, *_ in cases if problem == 0]
    stopped = [stops for problem, _, stops, _ in cases if problem == 0]
    assert grade(0, rows, stopped) == [reward for problem, *_, reward in cases if problem == 0]


def test_sources_are_graded_each_by_its_own(model: Path, sums: Path, tmp_path: Path):
    other = tmp_path / "other.jsonl"
    rows = [{"question": f"what is {a} + 1 + 1 ?", "answer": str(a + 2)} for a in range(12)]
    rows += [{"question": f"what  is {a} + 0 ?", "answer": str(a)} for a in range(8)]  # some are validated on above
    other.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = tasks_of(model, sources={"sums": str(sums), "other": str(other)}, validation=5, few_shot=1)
    answers = {" ".join(row["question"].split()): row["answer"] for row in rows}
    answers |= {problem.question: problem.answer for problem in load_problems(str(sums)).problems}
    for task in (tasks.train, tasks.validation):
        for i, question in enumerate(task.questions):
            right = ids(f"{answers[' '.join(question.split())]} <eos>")
            assert task.grade(i, [ids("29 <eos>"), right], [True, True]) == [0.0, 1.0]
            assert task.ids[i].split("/")[0] in ("sums", "other")
            assert text(model, task.prompts[i]).endswith(f"{' '.join(question.split())} <bot>")
    assert tasks.subsets == {"sums": slice(0, 5), "other": slice(5, 10)}
    words = [{" ".join(q.split()) for q in task.questions} for task in (tasks.train, tasks.validation)]
    assert not words[0] & words[1]
    assert not tasks.train.grade.cheap


def test_several_chains_are_graded_without_a_thread():
    table = {"sources": {"short": "chain:1-2", "long": "chain:4-5"}, "size": 20, "validation": 10}
    tasks = make_tasks(ProblemsSpec.of(table), model_folder("tiny"))
    number, stop = read_tokenizer(model_folder("tiny")).token_to_id, 1
    for task in (tasks.train, tasks.validation):
        assert task.grade.cheap
        for i, question in enumerate(task.questions):
            words = question.removesuffix(" =").split()
            value = int(words[0])
            for operation, operand in zip(words[1::2], words[2::2], strict=True):
                value = {"+": value.__add__, "-": value.__sub__, "*": value.__mul__}[operation](int(operand)) % 23
            rows = [[number(str(value)), stop], [number(str((value + 1) % 23)), stop]]
            assert task.grade(i, rows, [True, True]) == [1.0, 0.0]


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
        ({"few_shot": 31}, "has 40 problems; 0 are left to train on when 10 are held out and 31 are examples"),
        ({"few_shot": 3}, r"35 tokens and 4 new ones .* of 32; use fewer few-shot examples, or leave the problem out"),
        ({"few_shot": 2, "max_new_tokens": 8}, r"26 tokens and 8 new ones .* of 32; lower .*max_new_tokens to 6, or"),
        ({"few_shot": -1}, "problems.few_shot: Input should be greater than or equal to 0"),
        ({"stop": [""]}, "problems.stop.0: String should have at least 1 character"),
        ({"reward": "r.py:score"}, "problems.verifier: problems.reward already says how to grade responses"),
        ({"verifier": None, "reward": "r.py:score"}, "reward 'r.py:score': there is no file .*r.py"),
        ({"reward_seconds": 0}, "problems.reward_seconds: Input should be greater than 0"),
        ({"chat_template": {"tokenize": True}}, "problems.chat_template: 'tokenize' is set by the engine; leave it"),
        ({"chat_template": {"think": 1}}, "problems.chat_template: the chat template of .* does not use 'think'"),
        ({"chat_template": {"think": 1}, "template": "plain"}, "template = 'plain' uses no chat template"),
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
    def known(_: TextGrader, problem: int, responses: Sequence[Sequence[int]], __: Sequence[bool]) -> list[float]:
        return [float(i < problem % 5) for i in range(len(responses))]  # problem i: i modulo 5 of 4, at most 4

    monkeypatch.setattr(TextGrader, "__call__", known)
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


@pytest.mark.parametrize(
    "field",
    [
        {"template": "chat"},
        {"instruction": "think"},
        {"verifier": "math"},
        {"reward": "my_rewards.py:score"},
        {"reward_seconds": 3},
        {"chat_template": {"enable_thinking": False}},
        {"few_shot": 2},
        {"stop": ["\n"]},
    ],
    ids=str,
)
def test_what_chains_would_ignore_is_refused(field: dict[str, Any], sums: Path):
    with pytest.raises(InputError, match=f"problems.{next(iter(field))}: chains are made of tokens"):
        ProblemsSpec.of({"source": "chain:easy", **field})
    ProblemsSpec.of({"sources": {"a": "chain:easy", "b": str(sums)}, **field})
    ProblemsSpec.of({"source": "chain:easy", "template": "auto"})
