"""What a criterion of hidden tests costs: one file with two tests, in a run of many tasks, next to plain pytest on the same file.

    python benchmarks/hidden.py [--tasks N] [--rounds N]

All processes are counted: pytest, spawner, keepers, the tests. A run whose only criterion looks for a file is taken off; what is
left is divided by the number of tasks, so that the process which has pytest loaded is paid for as well.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from measure import Cost, machine, median, pytest_argv, run, scratch, table

CODE = "def add(a, b):\n    return a + b\n"
TESTS = """from calc import add


def test_small():
    assert add(1, 2) == 3


def test_big():
    assert add(10**20, 1) == 10**20 + 1
"""
CRITERIA = {"file": "{type: file_exists, path: calc.py}", "hidden": "{type: pytest, paths: [hidden]}"}
#: a driver that starts every command anew, as one that isolates must
PLAIN_DRIVER = """from pytest_codeprobe.sandboxes.tempdir import TempdirDriver, TempdirSandbox


class PlainSandbox(TempdirSandbox):
    driver = "plain"

    def warm(self, command):
        return None


class PlainDriver(TempdirDriver):
    name = "plain"

    def create(self, trial, context):
        return PlainSandbox(trial, context, self._templates.of(context))


def pytest_codeprobe_drivers(config):
    return [PlainDriver()]
"""


def main(argv: list[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tasks", type=int, default=50, metavar="N", help="tasks of a run (default: 50)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="runs of each kind, turn by turn (default: 5)")
    options = parser.parse_args(argv)
    with scratch() as folder:
        costs = measure(folder, options.tasks, options.rounds)
    print(machine())
    print(f"\nhidden tests, one file with two tests; medians of {options.rounds} runs of {options.tasks} tasks; milliseconds for each\n")
    bare = costs["plain pytest"]
    rows: list[list[str | float | None]] = [[name, cost.cpu, cost.cpu / bare.cpu, cost.wall] for name, cost in costs.items()]
    print(table(["", "CPU", "of plain pytest", "wall"], rows))
    return 0


def measure(folder: Path, tasks: int, rounds: int) -> dict[str, Cost]:
    """The costs of one criterion, each way, and of pytest by itself. A first turn only warms caches; with 0 rounds it is the only one."""
    runs = {name: write_project(folder / name, tasks, *kind) for name, kind in KINDS.items()}
    plain = folder / "plain"
    write(plain, {"calc.py": CODE, "test_calc.py": TESTS, "pytest.ini": "[pytest]\n"})
    taken: dict[str, list[Cost]] = {name: [] for name in (*runs, "plain pytest")}
    for turn in range(rounds + 1):
        found = {name: run(pytest_argv("--codeprobe-agent", "none", "tasks/task.yaml"), project) for name, project in runs.items()}
        found["plain pytest"] = run(pytest_argv("test_calc.py"), plain)
        if turn or not rounds:
            for name, cost in found.items():
                taken[name].append(cost)
    middle = {name: median(costs) for name, costs in taken.items()}
    forked = (middle["forked"] - middle["forked, only a file"]) / tasks
    anew = (middle["anew"] - middle["anew, only a file"]) / tasks
    return {"forked from a process that has pytest loaded": forked, "a new process": anew, "plain pytest": middle["plain pytest"]}


#: criterion and driver of a run
KINDS = {
    "forked": ("hidden", "tempdir"),
    "forked, only a file": ("file", "tempdir"),
    "anew": ("hidden", "plain"),
    "anew, only a file": ("file", "plain"),
}


def write_project(folder: Path, tasks: int, criterion: str, driver: str) -> Path:
    """A project whose tasks are solved before they begin."""
    task = "".join(
        f"- task_id: t{number}\n"
        "  initial_prompt: Write calc.py.\n"
        f"  sandbox: {{driver: {driver}, template_sources: [{{type: template_dir, path: start}}]}}\n"
        f"  success_criteria: [{CRITERIA[criterion]}]\n"
        for number in range(tasks)
    )
    write(folder, {"conftest.py": PLAIN_DRIVER, "pytest.ini": "[pytest]\n", "tasks/task.yaml": task})
    write(folder / "tasks", {"start/calc.py": CODE, "hidden/test_calc.py": TESTS})
    return folder


def write(folder: Path, files: dict[str, str]) -> None:
    """Lay files into a folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
