"""Problem sets made ready for a model: token ids of the prompts, and a verifier from rollouts to rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from isocompute.arrays import Ints
from isocompute.engines.lm.model import context_length, read_tokenizer
from isocompute.engines.lm.sampler import Rollouts
from isocompute.errors import InputError
from isocompute.problems.chain import DEFAULT_SIZE, LEVELS, Chains, distinct_chains, parse_chain, vocabulary
from isocompute.problems.model import Problem, ProblemSet

__all__ = ["ChainVerifier", "ProblemsSpec", "Task", "Tasks", "TextVerifier", "make_tasks"]

_HELD_OUT = 7_000_003
"""Seed of validation chains: the same for every training set."""


class ProblemsSpec(BaseModel):
    """The `[problems]` table of the language-model engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    set: str | None = Field(default=None, description="name of the set in a study; 'easy' alone means chain:easy")
    source: str | None = Field(default=None, description="chain:LEVEL, gym:TASK, hf:NAME, or a file of problems")
    size: int | None = Field(default=None, ge=1, description="training problems; all of them if not set")
    validation: int = Field(default=256, ge=1, description="validation problems, held out")
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
            first = error.errors()[0]
            known = f"; fields are {', '.join(cls.model_fields)}" if first["type"] == "extra_forbidden" else ""
            raise InputError(f"problems.{'.'.join(map(str, first['loc']))}: {first['msg']}{known}.") from error
        if spec.source is None:
            if spec.set is not None and spec.set not in LEVELS:
                raise InputError(f"problems.source: say where '{spec.set}' comes from: chain:easy, gym:TASK or a file.")
            spec = spec.model_copy(update={"source": f"chain:{spec.set or 'easy'}"})
        return spec


class Verifier(Protocol):
    """Scores responses."""

    def __call__(self, problems_B: Tensor, rollouts: Rollouts) -> Tensor:
        """Rewards of the rollouts, each of the problem with that number."""
        ...


@dataclass(frozen=True)
class Task:
    """Problems as a model sees them."""

    name: str
    ids: Sequence[str]
    prompts: Sequence[Sequence[int]]
    verify: Verifier

    def __len__(self) -> int:
        return len(self.prompts)


@dataclass(frozen=True)
class Tasks:
    """What a run trains on and is measured by."""

    train: Task
    validation: Task
    out_of_distribution: Mapping[str, Task]
    max_new_tokens: int


class ChainVerifier:
    """Right when the response ends by itself and the number before its end is the answer; runs on any device."""

    def __init__(self, chains: Chains, number_zero: int, device: torch.device) -> None:
        self.answers_P = torch.from_numpy(chains.answers_P + number_zero).to(device)

    def __call__(self, problems_B: Tensor, rollouts: Rollouts) -> Tensor:
        """One comparison a rollout."""
        place_B = (rollouts.lengths_B - 2).clamp(min=0)
        final_B = rollouts.responses_BT.gather(1, place_B[:, None])[:, 0]
        right_B = rollouts.stopped_B & (rollouts.lengths_B > 1) & (final_B == self.answers_P[problems_B])
        return right_B.float()


class TextVerifier:
    """Decodes responses and asks the problem set; equal responses to a problem are verified once."""

    def __init__(self, problems: ProblemSet, folder: Path) -> None:
        self.problems = problems
        self.tokenizer = read_tokenizer(folder)

    def __call__(self, problems_B: Tensor, rollouts: Rollouts) -> Tensor:
        """The set's own verifier on every distinct response."""
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


def make_tasks(spec: ProblemsSpec, folder: Path, device: torch.device) -> Tasks:
    """Everything a run needs of its problems, checked against the model's context."""
    assert spec.source is not None
    chain = spec.source.split(":")[0] == "chain"
    tasks = _chain_tasks(spec, folder, device) if chain else _text_tasks(spec, folder)
    room = context_length(folder)
    for task in (tasks.train, tasks.validation, *tasks.out_of_distribution.values()):
        if not len(task):
            raise InputError(f"problems: {task.name} holds no problems.")
        longest = max(range(len(task)), key=lambda i: len(task.prompts[i]))
        need = len(task.prompts[longest]) + tasks.max_new_tokens
        if need > room:
            raise InputError(
                f"problems: {task.name}, problem {task.ids[longest]}: {len(task.prompts[longest])} tokens and "
                f"{tasks.max_new_tokens} new ones do not fit the model's context of {room}; lower "
                "problems.max_new_tokens, or leave the problem out."
            )
    return tasks


def _chain_tasks(spec: ProblemsSpec, folder: Path, device: torch.device) -> Tasks:
    assert spec.source is not None
    chain = parse_chain(spec.source)
    tokenizer = read_tokenizer(folder)
    words = vocabulary(chain.modulus)
    unknown = [word for word in words if tokenizer.token_to_id(word) is None]
    number_zero = tokenizer.token_to_id("0")
    if unknown or number_zero is None:
        raise InputError(
            f"problems.source: the tokenizer of {folder.name} has no word '{unknown[0]}'; chain modulo "
            f"{chain.modulus} needs a model of `isocompute lm pretrain`."
        )
    validation_spec = parse_chain(spec.validation_source or spec.source)
    validation = distinct_chains(validation_spec, spec.validation, seed=_HELD_OUT)
    train = distinct_chains(chain, spec.size or DEFAULT_SIZE, seed=spec.seed, without=validation)
    outside = {
        name: distinct_chains(parse_chain(source), spec.validation, seed=_HELD_OUT)
        for name, source in spec.out_of_distribution.items()
    }

    def task(name: str, chains: Chains) -> Task:
        prompts = [tokenizer.encode(chains.question(i)).ids for i in range(len(chains))]
        verify = ChainVerifier(chains, number_zero, device)
        return Task(name, [f"chain-{i}" for i in range(len(chains))], prompts, verify)

    longest = max(int(c.steps_P.max()) for c in (train, validation, *outside.values()))
    return Tasks(
        task("train", train),
        task("validation", validation),
        {name: task(name, chains) for name, chains in outside.items()},
        spec.max_new_tokens or longest + 3,
    )


def _text_tasks(spec: ProblemsSpec, folder: Path) -> Tasks:
    from isocompute.problems.load import load_problems

    def load(source: str, size: int | None) -> ProblemSet:
        return load_problems(
            source, size=size, seed=spec.seed, question=spec.question, answer=spec.answer, verifier=spec.verifier
        )

    assert spec.source is not None
    if spec.validation_source is not None:
        train, validation = load(spec.source, spec.size), load(spec.validation_source, spec.validation)
    else:
        whole = load(spec.source, None if spec.size is None else spec.size + spec.validation)
        if len(whole.problems) <= spec.validation:
            raise InputError(
                f"problems: {spec.source} has {len(whole.problems)} problems, {spec.validation} of them wanted for "
                "validation; lower problems.validation or name problems.validation_source."
            )
        order = np.random.default_rng([spec.seed, 3]).permutation(len(whole.problems))
        validation, train = _part(whole, order[: spec.validation]), _part(whole, order[spec.validation :])
    encode = _Prompts(spec, folder)
    return Tasks(
        _text_task("train", train, encode, folder),
        _text_task("validation", validation, encode, folder),
        {
            name: _text_task(name, load(source, spec.validation), encode, folder)
            for name, source in spec.out_of_distribution.items()
        },
        spec.max_new_tokens or _DEFAULT_BUDGET,
    )


_DEFAULT_BUDGET = 512


def _part(whole: ProblemSet, rows: Ints) -> ProblemSet:
    return ProblemSet(whole.name, tuple(whole.problems[i] for i in rows.tolist()), whole.verify)


def _text_task(name: str, problems: ProblemSet, encode: _Prompts, folder: Path) -> Task:
    ids = [problem.id for problem in problems.problems]
    return Task(name, ids, [encode(problem) for problem in problems.problems], TextVerifier(problems, folder))


class _Prompts:
    """Token ids of a problem's prompt, through the tokenizer's chat template where it has one."""

    def __init__(self, spec: ProblemsSpec, folder: Path) -> None:
        self.instruction = spec.instruction
        self.tokenizer = read_tokenizer(folder)
        self.chat: Any = None
        if spec.template != "plain":
            import transformers

            tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
            if tokenizer.chat_template:
                self.chat = tokenizer
            elif spec.template == "chat":
                raise InputError(f"problems.template: the tokenizer of {folder} has no chat template; use plain.")

    def __call__(self, problem: Problem) -> list[int]:
        question = problem.question + (f"\n{self.instruction}" if self.instruction else "")
        if self.chat is None:
            return list(self.tokenizer.encode(question).ids)
        messages = problem.messages or ({"role": "user", "content": question},)
        text = self.chat.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
        )
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)
