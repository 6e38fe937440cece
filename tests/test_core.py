"""The core without pytest: a trial run by a plain function call, in a process that never imports pytest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_codeprobe.amounts import dollars, span
from tests.front_door import clean_environment

_PROGRAM = """
import os, sys, json, random
from pathlib import Path
from pytest_codeprobe import agents, criteria, sandboxes
from pytest_codeprobe.model.clock import SystemClock
from pytest_codeprobe.model.config import AgentConfig, RunLimits, SandboxConfig
from pytest_codeprobe.model.context import Context, Registry
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.model.result import TrialResult
from pytest_codeprobe.options import RunOptions
from pytest_codeprobe.run.spool import Spool
from pytest_codeprobe.run.stops import StopFolder
from pytest_codeprobe.sandboxes.keeper import Spawner
from pytest_codeprobe.text import Redactor
from pytest_codeprobe.trial.run import run

root = Path(sys.argv[1])
(root / "spool").mkdir()
registry = Registry(
    agents={a.name: a for a in agents.BUILTIN},
    drivers={d.name: d for d in sandboxes.BUILTIN},
    criteria={k.model_fields["type"].annotation.__args__[0]: k for k in criteria.BUILTIN},
)
clock, spawner = SystemClock(), Spawner()
context = Context(
    run_id="r", run_dir=root, rootdir=root, options=RunOptions(), registry=registry, environ=dict(os.environ), clock=clock,
    events=Spool(root / "spool", "main", clock), stops=StopFolder(root / "stop"), processes=spawner, redactor=Redactor(),
    python=sys.executable,
)
trial = Trial(
    node_id="t.yaml::t", task_id="t", folder="default/t/r001", task_file=str(root / "t.yaml"), prompt="do it", limits=RunLimits(),
    agent=AgentConfig(type="scripted", scripted={"steps": [{"write": {"path": "a", "content": "x"}}, {"say": "done"}]}),
    sandbox=SandboxConfig(), criteria=({"type": "file_exists", "path": "a"},),
)
again = Trial.model_validate_json(trial.model_dump_json())
assert again == trial
result = run(again, context, lambda t, c: sandboxes.choose(t.sandbox.driver, registry, c).create(t, c))
spawner.close()
assert TrialResult.model_validate_json(result.model_dump_json()) == result
assert json.loads((root / "trials/default/t/r001/result.json").read_text())["status"] == "passed"
assert not [m for m in sys.modules if m.partition(".")[0] in ("pytest", "_pytest")], "the core needs pytest"
print(result.status, result.final_message)
"""


def test_a_trial_needs_no_pytest_and_survives_json(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], env=clean_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("passed done\n", 0), done.stderr
    events = [json.loads(line) for line in (tmp_path / "spool" / "main.ndjson").read_text().splitlines()]
    assert [e["event"] for e in events] == ["trial_started", "transcript"]


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        (0, "$0.00"),
        (0.25, "$0.25"),
        (0.0273, "$0.0273"),
        (0.00001, "$0.00001"),
        (0.000025, "$0.000025"),
        (0.99996, "$1.00"),
        (1234.5, "$1,234.50"),
    ],
)
def test_money_is_never_nothing_that_is_something(amount: float, said: str) -> None:
    assert dollars(amount) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.25, "0.25 s"), (90, "90 s"), (1800, "30 min"), (3600, "1 h"), (5400, "1 h 30 min"), (125, "2 min 5 s"), (90061, "1 d 1 h")],
)
def test_a_length_of_time_in_units_of_its_size(seconds: float, said: str) -> None:
    assert span(seconds) == said
