"""Problem sets prepared for a model: the token ids of the prompts and verifiers that score rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from isocompute.core.arrays import Ints
from isocompute.core.errors import InputError, first_wrong
from isocompute.problems.chain import DEFAULT_SIZE, LEVELS, Chains, distinct_chains, parse_chain, vocabulary
from isocompute.problems.problem_set import Problem, ProblemSet, draw
from isocompute.rl.lengths import uninterrupted_budget
from isocompute.rl.model.checkpoint import check_vocabulary, context_length, read_tokenizer
from isocompute.rl.rollout.rollouts import Rollouts

_HELD_OUT = 7_000_003
"""Seed of the validation problems, so that they are the same for every training set."""
_RESERVED = ("", "train", "validation", "val")
"""Names that a set cannot have, since metrics use them."""
_OF_TEXT = ("question", "answer", "verifier", "template", "instruction")
"""Fields of `[problems]` that apply only to text problems."""
_TEXT_BUDGET = 512
"""Default response budget of text problems, in tokens."""
_TEXT_PHRASE = "\n\nNo time is left to think; the answer follows.\n</think>"
_CHAIN_PHRASE = "="


# Verifiers


class Verifier(Protocol):
    """Scores rollouts."""

    def __call__(self, problems_B: Tensor, rollouts: Rollouts) -> Tensor:
        """Rewards of the rollouts; `problems_B` holds the index of each rollout's problem."""
        ...


class ChainVerifier:
    """Gives 1 if the response stops by itself and its last number is the answer; runs on any device."""

    def __init__(self, answers_P: Ints, device: torch.device) -> None:
        self.answers_P = torch.from_numpy(answers_P).to(device)
        """Token of each problem's answer."""

    def __call__(self, problems_B: Tensor, rollouts: Rollouts) -> Tensor:
        """Compare the last number of each response with the answer."""
        place_B = (rollouts.lengths_B - 2).clamp(min=0)
        final_B = rollouts.responses_BT.gather(1, place_B[:, None])[:, 0]
        right_B = rollouts.stopped_B & (rollouts.lengths_B > 1) & (final_B == self.answers_P[problems_B])
        return right_B.float()


class SubsetVerifier:
    """Verifies a subset of a task, translating its indices to those of the whole task."""

    def __init__(self, verify: Verifier, places: Ints) -> None:
        self.verify, self.places = verify, torch.from_numpy(places)

    def __call__(self, problems_B: Tensor, rollouts: Rollouts) -> Tensor:
        """Ask the whole task's verifier."""
        return self.verify(self.places.to(problems_B.device)[problems_B], rollouts)


class JoinedVerifier:
    """Verifies several tasks joined into one, each with its own verifier."""

    def __init__(self, verifiers: Sequence[Verifier], sizes: Sequence[int]) -> None:
        self.verifiers = verifiers
        self.starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]

    def __call__(self, problems_B: Tensor, rollouts: Rollouts) -> Tensor:
        """Ask each task's verifier about its own rollouts."""
        rewards_B = torch.zeros(len(problems_B), device=rollouts.mask_BT.device)
        for verify, start, end in zip(self.verifiers, self.starts[:-1], self.starts[1:], strict=True):
            rows = ((problems_B >= start) & (problems_B < end)).nonzero()[:, 0]
            if len(rows):
                rewards_B[rows] = verify(problems_B[rows] - start, rollouts.take(rows))
        return rewards_B


class TextVerifier:
    """Decodes responses and verifies their text; equal responses to a problem are verified only once."""

    def __init__(self, problems: ProblemSet, folder: Path) -> None:
        self.problems = problems
        self.tokenizer = read_tokenizer(folder)

    def __call__(self, problems_B: Tensor, rollouts: Rollouts) -> Tensor:
        """Verify each distinct response."""
        lengths = rollouts.lengths_B.tolist()
        rows = [row[:n] for row, n in zip(rollouts.responses_BT.tolist(), lengths, strict=True)]
        texts = self.tokenizer.decode_batch(rows, skip_special_tokens=True)
        known: dict[tuple[int, str], float] = {}
        rewards = []
        for problem, text in zip(problems_B.tolist(), texts, strict=True):
            if (problem, text) not in known:
                known[problem, text] = self.problems.verify(self.problems.problems[problem], text)
            rewards.append(known[problem, text])
        return torch.tensor(rewards, dtype=torch.float32, device=rollouts.mask_BT.device)


# The `[problems]` table


class ProblemsSpec(BaseModel):
    """The `[problems]` table of the language-model engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    set: str | None = Field(default=None, description="name of the set in a study; 'easy' alone means chain:easy")
    source: str | None = Field(default=None, description="chain:LEVEL, gym:TASK, hf:NAME, or a file of problems")
    sources: dict[str, str] = Field(
        default={}, description="instead of source: several sets to train on together, name = source, each with curves"
    )
    size: int | None = Field(default=None, ge=1, description="training problems (of each source); all if not set")
    validation: int = Field(default=256, ge=1, description="validation problems (of each source), held out")
    validation_source: str | None = Field(default=None, description="another set to validate on")
    out_of_distribution: dict[str, str] = Field(default={}, description="further sets to evaluate on, name = source")
    seed: int = Field(default=0, ge=0, description="of the draw of problems")
    max_new_tokens: int | None = Field(default=None, ge=1, description="response budget; for chain as long as it takes")
    question: str | None = Field(default=None, description="column of the question")
    answer: str | None = Field(default=None, description="column of the answer")
    verifier: str | None = Field(default=None, description="math or exact")
    template: Literal["auto", "chat", "plain"] = Field(
        default="auto", description="whether prompts go through the tokenizer's chat template; auto: where it has one"
    )
    instruction: str = Field(default="", description="text after every question")

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> ProblemsSpec:
        """From a table; errors name the field."""
        try:
            spec = cls(**table)
        except ValidationError as error:
            where, why = first_wrong(error, fields=cls.model_fields)
            raise InputError(f"problems.{where}: {why}.") from error
        spec._refuse_taken_names()
        if spec.sources:
            taken = [name for name in ("source", "validation_source") if getattr(spec, name) is not None]
            if taken:
                raise InputError(f"problems.{taken[0]}: sources says where the problems come from; leave one out.")
        elif spec.source is None:
            if spec.set is not None and spec.set not in LEVELS:
                raise InputError(f"problems.source: say where '{spec.set}' comes from: chain:easy, gym:TASK or a file.")
            spec = spec.model_copy(update={"source": f"chain:{spec.set or 'easy'}"})
        spec._refuse_what_chains_ignore()
        return spec

    @property
    def all_sources(self) -> list[str]:
        """Where training, held-out and out-of-distribution problems come from."""
        single = [source for source in (self.source, self.validation_source) if source is not None]
        return [*single, *self.sources.values(), *self.out_of_distribution.values()]

    def _refuse_what_chains_ignore(self) -> None:
        """Refuse text fields for chains, which have no columns or template and bring their own verifier."""
        ignored = [name for name in _OF_TEXT if getattr(self, name) != type(self).model_fields[name].default]
        if ignored and all(source.startswith("chain:") for source in self.all_sources):
            raise InputError(f"problems.{ignored[0]}: chains are made of tokens and have no use for it; leave it out.")

    def _refuse_taken_names(self) -> None:
        """Refuse set names that clash: the name is the prefix of the set's metrics."""
        for table, also in (("sources", {}), ("out_of_distribution", self.sources)):
            taken = [name for name in getattr(self, table) if name in _RESERVED or name in also]
            if taken:
                raise InputError(f"problems.{table}: '{taken[0]}' is the name of another set; give it another name.")


# Tasks


@dataclass(frozen=True)
class Task:
    """Problems with tokenized prompts and a verifier."""

    name: str
    ids: Sequence[str]
    prompts: Sequence[Sequence[int]]
    verify: Verifier

    def __len__(self) -> int:
        return len(self.prompts)


@dataclass(frozen=True)
class Tasks:
    """The training, validation and out-of-distribution problems of a run."""

    train: Task
    validation: Task
    out_of_distribution: Mapping[str, Task]
    max_new_tokens: int
    phrase: str = ""
    """Default phrase of a forced interruption."""
    subsets: Mapping[str, slice] = field(default_factory=dict)
    """With several sources: the slice of validation problems of each."""

    @property
    def measured(self) -> dict[str, Task]:
        """The tasks to evaluate, by the prefix of their metrics."""
        return {"": self.validation, **{f"{name}/": task for name, task in self.out_of_distribution.items()}}


def make_tasks(spec: ProblemsSpec, folder: Path, device: torch.device, *, controlled: bool = False) -> Tasks:
    """The tasks of a run, checked against the model's vocabulary and context.

    `controlled` says that the recipe interrupts or penalises long responses. The default budget of chains is then long
    enough for complete responses to be neither interrupted nor penalised.
    """
    if spec.sources:
        tasks = _joined_tasks(spec, folder, device, controlled=controlled)
    elif spec.source is not None and _is_chain(spec.source):
        tasks = _chain_tasks(spec, folder, device, controlled=controlled)
    else:
        tasks = _text_tasks(spec, folder)
    for task in (tasks.train, tasks.validation, *tasks.out_of_distribution.values()):
        _check_room(task, tasks.max_new_tokens, folder)
    return tasks


def whole_task(spec: ProblemsSpec, folder: Path, device: torch.device) -> tuple[Task, int]:
    """All problems of a source as one task, with none held out, and the response budget; used to measure a model."""
    assert spec.source is not None
    if _is_chain(spec.source):
        chains = distinct_chains(parse_chain(spec.source), spec.size or DEFAULT_SIZE, seed=spec.seed)
        task, budget = _chain_task("all", chains, folder, device), _chain_budget(spec, [chains])
    else:
        problems = _load_text(spec, spec.source, spec.size, seed=spec.seed)
        task, budget = _text_task("all", problems, _Prompts(spec, folder), folder), _text_budget(spec)
    _check_room(task, budget, folder)
    return task, budget


def _is_chain(source: str) -> bool:
    return source.partition(":")[0] == "chain"


def _check_room(task: Task, max_new_tokens: int, folder: Path) -> None:
    if not len(task):
        raise InputError(f"problems: {task.name} holds no problems.")
    check_vocabulary({i for prompt in task.prompts for i in prompt}, folder, f"problems: prompts of {task.name}")
    room = context_length(folder)
    longest = max(range(len(task)), key=lambda i: len(task.prompts[i]))
    if len(task.prompts[longest]) + max_new_tokens > room:
        raise InputError(
            f"problems: {task.name}, problem {task.ids[longest]}: {len(task.prompts[longest])} tokens and "
            f"{max_new_tokens} new ones do not fit the model's context of {room}; lower "
            "problems.max_new_tokens, or leave the problem out."
        )


# Several sources


def _joined_tasks(spec: ProblemsSpec, folder: Path, device: torch.device, *, controlled: bool) -> Tasks:
    """Tasks of several sources trained on together; the validation problems are ordered by source."""
    alone = [
        make_tasks(spec.model_copy(update={"source": source, "sources": {}}), folder, device, controlled=controlled)
        for source in spec.sources.values()
    ]
    ends = np.cumsum([len(tasks.validation) for tasks in alone]).tolist()
    # A held-out problem of one source may be a training problem of another.
    held_out = [t for a in alone for t in (a.validation, *a.out_of_distribution.values())]
    measured = {tuple(prompt) for task in held_out for prompt in task.prompts}
    named = [
        (replace(_without_prompts(a.train, measured), name=name), replace(a.validation, name=name))
        for name, a in zip(spec.sources, alone, strict=True)
    ]
    return Tasks(
        _join("train", [train for train, _ in named]),
        _join("validation", [validation for _, validation in named]),
        alone[0].out_of_distribution,
        max(tasks.max_new_tokens for tasks in alone),
        alone[0].phrase,
        {name: slice(end - len(t[1]), end) for name, t, end in zip(spec.sources, named, ends, strict=True)},
    )


def _join(name: str, tasks: Sequence[Task]) -> Task:
    """Several tasks as one; their names prefix the ids."""
    ids = [f"{task.name}/{i}" for task in tasks for i in task.ids]
    prompts = [prompt for task in tasks for prompt in task.prompts]
    verifiers = [task.verify for task in tasks]
    if all(isinstance(verify, ChainVerifier) for verify in verifiers):  # keep the comparison on the device
        answers_P = torch.cat([v.answers_P for v in verifiers if isinstance(v, ChainVerifier)])
        return Task(name, ids, prompts, ChainVerifier(answers_P.cpu().numpy(), answers_P.device))
    return Task(name, ids, prompts, JoinedVerifier(verifiers, [len(task) for task in tasks]))


def _without_prompts(task: Task, measured: Set[tuple[int, ...]]) -> Task:
    """The task without the problems whose prompt is among `measured`."""
    kept = [i for i, prompt in enumerate(task.prompts) if tuple(prompt) not in measured]
    if len(kept) == len(task):
        return task
    ids, prompts, places = [task.ids[i] for i in kept], [task.prompts[i] for i in kept], np.array(kept, dtype=np.int64)
    if isinstance(task.verify, ChainVerifier):
        answers_P = task.verify.answers_P
        return Task(task.name, ids, prompts, ChainVerifier(answers_P.cpu().numpy()[places], answers_P.device))
    return Task(task.name, ids, prompts, SubsetVerifier(task.verify, places))


# Chains


def _chain_tasks(spec: ProblemsSpec, folder: Path, device: torch.device, *, controlled: bool) -> Tasks:
    assert spec.source is not None
    validation = distinct_chains(parse_chain(spec.validation_source or spec.source), spec.validation, seed=_HELD_OUT)
    outside = {
        name: distinct_chains(parse_chain(source), spec.validation, seed=_HELD_OUT)
        for name, source in spec.out_of_distribution.items()
    }
    held_out = [validation, *outside.values()]
    train = distinct_chains(parse_chain(spec.source), spec.size or DEFAULT_SIZE, seed=spec.seed, without=held_out)
    return Tasks(
        _chain_task("train", train, folder, device),
        _chain_task("validation", validation, folder, device),
        {name: _chain_task(name, chains, folder, device) for name, chains in outside.items()},
        _chain_budget(spec, [train, *held_out], controlled=controlled),
        _CHAIN_PHRASE,
    )


def _chain_task(name: str, chains: Chains, folder: Path, device: torch.device) -> Task:
    tokenizer, modulus = read_tokenizer(folder), chains.spec.modulus
    ids = {word: tokenizer.token_to_id(word) for word in vocabulary(modulus)}
    unknown = [word for word, token in ids.items() if token is None]
    if unknown:
        raise InputError(
            f"problems: {name}: the tokenizer of {folder.name} has no word '{unknown[0]}'; chain modulo {modulus} "
            f"needs a model of its own: isocompute lm pretrain FOLDER --problems 'chain:all?modulus={modulus}'."
        )
    check_vocabulary([i for i in ids.values() if i is not None], folder, str(folder / "tokenizer.json"))
    prompts = [tokenizer.encode(chains.question(i)).ids for i in range(len(chains))]
    number_ids = np.array([ids[str(number)] for number in range(modulus)])
    verify = ChainVerifier(number_ids[chains.answers_P], device)
    return Task(name, [f"chain-{i}" for i in range(len(chains))], prompts, verify)


def _chain_budget(spec: ProblemsSpec, sets: Sequence[Chains], *, controlled: bool = False) -> int:
    longest = max(int(chains.steps_P.max()) for chains in sets) + 1  # all results and the stop token
    return spec.max_new_tokens or (uninterrupted_budget(longest) if controlled else longest + 2)


# Text


def _text_tasks(spec: ProblemsSpec, folder: Path) -> Tasks:
    assert spec.source is not None
    own = spec.validation_source is None
    # Generators make only the problems needed; files are read whole, so that every size has the same validation set.
    generated = spec.size + spec.validation * own if spec.size and spec.source.startswith("gym:") else None
    whole = _load_text(spec, spec.source, generated, seed=spec.seed)
    if spec.validation_source is not None:
        validation = _load_text(spec, spec.validation_source, spec.validation, seed=_HELD_OUT)
    else:
        validation = replace(whole, problems=draw(whole.problems, spec.validation, seed=_HELD_OUT))
    outside = {
        name: _load_text(spec, source, spec.validation, seed=_HELD_OUT)
        for name, source in spec.out_of_distribution.items()
    }
    left = _without(whole, [validation, *outside.values()])
    if len(left) < (spec.size or 1):
        raise InputError(
            f"problems: {spec.source} has {len(whole)} problems; {len(left)} are left to train on when "
            f"{spec.validation} are held out; lower problems.size or problems.validation."
        )
    train = left if spec.size is None else replace(left, problems=draw(left.problems, spec.size, seed=spec.seed))
    encode = _Prompts(spec, folder)
    return Tasks(
        _text_task("train", train, encode, folder),
        _text_task("validation", validation, encode, folder),
        {name: _text_task(name, problems, encode, folder) for name, problems in outside.items()},
        _text_budget(spec),
        _TEXT_PHRASE,
    )


def _text_budget(spec: ProblemsSpec) -> int:
    return spec.max_new_tokens or _TEXT_BUDGET


def _load_text(spec: ProblemsSpec, source: str, size: int | None, *, seed: int) -> ProblemSet:
    from isocompute.problems.load import load_problems

    return load_problems(
        source, size=size, seed=seed, question=spec.question, answer=spec.answer, verifier=spec.verifier
    )


def _without(whole: ProblemSet, held_out: Sequence[ProblemSet]) -> ProblemSet:
    """The problems whose question is not held out; ids cannot be compared, since each file has its own."""
    taken = {_words(problem) for part in held_out for problem in part.problems}
    return replace(whole, problems=tuple(p for p in whole.problems if _words(p) not in taken))


def _words(problem: Problem) -> str:
    return " ".join(problem.question.split())


def _text_task(name: str, problems: ProblemSet, encode: _Prompts, folder: Path) -> Task:
    ids = [problem.id for problem in problems.problems]
    return Task(name, ids, [encode(problem) for problem in problems.problems], TextVerifier(problems, folder))


class _Prompts:
    """Encodes the prompts of problems, with the tokenizer's chat template if it has one."""

    def __init__(self, spec: ProblemsSpec, folder: Path) -> None:
        self.instruction, self.folder = spec.instruction, folder
        self.tokenizer = read_tokenizer(folder)
        self.chat: Any = None
        if spec.template != "plain":
            tokenizer = _chat_tokenizer(folder)
            if tokenizer.chat_template:
                self.chat = tokenizer
            elif spec.template == "chat":
                raise InputError(f"problems.template: the tokenizer of {folder} has no chat template; use plain.")

    def __call__(self, problem: Problem) -> list[int]:
        if self.chat is None:
            question = problem.question + (f"\n{self.instruction}" if self.instruction else "")
            return list(self.tokenizer.encode(question).ids)
        messages = [dict(message) for message in problem.messages or ({"role": "user", "content": problem.question},)]
        if self.instruction:
            messages[-1]["content"] += f"\n{self.instruction}"
        try:
            text = self.chat.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is a program and may raise anything
            raise InputError(
                f"problems: problem {problem.id}: the chat template of {self.folder} fails ({_first_line(error)}); "
                "fix the template or the problem's messages, or set problems.template = 'plain'."
            ) from error
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)


def _chat_tokenizer(folder: Path) -> Any:
    """The tokenizer as transformers loads it; only its chat template is used."""
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # a damaged file may raise anything
        raise InputError(
            f"{folder}: transformers cannot open its tokenizer ({_first_line(error)}); fix tokenizer_config.json and "
            "tokenizer.json, or do without a chat template: problems.template = 'plain'."
        ) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
