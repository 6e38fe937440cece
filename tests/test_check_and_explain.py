"""`codeprobe check` and `codeprobe explain`; no secret of an override in what is told or kept."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from tests.front_door import Project, Run, scripted
from tests.packages import node_package

AGENT = "--codeprobe-agent=scripted"


def test_check_finds_what_can_not_be_trusted(project: Project) -> None:
    out = [{"type": "file_exists", "path": "a"}]
    count = f"mktemp {project.marks}/f.XXXXXX; [ $(ls {project.marks} | wc -l) = 2 ] || touch a"
    project.task("fine", solution={"script": "touch a"}, success_criteria=out)
    project.task("unsolved", solution={"script": "true"}, success_criteria=out)
    project.task("nothing", success_criteria=out)
    project.task("given", solution={"script": "true"}, success_criteria=[{"type": "file_exists", "path": "a", "exists": False}])
    project.task("flaky", solution={"script": count}, success_criteria=out, repeats=3, min_passes=1)  # the first pass decides nothing here
    project.task("no-agent", agent={"type": "none"}, pre_run=[{"command": "touch a"}], success_criteria=out)
    project.write("tasks/test_beside.py", "def test_x(): raise OSError\n")
    run = project.codeprobe("check", "tasks", "--json")
    found = {t["task_id"]: (t["finding"], t["oracle"]) for t in json.loads(run.stdout)["data"]["tasks"]}
    assert found == {
        "fine": ("ok", "3/3"), "unsolved": ("unsolvable", "0/3"), "nothing": ("not_checkable", "0/0"),
        "given": ("trivial", "3/3"), "flaky": ("flaky", "2/3"),
        "no-agent": ("not_checkable", "0/0"),
    }  # fmt: skip
    assert run.code == 1
    words = project.codeprobe("check", "tasks", "-k", "fine", "--times=1")
    assert (words.code, words.stdout.splitlines()[0]) == (0, "1 checked: 1 ok")
    assert [said for said in ("= FAILURES", "verdict fail", "\nFAILED ") if said in words.stderr] == []  # of nop, that is


def test_check_warns_of_runners_that_the_agent_may_steer(project: Project) -> None:
    """Not where the files are protected, or changed by the task's own solution, so meant to be changed."""
    common: dict[str, Any] = {
        "solution": {"script": "echo 'check:' >Makefile"},
        "success_criteria": [{"type": "run_command", "command": "make -s check || true"}],
    }
    project.task("bare", **{**common, "solution": {"script": "true"}})
    project.task("held", sandbox={"protected": ["[Mm]akefile", "GNUmakefile"]}, **{**common, "solution": {"script": "true"}})
    project.task("meant", **common)
    run = project.codeprobe("check", "tasks", "--times=1", "--json")
    said = {w.partition(":")[0]: w for w in json.loads(run.stdout)["warnings"]}
    assert said.keys() == {"bare", "meant"}
    assert "criterion 1 (run_command) starts make" in said["bare"]
    assert said["bare"].endswith("add to sandbox.protected: [Makefile, makefile, GNUmakefile]")
    assert said["meant"].endswith("[makefile, GNUmakefile]")
    assert f"warning: {said['bare']}" in project.codeprobe("check", "tasks", "-k", "bare", "--times=1").stdout.splitlines()


def test_check_warns_of_a_package_that_is_not_the_agent_s(project: Project, tmp_path: Path) -> None:
    """Installed from the folder that the workspace is made from; an own version of it may be what is to be tested."""
    folder = project.path / "tasks/start/hello-x"
    folder.mkdir(parents=True)
    (folder / "package.json").write_text('{"name": "hello-x", "version": "1.0.0"}')
    setup = {"node": {"packages": ["./start/hello-x", str(node_package(tmp_path, "hello-y"))]}}
    sandbox = {"template_sources": [{"type": "template_dir", "path": "start"}], "setup": setup}
    out = [{"type": "file_exists", "path": "a"}]
    project.task("t", sandbox=sandbox, solution={"script": "touch a"}, success_criteria=out)
    project.environment["npm_config_cache"] = str(tmp_path / "npm")
    run = project.codeprobe("check", "tasks", "--json", "--times=1")
    (warning,) = json.loads(run.stdout)["warnings"]
    assert warning.startswith(f"t: sandbox.setup.node installs {folder} as it is, and the workspace is made from it, too")


def test_explain_says_what_is_there_of_what_was_named(project: Project) -> None:
    project.task("here")
    for name, said in (
        ("tasks/none.yaml", "tasks/none.yaml does not exist"),
        ("tasks", "tasks is a folder"),
        ("hree", "(did you mean 'here'?)"),
    ):
        told = project.codeprobe("explain", name)
        assert told.code == 4
        assert said in told.stderr


def test_explain_names_the_layer_of_each_setting(project: Project) -> None:
    project.task("t", run_limits={"max_turns": 3}, agent={"env": {"TOKEN": "a-secret-value"}})
    project.write(
        "experiments/default.yaml", "defaults:\n  agent: {type: claude, model: m, allowed_tools: [read]}\n  run_limits: {max_usd: 2}\n"
    )
    run = project.codeprobe("explain", "t", "--agent", "codex", "-D", "run_limits.max_usd=1")
    assert run.code == 0
    assert [line.split() for line in run.stdout.splitlines()] == [
        ["t", "(tasks/t.yaml:1)"],
        ["agent.env.TOKEN", "...", "task", "(tasks/t.yaml)"],
        ["agent.type", "codex", "flag,", "environment", "or", "ini"],
        ["run_limits.max_turns", "3", "task", "(tasks/t.yaml)"],
        ["run_limits.max_usd", "1", "flag,", "environment", "or", "ini"],
        ["sandbox.driver", "tempdir", "flag,", "environment", "or", "ini"],
    ]
    assert "a-secret-value" not in run.stdout
    for wrong in ("nope", "tasks/gone.yaml"):
        assert (project.codeprobe("explain", wrong).code) == 4
    project.write(
        "experiments/asks.yaml",
        "experiment_id: asks\ninherit: false\ndefaults: {prompt_mutations: {prefix: Think.}}\nvariants:\n"
        "  - {variant_id: a, prompt_mutations: {suffix: Be quick.}, preambles: [rules.md]}\n  - {variant_id: b, initial_prompt: Go.}\n",
    )
    told = json.loads(project.codeprobe("explain", "t", "-e", "asks", "--json").stdout)["data"]["tasks"]
    prompts = [{path: owner for path, owner in each["origins"].items() if path.startswith(("pr", "in"))} for each in told]
    variant = ["variant", "experiments/asks.yaml"]
    below = {"prompt_mutations[0]": ["experiment", "experiments/asks.yaml"], "prompt_mutations[1]": variant, "preambles[0]": variant}
    assert prompts == [below, {"initial_prompt": variant}]
    lines = project.codeprobe("explain", "t", "-e", "asks").stdout
    assert "prompt_mutations[1]   {'type': 'suffix', 'content': 'Be quick.'}  variant (experiments/asks.yaml)" in lines


def everything(run: Run) -> str:
    """All that a run has said and left."""
    files = [path.read_text(errors="replace") for path in run.folder.rglob("*") if path.is_file()]
    return "".join((*files, run.output, run.junit_file.read_text()))


def test_no_command_is_told_that_has_a_secret_in_it(project: Project) -> None:
    """Neither what was to be called again, nor what was to go on; and a value that is named like a key is one wherever it stands."""
    key = "sk-typed-by-hand"
    project.task("t", agent=scripted({"run": f"touch {project.marks}/on"}, {"sleep": 60}, {"say": key}), sandbox={"env": {"A_TOKEN": key}})
    project.task("u", agent=scripted({"say": f"{key}: no"}))
    secret = f"--codeprobe-set=agent.env={{MY_KEY: {key}}}"
    failed = project.run("tasks/u.yaml", AGENT, "--codeprobe-run-dir=u", secret)
    assert (failed.code, key in everything(failed)) == (1, False)
    assert not [step for step in failed.envelope["next_steps"] if step["summary"].startswith("Run what")]
    run = project.start("tasks/t.yaml", AGENT, "--codeprobe-run-dir=t", secret)
    run.wait_for("on")
    run.signal(signal.SIGINT)
    run.wait()
    (error,) = run.envelope["errors"]
    assert (error["code"], error["command"], key in everything(run)) == ("INTERRUPTED", None, False)
    assert "--codeprobe-resume" in error["remediation"]


def test_no_secret_of_an_override_is_kept_or_shown(project: Project) -> None:
    """In plan.json, lock.json and what explain says; keys may have dots of their own."""
    project.task("t", agent={"type": "claude", "mcp_servers": {"s": {"url": "https://x/$MY_API_KEY", "headers": {"a.b": "$MY_API_KEY"}}}})
    project.environment |= {"MY_API_KEY": "sk-of-the-environment", "OTHER": "x"}
    literal = "sandbox.env={MY_TOKEN: sk-typed-by-hand, OTHER: $OTHER, C.D: e}"
    told = project.codeprobe("explain", "t", "--json", "-D", literal, "-D", "agent.system_prompt=sk-of-the-environment")
    assert "https://x/$MY_API_KEY" in told.stdout
    assert "sk-" not in told.stdout
    shown = project.codeprobe("explain", "t", "-D", literal)
    assert (shown.code, "sandbox.env.C.D" in shown.output) == (0, True), shown.output
    project.task("t", agent=scripted({"write": {"path": "out.txt", "content": "x"}}))
    run = project.run(
        "tasks", AGENT, "--codeprobe-run-dir=run", f"--codeprobe-set={literal}", "--codeprobe-set=agent.env={A: sk-of-the-environment}"
    )
    assert run.code == 0
    assert "sk-" not in everything(run)
    assert "$OTHER" in (run.folder / "plan.json").read_text() + (run.folder / "lock.json").read_text()
    again = project.codeprobe("regrade", "run")
    assert "made with a secret in 'sandbox.env={MY_TOKEN: [REDACTED]" in again.stderr
