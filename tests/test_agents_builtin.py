from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from pytest_codeprobe.agents import BUILTIN
from pytest_codeprobe.agents.builtin import NoAgent, Nop, Oracle
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.result import no_usage
from tests.agent_sessions import checked_transcript, ended, make_request, make_trial, run_session

PATCH = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1 +1 @@
-x = 1
+x = 2
diff --git a/new.sh b/new.sh
new file mode 100755
--- /dev/null
+++ b/new.sh
@@ -0,0 +1 @@
+echo new
"""


def test_builtin_names_are_unique_and_known() -> None:
    names = [name for agent in BUILTIN for name in (agent.name, *agent.aliases)]
    assert len(set(names)) == len(names)
    assert {agent.name for agent in BUILTIN} == {"claude", "command", "none", "nop", "oracle", "scripted"}


@pytest.mark.parametrize("agent", [Nop(), NoAgent()])
def test_agents_that_start_nothing(agent: Nop | NoAgent, tmp_path: Path) -> None:
    request = make_request(tmp_path, prompt=None)
    assert agent.command(request) is None
    parser = agent.parser(request)
    assert parser.usage() == no_usage()
    assert parser.info().name == agent.name
    assert [step.source for step in checked_transcript(parser).steps] == ["user"]
    assert not agent.is_session


def test_oracle_runs_a_script_in_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "answer").write_text("42")
    script = 'cp "$TASK_DIR/answer" . && echo "$REFERENCE_DIR" > where && pwd -P'
    request = make_request(tmp_path, solution={"script": script}, reference={"directory": str(tmp_path / "ref")})
    parser, end, _ = run_session(Oracle(), request)
    assert end.code is None
    assert (tmp_path / "workspace" / "answer").read_text() == "42"
    assert (tmp_path / "workspace" / "where").read_text().strip() == str(tmp_path / "ref")
    assert checked_transcript(parser).steps[-1].message == os.path.realpath(tmp_path / "workspace")
    assert parser.usage() == no_usage()


def test_oracle_lays_a_directory_over_the_workspace(tmp_path: Path) -> None:
    request = make_request(tmp_path, solution={"directory": str(tmp_path / "-sol")})
    solution = tmp_path / "-sol"
    (solution / "sub").mkdir(parents=True)
    (solution / "sub" / "run.sh").write_text("new")
    (solution / "sub" / "run.sh").chmod(0o755)
    (solution / ".hidden").write_text("new")
    (solution / "link").symlink_to("nowhere")
    workspace = tmp_path / "workspace"
    (workspace / "sub").mkdir()
    (workspace / "sub" / "run.sh").write_text("old")
    (workspace / "sub" / "run.sh").chmod(0o444)
    (workspace / "kept").write_text("old")
    _, end, _ = run_session(Oracle(), request)
    assert end.code is None
    assert (workspace / "sub" / "run.sh").read_text() == (workspace / ".hidden").read_text() == "new"
    assert (workspace / "kept").read_text() == "old"
    assert (workspace / "link").readlink() == Path("nowhere")


def test_oracle_leaves_no_old_file_times(tmp_path: Path) -> None:
    # A file with the old one's size and time would be hidden behind a stale .pyc.
    request = make_request(tmp_path, solution={"directory": str(tmp_path / "solution")})
    (tmp_path / "solution").mkdir()
    (tmp_path / "solution" / "a.py").write_text("x")
    os.utime(tmp_path / "solution" / "a.py", (1, 1))
    run_session(Oracle(), request)
    assert (tmp_path / "workspace" / "a.py").stat().st_mtime > 1000


def test_oracle_falls_back_to_the_reference(tmp_path: Path) -> None:
    (tmp_path / "ref").mkdir()
    (tmp_path / "ref" / "a").write_text("1")
    request = make_request(tmp_path, reference={"directory": str(tmp_path / "ref")})
    assert Oracle().skip_reason(request.trial) is None
    run_session(Oracle(), request)
    assert (tmp_path / "workspace" / "a").read_text() == "1"


def test_oracle_skips_what_has_no_solution(tmp_path: Path) -> None:
    assert "no solution" in (Oracle().skip_reason(make_trial(tmp_path)) or "")
    assert "no solution" in (Oracle().skip_reason(make_trial(tmp_path, reference={"code": "x"})) or "")
    assert Oracle().command(make_request(tmp_path)) is None


@pytest.mark.parametrize("repository", ["none", "workspace", "above"])
def test_oracle_applies_a_patch_whatever_repository_is_there(tmp_path: Path, repository: str) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "solution.patch").write_text(PATCH)
    request = make_request(tmp_path, solution={"patch": str(tmp_path / "task" / "solution.patch")})
    workspace = tmp_path / "workspace"
    (workspace / "calc.py").write_text("x = 1\n")
    if repository != "none":
        place = workspace if repository == "workspace" else tmp_path
        subprocess.run(["git", "init", "-q", str(place)], check=True)
        with (place / ".git" / "config").open("a") as config:
            config.write('[core]\n\tautocrlf = true\n[apply]\n\twhitespace = error-all\n[filter "bad"]\n\tsmudge = false\n')
    (workspace / ".gitattributes").write_text("*.py filter=bad\n")
    _, end, done = run_session(Oracle(), request)
    assert end.code is None, done.stderr
    assert (workspace / "calc.py").read_bytes() == b"x = 2\n"
    assert (workspace / "new.sh").stat().st_mode & stat.S_IXUSR


def test_oracle_says_why_a_patch_fails(tmp_path: Path) -> None:
    (tmp_path / "p").write_text(PATCH.replace("a/calc.py", "a/../../outside").replace("b/calc.py", "b/../../outside"))
    _, end, _ = run_session(Oracle(), make_request(tmp_path, solution={"patch": str(tmp_path / "p")}))
    assert end.code == "AGENT_CRASHED"
    assert "error:" in (end.reason or "")
    with pytest.raises(CodeprobeError, match=r"TASK_INVALID: solution\.patch can't be read"):
        Oracle().command(make_request(tmp_path, solution={"patch": str(tmp_path / "gone")}))


def test_oracle_stopped_by_a_limit_is_graded(tmp_path: Path) -> None:
    parser = Oracle().parser(make_request(tmp_path))
    assert parser.end(ended(-15, "timeout"), stopped_for="task_timeout", stderr_tail="").code is None


def test_oracle_keeps_only_the_end_of_much_output(tmp_path: Path) -> None:
    parser = Oracle().parser(make_request(tmp_path))
    for n in range(100_000):
        parser.feed(b"line %d \x1b[31m\x00\xff" % n)
    parser.end(ended(), stopped_for=None, stderr_tail="")
    message = checked_transcript(parser).steps[-1].message
    assert message.endswith("line 99999 \ufffd\ufffd")
    assert len(message) < 100_000
