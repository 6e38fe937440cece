"""What grows with the number of trials in one run: memory of pytest, disk of the run dir, time per trial.

    python benchmarks/scale.py [--trials N] [--jobs N]

Trivial trials, next to as many tests that do nothing, whose reports pytest keeps to its end too. Growth is that from a tenth of the run
to its end; the first tenth warms allocators and caches.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from measure import environment, machine, pytest_argv, run, scratch, table

_PLUGIN = """
import json, os, time

EVERY = int(os.environ["CP_BENCH_EVERY"])
seen, samples = 0, []


def pytest_runtest_logfinish():
    global seen
    seen += 1
    if seen % EVERY == 0:
        with open("/proc/self/statm") as file:
            samples.append((seen, int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"), time.monotonic()))


def pytest_unconfigure():
    with open(os.environ["CP_BENCH_OUT"], "w") as file:
        json.dump(samples, file)
"""


def sampled(place: Path, count: int, *arguments: str) -> list[tuple[int, int, float]]:
    """(items so far, bytes of memory, seconds) ten times in a run."""
    out = place / "samples.json"
    (place / "bench_sampler.py").write_text(_PLUGIN, encoding="utf-8")
    env = environment(CP_BENCH_EVERY=str(count // 10), CP_BENCH_OUT=str(out), PYTHONPATH=str(place))
    run(pytest_argv("-p", "bench_sampler", *arguments), place, env=env)
    found: list[tuple[int, int, float]] = json.loads(out.read_text(encoding="utf-8"))
    return found


def disk(folder: Path) -> tuple[int, int]:
    """Bytes of all files, and of the blocks that they take."""
    size = blocks = 0
    for top, folders, names in os.walk(folder):
        for name in (*folders, *names):
            info = Path(top, name).lstat()
            size += info.st_size if name in names else 0
            blocks += info.st_blocks * 512
    return size, blocks


def row(name: str, samples: list[tuple[int, int, float]], bytes_per_trial: tuple[float, float] | None) -> list[str | float | None]:
    """A line of the table."""
    first, last = samples[0], samples[-1]
    growth = (last[1] - first[1]) / (last[0] - first[0]) / 1024
    early = (samples[1][2] - samples[0][2]) / (samples[1][0] - samples[0][0]) * 1000
    late = (samples[-1][2] - samples[-2][2]) / (samples[-1][0] - samples[-2][0]) * 1000
    sizes = [value / 1024 for value in bytes_per_trial] if bytes_per_trial is not None else [None, None]
    return [name, last[1] / (1 << 20), growth, early, late, late / early, *sizes]


def main(argv: list[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=5000, metavar="N", help="trials of a run (default: 5000)")
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="trials at once in the second run (default: 4)")
    args = parser.parse_args(argv)
    count = args.trials
    if count < 20:
        parser.error("--trials: ten samples need at least 20")
    rows: list[list[str | float | None]] = []
    with scratch() as place:
        (place / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        (place / "test_empty.py").write_text("".join(f"def test_{n}():\n    pass\n" for n in range(count)), encoding="utf-8")
        rows.append(row("empty tests", sampled(place, count), None))
    for name, spread in (("trials", []), (f"trials, jobs {args.jobs}", [f"--codeprobe-jobs={args.jobs}"])):
        with scratch() as place:
            (place / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
            (place / "tasks").mkdir()
            for number in range(count):
                (place / "tasks" / f"t{number:05}.yaml").write_text(
                    f"task_id: t{number:05}\ninitial_prompt: say hello\n"
                    "agent: {type: command, command: [sh, -c, echo hello > hello.txt]}\n"
                    "success_criteria: [{type: file_exists, path: hello.txt}]\n",
                    encoding="utf-8",
                )
            samples = sampled(place, count, "tasks", "--codeprobe-agent=command", "--codeprobe-run-dir=run", *spread)
            size, blocks = disk(place / "run")
            rows.append(row(name, samples, (size / count, blocks / count)))
    print(f"{machine()}\n\n{count} in one run\n")
    print(table(["", "MB at end", "KB growth each", "ms early", "ms late", "ratio", "KB on disk each", "in blocks"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
