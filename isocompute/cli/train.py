"""`isocompute train`: reinforcement learning of a language model on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from isocompute.cli import options
from isocompute.cli.study import STOPPED, duration
from isocompute.core.allocation import ignore
from isocompute.core.errors import InputError

if TYPE_CHECKING:
    from isocompute.sweep.train import Trained

_TABLES = ("recipe", "problems", "evaluation", "engine_options")


def command(
    spec: Annotated[
        str | None, typer.Argument(metavar="TRAIN.toml", help="The run's settings (docs/reference/study-toml.md).")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="isocompute-easy, isocompute-hard, grpo, dapo, …")] = None,
    problems: Annotated[str | None, typer.Option(help="chain:easy, gym:TASK, hf:NAME, or a file.")] = None,
    model: Annotated[str | None, typer.Option(help="Checkpoint folder or hub name; a tiny one is built in.")] = None,
    problems_per_batch: Annotated[int | None, typer.Option(min=1, help="Bp; 32 by default.")] = None,
    rollouts_per_problem: Annotated[int | None, typer.Option(min=1, help="n; 16 by default.")] = None,
    update_steps: Annotated[int | None, typer.Option(min=1, help="M; 60 by default.")] = None,
    rollouts: Annotated[float | None, typer.Option(min=1, help="C instead of M, such as 2e6.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of problems, samples and order.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any field: recipe.learning_rate=3e-4. May be repeated.")
    ] = None,
    out: Annotated[str, typer.Option(help="Folder of the run; the same command resumes it.")] = "train",
    json: options.Json = False,
) -> None:
    """Train a model by reinforcement learning, evaluate it during training, and write the run and the weights."""
    import math

    from isocompute.sweep.execute import stops_on_signal
    from isocompute.sweep.train import read_train_spec, train

    if rollouts is not None and not math.isfinite(rollouts):
        raise InputError(f"--rollouts {rollouts}: give a whole number, such as 2e6.")
    given: dict[str, Any] = {
        "problems_per_batch": problems_per_batch,
        "rollouts_per_problem": rollouts_per_problem,
        "update_steps": update_steps,
        "rollouts": None if rollouts is None else round(rollouts),
        "seed": seed,
        "recipe": None if recipe is None else {"name": recipe},
        "problems": None if problems is None else {"source": problems},
        "engine_options": None if model is None else {"model": model},
    }
    overrides = {key: value for key, value in given.items() if value is not None}
    for name, value in options.pairs("--set", set_).items():
        table, dot, field = name.partition(".")
        if not dot or table not in _TABLES:
            raise InputError(f"--set {name}={value}: name a table and its field, such as {_TABLES[0]}.{field or name}.")
        overrides[table] = {**overrides.get(table, {}), field: options.plain_value(value)}
    stopping = False

    def stop() -> bool:
        nonlocal stopping
        if stopping:
            return False
        typer.echo("stopping; Ctrl-C again stops at once", err=True)
        stopping = True
        return True

    with stops_on_signal(stop):
        lines = _Lines()
        result = train(
            read_train_spec(spec, overrides),
            out=out,
            on_point=None if json else lines,
            on_start=ignore if json else lines.header,
            on_progress=ignore if json else lines.progress,
            stopping=lambda: stopping,
        )
        lines.progress.clear()
    if json:
        options.print_json(result_json(result))
    else:
        _show(result)
    if result.diverged is not None:
        text = f"error: {result.diverged}; {result.model} has the last good weights. Lower the learning rate."
        typer.echo(text, err=True)
        raise typer.Exit(1)
    if not result.finished:
        typer.echo("stopped; the same command resumes from here.", err=True)
        raise typer.Exit(STOPPED)


def result_json(result: Trained) -> dict[str, Any]:
    """The keys of `train --json` (docs/reference/make-runs.md)."""
    return {
        "folder": result.folder,
        "model": result.model,
        "points": result.points,
        "finished": result.finished,
        "diverged": result.diverged,
        "ended": result.ended,
        "first": result.first,
        "last": result.last,
    }


def _show(result: Trained) -> None:
    from isocompute.core.formatting import number, plural, value

    metric = next((name for name in result.last if name.startswith("avg@") and "/" not in name), None)
    if metric is not None:
        before, after = result.first[metric], result.last[metric]
        typer.echo(
            f"{metric} {value(before)} → {value(after)} ({after - before:+.3f}) in {number(result.last['rollouts'])} "
            f"rollouts, {plural(result.last['step'], 'update')}, {duration(result.last['seconds'])} of training"
        )
    if result.ended:
        typer.echo(result.ended)
    typer.echo(f"run: {result.folder}" + (f" · weights: {result.model}" if result.model else ""))


class _Lines:
    """Prints a row for every evaluation."""

    def __init__(self) -> None:
        self.started, self.progress = False, options.Progress()

    def header(self, text: str) -> None:
        """Print which rollout engine runs."""
        typer.echo(text, err=True)

    def __call__(self, point: Any) -> None:
        from isocompute.core.formatting import number, value

        self.progress.clear()
        k = next(name.removeprefix("avg@") for name in point if name.startswith("avg@"))
        if not self.started:
            self.started = True
            names = ["update", "rollouts", f"avg@{k}", f"best@{k}", f"worst@{k}", "train", "entropy", "KL"]
            names += ["lr", "rollouts/s", "tokens/s", "seconds"]
            typer.echo("".join(f"{name:>11}" for name in names))
        cells = [str(point["step"]), number(point["rollouts"])]
        cells += [value(point.get(name)) for name in (f"avg@{k}", f"best@{k}", f"worst@{k}", "train/avg")]
        cells += [value(point.get(name)) for name in ("entropy", "kl")]
        cells += [f"{point['learning_rate']:.2g}" if "learning_rate" in point else "–"]
        speeds = [point.get(name) for name in ("rollouts_per_second", "tokens_per_second")]
        cells += ["–" if x is None else number(round(x)) if x >= 10 else f"{x:.1f}" for x in speeds]
        typer.echo("".join(f"{cell:>11}" for cell in [*cells, f"{point['seconds']:.1f}"]))
