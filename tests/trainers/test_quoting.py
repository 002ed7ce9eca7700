"""A plan's names and paths reach the trainer's own parser unchanged, and are never executed."""

from __future__ import annotations

import ast
import shlex
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from isocompute.trainers import export_plan
from isocompute.trainers.config_files import parse_config as parse
from isocompute.trainers.config_files import parse_value
from isocompute.trainers.writing import dotlist, hydra

PLAN = {"Bp": 32, "n": 8, "M": 100}
PRINTABLE = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs"), exclude_characters="$"))
"""A dollar is an interpolation to both parsers, which is a user's right."""
HARD = ("org/it's", "it''s", "a\\b", "trail\\", "\\'", "null", "true", "nan", "1e5", "a, b", "#1", "[x]", "", " x ")


def examples(test: Any) -> Any:
    for text in HARD:
        test = example(text=text)(test)
    return test


@examples
@given(text=PRINTABLE)
def test_hydra_reads_every_text_back(text: str) -> None:
    parser = OverridesParser.create()
    assert parser.parse_override(hydra("a.b", text)).value() == text
    assert parser.parse_override(hydra("a.b", [text, "x"])).value() == [text, "x"]


NUMBERS = st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.from_regex(r"[A-Za-z_./][A-Za-z0-9_./@%-]{0,12}", fullmatch=True)
PLAIN = st.none() | st.booleans() | NUMBERS | WORDS | PRINTABLE


@given(value=PLAIN | st.lists(PLAIN, max_size=4))
def test_a_value_on_a_command_line_is_read_as_hydra_reads_it(value: Any) -> None:
    override = hydra("a.b", value)
    assert parse_value(override.partition("=")[2]) == OverridesParser.create().parse_override(override).value()


@examples
@given(text=PRINTABLE)
def test_omegaconf_reads_every_text_back(text: str) -> None:
    words = [dotlist("a.b", text), dotlist("a.c", [text, "x"])]
    assert OmegaConf.to_container(OmegaConf.from_cli(words)) == {"a": {"b": text, "c": [text, "x"]}}


def test_skyrl_takes_a_quote_in_a_name() -> None:
    names = {"model": "org/it's", "train_file": "~/my data/it's.parquet"}
    text = export_plan(trainer="skyrl", plan=PLAN | names).files[0].text
    words = [word for word in shlex.split(text, comments=True) if "=" in word and "$" not in word]
    config = OmegaConf.from_cli(words)
    assert config.trainer.policy.model.path == names["model"]
    assert list(config.data.train_data) == [names["train_file"]]
    found = parse(text).settings
    assert found["trainer.policy.model.path"] == names["model"] and found["data.train_data"] == [names["train_file"]]


def test_a_line_break_in_a_name_stays_in_its_comment() -> None:
    plan = PLAN | {"val_file": "val.jsonl\nraise SystemExit"}
    python, as_yaml = export_plan(trainer="trl", plan=plan).files
    assert not [node for node in ast.walk(ast.parse(python.text)) if isinstance(node, ast.Raise)]
    assert not [line for line in as_yaml.text.splitlines() if line.startswith("raise")]
