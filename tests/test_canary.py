"""--codeprobe-canary: one small known task before anything is paid for, and the proof that it leaves."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_codeprobe.agents.claude.adapter import Claude
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.config import AgentConfig
from pytest_codeprobe.model.context import Registry
from pytest_codeprobe.run.asking import Answer
from pytest_codeprobe.run.canary import Canary, Sample, widest
from pytest_codeprobe.run.configuration import configuration
from pytest_codeprobe.run.proofs import Fingerprint, Key, Proof, ProofStore
from pytest_codeprobe.text import Redactor
from tests.agent_sessions import make_trial
from tests.claude_runs import MODEL, ClaudeProject, cost, server, tokens, told
from tests.fake_claude import COST, FakeClaude
from tests.front_door import Project
from tests.install_clis import locked_version
from tests.model_server import Script, ToolCall, Turn, Usage
from tests.real_cli import require_clis

JSON = "--codeprobe-json"
DRY = "--codeprobe-dry-run"
SECRET = "hunter2-and-more"
KEY = Key("claude", None, "tempdir", (("permission_mode", "auto"),))


@pytest.fixture
def claude(project: Project) -> FakeClaude:
    """Two tasks for it."""
    fake = FakeClaude(project)
    fake.task("a")
    fake.task("b")
    return fake


def run(claude: FakeClaude, canary: str, *args: str, mode: str = "plain", agent: str = "claude", paths: str = "tasks") -> dict[str, Any]:
    """The envelope of a run."""
    asked = (f"--codeprobe-canary={canary}", f"--codeprobe-agent={agent}", JSON, *args)
    done = claude.project.run(paths, *asked, mode=mode, junit=False)
    envelope = done.assert_pure(events=False)
    if done.code != 4 and DRY not in args:  # else `latest` still is the run before
        done.assert_consistent()
    done.assert_nothing_left()
    return envelope


def codes(envelope: dict[str, Any]) -> list[str]:
    return [error["code"] for error in envelope["errors"]]


def ended(envelope: dict[str, Any]) -> set[tuple[str, str]]:
    return {(r["status"], r["reason"]) for r in envelope["data"]["results"]}


def states(envelope: dict[str, Any]) -> list[str]:
    return [proof["state"] for proof in envelope["data"]["canary"]["proofs"]]


def proofs(claude: FakeClaude) -> list[Path]:
    return sorted((claude.project.path / ".codeprobe" / "canary").glob("*.json"))


# ---- what each mode does


def test_the_life_of_a_proof(claude: FakeClaude, mode: str) -> None:
    none = run(claude, "require", mode=mode)
    assert (none["exit_code"], codes(none), claude.sessions) == (4, ["CANARY_PROOF_REQUIRED"], [])
    assert "canary auto" in none["errors"][0]["remediation"]

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
    before = file.read_text()
    proof = json.loads(before)
    assert str(file.relative_to(claude.project.path)) == line["proof"]
    assert proof["fingerprint"] == line["fingerprint"]
    assert (proof["fingerprint"]["agent_version"], proof["run_id"]) == ("2.1.332", data["run_id"])
    assert (file.parent / ".gitignore").read_text() == "*\n"
    record = json.loads((claude.project.path / data["run_dir"] / "trials" / line["folder"] / "result.json").read_text())
    assert (record["status"], [c["verdict"] for c in record["criteria"]]) == ("passed", ["passed", "passed"])

    stored = run(claude, "require", mode=mode)
    assert (stored["exit_code"], claude.canaries) == (0, 1)
    (line,) = stored["data"]["canary"]["proofs"]
    assert (line["state"], line["cost_usd"], line["proved_at"]) == ("stored", None, proof["proved_at"])
    assert stored["data"]["cost_usd"] == pytest.approx(2 * COST)

    claude.install(version="2.2.0")
    other = run(claude, "auto", mode=mode)
    assert (other["exit_code"], codes(other)) == (4, ["CANARY_MISMATCH"])
    (error,) = other["errors"]
    assert "agent version: 2.1.332 -> 2.2.0" in error["message"]
    assert error["detail"]["differences"] == {"agent_version": {"old": "2.1.332", "new": "2.2.0"}}
    assert "renew" in error["remediation"]
    assert {r["status"] for r in other["data"]["results"]} <= {"not_run"}
    assert (claude.canaries, claude.others, file.read_text()) == (1, 4, before)


def test_it_is_renewed_by_success_alone_and_lost_by_failure_alone(claude: FakeClaude) -> None:
    assert claude.project.codeprobe("run", "--agent", "claude", "--canary", "auto", "--json").code == 0
    claude.install(version="2.2.0")
    assert run(claude, "renew")["exit_code"] == 0
    assert claude.canaries == 2
    (file,) = proofs(claude)
    assert json.loads(file.read_text())["fingerprint"]["agent_version"] == "2.2.0"
    claude.install(fails="no such model")
    crashed = run(claude, "renew")
    assert (crashed["exit_code"], codes(crashed), states(crashed)) == (6, ["AGENT_CRASHED"], ["failed"])
    assert "in the canary of agent claude" in crashed["errors"][0]["message"]
    assert file.exists()
    claude.install(fails="", writes=False)
    assert codes(run(claude, "renew")) == ["CANARY_PROOF_FAILED"]
    assert not proofs(claude)
    assert claude.others == 4


@pytest.mark.parametrize(("lie", "mode"), [("writes", "plain"), ("writes", "xdist"), ("writes", "jobs"), ("repeats", "plain")])
def test_an_agent_that_does_not_do_it_starts_nothing_else(claude: FakeClaude, mode: str, lie: str) -> None:
    claude.install(**{lie: False})
    envelope = run(claude, "auto", mode=mode)
    assert (envelope["exit_code"], codes(envelope), states(envelope)) == (6, ["CANARY_PROOF_FAILED"], ["failed"])
    assert ended(envelope) == {("not_run", "canary")}
    assert (claude.others, proofs(claude)) == (0, [])
    (error,) = envelope["errors"]
    assert "doctor" in error["remediation"]
    assert error["detail"]["agent"] == "claude"
    assert envelope["data"]["cost_usd"] == pytest.approx(COST)


def test_off_agents_without_a_model_and_no_task_need_none(claude: FakeClaude) -> None:
    assert run(claude, "off")["data"]["canary"] is None
    envelope = run(claude, "require", agent="nop")
    assert (envelope["exit_code"], states(envelope)) == (1, ["not_needed"])  # nop does nothing
    claude.project.write("tests/test_a.py", "def test_a(): pass\n")
    done = claude.project.run("tests", "--codeprobe-agent=claude", "--codeprobe-canary=require", junit=False)
    assert (done.code, claude.canaries) == (0, 0)


# ---- what it proves


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_each_way_in_which_an_agent_is_started_has_a_proof_of_its_own(claude: FakeClaude, mode: str) -> None:
    claude.task("a", agent={"type": "claude", "allowed_tools": ["read"], "append_system_prompt": "Never write."})
    claude.task("c", agent={"type": "claude", "model": "opus"})
    own = {"args": ["--token", SECRET], "env": {"OWN_TOKEN": SECRET}, "claude": {"settings": {"env": {"K": SECRET}}}}
    claude.task("d", agent={"type": "claude", **own}, sandbox={"env": {"PLACE": SECRET}})
    claude.task("e", agent={"type": "claude", "permission_mode": "plan"})
    envelope = run(claude, "auto", mode=mode)
    assert (envelope["exit_code"], claude.canaries, len(proofs(claude)), states(envelope)) == (0, 4, 4, ["proved"] * 4)
    asked = [session["argv"] for session in claude.sessions if session["canary"]]
    assert not any("--append-system-prompt-file" in argv or "--tools" in argv for argv in asked)
    assert sum("--token" in argv for argv in asked) == 1
    names = {name for proof in envelope["data"]["canary"]["proofs"] for name in proof["configuration"]}
    assert names == {"permission_mode", "args", "env.OWN_TOKEN", "claude.settings", "sandbox.env.PLACE"}

    claude.task("d", agent={"type": "claude", **own, "env": {"OWN_TOKEN": "a new key"}}, sandbox={"env": {"PLACE": SECRET}})
    again = run(claude, "require", mode=mode, paths="tasks/d.yaml")
    assert (again["exit_code"], states(again), claude.canaries) == (0, ["stored"], 4)
    refused = run(
        claude, "require", "--codeprobe-permission-mode=acceptEdits", "--codeprobe-backend=direct", mode=mode, paths="tasks/b.yaml"
    )
    (error,) = refused["errors"]
    assert (error["code"], error["detail"]["differs_in"]) == ("CANARY_PROOF_REQUIRED", ["permission_mode"])
    for text in (*(file.read_text() for file in proofs(claude)), *map(json.dumps, (envelope, again, refused))):
        assert SECRET not in text
    plan = json.loads((claude.project.path / envelope["data"]["run_dir"] / "plan.json").read_text())
    assert SECRET not in json.dumps(plan)


def test_the_digest_of_a_configuration_tells_nothing_and_forgets_known_secrets() -> None:
    def of(backend: str | None = None, **agent: Any) -> dict[str, str]:
        trial = make_trial(Path("/nowhere"), {"type": "claude", **agent})
        return configuration(trial, backend, lambda text: text.replace("old-key", "[redacted]").replace("new-key", "[redacted]"))

    assert of() == of("direct") == {"permission_mode": "auto"}
    assert of("bedrock", permission_mode="plan") == {"backend": "bedrock", "permission_mode": "plan"}
    assert of(args=("--x",)) != of(args=("--y",))
    assert of(args=("--x", "old-key")) == of(args=("--x", "new-key"))
    assert of(env={"A_KEY": "1"}) == of(env={"A_KEY": "2"}) != of()
    assert of(env={"PLACE": "1"}) != of(env={"PLACE": "2"})
    assert all(re.fullmatch(r"[0-9a-f]{16}|auto", value) for value in of(args=(SECRET,), env={"B": SECRET}).values())


@pytest.mark.parametrize(
    ("config", "writes"),
    [
        ({}, True),
        ({"permission_mode": "bypassPermissions"}, True),
        ({"permission_mode": "acceptEdits"}, True),
        ({"permission_mode": "default"}, False),
        ({"permission_mode": "plan"}, False),
        ({"claude": {"permission_mode": "dontAsk"}}, False),
        ({"permission_mode": "plan", "claude": {"permission_mode": "auto"}}, True),
    ],
)
def test_which_modes_can_write(config: dict[str, Any], writes: bool) -> None:
    assert Claude().may_write(AgentConfig.model_validate({"type": "claude", **config})) is writes


def test_limits_are_the_widest_of_the_trials_it_stands_for() -> None:
    limits = widest([{"setup_timeout": 600, "max_usd": 1.0}, {"setup_timeout": 30, "max_usd": 2.0, "max_total_tokens": 5}])
    assert (limits.setup_timeout, limits.max_usd, limits.max_total_tokens) == (600, 2.0, None)
    limits = widest([{"max_usd": 1.0}, {"max_usd": 3.0}, {"max_total_tokens": 5}, {"max_total_tokens": 7}])
    assert (limits.max_usd, limits.max_total_tokens) == (3.0, 7), "each is bounded, and so is the canary"
    limits = widest([{"max_usd": 1.0}, {"max_total_tokens": 5}, {}])
    assert (limits.max_usd, limits.max_total_tokens) == (None, None)


CONFTEST = """
import os, pathlib, pytest
{first}
@pytest.hookimpl(wrapper=True)
def pytest_codeprobe_make_sandbox(trial):
    with pathlib.Path(os.environ["MADE"]).open("a") as file:
        file.write(trial.task_id + "\\n")
    return (yield)
"""


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_sandboxes_that_a_folder_makes_are_the_canarys_too(claude: FakeClaude, mode: str) -> None:
    made = claude.project.environment["MADE"] = str(claude.project.scratch / "made")
    claude.project.write("tasks/sub/conftest.py", CONFTEST.format(first=""))
    claude.task("c", file="tasks/sub/c.yaml")
    envelope = run(claude, "auto", mode=mode)
    assert (envelope["exit_code"], codes(envelope), claude.canaries) == (0, [], 2)
    assert sorted(Path(made).read_text().split()) == ["c", "canary"]
    found = [proof["configuration"].get("sandbox.made_by") for proof in envelope["data"]["canary"]["proofs"]]
    assert sorted(map(str, found)) == ["None", "tasks/sub/conftest.py"]


AGENT = """
from pytest_codeprobe.agents.claude.adapter import Claude
class Mine(Claude):
    name, aliases, table = "mine", (), None
def pytest_codeprobe_agents(config): return [Mine()]
"""


@pytest.mark.parametrize(("mode", "canary"), [("plain", "auto"), ("xdist", "auto"), ("xdist", "off")])
def test_so_are_agents_that_a_folder_brings(claude: FakeClaude, mode: str, canary: str) -> None:
    for task in ("a", "b"):
        (claude.project.path / "tasks" / f"{task}.yaml").unlink()
    claude.project.write("tasks/sub/conftest.py", AGENT)
    claude.project.environment["CODEPROBE_DRIVER"] = ""  # an option that names one has the hooks asked before the folder is looked into
    claude.task("c", file="tasks/sub/c.yaml", agent={"type": "mine"}, sandbox={"driver": "tempdir"})
    spread = ("--", "-n", "2") if mode == "xdist" else ()
    done = claude.project.codeprobe("run", "tasks", "--json", f"--canary={canary}", *spread)
    assert (done.code, codes(done.assert_pure(events=False))) == (0, [])
    assert (claude.canaries, claude.others) == (int(canary == "auto"), 1)


def test_a_conftest_that_only_workers_can_load(claude: FakeClaude) -> None:
    first = "if 'PYTEST_XDIST_WORKER' not in os.environ: raise RuntimeError('for workers alone')"
    claude.project.write("tasks/sub/conftest.py", CONFTEST.format(first=first))
    claude.task("c", file="tasks/sub/c.yaml")
    envelope = run(claude, "auto", mode="xdist")
    assert (envelope["exit_code"], codes(envelope), claude.sessions) == (4, ["USAGE_ERROR"], [])
    assert "sub/conftest.py: can't be loaded in xdist's controller" in envelope["errors"][0]["message"]
    assert "for workers alone" in envelope["errors"][0]["message"]


# ---- what is told of it


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_a_person_is_told_below_the_header(claude: FakeClaude, mode: str) -> None:
    asked = ["tasks", "--codeprobe-agent=claude", "--codeprobe-canary=auto"]
    if mode == "xdist":  # whose controller hears of tasks and canary only once workers have collected
        asked = ["tasks/a.yaml", "tasks/b.yaml"]
        claude.project.environment["CODEPROBE_CANARY"] = "auto"
    done = claude.project.run(*asked, mode=mode, junit=False)
    key = r"agent claude \(its default model, driver tempdir\)"
    header, line, summary = (
        re.search(pattern, done.stdout)
        for pattern in (
            "codeprobe: 2 trials",
            rf"codeprobe: canary: {key} 2\.1\.332 \.\.\. passed in \d+\.\d s, \$0\.01",
            f"canary: {key}: proved now",
        )
    )
    assert header, done.output
    assert line, done.output
    assert summary, done.output
    assert header.start() < line.start() < summary.start()


def test_a_dry_run_foretells_it(claude: FakeClaude) -> None:
    """It starts no session, and asks for the version once in a run."""
    first = run(claude, "auto", DRY)
    assert (first["exit_code"], states(first), first["data"]["estimate"]["canaries"]) == (0, ["due"], 1)
    assert first["data"]["estimate"]["cost_usd"]["expected"] is None
    none = run(claude, "require", DRY, mode="xdist")
    assert (none["exit_code"], codes(none)) == (4, ["CANARY_PROOF_REQUIRED"])
    assert (claude.sessions, claude.asked) == ([], 2)
    assert run(claude, "auto")["exit_code"] == 0
    stored = run(claude, "require", DRY)
    assert (stored["exit_code"], states(stored), stored["data"]["estimate"]["canaries"]) == (0, ["stored"], 0)
    assert stored["data"]["estimate"]["cost_usd"]["expected"] == pytest.approx(2 * COST)
    again = run(claude, "renew", DRY)
    assert (again["exit_code"], states(again)) == (0, ["due"])
    assert again["data"]["estimate"]["cost_usd"]["expected"] == pytest.approx(3 * COST)
    claude.install(version="2.2.0")
    other = run(claude, "auto", DRY)
    assert (other["exit_code"], codes(other)) == (4, ["CANARY_MISMATCH"])
    assert len(claude.sessions) == 3


# ---- what else may end it


@pytest.mark.parametrize(
    ("status", "code", "attempts"), [((500, 500), "LLM_UNAVAILABLE", 2), ((401,), "AUTH_FAILED", 1), ((429,), None, 2)]
)
def test_trouble_in_it_keeps_its_own_code(claude: FakeClaude, status: tuple[int, ...], code: str | None, attempts: int) -> None:
    claude.install(refuses=status)
    envelope = run(claude, "auto")
    assert codes(envelope) == ([code] if code else [])
    (line,) = envelope["data"]["canary"]["proofs"]
    assert (line["state"], line["code"]) == ("failed" if code else "proved", code)
    assert claude.canaries == attempts
    if code:
        assert envelope["exit_code"] == 6
        assert ended(envelope) == {("not_run", "canary")}
        (error,) = envelope["errors"]
        assert error["message"].startswith("in the canary of agent claude")
        assert error["detail"]["canary"] is True
    else:
        assert (envelope["exit_code"], claude.others) == (0, 2)


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_the_budget_of_the_run_is_its_own_too(claude: FakeClaude, mode: str) -> None:
    envelope = run(claude, "auto", f"--codeprobe-max-cost-usd={COST * 0.9}", mode=mode)
    assert (envelope["exit_code"], codes(envelope)) == (6, ["BUDGET_EXCEEDED"])
    assert (claude.canaries, claude.others) == (1, 0)
    assert ended(envelope) == {("not_run", "budget")}
    assert envelope["data"]["cost_usd"] == pytest.approx(COST)


def test_one_that_does_not_fit_into_the_budget_lets_nothing_start(claude: FakeClaude) -> None:
    """Smaller tasks would, but are not paid without a proof."""
    claude.task("a", run_limits={"max_usd": 5.0})
    claude.task("b", run_limits={"max_usd": 1.0})
    envelope = run(claude, "auto", "--codeprobe-max-cost-usd=4")
    assert (envelope["exit_code"], codes(envelope), claude.sessions) == (6, ["BUDGET_EXCEEDED"], [])
    assert {r["status"] for r in envelope["data"]["results"]} == {"not_run"}


def test_the_time_of_the_run_is_its_own_too(claude: FakeClaude) -> None:
    claude.install(hangs=True)
    envelope = run(claude, "auto", "--codeprobe-max-duration=2s")
    assert (envelope["exit_code"], codes(envelope), states(envelope)) == (6, ["BUDGET_EXCEEDED"], ["stopped"])
    assert envelope["errors"][0]["detail"]["kind"] == "time"
    assert (claude.canaries <= 1, claude.others, proofs(claude)) == (True, 0, [])


def test_a_version_that_is_not_told_is_no_proof(claude: FakeClaude) -> None:
    claude.install(mute=True)
    envelope = run(claude, "auto")
    assert (envelope["exit_code"], codes(envelope), claude.sessions, proofs(claude)) == (4, ["NO_BACKENDS_CONFIGURED"], [], [])
    assert "exit status 1" in envelope["errors"][0]["message"]


def test_nor_is_one_that_comes_too_late(tmp_path: Path) -> None:
    registry = Registry(agents={"claude": Claude()}, drivers={}, criteria={})
    context = SimpleNamespace(rootdir=tmp_path, registry=registry, redactor=Redactor())
    sample = Sample(trial=make_trial(tmp_path, {"type": "claude"}), limits=widest([]))

    def canary(answer: Answer, *, dry: bool = False) -> Canary:
        made = Canary("auto", context, None, print, lambda _: {"claude": answer}, dry=dry)  # type: ignore[arg-type]
        made.examine({KEY: sample})
        return made

    for answer in (Answer("2.1.332", "no answer within 10 s"), Answer("")):
        with pytest.raises(CodeprobeError, match=r"NO_BACKENDS_CONFIGURED.*--version"):
            canary(answer)
        assert canary(answer, dry=True).outcomes[0].state == "due"
    known = canary(Answer("a build of my own"), dry=True).outcomes[0].fingerprint
    assert known is not None
    assert known.agent_version == "a build of my own"


# ---- broken, full, shared, interrupted


def proof(key: Key = KEY) -> Proof:
    return Proof(
        agent=key.agent, model=key.model, driver=key.driver, configuration=dict(key.configuration), run_id="r", proved_at="t",
        fingerprint=Fingerprint(agent_version="1", os="o", plugin_major="0"), duration_seconds=1.0, cost_usd=None, tokens=None,
    )  # fmt: skip


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema_version": "9"}', bytes(100), b"fifo", b"symlink", b"folder", b"other"])
def test_what_lies_in_its_place_is_none(tmp_path: Path, content: bytes) -> None:
    """It neither blocks nor leads elsewhere."""
    store = ProofStore(tmp_path)
    store.write(KEY, proof())
    assert store.read(KEY) == proof()
    file = store.path(KEY)
    file.unlink()
    if content == b"fifo":
        os.mkfifo(file)
    elif content == b"symlink":
        (tmp_path / "elsewhere").write_text(proof().model_dump_json())
        file.symlink_to(tmp_path / "elsewhere")
    elif content == b"folder":
        file.mkdir()
    else:
        file.write_bytes(proof(Key("other", None, "tempdir")).model_dump_json().encode() if content == b"other" else content)
    assert isinstance(store.read(KEY), str)
    assert [p.agent for p in store.others("claude")] == []
    if content != b"folder":
        store.write(KEY, proof())
        assert store.read(KEY) == proof()


def test_a_broken_proof_is_said_and_made_again(claude: FakeClaude) -> None:
    run(claude, "auto")
    proofs(claude)[0].write_text("{")
    assert codes(run(claude, "require")) == ["CANARY_PROOF_REQUIRED"]
    envelope = run(claude, "auto")
    assert (envelope["exit_code"], claude.canaries) == (0, 2)
    assert any("is no proof" in w for w in envelope["warnings"])


def test_a_place_that_can_not_be_written_is_said_and_the_run_goes_on(claude: FakeClaude) -> None:
    place = claude.project.path / ".codeprobe" / "canary"
    place.parent.mkdir()
    place.write_text("no folder\n")
    envelope = run(claude, "auto")
    assert (envelope["exit_code"], claude.canaries) == (0, 1)
    assert any("can't be kept" in w for w in envelope["warnings"])
    (line,) = envelope["data"]["canary"]["proofs"]
    assert (line["state"], line["proof"]) == ("proved", None)


def test_a_full_disk_keeps_the_old_proof(tmp_path: Path) -> None:
    store = ProofStore(tmp_path)
    store.folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(store.folder)], check=True)
    try:
        store.write(KEY, proof())
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            (store.folder / "rest").write_bytes(bytes(1 << 20))
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            store.write(KEY, proof().model_copy(update={"run_id": "another" * 2000}))
        assert store.read(KEY) == proof()
        assert {p.name for p in store.folder.iterdir()} == {".gitignore", "rest", store.path(KEY).name}
    finally:
        subprocess.run(["umount", str(store.folder)], check=True)


def test_two_runs_at_once(claude: FakeClaude) -> None:
    asked = ("tasks", "--codeprobe-agent=claude", "--codeprobe-canary=auto")
    first = claude.project.start(*asked, "--codeprobe-run-dir=one", junit=False)
    second = claude.project.start(*asked, "--codeprobe-run-dir=two", junit=False)
    assert [first.wait().code, second.wait().code] == [0, 0]
    (file,) = proofs(claude)
    assert isinstance(ProofStore(claude.project.path).others("claude")[0], Proof)
    assert not [p for p in file.parent.iterdir() if p.name not in (".gitignore", file.name)]


@pytest.mark.parametrize(("number", "mode"), [(signal.SIGINT, "plain"), (signal.SIGINT, "xdist"), (signal.SIGTERM, "plain")])
def test_an_interrupt_ends_the_canary(claude: FakeClaude, mode: str, number: int) -> None:
    claude.install(hangs=True)
    asked = ("tasks", "--codeprobe-agent=claude", "--codeprobe-canary=auto", JSON)
    running = claude.project.start(*asked, mode=mode, junit=False)
    running.poll((claude.folder / "hangs").exists)
    running.signal(number)
    done = running.wait(30)
    envelope = done.assert_pure(events=False)
    assert (done.code, codes(envelope)) == (2, ["INTERRUPTED"])
    assert ended(envelope) == {("not_run", "interrupted")}
    assert states(envelope) == ["stopped"]
    assert (claude.canaries, claude.others, proofs(claude)) == (1, 0, [])
    done.assert_nothing_left()


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_kill_9_in_the_canary_leaves_no_process_and_no_proof(claude: FakeClaude, mode: str) -> None:
    claude.install(hangs=True)
    running = claude.project.start("tasks", "--codeprobe-agent=claude", "--codeprobe-canary=auto", mode=mode, junit=False)
    running.poll((claude.folder / "hangs").exists)
    running.signal(signal.SIGKILL)
    running.wait(30)
    running.assert_nothing_left(15)
    assert not proofs(claude)


# ---- the real CLI


@pytest.mark.real_cli
@pytest.mark.parametrize("does", ["writes", "claims", "reads"])
def test_the_real_cli(project: Project, does: str) -> None:
    real = ClaudeProject(project, require_clis())
    real.task("t", **({"agent": {"permission_mode": "plan"}} if does == "reads" else {}))
    out = ToolCall("Write", {"file_path": "{cwd}/out.txt", "content": "done\n"})
    work = Script((Turn("I write it.", [out], Usage(701, 41, 503, 307)), Turn("Done.", usage=Usage(89, 13, 907, 0))), key="[t]")
    own = {
        "writes": ToolCall("Write", {"file_path": "{cwd}/codeprobe-canary.txt", "content": "{nonce}\n"}),
        "reads": ToolCall("Read", {"file_path": "{cwd}/codeprobe-canary.txt"}),
    }
    turns = (Turn("", [own[does]] if does in own else (), Usage(101, 11, 0, 0)), Turn("{nonce}", usage=Usage(103, 7, 0, 0)))
    canary = Script(turns if does in own else turns[1:], key="codeprobe-canary")
    with server([work, canary]) as model:
        done = real.run(model, "--codeprobe-canary=auto")
    envelope = done.envelope
    (line,) = envelope["data"]["canary"]["proofs"]
    assert (line["model"], line["fingerprint"]["agent_version"]) == (MODEL, locked_version("@anthropic-ai/claude-code"))
    spent = told(model, "codeprobe-canary", "t")
    if does == "claims":
        assert (done.code, codes(envelope), line["state"]) == (6, ["CANARY_PROOF_FAILED"], "failed")
        assert ended(envelope) == {("not_run", "canary")}
    else:
        assert (codes(envelope), line["state"]) == ([], "proved"), done.output
        assert done.code == (1 if does == "reads" else 0)  # the task itself can't be done in that mode
    assert envelope["data"]["cost_usd"] == pytest.approx(cost(spent), abs=1e-6)
    assert envelope["data"]["tokens"] == tokens(spent)
