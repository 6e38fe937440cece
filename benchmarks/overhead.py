"""What a trial costs above a bare fork and exec of the same agent, through real pytest, one trial at a time.

    python benchmarks/overhead.py [--tasks N] [--rounds N] [--stages] [--peers DIR]

A figure is (cost of N tasks - cost of one) / (N - 1), of pytest and of all processes below it. The agent writes one line to one file;
driver tempdir, everything as it is by default: sessions under keepers, diff, kept workspace, result.json, events. There is a key in the
environment, as there is wherever agents run, so that all that leaves a trial is searched for it. `--stages` says what each part costs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from measure import Cost, environment, machine, median, per_item, pytest_argv, run, scratch, table
from peers import per_trial as peers_per_trial

import pytest_codeprobe

_SHELL = ["sh", "-c", "echo hello > hello.txt"]
_STEPS = [{"write": {"path": "hello.txt", "content": "hello\n"}}]
_PROGRAM = Path(pytest_codeprobe.__file__).parent / "children" / "scripted.py"  # what is behind agent scripted
_SCRIPTED = [sys.executable, "-I", "-S", str(_PROGRAM)]
AGENTS: Mapping[str, Mapping[str, Any]] = {
    "command": {"type": "command", "command": _SHELL},
    "scripted": {"type": "scripted", "scripted": {"steps": _STEPS}},
}
CRITERIA: Mapping[str, Mapping[str, Any]] = {
    "file_exists": {"type": "file_exists", "path": "hello.txt"},
    "run_command": {"type": "run_command", "command": "test -f hello.txt"},
}
_BARE = """
import json, os, sys
argv, text, count = json.loads(sys.argv[1])
for _ in range(count):
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    os.waitpid(os.posix_spawnp(argv[0], argv, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, reader, 0)]), 0)
    os.close(reader)
"""


def bare(place: Path, count: int, argv: list[str], stdin: str) -> Cost:
    """Start the agent's process so many times and wait for it, and nothing else."""
    return run([sys.executable, "-I", "-S", "-c", _BARE, json.dumps([argv, stdin, count])], place)


def empty(place: Path, count: int) -> Cost:
    """Pytest with so many tests that do nothing."""
    (place / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (place / "test_empty.py").write_text("".join(f"def test_{n}():\n    pass\n" for n in range(count)), encoding="utf-8")
    return run(pytest_argv(), place)


def project(place: Path, count: int, agent: str, criterion: str) -> None:
    """A project with so many task files."""
    (place / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (place / "tasks").mkdir()
    for number in range(count):
        task = {
            "task_id": f"t{number:05}",
            "initial_prompt": "Write hello.txt.",
            "agent": AGENTS[agent],
            "sandbox": {"driver": "tempdir"},
            "success_criteria": [CRITERIA[criterion]],
        }
        (place / "tasks" / f"t{number:05}.yaml").write_text(json.dumps(task), encoding="utf-8")  # JSON is YAML


def ours(place: Path, count: int, agent: str, criterion: str, *options: str, **variables: str) -> Cost:
    """A run of so many tasks."""
    project(place, count, agent, criterion)
    env = environment(EXAMPLE_API_KEY="sk-0123456789abcdef", TMPDIR=str(place), **variables)
    return run(pytest_argv(*options, "tasks", "--codeprobe-agent", agent), place, env=env)


def measured(work: Callable[..., Cost], count: int, rounds: int, *arguments: Any) -> tuple[Cost, Cost]:
    """Per task, and of a run with one; each run in a folder of its own."""

    def once(number: int) -> Cost:
        with scratch() as place:
            return work(place, number, *arguments)

    return per_item(once, count, rounds)


def compare(count: int, rounds: int, peers: Path | None) -> str:
    """The table of all kinds of runs."""
    rows: list[list[str | float | None]] = []
    bases = {
        "command": measured(bare, count, rounds, _SHELL, "")[0],
        "scripted": measured(bare, count, rounds, _SCRIPTED, json.dumps(_STEPS))[0],
    }
    rows += [[f"bare fork and exec, agent {agent}", cost.cpu, cost.wall, None, 1.0] for agent, cost in bases.items()]
    blank = measured(empty, count, rounds)[0]
    rows.append(["pytest, an empty test", blank.cpu, blank.wall, None, blank.cpu / bases["command"].cpu])
    for agent, base in bases.items():
        for criterion in CRITERIA:
            cost = measured(ours, count, rounds, agent, criterion)[0]
            rows.append([f"trial, agent {agent}, {criterion}", cost.cpu, cost.wall, (cost - base).cpu, cost.cpu / base.cpu])
    base = bases["command"]
    for name, found, _ in peers_per_trial(peers, min(count, 40), rounds):
        if isinstance(found, str):
            rows.append([f"{name}: {found}", None, None, None, None])
        else:
            rows.append([name, found.cpu, found.wall, None, found.cpu / base.cpu])
    return table(["milliseconds per task", "CPU", "wall", "CPU above bare", "CPU / bare"], rows)


# ---- what each stage costs


def stages(count: int, rounds: int, criterion: str) -> str:
    """What the parts of a run cost, from clocks around them in pytest's own process; the rest is of its children."""
    spent: dict[str, list[tuple[Cost, Cost]]] = {}
    for _ in range(rounds):
        one, many = _clocked(1, criterion), _clocked(count, criterion)
        for name in many:
            spent.setdefault(name, []).append((one.get(name, Cost(0, 0)), many[name]))
    costs = {name: (median([m for _, m in pairs]) - median([o for o, _ in pairs])) / (count - 1) for name, pairs in spent.items()}
    own, children = costs.pop("pytest's process"), costs.pop("children")
    commands = costs.pop("commands")
    rest = own.cpu - sum(cost.cpu for cost in costs.values())
    rows: list[list[str | float | None]] = [[name, cost.cpu, cost.wall] for name, cost in costs.items()]
    rows.append(["rest of pytest's process: its item protocol, imports", rest, None])
    rows.append(["agent" + (" and grader" if criterion == "run_command" else ""), commands.cpu, None])
    rows.append(["spawner and keepers", children.cpu - commands.cpu, None])
    rows.append(["all", own.cpu + children.cpu, None])
    return table([f"agent command, {criterion}: ms per task", "CPU", "wall"], rows)


def _clocked(count: int, criterion: str) -> dict[str, Cost]:
    with scratch() as place:
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        ours(place, count, "command", criterion, "-p", "_stage_clock", PYTHONPATH=path, STAGE_CLOCK=str(place / "spent.json"))
        return {name: Cost(*pair) for name, pair in json.loads((place / "spent.json").read_text(encoding="utf-8")).items()}


def main(argv: list[str] | None = None) -> int:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tasks", type=int, default=200, metavar="N", help="tasks of a run (default: 200)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each kind (default: 3)")
    parser.add_argument("--stages", action="store_true", help="what each part of a trial costs, instead")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="virtual environments of other harnesses, see peers.py")
    args = parser.parse_args(argv)
    print(f"{machine()}\n{args.tasks} tasks, one at a time, median of {args.rounds} runs\n")
    if args.stages:
        print("\n\n".join(stages(args.tasks, args.rounds, criterion) for criterion in CRITERIA))
    else:
        print(compare(args.tasks, args.rounds, args.peers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
