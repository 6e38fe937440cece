"""What must hold of money, secrets and results whatever goes wrong beside them."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.clock import SystemClock
from pytest_codeprobe.model.context import Claim
from pytest_codeprobe.model.result import no_usage
from pytest_codeprobe.run import ledger as ledger_module
from pytest_codeprobe.run.spool import spooled
from pytest_codeprobe.trial.spending import Spending
from tests.front_door import Project, scripted

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
AGENT = "--codeprobe-agent=scripted"
KEY = "sk-0123456789-abcdefghij-klmnopqrst-uvwxyz"


@pytest.mark.parametrize("deep", ["[" * 700 + "NaN" + "]" * 700, '{"a":' * 400 + "1" + "}" * 400, "NaN", "[1]"])
def test_a_strangers_line_costs_no_result(project: Project, deep: str) -> None:
    """Under tempdir a session can find the run dir, and write what the controller follows."""
    line = f'{{"event": "trial_started", "node_id": "tasks/t.yaml::t", "attempt": 1, "more": {deep}}}'
    assert spooled(line.encode()) is None
    forge = project.write("forge.py", f"import glob\nfor path in glob.glob({str(project.path)!r} + '/run/spool/*.ndjson'):\n"
                          f"    open(path, 'a').write({line!r} + chr(10))\n")  # fmt: skip
    project.task("t", agent=scripted(WRITE, {"run": f"python3 {forge}"}))
    project.task("u", agent=scripted(WRITE))
    run = project.run("tasks", AGENT, "--codeprobe-run-dir=run").assert_consistent()
    assert run.statuses == {"t": "passed", "u": "passed"}
    assert run.code == 0


@pytest.mark.parametrize("cut", [0, 150, 220, 290, 310])
def test_no_part_of_a_secret_is_left_where_text_is_cut(project: Project, cut: int) -> None:
    said = f"x-api-key $MY_API_KEY {'z' * cut}"
    project.task("t", agent={"type": "command", "command": ["sh", "-c", f'echo "{said}" >&2; exit 127']})
    run = project.run("tasks", "--codeprobe-agent=command", env={"MY_API_KEY": KEY})
    assert run.statuses == {"t": "error"}
    parts = [KEY[i : i + 12] for i in range(len(KEY) - 12)]
    files = {path: path.read_bytes().decode("utf-8", "replace") for path in run.folder.rglob("*") if path.is_file()}
    assert [path for path, text in files.items() if any(part in text for part in parts)] == []
    assert not any(part in run.output for part in parts)


def test_a_secret_of_several_lines_is_found_before_they_become_one(project: Project) -> None:
    key = "-----BEGIN KEY-----\nabcdefghijklmnopqrstuvwxyz\n0123456789\n-----END KEY-----"
    project.task("t", agent={"type": "command", "command": ["sh", "-c", 'printf "%s\\n" "$MY_PRIVATE_KEY" >&2; exit 127']})
    run = project.run("tasks", "--codeprobe-agent=command", env={"MY_PRIVATE_KEY": key})
    assert run.statuses == {"t": "error"}
    assert "abcdefghijklmnopqrstuvwxyz" not in run.output + (run.folder / "events.ndjson").read_text() + json.dumps(run.result("t"))


SKIPS = """
import time, pytest
@pytest.fixture
def own(): pass
def pytest_codeprobe_make_sandbox(trial):
    if trial.task_id == "a":
        time.sleep(0.7)
        pytest.skip("no GPU here")
"""


def test_what_ran_ahead_and_is_skipped_holds_no_money(project: Project) -> None:
    """The main thread, which is to report it, waits for that very money in a trial of its own."""
    project.write("conftest.py", SKIPS)
    project.task("a", agent=scripted(WRITE), run_limits={"max_usd": 0.8})
    project.task("b", agent=scripted(WRITE), run_limits={"max_usd": 0.8}, fixtures=["own"])
    run = project.run("tasks", AGENT, "--codeprobe-jobs=2", "--codeprobe-max-cost-usd=1", seconds=40).assert_consistent()
    assert run.statuses == {"a": "skipped", "b": "passed"}


def test_money_that_could_not_be_settled_is_settled_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "_BUSY", 0.1)
    ledger = ledger_module.LedgerFile(tmp_path / "ledger.sqlite", 3.0)
    limits = SimpleNamespace(max_usd=2.0, max_total_tokens=None)
    trial = SimpleNamespace(node_id="a", limits=limits, agent=SimpleNamespace(model=None))
    agent = SimpleNamespace(name="x", is_session=True, calls_model=True, usage_known="live")
    context = cast("Any", SimpleNamespace(ledger=ledger, stops=SimpleNamespace(raise_flag=lambda *_: None), clock=SystemClock()))
    spending = Spending(cast("Any", trial), context, lambda: cast("Any", agent), lambda: None)
    spending.reserve(1)
    other = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    usage = no_usage().model_copy(update={"cost_usd": 0.5})
    with pytest.raises(CodeprobeError, match="locked"):
        spending.settle(usage)
    other.execute("ROLLBACK")
    other.close()
    spending.settle(no_usage())  # at the trial's end, where nothing more is known
    assert (ledger.balance().spent, ledger.balance().reserved) == (0.5, 0.0)
    assert ledger.reserve(Claim(node_id="b", attempt=1, agent="x", model="", max_usd=2.0)) != "wait"
    ledger.close()


LOSES_THE_LEDGER = """
import pathlib, pytest
@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish():
    for file in pathlib.Path("run").glob("ledger.sqlite*"): file.unlink()
    pathlib.Path("run/ledger.sqlite").mkdir()
"""


def test_a_used_up_budget_is_told_also_without_its_ledger(project: Project) -> None:
    project.write("conftest.py", LOSES_THE_LEDGER)
    spend = scripted(WRITE, {"usage": {"model": "m", "cost_usd": 2.0}}, {"sleep": 20})
    project.task("a", agent=spend)
    project.task("b", agent=scripted(WRITE))
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=1", "--codeprobe-run-dir=run", junit=False)
    errors = [e["code"] for e in run.envelope["errors"]]
    assert errors[0] == "BUDGET_EXCEEDED", run.envelope["errors"]
    assert (run.code, run.envelope["status"]) == (6, "error")


def test_a_run_log_that_cannot_be_written_is_in_exit_code_and_envelope(project: Project) -> None:
    project.write("conftest.py", "import pathlib\ndef pytest_runtest_logfinish():\n    file = pathlib.Path('run/run.log')\n"
                  "    if file.is_file(): file.unlink()\n    file.mkdir(exist_ok=True)\n")  # fmt: skip
    project.task("a", agent=scripted(WRITE))
    run = project.run("tasks", AGENT, "--codeprobe-run-dir=run", junit=False)
    assert run.envelope["exit_code"] == run.code
    assert (run.code == 0) == (run.envelope["errors"] == [])
