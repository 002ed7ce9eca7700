"""Charts that commands write, and the quickstart."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from isocompute.cli import quickstart
from isocompute.law.store import read_law
from tests.cli.tools import QUICK
from tests.commands import Call, fails

MAGIC = {".html": b"<!DOCTYPE html>", ".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<svg", ".pdf": b"%PDF-"}


class Page(HTMLParser):
    """The elements of a page and what they would make a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "data")]


@pytest.mark.parametrize("suffix", list(MAGIC))
@pytest.mark.parametrize("command", ["fit", "forecast", "compare"])
def test_charts(call: Call, sweep: Path, tmp_path: Path, command: str, suffix: str) -> None:
    runs = sweep / "runs"
    args = {
        "fit": (runs, *QUICK),
        "forecast": (runs / "easy-32x8", "--fit-until", "0.5"),
        "compare": (runs / "easy-32x8", runs / "easy-32x64", *QUICK),
    }[command]
    path = tmp_path / "charts" / f"chart{suffix.upper() if command == 'fit' else suffix}"
    result = call(command, *args, "--chart", path)
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith(f"wrote {path}\n")
    data = path.read_bytes()
    assert data.startswith(MAGIC[suffix])
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    if suffix == ".html":
        page = Page()
        page.feed(data.decode())
        assert "script" in page.tags
        assert page.fetched == []
        assert not re.search(rb"@import|\bimport\b[^;\n]{0,80}[\"']https?:", data)
        assert b"avg@4" in data


def test_a_chart_with_json_prints_json_only(call: Call, sweep: Path, tmp_path: Path) -> None:
    path = tmp_path / "chart.svg"
    made = call("forecast", sweep / "runs" / "easy-32x8", "--chart", path, "--json").json
    assert f"{made['value']:.3f}" in path.read_text()


def test_a_quickstart_that_is_interrupted_does_not_begin_the_next_sweep(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the Ctrl-C came when the last cells of this one were running to their end."""
    from isocompute import sweep as study

    swept: list[str] = []

    def run(*, out: Path, **_: object) -> study.Result:
        swept.append(out.name)
        return study.Result(
            folder=str(out),
            cells=1,
            finished=1,
            skipped=0,
            failed={},
            stopped=False,
            interrupted=True,
            unwritable=None,
            seconds=1.0,
            new_rollouts=1,
        )

    monkeypatch.setattr(study, "run", run)
    result = call("quickstart", "--out", tmp_path / "q", "--budget", "1M")
    assert (result.code, result.out) == (130, "")
    assert result.err == "stopped in the easy sweep; the same command resumes from here.\n"
    assert swept == ["easy"]


def test_quickstart(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a corner of its grid and a small part of its budget."""
    grid = "problems_per_batch = [32, 64]\nrollouts_per_problem = [8, 32, 128]\n"
    spec = re.sub(r"problems_per_batch = .*\nrollouts_per_problem = .*\n", grid, quickstart._SPEC)
    assert grid in spec
    monkeypatch.setattr(quickstart, "_SPEC", spec)
    result = call("quickstart", "--out", tmp_path / "q", "--budget", "1M", "--workers", "2")
    assert (result.code, result.err) == (0, "")
    assert re.search(r"^A plan for 500k rollouts$", result.out, re.MULTILINE)
    for name in ("easy", "hard"):
        law = read_law(tmp_path / "q" / name / "law.json")
        assert law.summary["metric"] == "exact/avg@4"
        assert {fit.setting for fit in law.settings} == {(bp, n) for bp in (32, 64) for n in (8, 32, 128)}
        assert (tmp_path / "q" / name / "law.png").read_bytes().startswith(MAGIC[".png"])
        assert re.search(rf"^ {name}: \d+ problems × \d+ rollouts × \d+ updates, expect", result.out, re.MULTILINE)
    # Again: everything is there already, and the JSON says what the text said.
    data = call("quickstart", "--out", tmp_path / "q", "--budget", "1e6", "--workers", "2", "--json").json
    assert len(data["laws"]) == 6
    for plan in data["plans"]:
        size = plan["problems_per_batch"] * plan["rollouts_per_problem"]
        assert plan["compute"] == size * plan["update_steps"] <= 500_000 < plan["compute"] + size
        assert f"{plan['set']}: {plan['problems_per_batch']} problems × {plan['rollouts_per_problem']}" in result.out
    for rule in data["rules"]:
        assert rule["rule"] in result.out


def test_a_chart_that_cannot_be_written_leaves_no_law(call: Call, sweep: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    law, chart = tmp_path / "law.json", tmp_path / "file" / "chart.svg"
    fails(call("fit", sweep / "runs", *QUICK, "--out", law, "--chart", chart), "cannot be written")
    assert not law.exists()
