"""Import mutated logs: nothing but `InputError`, no hang, no memory beyond three times the file and a constant.

    python benchmarks/import_fuzz.py [--files 100000] [--seed 0] [--seconds 20]

Every file is one of the small logs that the tests write, mutated a few times: cut, bytes flipped, pieces repeated, two
formats spliced, numbers and brackets blown up, huge lines, bytes that are no UTF-8, other encodings. It is imported in
this process under an alarm, and written out as run folders; `tracemalloc` measures every hundredth one. The seed of
a file is its number, so any of them can be made again. Prints one JSON object; exits with 1 if anything went wrong.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import tracemalloc
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from isocompute.core.errors import InputError
from isocompute.data.importing import import_logs, write_runs
from tests.data.made_up import corpus

CONSTANT = 16 << 20
JUNK = (
    *(b"{" * 500, b"[" * 3000, b"(" * 200, b"'" * 99, b'"', b"\x00" * 50, b"\xff\xfe\xfd", b",,,,,", b"\n", b"\r"),
    *(
        b"nan",
        b"1e999",
        b"-1e400",
        b"9" * 400,
        b"step:99999999999999999999 - a:1",
        b"step:5 - ",
        b"step:",
        b" - ",
        b": ",
    ),
    *(b"{'loss': ", b'{"step": 1, "data": ', b'"log_history": [', b"Step 3: {", b"np.float64(", b"\x1b[36m"),
    *(b"\xe2\x80\xa2 Avg Reward: 1", b"PAR1", b"\x1f\x8b", b"SQLite format 3\x00"),
)


WAYS = ("cut", "flip", "flip", "lose", "repeat", "splice", "splice", "junk", "junk", "ends", "noise", "long", "recode")


def _flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 30)):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)


def _splice(data: bytearray, at: int, rng: random.Random, logs: dict[str, bytes]) -> None:
    other = logs[rng.choice(sorted(logs))]
    cut = rng.randrange(len(other))
    data[at:at] = other[cut : cut + rng.randrange(4000)]


def _recoded(data: bytearray, rng: random.Random) -> bytearray:
    way = rng.choice(("utf-16", "utf-16-le", "utf-8-sig", "gzip", "folded"))
    if way == "gzip":
        return bytearray(gzip.compress(bytes(data), 1))
    if way == "folded":
        width = rng.randrange(10, 200)
        return bytearray(b"\n".join(bytes(data[i : i + width]) for i in range(0, len(data), width)))
    return bytearray(bytes(data).decode("utf-8", "replace").encode(way))


def mutated(rng: random.Random, logs: dict[str, bytes]) -> bytes:
    """One log after a few mutations."""
    data = bytearray(logs[rng.choice(sorted(logs))])
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data) + 1)
        to = min(len(data), at + int(rng.expovariate(1 / 200)))
        way = rng.choice(WAYS)
        if way == "cut":
            del data[at:]
        elif way == "flip":
            _flip(data, rng)
        elif way == "lose":
            del data[at:to]
        elif way == "repeat":
            data[at:at] = data[at:to] * rng.randrange(1, 30)
        elif way == "splice":
            _splice(data, at, rng, logs)
        elif way == "junk":
            data[at:at] = rng.choice(JUNK) * rng.choice((1, 1, 1, 5, 40))
        elif way == "ends":
            data = data.replace(b"\n", rng.choice((b"", b"\r\n", b"\r", b"\n\n", b" ")))
        elif way == "noise":
            data[at:at] = rng.randbytes(rng.randrange(300))
        elif way == "long":
            data[at:at] = bytes([rng.randrange(32, 127)]) * rng.randrange(100_000)
        elif rng.random() < 0.5:
            data = _recoded(data, rng)
        del data[400_000:]
    return bytes(data)


class HangError(Exception):
    """A file took too long."""


def _alarm(*_: object) -> None:
    raise HangError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=20, help="a file that takes longer counts as a hang")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _alarm)
    logs = corpus()
    counts: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    largest, slowest = 0.0, 0.0
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "some.log"
        for number in range(arguments.seed, arguments.seed + arguments.files):
            data = mutated(random.Random(number), logs)
            path.write_bytes(data)
            measured = number % 100 == 0
            if measured:
                tracemalloc.start()
            start = time.perf_counter()
            signal.alarm(arguments.seconds)
            try:
                imports = import_logs(path)
                if number % 10 == 0:
                    write_runs(imports, Path(folder) / "runs")
                counts[imports[0].format] += 1
            except InputError:
                counts["refused"] += 1
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                failures.append(
                    {"file": number, "error": repr(error)[:200], "where": traceback.format_exc().splitlines()[-4:]}
                )
            finally:
                signal.alarm(0)
            slowest = max(slowest, time.perf_counter() - start)
            if measured:
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                largest = max(largest, (peak - CONSTANT) / max(1, len(data)))
                if peak > 3 * len(data) + CONSTANT:
                    failures.append({"file": number, "error": f"{peak} bytes for a file of {len(data)}"})
            if len(failures) >= 20:
                break
    print(
        json.dumps(
            {
                "files": number + 1 - arguments.seed,
                "failures": failures,
                "outcomes": dict(counts.most_common()),
                "slowest_seconds": round(slowest, 2),
                "memory_beyond_constant_per_file_byte": round(largest, 2),
                "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
                "seconds": round(time.perf_counter() - began, 1),
            },
            indent=1,
        )
    )
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
