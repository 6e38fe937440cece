"""What it costs to collect many task files: the first time, and once the index in pytest's cache knows them.

    python benchmarks/collect.py [--files N ...] [--rounds N]

Tasks of some 900 bytes, one for each file, all in one folder or each in a folder of its own. They are held against the same number of
empty items in the same folders, which a plugin of ten lines makes of each file without looking into it (`pytest.File` and
`pytest.Item`), in runs that take turns; beside them an empty test function in a file of its own, as most test suites are made of.
`pytest --collect-only`, and with `-n 2` a run in which nothing is selected, since every worker collects everything. Medians; on tmpfs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from measure import Cost, environment, machine, median, scratch, table

TASK = """\
task_id: fix-parser-{number:05}
tags: [smoke, "lang:python", bugfix]
metadata:
  difficulty: easy
  task_type: bugfix
initial_prompt: |
  `parse("1h30m")` in duration.py returns 3600 instead of 5400: everything
  behind the first unit is dropped. Find out why and mend it, so that any
  sequence of hours, minutes and seconds is read. Do not change what it
  raises for text that is no duration.
sandbox:
  template_sources:
    - type: starter_files
      files:
        - path: duration.py
          content: |
            def parse(text):
                return int(text.split("h")[0]) * 3600
run_limits:
  max_turns: 20
  task_timeout: 300
success_criteria:
  - type: file_contains
    path: duration.py
    includes: [minutes]
    weight: 0.5
  - type: run_command
    description: the example of the report
    command: python -c "import duration; assert duration.parse('1h30m') == 5400"
    timeout: 30
"""
BARE = """\
import pytest

class File(pytest.File):
    def collect(self):
        yield Item.from_parent(self, name="item")

class Item(pytest.Item):
    def runtest(self):
        pass

def pytest_collect_file(file_path, parent):
    if file_path.suffix == ".yaml":
        return File.from_parent(parent, path=file_path)
"""
#: layout -> where the file of a number lies
LAYOUTS: dict[str, Callable[[int], str]] = {
    "one folder": lambda number: f"{number:05}",
    "a folder each": lambda number: f"{number:05}/task",
}
EMPTY, COLD, KNOWN, PYTHON = "empty items", "first time", "index", "test files"
ARGUMENTS = {
    EMPTY: ["-p", "no:codeprobe", "-p", "bare_items", "tasks"],
    COLD: ["tasks"],
    KNOWN: ["tasks"],
    PYTHON: ["-p", "no:codeprobe", "--import-mode=importlib", "tests"],
}
MODES = {"": ["--collect-only", "-qq"], "-n 2": ["-n", "2", "-q", "-k", "nothing_of_this_name"]}


class Project:
    """A folder of tasks, and one of test files in the same layout."""

    def __init__(self, root: Path, files: int, place: Callable[[int], str]) -> None:
        self._root = root
        (root / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        (root / "bare_items.py").write_text(BARE, encoding="utf-8")
        for number in range(files):
            _write(root / "tasks" / f"{place(number)}.yaml", TASK.format(number=number))
            at = Path(place(number))
            _write(root / "tests" / at.parent / f"test_{at.name}.py", "def test_it():\n    pass\n")

    def collect(self, variant: str, mode: str) -> tuple[Cost, int]:
        """Collect in a process of its own: cost, and the most memory in use, in KiB. RuntimeError where it fails."""
        if variant == COLD:
            shutil.rmtree(self._root / ".pytest_cache", ignore_errors=True)
        argv = [sys.executable, "-P", "-m", "pytest", *MODES[mode], *ARGUMENTS[variant]]
        env = environment(PYTHONPATH=str(self._root))
        began = time.perf_counter()
        with (self._root / "output").open("wb") as output:
            process = subprocess.Popen(argv, cwd=self._root, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != (5 if mode else 0):  # 5: nothing is selected
            raise RuntimeError(f"{variant} ended with status {process.returncode}:\n{(self._root / 'output').read_text()[-2000:]}")
        return Cost(wall * 1000, (used.ru_utime + used.ru_stime) * 1000), used.ru_maxrss


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def measure(project: Project, mode: str, rounds: int) -> tuple[dict[str, Cost], dict[str, float]]:
    """Medians of cost and of memory (KiB) for each variant, turn by turn.

    A first turn only warms caches; with 0 rounds it is the only one.
    """
    variants = [v for v in ARGUMENTS if not (mode and v == PYTHON)]
    costs: dict[str, list[Cost]] = {v: [] for v in variants}
    memory: dict[str, list[int]] = {v: [] for v in variants}
    for turn in range(rounds + 1):
        for variant in variants:
            cost, used = project.collect(variant, mode)
            if turn or not rounds:
                costs[variant].append(cost)
                memory[variant].append(used)
    return {v: median(c) for v, c in costs.items()}, {v: statistics.median(m) for v, m in memory.items()}


def rows(layout: str, files: int, mode: str, costs: dict[str, Cost], memory: dict[str, float]) -> list[list[str | float | None]]:
    """One for each variant: cost beside that of empty items, and memory for each item above them."""
    base, found = costs[EMPTY], []
    for variant, cost in costs.items():
        head = f"{files:,} files, {layout}{f', {mode}' if mode else ''}" if variant == EMPTY else ""
        more = None if mode or variant == EMPTY else (memory[variant] - memory[EMPTY]) / files
        ratios: list[str | float | None] = [cost.wall / base.wall, cost.cpu / base.cpu]
        found.append([head, variant, cost.wall / 1000, cost.cpu / 1000, *ratios, more])
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table; a failed run ends the program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--files", type=int, nargs="+", default=[1_000, 10_000], metavar="N", help="task files (default: 1000 10000)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each kind (default: 3; 0: one, with cold caches)")
    given = parser.parse_args(argv)
    found = []
    for files in given.files:
        for layout, place in LAYOUTS.items():
            with scratch() as root:
                project = Project(root, files, place)
                for mode in MODES:
                    if not mode or place is LAYOUTS["one folder"]:
                        found += rows(layout, files, mode, *measure(project, mode, given.rounds))
    print(f"{machine()}\ntasks of {len(TASK.format(number=0))} bytes, median of {given.rounds} runs\n")
    print(table(["collect", "", "wall s", "CPU s", "× wall", "× CPU", "KiB/item above"], found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
