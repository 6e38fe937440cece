"""Whether many trials at once, for a long time, leave anything behind in pytest's process: threads, files, memory, processes.

    python benchmarks/soak.py [--minutes N] [--jobs N] [--seconds S]

Sessions of S seconds that pass, fail, run commands and hidden tests, leave daemons, or are ended at a limit. Samples are taken in pytest
itself: before the first trial, while they run, and when all are over. Exit 1 if anything is left then, but for the spawners, which
live as long as pytest does.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from measure import environment, machine, pytest_argv, run, scratch, table

_PLUGIN = """
import json, os, threading, time
import pytest

EVERY = float(os.environ["CP_BENCH_EVERY"])
began = last = time.monotonic()
done, samples = 0, []


def children(pid):
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            found += file.read().split()
    return found


def look():
    global last
    last = time.monotonic()
    with open("/proc/self/statm") as file:
        memory = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    spawners, keepers = children(os.getpid()), 0
    for pid in spawners:
        try:
            keepers += len(children(pid))
        except OSError:
            pass  # one of the tools that copy and delete
    counts = len(os.listdir("/proc/self/fd")) - 1, threading.active_count(), len(spawners), keepers
    samples.append((last - began, done, memory, *counts))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop():
    look()
    return (yield)


def pytest_runtest_logfinish():
    global done
    done += 1
    if time.monotonic() - last > EVERY:
        look()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish():
    time.sleep(1)  # the last keepers have said that they are done and are about to end
    look()


def pytest_unconfigure():
    with open(os.environ["CP_BENCH_OUT"], "w") as file:
        json.dump(samples, file)
"""
_HIDDEN = "import pathlib\n\n\ndef test_it():\n    assert pathlib.Path('out.txt').exists()\n"
_WORK = "echo x > out.txt"
_COMMANDS = "pre_run: [{command: 'true'}]\npost_run: [{command: 'true'}]\n"


def _task(session: str, criterion: str = "{type: file_exists, path: out.txt}", more: str = "") -> str:
    """What follows `task_id` and `initial_prompt`; SLEEP and LIMIT are a session's time."""
    return f"agent: {{type: command, command: [sh, -c, '{session}']}}\nsuccess_criteria: [{criterion}]\n{more}"


_KINDS = (
    *[_task(f"SLEEP; {_WORK}")] * 4,
    _task(f"SLEEP; {_WORK}", "{type: run_command, command: test -e out.txt}", _COMMANDS),
    _task(f"SLEEP; {_WORK}", "{type: pytest, paths: [hidden]}"),
    _task("SLEEP"),
    _task(f"SLEEP; sleep 600 & {_WORK}"),
    _task("SLEEP; kill -9 $$"),
    _task(f"{_WORK}; sleep 600", more="run_limits: {task_timeout: LIMIT}\n"),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """What there was at one moment."""

    seconds: float
    done: int
    memory: int  #: bytes
    files: int
    threads: int
    spawners: int
    keepers: int


def project(place: Path, count: int, seconds: float) -> None:
    """So many tasks, a hundred in each file."""
    (place / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (place / "soak_sampler.py").write_text(_PLUGIN, encoding="utf-8")
    (place / "tasks/hidden").mkdir(parents=True)
    (place / "tasks/hidden/test_hidden.py").write_text(_HIDDEN, encoding="utf-8")
    for first in range(0, count, 100):
        documents = [
            f"task_id: t{number:06}\ninitial_prompt: soak\n{_KINDS[number % len(_KINDS)]}"
            for number in range(first, min(first + 100, count))
        ]
        text = "---\n".join(documents).replace("SLEEP", f"sleep {seconds:g}").replace("LIMIT", f"{seconds:g}")
        (place / f"tasks/t{first:06}.yaml").write_text(text, encoding="utf-8")


def soak(count: int, jobs: int, seconds: float, every: float) -> list[Sample]:
    """One run, and what was there meanwhile."""
    with scratch() as place:
        project(place, count, seconds)
        out = place / "samples.json"
        env = environment(CP_BENCH_EVERY=f"{every:g}", CP_BENCH_OUT=str(out), PYTHONPATH=str(place))
        arguments = ("-p", "soak_sampler", "tasks", "--codeprobe-agent=command", f"--codeprobe-jobs={jobs}")
        run(pytest_argv(*arguments), place, env=env, allowed=(1,))
        return [Sample(*values) for values in json.loads(out.read_text(encoding="utf-8"))]


def verdict(samples: list[Sample]) -> tuple[bool, str]:
    """Whether all is as it was, and a sentence that says so."""
    before, after = samples[0], samples[-1]
    links = after.spawners - before.spawners  # each has one socket to pytest
    left = {
        "threads": after.threads - before.threads,
        "files": after.files - before.files - links,
        "keepers": after.keepers - before.keepers,
    }
    early = next(s for s in samples if s.done >= after.done / 10)
    growth = (after.memory - early.memory) / max(1, after.done - early.done) / 1024
    said = ", ".join(f"{number:+d} {name}" for name, number in left.items())
    return not any(left.values()), f"left at the end: {said}; memory grew by {growth:.2f} KB a trial since a tenth of them was over"


def main(argv: list[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N", help="how long it would take at best (default: 10)")
    parser.add_argument("--jobs", type=int, default=64, metavar="N", help="trials at once (default: 64)")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="how long a session takes (default: 2)")
    args = parser.parse_args(argv)
    count = max(1, int(args.minutes * 60 / args.seconds)) * args.jobs
    samples = soak(count, args.jobs, args.seconds, args.minutes * 3)
    rows: list[list[str | float | None]] = [
        [f"{s.seconds:.0f} s", str(s.done), s.memory / (1 << 20), *map(str, (s.files, s.threads, s.spawners, s.keepers))] for s in samples
    ]
    print(f"{machine()}\n\n{count} trials, {args.jobs} at once, of {args.seconds:g} s each\n")
    print(table(["", "trials", "MB", "open files", "threads", "child processes", "keepers"], rows))
    clean, said = verdict(samples)
    print(f"\n{said}")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
