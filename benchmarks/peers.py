"""What a trial costs in other harnesses: codeprobe 0.14 and coder-eval 0.12, where they are installed.

    python benchmarks/peers.py --peers DIR [--tasks N] [--parallel N] [--rounds N]

DIR holds a virtual environment of each: `codeprobe/` (`pip install codeprobe==0.14.0`) and `coder-eval/` (`pip install
coder-eval==0.12.16`, which needs Python 3.13). One that is missing is left out, and said so.

codeprobe runs a script that prints what Claude Code would (one process for each task) and scores with a script of its own. coder-eval
runs an agent inside its own process, which writes a file; it scores by that file and by a command.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from measure import Cost, environment, peer, per_item, run, scratch, table

_SAYS = [
    {"type": "system", "subtype": "init", "session_id": "s", "tools": [], "mcp_servers": [], "model": "claude-haiku-4-5"},
    {
        "type": "assistant",
        "message": {
            "model": "claude-haiku-4-5",
            "content": [{"type": "text", "text": "done"}],
            "usage": {"input_tokens": 1, "output_tokens": 1},
        },
    },
    {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "result": "done",
        "num_turns": 1,
        "duration_ms": 1,
        "duration_api_ms": 1,
        "total_cost_usd": 0.001,
        "session_id": "s",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
]
_AGENT = """
import asyncio
import os
from pathlib import Path
from typing import Literal

from coder_eval.agent import Agent, AgentState
from coder_eval.models import BaseAgentConfig
from coder_eval.streaming import events
from coder_eval.streaming.callbacks import CompositeStreamCallback
from coder_eval.streaming.collector import EventCollector


class TrivialConfig(BaseAgentConfig):
    type: Literal["trivial"]


class Trivial(Agent[TrivialConfig]):
    def __init__(self, config, route=None, **_):
        self.config, self.route = config, route

    async def start(self, working_directory, **_):
        self.folder, self._state = Path(working_directory), AgentState.WORKING

    async def communicate(self, user_input, *, stream_callback=None, **_):
        self._begin_turn()
        collector = EventCollector()
        out = CompositeStreamCallback([c for c in (collector, stream_callback) if c])
        out.on_event(events.AgentStartEvent(task_id="t", prompt=user_input, iteration=self._iteration))
        out.on_event(events.TurnStartEvent(task_id="t", turn_id="1"))
        await asyncio.sleep(float(os.environ.get("BENCH_SECONDS", "0")))
        (self.folder / "hello.txt").write_text("hello")
        out.on_event(events.TurnEndEvent(task_id="t", turn_id="1", status=events.TurnEndStatus.COMPLETED))
        end = dict(status=events.AgentEndStatus.COMPLETED, iteration=self._iteration, assistant_turn_count=1)
        out.on_event(events.AgentEndEvent(task_id="t", user_input=user_input, agent_output="done", **end))
        self._end_turn_ok()
        return collector.build_turn_record()

    async def stop(self):
        self._mark_stopped()


def register(registry):
    registry.register("trivial", TrivialConfig)(Trivial)
"""


def codeprobe(program: Path, place: Path, count: int, parallel: int) -> Cost:
    """A run of `count` tasks by codeprobe 0.14 in the empty folder `place`."""
    tools, home, repository = place / "bin", place / "home", place / "repository"
    for folder in (tools, home, repository):
        folder.mkdir()
    for found in Path("/usr/bin").iterdir():  # all but the container engines, which it would use
        if not found.name.startswith(("docker", "podman", "claude")):
            (tools / found.name).symlink_to(found)
    lines = "\n".join(f"echo '{json.dumps(line)}'" for line in _SAYS)
    _script(tools / "claude", f'case "$1" in --version|-v) echo "2.1.0 (Claude Code)"; exit;; esac\n{lines}\n')
    env = {"PATH": f"{tools}:{program.parent}", "HOME": str(home), "PYTHONWARNINGS": "ignore", "CODEPROBE_SANDBOX": "1"}
    (repository / "app.py").write_text("", encoding="utf-8")
    git = ["git", "-c", "user.name=n", "-c", "user.email=n@localhost"]
    for arguments in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "begin"]):
        run([*git, *arguments], repository, env=env)
    (repository / ".git" / "info" / "exclude").write_text(".codeprobe*\n", encoding="utf-8")
    for number in range(count):
        _codeprobe_task(repository / ".codeprobe" / "tasks" / f"t{number:05}")
    configuration = {"label": "default", "agent": "claude", "model": "haiku", "permission_mode": "default"}
    experiment = {"name": "bench", "description": "", "tasks_dir": "tasks", "configs": [configuration]}
    (repository / ".codeprobe" / "experiment.json").write_text(json.dumps(experiment), encoding="utf-8")
    argv: list[str | Path] = [program, "run", repository, "--agent", "claude", "--parallel", str(parallel), "--json"]
    return run(argv, repository, env=env, allowed=(0, 1))


def _codeprobe_task(folder: Path) -> None:
    (folder / "tests").mkdir(parents=True)
    (folder / "instruction.md").write_text("Do nothing.\n", encoding="utf-8")
    _script(folder / "tests" / "test.sh", "exit 0\n")
    verification = {"type": "test_script", "verification_mode": "test_script", "reward_type": "binary"}
    metadata = {"name": folder.name, "task_type": "sdlc_code_change", "category": "sdlc"}
    task = {"id": folder.name, "repo": "bench", "metadata": metadata, "verification": verification, "time_limit_sec": 60}
    (folder / "metadata.json").write_text(json.dumps(task), encoding="utf-8")


def _script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}", encoding="utf-8")
    path.chmod(0o755)


def coder_eval(program: Path, place: Path, count: int, parallel: int, seconds: float = 0.0) -> Cost:
    """A run of `count` tasks by coder-eval 0.12 in the empty folder `place`, the agent taking so many seconds."""
    plugin = place / "plugin"
    facts = plugin / "bench_trivial-0.dist-info"  # enough for an entry point to be found
    facts.mkdir(parents=True)
    (plugin / "bench_trivial.py").write_text(_AGENT, encoding="utf-8")
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: bench-trivial\nVersion: 0\n", encoding="utf-8")
    (facts / "entry_points.txt").write_text("[coder_eval.plugins]\ntrivial = bench_trivial:register\n", encoding="utf-8")
    experiment = "experiment_id: bench\ndescription: d\ndefaults: {agent: {type: trivial}}\nvariants: [{variant_id: default}]\n"
    (place / "experiment.yaml").write_text(experiment, encoding="utf-8")
    tasks = []
    for number in range(count):
        tasks.append(place / f"t{number:05}.yaml")
        tasks[-1].write_text(
            f"task_id: t{number:05}\ndescription: d\ninitial_prompt: write hello.txt\nagent: {{type: trivial, allowed_tools: null}}\n"
            "sandbox: {driver: tempdir, python: null}\nsuccess_criteria:\n"
            "  - {type: file_exists, path: hello.txt, description: e}\n"
            "  - {type: run_command, command: 'true', timeout: 10, description: c}\n",
            encoding="utf-8",
        )
    env = environment(TELEMETRY_ENABLED="false", PATH=os.defpath, PYTHONPATH=str(plugin), BENCH_SECONDS=str(seconds))
    argv: list[str | Path] = [program, "run", *tasks, "-e", "experiment.yaml", "--run-dir", place / "out", "-j", str(parallel)]
    return run(argv, place, env=env, allowed=(0, 1))


#: what it is called, folder of its environment, program, how it is run, what is in its figure
PEERS: tuple[tuple[str, str, str, Callable[[Path, Path, int, int], Cost]], ...] = (
    ("codeprobe 0.14, test script", "codeprobe", "codeprobe", codeprobe),
    ("coder-eval 0.12, file + command, no agent process", "coder-eval", "coder-eval", coder_eval),
)


def per_trial(folder: Path | None, count: int, rounds: int, parallel: int = 1) -> list[tuple[str, Cost | str, Cost | str]]:
    """For each peer its name, what a trial costs and what a run with one costs; why not, where it could not be measured."""
    found: list[tuple[str, Cost | str, Cost | str]] = []
    for name, venv, command, how in PEERS:
        program = peer(folder, venv, command)
        if isinstance(program, str):
            found.append((name, program, program))
            continue

        def work(number: int, program: Path = program, how: Callable[[Path, Path, int, int], Cost] = how) -> Cost:
            with scratch() as place:
                return how(program, place, number, parallel)

        found.append((name, *per_item(work, count, rounds)))
    return found


def main(argv: list[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peers", type=Path, metavar="DIR", help="folder of the virtual environments")
    parser.add_argument("--tasks", type=int, default=40, metavar="N", help="tasks of a run (default: 40)")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="trials at once (default: 1)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each kind (default: 3)")
    args = parser.parse_args(argv)
    rows: list[list[str | float | None]] = []
    for name, cost, single in per_trial(args.peers, args.tasks, args.rounds, args.parallel):
        if isinstance(cost, str) or isinstance(single, str):
            rows.append([f"{name}: {cost}", None, None, None])
        else:
            rows.append([name, cost.cpu, cost.wall, single.cpu])
    print(f"{args.tasks} tasks, {args.parallel} at once, milliseconds per trial; median of {args.rounds} runs\n")
    print(table(["", "CPU", "wall", "run with one task, CPU"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
