"""Check the documentation: length, sentences, links, paths, and options against `--help`.

    python scripts/check_docs.py

Prints one line per finding and ends with code 1 if there is any. The rules are those of CONTRIBUTING.md.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from isocompute.cli.main import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MOST_WORDS, MOST_WORDS_A_SENTENCE, MOST_SENTENCES_A_PARAGRAPH = 30_000, 30, 5
HISTORY = {DOCS / "log.md", ROOT / "CHANGELOG.md"}
CODE = re.compile(r"```.*?```|`[^`\n]+`", flags=re.DOTALL)
COMMAND = re.compile(r"(?:^|[`$|] ?)isocompute((?: [a-z]+){1,2})([^`|\n]*(?:\n  +[^`|\n]*)*)", flags=re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(r"\b(?:benchmarks|tests|examples|results|scripts|isocompute|docs)/[\w./-]+\.[a-z]{2,5}\b")
MODULE = re.compile(r"`((?:core|trainers|problems|data|law|rl|sim|planner|diagnose|sweep|report|web|cli)/[a-z_/]+)`")
SENTENCE_END = re.compile(r"[.!?:](?:\*\*|`|\)|\")?\s+(?=[^\sa-z])")


def commands() -> dict[str, set[str]]:
    """Every command's own options by its words, such as `study run`."""
    found: dict[str, set[str]] = {}

    def walk(command: Any, words: tuple[str, ...]) -> None:
        if hasattr(command, "commands"):
            for name, child in command.commands.items():
                walk(child, (*words, name))
        elif not command.hidden:
            options = (option for parameter in command.params for option in parameter.opts)
            found[" ".join(words)] = {option for option in options if option.startswith("--")}

    walk(typer.main.get_command(app), ())
    return found


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs and list items with their first line's number; no code, tables, headings or pictures."""
    start, lines, fenced = 0, list[str](), False
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        skipped = fenced or line.lstrip().startswith(("|", "#", "```", "![")) or line.startswith("    ")
        item = re.match(r"\s*(?:[-*]|\d+\.) ", line)
        if lines and (skipped or item or not line.strip()):
            yield start, " ".join(lines)
            lines = []
        if not skipped and line.strip():
            start = start if lines else number
            lines.append(line[item.end() :] if item else line.strip())


def anchors(path: Path) -> set[str]:
    """The fragments that a page's headings can be linked by."""
    heads = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def sentences(path: Path, text: str) -> Iterator[str]:
    """Long sentences and paragraphs."""
    for line, block in blocks(text):
        parts = SENTENCE_END.split(CODE.sub("`code`", LINK.sub("link", block)))
        if len(parts) > MOST_SENTENCES_A_PARAGRAPH:
            yield f"{path}:{line}: {len(parts)} sentences in a paragraph"
        for part in parts:
            words = len(part.split())
            if words > MOST_WORDS_A_SENTENCE:
                yield f"{path}:{line}: a sentence of {words} words: {' '.join(part.split()[:8])} …"


def links(path: Path, text: str) -> Iterator[str]:
    """Links to pages and headings that are not there."""
    for target in LINK.findall(CODE.sub("", text)):
        if target.startswith("http"):
            continue
        name, _, fragment = target.partition("#")
        to = (path.parent / name).resolve() if name else path
        if not to.exists():
            yield f"{path}: {target} is not there"
        elif fragment and fragment not in anchors(to):
            yield f"{path}: {target}: no such heading"


def paths(path: Path, text: str) -> Iterator[str]:
    """Files of the repository that are not there."""
    for name in sorted({*PATH.findall(text), *(f"isocompute/{name}.py" for name in MODULE.findall(text))}):
        if not (ROOT / name).exists():
            yield f"{path}: {name} is not there"


def used_options(path: Path, text: str, known: dict[str, set[str]]) -> Iterator[str]:
    """Options in command lines that their command does not have."""
    for words, rest in COMMAND.findall("\n".join(CODE.findall(text))):
        two, one = words.strip(), words.strip().split()[0]
        name = two if two in known else one
        if name not in known:
            if not any(command.startswith(f"{one} ") for command in known):
                yield f"{path}: isocompute {one} is not a command"
            continue
        for option in OPTION.findall(rest.partition("| isocompute")[0]):
            if option not in {*known[name], "--help", "--json"}:
                yield f"{path}: isocompute {name} has no {option}"


def reference(known: dict[str, set[str]]) -> Iterator[str]:
    """Commands and options that their section of the reference does not name."""
    sections: dict[str, str] = {}
    for page in sorted((DOCS / "reference").glob("*.md")):
        for part in re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]:
            sections[part.splitlines()[0].strip()] = part
    for name, options in known.items():
        if name not in sections:
            yield f"docs/reference: no section '## {name}'"
        for option in sorted(options - set(OPTION.findall(sections.get(name, "")))):
            yield f"docs/reference: '## {name}' does not name {option}"


def main() -> None:
    """Check every page, and end with code 1 if something is wrong."""
    pages = [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
    known, wrong, total = commands(), list[str](), 0
    for page in pages:
        text = page.read_text()
        wrong += links(page, text)
        if page in HISTORY:
            continue
        wrong += [*sentences(page, text), *paths(page, text), *used_options(page, text, known)]
        if DOCS in page.parents and DOCS / "studies" not in page.parents:
            total += len(text.split())
    wrong += reference(known)
    if total > MOST_WORDS:
        wrong.append(f"docs: {total} words without log.md and studies; at most {MOST_WORDS}")
    print("\n".join(line.replace(f"{ROOT}/", "") for line in wrong) or f"docs: {total} words, nothing wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
