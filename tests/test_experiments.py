"""--codeprobe-experiment: which file is meant, what holds of it, what is refused; and `codeprobe experiment new`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from pytest_codeprobe.cli.experiment import _STARTER
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.options import RunOptions
from pytest_codeprobe.tasks.experiments import available, find_experiment, load_experiment
from tests.front_door import Project, Run, scripted
from tests.task_files import MINIMAL, expand_one, settings, write

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
AGENT = "--codeprobe-agent=scripted"
LIMIT = "defaults:\n  run_limits: {task_timeout: %s}\n"


def limits(run: Run) -> dict[str, float]:
    return {t["task_id"]: t["limits"]["task_timeout"] for t in run.plan}


def error(run: Run) -> dict[str, object]:
    (found,) = run.assert_pure(events=False)["errors"]
    return dict(found)


def test_a_path_or_a_bare_name(project: Project) -> None:
    project.task("t", agent=scripted(WRITE))
    project.task("own", agent=scripted(WRITE), run_limits={"task_timeout": 50})
    project.write("experiments/default.yaml", LIMIT % 33)
    project.write("experiments/fast.yaml", "experiment_id: quick  # by this name too\n" + LIMIT % 7)
    project.write("experiments/below/other.yml", "experiment_id: 'other one'\n" + LIMIT % 7)
    run = project.run("tasks", AGENT, "--codeprobe-experiment=below/other").assert_consistent()
    assert (run.code, limits(run)) == (0, {"t": 7, "own": 50})
    assert run.envelope["data"]["experiment"] == "other one"
    assert json.loads((run.folder / "plan.json").read_text())["experiment"] == "other one"
    assert "experiment other one" in run.output
    for asked in ("experiments/fast.yaml", "fast", "fast.yaml", "quick"):
        assert find_experiment(asked, rootdir=project.path, folder=project.path) == project.path / "experiments/fast.yaml"
    assert load_experiment(project.path / "experiments/fast.yaml", settings(project.path)).name == "quick"


def test_the_same_in_every_mode_and_from_the_index(project: Project, mode: str) -> None:
    project.task("t", agent=scripted(WRITE))
    project.write("experiments/default.yaml", LIMIT % 33)
    project.write("experiments/fast.yaml", LIMIT % 7)
    for asked, limit, name in ((None, 33, "default"), ("fast", 7, "fast")):
        run = project.run("tasks", AGENT, *([f"--codeprobe-experiment={asked}"] if asked else []), mode=mode).assert_consistent()
        assert (run.code, limits(run), run.envelope["data"]["experiment"]) == (0, {"t": limit}, name)
    project.write("experiments/fast.yaml", LIMIT % 8)
    assert limits(project.run("tasks", AGENT, "--codeprobe-experiment=fast", mode=mode)) == {"t": 8}


def test_default_is_the_layer_below_unless_it_is_not_inherited(project: Project) -> None:
    project.task("t", agent=scripted({"run": 'printf "%s-%s" "$A" "$B" > out.txt'}))
    project.write("experiments/default.yaml", "defaults:\n  run_limits: {max_turns: 9}\n  sandbox: {env: {A: low, B: low}}\n")
    project.write("experiments/x.yaml", "defaults:\n  sandbox: {env: {B: high}}\n")
    project.write("experiments/y.yaml", "inherit: false\ndefaults:\n  sandbox: {env: {B: high}}\n")
    run = project.run("tasks", AGENT, "--codeprobe-experiment=x")
    assert run.plan[0]["limits"]["max_turns"] == 9
    assert (run.trial("t") / "artifacts" / "out.txt").read_text() == "low-high"
    run = project.run("tasks", AGENT, "--codeprobe-experiment=y")
    assert "max_turns" not in run.plan[0]["limits"]
    assert (run.trial("t") / "artifacts" / "out.txt").read_text() == "-high"


@pytest.mark.parametrize(
    ("own", "timeout", "usd"),
    [
        ("{run_limits: null}", 600, None),
        ("{run_limits: {max_usd: null}}", 33, None),
        ("{run_limits: {task_timeout: null, max_usd: 2}}", 600, 2),
        ("{sandbox: null}", 33, 1),
        ("{}", 33, 1),
        ("null", 33, 1),  # that says nothing: `inherit: false` is the word for it
    ],
)
def test_a_null_takes_away_what_lower_layers_set(tmp_path: Path, own: str, timeout: float, usd: float | None) -> None:
    write(tmp_path / "experiments/default.yaml", "defaults:\n  run_limits: {task_timeout: 33, max_usd: 1}\n  sandbox: {env: {A: b}}\n")
    file = write(tmp_path / "experiments/x.yaml", f"defaults: {own}\n")
    oracle = RunOptions(agent="oracle")
    trial = expand_one(tmp_path, MINIMAL, oracle, experiment=file)
    assert (trial.limits.task_timeout, trial.limits.max_usd) == (timeout, usd)
    assert trial.sandbox.env == ({} if own == "{sandbox: null}" else {"A": "b"})
    # and so does one of a task, of all that is below it
    trial = expand_one(tmp_path, MINIMAL + "run_limits: null\nsandbox: {env: null}\n", oracle, experiment=file)
    assert (trial.limits.task_timeout, trial.limits.max_usd, trial.sandbox.env) == (600, None, {})
    # without another file below it there is nothing to take away
    file.write_text(f"inherit: false\ndefaults: {own}\n")
    assert expand_one(tmp_path, MINIMAL, oracle, experiment=file).limits.task_timeout == 600


@pytest.mark.parametrize(("where", "mode"), [("environment", "xdist"), ("ini", "plain")])
def test_from_environment_and_ini(project: Project, mode: str, where: str) -> None:
    project.task("t", agent=scripted(WRITE))
    project.write("experiments/fast.yaml", LIMIT % 7)
    environment = {"CODEPROBE_EXPERIMENT": "fast"} if where == "environment" else {}
    if where == "ini":
        project.write("pytest.ini", "[pytest]\ncodeprobe_experiment = experiments/fast.yaml\n")
    run = project.run("tasks", AGENT, mode=mode, env=environment).assert_consistent()
    assert (run.code, limits(run), run.envelope["data"]["experiment"]) == (0, {"t": 7}, "fast")
    environment = {"CODEPROBE_EXPERIMENT": "fats"}
    run = project.run("tasks", AGENT, "--codeprobe-json-lines", mode=mode, env=environment, junit=False)
    assert (run.code, [e["code"] for e in run.assert_pure()["errors"]]) == (4, ["NO_EXPERIMENT"])


def test_a_plain_run_of_tests_does_not_look_for_it(project: Project) -> None:
    project.write("tests/test_own.py", "def test_own(): pass\n")
    assert project.run("tests", env={"CODEPROBE_EXPERIMENT": "nowhere"}).code == 0


def test_a_slip_in_the_name_of_an_experiment(project: Project) -> None:
    project.task("t", agent=scripted(WRITE))
    project.write("experiments/fast.yaml", "experiment_id: quick\n")
    project.write("experiments/slow.yml", "description: x\n")
    wanted = ("tasks", AGENT, "--codeprobe-json")
    for name, text in {"README": "# About these", "data.yaml": "rows: [1]", ".old.yaml": "experiment_id: quack"}.items():
        project.write(f"experiments/{name}", text + "\n")
    run = project.run(*wanted, "--codeprobe-experiment=quik", junit=False)
    found = error(run)
    assert (found["code"], run.code) == ("NO_EXPERIMENT", 4)
    assert found["message"] == "experiment 'quik' was not found (did you mean 'quick'?)"
    assert "Use one of: quick, slow; or make a new one with `codeprobe experiment new quik`" in str(found["remediation"])
    assert found["detail"] == {"experiment": "quik", "available": ["quick", "slow"]}
    assert found["command"] is None, "neither another experiment nor an empty one of that name: nobody would notice"


def test_the_command_works_from_another_folder(project: Project) -> None:
    project.task("t", agent=scripted(WRITE))
    (project.path / "below").mkdir()
    start = ("-c", "import os; os.chdir('below'); from pytest_codeprobe.cli import main; main()")
    run = project.start("run", "../tasks", "--agent", "scripted", "-e", "mine", "--json", program=start, junit=False).wait()
    command = run.assert_pure(events=False)["errors"][0]["command"]
    assert command is not None
    assert project.start(*command[1:], program=start, junit=False).wait().code == 0
    again = project.start("run", "../tasks", "--agent", "scripted", "-e", "mine", "--json", program=start, junit=False).wait()
    assert (again.code, again.assert_pure(events=False)["data"]["experiment"]) == (0, "mine")


def test_a_name_that_fits_two_files(project: Project) -> None:
    project.task("t", agent=scripted(WRITE))
    project.write("experiments/a.yaml", LIMIT % 7)
    project.write("experiments/b.yml", "experiment_id: a\n" + LIMIT % 8)
    project.write("experiments/c/a", LIMIT % 9)
    run = project.run("tasks", AGENT, "--codeprobe-experiment=a", "--codeprobe-json", junit=False)
    found = error(run)
    assert (found["code"], run.code) == ("AMBIGUOUS_EXPERIMENT", 4)
    assert "--config experiments/a.yaml or --config experiments/b.yml" in str(found["remediation"])
    assert found["detail"] == {"experiment": "a", "candidates": ["experiments/a.yaml", "experiments/b.yml"]}
    for value, limit in (("experiments/a.yaml", 7), ("experiments/b.yml", 8)):
        assert limits(project.codeprobe("run", "--agent=scripted", *shlex.split(f"--config {value}"), "--no-json")) == {"t": limit}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("experimentid: x\n", "1:1: unknown field 'experimentid' (did you mean 'experiment_id'?)"),
        ("defaults:\n  run_limts: {}\n", "2:3: unknown field 'run_limts' (did you mean 'run_limits'?) in 'defaults'"),
        ("defaults:\n  run_limits: {max_turn: 1}\n", "2:16: unknown field 'max_turn' (did you mean 'max_turns'?) in 'defaults.run_limits'"),
        ("defaults:\n  run_limits: {max_turns: -1}\n", "2:27: 'defaults.run_limits.max_turns' must be greater than 0, not -1"),
        ("defaults:\n  sandbox: {template_sources: [{type: template_dir, path: nowhere}]}\n", "names a folder that is not there"),
        ("defaults: 3\n", "'defaults' must be a mapping"),
        ("- a\n", "an experiment must be a mapping"),
        ("a: b: c\n", "1:5"),
        ("inherit: 3\n", "'inherit' must be true or false"),
        ("variants: [{variant_id: A B}]\n", "'variants[0].variant_id' must match"),
        ("variants: [{variant_id: a}, {variant_id: a}]\n", "'variants[1].variant_id': 'a' stands twice"),
        ("gates: [{metric: pass_rate, min: .nan}]\n", "'gates[0].min' must be a finite number, not .nan"),
        ("gates: [{metric: cost_usd, max: .inf}]\n", "'gates[0].max' must be a finite number, not .inf"),
        ("prices: {m: {input: .nan, output: 1}}\n", "'prices.m.input' must be at least 0, not .nan"),
        ("prices: {m: {input: 1, output: .inf}}\n", "'prices.m.output' must be a finite number, not .inf"),
        ("defaults: {gateway: required}\n", "'defaults.gateway': required is not available yet"),
    ],
)
def test_what_is_wrong_or_would_change_the_outcome_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(CodeprobeError) as caught:
        load_experiment(write(tmp_path / "experiments/x.yaml", text), settings(tmp_path))
    assert caught.value.code == "NO_EXPERIMENT"
    assert said in caught.value.message
    assert caught.value.message.startswith("experiments/x.yaml:")
    assert caught.value.remediation == "Correct experiments/x.yaml at the place named."


def test_a_run_with_a_broken_one_is_refused(project: Project) -> None:
    project.task("t", agent=scripted(WRITE))
    project.write("experiments/x.yaml", "defaults: {repeats: 0}\n")
    run = project.run("tasks", AGENT, "--codeprobe-experiment=x", "--codeprobe-json", junit=False)
    found = error(run)
    assert (found["code"], found["command"], run.code) == ("NO_EXPERIMENT", None, 4)
    assert not (project.path / ".codeprobe").exists()


def test_what_asks_for_nothing_is_no_fault(project: Project) -> None:
    project.task("t", agent=scripted(WRITE))
    project.write(
        "experiments/x.yaml",
        "description: x\njudge: {model: m}\nprices: {}\ngates: []\nvariants: [{variant_id: one, description: y}]\n"
        "defaults: {repeats: 1, gateway: auto, agent: {}, pre_run: [], driver: null}\n",
    )
    run = project.run("tasks", AGENT, "--codeprobe-experiment=x").assert_consistent()
    assert (run.code, run.envelope["warnings"]) == (0, [])


@pytest.mark.parametrize("asked", ["experiments", "./experiments/", "experiments/nowhere.yaml", "a/../b", "\u00e4 b", "*"])
def test_what_names_no_file(tmp_path: Path, asked: str) -> None:
    write(tmp_path / "experiments/x.yaml")
    with pytest.raises(CodeprobeError) as caught:
        find_experiment(asked, rootdir=tmp_path, folder=tmp_path)
    assert caught.value.code == "NO_EXPERIMENT"


def test_a_file_without_a_suffix_is_one_where_it_is_named_or_says_so(tmp_path: Path) -> None:
    for name in ("NOTES", "own"):
        write(tmp_path / "experiments" / name, "experiment_id: mine\n" if name == "own" else "text\n")
    for asked, found in (("NOTES", "NOTES"), ("own", "own"), ("mine", "own")):
        assert find_experiment(asked, rootdir=tmp_path, folder=tmp_path).name == found
    assert available(tmp_path) == ["mine"]


def test_codeprobe_run_says_that_none_of_several_was_applied(project: Project) -> None:
    project.task("t", agent=scripted(WRITE))
    project.write("experiments/fast.yaml", LIMIT % 7)
    assert project.codeprobe("run", "--json").assert_pure(events=False)["warnings"] == []
    project.write("experiments/slow.yaml", LIMIT % 7)
    (said,) = project.codeprobe("run", "--json").assert_pure(events=False)["warnings"]
    assert said == "no experiment was applied: name one of fast, slow with --experiment"


def test_an_empty_file_and_one_of_default_itself(project: Project) -> None:
    project.task("t", agent=scripted(WRITE))
    project.write("experiments/x.yaml", "")
    assert project.run("tasks", AGENT, "--codeprobe-experiment=x").envelope["data"]["experiment"] == "x"
    project.write("experiments/default.yaml", LIMIT % 7)
    assert limits(project.run("tasks", AGENT, "--codeprobe-experiment=default")) == {"t": 7}


# ---- codeprobe experiment new


def test_new_writes_a_file_that_can_be_used_as_it_is(project: Project) -> None:
    project.task("t", agent=scripted(WRITE))
    run = project.codeprobe("experiment", "new", "my-first")
    assert (run.code, run.stderr) == (0, "")
    assert "wrote experiments/my-first.yaml" in run.stdout
    used = project.run("tasks", AGENT, "--codeprobe-experiment=my-first").assert_consistent()
    assert (used.code, used.envelope["data"]["experiment"]) == (0, "my-first")


def test_any_line_of_a_new_file_can_be_uncommented(project: Project) -> None:
    """One alone, or all."""
    lines = _STARTER.format(name="mine").splitlines(keepends=True)
    commented = [n for n, line in enumerate(lines) if line.startswith("    # ")]
    assert len(commented) == 7
    (project.path / "shared").mkdir()
    for chosen in (*({n} for n in commented), set(commented)):
        text = "".join(line.replace("# ", "", 1) if n in chosen else line for n, line in enumerate(lines))
        loaded = load_experiment(project.write("experiments/mine.yaml", text), settings(project.path))
        assert sum(len(table or ()) for table in loaded.layers[-1].values.values()) == len(chosen)


def test_new_without_a_name_is_the_default(project: Project) -> None:
    project.task("t", agent=scripted(WRITE))
    assert project.codeprobe("experiment", "new").code == 0
    assert project.run("tasks", AGENT).envelope["data"]["experiment"] == "default"


def test_new_never_overwrites(project: Project) -> None:
    file = project.write("experiments/mine.yaml", "mine")
    run = project.codeprobe("experiment", "new", "mine")
    assert run.code == 4
    assert "USAGE_ERROR: experiments/mine.yaml is there already" in run.stderr
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("args", "said"), [(("A B",), "is no name"), (("../x",), "is no name"), (("x", "--dir", "pytest.ini"), "pytest.ini")]
)
def test_new_refuses_what_it_cannot_write(project: Project, args: tuple[str, ...], said: str) -> None:
    run = project.codeprobe("experiment", "new", *args)
    assert run.code == 4
    assert said in run.stderr
