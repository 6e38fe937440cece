"""Doctor: what it finds on machines of every kind, what may fail, that it is quick, pure JSON where that is asked for, and discreet."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.front_door import Project, Run
from tests.schemas import check
from tests.unprivileged import unprivileged_argv

KEY = "sk-ant-api03-verysecret0123456789"
JSON = "--json"
#: programs that a machine has in any case
BASE = ("git", "sh", "env", "sleep", "cat", "cp", "rm", "true", "touch", "mkdir")
#: all of the machine's disks are one, which is full
NO_OTHER_FOLDER = """\
import os, tempfile
tempfile._candidate_tempdir_list = lambda: [os.environ["TMPDIR"]]
from pytest_codeprobe.cli import main
main()
"""
GOOD_CLI = "#!/bin/sh\necho '2.1.332 (Claude Code)'\n"


@pytest.fixture
def machine(project: Project) -> Machine:
    return Machine(project)


class Machine:
    """A PATH, a HOME and an environment of its own."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.bin, self.home = project.scratch / "programs", project.scratch / "home"
        self.bin.mkdir()
        self.home.mkdir()
        for name in BASE:
            if found := shutil.which(name):
                (self.bin / name).symlink_to(found)
        self.environment = {"PATH": str(self.bin), "HOME": str(self.home)}
        for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CONFIG_DIR"):
            self.environment[name] = ""
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
                     "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"):  # fmt: skip
            self.environment[name] = self.environment[name.lower()] = ""

    def program(self, name: str, text: str) -> Path:
        """A program on its PATH."""
        file = self.bin / name
        file.write_text(text)
        file.chmod(0o755)
        return file

    def login(self, seconds: float) -> Path:
        """A stored login of claude, good for so long."""
        file = self.home / ".claude" / ".credentials.json"
        file.parent.mkdir(exist_ok=True)
        login = {"accessToken": "sk-ant-oat01-hush-hush-hush", "refreshToken": KEY, "expiresAt": int((time.time() + seconds) * 1000)}
        file.write_text(json.dumps({"claudeAiOauth": login}))
        return file

    def doctor(self, *args: str, **environment: str) -> Report:
        """`codeprobe doctor --json`."""
        return Report(self.project.codeprobe("doctor", JSON, *args, env={**self.environment, **environment}))


class Report:
    """One line of JSON, and nothing else on stdout."""

    def __init__(self, run: Run) -> None:
        self.run = run
        (self.envelope,) = run.lines
        check("envelope", self.envelope)
        assert self.envelope["command"] == "doctor"
        assert self.envelope["exit_code"] == run.code, run.stderr
        assert (self.envelope["status"] == "error") == bool(self.failed) == bool(self.envelope["errors"]), self.envelope
        assert run.code == (6 if self.failed else 0)
        if self.failed:
            (error,) = self.envelope["errors"]
            assert (error["code"], sorted(error["detail"]["checks"])) == ("DOCTOR_CHECKS_FAILED", sorted(self.failed))
        run.assert_nothing_left()
        assert not list(Path(run.project.environment["TMPDIR"]).glob("*codeprobe*"))
        assert not (run.project.path / ".codeprobe").exists()

    @property
    def checks(self) -> dict[str, dict[str, Any]]:
        return {check["name"]: check for check in self.envelope["data"]["checks"]}

    @property
    def failed(self) -> list[str]:
        return [name for name, check in self.checks.items() if check["status"] == "fail"]

    def status(self, name: str) -> str:
        return str(self.checks[name]["status"])

    def message(self, name: str) -> str:
        return str(self.checks[name]["message"])


# ---------------------------------------------------------------- agents


def test_a_machine_without_agents(machine: Machine) -> None:
    report = machine.doctor()
    assert report.failed == ["agents"]
    assert "npm install" in report.checks["agents"]["fix"]
    assert "--agent" in report.checks["agents"]["fix"].split()[-1]
    assert report.status("agent.claude.cli") == "info"
    assert report.status("agent.codex") == "info"
    assert "not available yet" in report.message("agent.codex")
    for name in ("python", "pytest", "pytest-xdist", "pytest-codeprobe", "git", "disk.tmp", "disk.runs", "clock", "driver.tempdir"):
        assert report.status(name) == "pass", report.checks[name]


def test_a_machine_with_one(machine: Machine) -> None:
    path = machine.program("claude", GOOD_CLI)
    report = machine.doctor(ANTHROPIC_API_KEY=KEY)
    assert report.failed == []
    assert report.message("agents") == "can be used here: claude; none is chosen"
    assert report.checks["agent.claude.version"]["detail"]["version"] == "2.1.332"
    assert report.checks["agent.claude.cli"]["detail"]["path"] == str(path)
    chosen = machine.doctor("--agent", "claude", ANTHROPIC_API_KEY=KEY)
    assert chosen.failed == []
    assert "agents" not in chosen.checks
    assert chosen.envelope["data"]["agent"] == "claude"
    assert machine.doctor("-T", "claude-code", ANTHROPIC_API_KEY=KEY).envelope["data"]["agent"] == "claude"


def test_without_credentials(machine: Machine) -> None:
    machine.program("claude", GOOD_CLI)
    assert machine.doctor().failed == ["agents"]
    chosen = machine.doctor("--agent", "claude")
    assert chosen.failed == ["agent.claude.credentials"]
    assert "ANTHROPIC_API_KEY" in chosen.checks["agent.claude.credentials"]["fix"]
    assert machine.doctor(CODEPROBE_AGENT="claude").failed == ["agent.claude.credentials"]
    machine.project.write("pytest.ini", "[pytest]\ncodeprobe_agent = claude\n")
    assert machine.doctor().failed == ["agent.claude.credentials"]


BROKEN = {
    "crash": ("#!/bin/sh\necho 'cannot load libfoo' >&2\nexit 127\n", "exit status 127: cannot load libfoo"),
    "signal": ("#!/bin/sh\nkill -SEGV $$\n", "signal 11"),
    "old": ("#!/bin/sh\necho '2.0.76 (Claude Code)'\n", "is too old: 2.1.0 or later is needed"),
    "no-interpreter": ("#!/no/such/interpreter\n", "could not be started"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_machine_with_a_broken_one(machine: Machine, kind: str) -> None:
    text, says = BROKEN[kind]
    machine.program("claude", text)
    machine.login(86400)
    report = machine.doctor("--agent", "claude")
    assert report.failed == ["agent.claude.version"]
    assert says in report.message("agent.claude.version")
    assert "npm install" in report.checks["agent.claude.version"]["fix"]
    if kind == "crash":
        other = machine.doctor()
        assert (other.status("agent.claude.version"), other.failed) == ("warn", ["agents"])


@pytest.mark.parametrize("text", ["sleep 77 &\nsleep 77\n", "trap '' TERM INT\nwhile :; do sleep 1; done\n"], ids=["hang", "stubborn"])
def test_one_that_is_slow_is_no_fault(machine: Machine, text: str) -> None:
    """It may start for the first time, on a machine that is busy. It holds nobody up, and nothing of it is left."""
    machine.program("claude", f"#!/bin/sh\n{text}")
    machine.login(86400)
    report = machine.doctor("--agent", "claude")
    assert (report.failed, report.status("agent.claude.version")) == ([], "warn")
    assert "has not answered in 2 s" in report.message("agent.claude.version")
    assert report.run.seconds < 30


def test_programs_are_asked_in_a_home_of_their_own(machine: Machine) -> None:
    """Where they find nothing of the user's, no key, and can leave nothing."""
    look = 'echo "$HOME $XDG_CONFIG_HOME $ANTHROPIC_API_KEY" >> "$0.saw"'
    names = {"claude": 'touch "$HOME/left" 2> /dev/null; echo 2.1.332', "docker": "exit 0"}
    for name, text in names.items():
        machine.program(name, f"#!/bin/sh\n{look}; {text}\n")
    assert machine.doctor("--agent", "claude", ANTHROPIC_API_KEY=KEY, XDG_CONFIG_HOME=str(machine.home)).failed == []
    for name in names:
        saw = (machine.bin / f"{name}.saw").read_text()
        assert saw.strip()
        assert KEY not in saw
        assert name == "docker" or str(machine.home) not in saw  # an engine's client reads in HOME where the engine is
    assert list(machine.home.iterdir()) == []


def test_one_that_says_too_much_or_nothing(machine: Machine) -> None:
    machine.program("claude", f"#!/bin/sh\nyes 'your key is {KEY}' | head -c 3000000\n")
    machine.bin.joinpath("yes").symlink_to(str(shutil.which("yes")))
    machine.bin.joinpath("head").symlink_to(str(shutil.which("head")))
    report = machine.doctor("--agent", "claude", ANTHROPIC_API_KEY=KEY)
    assert report.status("agent.claude.version") in ("warn", "fail")
    machine.program("claude", "#!/bin/sh\n")
    assert "names no version" in machine.doctor("--agent", "claude", ANTHROPIC_API_KEY=KEY).message("agent.claude.version")


@pytest.mark.parametrize(
    ("seconds", "chosen", "status"),
    [(600, True, "warn"), (-60, True, "fail"), (-60, False, "warn")],
)
def test_how_long_a_login_holds(machine: Machine, seconds: float, chosen: bool, status: str) -> None:
    machine.program("claude", GOOD_CLI)
    file = machine.login(seconds)
    report = machine.doctor(*(("--agent", "claude") if chosen else ()))
    found = report.checks["agent.claude.credentials"]
    assert (found["status"], found["detail"]["source"]) == (status, str(file))
    assert ("expired at" in found["message"]) == (seconds < 0)
    assert report.failed == {("fail", True): ["agent.claude.credentials"], ("warn", False): ["agents"]}.get((status, chosen), [])


def test_what_an_offline_run_would_refuse(machine: Machine) -> None:
    """A lifetime that is too short, or that nobody knows."""
    machine.program("claude", GOOD_CLI)
    token = {"CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-some-token"}
    assert machine.doctor("--agent", "claude", **token).failed == []
    assert machine.doctor("--agent", "claude", "--offline", **token).failed == ["agent.claude.credentials"]
    machine.login(600)
    assert machine.doctor("--agent", "claude", "--offline").failed == ["agent.claude.credentials"]
    assert machine.doctor("--agent", "claude", "--offline", "--offline-expected-run-duration", "5m").failed == []
    assert machine.doctor("--agent", "claude", "--offline", ANTHROPIC_API_KEY=KEY).failed == []


def test_a_plugins_own_agent_and_a_hook_that_raises(machine: Machine) -> None:
    machine.program("claude", GOOD_CLI)
    agent = """\
from pytest_codeprobe.agents.command import CommandAgent

class Own(CommandAgent):
    name = "own"
    executable = "own"
    def find(self, context): return None

class Bad(CommandAgent):
    name = "bad"
    def unavailable(self, context, declared=frozenset()): raise RuntimeError("boom")

def pytest_codeprobe_agents(config): return [Own(), Bad()]
"""
    machine.project.write("conftest.py", agent)
    report = machine.doctor("--agent", "own")
    assert report.failed == ["agent.own.cli"]
    assert report.status("agent.bad") == "warn"
    assert "RuntimeError: boom" in report.message("agent.bad")


# ---------------------------------------------------------------- the probe

PROBED = """\
import re
from pathlib import Path
from pytest_codeprobe.agents.command import CommandAgent, CommandParser
from pytest_codeprobe.model.agent import SessionCommand, SessionEnd

class Parser(CommandParser):
    def end(self, exit, *, stopped_for, stderr_tail):
        refused = self.request.trial.agent.type == "refused"
        return SessionEnd(code="AUTH_FAILED", reason="the provider said 401") if refused else SessionEnd()

class Probed(CommandAgent):
    supports = frozenset({"model"})
    def parser(self, request): return Parser(request)
    def command(self, request):
        text, name = re.search(r"the text (\\S+) into a new file called (\\S+)", request.prompt).groups()
        first = {"good": f"echo {text} > {name};", "slow": f"touch {Path(__file__).parent}/on; sleep 60;"}.get(self.name, "")
        return SessionCommand(argv=("/bin/sh", "-c", f"{first} echo {text}"))

def pytest_codeprobe_agents(config):
    return [type(name.title(), (Probed,), {"name": name})() for name in ("good", "liar", "refused", "slow")]
"""


@pytest.mark.parametrize(
    ("agent", "status", "says"),
    [
        ("good", "pass", "good did a small task in"),
        ("liar", "fail", "verdict failed"),
        ("refused", "fail", "AUTH_FAILED: the provider said 401"),
        ("scripted", "info", "calls no model"),
    ],
)
def test_probe(machine: Machine, agent: str, status: str, says: str) -> None:
    machine.project.write("conftest.py", PROBED)
    report = machine.doctor("--probe", "--agent", agent)
    assert (report.status("probe"), report.failed) == (status, ["probe"] if status == "fail" else [])
    assert says in report.message("probe")


def test_probe_of_nobody(machine: Machine) -> None:
    report = machine.doctor("--probe")
    assert (report.status("probe"), report.failed) == ("warn", ["agents"])
    assert report.checks["probe"]["fix"] == "Name one with --agent."


def test_a_probe_that_is_interrupted(machine: Machine) -> None:
    machine.project.write("conftest.py", PROBED)
    program = ("-c", "from pytest_codeprobe.cli import main; main()")
    args = ("doctor", "--json", "--probe", "--agent", "slow")
    run = machine.project.start(*args, program=program, env=machine.environment, junit=False)
    run.poll((machine.project.path / "on").exists)
    run.signal(signal.SIGINT)
    (told,) = run.wait().lines
    check("envelope", told)
    assert (run.code, told["command"], told["errors"][0]["code"]) == (2, "doctor", "INTERRUPTED")
    run.assert_nothing_left(10)
    assert not list(Path(machine.project.environment["TMPDIR"]).glob("codeprobe-*"))


# ---------------------------------------------------------------- the machine


def test_drivers(machine: Machine) -> None:
    """No bwrap; one that works, one that does not; drivers that are asked for and not there."""
    none = machine.doctor()
    assert "there is no program `bwrap` on PATH" in none.message("driver.bubblewrap")
    assert (none.status("driver.bubblewrap"), none.status("driver.docker")) == ("info", "info")
    machine.program("bwrap", "#!/bin/sh\nexit 7\n")  # as the probe's own command does, within it
    works = machine.doctor()
    assert (works.status("driver.bubblewrap"), works.message("driver.bubblewrap")) == ("pass", "bubblewrap: keeps the agent's tools inside")
    assert works.status("driver.bubblewrap.path") == "info"
    assert f"sessions don't see the programs in {machine.bin}" in works.message("driver.bubblewrap.path")
    machine.program("bwrap", "#!/bin/sh\necho 'No permissions to create new namespace' >&2; exit 1\n")
    report = machine.doctor("--driver", "bubblewrap", "--agent", "scripted")
    assert "`bwrap` does not work here: No permissions to create new namespace" in report.message("driver.bubblewrap")
    assert report.failed == ["driver.bubblewrap"]
    machine.program("docker", "#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2; exit 1\n")
    without = machine.doctor("--driver", "docker", "--agent", "scripted")
    assert without.failed == ["driver.docker"]
    engines = "docker: `docker` does not work here: Cannot connect to the Docker daemon; there is no program `podman` on PATH"
    assert without.message("driver.docker") == engines
    machine.program("podman", "#!/bin/sh\nexit 0\n")
    assert machine.doctor().message("driver.docker") == f"docker: keeps the agent's tools inside, by {machine.bin / 'podman'}"
    assert report.checks["driver.tempdir"]["detail"]["isolates"] is False
    assert report.checks["driver.tempdir"]["detail"]["process_tree"]


def test_without_git(machine: Machine) -> None:
    (machine.bin / "git").unlink()
    assert machine.doctor("--agent", "scripted").failed == ["git"]


def test_a_disk_that_is_full(machine: Machine, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        with pytest.raises(OSError, match="No space"):
            (small / "filler").write_bytes(b"x" * (1 << 20))
        report = machine.doctor("--agent", "scripted", TMPDIR=str(small))
        assert (report.failed, report.status("tmpdir")) == ([], "warn")  # Python takes another folder
        assert "No space left" in report.message("tmpdir")
        run = machine.project.start(
            "doctor",
            JSON,
            "--agent",
            "scripted",
            program=("-c", NO_OTHER_FOLDER),
            env={**machine.environment, "TMPDIR": str(small)},
            junit=False,
        )
        report = Report(run.wait())
        assert set(report.failed) == {"disk.tmp", "driver.tempdir"}
        assert "No space left" in report.message("disk.tmp")
        assert "TMPDIR" in report.checks["disk.tmp"]["fix"]
        machine.project.write("pytest.ini", f"[pytest]\ncodeprobe_runs_dir = {small}/runs\n")
        assert machine.doctor("--agent", "scripted").failed == ["disk.runs"]
        assert [p.name for p in small.iterdir()] == ["filler"]
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_places_that_can_not_be_written(machine: Machine) -> None:
    """By a user without root's rights."""
    machine.project.path.chmod(0o555)
    program = "from pytest_codeprobe.cli import main; main(['doctor', '--json', '--agent', 'scripted'])"
    environment = {**os.environ, **machine.project.environment, **machine.environment}
    environment = {k: v for k, v in environment.items() if not k.startswith(("PYTEST_", "CODEPROBE_"))}
    argv = unprivileged_argv([sys.executable, "-c", program])
    try:
        done = subprocess.run(argv, cwd=machine.project.path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    finally:
        machine.project.path.chmod(0o755)
    envelope = json.loads(done.stdout)
    check("envelope", envelope)
    assert [c["name"] for c in envelope["data"]["checks"] if c["status"] == "fail"] == ["disk.runs"]
    assert done.returncode == 6


def test_proxies_and_certificates(machine: Machine) -> None:
    report = machine.doctor(
        "--agent", "scripted", HTTPS_PROXY=f"http://user:{KEY}@proxy.example:3128", no_proxy="localhost", NODE_EXTRA_CA_CERTS="/no/such.pem"
    )
    assert "HTTPS_PROXY=http://proxy.example:3128" in report.message("proxy")
    assert (report.status("proxy"), report.status("certificates"), report.failed) == ("info", "warn", [])
    assert "/no/such.pem" in report.message("certificates")
    assert KEY not in report.run.output
    wrong = machine.doctor("--agent", "scripted", HTTP_PROXY="http://")
    assert wrong.status("proxy") == "warn"


# ---------------------------------------------------------------- what it says


def test_no_secret_is_printed(machine: Machine) -> None:
    """Whoever prints it."""
    machine.program("claude", '#!/bin/sh\necho "1.0.0 key $ANTHROPIC_API_KEY $MY_TOKEN"; exit 3\n')
    machine.login(-5)
    for flags in (("--json",), ()):
        run = machine.project.codeprobe(
            "doctor", *flags, "--agent", "claude", env={**machine.environment, "ANTHROPIC_API_KEY": KEY, "MY_TOKEN": "tok-0123456789"}
        )
        assert run.code == 6
        for secret in (KEY, "tok-0123456789", "hush-hush"):
            assert secret not in run.output


def test_text_for_people(machine: Machine) -> None:
    machine.program("claude", GOOD_CLI)
    run = machine.project.codeprobe("doctor", "--agent", "claude", env=machine.environment)
    assert run.code == 6
    lines = run.stdout.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("fail  agent.claude.credentials"))
    assert lines[at + 1].strip().startswith("fix: Set one of ANTHROPIC_API_KEY")
    assert lines[-1].endswith(", 1 fail")
    assert "test session starts" not in run.output
    assert "record_type" not in run.stdout


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_by_pytest_itself(machine: Machine, mode: str) -> None:
    """Whatever else stands on the command line; nothing is collected and no worker starts."""
    project = machine.project
    project.write("conftest.py", "print('noise at import')\n")
    project.write("tests/test_never.py", "raise SystemExit('was collected')\n")
    project.task("t")
    args = ("tests", "tasks", "--codeprobe-doctor", "--codeprobe-agent=scripted")
    run = project.run(*args, "--codeprobe-json", mode=mode, junit=False, env=machine.environment)
    assert Report(run).failed == []
    assert "noise at import" in run.stderr
    plain = project.run(*args, mode=mode, junit=False, env=machine.environment)
    assert (plain.code, "pass  python" in plain.stdout) == (0, True)


def test_what_is_refused(machine: Machine) -> None:
    project = machine.project
    for args, code in (
        (("--agent", "claud"), "UNKNOWN_BACKEND"),
        (("--agent", "codex"), "UNKNOWN_BACKEND"),
        (("--driver", "dokcer"), "USAGE_ERROR"),
        (("--agent",), "USAGE_ERROR"),
        (("--", "--nosuch"), "USAGE_ERROR"),
    ):
        run = project.codeprobe("doctor", JSON, *args, env=machine.environment)
        (told,) = run.lines
        check("envelope", told)
        assert (run.code, told["command"], told["data"], told["errors"][0]["code"]) == (4, "doctor", {}, code), run.stderr
        assert "--codeprobe-" not in run.stderr
    project.write("conftest.py", "def pytest_configure(): 1 / 0\n")
    run = project.codeprobe("doctor", JSON, env=machine.environment)
    (told,) = run.lines
    assert (run.code, told["errors"][0]["code"]) == (3, "INTERNAL_ERROR")
    assert "ZeroDivisionError" in run.stderr


def test_the_way_it_is_configured_is_pytests(machine: Machine) -> None:
    """--markers uses it too: should it go away, this fails before a user sees it."""
    assert callable(pytest.Config._do_configure)
