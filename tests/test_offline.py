"""--codeprobe-offline through the front door: who asks outside is caught and named, credentials must hold, nobody else is disturbed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.front_door import MODES, Project, Run, clean_environment, comparable, scripted
from tests.loopback_proxy import LoopbackProxy
from tests.netns import netns_argv, why_no_netns
from tests.test_parity import outcome

AGENT, OFFLINE, JSON = "--codeprobe-agent=scripted", "--codeprobe-offline", "--codeprobe-json-lines"
WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
USAGE = {"usage": {"model": "m1", "input_tokens": 10, "output_tokens": 5, "cost_usd": 0.25}}
EXISTS = {"type": "file_exists", "path": "out.txt"}
CURL = "curl -sS -m 20"
#: a test's own proxies would take part
NO_PROXIES = {name: "" for word in ("http_proxy", "https_proxy", "all_proxy", "no_proxy") for name in (word, word.upper())}


@pytest.fixture(autouse=True)
def _no_proxies(project: Project) -> None:
    project.environment.update(NO_PROXIES)


def curl(url: str) -> str:
    """A command that asks, and succeeds whatever comes of it."""
    return f"{CURL} {url}; true"


def grader(command: str) -> dict[str, Any]:
    return {"type": "run_command", "command": command}


def offline_run(project: Project, *args: str, mode: str = "plain", **more: Any) -> Run:
    return project.run("tasks", AGENT, OFFLINE, JSON, *args, mode=mode, **more).assert_consistent()


def the_error(run: Run) -> dict[str, Any]:
    (error,) = run.assert_pure()["errors"]
    assert (error["code"], error["kind"], error["retryable"], error["terminal"]) == ("OFFLINE_NET_ATTEMPT", "diagnostic", "no", False)
    return dict(error)


def places(detail: dict[str, Any]) -> list[tuple[str, str | None, str, int | None]]:
    return [(a["component"], a["by"], a["host"], a["port"]) for a in detail["attempts"]]


# ---- who is caught


def test_a_grader_that_asks_outside(project: Project) -> None:
    """The session and every criterion pass: the trial is an error all the same, keeps its cost, and the others go on."""
    project.task("bad", agent=scripted(WRITE, USAGE), success_criteria=[EXISTS, grader(curl("http://outside.test/x"))])
    project.task("good", agent=scripted(WRITE, USAGE))
    run = offline_run(project)
    assert run.code == 6
    error = the_error(run)
    assert error["message"] == "tasks/bad.yaml::bad: offline: grader of criterion 2 (run_command) tried outside.test:80"
    assert "codeprobe_offline_allow = outside.test" in error["remediation"]
    assert (error["detail"]["component"], error["detail"]["host"]) == ("grader", "outside.test")
    assert error["detail"]["trials"] == ["tasks/bad.yaml::bad"]
    assert places(error["detail"]) == [("grader", "criterion 2 (run_command)", "outside.test", 80)]
    record = run.result("bad")
    assert (record["status"], record["verdict"], record["phase"], record["cost_usd"]) == ("error", None, "grade", 0.25)
    assert [c["verdict"] for c in record["criteria"]] == ["passed", "passed"]
    assert record["detail"]["attempts"] == error["detail"]["attempts"]
    assert run.statuses == {"bad": "error", "good": "passed"}
    assert run.envelope["data"]["cost_usd"] == 0.5
    assert run.junit() == {"bad": "error", "good": "passed"}
    run.assert_nothing_left()


def test_an_agent_that_asks_outside(project: Project) -> None:
    work = f"{curl('https://outside.test:8443/x')}; echo done > out.txt"
    project.task("a", agent=scripted({"run": work}))
    project.task("b", agent={"type": "command", "command": ["sh", "-c", work]})
    run = project.run("tasks/a.yaml", "tasks/b.yaml", OFFLINE, JSON).assert_consistent()
    assert run.code == 6
    assert places(the_error(run)["detail"]) == [("agent", None, "outside.test", 8443)] * 2
    for name in "ab":
        record = run.result(name)
        assert (record["status"], record["phase"], record["attempts"][0]["code"]) == ("error", "session", None)
        assert "agent tried outside.test:8443" in record["reason"]


def test_the_commands_of_a_task(project: Project) -> None:
    project.task(
        "t", agent=scripted(WRITE), pre_run=[{"command": curl("http://pre.test/")}], post_run=[{"command": curl("http://post.test/")}]
    )
    error = the_error(offline_run(project))
    assert places(error["detail"]) == [("setup", None, "pre.test", 80), ("post_run", None, "post.test", 80)]


PLUGIN = """
import socket
from pathlib import Path
from typing import Literal
import pytest
from pytest_codeprobe.model.criterion import Criterion, Score

class Phone(Criterion):
    type: Literal["phone"]
    marks: str

    def evaluate(self, grading):
        try:
            socket.create_connection(("192.0.2.1", 9), 0.2)
        except OSError as error:
            Path(self.marks, "criterion").write_text(f"{error.errno} {error}")
        return Score(1.0, "all well")

def pytest_codeprobe_criteria():
    return [Phone]
"""
ORDINARY = """
import socket, pytest
@pytest.mark.parametrize("n", range(3))
def test_beside(n):
    with pytest.raises(OSError) as caught:
        socket.create_connection(("192.0.2.1", 9), 0.2)
    assert "codeprobe" not in str(caught.value) and caught.value.errno != 13
"""


@pytest.fixture
def alone() -> tuple[str, ...]:
    """A command line's begin, for a run without any network but loopback."""
    why = why_no_netns()
    if why is not None:
        pytest.skip(why)
    return tuple(netns_argv([]))


def test_a_criterion_that_opens_a_socket_in_pytests_process(project: Project, mode: str, alone: tuple[str, ...]) -> None:
    """It is refused before the kernel is asked, which would say that the network is unreachable, as it does to ordinary tests."""
    project.write("conftest.py", PLUGIN)
    project.write("tests/test_before.py", ORDINARY)
    project.write("ztests/test_after.py", ORDINARY)
    for name in ("a", "b"):
        project.task(name, agent=scripted(WRITE), success_criteria=[EXISTS, {"type": "phone", "marks": str(project.marks)}])
    run = project.start("tests", "tasks", "ztests", AGENT, OFFLINE, JSON, mode=mode, prefix=alone).wait(90).assert_consistent()
    assert run.code == 6
    error = the_error(run)
    assert (project.marks / "criterion").read_text().startswith("13 [Errno 13] --codeprobe-offline: 192.0.2.1:9 is neither")
    assert error["count"] == 2
    assert places(error["detail"]) == [("criterion", "criterion 2 (phone)", "192.0.2.1", 9)] * 2
    assert {a["node_id"] for a in error["detail"]["attempts"]} == {"tasks/a.yaml::a", "tasks/b.yaml::b"}
    assert run.envelope["data"]["ordinary_tests"] == {"passed": 6}


def test_an_adapter_that_asks_outside(project: Project, alone: tuple[str, ...]) -> None:
    project.write(
        "conftest.py",
        "import socket\nfrom pytest_codeprobe.agents.scripted import ScriptedAgent\n"
        "class Chatty(ScriptedAgent):\n    name = 'chatty'\n    def command(self, request):\n"
        "        socket.getaddrinfo('outside.test', 443)\n        return super().command(request)\n"
        "def pytest_codeprobe_agents():\n    return [Chatty()]\n",
    )
    project.task("t")
    run = project.start("tasks", "--codeprobe-agent=chatty", OFFLINE, JSON, prefix=alone).wait(60).assert_consistent()
    assert places(the_error(run)["detail"]) == [("harness", None, "outside.test", 443)]


def test_each_trial_answers_for_itself(project: Project) -> None:
    for number in range(24):
        work = {"run": curl(f"http://agent{number}.test/")} if number % 2 else {"say": "hello"}
        check = grader(curl(f"http://grader{number}.test/")) if number % 4 else EXISTS
        project.task(f"t{number}", agent=scripted(WRITE, work), success_criteria=[EXISTS, check])
    run = offline_run(project, "--codeprobe-jobs=12")
    run.assert_nothing_left()
    for number in range(24):
        record = run.result(f"t{number}")
        hosts = [f"agent{number}.test"] * (number % 2) + [f"grader{number}.test"] * bool(number % 4)
        assert [a["host"] for a in record["detail"].get("attempts", ())] == hosts
        assert record["status"] == ("error" if hosts else "passed")
    assert the_error(run)["count"] == 18


def test_a_marked_test_and_a_rerun(project: Project) -> None:
    """Neither the test's own outcome nor another try makes it undone."""
    project.task("t", agent=scripted(WRITE, {"run": curl("http://outside.test/")}))
    (project.path / "tasks/t.yaml").rename(project.path / "t.yaml")
    project.write(
        "test_marked.py",
        "import pytest\nours = pytest.mark.codeprobe(task='t.yaml')\n"
        "@ours\ndef test_passes(codeprobe_score): assert codeprobe_score.passed\n"
        "@ours\ndef test_fails(codeprobe_score): assert 0\n"
        "@ours\ndef test_skips(codeprobe_session): pytest.skip('enough')\n",
    )
    run = project.run("test_marked.py", AGENT, OFFLINE, JSON, "--reruns=1").assert_consistent()
    assert the_error(run)["count"] == 3
    assert {r["status"] for r in run.envelope["data"]["results"]} == {"error"}
    assert {r["attempts"] for r in run.envelope["data"]["results"]} == {1}
    assert run.code == 6


def test_it_beats_what_else_went_wrong(project: Project) -> None:
    """What an outage looks like may come of our own 403: not tried again, and no other trial is kept from starting."""
    ask = {"run": curl("http://outside.test/")}
    project.task("a-auth", agent=scripted(ask, {"fail": "AUTH_FAILED"}))
    project.task("b-outage", agent=scripted(ask, {"fail": "LLM_UNAVAILABLE"}))
    project.task("c-fails", agent=scripted(ask))
    project.task("d-broken", agent=scripted(WRITE, ask), success_criteria=[grader("sleep 60")], run_limits={"grading_timeout": 1})
    project.task("e-limit", agent=scripted(ask, {"sleep": 30}), run_limits={"task_timeout": 3, "on_limit": "fail"})
    project.task("f-xfail", agent=scripted(ask), xfail="known gap")
    project.task("g-good", agent=scripted(WRITE))
    run = offline_run(project, mode="jobs")
    codes = {t: (r["status"], r["code"], len(r["attempts"])) for t in ["a-auth", "b-outage", "c-fails", "d-broken", "e-limit", "f-xfail"]
             for r in [run.result(t)]}  # fmt: skip
    assert set(codes.values()) == {("error", "OFFLINE_NET_ATTEMPT", 1)}, codes
    assert run.statuses["g-good"] == "passed"
    assert the_error(run)["count"] == 6


# ---- who is not disturbed


def test_a_run_with_nothing_forbidden_is_the_same(project: Project) -> None:
    with LoopbackProxy({}) as web:  # any server would do: what counts is that it is on loopback
        ask = f"{CURL} -o /dev/null -w '%{{http_code}}' http://localhost:{web.port}/x"
        project.task("a", agent=scripted({"run": f"{ask} > out.txt"}, USAGE), success_criteria=[EXISTS, grader(f'test "$({ask})" = 502')])
        project.task("b", agent=scripted({"say": "no"}))
        project.task("h", agent=scripted(WRITE), success_criteria=[{"type": "pytest", "paths": ["test_hidden.py"]}])
        project.write(
            "tasks/test_hidden.py", f"import socket\ndef test_it(): socket.create_connection(('127.0.0.1', {web.port}), 5).close()\n"
        )
        records = []
        for number, flag in enumerate((OFFLINE, "-q")):
            run = project.run("tasks", AGENT, flag, f"--codeprobe-run-dir=run{number}", mode="jobs").assert_consistent()
            assert run.statuses == {"a": "passed", "b": "failed", "h": "passed"}
            records.append({t: comparable(run.result(t)) for t in run.statuses})
            del records[-1]["h"]["criteria"][0]["evidence"]  # pytest's own words, with the time that it took
            assert run.code == 1
            said = [w for w in run.envelope["warnings"] if w.startswith("offline: ")]
            assert len(said) == (1 if flag == OFFLINE else 0)
        assert set(web.asked) == {"None:80"}  # asked as a server is, not as a proxy
        assert records[0] == records[1]


def test_allowed_hosts_are_reached_through_the_users_own_proxy(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\ncodeprobe_offline = on\ncodeprobe_offline_allow = allowed.test:81 *.inside.test\n")
    with LoopbackProxy({}) as target, LoopbackProxy({"allowed.test:81": target.port, "x.inside.test:80": target.port}) as users:
        asks = "; ".join(f"{CURL} -o /dev/null -w '%{{http_code}} ' http://{host}/x" for host in ("allowed.test:81", "x.inside.test"))
        project.task(
            "ok",
            agent=scripted({"run": f"({asks}) > out.txt"}),
            success_criteria=[grader(f'test "$({asks}; cat out.txt)" = "502 502 502 502 "')],
        )
        project.task("port", agent=scripted(WRITE, {"run": curl("http://allowed.test/")}))
        project.environment.update(http_proxy=users.url, HTTP_PROXY=users.url)
        run = project.run("tasks", AGENT, JSON).assert_consistent()
        assert run.statuses == {"ok": "passed", "port": "error"}
        assert places(the_error(run)["detail"]) == [("agent", None, "allowed.test", 80)]
        assert sorted(set(users.asked)) == ["allowed.test:81", "x.inside.test:80"]


@pytest.mark.parametrize("where", ["environment", "ini", "console"])
def test_it_can_be_set_everywhere_and_is_said(project: Project, where: str) -> None:
    project.task("t", agent=scripted(WRITE, {"run": curl("http://outside.test/")}))
    if where == "ini":
        project.write("pytest.ini", "[pytest]\ncodeprobe_offline = true\n")
    if where == "console":
        run = project.codeprobe("run", "--agent", "scripted", "--offline", "--no-json")
    else:
        environment = {"CODEPROBE_OFFLINE": "1"} if where == "environment" else {}
        run = project.run("tasks", AGENT, env=environment)
    assert run.code == 6
    assert "driver tempdir, offline, run dir" in run.stdout
    assert run.stdout.count("held by proxy variables alone") == 1
    assert "OFFLINE_NET_ATTEMPT: offline: agent tried outside.test:80" in run.stdout


@pytest.mark.parametrize(("key", "value"), [("codeprobe_offline", "maybe"), ("codeprobe_offline_allow", "http://a.test/")])
def test_a_wrong_ini_key_is_refused(project: Project, key: str, value: str) -> None:
    project.task("t", agent=scripted(WRITE))
    project.write("pytest.ini", f"[pytest]\n{key} = {value}\n")
    run = project.run("tasks", AGENT, JSON)
    (error,) = run.assert_pure()["errors"]
    assert (error["code"], run.code) == ("USAGE_ERROR", 4)
    assert key in error["message"]
    assert value in error["message"]


def test_hostile_settings_of_a_task(project: Project) -> None:
    """A task's own proxy variables are no way around ours, nor is a proxy of the user's that nobody can read."""
    task_env = {"http_proxy": "http://192.0.2.1:1", "NO_PROXY": "*", "ALL_PROXY": "socks5://192.0.2.1:1"}
    project.task("t", agent=scripted(WRITE, {"run": curl("http://outside.test/")}), sandbox={"env": task_env})
    project.task("u", agent=scripted(WRITE))
    project.environment.update(HTTPS_PROXY="http://[:1", HTTP_PROXY="\x01")
    run = offline_run(project)
    assert run.statuses == {"t": "error", "u": "passed"}
    assert places(the_error(run)["detail"]) == [("agent", None, "outside.test", 80)]


@pytest.mark.parametrize(("mode", "number"), [("plain", signal.SIGINT), ("xdist", signal.SIGINT), ("jobs", signal.SIGKILL)])
def test_an_end_while_something_is_tunnelled(project: Project, mode: str, number: signal.Signals) -> None:
    """A tunnel to a server that never answers keeps nothing from ending; what was tried before is told even so."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hold = f"curl -sS -m 60 --noproxy '' -x $http_proxy http://127.0.0.1:{silent.getsockname()[1]}/"
        project.task("t", agent=scripted({"run": f"{curl('http://outside.test/')}; touch {project.marks}/asked; {hold}"}))
        run = project.start("tasks", AGENT, OFFLINE, JSON, mode=mode)
        run.wait_for("asked")
        silent.settimeout(30)
        connection, _ = silent.accept()
        with connection:
            run.signal(number)
            run.wait(30)
    run.assert_nothing_left(15)
    if number == signal.SIGINT:
        assert run.code == 2
        run.assert_consistent()
        assert [e["code"] for e in run.assert_pure()["errors"]] == ["INTERRUPTED", "OFFLINE_NET_ATTEMPT"]
        assert run.statuses == {"t": "error"}


# ---- before it starts


@pytest.fixture
def claude(project: Project) -> Path:
    """A `claude` on PATH that does what its prompt's task needs and says so, and a user's HOME; no key anywhere."""
    folder = project.scratch / "bin"
    folder.mkdir()
    lines = [
        {
            "type": "system",
            "subtype": "init",
            "session_id": "s",
            "model": "m",
            "tools": [],
            "mcp_servers": [],
            "claude_code_version": "2.1.0",
        },
        {"type": "assistant", "message": {"id": "1", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "done"}]}},
        {"type": "result", "subtype": "success", "is_error": False, "result": "done", "num_turns": 1, "total_cost_usd": 0.1, "usage": {}},
    ]
    says = "\n".join(f"echo {shlex.quote(json.dumps(line))}" for line in lines)
    (folder / "claude").write_text(f"#!/bin/sh\ntouch {project.marks}/started\necho done > out.txt\n{says}\n")
    (folder / "claude").chmod(0o755)
    nobody = {name: "" for name in os.environ if name.startswith(("ANTHROPIC_", "CLAUDE_", "AWS_", "GOOGLE_"))}
    home = project.scratch / "home"
    (home / ".claude").mkdir(parents=True)
    path = os.pathsep.join((str(folder), str(Path(sys.executable).parent), clean_environment()["PATH"]))
    project.environment.update({**nobody, "HOME": str(home), "PATH": path})
    return home / ".claude" / ".credentials.json"


def log_in(file: Path, seconds: float) -> None:
    login = {"accessToken": "sk-ant-oat01-aaaaaaaaaaaa", "refreshToken": "r", "expiresAt": int((time.time() + seconds) * 1000)}
    file.write_text(json.dumps({"claudeAiOauth": login}))


def test_a_login_that_expires_too_soon_refuses_before_anything_starts(project: Project, claude: Path) -> None:
    log_in(claude, 1800)
    project.task("t", pre_run=[{"command": f"touch {project.marks}/prepared"}])
    run = project.run("tasks", "--codeprobe-agent=claude", OFFLINE, JSON)
    assert run.code == 4
    envelope = run.assert_pure()
    (error,) = envelope["errors"]
    assert (error["code"], error["kind"], error["retryable"], error["terminal"]) == ("OFFLINE_PREFLIGHT_FAILED", "diagnostic", "no", False)
    (failure,) = error["detail"]["failures"]
    assert (failure["agent"], failure["credential"]) == ("claude", str(claude))
    assert 1700 < failure["left_seconds"] < 1800
    assert failure["expires_at"] in error["message"]
    assert "claude /login" in error["remediation"]
    assert "sk-ant-oat01" not in run.stdout + run.stderr
    assert not list(project.marks.iterdir())
    assert [r["status"] for r in envelope["data"]["results"]] == ["not_run"]
    run.assert_nothing_left()


def test_the_same_login_is_good_for_a_shorter_run(project: Project, claude: Path) -> None:
    log_in(claude, 1800)
    project.task("t")
    arguments = ("tasks", "--codeprobe-agent=claude", JSON)
    run = project.run(*arguments, OFFLINE, "--codeprobe-offline-expected-run-duration=10m").assert_consistent()
    assert (run.code, run.statuses) == (0, {"t": "passed"})
    run = project.run(*arguments, env={"CODEPROBE_OFFLINE": "0"}).assert_consistent()
    assert run.code == 0  # not offline: how long it holds is nobody's business
    run = project.run(*arguments, OFFLINE, env={"ANTHROPIC_API_KEY": "sk-ant-api03-bbbbbbbbbbbb"}).assert_consistent()
    assert run.code == 0


def test_a_lifetime_that_can_not_be_known_refuses(project: Project, claude: Path) -> None:
    assert not claude.exists()
    project.task("t")
    token = {"CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-cccccccccccc"}
    run = project.run("tasks", "--codeprobe-agent=claude", OFFLINE, JSON, env=token)
    (error,) = run.assert_pure()["errors"]
    assert (error["code"], run.code) == ("OFFLINE_PREFLIGHT_FAILED", 4)
    assert "how long CLAUDE_CODE_OAUTH_TOKEN holds can't be known" in error["message"]


def test_modes_agree(project: Project) -> None:
    """The record and the envelope of an attempt are the same, however the run is spread."""
    project.task(
        "a", agent=scripted(WRITE, USAGE, {"run": curl("http://outside.test/")}), success_criteria=[EXISTS, grader(curl("http://x.test/"))]
    )
    project.task("b", agent=scripted(WRITE))
    seen = [outcome(offline_run(project, f"--codeprobe-run-dir=run-{mode}", mode=mode)) for mode in MODES]
    assert seen[0]["code"] == 6
    assert seen[0] == seen[1] == seen[2]
