"""Token ids of prompts: chat template, instruction and few-shot examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from isocompute.core.errors import InputError
from isocompute.problems.problem_set import Problem
from isocompute.rl.model.checkpoint import read_tokenizer

Template = Literal["auto", "chat", "plain"]
RESERVED = ("conversation", "messages", "tokenize", "add_generation_prompt")
"""Arguments of `apply_chat_template` that `Prompts` sets itself."""


class Prompts:
    """Encodes the prompts of problems, in the tokenizer's chat template if it has one.

    Few-shot examples are earlier turns of the chat or, without a chat, lines of questions and answers.
    """

    def __init__(
        self,
        folder: Path,
        *,
        template: Template,
        arguments: Mapping[str, Any],
        instruction: str,
        examples: Sequence[Problem] = (),
    ) -> None:
        self.folder, self.arguments, self.instruction = folder, arguments, instruction
        self.tokenizer = read_tokenizer(folder)
        self.chat: Any = None
        if template != "plain":
            tokenizer = _chat_tokenizer(folder)
            if tokenizer.chat_template:
                self.chat = tokenizer
            elif template == "chat":
                raise InputError(f"problems.template: the tokenizer of {folder} has no chat template; use plain.")
        if arguments and self.chat is None:
            raise InputError(
                f"problems.chat_template: the tokenizer of {folder} has no chat template to take "
                f"'{next(iter(arguments))}'; leave chat_template out."
            )
        unused = [name for name in arguments if name not in str(self.chat.chat_template)]
        if unused:
            raise InputError(
                f"problems.chat_template: the chat template of {folder} does not use '{unused[0]}'; leave it out."
            )
        unanswered = [problem.id for problem in examples if not problem.answer]
        if unanswered:
            raise InputError(
                f"problems.few_shot: problem {unanswered[0]} has no answer to show as an example; leave few_shot out."
            )
        self.turns = [
            {"role": role, "content": content}
            for example in examples
            for role, content in (("user", self._asked(example.question)), ("assistant", example.answer))
        ]

    def __call__(self, problem: Problem) -> list[int]:
        """The token ids of the prompt of a problem."""
        if self.chat is None:
            examples = "".join(turn["content"] + ("\n" if turn["role"] == "user" else "\n\n") for turn in self.turns)
            text = examples + self._asked(problem.question) + ("\n" if examples else "")
            return list(self.tokenizer.encode(text).ids)
        messages = [dict(message) for message in problem.messages or ({"role": "user", "content": problem.question},)]
        messages[-1]["content"] = self._asked(messages[-1]["content"])
        start = next(i for i, message in enumerate(messages) if message["role"] != "system")  # the last is the user's
        messages[start:start] = self.turns
        try:
            text = self.chat.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **self.arguments)
        except Exception as error:  # a template is a program and may raise anything
            raise InputError(
                f"problems: problem {problem.id}: the chat template of {self.folder} fails ({_first_line(error)}); "
                "fix the template or the problem's messages, or set problems.template = 'plain'."
            ) from error
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def _asked(self, question: str) -> str:
        return f"{question}\n{self.instruction}" if self.instruction else question


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
