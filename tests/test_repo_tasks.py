"""Tasks that are laid out from a repository, through the front door."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from tests.front_door import Project, scripted
from tests.repositories import FIX, LOOK, bare, commit, daemon, git, mute, web, with_a_fix


def home(project: Project) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(project.path.parent / "cache")}


def repo_task(project: Project, name: str, source: Mapping[str, Any], *steps: dict[str, Any], **more: Any) -> None:
    sandbox = {"template_sources": [{"type": "repo", **source}], **more.pop("sandbox", {})}
    project.task(name, agent=scripted(*steps), sandbox=sandbox, **{"success_criteria": [{"type": "file_exists", "path": "app.py"}], **more})


@pytest.mark.parametrize("driver", ["tempdir", "bubblewrap"])
def test_an_agent_that_looks_everywhere(project: Project, driver: str) -> None:
    """Under a driver that isolates also where the repository itself and the cache lie."""
    source = project.path.parent / "source"
    base = with_a_fix(source)
    git(source, "checkout", "-q", "--", ".")
    for name, given in (("url", {"url": f"file://{source}"}), ("path", {"path": "../../source"})):
        elsewhere = f"\nls {source} {home(project)['XDG_CACHE_HOME']}; grep -rs . {source}" if driver == "bubblewrap" else ""
        repo_task(project, name, {**given, "commit": base}, {"run": LOOK + elsewhere})
    run = project.run(
        "tasks", "--codeprobe-agent=scripted", f"--codeprobe-driver={driver}", "-o", "codeprobe_template_roots=..", env=home(project)
    ).assert_consistent()
    assert run.statuses == {"url": "passed", "path": "passed"}, run.output
    for name in run.statuses:
        found = (run.trial(name) / "artifacts/found.txt").read_text(errors="replace")
        assert "commits:1" in found.replace(" ", "")
        assert FIX not in found
        assert found.count("No such file or directory") >= 2 * (driver == "bubblewrap")
        assert FIX not in (run.trial(name) / "diff.patch").read_text(errors="replace")


def test_a_branch_that_moves(project: Project, mode: str) -> None:
    """It is not followed within a run, by whatever process; resume tells that another commit is meant now, and runs again what had it."""
    source = project.path.parent / "source"
    first = commit(source, {"app.py": "first"})
    second = commit(source, {"app.py": "second"})
    git(source, "reset", "-q", "--hard", first)
    move = f"cp app.py seen.txt; git -C {source} update-ref refs/heads/main {second} || true"  # whole, whoever does it at once
    for n in range(4):  # each laid out by itself
        given = {"path": "../../source"} if n % 2 else {"url": f"file://{source}"}
        repo_task(project, f"t{n}", {**given, "commit": "main"}, {"run": move}, sandbox={"git": "baseline" if n < 2 else "none"})
    repo_task(project, "fixed", {"url": f"file://{source}", "commit": first}, {"run": "true"})
    flags = ("tasks", "--codeprobe-agent=scripted", "--codeprobe-run-dir=run", "-o", "codeprobe_template_roots=..")
    run = project.run(*flags, mode=mode, env=home(project)).assert_consistent()
    assert set(run.statuses.values()) == {"passed"}, run.output
    assert git(source, "rev-parse", "main") == second
    assert {(run.trial(f"t{n}") / "artifacts/seen.txt").read_text() for n in range(4)} == {"first"}
    lock = json.loads((run.folder / "lock.json").read_text())
    assert {(note["source"], note["commit"], note["resolved"]) for note in lock["commits"]} == {
        (str(source), "main", first), (f"file://{source}", "main", first), (f"file://{source}", first, first),
    }  # fmt: skip
    assert not (run.folder / "commits").exists()
    again = project.run(*flags, "--codeprobe-resume", mode=mode, env=home(project))
    assert again.code == 0
    assert "4 run again: changed: template: " in again.output
    assert "1 kept, 4 to run" in again.output
    assert {(again.trial(f"t{n}") / "artifacts/seen.txt").read_text() for n in range(4)} == {"second"}


def test_what_is_wrong_is_said_before_anything_is_paid(project: Project) -> None:
    """Of a path at collection, with the place in the file; of a server when its first trial is prepared. No secret of a URL is told."""
    source = project.path.parent / "source"
    commit(source, {"app.py": "1"})
    secret = "s3cr3t-t0ken-of-mine"
    repo_task(project, "gone", {"url": f"http://u:{secret}@127.0.0.1:9/x.git?key={secret}"}, {"run": "touch out.txt"})
    run = project.run("tasks", "--codeprobe-agent=scripted", "--codeprobe-jobs=2", env=home(project)).assert_consistent()
    assert run.statuses == {"gone": "error"}
    result = run.result("gone")
    assert (result["code"], result["phase"]) == ("SANDBOX_FAILED", "prepare")
    assert "repository 'http://[REDACTED]@127.0.0.1:9/x.git?[REDACTED]' can't be fetched from: fatal: unable to access" in result["reason"]
    kept = [path for path in run.folder.rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if secret.encode() in path.read_bytes()]
    assert secret not in run.output
    dry = project.run("tasks", "--codeprobe-agent=scripted", "--codeprobe-dry-run", env=home(project))
    assert "SANDBOX_FAILED" in dry.output
    assert secret not in dry.output
    explained = project.codeprobe("explain", "gone", "--agent", "scripted")
    assert secret not in explained.output
    assert "http://[REDACTED]@127.0.0.1:9/x.gi" in explained.output
    typed = f"--codeprobe-set=sandbox.template_sources=[{{type: repo, url: 'http://u:{secret}@127.0.0.1:9/y.git'}}]"
    project.task("plain", agent=scripted())
    run = project.run("tasks/plain.yaml", "--codeprobe-agent=scripted", typed, env=home(project)).assert_consistent()
    assert run.result("plain")["code"] == "SANDBOX_FAILED"
    assert not [path for path in run.folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    for path in (project.path / "tasks").glob("*.yaml"):
        path.unlink()
    wrong = []
    for name, given, words in (
        ("a", {"path": "../../source", "commit": "nowhere"}, "[0].commit' is not in the repository"),
        ("b", {"path": "."}, "[0].path' must name a git repository, not a folder in one; the repository is"),
        ("c", {"url": "../../source"}, "[0].url' must be a URL (https, http, ssh, git, file) or USER@HOST:PATH, not '../../source'; a "),
        ("d", {"url": "ext::sh -c 'touch out'"}, "[0].url' must be a URL"),
        ("e", {"url": "--upload-pack=touch out"}, "[0].url' must be a URL"),
        ("f", {"url": f"file://{project.path}"}, "[0].url' names the repository that holds the task: name it by 'path'"),
        ("g", {"url": "https://example.org/x", "commit": "a..b"}, "[0].commit' must be a hash, a branch or a tag, not 'a..b'"),
    ):  # fmt: skip
        repo_task(project, name, given)
        wrong.append(f"'sandbox.template_sources{words}")
    run = project.run("tasks", "--codeprobe-agent=scripted", "-o", "codeprobe_template_roots=..", env=home(project))
    assert run.code == 4
    assert [words for words in wrong if words not in run.output] == [], run.output


def test_offline_a_commit_is_fetched_from_allowed_hosts_alone(project: Project) -> None:
    source = project.path.parent / "source"
    base = commit(source, {"app.py": "1"})
    served = bare(source, project.path.parent / "served/x.git")
    repo_task(project, "t", {"url": "http://git.elsewhere.test/x.git", "commit": base}, {"run": "true"})
    ssh = "ssh://git@git.other.test:2222/x.git"
    repo_task(project, "u", {"url": ssh}, {"run": "true"})
    run = project.run("tasks", "--codeprobe-agent=scripted", "--codeprobe-offline", mode="xdist", env=home(project)).run_dir_of_it()
    assert run.code == 4
    (error,) = run.envelope["errors"]
    assert error["code"] == "OFFLINE_PREFLIGHT_FAILED"
    assert "'http://git.elsewhere.test/x.git' (git.elsewhere.test:80)" in error["message"]
    assert "codeprobe_offline_allow = git.elsewhere.test git.other.test" in error["remediation"]
    assert not list(project.path.rglob("result.json"))
    with daemon(served.parent) as url:
        for name in ("t", "u"):
            (project.path / f"tasks/{name}.yaml").unlink()
        repo_task(project, "v", {"url": f"{url}/x.git", "commit": base}, {"run": "true"})
        run = project.run("tasks", "--codeprobe-agent=scripted", "--codeprobe-offline", env=home(project)).assert_consistent()
        assert run.statuses == {"v": "passed"}, run.output
    rewritten = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "url.http://git.elsewhere.test/.insteadOf", "GIT_CONFIG_VALUE_0": f"{url}/"}
    run = project.run("tasks", "--codeprobe-agent=scripted", "--codeprobe-offline", env=home(project) | rewritten).assert_consistent()
    assert run.statuses == {"v": "passed"}, run.output  # it is kept: no server is asked
    repo_task(project, "v", {"url": f"{url}/x.git", "commit": "main"}, {"run": "true"})
    run = project.run("tasks", "--codeprobe-agent=scripted", "--codeprobe-offline", env=home(project) | rewritten).run_dir_of_it()
    assert (run.code, run.envelope["errors"][0]["code"]) == (4, "OFFLINE_PREFLIGHT_FAILED")  # where git would really go


def test_rows_and_workers_share_what_is_fetched(project: Project) -> None:
    """A commit of its own for each row of a dataset; one fetch for all workers."""
    source = project.path.parent / "source"
    commits = [commit(source, {"app.py": str(n)}) for n in range(3)]
    served = bare(source, project.path.parent / "served/x.git")
    git(served, "update-server-info")
    with web(served.parent) as (place, asked):
        given = {"url": f"http://{place}/x.git", "commit": "${row.commit}"}
        rows = [{"id": f"r{n}", "commit": sha} for n, sha in enumerate(commits)]
        criteria = [{"type": "run_command", "command": 'test "$(cat app.py)" = "${ROW_ID#r}"'}]
        repo_task(project, "t", given, {"run": "true"}, dataset={"rows": rows}, repeats=2, success_criteria=criteria)
        run = project.run("tasks", "--codeprobe-agent=scripted", "-n", "2", env=home(project)).assert_consistent()
        assert {event["status"] for event in run.events if event["event"] == "trial_finished"} == {"passed"}, run.output
        fetched = len([line for line in asked if "info/refs?service=git-upload-pack" in line])
        again = project.run("tasks", "--codeprobe-agent=scripted", env=home(project)).assert_consistent()
        assert {event["status"] for event in again.events if event["event"] == "trial_finished"} == {"passed"}
        assert len([line for line in asked if "info/refs?service=git-upload-pack" in line]) == fetched
    assert len([path for path in (project.path.parent / "cache").rglob("*") if path.name in commits]) == 3


@pytest.mark.parametrize("scheme", ["git", "http"])
def test_a_server_that_never_answers_holds_nobody_up(project: Project, scheme: str) -> None:
    """A run that is interrupted ends at once, in whatever thread the server is waited for; of one that is killed no git is left."""
    with mute() as (place, came):
        for n in range(2):
            repo_task(project, f"t{n}", {"url": f"{scheme}://{place}/x.git", "commit": "1" * 40}, {"run": "true"})
        run = project.start("tasks", "--codeprobe-agent=scripted", "--codeprobe-jobs=2", env=home(project))
        run.poll(came.is_set)
        run.signal(signal.SIGINT)
        run.wait(30).assert_nothing_left()
        assert run.code == 2, run.output
        assert set(run.statuses.values()) == {"not_run"}
        came.clear()
        run = project.start("tasks", "--codeprobe-agent=scripted", env=home(project))
        run.poll(came.is_set)
        run.signal(signal.SIGKILL)
        run.wait(30)
        if scheme == "git":
            run.assert_nothing_left()
    assert not [path for path in (project.path.parent / "cache").rglob("1" * 40) if path.is_dir()]
    run.assert_nothing_left(20)
