"""What grows with the number of trials in one run: memory of pytest, disk of the run dir, time per trial.

    python benchmarks/scale.py [--trials N] [--jobs N]

Trivial trials, next to as many tests that do nothing, whose reports pytest keeps to its end too. Growth is that from a tenth of the run
to its end; the first tenth warms allocators and caches. Then what each step costs per row of one dataset, with a tenth of the
rows and with all.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
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

_WORK = "agent: {type: command, command: [sh, -c, echo hello > hello.txt]}\nsuccess_criteria: [{type: file_exists, path: hello.txt}]\n"
_RUN = ("--codeprobe-agent=command", "--codeprobe-run-dir=run")


def sampled(place: Path, count: int, *arguments: str) -> list[tuple[int, int, float]]:
    """(items so far, bytes of memory, seconds) ten times in a run."""
    out = place / "samples.json"
    (place / "bench_sampler.py").write_text(_PLUGIN, encoding="utf-8")
    path = os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = environment(CP_BENCH_EVERY=str(count // 10), CP_BENCH_OUT=str(out), PYTHONPATH=path)
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


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


def row(name: str, samples: list[tuple[int, int, float]], bytes_per_trial: tuple[float, float] | None) -> list[str | float | None]:
    """A line of the table."""
    first, last = samples[0], samples[-1]
    growth = (last[1] - first[1]) / (last[0] - first[0]) / 1024
    early = (samples[1][2] - samples[0][2]) / (samples[1][0] - samples[0][0]) * 1000
    late = (samples[-1][2] - samples[-2][2]) / (samples[-1][0] - samples[-2][0]) * 1000
    sizes = [value / 1024 for value in bytes_per_trial] if bytes_per_trial is not None else [None, None]
    return [name, last[1] / (1 << 20), growth, early, late, late / early, *sizes]


def task_files(place: Path, count: int) -> None:
    """As many tasks as trials."""
    for number in range(count):
        _write(place / "tasks" / f"t{number:05}.yaml", f"task_id: t{number:05}\ninitial_prompt: say hello\n{_WORK}")


def dataset(place: Path, count: int) -> None:
    """One task with a row for each trial."""
    _write(place / "tasks" / "rows.jsonl", "".join(f'{{"id": "r{number:05}", "who": "number {number}"}}\n' for number in range(count)))
    _write(
        place / "tasks" / "rows.yaml", "task_id: rows\ninitial_prompt: say hello to ${row.who}\ndataset: {paths: [rows.jsonl]}\n" + _WORK
    )


def trials(name: str, lay_out: Callable[[Path, int], None], count: int, *arguments: str) -> list[str | float | None]:
    """A line of the first table: a run of its own."""
    with scratch() as place:
        _write(place / "pytest.ini", "[pytest]\n")
        lay_out(place, count)
        samples = sampled(place, count, "tasks", *arguments, *_RUN)
        size, blocks = disk(place / "run")
    return row(name, samples, (size / count, blocks / count))


def steps(count: int) -> dict[str, float]:
    """Processor milliseconds per row of what is done with a dataset, less what each costs with one row."""
    with scratch() as one, scratch() as many:
        for place, rows in ((one, 1), (many, count)):
            _write(place / "pytest.ini", "[pytest]\n")
            dataset(place, rows)
        work: dict[str, Sequence[str | Path]] = {
            "collect": pytest_argv("tasks", "--collect-only", "-q"),
            "run, jobs 4": pytest_argv("tasks", *_RUN, "--codeprobe-jobs=4"),
            "resume, all kept": pytest_argv("tasks", *_RUN, "--codeprobe-resume"),
            "regrade, jobs 4": [Path(sys.executable).with_name("codeprobe"), "regrade", "run", "--run-dir=again", "-j", "4"],
        }
        cost: dict[str, float] = {}
        for name, argv in work.items():
            small, large = (run(argv, place, env=environment()).cpu for place in (one, many))
            cost[name] = (large - small) / (count - 1)
    return cost


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
        _write(place / "pytest.ini", "[pytest]\n")
        _write(place / "test_empty.py", "".join(f"def test_{n}():\n    pass\n" for n in range(count)))
        rows.append(row("empty tests", sampled(place, count), None))
    spread = f"--codeprobe-jobs={args.jobs}"
    rows.append(trials("tasks", task_files, count))
    rows.append(trials(f"tasks, jobs {args.jobs}", task_files, count, spread))
    rows.append(trials("rows of one dataset", dataset, count))
    rows.append(trials(f"rows of one dataset, jobs {args.jobs}", dataset, count, spread))
    few, many = steps(count // 10), steps(count)
    print(f"{machine()}\n\n{count} in one run\n")
    print(table(["", "MB at end", "KB growth each", "ms early", "ms late", "ratio", "KB on disk each", "in blocks"], rows))
    print(f"\none dataset of {count // 10} and of {count} rows\n")
    print(
        table(
            ["", f"CPU ms a row of {count // 10}", f"of {count}", "ratio"],
            [[name, few[name], many[name], many[name] / few[name]] for name in few],
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
