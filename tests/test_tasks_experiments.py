"""Experiments: their layers, variants, prompts, and what a run makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.options import RunOptions
from pytest_codeprobe.tasks.expand import Expansion, expand
from pytest_codeprobe.tasks.experiments import load_experiment
from pytest_codeprobe.tasks.layers import origins
from tests.task_files import MINIMAL, expand_one, faults, load_one, plan, refused, settings, write

DEFAULT = "experiments/default.yaml"


def trials(root: Path, text: str, experiment: str | None = None, options: RunOptions | None = None) -> list[Trial]:
    """Of the task, under an experiment of that text."""
    file = None if experiment is None else write(root / "experiments/e.yaml", experiment)
    return list(expand(load_one(root, text), plan(settings(root), options, experiment=file)))


def names(found: list[Trial]) -> list[str]:
    return [trial.node_id for trial in found]


# ---- default.yaml


def test_the_default_is_below_all_tasks(tmp_path: Path) -> None:
    assert load_experiment(None, settings(tmp_path)).layers == ()
    write(tmp_path / "experiments/extra/a.txt")
    file = write(
        tmp_path / DEFAULT,
        "experiment_id: mine\ndefaults:\n  agent: {type: claude-code, model: m}\n  run_limits: {task_timeout: 5}\n  driver: tempdir\n"
        "  template_sources: [{type: template_dir, path: extra}]\n  pre_run: [{command: a}]\n",
    )
    source = {"type": "template_dir", "path": str(tmp_path / "experiments/extra")}
    found = load_experiment(None, settings(tmp_path))
    assert (found.name, [layer.name for layer in found.layers], found.files) == ("mine", ["default"], (file,))
    assert found.layers[0].values == {
        "agent": {"type": "claude-code", "model": "m"},
        "run_limits": {"task_timeout": 5},
        "sandbox": {"driver": "tempdir", "template_sources": [source]},
        "pre_run": [{"command": "a"}],
    }
    for text in ("", "experiment_id: x\n", "defaults:\n", "---\n"):
        file.write_text(text)
        assert not any(layer.values for layer in load_experiment(None, settings(tmp_path)).layers)


def test_a_file_of_another_tool_is_no_experiment(tmp_path: Path) -> None:
    for text in ("model: resnet\nlr: 0.1\n", "defaults:\n  - model: resnet\n"):
        write(tmp_path / DEFAULT, text)
        assert load_experiment(None, settings(tmp_path)).name is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "defaults:\n  run_limits: {task_timout: 5}\n",
            "2:16 unknown field 'task_timout' (did you mean 'task_timeout'?) in 'defaults.run_limits'",
        ),
        ("defaults:\n  run_limits: {task_timeout: 0}\n", "2:30 'defaults.run_limits.task_timeout' must be greater than 0, not 0"),
        ("defaults:\n  sandbox: 3\n", "2:12 'defaults.sandbox' must be a mapping, not 3"),
        ("defaults: 1\n", "1:11 'defaults' must be a mapping, not 1"),
        ("[1]\n", "1:1 an experiment must be a mapping, not a list"),
        (
            "defaults:\n  sandbox: {template_sources: [{type: template_dir, path: ../..}]}\n",
            "2:59 'defaults.sandbox.template_sources[0].path' leads out of {root}: '../..'; see ini codeprobe_template_roots",
        ),
        (
            "defaults:\n  template_sources: [{type: template_dir, path: gone}]\n",
            "2:49 'defaults.template_sources[0].path' names a folder that is not there: 'gone'",
        ),
        (
            "defaults:\n  sandbox: {env_passthrough: ['judge:X']}\n",
            "2:31 'sandbox.env_passthrough[0]' must be NAME, agent:NAME or grader:NAME, not 'judge:X'",
        ),
        ("defaults:\n  agent: {modle: x}\n", "2:11 unknown field 'modle' (did you mean 'model'?) in 'defaults.agent'"),
        (
            "defaults:\n  driver: a\n  sandbox: {driver: b}\n",
            "2:3 'defaults': 'driver' and 'sandbox.driver' are one setting; use one of the two",
        ),
        ("defaults:\n  pre_run: [{comand: x}]\n", "2:14 unknown field 'comand' (did you mean 'command'?) in 'defaults.pre_run[0]'"),
        ("variants: [{variant_id: A b}]\n", "1:25 'variants[0].variant_id' must match ^[a-z0-9]+(-[a-z0-9]+)*$, not 'A b'"),
        ("variants: [{variant_id: a}, {variant_id: a}]\n", "1:42 'variants[1].variant_id': 'a' stands twice"),
        (
            "variants: [{variant_id: a, initial_prompt: x, prompt_mutations: {}}]\n",
            "1:12 'variants[0]': give one of 'prompt_mutations', 'initial_prompt'",
        ),
        (
            "variants: [{variant_id: a, prompt_mutations: {template: x}}]\n",
            "1:46 'variants[0].prompt_mutations': 'template' must say {prompt} where the prompt goes",
        ),
        (
            "variants: [{variant_id: a}]\ngates: [{metric: pass_rate, min: 1, variant: b}]\n",
            "2:46 'gates[0].variant': there is no variant 'b'",
        ),
        ("variants: [{variant_id: a}]\ngates: [{metric: pass_rate}]\n", "2:9 'gates[0]' needs 'min' or 'max'"),
    ],
)
def test_faults_of_an_experiment(tmp_path: Path, text: str, expected: str) -> None:
    write(tmp_path / DEFAULT, text)
    with pytest.raises(CodeprobeError, match=r"TASK_INVALID: experiments/default\.yaml:") as caught:
        load_experiment(None, settings(tmp_path))
    assert faults(caught.value) == [expected.replace("{root}", str(tmp_path))]


# ---- variants and layers


def test_each_variant_repeat_and_row_is_a_trial_of_its_own_id(tmp_path: Path) -> None:
    text = MINIMAL + "repeats: 10\ndataset: {rows: [{id: a}, {id: b}]}\n"
    found = trials(tmp_path, text, "variants: [{variant_id: x}, {variant_id: y, repeats: 2}]\n")
    assert names(found)[:2] == ["t[row-a-x-r01]", "t[row-a-x-r02]"]
    assert names(found)[9:13] == ["t[row-a-x-r10]", "t[row-a-y-r1]", "t[row-a-y-r2]", "t[row-b-x-r01]"]
    assert len(set(names(found))) == len({trial.folder for trial in found}) == 24
    assert (found[10].folder, found[10].variant_id, found[10].row_id, found[10].repeat) == ("y/t/row-a/r001", "y", "a", 1)
    assert (found[10].rows, found[10].repeats, found[0].repeats) == (2, 2, 10)


def test_one_variant_gives_its_name_to_the_folder_alone(tmp_path: Path) -> None:
    (found,) = trials(tmp_path, MINIMAL, "variants: [{variant_id: x}]\n")
    assert (found.node_id, found.folder, found.variant_id) == ("t", "x/t/r001", "x")
    (found,) = trials(tmp_path, MINIMAL, "experiment_id: e\n")
    assert (found.node_id, found.folder, found.variant_id) == ("t", "default/t/r001", None)


def test_six_layers(tmp_path: Path) -> None:
    """From the model's own default up to the flag, each wins over the ones below it."""
    write(tmp_path / DEFAULT, "defaults: {run_limits: {task_timeout: 1, turn_timeout: 1, max_turns: 1, max_usd: 1}}\n")
    experiment = (
        "defaults: {run_limits: {turn_timeout: 2, max_turns: 2, max_usd: 2}, pre_run: [{command: e}], post_run: [{command: e}]}\n"
        "variants: [{variant_id: v, run_limits: {max_usd: 4, grading_timeout: 4}}]\n"
    )
    text = MINIMAL + "run_limits: {max_turns: 3, max_usd: 3, grading_timeout: null}\npre_run: [{command: t}]\npost_run: [{command: t}]\n"
    (found,) = trials(tmp_path, text, experiment, RunOptions(set=("run_limits.grading_timeout=5",), typed_sets=1))
    limits = found.limits
    assert (limits.setup_timeout, limits.task_timeout, limits.turn_timeout, limits.max_turns) == (600, 1, 2, 3)
    assert (limits.max_usd, limits.grading_timeout) == (4, 5)
    assert [c.command for c in found.pre_run] == ["e", "t"]
    assert [c.command for c in found.post_run] == ["t", "e"]
    (found,) = trials(tmp_path, text, "inherit: false\n" + experiment)
    assert found.limits.task_timeout == 600


def test_origins_name_the_layer_of_each_leaf(tmp_path: Path) -> None:
    from pytest_codeprobe.tasks.configure import Configuration, Layers

    experiment = write(
        tmp_path / "experiments/e.yaml", "defaults: {agent: {type: oracle}}\nvariants: [{variant_id: v, agent: {env: {A: b}}}]\n"
    )
    made = plan(settings(tmp_path), RunOptions(timeout=9), experiment=experiment)
    variant = made.experiment.variants[0].layer
    around = Layers(below=made.flags.below, variant=variant, flags=made.flags.flags)
    found = origins(Configuration(load_one(tmp_path, MINIMAL + "run_limits: {max_turns: 3}\n"), made.settings, around).layers)
    assert {path: (layer.name, layer.file) for path, layer in found.items()} == {
        ("agent", "type"): ("experiment", "experiments/e.yaml"),
        ("agent", "env", "A"): ("variant", "experiments/e.yaml"),
        ("run_limits", "max_turns"): ("task", "tasks/t.yaml"),
        ("run_limits", "task_timeout"): ("flags", None),
    }


def test_what_a_variant_asks_for_in_vain_is_told_at_its_line(tmp_path: Path) -> None:
    experiment = "variants:\n  - variant_id: v\n    sandbox:\n      network: off\n"
    assert refused(trials, tmp_path, MINIMAL, experiment) == (
        "TASK_INVALID: experiments/e.yaml:4:16: sandbox.network: off needs driver bubblewrap or docker"
    )


def test_an_experiments_claude_model_never_reaches_another_agent(tmp_path: Path) -> None:
    experiment = (
        "defaults: {agent: {type: claude, model: m, allowed_tools: [read]}}\n"
        "variants: [{variant_id: a}, {variant_id: b, agent: {type: scripted}}]\n"
    )
    first, second = trials(tmp_path, MINIMAL, experiment)
    assert (first.agent.type, first.agent.model) == ("claude", "m")
    assert (second.agent.type, second.agent.model, second.agent.allowed_tools) == ("scripted", None, None)
    (first, _) = trials(tmp_path, MINIMAL, experiment, RunOptions(agent="oracle", on_command_line=("agent",)))
    assert (first.agent.type, first.agent.model, first.notes) == ("oracle", None, ())


# ---- prompts


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("", "do it"),
        ("prompt_mutations: {prefix: A, suffix: B}", "A\n\ndo it\n\nB"),
        ("prompt_mutations: {replace: [{old: do, new: make}], template: '<{prompt}>'}", "<make it>"),
        ("prompt_mutations: [{type: suffix, content: B, separator: ' '}, {type: replace, pattern: B, replacement: C}]", "do it C"),
        ("prompt_mutations: [{type: replace, pattern: '(d)(o)', replacement: '\\2\\1', regex: true}]", "od it"),
        ("prompt_mutations: [{type: prefix, content: '{x}{y}', separator: ''}, {type: template, variables: {x: '{y}'}}]", "{y}{y}do it"),
        ("initial_prompt: other", "other"),
        ("initial_prompt_file: p.md", "from a file\n"),
        ("preambles: [first, second.md]", "do it\n\none t . proj\n\ntwo"),
    ],
)
def test_prompts_of_variants(tmp_path: Path, variant: str, expected: str) -> None:
    root = tmp_path / "proj"
    write(root / ".git/HEAD")
    write(root / "experiments/p.md", "from a file\n")
    write(root / "tasks/first.md", "\none {{task_id}} {{ repo_path }} {{repo_name}}\n")
    write(root / ".codeprobe/preambles/second.md", "two\n")
    (found,) = trials(root, MINIMAL, "variants:\n  - {variant_id: v" + (f", {variant}" if variant else "") + "}\n")
    assert found.prompt == expected


@pytest.mark.parametrize(
    ("own", "variant", "expected"),
    [
        ("{suffix: 2}", "{suffix: 3}", "do it\n\n3"),  # a scalar replaces
        ("{prefix: 2}", "{replace: [{old: do, new: make}]}", "2\n\nmake it\n\n1"),  # mappings merge
        ("null", "{prefix: 3}", "3\n\ndo it"),
        ("{prefix: 2}", "{prefix: null}", "do it\n\n1"),
        ("{prefix: 2}", "null", "do it"),
        ("{prefix: 2}", "[{type: prefix, content: '3'}]", "3\n\ndo it"),  # a list replaces, and is replaced
        ("[{type: prefix, content: '2'}]", "{suffix: 3}", "do it\n\n3"),
    ],
)
def test_mutations_of_layers_are_merged_as_all_settings(tmp_path: Path, own: str, variant: str, expected: str) -> None:
    write(tmp_path / DEFAULT, "defaults: {prompt_mutations: {suffix: 1}}\n")
    experiment = f"defaults: {{prompt_mutations: {own}}}\nvariants: [{{variant_id: v, prompt_mutations: {variant}}}]\n"
    assert trials(tmp_path, MINIMAL, experiment)[0].prompt == expected


def test_a_null_takes_commands_and_repeats_away(tmp_path: Path) -> None:
    write(tmp_path / DEFAULT, "defaults: {repeats: 3, pre_run: [{command: low}], post_run: [{command: low}]}\n")
    experiment = "defaults: {pre_run: null, post_run: null}\nvariants: [{variant_id: a}, {variant_id: b, repeats: null}]\n"
    found = trials(tmp_path, MINIMAL + "pre_run: [{command: own}]\n", experiment)
    assert [t.node_id for t in found] == ["t[a-r1]", "t[a-r2]", "t[a-r3]", "t[b]"]
    assert [([c.command for c in t.pre_run], t.post_run) for t in found] == [(["own"], ())] * 4


ROWS = MINIMAL + "dataset: {rows: [{id: a, x: 'one ${row.id} {prompt}'}]}\n"


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ("prompt_mutations: {prefix: '<${row.x}>'}", "<one ${row.id} {prompt}>\n\ndo it"),
        ("prompt_mutations: {template: '${row.x}: {prompt} $${row.x}'}", "one ${row.id} {prompt}: do it ${row.x}"),
        ("prompt_mutations: [{type: replace, pattern: do, replacement: '${row.x}'}]", "one ${row.id} {prompt} it"),
        ("initial_prompt: 'say ${row.x}'", "say one ${row.id} {prompt}"),
    ],
)
def test_an_experiment_names_fields_of_the_row(tmp_path: Path, says: str, expected: str) -> None:
    commands = "  pre_run: [{command: 'echo ${row.x}'}]\n  sandbox: {env: {X: '${row.x}'}}\n"
    (found,) = trials(tmp_path, ROWS, f"defaults:\n{commands}variants:\n  - {{variant_id: v, {says}}}\n")
    assert (found.prompt, found.pre_run[0].command) == (expected, "echo 'one ${row.id} {prompt}'")
    assert found.sandbox.env == {"X": "one ${row.id} {prompt}"}


@pytest.mark.parametrize(
    ("task", "experiment", "message"),
    [
        (ROWS, "variants:\n  - {variant_id: v, initial_prompt: '${row.nope}'}\n", "E:2:37: 'initial_prompt' names ${row.nope}"),
        (ROWS, "defaults:\n  prompt_mutations: {prefix: '${row.nope}'}\n", "E:2:21: 'prompt_mutations' names ${row.nope}"),
        (ROWS, "defaults:\n  post_run: [{command: 'echo ${row.nope}'}]\n", "E:2:24: 'post_run[0].command' names ${row.nope}"),
        (MINIMAL, "defaults:\n  prompt_mutations: {prefix: '${row.x}'}\n", "E:2:21: 'prompt_mutations' names ${row.x}, and the task"),
        (MINIMAL, "defaults:\n  pre_run: [{command: 'echo ${row.x}'}]\n", "E:2:23: 'pre_run[0].command' names ${row.x}, and"),
        (MINIMAL.replace("do it", "go ${row.nothing}"), None, "tasks/t.yaml:2:17: 'initial_prompt' names ${row.nothing}, and the task"),
    ],
)  # fmt: skip
def test_fields_that_no_row_has(tmp_path: Path, task: str, experiment: str | None, message: str) -> None:
    assert refused(trials, tmp_path, task, experiment).replace("experiments/e.yaml:", "E:").startswith(f"TASK_INVALID: {message}")


def test_two_trials_of_one_name_are_refused(tmp_path: Path) -> None:
    rows = MINIMAL + "dataset: {rows: [{id: '7'}, {id: 7-A}]}\n"
    said = refused(trials, tmp_path, rows, "variants: [{variant_id: b}, {variant_id: a-b}]\n")
    assert said.startswith(
        "TASK_INVALID: tasks/t.yaml:1:10: row '7' of variant 'a-b' and row '7-A' of variant 'b' would both be 't[row-7-A-b]'"
    )
    said = refused(trials, tmp_path, MINIMAL, "variants: [{variant_id: b, repeats: 2}, {variant_id: b-r1}]\n")
    assert "variant 'b' and variant 'b-r1' would both be 't[b-r1]'" in said


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("preambles: [gone]", "preamble 'gone' was not found in "),
        ("preambles: [bad]", "preamble {root}/tasks/bad.md has {{what}}; it can have {{task_id}}, {{repo_name}}, {{repo_path}}"),
        ("prompt_mutations: [{type: replace, pattern: d, replacement: '\\9', regex: true}]", "replacement '\\\\9': "),
    ],
)
def test_prompts_that_cant_be_made(tmp_path: Path, variant: str, message: str) -> None:
    write(tmp_path / "tasks/bad.md", "{{what}}")
    found = refused(trials, tmp_path, MINIMAL, "variants:\n  - {variant_id: v, " + variant + "}\n")
    assert found.startswith("TASK_INVALID: experiments/e.yaml:2:5: " + message.replace("{root}", str(tmp_path)))
    assert found.endswith("(task 't')")


# ---- repeats, gates, samples


def test_a_gate_grows_with_the_repeats(tmp_path: Path) -> None:
    text = MINIMAL + "repeats: 5\nmin_passes: 3\n"
    found = trials(tmp_path, text)
    assert [(t.min_passes, t.repeats) for t in found] == [(3, 5)] * 5
    found = trials(tmp_path, text, options=RunOptions(repeats=4))
    assert [t.min_passes for t in found] == [3] * 4  # ceil(3 * 4 / 5)
    assert trials(tmp_path, text, options=RunOptions(repeats=10))[0].notes == ("t: 3 of 5 repeats that must pass have become 6 of 10",)
    assert refused(trials, tmp_path, MINIMAL + "min_passes: 2\n").startswith(
        "TASK_INVALID: tasks/t.yaml:5:13: 'min_passes' must be at most the 1 repeats that there are, not 2"
    )


def test_sampling_leaves_names_behind(tmp_path: Path) -> None:
    loaded = load_one(tmp_path, MINIMAL + "dataset: {rows: [{id: a}, {id: b}, {id: c}]}\n")
    made = plan(settings(tmp_path), RunOptions(sample=1, repeats=2))
    found = Expansion(loaded, made)
    kept = [trial.node_id for task in found.tasks() for trial in found.trials(task)]
    left = list(found.names_left_out())
    assert len(kept) == 2
    assert len(left) == 4
    assert {*kept, *left} == {f"t[row-{row}-r{n}]" for row in "abc" for n in (1, 2)}
    everything = [trial.node_id for trial in expand(loaded, plan(settings(tmp_path), RunOptions(repeats=2)))]
    assert [name for name in everything if name in kept] == kept


# ---- overrides


@pytest.mark.parametrize(
    ("overrides", "path", "expected"),
    [
        (("agent.model=m",), ("agent", "model"), "m"),
        (("agent.model=3.10",), ("agent", "model"), "3.10"),
        (("agent.env.A=on",), ("agent", "env"), {"X": "y", "A": "on"}),
        (("agent.env={B: c}",), ("agent", "env"), {"X": "y", "B": "c"}),
        (("agent.env=null",), ("agent", "env"), {}),
        (("agent={model: n, args: [a, b]}",), ("agent", "args"), ("a", "b")),
        (("run_limits.max_usd=.5", "run_limits.max_turns=3"), ("limits", "max_usd"), 0.5),
        (("sandbox.driver=docker",), ("sandbox", "driver"), "docker"),
        (("agent.scripted.steps=[{say: hi}]", "agent.type=scripted"), ("agent", "scripted"), {"steps": [{"say": "hi"}]}),
    ],
)
def test_overrides(tmp_path: Path, overrides: tuple[str, ...], path: tuple[str, str], expected: Any) -> None:
    options = RunOptions(set=overrides, typed_sets=len(overrides))
    found = expand_one(tmp_path, MINIMAL + "agent: {env: {X: y}}\n", options)
    assert getattr(getattr(found, path[0]), path[1]) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agent.modle=x", "--codeprobe-set agent.modle=x: unknown field 'modle' (did you mean 'model'?) in 'agent'"),
        ("agnt.model=x", "--codeprobe-set 'agnt.model=x': needs a path below agent, sandbox, run_limits (did you mean 'agent'?)"),
        ("agent=x", "--codeprobe-set 'agent=x': needs a mapping, such as agent={…}"),
        ("agent.model", "--codeprobe-set 'agent.model' is not PATH=VALUE"),
        ("env.A=1", "--codeprobe-set 'env.A=1': needs a path below agent, sandbox, run_limits (did you mean 'agent.env.A'?)"),
        ("max_usd=1", "--codeprobe-set 'max_usd=1': needs a path below agent, sandbox, run_limits (did you mean 'run_limits.max_usd'?)"),
        ("run_limits.max_usd=", "--codeprobe-set 'run_limits.max_usd=' has no value"),
        ("run_limits= ", "--codeprobe-set 'run_limits= ': needs a mapping, such as run_limits={…}"),
        ("agent..model=x", "--codeprobe-set 'agent..model=x' is not PATH=VALUE"),
        ("run_limits.max_turns=many", "--codeprobe-set run_limits.max_turns=many: 'run_limits.max_turns' is text, not a number"),
        ("sandbox.env=[", "--codeprobe-set 'sandbox.env=[': the value can't be read: "),
        (
            "sandbox.template_sources=[{type: template_dir, path: gone}]",
            "--codeprobe-set sandbox.template_sources=[{type: template_dir, path: gone}]: ",
        ),
    ],
)
def test_overrides_that_are_wrong(tmp_path: Path, text: str, message: str) -> None:
    assert refused(expand_one, tmp_path, MINIMAL, RunOptions(set=(text,), typed_sets=1)).startswith(f"OVERRIDE_INVALID: {message}")


def test_a_list_of_no_variants_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "experiments/e.yaml", "variants: []\n")
    assert "1:11: 'variants': holds no variant; leave it out" in refused(load_experiment, file, settings(tmp_path))
