"""`isocompute.write_report(...)`: what `isocompute report` runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isocompute.core import files
from isocompute.core.errors import InputError
from isocompute.report.answer import Answer, answers
from isocompute.report.evidence import Evidence, Source
from isocompute.report.figures import FIGURES, draw
from isocompute.report.model import Figure, Missing
from isocompute.report.page import page

__all__ = ["Report", "check_page", "write_report"]


@dataclass(frozen=True)
class Report:
    """A report that was written."""

    path: Path
    size: int
    evidence: Evidence
    answers: tuple[Answer, ...]
    figures: tuple[Figure, ...]
    missing: tuple[Missing, ...]

    def to_json(self) -> dict[str, Any]:
        """The keys of `report --json` (docs/report.md); a figure's data come with `--figure NAME --json`."""
        return {
            "report": str(self.path),
            "bytes": self.size,
            "source": self.evidence.runs.source,
            "metric": self.evidence.metric,
            "unit": self.evidence.unit,
            "runs": len(self.evidence.runs),
            "left_out": self.evidence.left_out,
            "conditions": [condition.name for condition in self.evidence.conditions],
            "answers": [answer.to_json() for answer in self.answers],
            "figures": [{key: v for key, v in figure.to_json().items() if key != "data"} for figure in self.figures],
            "missing": [missing.to_json() for missing in self.missing],
        }


def check_page(out: str | Path) -> Path:
    """Refuse a name that is none of a page before any work is done."""
    path = Path(out)
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out {path}: a report is a page: end it in .html, or say --figure NAME for a picture.")
    if path.is_dir():
        raise InputError(f"--out {path}: there is a folder of that name; give another file.")
    return path


def write_report(
    runs: Source | Evidence,
    *,
    out: str | Path = "report.html",
    budget: str | float | None = None,
    metric: str | None = None,
    unit: str | None = None,
    replicates: int = 1000,
    seed: int = 0,
) -> Report:
    """Write runs, a study or a trainer's logs as one HTML page that needs no network.

    >>> report = write_report("runs", out="report.html", replicates=100)
    >>> report.path.name, "reward" in [figure.name for figure in report.figures]
    ('report.html', True)
    """
    path = check_page(out)
    evidence = (
        runs
        if isinstance(runs, Evidence)
        else Evidence.of(runs, metric=metric, unit=unit, replicates=replicates, seed=seed)
    )
    said = answers(evidence, budget=budget)
    drawn = [draw(name, evidence) for name in FIGURES]
    data = page(evidence, said, drawn).encode()
    files.write_atomically(path, data)
    return Report(
        path=path,
        size=len(data),
        evidence=evidence,
        answers=said,
        figures=tuple(d for d in drawn if isinstance(d, Figure)),
        missing=tuple(d for d in drawn if isinstance(d, Missing)),
    )
