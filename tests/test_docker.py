"""Driver docker, with real podman: what is there inside, what is held, and how a fault of the engine is told."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.config import DockerConfig, DockerMount
from pytest_codeprobe.sandboxes.binds import mounts
from pytest_codeprobe.sandboxes.docker import translated
from pytest_codeprobe.sandboxes.engines import Engine, client_environment
from pytest_codeprobe.sandboxes.images import Image
from pytest_codeprobe.sandboxes.insiders import Insiders
from pytest_codeprobe.sandboxes.tools import ToolResult
from tests import containers
from tests.containers import BARE, IMAGE, use
from tests.front_door import Project, scripted

WRITE = {"write": {"path": "out.txt", "content": "x"}}
OUT = [{"type": "file_exists", "path": "out.txt"}]
AGENT = "--codeprobe-agent=scripted"


def test_sessions_pre_run_graders_and_hidden_tests_work_in_it(project: Project) -> None:
    engine = use(project)
    project.write("tasks/hidden/test_add.py", "from calc import add\ndef test_add(): assert add(1, 2) == 3\n")
    code = "def add(a, b):\n    return a + b\n"
    hidden = {"type": "pytest", "paths": ["hidden"]}
    project.task("right", agent=scripted({"write": {"path": "calc.py", "content": code}}), success_criteria=[hidden])
    project.task("wrong", agent=scripted({"write": {"path": "calc.py", "content": code.replace("+", "-")}}), success_criteria=[hidden])
    project.write("tasks/reference.txt", "from the task's folder\n")
    project.environment["PLAIN"] = "of this machine"
    inside = "cat before.txt > out.txt; echo $TMPDIR > $TMPDIR/x; echo $HOME > $HOME/x; printenv > env.txt; id -u > id.txt"
    shim = {"record_cli": [{"tool": "gh", "exit_code": 3}]}
    project.task(
        "commands",
        pre_run=[{"command": "cp $TASK_DIR/reference.txt before.txt; echo $HOME > home.txt"}],
        agent=scripted({"run": inside}, {"run": "gh pr list; echo $? > gh.txt"}),
        post_run=[{"command": f"cp out.txt {project.marks}/out.txt"}],
        sandbox={"env": {"ODD": "a 'quoted'\nline $HOME"}, **shim},
        success_criteria=[
            {"type": "file_contains", "path": "out.txt", "includes": ["from the task's folder"]},
            {"type": "file_contains", "path": "gh.txt", "includes": ["3"]},
            {"type": "cli_called", "tool": "gh", "verb": "pr list"},
            {"type": "run_command", "command": 'cmp out.txt "$TASK_DIR/reference.txt" && python -c "print(1)"', "expected_stdout": "1"},
            {"type": "run_command", "command": "printenv ODD", "expected_stdout": "a 'quoted'\nline $HOME"},
        ],
    )
    run = project.run("tasks", AGENT, mode="jobs").assert_consistent()
    assert run.statuses == {"right": "passed", "wrong": "failed", "commands": "passed"}, run.output
    assert {line["driver"] for line in run.plan} == {"docker"}
    assert not (project.marks / "out.txt").exists()  # post_run is inside, too
    kept = run.trial("commands") / "artifacts"
    found = dict(line.partition("=")[::2] for line in (kept / "env.txt").read_text().splitlines() if "=" in line)
    assert found["PATH"].split(":")[1:] == ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    assert "PLAIN" not in found
    assert (kept / "id.txt").read_text() == f"{os.geteuid()}\n"
    run.assert_nothing_left()
    assert not containers.of(engine, run)


def test_another_user_inside(project: Project) -> None:
    """By number, or by a name of the image: all that is shown of the trial is theirs, and nothing else counts as changed by that."""
    engine = use(project, image=None)
    project.write(
        "tasks/hidden/test_it.py", "import os, pathlib\ndef test_it():\n    pathlib.Path('new').touch()\n    assert os.getuid() == 1234\n"
    )
    project.write("tasks/built/passwd", "root:x:0:0::/:/bin/sh\ndev:x:1234:1235::/:/bin/sh\n")
    project.write("tasks/built/group", "root:x:0:\nstaff:x:1236:\n")
    project.write("tasks/built/Dockerfile", f"FROM {IMAGE}\nCOPY passwd group /etc/\n")
    for number in range(100):
        project.write(f"tasks/start/{number}.txt", "given\n")
    who = 'echo "$(id -u):$(id -g)" > $HOME/id; cat $HOME/id > id.txt; echo > $TMPDIR/x'
    work = "echo changed > 1.txt; echo changed > 2.txt; gh pr; rm 3.txt"
    kinds = {
        "number": ({"image": IMAGE, "user": "1234"}, "1234:0"),
        "both": ({"image": IMAGE, "user": "1234:77"}, "1234:77"),
        "name": ({"dockerfile": "built/Dockerfile", "user": "dev"}, "1234:1235"),
        "names": ({"dockerfile": "built/Dockerfile", "user": "dev:staff"}, "1234:1236"),
        "none": ({"image": IMAGE, "user": "nobody-knows"}, ""),
    }
    for name, (config, said) in kinds.items():
        project.task(
            name,
            pre_run=[{"command": "mkdir made; cp 1.txt made; chmod 700 made"}],
            agent=scripted({"run": who}, {"run": work}),
            sandbox={
                "docker": config,
                "template_sources": [{"type": "template_dir", "path": "start"}],
                "record_cli": [{"tool": "gh"}],
                "protected": ["2.txt"],
                "limits": {"disk_mb": 20},
                "network": "off",
            },
            success_criteria=[
                {"type": "file_contains", "path": "id.txt", "includes": [said]},
                {"type": "run_command", "command": "id -u; cat 2.txt; touch made/new", "expected_stdout": "1234\ngiven"},
                {"type": "cli_called", "tool": "gh", "verb": "pr"},
                {"type": "pytest", "paths": ["hidden"]},
            ],
        )
    run = project.run("tasks", AGENT, "--codeprobe-jobs=5", "--codeprobe-offline").assert_consistent()
    assert run.statuses == {**dict.fromkeys(kinds, "passed"), "none": "error"}, run.output
    assert run.finished["none"]["code"] == "SANDBOX_FAILED"
    assert "sandbox.docker.user: the image has no user 'nobody-knows': " in run.result("none")["reason"]
    for name in kinds:
        if name != "none":
            assert run.result(name)["changed_files"] == ["M 1.txt", "M 2.txt", "D 3.txt", "A id.txt"]
    (warning,) = [warning for warning in run.envelope["warnings"] if "disk_mb" in warning]
    assert "it is left out: with sandbox.docker.user each file of a template becomes another's" in warning
    run.assert_nothing_left()
    assert not containers.of(engine, run)


def test_another_user_reads_what_is_its_owners_alone(project: Project) -> None:
    """Of somebody whose files are for nobody else: what grades is shown as a copy, and the files stay as they are."""
    engine = use(project)
    project.write("tasks/hidden/test_it.py", "import helper\ndef test_it(): assert helper.N == 1\n")
    project.write("tasks/hidden/helper.py", "N = 1\n")
    check = project.write("tasks/check.sh", "test $(id -u) = 1234 && grep -q x out.txt\n")
    for path in (*(project.path / "tasks").rglob("*"), project.path / "tasks"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    by_script = {"type": "run_command", "command": "sh $TASK_DIR/check.sh"}
    for name in ("one", "two"):
        sandbox = {"docker": {"user": "1234"}}
        project.task(name, agent=scripted(WRITE), sandbox=sandbox, success_criteria=[by_script, {"type": "pytest", "paths": ["hidden"]}])
    run = project.run("tasks", AGENT, "--codeprobe-jobs=2").assert_consistent()
    assert run.statuses == {"one": "passed", "two": "passed"}, run.output
    assert check.stat().st_mode & 0o777 == 0o600
    assert not containers.of(engine, run)


def test_offline_the_way_out_is_no_program_of_the_task_s(project: Project) -> None:
    """A stand-in for python3 is what the command finds, and nothing else is started by it."""
    engine = use(project)
    mock = project.write("tasks/mocks/python3", "#!/bin/sh\necho mocked > out.txt; exit 125\n")
    mock.chmod(0o755)
    shell = {"type": "command", "command": ["sh", "-c", "python3 --version; exit 0"]}
    criteria = [{"type": "file_contains", "path": "out.txt", "includes": ["mocked"]}]
    project.task(
        "t",
        agent=shell,
        sandbox={"mock_path_dirs": ["mocks"], "template_sources": [{"type": "template_dir", "path": "start"}]},
        success_criteria=criteria,
    )
    project.write("tasks/start/mocks/python3", mock.read_text()).chmod(0o755)
    run = project.run("tasks", "--codeprobe-agent=command", "--codeprobe-offline").assert_consistent()
    assert run.statuses == {"t": "passed"}, run.output
    assert not containers.of(engine, run)


def test_a_user_of_a_dialog_has_the_task_s_image(project: Project) -> None:
    engine = use(project, image=None)
    says = scripted({"say": "Write it."}, {"say": "<<<END>>>"})
    project.task(
        "t",
        agent=scripted(WRITE, {"say": "Done."}),
        simulation={"goal": "g", "agent": says},
        sandbox={"docker": {"image": IMAGE}},
        success_criteria=OUT,
    )
    run = project.run("tasks", AGENT).assert_consistent()
    assert run.statuses == {"t": "passed"}, run.output
    assert not containers.of(engine, run)


def test_who_may_not_give_files_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """podman maps users without root; docker does not: then only one's own number is of use."""
    said = ToolResult(0, b"1000\n100\n", b"")
    monkeypatch.setattr(Engine, "ask", lambda *_, **__: said)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    image = Image("1", {})
    docker, podman = Engine("docker", "docker", {}), Engine("podman", "podman", {})
    assert Insiders().get(docker, image, "me").words(docker) == ["--user", "1000:100"]
    said = ToolResult(0, b"7\n8\n", b"")
    assert Insiders().get(podman, image, "dev").words(podman) == ["--userns", "keep-id:uid=7,gid=8", "--user", "7:8"]
    with pytest.raises(CodeprobeError, match=r"'dev' is user 7 there, and user 1000, who runs pytest, can't give files to others"):
        Insiders().get(docker, image, "dev")


def test_limits_end_a_session_and_are_named(project: Project) -> None:
    engine = use(project)
    hog, sleep = "python3 -c 'len(bytes([1]) * (300 << 20))'", {"sleep": 60}
    bomb = "for i in $(seq 40); do sleep 60 & done; sleep 60"
    for name, limits, *steps in (
        ("memory", {"memory_mb": 100}, {"run": f"{hog}; true"}, sleep),
        ("pids", {"pids": 20}, {"run": bomb}, sleep),
        ("disk", {"disk_mb": 5}, {"run": "dd if=/dev/zero of=big bs=1M count=20"}, sleep),
        ("at-its-end", {"memory_mb": 100}, {"run": f"{hog}; true"}),
        ("cpus", {"cpus": 0.1}, {"run": "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"}),
        ("enough", {"memory_mb": 1000, "cpus": 1.5, "pids": 100}, {"run": hog}),
    ):
        project.task(name, agent=scripted(WRITE, *steps), sandbox={"limits": limits}, success_criteria=OUT)
    trapped = scripted(WRITE, {"run": "trap 'touch saved.txt; exit' TERM; sleep 60 & wait"})
    project.task(
        "slow", agent=trapped, run_limits={"task_timeout": 4}, success_criteria=[*OUT, {"type": "file_exists", "path": "saved.txt"}]
    )
    run = project.run("tasks", AGENT, "--codeprobe-jobs=3").assert_consistent()
    hits = {task: e["limit_hit"] and e["limit_hit"]["name"] for task, e in run.finished.items()}
    ended = {"memory": "memory_mb", "pids": "pids", "disk": "disk_mb", "at-its-end": "memory_mb", "slow": "task_timeout"}
    assert hits == {**ended, "cpus": None, "enough": None}
    assert run.statuses == dict.fromkeys(hits, "passed"), run.output
    log = (run.trial("cpus") / "attempt-1" / "trial.log").read_text()
    assert (used := re.search(r"sandbox.limits.cpus = 0.1: used up in ([0-9]+) of [0-9]+ periods", log)), log
    assert int(used[1]) > 0
    run.assert_nothing_left()
    assert not containers.of(engine, run)


def test_ten_want_the_same_port(project: Project) -> None:
    engine = use(project)
    serve = (
        "import socket; s = socket.create_server(('0.0.0.0', 8000)); socket.create_connection(('127.0.0.1', 8000)); open('out.txt', 'w')"
    )
    for network in ("on", "off"):
        for number in range(5):
            steps = scripted({"run": f'python3 -c "{serve}"'}, {"sleep": 1})
            project.task(f"{network}-{number}", agent=steps, sandbox={"network": network}, success_criteria=OUT)
    run = project.run("tasks", AGENT, "--codeprobe-jobs=10").assert_consistent()
    assert set(run.statuses.values()) == {"passed"}, run.output
    assert len(run.statuses) == 10
    assert not containers.of(engine, run)


def test_faults_of_image_and_engine_are_no_failures(project: Project, tmp_path: Path) -> None:
    engine = use(project, image=None)
    hidden = {"type": "pytest", "paths": ["hidden"]}
    project.write("tasks/hidden/test_it.py", "def test_it(): pass\n")
    project.write("tasks/Dockerfile", f"FROM {IMAGE}\nARG WORD\nENV SAID=$WORD\n")
    project.write("tasks/wrong/Dockerfile", "FROM\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/in.txt").write_text("mounted\n")
    shell = {"type": "command", "command": ["sh", "-c", "echo $SAID; cp /in/in.txt out.txt; pwd >> out.txt; touch /in/x"]}
    built = {"dockerfile": "Dockerfile", "build": {"args": {"WORD": "built"}}, "mounts": [f"{tmp_path}/data:/in"]}
    docker = {
        "built": {**built, "working_dir": "/work"}, "absent": {"image": "localhost/codeprobe-none:1"},
        "unbuilt": {"dockerfile": "wrong/Dockerfile"},
        "no-python": {"image": BARE}, "no-program": {"image": BARE}, "unmakable": {"image": BARE, "mounts": ["/nowhere/at-all:/in"]},
    }  # fmt: skip
    agents = {"built": shell, "no-program": {"type": "command", "command": ["no-such-cli"]}}
    plain = {"type": "command", "command": ["sh", "-c", "echo x > out.txt"]}
    for name, config in docker.items():
        criteria = [hidden] if name == "no-python" else OUT
        project.task(name, agent=agents.get(name, plain), sandbox={"docker": config}, success_criteria=criteria)
    environment = {**project.environment, "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    run = project.run("tasks", "--codeprobe-agent=command", "--codeprobe-jobs=3", env=environment).assert_consistent()
    found = {task: e["code"] for task, e in run.finished.items()}
    failed = dict.fromkeys(("absent", "unbuilt", "no-python", "unmakable"), "SANDBOX_FAILED")
    assert found == {"built": None, "no-program": "AGENT_CRASHED", **failed}, run.output
    why = {name: run.result(name)["reason"] for name in failed}
    assert "image 'localhost/codeprobe-none:1' can't be had" in why["absent"]
    assert "wrong/Dockerfile can't be built" in why["unbuilt"]
    assert f"image {BARE} has no python3 on its PATH" in why["no-python"]
    assert "its sandbox could not be made: " in why["unmakable"]
    assert "/nowhere/at-all" in why["unmakable"]
    assert (run.trial("built") / "artifacts/out.txt").read_text() == "mounted\n/work\n"
    assert run.result("built")["final_message"].strip() == "built"
    assert not (tmp_path / "data/x").exists()
    run.assert_nothing_left()
    assert not containers.of(engine, run)


def test_offline_nothing_is_reached_and_every_attempt_is_named(project: Project) -> None:
    engine = use(project)
    ask = "python3 -c \"import urllib.request as r; r.urlopen('http://outside.test/')\"; true"
    past = "! python3 -c \"import socket; socket.create_connection(('10.88.0.1', 80), 5)\""
    project.task("agent", agent=scripted(WRITE, {"run": ask}), success_criteria=OUT)
    project.task("grader", agent=scripted(WRITE), success_criteria=[{"type": "run_command", "command": ask}])
    project.task(
        "past", agent=scripted({"run": f"{past} && touch out.txt"}), success_criteria=[*OUT, {"type": "run_command", "command": past}]
    )
    run = project.run("tasks", AGENT, "--codeprobe-offline", "--codeprobe-jobs=3").assert_consistent()
    assert run.statuses == {"agent": "error", "grader": "error", "past": "passed"}, run.output
    for name in ("agent", "grader"):
        assert run.finished[name]["code"] == "OFFLINE_NET_ATTEMPT"
        assert "tried outside.test:80" in run.result(name)["reason"]
    assert not [warning for warning in run.envelope["warnings"] if warning.startswith("offline: ")]  # all of it is held
    assert not containers.of(engine, run)


CLAUDE = """#!/bin/sh
cat > /dev/null
echo done > out.txt
echo '{"type": "system", "subtype": "init", "session_id": "s", "tools": [], "mcp_servers": [], "model": "m"}'
echo '{"type": "assistant", "message":
  {"id": "m1", "model": "m", "role": "assistant", "content": [{"type": "text", "text": "From the image."}]}}' | tr '\\n' ' '; echo
echo '{"type": "result", "subtype": "success", "is_error": false, "result": "From the image.", "total_cost_usd": 0.25, "usage": {}}'
"""


def test_an_agent_that_only_the_image_has(project: Project) -> None:
    """Such a one is not refused beforehand, as it is where this machine's programs count."""
    use(project)
    cli = project.write("image/claude", CLAUDE)
    cli.chmod(0o755)
    project.environment |= {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "ANTHROPIC_API_KEY": "sk-some-key-or-other"}
    docker = {"image": IMAGE, "mounts": [f"{cli}:/usr/local/bin/claude"]}
    project.task("t", agent={"type": "claude"}, sandbox={"docker": docker}, success_criteria=OUT)
    run = project.run("tasks", "--codeprobe-agent=claude").assert_consistent()
    assert run.statuses == {"t": "passed"}, run.output
    assert run.result("t")["final_message"] == "From the image."


def test_docker_is_asked_in_its_own_words(project: Project) -> None:
    """By a program of its name that podman stands behind, which knows all of docker's words; docker knows none of podman's own."""
    engine = use(project)
    docker, log = project.scratch / "bin/docker", project.scratch / "log"
    docker.parent.mkdir()
    docker.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" | tr "\\n" " " >> {log}; echo >> {log}\nexec podman "$@"\n')
    docker.chmod(0o755)
    project.write("pytest.ini", f"[pytest]\ncodeprobe_engine = {docker}\n")
    agent, own = (
        scripted({"run": "printenv MY_TOKEN > out.txt; printenv report host > env.txt; sleep 60"}),
        {
            "env": {"MY_TOKEN": "s3cret-value-of-mine", "report": "of the task", "host": "too"},
            "network": "off",
        },
    )
    project.task("t", sandbox=own, agent=agent, run_limits={"task_timeout": 4}, success_criteria=OUT)
    run = project.run("tasks", AGENT).assert_consistent()
    assert run.statuses == {"t": "passed"}, run.output
    assert (run.trial("t") / "artifacts/env.txt").read_text() == "of the task\ntoo\n"
    lines = log.read_text().splitlines()
    said = {line.split()[0] for line in lines}
    assert said == {"ps", "image", "run", "exec", "rm"}
    assert all(line.startswith("rm -f -v codeprobe-") for line in lines if line.startswith("rm"))
    for line in (line for line in lines if line.startswith("run")):
        assert "--cap-drop ALL --security-opt no-new-privileges --security-opt label=disable --read-only" in line
        assert "--network none" in line
        assert f"--user {os.geteuid()}:{os.getegid()}" in line
        assert not {"--http-proxy=false", "--userns"} & set(line.split())
    assert "s3cret" not in log.read_text()
    assert not containers.of(engine, run)


def test_podman_without_root_keeps_who_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getegid", lambda: 100)
    assert Engine("podman", "/usr/bin/podman", {}).user() == ["--userns", "keep-id", "--user", "1000:100"]
    assert Engine("docker", "/usr/bin/docker", {}).user() == ["--user", "1000:100"]
    assert client_environment({"ANTHROPIC_API_KEY": "x", "DOCKER_HOST": "y", "HOME": "/h"}) == {
        "PATH": os.defpath, "DOCKER_HOST": "y", "HOME": "/h",
    }  # fmt: skip


def test_paths_of_programs_keep_their_order() -> None:
    """Of graders what a session may have filled comes last."""
    host, image = "/usr/bin:/home/me/bin", "/image/bin:/bin"
    assert translated(f"/t/shims:/t/mocks:{host}", host, image) == f"/t/shims:/t/mocks:{image}"
    assert translated(f"/t/tools:{host}:/t/mocks:/t/node_modules/.bin", host, image) == f"/t/tools:{image}:/t/mocks:/t/node_modules/.bin"
    assert translated("/own", host, image) == f"/own:{image}"


def test_what_is_mounted(tmp_path: Path) -> None:
    odd = tmp_path / 'a,"b'
    words = list(mounts([(tmp_path, Path("/x"), True), (odd, Path("/x"), False)]))
    assert words == ["--mount", f'type=bind,"source={tmp_path}/a,""b",target=/x']
    for short, full in (("/a:/b", (True, "/a", "/b")), ("~/a:/b:rw", (False, "~/a", "/b"))):
        mount = DockerMount.model_validate(short)
        assert (mount.read_only, mount.source, mount.target) == full
    for wrong in ("/a", "a:/b", "/a:b", "/a:/b:z", "/a:/b:rw:z"):
        with pytest.raises(ValidationError):
            DockerMount.model_validate(wrong)
    with pytest.raises(ValidationError, match="exclude each other"):
        DockerConfig.model_validate({"image": "x", "dockerfile": "y"})


def test_an_engine_that_is_not_there(project: Project) -> None:
    """And an image that nobody named: told at collection."""
    project.write("pytest.ini", "[pytest]\ncodeprobe_engine = no-engine\n")
    project.task("t", agent=scripted(WRITE))
    none = project.run("tasks", AGENT, "--codeprobe-driver=docker", "--codeprobe-json", junit=False)
    (error,) = json.loads(none.stdout)["errors"]
    assert (none.code, error["code"]) == (4, "TASK_INVALID")
    assert "sandbox.docker needs an image or a dockerfile" in error["message"]
    away = project.run(
        "tasks", AGENT, "--codeprobe-driver=docker", "--codeprobe-set=sandbox.docker.image=x", "--codeprobe-json", junit=False
    )
    (error,) = json.loads(away.stdout)["errors"]
    assert (away.code, error["code"]) == (6, "SANDBOX_UNAVAILABLE")
    assert "there is no program `no-engine` on PATH" in error["message"]
