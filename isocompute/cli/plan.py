"""`isocompute plan`: an allocation, a recipe and a cost for a budget, with the uncertainty of the expected reward.

The options are the fields of `PlanRequest`, and further ones that select runs, propose runs or test plans.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

import typer

from isocompute.cli import options
from isocompute.core.errors import InputError
from isocompute.planner.request import PlanRequest, option_of

if TYPE_CHECKING:
    from isocompute.core.run import RunSet
    from isocompute.planner.decide import Plan
    from isocompute.planner.next_runs import Proposal

_OF_BACKTEST = ("budget", "law", "metric", "problems_per_batch", "replicates", "seed")
"""Fields of a request that `--backtest` reads."""


def command(
    where: options.Where = None,
    without: options.Without = None,
    laws: Annotated[bool, typer.Option("--laws", help="List the published laws.")] = False,
    next_: Annotated[int | None, typer.Option("--next", min=1, help="Propose this many cells to run next.")] = None,
    out: Annotated[str | None, typer.Option(help="Where --next writes its study; next.toml by default.")] = None,
    backtest: Annotated[
        bool,
        typer.Option("--backtest", help="Test plans: plan each budget of --law RUNS from an eighth of it."),
    ] = False,
    json: options.Json = False,
    **given: Any,
) -> None:
    """Spend a budget: how many problems, rollouts and updates, which recipe, and what reward to expect."""
    fields = PlanRequest.model_fields
    given = {name: value for name, value in given.items() if value is not None and value != fields[name].default}
    if backtest:
        others = [option_of(name) for name in given if name not in _OF_BACKTEST]
        others += [option for option, value in (("--laws", laws), ("--next", next_), ("--out", out)) if value]
        if others:
            raise InputError(
                f"{others[0]} does not go with --backtest, which tests plans among the runs' own settings."
            )
        _backtest(given, where, without, json)
        return
    if out is not None and next_ is None:
        raise InputError(f"--out {out}: it is where --next writes its study; give --next 4 too, or leave it out.")
    if laws:
        _laws(json)
        return
    for name, example in (("budget", "2e6"), ("law", "NAME")):
        if name not in given:
            raise InputError(
                f"plan needs a budget and a law; give --{name} {example} (`isocompute plan --laws` lists published "
                "ones)."
            )
    from isocompute.api import plan as make_plan

    law, study = str(given["law"]), out or "next.toml"
    with options.captured_warnings() as warned:
        plan = make_plan(**given | {"law": _picked(law, where, without)})
    proposals = _propose(plan, next_, law, study, given.get("seed", 0)) if next_ else []
    if json:
        from isocompute.planner.next_runs import proposal_to_json

        extra: dict[str, Any] = {}
        if next_:
            extra = {"next": [proposal_to_json(p) for p in proposals], "study": study if proposals else None}
        options.print_json(plan.to_json() | extra, caught=warned)
        return
    from isocompute.cli.plan_display import show, show_next

    show(plan)
    if next_:
        show_next(proposals, study, asked=next_)


def _request_options() -> list[inspect.Parameter]:
    """The fields of a request as Typer's parameters."""
    out = []
    for name, field in PlanRequest.model_fields.items():
        text = field.description or ""
        option = typer.Option(option_of(name), help=f"{text[:1].upper()}{text[1:]}.")
        kind = _plain(field.annotation)
        default = field.default if kind is bool or isinstance(field.default, int) else None
        annotation: Any = Annotated[kind if default is not None else kind | None, option]
        out.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation))
    return out


def _plain(annotation: Any) -> Any:
    """The type of an option on the command line: int, float, bool, else text."""
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = get_args(annotation)[0]
    return annotation if annotation in (int, float, bool) else str


def _with_request(function: Any) -> None:
    own = [p for p in inspect.signature(function, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    of_request = _request_options()
    function.__signature__ = inspect.Signature([*of_request[:2], *own[:3], *of_request[2:], *own[3:]])


_with_request(command)


def _backtest(given: Mapping[str, Any], where: list[str] | None, without: list[str] | None, json: bool) -> None:
    from isocompute.api import backtest_plans
    from isocompute.cli.plan_display import budget_of, show_tests, tests_to_json
    from isocompute.core import files
    from isocompute.law.store import is_law_file

    rollouts, law = budget_of(given.get("budget")), given.get("law")
    if law is None or is_law_file(law) or not files.exists(law):
        what = "name them" if law is None else f"{law} is not a folder or table"
        if law is not None and is_law_file(law):
            what = f"{law} is a law, not runs"
        raise InputError(f"--backtest: it makes plans for finished runs; {what}: --law RUNS, those of a sweep.")
    rest = {name: given[name] for name in ("metric", "replicates", "seed") if name in given}
    with options.captured_warnings() as warned:
        runs = options.load_runs([law], None, where, given.get("problems_per_batch"), without=without)
        tests, metric = backtest_plans(runs, budget=rollouts, **rest)
    if json:
        options.print_json(tests_to_json(tests, law=law, metric=metric), caught=warned)
    else:
        show_tests(tests, law=law, metric=metric)


def _picked(law: str, where: list[str] | None, without: list[str] | None) -> str | RunSet:
    """The law as given, or its runs as selected by --where and --without."""
    if not where and not without:
        return law
    from isocompute.core import files
    from isocompute.law.store import is_law_file

    if is_law_file(law) or not files.exists(law):
        option = f"--where {where[0]}" if where else f"--without {(without or [''])[0]}"
        raise InputError(f"{option}: it selects runs, and --law {law} has none; leave it out.")
    return options.load_runs([law], None, where, without=without)


def _laws(json: bool) -> None:
    from isocompute.cli.plan_display import show_laws
    from isocompute.planner.published import entries

    if json:
        options.print_json({"laws": [asdict(entry) | {"range": list(entry.range)} for entry in entries()]})
    else:
        show_laws(entries())


def _propose(plan: Plan, count: int, law: str, out: str, seed: int) -> list[Proposal]:
    """The cells of `--next`, which are written as a study if there are any."""
    from isocompute.core import files
    from isocompute.planner.next_runs import next_cells, next_study

    proposals = next_cells(plan, count)
    if proposals:
        why = f"What to run to plan {plan.budget} better (law: {plan.law.name}); `isocompute study run {out}`."
        text = next_study(plan, proposals, before=study_of(law), seed=seed, why=why)
        data, path = text.encode(), Path(out)
        if path.exists() and not (path.is_file() and path.read_bytes() == data):
            raise InputError(
                f"--out {out}: it exists already and differs from the study that --next would write; give --out "
                "a new name, or move it away."
            )
        files.write_atomically(path, data)
    return proposals


def study_of(source: str) -> dict[str, Any] | None:
    """The spec of the study in a folder, or None if it is no study."""
    import tomllib

    from isocompute.core import files
    from isocompute.sweep.spec import parse_spec

    path = files.join(source, "study.toml")
    if not files.is_folder(source) or not files.exists(path):
        return None
    data = files.read_bytes(path)
    seeds = parse_spec(data, name=path).seeds  # raises an error if it is invalid
    return {**tomllib.loads(data.decode()), "seeds": seeds}
