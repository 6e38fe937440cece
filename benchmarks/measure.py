"""What all benchmarks share: the cost of a process with all its children, tables, a scratch folder, the peers.

    python benchmarks/measure.py

prints the machine and the versions, for a report.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

TMPFS = Path("/dev/shm")
#: nothing of the pytest that somebody may run this from
_OURS = ("PYTEST_", "CODEPROBE_", "_CODEPROBE_", "COV_")


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds of a piece of work: on the clock, and of processors (user and system, all waited-for children included)."""

    wall: float
    cpu: float

    def __sub__(self, other: Cost) -> Cost:
        """What is left when the other is taken off."""
        return Cost(self.wall - other.wall, self.cpu - other.cpu)

    def __truediv__(self, number: float) -> Cost:
        """The share of one of so many."""
        return Cost(self.wall / number, self.cpu / number)


def median(costs: Sequence[Cost]) -> Cost:
    """The median of each figure by itself: a busy machine makes outliers."""
    return Cost(statistics.median(c.wall for c in costs), statistics.median(c.cpu for c in costs))


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards; on tmpfs where there is one, since the disk is not what is measured."""
    with tempfile.TemporaryDirectory(prefix="codeprobe-bench-", dir=TMPFS if TMPFS.is_dir() else None) as folder:
        yield Path(folder)


def environment(**extra: str) -> dict[str, str]:
    """Our own environment without what is about a pytest or a trial around us, temporary files on tmpfs.

    Python keeps the bytecode of what it imports, as that of an installed package is kept.
    """
    kept = {n: v for n, v in os.environ.items() if not n.startswith(_OURS) and n != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **({"TMPDIR": str(TMPFS)} if TMPFS.is_dir() else {}), **extra}


def run(
    argv: Sequence[str | Path],
    cwd: Path,
    *,
    env: Mapping[str, str] | None = None,
    allowed: Sequence[int] = (0,),
    output: Path | None = None,
) -> Cost:
    """Run a program to its end. RuntimeError with its last words where its exit status is none of `allowed`.

    `output`: a file that gets its standard output and error; else they are shown only in that error. Children count once their
    parent has waited for them: whoever leaves some behind looks cheaper than it is.
    """
    with tempfile.TemporaryFile() as out:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        done = subprocess.run(
            [str(part) for part in argv], cwd=cwd, env=env or environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False
        )
        wall = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        out.seek(0)
        said = out.read()
    if output is not None:
        output.write_bytes(said)
    if done.returncode not in allowed:
        raise RuntimeError(f"{argv[0]} ended with status {done.returncode}:\n{said.decode(errors='replace')[-2000:]}")
    return Cost(wall * 1000, (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1000)


def pytest_argv(*arguments: str | Path) -> list[str]:
    """This Python's pytest."""
    return [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", "-q", *map(str, arguments)]


def per_item(work: Callable[[int], Cost], count: int, rounds: int) -> tuple[Cost, Cost]:
    """What one of `count` items costs, (cost of all − cost of one) / (count − 1), and what a run with one costs.

    `work(number)` does it with so many items. Turn by turn, medians; a first turn only warms caches, with 0 rounds it is the only one.
    """
    one, many = [], []
    for turn in range(rounds + 1):
        pair = work(1), work(count)
        if turn or not rounds:
            one.append(pair[0])
            many.append(pair[1])
    single = median(one)
    return (median(many) - single) / (count - 1), single


def table(head: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> str:
    """Rows of text: the first column to the left, the others to the right; numbers with up to two places, None as a dash."""
    cells = [list(head), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = [
        "  ".join(text.ljust(w) if i == 0 else text.rjust(w) for i, (text, w) in enumerate(zip(row, widths, strict=True))) for row in cells
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _cell(value: str | float | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"


def machine() -> str:
    """One line: when, on what, with which versions."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pytest-codeprobe", "pytest", "pytest-xdist"))
    system = f"{platform.system()} {platform.release()} {platform.machine()}, {cores} cores"
    return f"{datetime.now(UTC):%Y-%m-%d}, {system}, {_processor()}, Python {platform.python_version()}, {versions}"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def peer(folder: Path | None, name: str, program: str) -> Path | str:
    """The program of another system's virtual environment `folder/name`; why it can't be measured where it is not there."""
    if folder is None:
        return "not measured: no --peers"
    found = folder.absolute() / name / "bin" / program
    return found if found.is_file() else f"not measured: there is no {found}"


if __name__ == "__main__":
    print(machine())
