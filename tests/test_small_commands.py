"""`codeprobe schema` and `codeprobe clean`, and what all commands share: refusals with an envelope, stdout that is JSON or text."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.cli.main import group
from pytest_codeprobe.cli.schema import names
from pytest_codeprobe.sandboxes.sweep import new_folder
from tests.front_door import Project, Run, scripted
from tests.schemas import NAMES, check, shipped
from tests.shell import type_in


def answer(run: Run) -> dict[str, Any]:
    """The one line of stdout."""
    (line,) = run.lines
    check("envelope", line)
    assert line["exit_code"] == run.code
    return line


# ---------------------------------------------------------------- schema


def test_schemas_are_listed_and_printed(project: Project) -> None:
    listed = project.codeprobe("schema")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == names()
    assert set(names()) > set(NAMES)
    for name in names():
        run = project.codeprobe("schema", name)
        assert (run.code, json.loads(run.stdout)) == (0, shipped(name))
    told = answer(project.codeprobe("schema", "--json"))
    assert [s["name"] for s in told["data"]["schemas"]] == names()
    assert all(s["description"] for s in told["data"]["schemas"])
    assert answer(project.codeprobe("schema", env={"CODEPROBE_JSON": "1"})) == told


def test_an_unknown_schema(project: Project) -> None:
    run = project.codeprobe("schema", "envelop", "--json")
    told = answer(run)
    (error,) = told["errors"]
    assert (run.code, told["command"], error["code"], told["data"]) == (4, "schema", "USAGE_ERROR", {})
    assert "did you mean 'envelope'?" in error["message"]
    assert error["message"] in run.stderr
    assert json.loads(type_in(project, error["command"]).stdout) == shipped("envelope")
    plain = project.codeprobe("schema", "zzz")
    assert (plain.code, plain.stdout) == (4, "")
    assert "envelope" in plain.stderr


# ---------------------------------------------------------------- clean


def kill_a_run(project: Project) -> list[Path]:
    """A run that was killed in a session; the private folders that it left below TMPDIR, sorted: of its trial and of its templates."""
    project.task("t", agent=scripted({"run": f"touch {project.marks}/on; sleep 60"}))
    run = project.start("tasks", "--codeprobe-agent=scripted")
    run.wait_for("on")
    run.signal(signal.SIGKILL)
    run.wait()
    run.assert_nothing_left(10)
    return left(project)


def left(project: Project) -> list[Path]:
    return sorted(Path(project.environment["TMPDIR"]).glob("codeprobe-*"))


def pid_of(folder: Path) -> int:
    return int(folder.name.split("-")[1])


def test_what_a_killed_run_left_is_removed(project: Project) -> None:
    folders = kill_a_run(project)
    assert folders
    root = project.environment["TMPDIR"]
    named = [{"path": str(folder), "pid": pid_of(folder)} for folder in folders]
    told = answer(project.codeprobe("clean", "--dry-run", "--json"))
    assert told["data"] == {
        "dry_run": True,
        "root": root,
        "folders": [{**each, "removed": False, "left": None} for each in named],
        "groups": [],
        "containers": [],
    }
    for folder in folders:
        assert f"would remove {folder}" in project.codeprobe("clean", "--dry-run").stdout
    assert left(project) == folders
    run = project.codeprobe("clean", "--json")
    assert answer(run)["data"]["folders"] == [{**each, "removed": True, "left": None} for each in named]
    assert (run.code, left(project)) == (0, [])
    again = project.codeprobe("clean")
    assert (again.code, again.stdout) == (0, f"nothing to clean in {root}\n")
    assert (project.path / ".codeprobe/runs/latest/events.ndjson").exists()  # run directories stay


def test_folders_of_the_living_stay(project: Project) -> None:
    mine = new_folder(Path(project.environment["TMPDIR"]))
    assert answer(project.codeprobe("clean", "--json"))["data"]["folders"] == []
    assert mine.is_dir()


def test_text_of_a_real_clean(project: Project) -> None:
    folders = kill_a_run(project)
    run = project.codeprobe("clean")
    assert run.stdout == "".join(f"removed {folder} (process {pid_of(folder)} is gone)\n" for folder in folders)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a mount")
def test_what_can_not_be_removed_is_said(project: Project) -> None:
    folder = next(each for each in kill_a_run(project) if (each / "workspace").is_dir())
    stuck = folder / "workspace" / "stuck"
    stuck.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(stuck)], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    unable = ("setpriv", "--bounding-set=-sys_admin", "--")  # to take a mount off
    program = ("-c", "from pytest_codeprobe.cli import main; main()")
    run = project.start("clean", "--json", program=program, prefix=unable, junit=False).wait()
    told = answer(run)
    (entry,) = [each for each in told["data"]["folders"] if not each["removed"]]
    subprocess.run(["umount", str(Path(entry["left"]) / "workspace" / "stuck")], check=True)
    assert (run.code, told["status"], entry["path"]) == (6, "error", str(folder))
    assert [e["code"] for e in told["errors"]] == ["SANDBOX_FAILED"]
    assert answer(project.codeprobe("clean", "--json"))["data"]["folders"][0]["removed"] is True
    assert left(project) == []


def test_two_at_once_share_the_work(project: Project) -> None:
    folders = kill_a_run(project)
    program = "from pytest_codeprobe.cli import main; main(['clean', '--json'])"
    runs = [
        subprocess.Popen([sys.executable, "-c", program], env={**os.environ, **project.environment}, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    told = [json.loads(run.communicate(timeout=60)[0]) for run in runs]
    assert sorted(entry["path"] for line in told for entry in line["data"]["folders"]) == list(map(str, folders))


# ---------------------------------------------------------------- all commands


@pytest.mark.parametrize("name", sorted(group.commands))
def test_a_wrong_flag_of_any_command(project: Project, name: str) -> None:
    run = project.codeprobe(name, "--nosuch", "--json")
    told = run.lines[-1]
    check("envelope", told)
    (error,) = told["errors"]
    assert (len(run.lines), run.code, told["command"], error["code"]) == (1, 4, name, "USAGE_ERROR")
    assert "--nosuch" in error["message"]
    assert type_in(project, error["command"]).returncode == 0


def test_a_slip_in_a_flag_is_corrected_by_the_printed_command(project: Project) -> None:
    project.task("t", agent=scripted({"write": {"path": "out.txt", "content": "x"}}))
    run = project.codeprobe("run", "tasks", "--agnet=scripted", "--json")
    (error,) = run.assert_pure(events=False)["errors"]
    assert error["command"] == ["codeprobe", "run", "tasks", "--agent=scripted", "--json"]
    done = type_in(project, error["command"])
    assert (done.returncode, json.loads(done.stdout)["data"]["tasks_passed"]) == (0, 1)


@pytest.mark.parametrize(
    ("typed", "said", "command"),
    [
        (("schemaa", "--json"), "no such command: schemaa (did you mean 'schema'?)", ["codeprobe", "schema", "--json"]),
        (("zzz", "--json"), "no such command: zzz", ["codeprobe", "--help"]),
        (("--json", "schema", "--help"), "--json stands before the command", ["codeprobe", "schema", "--json", "--help"]),
    ],
)
def test_a_wrong_command(project: Project, typed: tuple[str, ...], said: str, command: list[str]) -> None:
    run = project.codeprobe(*typed)
    told = answer(run)
    assert (run.code, told["command"], told["errors"][0]["code"]) == (4, None, "USAGE_ERROR")
    assert said in told["errors"][0]["message"]
    assert told["errors"][0]["command"] == command
    assert type_in(project, command).returncode == 0


def test_help_of_every_command(project: Project) -> None:
    listed = project.codeprobe("--help").stdout
    bare = project.codeprobe()
    assert (bare.code, bare.stdout, bare.stderr) == (0, listed, "")
    for name, command in group.commands.items():
        assert name in listed
        run = project.codeprobe(name, "--help")
        assert run.code == 0
        assert all(option in run.stdout for parameter in command.params for option in parameter.opts if option.startswith("-"))


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full"])
@pytest.mark.parametrize("args", ["schema", "clean --json", "doctor --agent scripted", "run tasks --agent scripted --json"])
def test_streams_that_are_closed_or_full(project: Project, args: str, closed: str) -> None:
    """Nobody reads, and what is opened first would take the descriptor's number: the work is done all the same."""
    project.task("t", agent=scripted({"write": {"path": "out.txt", "content": "x"}}))
    done = type_in(project, ["sh", "-c", f"codeprobe {args} {closed}"])
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    if args.startswith("run"):
        assert json.loads((project.path / ".codeprobe/runs/latest/envelope.json").read_text())["data"]["tasks_passed"] == 1
    if closed == "2>&-" and "--json" in args:
        check("envelope", json.loads(done.stdout))
