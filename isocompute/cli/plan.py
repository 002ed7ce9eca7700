"""`isocompute plan`: from a law and a budget to an allocation, a recipe, a cost and how sure that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from isocompute.cli import options
from isocompute.core.errors import InputError

if TYPE_CHECKING:
    from isocompute.data import RunSet
    from isocompute.planner.decide import Plan
    from isocompute.planner.next_runs import Proposal

__all__ = ["command"]


def command(
    budget: Annotated[
        str | None, typer.Option(help="2e6 (rollouts), 3e9tok (tokens), 500h (GPU-hours) or $2000.")
    ] = None,
    law: Annotated[str | None, typer.Option(help="A published law's name, a law.json, or runs to fit.")] = None,
    where: options.Where = None,
    without: options.Without = None,
    laws: Annotated[bool, typer.Option("--laws", help="List the published laws.")] = False,
    metric: Annotated[str | None, typer.Option(help="avg@k, best@k or worst@k; the law's own by default.")] = None,
    difficulty: Annotated[str | None, typer.Option(help="easy or hard: decides KL and entropy.")] = None,
    pass_rates: Annotated[
        str | None, typer.Option(help="Per-problem pass rates of the base model: CSV, JSONL, parquet, JSON or text.")
    ] = None,
    pass_rate_column: Annotated[str | None, typer.Option(help="Their column, where it is not plain.")] = None,
    problems: Annotated[int | None, typer.Option(min=1, help="D: problems in your training set.")] = None,
    problems_per_batch: Annotated[
        int | None, typer.Option(min=1, help="Hold Bp: the choice is n against updates.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Hold B = Bp · n: the choice is Bp against n.")] = None,
    n: Annotated[str | None, typer.Option("--n", help="Allowed n, such as 8,16,32.")] = None,
    stable_problems: Annotated[str | None, typer.Option(help="Range of Bp that is stable, such as 32-256.")] = None,
    max_batch: Annotated[int | None, typer.Option(min=1, help="Largest B = Bp · n the hardware takes.")] = None,
    min_updates: Annotated[int, typer.Option(min=1, help="Fewest updates.")] = 1,
    lr_anchor: Annotated[str | None, typer.Option(help="A learning rate that works and its batch: 1e-6@1024.")] = None,
    truncated: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of the base model's responses that are cut off.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs; a batch must divide by them.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU by name, such as H200, for the cost model.")] = None,
    model: Annotated[str | None, typer.Option(help="The model's folder or config.json, for the cost model.")] = None,
    prompt_tokens: Annotated[float | None, typer.Option(help="Tokens of a prompt, on average.")] = None,
    response_tokens: Annotated[float | None, typer.Option(help="Tokens of a response, on average.")] = None,
    rollouts_per_second: Annotated[
        float | None, typer.Option(help="Measured throughput, on all GPUs, training included.")
    ] = None,
    throughput_from: Annotated[str | None, typer.Option(help="Runs that log seconds: take the throughput.")] = None,
    price_per_gpu_hour: Annotated[float | None, typer.Option(help="Money for one GPU-hour.")] = None,
    extrapolate: Annotated[bool, typer.Option("--extrapolate", help="Plan far outside the law's range.")] = False,
    next_: Annotated[int | None, typer.Option("--next", min=1, help="Propose this many cells to run next.")] = None,
    out: Annotated[str | None, typer.Option(help="Where --next writes its study; next.toml by default.")] = None,
    backtest: Annotated[
        bool, typer.Option("--backtest", help="Instead: plan each budget of --law RUNS from an eighth of it.")
    ] = False,
    replicates: options.Replicates = 1000,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Spend a budget: how many problems, rollouts and updates, which recipe, what to expect and how sure that is."""
    if backtest:
        _refuse_others(
            {
                "--laws": laws,
                "--difficulty": difficulty,
                "--pass-rates": pass_rates,
                "--pass-rate-column": pass_rate_column,
                "--problems": problems,
                "--batch": batch,
                "--n": n,
                "--stable-problems": stable_problems,
                "--max-batch": max_batch,
                "--min-updates": min_updates > 1,
                "--lr-anchor": lr_anchor,
                "--truncated": truncated is not None,
                "--gpus": gpus,
                "--gpu": gpu,
                "--model": model,
                "--prompt-tokens": prompt_tokens is not None,
                "--response-tokens": response_tokens is not None,
                "--rollouts-per-second": rollouts_per_second is not None,
                "--throughput-from": throughput_from,
                "--price-per-gpu-hour": price_per_gpu_hour is not None,
                "--extrapolate": extrapolate,
                "--next": next_,
                "--out": out,
            }
        )
        _backtest(law, budget, metric, problems_per_batch, where, without, replicates, seed, json)
        return
    if out is not None and next_ is None:
        raise InputError(f"--out {out}: it is where --next writes its study; say --next 4 too, or leave it out.")
    if laws:
        _laws(json)
        return
    if budget is None or law is None:
        lacking = "--budget 2e6" if budget is None else "--law NAME"
        raise InputError(
            f"plan needs a budget and a law; say {lacking} (`isocompute plan --laws` lists published ones)."
        )
    if prompt_tokens is not None and model is None and gpu is None:
        raise InputError(
            f"--prompt-tokens {prompt_tokens:g}: the cost model alone counts them; say --model config.json, --gpu H200 "
            "and --gpus 8 too, or leave it out."
        )
    from isocompute import api

    study = out or "next.toml"
    with options.heard() as said:
        plan = api.plan(
            budget=budget,
            law=_picked(law, where, without) if where or without else law,
            metric=metric,
            difficulty=difficulty,
            pass_rates=pass_rates,
            pass_rate_column=pass_rate_column,
            problems=problems,
            problems_per_batch=problems_per_batch,
            batch_size=batch,
            rollouts_per_problem=_whole_numbers(n),
            stable_problems=_range(stable_problems),
            max_batch=max_batch,
            min_updates=min_updates,
            lr_anchor=lr_anchor,
            truncated=truncated,
            gpus=gpus,
            gpu=gpu,
            model=model,
            prompt_tokens=prompt_tokens,
            response_tokens=response_tokens,
            rollouts_per_second=rollouts_per_second,
            timed_runs=throughput_from,
            price_per_gpu_hour=price_per_gpu_hour,
            extrapolate=extrapolate,
            replicates=replicates,
            seed=seed,
        )
    if price_per_gpu_hour is not None and plan.prices.cost(plan.allocation)["money"] is None:
        own = "" if gpus else ", --gpus 8 alone where the law's runs log seconds"
        raise InputError(
            f"--price-per-gpu-hour {price_per_gpu_hour:g}: a price needs a throughput, and none is known; say "
            f"--rollouts-per-second 12 --gpus 8, --throughput-from RUNS{own}, or --model and --gpu to model one."
        )
    proposals = _propose(plan, next_, law, study, seed) if next_ else []
    if json:
        from isocompute.planner.decide import proposal_to_json

        extra: dict[str, Any] = {"next": [proposal_to_json(p) for p in proposals]} if next_ else {}
        if next_:
            extra["study"] = study if proposals else None
        options.print_json(plan.to_json() | extra, said=said)
        return
    from isocompute.cli.plan_display import show, show_next

    show(plan)
    if next_:
        show_next(proposals, study, asked=next_)


def _refuse_others(given: dict[str, object]) -> None:
    """A test of plans under constraints would be one of other plans: what does not count is not taken."""
    for name, said in given.items():
        if said:
            raise InputError(f"{name} does not go with --backtest, which tests plans among the runs' own settings.")


def _backtest(
    law: str | None,
    budget: str | None,
    metric: str | None,
    problems_per_batch: int | None,
    where: list[str] | None,
    without: list[str] | None,
    replicates: int,
    seed: int,
    json: bool,
) -> None:
    from isocompute.cli.plan_backtest import budget_of, show_tests, tests_to_json
    from isocompute.core import files
    from isocompute.law.store import is_law_file
    from isocompute.planner.backtest import backtest_plans

    rollouts = budget_of(budget)
    if law is None or is_law_file(law) or not files.exists(law):
        what = "say which" if law is None else f"{law} is no folder or table that is there"
        if law is not None and is_law_file(law):
            what = f"{law} is a law, not runs"
        raise InputError(f"--backtest: it plans finished runs anew; {what}: --law RUNS, those of a sweep.")
    with options.heard() as said:
        runs = options.load_runs([law], None, where, problems_per_batch, without=without)
        tests, metric = backtest_plans(runs, metric=metric, budget=rollouts, replicates=replicates, seed=seed)
    if json:
        options.print_json(tests_to_json(tests, law=law, metric=metric), said=said)
    else:
        show_tests(tests, law=law, metric=metric)


def _picked(law: str, where: list[str] | None, without: list[str] | None) -> RunSet:
    """Those of the runs that --where keeps and --without does not leave out."""
    from isocompute.core import files
    from isocompute.law.store import is_law_file

    if is_law_file(law) or not files.exists(law):
        said = f"--where {where[0]}" if where else f"--without {(without or [''])[0]}"
        raise InputError(f"{said}: it picks among runs, and --law {law} is none; leave it out.")
    return options.load_runs([law], None, where, without=without)


def _whole_numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = [0]
    if min(values) < 1:
        raise InputError(f"--n {text}: give whole numbers of at least 1, such as 8,16,32.")
    return values


def _range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    low, dash, high = text.partition("-")
    if not (dash and low.strip().isdecimal() and high.strip().isdecimal() and int(low) >= 1):
        raise InputError(f"--stable-problems {text}: give the smallest and the largest Bp, such as 32-256.")
    return int(low), int(high)


def _laws(json: bool) -> None:
    from isocompute.cli.plan_display import show_laws
    from isocompute.planner.published import entries

    if json:
        options.print_json(
            {
                "laws": [
                    {
                        "name": e.name,
                        "title": e.title,
                        "source": e.source,
                        "setup": e.setup,
                        "metric": e.metric,
                        "unit": e.unit,
                        "range": list(e.range),
                        "uncertainty": e.uncertainty,
                    }
                    for e in entries()
                ]
            }
        )
        return
    show_laws(entries())


def _propose(plan: Plan, count: int, law: str, out: str, seed: int) -> list[Proposal]:
    """The cells of `--next`, written as a study where there are any."""
    from pathlib import Path

    from isocompute.core import files
    from isocompute.planner.api import next_cells
    from isocompute.planner.next_runs import next_recipe, seeds_of, study_for, study_text

    proposals = next_cells(plan, count)
    if proposals:
        text = study_text(
            proposals,
            before=study_for(plan, law),
            recipe=next_recipe(plan),
            seed=seed,
            seen=seeds_of(plan),
            why=f"What to run to plan {plan.budget} better (law: {plan.law.name}); `isocompute study run {out}`.",
        )
        data, path = text.encode(), Path(out)
        if path.exists() and not (path.is_file() and path.read_bytes() == data):
            raise InputError(
                f"--out {out}: it is there already and is another than the study that --next would write; say --out "
                "with a new name, or move it away."
            )
        files.write_atomically(path, data)
    return proposals
