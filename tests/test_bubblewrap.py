"""Driver bubblewrap: what is held, what is shown, and how a fault of it is told."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from pytest_codeprobe.sandboxes.visible import covered, harness, narrowed, program_places, roots_own
from tests import containers
from tests.doc_pages import DOCS, rows, section
from tests.enclosures import HELD, NOT_TRIED, TRIES, lay, name_of, server
from tests.front_door import Project, scripted
from tests.test_parity import fill, outcome

DRIVER = "--codeprobe-driver=bubblewrap"
WRITE = {"write": {"path": "out.txt", "content": "x"}}


@pytest.mark.parametrize("driver", sorted(HELD))
def test_what_is_held(project: Project, tmp_path: Path, driver: str) -> None:
    """Each try is a trial of one run, with 4 at once: so there are others to look for."""
    home = tmp_path / "home"
    engine = containers.use(project) if driver == "docker" else None
    project.environment |= {"HOME": str(home), "ENCLOSURE_KEY": "enclosure-s3cret-value"}
    tries = [words for words in TRIES if words not in NOT_TRIED.get(driver, ())]
    with server() as asked:
        lay(project, home, asked, tries, python="python3" if engine is not None else sys.executable)
        run = project.run("tasks", "--codeprobe-agent=command", f"--codeprobe-driver={driver}", "--codeprobe-jobs=4").assert_consistent()
        reached = asked.asked
    held = {words for words in tries if run.statuses[name_of(words)] == "passed"}
    got = {words: (run.trial(name_of(words)) / "artifacts" / "got.txt").read_text() for words in tries if words not in held}
    assert held == HELD[driver] & set(tries), got
    assert reached == 0
    assert {run.statuses[name_of(words)] for words in tries} <= {"passed", "failed"}
    run.assert_nothing_left()
    assert engine is None or not containers.of(engine, run)


def test_sessions_pre_run_graders_and_hidden_tests_work_in_it(project: Project, mode: str) -> None:
    project.write("tasks/hidden/test_add.py", "from calc import add\ndef test_add(): assert add(1, 2) == 3\n")
    code = "def add(a, b):\n    return a + b\n"
    hidden = {"type": "pytest", "paths": ["hidden"]}
    project.task("right", agent=scripted({"write": {"path": "calc.py", "content": code}}), success_criteria=[hidden])
    project.task("wrong", agent=scripted({"write": {"path": "calc.py", "content": code.replace("+", "-")}}), success_criteria=[hidden])
    project.write("tasks/reference.txt", "from the task's folder\n")
    project.task(
        "commands",
        pre_run=[{"command": "cp $TASK_DIR/reference.txt before.txt; echo $HOME > home.txt"}],
        agent=scripted({"run": "cat before.txt > out.txt; echo $TMPDIR > $TMPDIR/x; echo $HOME > $HOME/x"}),
        post_run=[{"command": f"cp out.txt {project.marks}/out.txt"}],
        success_criteria=[
            {"type": "file_contains", "path": "out.txt", "includes": ["from the task's folder"]},
            {"type": "run_command", "command": 'cmp out.txt "$TASK_DIR/reference.txt" && python -c "print(1)"', "expected_stdout": "1"},
            {"type": "answer_contains", "includes": [""]},
        ],
    )
    run = project.run("tasks", "--codeprobe-agent=scripted", DRIVER, mode=mode).assert_consistent()
    assert run.statuses == {"right": "passed", "wrong": "failed", "commands": "passed"}, run.output
    assert {line["driver"] for line in run.plan} == {"bubblewrap"}
    assert not (project.marks / "out.txt").exists()  # post_run is inside, too
    run.assert_nothing_left()


def test_the_oracle_and_limits(project: Project) -> None:
    out = [{"type": "file_exists", "path": "out.txt"}]
    project.write("tasks/done/out.txt", "x")
    project.write("tasks/fix.patch", "--- /dev/null\n+++ b/out.txt\n@@ -0,0 +1 @@\n+x\n")
    project.task("script", solution={"script": 'cp "$TASK_DIR/done/out.txt" .'}, success_criteria=out)
    project.task("folder", solution={"directory": "done"}, success_criteria=out)
    project.task("patch", solution={"patch": "fix.patch"}, success_criteria=out)
    run = project.run("tasks", "--codeprobe-agent=oracle", DRIVER)
    assert run.statuses == dict.fromkeys(("script", "folder", "patch"), "passed"), run.output
    project.task(
        "slow", agent=scripted(WRITE, {"run": "trap '' TERM; sleep 60 & sleep 60"}), run_limits={"task_timeout": 1}, success_criteria=out
    )
    slow = project.run("tasks/slow.yaml", "--codeprobe-agent=scripted", DRIVER).assert_consistent()
    assert slow.finished["slow"]["limit_hit"] == {"name": "task_timeout", "value": 1.0}
    assert slow.statuses == {"slow": "passed"}
    slow.assert_nothing_left()


def test_what_of_this_machine_is_shown(project: Project, tmp_path: Path) -> None:
    """A program with its own file, one with what its first line names; of the task's folder what the command names; ini codeprobe_bind."""
    tools = tmp_path / "tools"
    own = (
        "#!/bin/sh\nls {0} > out.txt; cat {1}/models/big.txt >> out.txt; cat $1 >> out.txt; cat $(dirname $1)/other.txt >> out.txt\n"
        "ls -A /usr/share/doc >> out.txt; true\n"
    )
    project.environment["HOME"] = "/usr/share/doc"  # a user's, though in a folder of the system
    for name, text in {"bin/agent": own.format(tools / "bin", tmp_path), "bin/secret": "no"}.items():
        (tools / name).parent.mkdir(parents=True, exist_ok=True)
        (tools / name).write_text(text)
    (tools / "bin/agent").chmod(0o755)
    (tmp_path / "models").mkdir()
    (tmp_path / "models/big.txt").write_text("a model\n")
    project.write("tasks/said.txt", "by the task\n")
    project.write("tasks/other.txt", "not named\n")
    project.write("pytest.ini", f"[pytest]\ncodeprobe_bind = {tmp_path}/models nowhere\n")
    out = [{"type": "file_exists", "path": "out.txt"}]
    project.task("t", agent={"type": "command", "command": [str(tools / "bin/agent"), "{task_dir}/said.txt"]}, success_criteria=out)
    run = project.run("tasks", "--codeprobe-agent=command", DRIVER).assert_consistent()
    assert (run.trial("t") / "artifacts/out.txt").read_text() == "agent\na model\nby the task\n", run.output


def test_programs_that_commands_start_are_shown(project: Project, tmp_path: Path) -> None:
    """Those that the text of pre_run, criteria and solution names, wherever; not what the agent put there. And certificates."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "key").write_text("enclosure-s3cret-value")
    for name in ("mytool", "other"):
        (tools / name).write_text(f"#!/bin/sh\nls {tools}\n")
        (tools / name).chmod(0o755)
    path = {"PATH": f"bin:{tools}:/usr/bin:/bin"}
    planted = {"write": {"path": "bin/planted", "content": f"#!{tools}/key\n"}}
    unnamed = f"cat {tools}/key; command -v oth''er || o''ther"
    shown = {"type": "run_command", "command": f"set -e\nmytool || exit 1\nset +e; planted; {unnamed}", "expected_exit_code": 127}
    before = [{"command": f"# first\nif true; then {tools}/mytool; fi > before.txt; cat $SSL_CERT_FILE > ca.txt"}]
    (tmp_path / "ca.pem").write_text("a certificate")
    project.environment |= {"SSL_CERT_FILE": str(tmp_path / "ca.pem"), "PATH": f"{tools}:{os.environ['PATH']}"}
    agent = scripted(planted, {"run": "chmod +x bin/*; mytool"})
    project.task("t", pre_run=before, agent=agent, sandbox={"env": path}, success_criteria=[shown])
    run = project.run("tasks", "--codeprobe-agent=scripted", DRIVER).assert_consistent()
    assert run.statuses == {"t": "passed"}, run.output
    evidence = run.result("t")["criteria"][0]["evidence"]
    assert evidence["stdout"] == "mytool\n"
    said = [line.rpartition(": ")[2] for line in evidence["stderr"].splitlines()]
    assert said == ["not found", "No such file or directory", "not found"]
    kept = run.trial("t") / "artifacts"
    assert [(kept / name).read_text() for name in ("before.txt", "ca.txt")] == ["mytool\n", "a certificate"]
    project.task("t", solution={"script": "out=$(mytool) && echo $out > out.txt"}, sandbox={"env": path})
    assert project.run("tasks", "--codeprobe-agent=oracle", DRIVER).statuses == {"t": "passed"}
    miss = {"type": "run_command", "command": "oth''er"}
    project.task("t", agent=scripted(WRITE), success_criteria=[miss])
    project.write("pytest.ini", f"[pytest]\ncodeprobe_bind = {tools}/gone ~\n")
    missed = project.run("tasks", "--codeprobe-agent=scripted", DRIVER)
    assert (
        f"(other is in {tools}, which the sandbox does not show: name it in ini codeprobe_bind)"
        in missed.result("t")["criteria"][0]["explanation"]
    )
    assert [w.partition(" ")[2].rpartition("/")[2] for w in missed.envelope["warnings"]] == [
        "gone does not exist",
        f"{Path.home().name} is never shown as a whole: name what is needed of it",
    ]


def test_auto_is_bubblewrap_where_it_works(project: Project, mode: str) -> None:
    """Else tempdir, with one warning; what only the one holds is a fault of the file then, with the reason."""
    project.environment["CODEPROBE_DRIVER"] = "auto"
    project.task("t", agent=scripted(WRITE))
    works = project.run("tasks", "--codeprobe-agent=scripted", mode=mode).assert_consistent()
    assert works.result("t")["driver"] == "bubblewrap"
    assert works.envelope["warnings"] == []
    assert "driver bubblewrap" in works.output
    bwrap = project.write("bin/bwrap", "#!/bin/sh\necho 'bwrap: no namespaces here' >&2; exit 1\n")
    bwrap.chmod(0o755)
    project.environment["PATH"] = f"{bwrap.parent}:{os.environ['PATH']}"
    run = project.run("tasks", "--codeprobe-agent=scripted", mode=mode).assert_consistent()
    (warning,) = run.envelope["warnings"]
    assert "driver tempdir, which is no security boundary: `bwrap` does not work here: bwrap: no namespaces here" in warning
    assert run.result("t")["driver"] == "tempdir"
    assert "driver tempdir" in run.output
    asked = project.run("tasks", "--codeprobe-agent=scripted", "--codeprobe-driver=tempdir", mode=mode).assert_consistent()
    assert asked.envelope["warnings"] == []
    project.task("off", agent=scripted(WRITE), sandbox={"network": "off"})
    fault = project.run("tasks", "--codeprobe-agent=scripted", mode=mode)
    assert fault.code == 4 or "Interrupted: 1 error during collection" in fault.output
    assert "off needs driver bubblewrap or docker (driver auto is tempdir here: `bwrap` does not work here" in fault.output


def test_programs_and_what_they_are_made_of(tmp_path: Path) -> None:
    modules = tmp_path / "lib/node_modules"
    cli = modules / "@scope/cli/cli.js"
    cli.parent.mkdir(parents=True)
    cli.write_text("#!/usr/bin/env node\n")
    link = tmp_path / "bin/cli"
    link.parent.mkdir()
    link.symlink_to(cli)
    node = tmp_path / "node/node"
    node.parent.mkdir()
    node.write_bytes(b"\x7fELF")
    node.chmod(0o755)
    assert list(program_places(link, {"PATH": str(node.parent)})) == [link, modules, node, node]
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (venv / "bin/python").symlink_to("/usr/bin/python3")
    (venv / "bin/tool").write_text(f"#!{venv}/bin/python\n")
    found = set(program_places(venv / "bin/tool", {}))
    assert venv in found
    assert set(narrowed(found)) == {venv}  # what lies in a shown folder is shown
    places = [Path("/usr/share/doc"), Path("/usr/share"), tmp_path, Path("/usr"), Path("/usr/nowhere")]
    assert covered(places) == [Path("/usr/share")]
    assert list(narrowed([Path("/usr/share/doc"), Path("/usr/bin")], [Path("/usr/share")])) == [Path("/usr/share/doc")]


def test_an_environment_in_the_repository_shows_no_more_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\n")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    shown = harness.__wrapped__()
    assert tmp_path / "lib" in shown
    assert tmp_path not in shown


def test_what_only_root_may_read_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, mode in {"open.conf": 0o644, "key": 0o640, "keys/inner": 0o644, "more/pem": 0o600}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    (tmp_path / "keys").chmod(0o750)
    (tmp_path / "more").chmod(0o755)
    (tmp_path / "link").symlink_to("key")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    files, folders = roots_own.__wrapped__(str(tmp_path))
    assert (sorted(files), list(folders)) == ([f"{tmp_path}/key", f"{tmp_path}/more/pem"], [f"{tmp_path}/keys"])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not any(roots_own.__wrapped__(str(tmp_path)))


def test_for_an_ordinary_user(project: Project) -> None:
    project.task("t", agent=scripted(WRITE, {"run": "id -u > who.txt; touch /usr/x || echo no > no.txt"}))
    somebody = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--") if os.geteuid() == 0 else ()
    run = project.start("tasks", "--codeprobe-agent=scripted", DRIVER, prefix=somebody).wait()
    assert run.assert_consistent().statuses == {"t": "passed"}, run.output
    assert run.result("t")["changed_files"] == ["A no.txt", "A out.txt", "A who.txt"]


def test_an_enclosure_that_can_not_be_made_is_no_failure(project: Project) -> None:
    """A broken bwrap: before the run where it never works, and in the trial where it works no more."""
    real = project.scratch / "real"
    bwrap = project.scratch / "bin" / "bwrap"
    bwrap.parent.mkdir()
    bwrap.write_text(f"#!/bin/sh\n[ -e {real} ] || {{ echo 'bwrap: no namespaces here' >&2; exit 1; }}\n"
                     f"case \"$*\" in *json-status*) echo 'bwrap: Creating new namespace failed' >&2; exit 1;; esac\nexit 7\n")  # fmt: skip
    bwrap.chmod(0o755)
    project.environment["PATH"] = f"{bwrap.parent}:{project.environment.get('PATH', '/usr/bin:/bin')}"
    project.task("t", agent=scripted(WRITE))
    never = project.run("tasks", "--codeprobe-agent=scripted", DRIVER, "--codeprobe-json", junit=False)
    (error,) = json.loads(never.stdout)["errors"]
    assert (never.code, error["code"]) == (6, "SANDBOX_UNAVAILABLE")
    assert "`bwrap` does not work here: bwrap: no namespaces here" in error["message"]
    real.touch()
    later = project.run("tasks", "--codeprobe-agent=scripted", DRIVER).assert_consistent()
    assert later.code == 6
    assert later.finished["t"]["code"] == "SANDBOX_FAILED"
    assert "its sandbox could not be made: bwrap: Creating new namespace failed" in later.finished["t"]["reason"]


def test_the_table_of_the_docs() -> None:
    table = {row[0]: tuple(row[1:]) for row in rows(section(DOCS / "security.md", "What an agent tries"))}
    words = {True: "held", False: "not held"}
    assert table == {try_: tuple(words[try_ in HELD[driver]] for driver in ("tempdir", "bubblewrap", "docker")) for try_ in TRIES}


def test_the_same_as_under_tempdir(project: Project) -> None:
    """Outcomes, ids, records, counts, exit code, JUnit; but what says which driver it was.

    And how bwrap tells of a signal, as a shell does; what outlives a command it ends itself, so that our keeper sees none of it.
    """
    containers.use(project, image=None)
    fill(project, seconds=5)  # a container has to be made first
    seen = {}
    for driver in ("tempdir", "bubblewrap", "docker"):
        args = ("tests", "tasks", "ztests", f"--codeprobe-run-dir={driver}", "--codeprobe-agent=scripted", f"--codeprobe-driver={driver}")
        image = (f"--codeprobe-set=sandbox.docker.image={containers.IMAGE}",) if driver == "docker" else ()
        found = outcome(project.run(*args, *image, "--codeprobe-jobs=4").assert_consistent())
        for record in filter(None, found["records"].values()):
            record.pop("fingerprint")  # a session in another place is another session
        text = json.dumps(found, sort_keys=True).replace(driver, "DRIVER")
        text = re.sub(r'"exit_status": -(\d+)', lambda m: f'"exit_status": {128 + int(m[1])}', text)
        seen[driver] = re.sub(r'"left_processes": \d+', "", text)
    parts = zip(*(map(str.strip, text.split(",")) for text in seen.values()), strict=True)
    differ = [each for each in parts if len(set(each)) > 1]
    assert not differ, differ
