"""--codeprobe-canary: one small known task before anything is paid for, and the proof that it leaves."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.claude_runs import MODEL, ClaudeProject, cost, server, tokens, told
from tests.fake_claude import COST, FakeClaude
from tests.front_door import Project
from tests.install_clis import locked_version
from tests.model_server import Script, ToolCall, Turn, Usage
from tests.real_cli import require_clis

JSON = "--codeprobe-json"


@pytest.fixture
def claude(project: Project) -> FakeClaude:
    """Two tasks for it."""
    fake = FakeClaude(project)
    fake.task("a")
    fake.task("b")
    return fake


def run(claude: FakeClaude, canary: str, *args: str, mode: str = "plain", agent: str = "claude") -> dict[str, Any]:
    """The envelope of a run."""
    asked = (f"--codeprobe-canary={canary}", f"--codeprobe-agent={agent}", JSON, *args)
    done = claude.project.run("tasks", *asked, mode=mode, junit=False)
    envelope = done.assert_pure(events=False)
    if done.code != 4:  # `latest` still is the run before
        done.assert_consistent()
    done.assert_nothing_left()
    return envelope


def codes(envelope: dict[str, Any]) -> list[str]:
    return [error["code"] for error in envelope["errors"]]


def proofs(claude: FakeClaude) -> list[Path]:
    return sorted((claude.project.path / ".codeprobe" / "canary").glob("*.json"))


# ---- what each mode does


def test_auto_runs_it_once_and_later_runs_trust_the_proof(claude: FakeClaude, mode: str) -> None:
    first = run(claude, "auto", mode=mode)
    assert (first["exit_code"], codes(first)) == (0, [])
    assert (claude.canaries, claude.others) == (1, 2)
    assert claude.sessions[0]["canary"]
    data = first["data"]
    assert data["tasks_total"] == 2
    (line,) = data["canary"]["proofs"]
    assert (data["canary"]["mode"], line["state"], line["agent"], line["driver"]) == ("auto", "proved", "claude", "tempdir")
    assert line["cost_usd"] == pytest.approx(COST)
    assert data["cost_usd"] == pytest.approx(3 * COST)
    assert data["tokens"]["input_tokens"] == 300
    (file,) = proofs(claude)
    proof = json.loads(file.read_text())
    assert str(file.relative_to(claude.project.path)) == line["proof"]
    assert proof["fingerprint"] == line["fingerprint"]
    assert (proof["fingerprint"]["agent_version"], proof["run_id"]) == ("2.1.332", data["run_id"])
    assert (file.parent / ".gitignore").read_text() == "*\n"
    record = json.loads((claude.project.path / data["run_dir"] / "trials" / line["folder"] / "result.json").read_text())
    assert (record["status"], [c["verdict"] for c in record["criteria"]]) == ("passed", ["passed", "passed"])

    second = run(claude, "auto", mode=mode)
    assert (second["exit_code"], claude.canaries) == (0, 1)
    (line,) = second["data"]["canary"]["proofs"]
    assert (line["state"], line["cost_usd"], line["proved_at"]) == ("stored", None, proof["proved_at"])
    assert second["data"]["cost_usd"] == pytest.approx(2 * COST)

    third = run(claude, "require", mode=mode)
    assert (third["exit_code"], claude.canaries, third["data"]["canary"]["proofs"][0]["state"]) == (0, 1, "stored")


@pytest.mark.parametrize("lie", [{"writes": False}, {"repeats": False}, {"fails": "no such model"}], ids=["claims", "mute", "crashes"])
def test_an_agent_that_does_not_do_it_starts_nothing_else(claude: FakeClaude, mode: str, lie: dict[str, Any]) -> None:
    claude.install(**lie)
    envelope = run(claude, "auto", mode=mode)
    assert (envelope["exit_code"], codes(envelope)) == (6, ["CANARY_PROOF_FAILED"])
    assert {(r["status"], r["reason"]) for r in envelope["data"]["results"]} == {("not_run", "canary")}
    assert claude.others == 0
    assert not proofs(claude)
    (line,) = envelope["data"]["canary"]["proofs"]
    assert line["state"] == "failed"
    (error,) = envelope["errors"]
    assert "doctor" in error["remediation"]
    assert error["detail"]["agent"] == "claude"
    if "fails" in lie:
        assert (line["code"], error["detail"]["trial_code"]) == ("AGENT_CRASHED", "AGENT_CRASHED")
    else:
        assert envelope["data"]["cost_usd"] == pytest.approx(COST)


def test_another_version_is_a_mismatch_until_it_is_renewed(claude: FakeClaude, mode: str) -> None:
    run(claude, "auto", mode=mode)
    before = proofs(claude)[0].read_text()
    claude.install(version="2.2.0")
    for asked in ("auto", "require"):
        envelope = run(claude, asked, mode=mode)
        assert (envelope["exit_code"], codes(envelope)) == (4, ["CANARY_MISMATCH"])
        (error,) = envelope["errors"]
        assert "agent version: 2.1.332 -> 2.2.0" in error["message"]
        assert error["detail"]["differences"] == {"agent_version": {"old": "2.1.332", "new": "2.2.0"}}
        assert "renew" in error["remediation"]
        assert {r["status"] for r in envelope["data"]["results"]} <= {"not_run"}
    assert (claude.canaries, claude.others) == (1, 2)
    assert proofs(claude)[0].read_text() == before
    renewed = run(claude, "renew", mode=mode)
    assert (renewed["exit_code"], claude.canaries) == (0, 2)
    assert json.loads(proofs(claude)[0].read_text())["fingerprint"]["agent_version"] == "2.2.0"
    assert run(claude, "require", mode=mode)["exit_code"] == 0
    assert claude.canaries == 2


def test_require_without_a_proof_starts_nothing(claude: FakeClaude, mode: str) -> None:
    envelope = run(claude, "require", mode=mode)
    assert (envelope["exit_code"], codes(envelope)) == (4, ["CANARY_PROOF_REQUIRED"])
    assert claude.sessions == []
    assert "canary auto" in envelope["errors"][0]["remediation"]


def test_renew_runs_it_again_and_a_failure_takes_the_old_proof_away(claude: FakeClaude) -> None:
    run(claude, "auto")
    first = proofs(claude)[0].read_text()
    assert run(claude, "renew")["exit_code"] == 0
    assert claude.canaries == 2
    assert json.loads(proofs(claude)[0].read_text())["run_id"] != json.loads(first)["run_id"]
    claude.install(writes=False)
    assert codes(run(claude, "renew")) == ["CANARY_PROOF_FAILED"]
    assert not proofs(claude)


def test_off_and_agents_without_a_model_need_none(claude: FakeClaude, mode: str) -> None:
    assert run(claude, "off", mode=mode)["data"]["canary"] is None
    assert claude.canaries == 0
    envelope = run(claude, "require", mode=mode, agent="nop")
    assert envelope["exit_code"] == 1  # nop does nothing
    assert [p["state"] for p in envelope["data"]["canary"]["proofs"]] == ["not_needed"]


def test_each_model_has_a_proof_of_its_own(claude: FakeClaude, mode: str) -> None:
    claude.task("c", agent={"type": "claude", "model": "opus"})
    envelope = run(claude, "auto", mode=mode)
    assert (envelope["exit_code"], claude.canaries, len(proofs(claude))) == (0, 2, 2)
    assert {(p["model"], p["state"]) for p in envelope["data"]["canary"]["proofs"]} == {(None, "proved"), ("opus", "proved")}
    one = run(claude, "require", "--codeprobe-model=opus", mode=mode)
    assert (one["exit_code"], [p["model"] for p in one["data"]["canary"]["proofs"]]) == (0, ["opus"])


def test_other_arguments_of_the_agent_are_another_fingerprint(claude: FakeClaude) -> None:
    run(claude, "auto")
    envelope = run(claude, "auto", "--codeprobe-permission-mode=plan")
    assert codes(envelope) == ["CANARY_MISMATCH"]
    assert list(envelope["errors"][0]["detail"]["differences"]) == ["arguments"]


def test_what_a_task_says_of_its_own_work_is_none_of_its_business(claude: FakeClaude) -> None:
    claude.task("a", agent={"type": "claude", "allowed_tools": ["read"], "append_system_prompt": "Never write."})
    assert run(claude, "auto")["exit_code"] == 0
    argv = claude.sessions[0]["argv"]
    assert "--append-system-prompt-file" not in argv
    assert "Read" not in argv


def test_the_console_script_has_it_too(claude: FakeClaude) -> None:
    done = claude.project.codeprobe("run", "--agent", "claude", "--canary", "require", "--json")
    (error,) = done.assert_pure(events=False)["errors"]
    assert error["code"] == "CANARY_PROOF_REQUIRED"
    assert claude.project.codeprobe("run", "--agent", "claude", "--canary", "auto", "--json").code == 0
    assert claude.project.codeprobe("run", "--agent", "claude", "--canary", "require", "--json").code == 0
    assert claude.canaries == 1


def test_a_person_is_told(claude: FakeClaude) -> None:
    done = claude.project.run("tasks", "--codeprobe-agent=claude", "--codeprobe-canary=auto", junit=False)
    assert "canary: agent claude (its default model, driver tempdir): proved now" in done.output
    claude.install(writes=False)
    done = claude.project.run("tasks", "--codeprobe-agent=claude", "--codeprobe-canary=renew", junit=False)
    assert "CANARY_PROOF_FAILED: agent claude" in done.output


def test_the_budget_of_the_run_is_its_own_too(claude: FakeClaude, mode: str) -> None:
    envelope = run(claude, "auto", f"--codeprobe-max-cost-usd={COST * 0.9}", mode=mode)
    assert (envelope["exit_code"], codes(envelope)) == (6, ["BUDGET_EXCEEDED"])
    assert (claude.canaries, claude.others) == (1, 0)
    assert {(r["status"], r["reason"]) for r in envelope["data"]["results"]} == {("not_run", "budget")}
    assert envelope["data"]["cost_usd"] == pytest.approx(COST)


# ---- broken, full, shared, interrupted


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema_version": "9"}', "\x00" * 100])
def test_a_broken_proof_is_none(claude: FakeClaude, content: str) -> None:
    run(claude, "auto")
    proofs(claude)[0].write_text(content)
    assert codes(run(claude, "require")) == ["CANARY_PROOF_REQUIRED"]
    envelope = run(claude, "auto")
    assert (envelope["exit_code"], claude.canaries) == (0, 2)
    assert any("is no proof" in w for w in envelope["warnings"])
    assert run(claude, "require")["exit_code"] == 0


def test_the_proof_of_something_else_under_its_name_is_none(claude: FakeClaude) -> None:
    run(claude, "auto")
    file = proofs(claude)[0]
    file.write_text(file.read_text().replace('"agent": "claude"', '"agent": "other"').replace('"agent":"claude"', '"agent":"other"'))
    assert codes(run(claude, "require")) == ["CANARY_PROOF_REQUIRED"]


def test_what_lies_in_its_place_neither_blocks_nor_leads_elsewhere(claude: FakeClaude) -> None:
    run(claude, "auto")
    file = proofs(claude)[0]
    kept = file.read_text()
    file.unlink()
    os.mkfifo(file)
    assert codes(run(claude, "require")) == ["CANARY_PROOF_REQUIRED"]
    file.unlink()
    other = claude.project.scratch / "proof.json"
    other.write_text(kept)
    file.symlink_to(other)
    assert codes(run(claude, "require")) == ["CANARY_PROOF_REQUIRED"]


def test_a_place_that_can_not_be_written_is_said_and_the_run_goes_on(claude: FakeClaude) -> None:
    place = claude.project.path / ".codeprobe" / "canary"
    place.parent.mkdir()
    place.write_text("no folder\n")
    envelope = run(claude, "auto")
    assert (envelope["exit_code"], claude.canaries) == (0, 1)
    assert any("can't be kept" in w for w in envelope["warnings"])
    (line,) = envelope["data"]["canary"]["proofs"]
    assert (line["state"], line["proof"]) == ("proved", None)


def test_two_runs_at_once(claude: FakeClaude) -> None:
    asked = ("tasks", "--codeprobe-agent=claude", "--codeprobe-canary=auto")
    first = claude.project.start(*asked, "--codeprobe-run-dir=one", junit=False)
    second = claude.project.start(*asked, "--codeprobe-run-dir=two", junit=False)
    assert [first.wait().code, second.wait().code] == [0, 0]
    assert len(proofs(claude)) == 1
    assert run(claude, "require")["exit_code"] == 0
    assert not [p for p in proofs(claude)[0].parent.iterdir() if p.name not in (".gitignore", proofs(claude)[0].name)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_canary(claude: FakeClaude, mode: str, number: int) -> None:
    claude.install(hangs=True)
    asked = ("tasks", "--codeprobe-agent=claude", "--codeprobe-canary=auto", JSON)
    running = claude.project.start(*asked, mode=mode, junit=False)
    running.poll((claude.folder / "hangs").exists)
    running.signal(number)
    done = running.wait(30)
    envelope = done.assert_pure(events=False)
    assert (done.code, codes(envelope)) == (2, ["INTERRUPTED"])
    assert {(r["status"], r["reason"]) for r in envelope["data"]["results"]} == {("not_run", "interrupted")}
    assert envelope["data"]["canary"]["proofs"][0]["state"] == "stopped"
    assert (claude.canaries, claude.others) == (1, 0)
    assert not proofs(claude)
    done.assert_nothing_left()


def test_kill_9_in_the_canary_leaves_no_process_and_no_proof(claude: FakeClaude, mode: str) -> None:
    claude.install(hangs=True)
    running = claude.project.start("tasks", "--codeprobe-agent=claude", "--codeprobe-canary=auto", mode=mode, junit=False)
    running.poll((claude.folder / "hangs").exists)
    running.signal(signal.SIGKILL)
    running.wait(30)
    running.assert_nothing_left(15)
    assert not proofs(claude)
    claude.install(hangs=False)
    assert run(claude, "auto", mode=mode)["exit_code"] == 0


def test_a_full_list_of_plain_tests_is_none_of_its_business(claude: FakeClaude) -> None:
    """Without a trial that may start there is nothing to prove."""
    claude.project.write("tests/test_a.py", "def test_a(): pass\n")
    done = claude.project.run("tests", "--codeprobe-agent=claude", "--codeprobe-canary=require", junit=False)
    assert done.code == 0
    assert claude.sessions == []


# ---- the real CLI


@pytest.mark.real_cli
@pytest.mark.parametrize("honest", [True, False], ids=["does-it", "claims-it"])
def test_the_real_cli(project: Project, mode: str, honest: bool) -> None:
    real = ClaudeProject(project, require_clis())
    real.task("t")
    out = ToolCall("Write", {"file_path": "{cwd}/out.txt", "content": "done\n"})
    work = Script((Turn("I write it.", [out], Usage(701, 41, 503, 307)), Turn("Done.", usage=Usage(89, 13, 907, 0))), key="[t]")
    own = ToolCall("Write", {"file_path": "{cwd}/codeprobe-canary.txt", "content": "{nonce}\n"})
    turns = (Turn("", [own] if honest else (), Usage(101, 11, 0, 0)), Turn("{nonce}", usage=Usage(103, 7, 0, 0)))
    canary = Script(turns if honest else turns[1:], key="codeprobe-canary")
    with server([work, canary]) as model:
        done = real.run(model, "--codeprobe-canary=auto", mode=mode)
    envelope = done.envelope
    (line,) = envelope["data"]["canary"]["proofs"]
    assert (line["model"], line["fingerprint"]["agent_version"]) == (MODEL, locked_version("@anthropic-ai/claude-code"))
    spent = told(model, "codeprobe-canary", "t")
    if honest:
        assert (done.code, codes(envelope), line["state"]) == (0, [], "proved"), done.output
    else:
        assert (done.code, codes(envelope), line["state"]) == (6, ["CANARY_PROOF_FAILED"], "failed")
        assert {(r["status"], r["reason"]) for r in envelope["data"]["results"]} == {("not_run", "canary")}
    assert envelope["data"]["cost_usd"] == pytest.approx(cost(spent), abs=1e-6)
    assert envelope["data"]["tokens"] == tokens(spent)
