"""`codeprobe run`: the same run as pytest's, behind flags and an output contract for scripts and agents."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.options import BUILT, OPTIONS
from tests.front_door import MODES, Project, Run, clean_environment, scripted

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
SCRIPTS = Path(sys.executable).parent


def fill(project: Project) -> None:
    project.task("a-pass", agent=scripted(WRITE))
    project.task("b-fail", agent=scripted({"say": "no idea"}))


def codes(envelope: dict[str, Any]) -> list[str]:
    return [e["code"] for e in envelope["errors"]]


def options_of(run: Run) -> dict[str, Any]:
    return dict(json.loads((run.folder / "plan.json").read_text())["options"])


# ---------------------------------------------------------------- what it runs


def test_lines_by_default_on_a_pipe_and_tasks_below_rootdir(project: Project) -> None:
    """From a folder below rootdir too, and never what testpaths names."""
    fill(project)
    project.write("pytest.ini", "[pytest]\ntestpaths = tests\n")
    project.write("tests/test_no.py", "def test_no(): assert 0\n")
    (project.path / "src").mkdir()
    run = _script(project, "codeprobe", "run", "--agent", "scripted", cwd=project.path / "src")
    *events, envelope = map(json.loads, run.stdout.splitlines())
    assert [e["event"] for e in events] == ["run_started", *["trial_started", "trial_finished"] * 2]
    assert envelope["data"]["tasks_total"] == 2
    assert envelope["data"]["ordinary_tests"] == {}
    assert envelope["exit_code"] == run.returncode == 1


def test_no_folder_tasks_is_no_usage_error(project: Project, mode: str) -> None:
    """Nothing was named that is not there; and nothing else is collected in its place."""
    project.write("tests/test_no.py", "def test_no(): assert 0\n")
    run = project.codeprobe("run", "--agent", "scripted", "--json", "--", *MODES[mode])
    (envelope,) = run.lines
    assert (run.code, [e["code"] for e in envelope["errors"]]) == (5, ["NO_TASKS"])
    assert "tasks" in envelope["errors"][0]["message"]
    assert envelope["data"]["ordinary_tests"] == {}


@pytest.mark.parametrize("name", ["codeprobe", "pytest-codeprobe"])
def test_both_names(project: Project, name: str) -> None:
    process = _script(project, name, "--version")
    assert re.fullmatch(r"codeprobe, version \d+\.\d+\.\d+\n", process.stdout)
    assert process.returncode == 0


def test_a_folder_of_another_place_without_configuration(project: Project, tmp_path: Path) -> None:
    project.task("x", file="evals/x.yaml", agent=scripted(WRITE))
    (project.path / "pytest.ini").unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    process = _script(project, "codeprobe", "run", str(project.path / "evals"), "--agent=scripted", cwd=elsewhere)
    assert json.loads(process.stdout.splitlines()[-1])["data"]["tasks_passed"] == 1, process.stderr
    assert list(elsewhere.iterdir()) == []


def test_what_follows_two_dashes_goes_to_pytest(project: Project) -> None:
    fill(project)
    run = project.codeprobe("run", "tasks", "--agent=scripted", "--", "-n", "2", "-k", "a-pass")
    envelope = run.assert_pure()
    assert (envelope["data"]["tasks_passed"], envelope["data"]["tasks_total"], run.code) == (1, 1, 0)
    assert {e["worker"] for e in run.lines if e.get("event") == "trial_finished"} <= {"gw0", "gw1"}


def test_k_x_and_log_flags(project: Project) -> None:
    fill(project)
    project.task("c-pass", agent=scripted(WRITE))
    run = project.codeprobe("run", "--agent=scripted", "-k", "not a-pass", "-x", "-v", "--log-file=log.txt", "--json")
    data = run.assert_pure(events=False)["data"]
    assert (data["tasks_failed"], data["tasks_not_run"], data["tasks_total"], run.code) == (1, 1, 2, 1)
    assert "tasks/b-fail.yaml::b-fail FAILED" in run.stderr
    assert (project.path / "log.txt").exists()


def test_the_users_pytest_configuration_counts(project: Project) -> None:
    fill(project)
    project.write("pytest.ini", "[pytest]\naddopts = -k a-pass -n 2\ncodeprobe_agent = scripted\n")
    run = project.codeprobe("run", "--json")
    envelope = run.assert_pure(events=False)
    assert (envelope["data"]["tasks_total"], run.code) == (1, 0)
    assert {t["agent"] for t in run.plan} == {"scripted"}


def test_it_runs_where_plugins_are_not_loaded_by_themselves(project: Project) -> None:
    fill(project)
    run = project.codeprobe("run", "--agent=scripted", env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    assert run.assert_pure()["data"]["tasks_total"] == 2


# ---------------------------------------------------------------- flags


def test_every_flag_of_the_table_in_every_spelling(project: Project) -> None:
    """Each spelling reaches the run as the pytest flag does."""
    values = {
        "agent": "scripted",
        "model": "m1",
        "driver": "tempdir",
        "run-dir": "out",
        "preserve": "none",
        "timeout": "33",
        "permission-mode": "auto",
        "jobs": "3",
        "experiment": "mine",
        "suite": "all.toml",
        "backend": "bedrock",
        "max-cost-usd": "5",
        "max-duration": "5m",
        "offline-expected-run-duration": "2h",
        "canary": "off",
        "capabilities": "caps.json",
        "trace-overflow": "fail",
        "trace-max-bytes": "32MiB",
        "trace-budget": "1GiB",
        "set": "run_limits.max_turns=7",
        "tags": "quick",
        "exclude-tags": "slow",
        "repeats": "2",
        "sample": "3",
        "sample-per-stratum": "1",
        "min-score": "0.5",
        "min-pass-rate": "50%",
    }
    project.write("experiments/mine.yaml", "")
    project.write("all.toml", "[suite]\n")
    nothing: dict[str, Any] = {"schema_version": "1", "agent": "claude", "version": None, "model": None, "tools": [], "mcp_servers": []}
    project.write("caps.json", json.dumps(nothing))
    taking = [o for o in BUILT if o.kind != "flag" and o.name != "rerun"]  # which is refused without --resume: tests/test_resume.py
    assert {o.name for o in taking} <= set(values)
    spellings = max(len(o.cli) for o in taking)
    project.task("p", agent={"type": "scripted", "scripted": {"steps": [WRITE]}}, tags=["quick"])
    seen = []
    for number in range(spellings):
        flags = [x for o in taking for x in (o.cli[min(number, len(o.cli) - 1)], f"out{number}" if o.name == "run-dir" else values[o.name])]
        run = project.codeprobe("run", "--json", *flags)
        run.assert_pure(events=False)
        assert run.code == 0, run.stderr
        run.run_dir = project.path / f"out{number}"
        options = options_of(run)
        assert (options["agent"], options["model"], options["driver"], options["preserve"]) == ("scripted", "m1", "tempdir", "none")
        assert (options["timeout"], options["permission_mode"], options["jobs"]) == (33.0, "auto", 3)
        assert (options["trace_max_bytes"], options["max_duration"], options["backend"]) == (32 << 20, 300.0, "bedrock")
        seen.append({k: v for k, v in options.items() if k not in ("run_dir", "drawn_seed")})
    plain = project.run("tasks", *[f"{o.flag}={values[o.name]}" for o in taking], "--codeprobe-json", junit=False)
    plain.run_dir = project.path / "out"
    seen.append({k: v for k, v in options_of(plain).items() if k not in ("run_dir", "drawn_seed")} | {"console": True})
    assert not [{k for k in options.keys() | seen[0].keys() if options.get(k) != seen[0].get(k)} for options in seen if options != seen[0]]


@pytest.mark.parametrize("spelling", ["MOVE_ON_WRITE", "move", "Move"])
def test_spellings_of_other_systems(project: Project, spelling: str) -> None:
    project.task("p", agent=scripted(WRITE))
    run = project.codeprobe("run", "--agent=scripted", "--preservation-mode", spelling)
    run.assert_pure()
    assert options_of(run)["preserve"] == "move"


def test_help_names_every_flag(project: Project) -> None:
    for flag in ("-h", "--help"):
        process = _script(project, "codeprobe", "run", flag)
        assert process.returncode == 0
        for option in BUILT:
            assert all(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", process.stdout) for name in option.cli), option.name
        for name in ("--no-json", "[PATH]...", "Exit codes"):
            assert name in " ".join(process.stdout.split())
        unbuilt = {name for option in OPTIONS if not option.built for name in option.cli if name.startswith("--")}
        assert not unbuilt & set(re.findall(r"--[a-z-]+", process.stdout))  # of what is not built nothing is shown


# ---------------------------------------------------------------- where the output goes


@pytest.mark.parametrize(
    ("flags", "environment", "kind"),
    [
        ((), {}, "lines"),
        (("--json",), {}, "json"),
        (("--json-lines",), {}, "lines"),
        (("--no-json",), {}, "text"),
        ((), {"CODEPROBE_JSON": "1"}, "json"),
        ((), {"CODEPROBE_JSON": "lines"}, "lines"),
        ((), {"CODEPROBE_JSON": "0"}, "lines"),
        (("--no-json",), {"CODEPROBE_JSON": "1"}, "text"),
        (("--json-lines",), {"CODEPROBE_JSON": "1"}, "lines"),
    ],
)
def test_modes_of_stdout_on_a_pipe(project: Project, flags: tuple[str, ...], environment: dict[str, str], kind: str) -> None:
    project.task("p", agent=scripted(WRITE))
    run = project.codeprobe("run", "--agent=scripted", *flags, env=environment)
    assert run.code == 0
    if kind == "text":
        assert "1 passed" in run.stdout
        assert "record_type" not in run.stdout
    else:
        run.assert_pure(events=kind == "lines")


@pytest.mark.parametrize(("flags", "text"), [((), True), (("--json",), False)])
def test_text_on_a_terminal(project: Project, flags: tuple[str, ...], text: bool) -> None:
    project.task("p", agent=scripted(WRITE))
    main, child = pty.openpty()
    argv = [str(SCRIPTS / "codeprobe"), "run", "--agent=scripted", *flags]
    with (project.scratch / "stderr").open("wb") as err:
        process = subprocess.Popen(argv, cwd=project.path, env=_environment(project), stdin=child, stdout=child, stderr=err)
    os.close(child)
    said = _read_all(main)
    assert process.wait(60) == 0, said
    if text:
        assert "1 passed" in said
        assert "record_type" not in said
    else:
        assert json.loads(said)["data"]["tasks_passed"] == 1


def _read_all(fd: int) -> str:
    """Until the last process has closed the terminal's other end."""
    data = b""
    with os.fdopen(fd, "rb", buffering=0) as file:
        while True:
            try:
                block = file.read(65536)
            except OSError:  # EIO: how Linux says end of file here
                break
            if not block:
                break
            data += block
    return data.decode()


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("args", "environment", "code", "says"),
    [
        (("run", "--nosuch"), {}, "USAGE_ERROR", "--nosuch"),
        (("run", "--jobs", "4"), {}, "USAGE_ERROR", "--jobs (did you mean '--max-parallel'?)"),
        (("run", "--codeprobe-jobs=4"), {}, "USAGE_ERROR", "(did you mean '--max-parallel'?)"),
        (("run", "--agent"), {}, "USAGE_ERROR", "--agent"),
        (("run", "--agent="), {}, "USAGE_ERROR", "needs a value"),
        (("run", "--json", "--no-json"), {}, "USAGE_ERROR", "--json and --no-json"),
        (("run", "--json", "--json-lines"), {}, "USAGE_ERROR", "--json and --json-lines"),
        (("run", "--json-lines", "--no-json"), {}, "USAGE_ERROR", "--json-lines and --no-json"),
        (("run",), {"CODEPROBE_JSON": "maybe"}, "USAGE_ERROR", "CODEPROBE_JSON"),
        (("run", "--agent=scriptd"), {}, "UNKNOWN_BACKEND", "scripted"),
        (("run", "--agent=scripted", "--timeout=soon"), {}, "USAGE_ERROR", "soon"),
        (("run", "--agent=scripted", "--permission-mode=yolo"), {}, "INVALID_PERMISSION_MODE", "acceptEdits"),
        (("run", "--agent=scripted", "--preservation-mode=all"), {}, "USAGE_ERROR", "all"),
        (("run", "--agent=scripted", "nowhere"), {}, "USAGE_ERROR", "nowhere"),
        (("run", "--agent=scripted", "--", "--maxfail=x"), {}, "USAGE_ERROR", "command line"),
        (("run", "--agent=scripted", "--", "--nosuch"), {}, "USAGE_ERROR", "--nosuch"),
        (("run", "--agent=scripted", "--", "-p", "nosuchplugin"), {}, "USAGE_ERROR", ""),
    ],
)
def test_refusals_have_an_envelope(project: Project, args: tuple[str, ...], environment: dict[str, str], code: str, says: str) -> None:
    fill(project)
    run = project.codeprobe(*args, env=environment)
    envelope = run.assert_pure()
    assert codes(envelope) == [code]
    assert says in envelope["errors"][0]["message"] + envelope["errors"][0]["remediation"]
    assert run.code == 4
    assert run.stderr.strip()  # a person sees it too
    assert not (project.path / ".codeprobe").exists()


def test_a_broken_configuration_file_has_an_envelope(project: Project) -> None:
    project.write("pytest.ini", "[pytest\n")
    run = project.codeprobe("run", "--agent=scripted")
    assert codes(run.assert_pure()) == ["USAGE_ERROR"]
    assert run.code == 4
    assert "pytest.ini" in run.stderr


def test_without_an_agent_it_is_refused(project: Project) -> None:
    project.task("x")
    run = project.codeprobe("run")
    envelope = run.assert_pure()
    assert codes(envelope) == ["NO_BACKENDS_CONFIGURED"]
    assert "--agent" in envelope["errors"][0]["remediation"]
    assert run.code == 4
    assert not (project.path / ".codeprobe").exists()


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_a_mark_that_is_taken_for_a_model(project: Project, mode: str) -> None:
    """-m is the model here. Told at the beginning, while a person may still stop it; --model is never meant as a mark."""
    project.task("p", agent=scripted(WRITE), tags=["smoke"])
    run = project.codeprobe("run", "-m", "smoke", "--no-json", "--", *MODES[mode])
    said = "-m smoke chooses the model, and 1 trial has that mark; to select by mark: -- -m smoke"
    assert said in run.envelope["warnings"]
    assert said in run.stdout.partition("= codeprobe =")[0]
    if mode == "plain":
        other = project.codeprobe("run", "-m", "smok", "--json").assert_pure(events=False)
        assert "none of that name is known here; to select by mark: -- -m smok" in other["warnings"][0]
        assert project.codeprobe("run", "--model", "smoke", "--json").assert_pure(events=False)["warnings"] == []


def test_an_agent_named_in_the_task_counts(project: Project) -> None:
    fill(project)
    project.task("c-none")
    run = project.codeprobe("run", "--timeout", "5m")
    assert run.assert_pure()["data"]["tasks_total"] == 3
    assert run.statuses == {"a-pass": "passed", "b-fail": "failed", "c-none": "skipped"}
    assert run.finished["c-none"]["reason"] == "no agent chosen: pass --agent"
    assert run.plan[0]["limits"]["task_timeout"] == 300


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"agent": scripted(WRITE)}, 0),
        ({"agent": scripted()}, 1),
        ({"agent": scripted({"fail": "AGENT_CRASHED"})}, 6),
        ({"agent": scripted(WRITE), "skip": "not today"}, 5),
    ],
)
def test_exit_codes_pass_through(project: Project, fields: dict[str, Any], code: int) -> None:
    project.task("x", **fields)
    run = project.codeprobe("run", "--json")
    assert run.assert_pure(events=False)["exit_code"] == run.code == code


def test_unknown_commands_are_refused_on_stderr(project: Project) -> None:
    process = _script(project, "codeprobe", "rnu")
    assert process.returncode == 4
    assert "rnu" in process.stderr
    assert process.stdout == ""


def _environment(project: Project) -> dict[str, str]:
    return clean_environment(CP_TEST_MARK=project.mark_text, **project.environment)


def _script(project: Project, name: str, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The installed script itself, not its function."""
    return subprocess.run(
        [str(SCRIPTS / name), *args],
        cwd=cwd or project.path,
        env=_environment(project),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )


UNAVAILABLE_DRIVER = """\
from pytest_codeprobe.sandboxes.tempdir import TempdirDriver

class Kvm(TempdirDriver):
    name = "kvm"
    def unavailable(self, context): return "there is no /dev/kvm"

def pytest_codeprobe_drivers(config): return [Kvm()]
"""


@pytest.mark.parametrize("driver", ["kvm", "docker"])
def test_a_driver_that_is_not_there_is_told_once(project: Project, driver: str) -> None:
    """Not once for each trial; and in no other sandbox than the one that was asked for."""
    fill(project)
    project.write("conftest.py", UNAVAILABLE_DRIVER)
    project.write("pytest.ini", "[pytest]\ncodeprobe_engine = no-engine\n")
    image = ("-D", "sandbox.docker.image=x") if driver == "docker" else ()
    run = project.codeprobe("run", "--driver", driver, *image, "--json")
    envelope = run.assert_pure(events=False)
    (error,) = envelope["errors"]
    assert (error["code"], error["command"], run.code) == ("SANDBOX_UNAVAILABLE", None, 6)
    assert {r["status"] for r in envelope["data"]["results"]} <= {"not_run"}
    assert ("there is no /dev/kvm" if driver == "kvm" else "'docker'") in error["message"]
    assert run.stderr.count("SANDBOX_UNAVAILABLE: ") == 1
