"""--codeprobe-offline under bubblewrap: who needs no model has no network, and what it asks for is known all the same."""

from __future__ import annotations

import shlex
import sys

import pytest

from pytest_codeprobe.model.network import DOOR_PORT
from tests import containers
from tests.enclosures import server
from tests.front_door import Project, scripted
from tests.loopback_proxy import LoopbackProxy

FLAGS = ("--codeprobe-offline", "--codeprobe-driver=bubblewrap", "--codeprobe-jobs=4", "--codeprobe-json-lines")
WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
CURL = "curl -sS -m 20"
NO_PROXIES = {name: "" for word in ("http_proxy", "https_proxy", "all_proxy", "no_proxy") for name in (word, word.upper())}


def python(program: str) -> str:
    return f"python3 -c {shlex.quote(program)}"


def test_no_network_and_every_attempt_is_named(project: Project) -> None:
    """By role; a program that goes past the proxy gets nowhere, neither to another host nor to what listens on this machine."""
    project.environment.update(NO_PROXIES)
    ask = f"{CURL} http://outside.test/; true"
    project.task("agent", agent=scripted(WRITE, {"run": ask}, {"run": f"{CURL} https://a.test:8443/; true"}))
    project.task("off", agent=scripted(WRITE, {"run": ask}), sandbox={"network": "off"})
    project.task("grader", agent=scripted(WRITE), success_criteria=[{"type": "run_command", "command": ask}])
    project.task("before", agent=scripted(WRITE), pre_run=[{"command": ask}])
    project.task("before-off", agent=scripted(WRITE), pre_run=[{"command": ask}], sandbox={"network": "off"})
    project.task("after", agent=scripted(WRITE), post_run=[{"command": ask}])
    project.write("tasks/hidden/test_it.py", f"import os\ndef test_it(): assert os.system({ask!r}) == 0\n")
    project.task("hidden", agent=scripted(WRITE), success_criteria=[{"type": "pytest", "paths": ["hidden"]}])
    with server() as asked, LoopbackProxy({}) as local:
        past = (
            f"import socket\ntry: socket.create_connection(('127.0.0.1', {asked.port}), 5)\nexcept OSError: print('refused')\n"
            "try: socket.create_connection(('192.0.2.1', 80), 5)\nexcept OSError: print('unreachable')\n"
            "s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname(), 5); print('own loopback')\n"
        )
        through = f"{CURL} -o /dev/null -w '%{{http_code}}\\n' --noproxy '' http://127.0.0.1:{local.port}/"
        said = "refused\nunreachable\nown loopback\n403"
        looks = {"type": "run_command", "command": f"{python(past)}; {through}", "expected_stdout": said}
        project.task(
            "past",
            agent=scripted({"run": f"({python(past)}; {through}) > out.txt"}),
            success_criteria=[looks, {"type": "file_contains", "path": "out.txt", "includes": [said]}],
        )
        run = project.run("tasks", "--codeprobe-agent=scripted", *FLAGS).assert_consistent()
        assert asked.asked == 0
        assert local.asked == []
    assert run.statuses == {
        **dict.fromkeys(("agent", "off", "grader", "before", "before-off", "after", "hidden"), "error"),
        "past": "passed",
    }, run.output
    told: dict[str, list[tuple[object, ...]]] = {}
    for error in run.assert_pure()["errors"]:
        assert error["code"] == "OFFLINE_NET_ATTEMPT"
        for each in error["detail"]["attempts"]:
            told.setdefault(each["node_id"].rpartition("::")[2], []).append((each["component"], each["by"], each["host"], each["port"]))
    outside = ("outside.test", 80)
    assert told == {
        "agent": [("agent", None, *outside), ("agent", None, "a.test", 8443)],
        "off": [("agent", None, *outside)],
        "grader": [("grader", "criterion 1 (run_command)", *outside)],
        "before": [("setup", None, *outside)],
        "before-off": [("setup", None, *outside)],
        "after": [("post_run", None, *outside)],
        "hidden": [("grader", "criterion 1 (pytest)", *outside)],
    }
    assert not [warning for warning in run.envelope["warnings"] if warning.startswith("offline: ")]  # all of it is held
    run.assert_nothing_left()


def test_allowed_hosts_and_who_needs_a_model(project: Project) -> None:
    """What is allowed is reached from inside, by the user's own proxy; of an agent that may call a model the network is this machine's."""
    project.write("pytest.ini", "[pytest]\ncodeprobe_offline_allow = allowed.test\n")
    project.environment.update(NO_PROXIES)
    with LoopbackProxy({}) as target, LoopbackProxy({"allowed.test:80": target.port}) as users, server() as asked:
        project.environment.update(http_proxy=users.url, HTTP_PROXY=users.url)
        get = f"{CURL} -o /dev/null -w '%{{http_code}}' http://allowed.test/"
        graded = [{"type": "run_command", "command": get, "expected_stdout": "502"}]  # which the target answers
        project.task("scripted", agent=scripted({"run": f"{get} > out.txt"}), success_criteria=graded)
        local = f"import socket; print(socket.create_connection(('127.0.0.1', {asked.port}), 5).recv(3))"
        command = ["sh", "-c", f"{shlex.quote(sys.executable)} -c {shlex.quote(local)} > out.txt; {get} >> out.txt"]
        project.task("command", agent={"type": "command", "command": command}, success_criteria=graded)
        runs = {
            name: project.run(f"tasks/{name}.yaml", f"--codeprobe-agent={name}", f"--codeprobe-run-dir={name}", *FLAGS)
            for name in ("scripted", "command")
        }
        assert asked.asked == 1
        assert set(users.asked) == {"allowed.test:80"}
        project.task("off", agent=scripted({"run": f"{get} > out.txt"}), sandbox={"network": "off"})
        off = project.run("tasks/off.yaml", "--codeprobe-agent=scripted", *FLAGS)
        assert off.finished["off"]["code"] == "OFFLINE_NET_ATTEMPT"  # off is off, whatever is allowed to others
        assert (off.trial("off") / "artifacts/out.txt").read_text() == "403"
        assert len(users.asked) == 4
    for name, run in runs.items():
        assert run.assert_consistent().statuses == {name: "passed"}, run.output
    assert (runs["command"].trial("command") / "artifacts/out.txt").read_text() == "b'yes'\n502"
    (warning,) = [warning for warning in runs["command"].envelope["warnings"] if warning.startswith("offline: ")]
    assert "sessions of agent command need the network" in warning


@pytest.mark.parametrize("driver", ["bubblewrap", "docker"])
def test_a_door_that_does_not_open_is_no_failure(project: Project, driver: str) -> None:
    """door.py says so by a status that a command may have too: then nothing has come out of the door, else something has."""
    if driver == "docker":
        containers.use(project)
    project.environment.update(NO_PROXIES)
    exits = {"type": "run_command", "command": "exit 125", "expected_exit_code": 125}
    project.task("graded", agent=scripted(WRITE), success_criteria=[exits])
    project.task("failed", agent=scripted(WRITE), success_criteria=[{"type": "run_command", "command": "exit 125"}])
    flags = ("--codeprobe-agent=scripted", *FLAGS, f"--codeprobe-driver={driver}")
    own = project.run("tasks", *flags).assert_consistent()
    assert own.statuses == {"graded": "passed", "failed": "failed"}, own.output

    # no capabilities are left that such a port needs
    closed = {
        "bubblewrap": "from pytest_codeprobe.sandboxes import bubblewrap\nbubblewrap.DOOR_PORT = 80\n",
        "docker": f"from pytest_codeprobe.sandboxes import docker\ndocker.FIRST = docker.FIRST.replace('{DOOR_PORT}', '80')\n",
    }
    project.write("conftest.py", closed[driver])
    broken = project.run("tasks/failed.yaml", *flags).assert_consistent()
    assert broken.statuses == {"failed": "error"}, broken.output
    assert broken.result("failed")["reason"].endswith("offline: no door out of the network namespace: Permission denied")
