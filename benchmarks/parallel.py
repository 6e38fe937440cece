"""How near many sessions at once come to the time that they would take if nothing but they took any.

    python benchmarks/parallel.py [--sessions N] [--seconds S] [--peers DIR]

Sessions that sleep, as one that waits for a model does, in one process (`--codeprobe-jobs 64`), under `-n 16` of pytest-xdist, and next to
coder-eval's `-j 64`. The ideal is ceil(N / at once) waves of one session, and of one grader where there is one. Memory is the largest that
one process came to, and the sum over pytest and its workers.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import threading
from pathlib import Path
from typing import Self

from measure import Cost, environment, machine, peer, pytest_argv, run, scratch, table
from peers import coder_eval

_GRADER = 1.0  #: seconds of the run_command criterion
JOBS, WORKERS = 64, 16


class Memory:
    """Watches the pytest processes below this one while something runs."""

    def __init__(self) -> None:
        self.largest = self.total = 0.0  #: MB
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.2):
            sizes = [size for size in map(_resident, Path("/proc").glob("[0-9]*")) if size]
            self.largest = max([self.largest, *sizes])
            self.total = max(self.total, sum(sizes))


def _resident(process: Path) -> float:
    """MB of a pytest process or an xdist worker of ours; 0 for all others."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        if b"CP_BENCH_PARALLEL=1" not in (process / "environ").read_bytes().split(b"\0"):
            return 0.0
        command = (process / "cmdline").read_bytes()
        if b"pytest\0" not in command and b"sys.stdin.readline" not in command:
            return 0.0
        line = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024
    return 0.0


def project(place: Path, count: int, seconds: float, *, grader: bool) -> None:
    """Tasks whose agent sleeps; the criterion looks at a file, or runs a command that sleeps too."""
    (place / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (place / "tasks").mkdir()
    criterion = f"{{type: run_command, command: sleep {_GRADER:g}}}" if grader else "{type: file_exists, path: hello.txt}"
    for number in range(count):
        (place / "tasks" / f"t{number:04}.yaml").write_text(
            f"task_id: t{number:04}\ninitial_prompt: wait\n"
            f"agent: {{type: command, command: [sh, -c, 'sleep {seconds:g}; echo hello > hello.txt']}}\n"
            f"success_criteria: [{criterion}]\n",
            encoding="utf-8",
        )


def ours(count: int, seconds: float, spread: list[str], *, grader: bool) -> tuple[Cost, Memory]:
    """One run."""
    with scratch() as place, Memory() as memory:
        project(place, count, seconds, grader=grader)
        env = environment(CP_BENCH_PARALLEL="1")
        cost = run(pytest_argv("tasks", "--codeprobe-agent=command", *spread), place, env=env)
    return cost, memory


def main(argv: list[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sessions", type=int, default=100, metavar="N", help="sessions of a run (default: 100)")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="how long one takes (default: 2)")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="folder with coder-eval's virtual environment; see peers.py")
    args = parser.parse_args(argv)
    print(f"{machine()}\n\n{args.sessions} sessions of {args.seconds:g} s; one run of each\n")
    workers = min(WORKERS, args.sessions)
    rows: list[list[str | float | None]] = []
    for name, at_once, spread, grader in (
        (f"jobs {JOBS}, file criterion", JOBS, [f"--codeprobe-jobs={JOBS}"], False),
        (f"jobs {JOBS}, run_command of {_GRADER:g} s", JOBS, [f"--codeprobe-jobs={JOBS}"], True),
        (f"-n {workers}, file criterion", workers, [f"-n{workers}"], False),
    ):
        cost, memory = ours(args.sessions, args.seconds, spread, grader=grader)
        rows.append(row(name, args.sessions, at_once, args.seconds + _GRADER * grader, cost, memory))
    program = peer(args.peers, "coder-eval", "coder-eval")
    if isinstance(program, str):
        rows.append([f"coder-eval 0.12: {program}", *[None] * 6])
    else:
        with scratch() as place:
            cost = coder_eval(program, place, args.sessions, JOBS, args.seconds)
        rows.append(row(f"coder-eval 0.12, -j {JOBS}", args.sessions, JOBS, args.seconds, cost, None))
    print(table(["", "wall s", "ideal s", "ratio", "CPU s", "largest MB", "all MB"], rows))
    return 0


def row(name: str, count: int, at_once: int, each: float, cost: Cost, memory: Memory | None) -> list[str | float | None]:
    """A line of the table."""
    ideal = math.ceil(count / at_once) * each
    sizes = (memory.largest, memory.total) if memory is not None else (None, None)
    return [name, cost.wall / 1000, ideal, cost.wall / 1000 / ideal, cost.cpu / 1000, *sizes]


if __name__ == "__main__":
    sys.exit(main())
