"""Small logs in every trainer's format, written here: what the formats' sources print, with made-up numbers."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

TASK = "\x1b[36m(TaskRunner pid=4242)\x1b[0m "
WORKER = "\x1b[36m(WorkerDict pid=4300, ip=10.0.0.3)\x1b[0m "


def reward(step: int) -> float:
    return round(0.2 + 0.5 * step / (step + 5), 6)


def verl_pairs(step: int, *, validated: bool = False) -> dict[str, Any]:
    """The keys of veRL 0.9."""
    pairs: dict[str, Any] = {
        "actor/entropy": 0.9 / step if step else 0.9,
        "actor/kl_loss": 0.001 * step,
        "actor/ppo_kl": 0.0,
        "actor/pg_loss": -1.5e-08,
        "actor/grad_norm": 0.75,
        "actor/lr": 1e-06,
        "critic/score/mean": reward(step),
        "critic/rewards/mean": reward(step) - 0.01,
        "response_length/mean": 512.25,
        "response_length/clip_ratio": 0.0625,
        "timing_s/step": 30.5,
        "perf/total_num_tokens": 40960,
        "training/global_step": step,
    }
    if validated:
        pairs |= {
            "val-core/openai/gsm8k/acc/mean@4": reward(step) + 0.1,
            "val-core/openai/gsm8k/acc/best@4/mean": reward(step) + 0.2,
            "val-aux/openai/gsm8k/acc/worst@4/mean": reward(step) - 0.1,
            "val-aux/openai/gsm8k/acc/best@2/mean": reward(step) + 0.15,
            "val-aux/openai/gsm8k/reward/mean@4": reward(step),
        }
    return pairs


def verl_line(step: int, pairs: dict[str, Any]) -> str:
    return " - ".join([f"step:{step}", *(f"{k}:{v}" for k, v in pairs.items())])


VERL_CONFIG = """\
{'actor_rollout_ref': {'actor': {'entropy_coeff': 0.001,
                                 'kl_loss_coef': 0.01,
                                 'optim': {'lr': 2e-06,
                                           'warmup_style': 'constant'},
                                 'ppo_mini_batch_size': 16,
                                 'use_kl_loss': True},
                       'model': {'override_config': {},
                                 'path': 'Qwen/Qwen2.5-7B'},
                       'rollout': {'n': 8,
                                   'temperature': 0.6,
                                   'val_kwargs': {'do_sample': True, 'n': 4}}},
 'data': {'max_response_length': 1024,
          'train_batch_size': 16,
          'train_files': '/data/gsm8k/train.parquet'},
 'trainer': {'n_gpus_per_node': 4,
             'nnodes': 2,
             'total_training_steps': None}}"""


def verl(steps: Iterable[int] = range(1, 11), *, every: int = 5, config: bool = True) -> str:
    """A console log with Ray's prefixes and foreign lines."""
    lines = ["2026-01-05 10:00:00,123\tINFO worker.py:2003 -- Started a local Ray instance."]
    if config:
        for i, line in enumerate(VERL_CONFIG.splitlines()):
            lines.append(TASK + line)
            if i % 4 == 1:
                lines.append(WORKER + "kwargs: {'n': 1, 'logprobs': 0}")
        lines.append(TASK + "Total training steps: 200")
    for step in steps:
        lines.append(f"\rTraining Progress:  {step}%|█         | {step}/200 [00:30<1:30:00, 30.1s/it]")
        lines.append(WORKER + "The answer is step: 3 - no, x: 4")
        lines.append(TASK + verl_line(step, verl_pairs(step, validated=step % every == 0)))
    return "\n".join(lines) + "\n"


def verl_2024(steps: Iterable[int] = range(10), *, logged: bool = True) -> str:
    """Updates counted from 0 and logged at their end, under the number they began with, as is a validation then.

    The base model's is printed; `logged`: also logged, as it is since 12/2024.
    """
    base = f"{reward(0):.3f}"
    lines = [f"(main_task pid=7) \"Initial validation metrics: {{'test_score/openai/gsm8k': {base}}}\""]
    lines += [f"(main_task pid=7) step:0 - test_score/openai/gsm8k:{base}"] if logged else []
    for step in steps:
        validated = f" - val/test_score/openai/gsm8k:{reward(step + 1):.3f}" if (step + 1) % 5 == 0 else ""
        lines.append(
            f"(main_task pid=7) step:{step} - timing/gen:18.859 - actor/entropy_loss:0.526 - actor/lr(1e-4):0.010 - "
            f"critic/score/mean:{reward(step + 1):.3f} - critic/kl:-0.000 - response_length/mean:313.824{validated}"
        )
    return "\n".join(lines) + "\n"


def verl_file(steps: Iterable[int] = range(1, 11)) -> str:
    rows = ({"step": s, "data": verl_pairs(s, validated=s % 5 == 0)} for s in steps)
    return "".join(json.dumps(row) + "\n" for row in rows)


def verl_rollouts(step: int, *, problems: int = 4, samples: int = 4, ids: bool = False) -> str:
    lines = []
    for problem in range(problems):
        for sample in range(samples):
            row: dict[str, Any] = {
                "input": f"user\nWhat is {problem} + 1?\nassistant\n",
                "output": f"It is {problem + sample}.",
                "gts": str(problem + 1),
                "score": 1.0 if sample < min(problem, 2) + step else 0.0,
                "step": step,
            }
            lines.append(json.dumps(row | ({"index": 100 + problem} if ids else {})))
    return "\n".join(lines) + "\n"


def trl_row(step: int, *, new: bool = True) -> dict[str, Any]:
    row: dict[str, Any] = {"loss": 0.001 * step, "grad_norm": 0.25, "learning_rate": 1e-06}
    if new:
        row |= {
            "num_tokens": 9000.0 * step,
            "completions/mean_length": 200.5,
            "completions/clipped_ratio": 0.125,
            "rewards/accuracy/mean": reward(step),
            "frac_reward_zero_std": 0.25,
            "entropy": 0.5,
        }
    else:
        row |= {"completion_length": 200.5, "rewards/accuracy": reward(step)}
    return row | {"reward": reward(step), "reward_std": 0.3, "kl": 0.002, "epoch": round(step / 100, 4)}


def trl_state(steps: Iterable[int] = range(5, 55, 5), *, new: bool = True) -> str:
    history: list[dict[str, Any]] = []
    for step in steps:
        history.append({**trl_row(step, new=new), "step": step})
        if step % 25 == 0:
            history.append(
                {"eval_reward": reward(step) + 0.05, "eval_runtime": 30.0, "epoch": step / 100, "step": step}
            )
    history.append({"train_runtime": 100.0, "train_loss": 0.1, "step": 50, "epoch": 0.5})
    state = {"best_metric": None, "epoch": 0.5, "global_step": 50, "log_history": history, "max_steps": 50}
    return json.dumps(state, indent=2)


def trl_console(
    steps: Iterable[int] = range(5, 55, 5), *, quoted: bool = False, bars: str = "in turn", new: bool = True
) -> str:
    """Dicts between progress bars; `bars` is `in turn`, `apart` (all before the dicts) or `none`."""
    steps = list(steps)
    out = ["***** Running training *****", "  Num examples = 1,000", "  Total optimization steps = 50"]
    if bars == "apart":
        out.append("".join(f"\r {2 * s}%|█    | {s}/50 [00:{s:02d}<01:00, 1.20s/it]" for s in range(51)))
    for step in steps:
        if bars == "in turn":
            out.append(
                "".join(f"\r {2 * s}%|█    | {s}/50 [00:{s:02d}<01:00, 1.20s/it]" for s in range(step - 4, step + 1))
            )
        row = trl_row(step, new=new)
        out.append(str({k: f"{v:.4g}" for k, v in row.items()} if quoted else row))
        if step == 25:
            out.append(str({"eval_reward": 0.5, "eval_runtime": 3.0, "epoch": 0.25}))
    out.append(str({"train_runtime": 100.0, "train_loss": 0.1, "reward": 0.1, "epoch": 0.5}))
    return "\n".join(out) + "\n"


def prime_rl(steps: Iterable[int] = range(1, 11)) -> str:
    out = []
    for step in steps:
        agg = "train/agg/effective/agent"
        out.append(
            {
                "step": step,
                "time": 1.7e9 + step,
                f"{agg}/reward/mean": reward(step),
                "train/agg/effective/num_output_tokens/mean": 300.0,
                f"{agg}/is_truncated/mean": 0.05,
                "train/agg/all/agent/solved_none": 0.25,
                "train/agg/all/agent/solved_all": 0.125,
                "progress/rollouts": 128,
                "progress/total_tokens": 50_000 * step,
                "time/step": 12.0,
            }
        )
        out.append({"step": step, "time": 1.7e9 + step, "entropy/all/mean": 0.4, "mismatch_kl/all/mean": 0.002})
        out.append({"step": step, "time": 1.7e9 + step, "optim/lr": 3e-6, "optim/grad_norm": 0.5})
        out.append(
            {"step": step, "time": 1.7e9 + step, "time/step": 11.0, "time/wait_for_batch": 3.0, "time/load_data": 0.1}
        )
        if step % 5 == 0:
            at = "eval/gsm8k/effective/agent"
            out.append({"step": step, f"{at}/avg@4": 0.5, f"{at}/pass@4": 0.7, f"{at}/pass^4": 0.2})
    return "".join(json.dumps(row) + "\n" for row in out)


def tinker(steps: Iterable[int] = range(10)) -> str:
    out = []
    for step in steps:
        row = {"step": step, "progress/batch": step, "optim/lr": 4e-05, "env/all/reward/total": reward(step)}
        row |= {"env/all/by_group/frac_mixed": 0.75, "optim/entropy": 0.4, "time/total": 200.0}
        if step % 5 == 0:
            row["test/env/all/reward/total"] = reward(step) + 0.1
        out.append(json.dumps(row) + "\n")
    return "".join(out)


def openrlhf(steps: Iterable[int] = range(1, 11)) -> str:
    out = [
        "Namespace(actor_learning_rate=5e-07, rollout_batch_size=64, n_samples_per_prompt=8, pretrain='Qwen/Qwen3-4B')"
    ]
    for step in steps:
        row = {
            "policy_loss": -0.01,
            "entropy_loss": 0.3,
            "kl": 0.01,
            "actor_lr": 5e-07,
            "rollout/reward_mean": reward(step),
        }
        row |= {
            "rollout/response_length_mean": 700.5,
            "rollout/truncated_rate": 0.02,
            "dynamic_filtering_pass_rate": 75.0,
        }
        out.append(f"(PPOTrainer pid=88) INFO 01-05 10:00:{step:02d} ppo_trainer.py:547] ✨ Global step {step}: {row}")
        if step % 5 == 0:
            metrics = {"eval_aime_pass4": 0.4, "eval_aime_pass1": 0.2, "eval_num_samples": 120.0}
            out.append(
                f"(PPOTrainer pid=88) ✨ Evaluation completed in 0:01:02, global_step {step}, eval_metrics: {metrics}"
            )
    return "\n".join(out) + "\n"


def skyrl(steps: Iterable[int] = range(1, 11)) -> str:
    out = ["trainer:", "  train_batch_size: 128", "generator:", "  n_samples_per_prompt: 5"]
    prefix = "\x1b[36m(skyrl_entrypoint pid=99)\x1b[0m "
    for step in steps:
        out.append(f"{prefix}2026-01-05 10:00:00.000 | INFO     | skyrl.train.utils.tracking:log:188 - Step {step}: ")
        out.append(f"{prefix}{{'generate/avg_num_tokens': '300.5000',")
        if step % 5 == 0:
            out.append(f"{prefix} 'eval/all/avg_score': '0.5000',")
            out.append(f"{prefix} 'eval/all/pass_at_4': '0.7000',")
        out.append(WORKER + "something else")
        out.append(f"{prefix} 'policy/policy_entropy': '0.4000',")
        out.append(f"{prefix} 'reward/avg_raw_reward': '{reward(step):.4f}',")
        out.append(f"{prefix} 'trainer/global_step': {step}}}")
    return "\n".join(out) + "\n"


def nemo_rl(steps: Iterable[int] = range(1, 11)) -> str:
    out = ["Final config:", "{'grpo': {'max_num_steps': 100,", "          'num_generations_per_prompt': 16,"]
    out += ["          'num_prompts_per_step': 32},", " 'policy': {'model_name': 'Qwen/Qwen2.5-1.5B'}}"]
    out += ["▶ Starting validation at step 0...", "", "📊 Validation Results:", "    • Accuracy: 0.1000"]
    out.append("========================= Epoch 1/1 =========================")
    for step in steps:
        out.append(f"\n========================= Step {step}/100 =========================")
        out.append("▶ Generating responses for batch of size 512...")
        if step % 5 == 0:
            out += [f"▶ Starting validation at step {step}...", "📊 Validation Results:", "    • Accuracy: 0.5000"]
            out += ["    • Average response length: 200.0 tokens", "  ⏱️  Validation Timing:"]
        out += ["📊 Training Results:", "  • Loss: 0.0012", "  • Generation KL Error: 0.0010"]
        out += [f"  • Avg Reward: {reward(step):.4f}", "  • Mean Generation Length: 210.5000", "⏱️  Timing:"]
        out += ["  • Total step time: 30.50s", "  • policy_training: 10.00s (32.8%)"]
    return "\n".join(out) + "\n"


def pipelinerl(steps: Iterable[int] = range(1, 11)) -> str:
    out = []
    for step in steps:
        row = {"stats/lr": "1.000e-06", "stats/grad_norm": "0.300", "stats/tokens": f"{1000 * step}.000"}
        row |= {"rl/reward": f"{reward(step):.3f}", "rl/entropy": "0.250", "rl/kl": "3.000e-04", "loss": "nan"}
        out.append(f"[2026-01-05 10:00:00,000][pipelinerl.finetune][INFO] - Completed steps {step}: {row}")
    return "\n".join(out) + "\n"


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _field(number: int, value: int | bytes | float) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 1) + struct.pack("<d", value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _crc(data: bytes) -> bytes:
    """The masked CRC-32C of a TFRecord."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def tensorboard(steps: Iterable[int] = range(1, 11), *, monitor: Iterable[int] = ()) -> bytes:
    """`monitor`: seconds at which NeMo-RL's monitor of the GPUs writes."""

    def frame(event: bytes) -> bytes:
        length = struct.pack("<Q", len(event))
        return length + _crc(length) + event + _crc(event)

    out = frame(_field(1, 1.7e9) + _field(3, b"brain.Event:2"))
    scalars = [
        (step, tag, value)
        for step in steps
        for tag, value in (("train/reward", reward(step)), ("validation/accuracy", 0.5), ("train/grad_norm", 0.25))
    ]
    scalars += [(at, tag, 50.0) for at in monitor for tag in ("ray/node.0.gpu.0.util", "ray/ray/ray_step")]
    for step, tag, value in scalars:
        inner = _field(1, tag.encode()) + _varint(2 << 3 | 5) + struct.pack("<f", value)
        out += frame(_field(1, 1.7e9 + step) + _field(2, step) + _field(5, _field(1, inner)))
    return out


def wandb(steps: Iterable[int] = range(1, 11)) -> bytes:
    def item(key: str, value: Any) -> bytes:
        return _field(1, key.encode()) + _field(16, json.dumps(value).encode())

    config = _field(1, item("data", {"train_batch_size": 64})) + _field(
        1, item("actor_rollout_ref", {"rollout": {"n": 16}})
    )
    records = [_field(1, 1) + _field(17, _field(1, b"abc123") + _field(4, config) + _field(8, b"brisk-sun-7"))]
    for step in steps:
        items = b"".join(_field(1, item(k, v)) for k, v in verl_pairs(step, validated=step % 5 == 0).items())
        records.append(_field(1, step + 1) + _field(2, items + _field(2, _field(1, step - 1))))
    out = bytearray(b":W&B\xe1\xbe\x00")
    for record in records:
        rest, first = record, True
        while rest or first:
            room = 32768 - len(out) % 32768
            if room < 7:
                out += b"\0" * room
                room = 32768
            piece, rest = rest[: room - 7], rest[room - 7 :]
            kind = (1 if not rest else 2) if first else (4 if not rest else 3)
            out += b"\0\0\0\0" + struct.pack("<HB", len(piece), kind) + piece
            first = False
    return bytes(out)


def trackio(steps: Iterable[int] = range(1, 11)) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "project.db"
        base = sqlite3.connect(path)
        shared = "id INTEGER PRIMARY KEY, run_id TEXT, run_name TEXT"
        base.execute(f"CREATE TABLE metrics ({shared}, timestamp TEXT, step INTEGER, metrics TEXT)")
        base.execute(f"CREATE TABLE configs ({shared}, config TEXT, created_at TEXT)")
        for run in ("a", "b"):
            for step in steps:
                row = {"train/reward": reward(step), "train/global_step": 10 * step, "train/loss": "NaN"}
                values = (run, step - 1, json.dumps(row))
                base.execute("INSERT INTO metrics (run_name, step, metrics) VALUES (?, ?, ?)", values)
        args = {"num_generations": 8, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 4}
        args |= {"generation_batch_size": 128, "steps_per_generation": 4, "learning_rate": 1e-6}
        base.execute("INSERT INTO configs (run_name, config) VALUES ('a', ?)", (json.dumps(args),))
        base.commit()
        base.close()
        return path.read_bytes()


def table(header: list[str], rows: Iterable[Iterable[Any]], separator: str = ",") -> str:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=separator, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def long_csv() -> str:
    rows: list[tuple[str, str, int, float]] = []
    for run in ("a", "b"):
        rows += [(run, "eval/reward", s, reward(s)) for s in range(0, 20, 5)]
        rows += [(run, "train/grad_norm", s, 0.5) for s in range(20)]
    return table(["run_name", "metric", "step", "value"], rows)


def tracker_csv() -> str:
    header = ["Step", "one - eval/reward", "one - eval/reward__MIN", "one - eval/reward__MAX", "two - eval/reward"]
    return table(header, [[s, reward(s), 0, 1, "" if s % 2 else reward(s)] for s in range(10)])


MAKERS: dict[str, Callable[[], str | bytes]] = {
    "verl": verl,
    "verl-2024": verl_2024,
    "verl-file": verl_file,
    "verl-rollouts": lambda: verl_rollouts(1),
    "trl": trl_state,
    "trl-console": trl_console,
    "prime-rl": prime_rl,
    "tinker": tinker,
    "openrlhf": openrlhf,
    "skyrl": skyrl,
    "nemo-rl": nemo_rl,
    "pipelinerl": pipelinerl,
    "tensorboard": tensorboard,
    "wandb": wandb,
    "trackio": trackio,
    "long-csv": long_csv,
    "tracker-csv": tracker_csv,
}


def corpus() -> dict[str, bytes]:
    """One log of each format, as bytes."""
    made = {name: make() for name, make in MAKERS.items()}
    return {name: data.encode() if isinstance(data, str) else data for name, data in made.items()}
