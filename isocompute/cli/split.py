"""`isocompute split PROBLEMS`: the difficulty of each problem for a model, and the paper's subsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from isocompute.cli import options

if TYPE_CHECKING:
    from isocompute.problems.split import Split


def command(
    problems: Annotated[str, typer.Argument(help="A problem file, gym:TASK, hf:NAME[:CONFIG][:SPLIT] or chain:LEVEL.")],
    model: Annotated[str | None, typer.Option(help="Checkpoint folder to sample from.")] = None,
    counts: Annotated[
        str | None, typer.Option(help="Counts instead of a model: a table with id, correct and samples.")
    ] = None,
    pass_rates: Annotated[
        str | None, typer.Option(help="Column with measured pass rates, of --counts or of the problems.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples per problem, to take or behind the pass rates.")] = 16,
    kept: Annotated[
        str | None, typer.Option(help="LOW:HIGH, if the set was filtered to these measured pass rates.")
    ] = None,
    mix: Annotated[str | None, typer.Option(help="Write a mixture too, such as easy=.5,hard=.5.")] = None,
    mix_size: Annotated[
        int | None, typer.Option(min=1, help="Problems in the mixture; most possible by default.")
    ] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Take only this many problems of the set.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of sampling, drawing and the bootstrap.")] = 0,
    question: Annotated[str | None, typer.Option(help="Column of the question, if it is not found.")] = None,
    answer: Annotated[str | None, typer.Option(help="Column of the answer, if it is not found.")] = None,
    verifier: Annotated[str | None, typer.Option(help="math or exact; files of a split contain theirs.")] = None,
    out: Annotated[str | None, typer.Option(help="Folder for the subsets (JSONL) and difficulty.json.")] = None,
    json: options.Json = False,
) -> None:
    """Split a problem set into Easy, Hard, Very easy and Extremely hard, corrected for regression to the mean."""
    from isocompute.api import split
    from isocompute.core.errors import InputError

    if mix_size is not None and mix is None:
        raise InputError("--mix-size is the size of a mixture; give --mix too, such as --mix easy=.5,hard=.5.")
    progress = options.Progress()
    made = split(
        problems,
        model=model,
        counts=counts,
        pass_rates=pass_rates,
        samples=samples,
        size=size,
        seed=seed,
        kept=_range(kept) if kept else None,
        mix={name: _number("--mix", text) for name, text in options.pairs("--mix", [mix]).items()} if mix else None,
        mix_size=mix_size,
        question=question,
        answer=answer,
        verifier=verifier,
        out=out,
        on_progress=progress,
    )
    progress.clear()
    data = made.to_json()
    if json:
        options.print_json(data)
    else:
        _show(made, data, out)


def _number(option: str, text: str) -> float:
    from isocompute.core.errors import InputError

    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option}: '{text}' is not a number.") from None


def _range(text: str) -> tuple[float, float]:
    from isocompute.core.errors import InputError

    low, colon, high = text.partition(":")
    if not colon:
        raise InputError(f"--kept {text}: give a range of measured pass rates, such as 0:.6.")
    return _number("--kept", low), _number("--kept", high)


def _show(made: Split, data: dict[str, Any], out: str | None) -> None:
    from isocompute.cli.show import console, heading, table
    from isocompute.core.formatting import pair, value

    screen = console()
    whole = data["all"]
    samples = ", ".join(map(str, data["samples"]))
    screen.print(
        f"{data['problems']} problems, {samples} samples each: mean pass rate {value(whole['naive_mean'])}",
        style="bold",
    )
    rows = []
    for name, subset in data["subsets"].items():
        low, high = subset["band"]
        band = f"{low:g}–{high:g}" if high else "0 of 128"
        for chosen_by, key in (("counts", "naive"), ("posterior", "corrected")):
            found = subset[key]
            share = "–" if found["in_band"] is None else f"{found['in_band']:.0%}"
            means = [value(found["naive_mean"]), value(found["corrected_mean"]), pair(found["interval"])]
            rows.append(
                [
                    name if key == "naive" else "",
                    band if key == "naive" else "",
                    chosen_by,
                    str(found["size"]),
                    *means,
                    share,
                ]
            )
    screen.print(heading("Subsets, chosen by counts (as in the paper) and by posterior (written)"))
    screen.print(
        table(
            ["subset", "band", "chosen by", "problems", "naive mean", "true mean", f"{data['level']:.0%}", "in band"],
            rows,
        )
    )
    screen.print(
        "true mean: what fresh samples would give; in band: problems whose true pass rate lies there", style="dim"
    )
    if made.mixture is not None:
        shares = ", ".join(f"{share:g} {name}" for name, share in data["mix"].items())
        screen.print(f"mixture of {len(made.mixture)} problems: {shares}")
    if out:
        from isocompute.problems.split import MIXTURE, SUMMARY

        subsets = made.subsets
        same = bool(subsets["hard"]) and subsets["hard"] == subsets["extremely-hard"]
        also = {"extremely-hard": ", the same as hard"} if same else {}
        names = [f"{name} ({len(part)}{also.get(name, '')})" for name, part in subsets.items() if part]
        names += [f"{MIXTURE} ({len(made.mixture)})"] if made.mixture else []
        screen.print(f"wrote {out}/: {', '.join([*names, SUMMARY])}")
