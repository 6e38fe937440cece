"""Expansion: what a task, the defaults and the flags become together, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pytest_codeprobe.model.agent import Agent, SessionCommand, SessionParser, SessionRequest
from pytest_codeprobe.model.trial import FileRef, Trial
from pytest_codeprobe.options import RunOptions
from tests.task_files import MINIMAL, expand_one, refused, registry, write

ORACLE = RunOptions(agent="oracle", on_command_line=("agent",))


class Picky(Agent):
    """An agent of a user's plugin."""

    name = "picky"
    aliases = ("fussy",)
    supports = frozenset({"model"})
    permission_modes = ("auto", "plan")
    said: ClassVar[Sequence[tuple[str, str]]] = ()

    def problems(self, trial: Trial) -> Sequence[tuple[str, str]]:
        return self.said

    def command(self, request: SessionRequest) -> SessionCommand | None:
        raise AssertionError(request)

    def parser(self, request: SessionRequest) -> SessionParser:
        raise AssertionError(request)


def picky(rootdir: Path, text: str, options: RunOptions | None = None) -> Trial:
    return expand_one(rootdir, text, options, registry=registry(Picky()))


def test_a_trial_holds_everything_absolute(tmp_path: Path) -> None:
    write(tmp_path / "tasks/w/a")
    text = (
        MINIMAL.replace("task_id: t", "task_id: a/b")
        + "sandbox: {template_sources: [{type: template_dir, path: w}]}\nmetadata: {v: 3.10}\n"
        "skip: not now\npass_score: 0.5\npre_run: [{command: x}]\n"
    )
    trial = expand_one(tmp_path, text, ORACLE)
    assert (trial.node_id, trial.task_id, trial.folder) == ("a/b", "a/b", "default/a__b/r001")
    assert (trial.task_file, trial.line, trial.prompt) == (str(tmp_path / "tasks/t.yaml"), 1, "do it")
    assert trial.manifest == (
        FileRef(path=str(tmp_path / "tasks/t.yaml"), role="task"),
        FileRef(path=str(tmp_path / "tasks/w"), role="template"),
    )
    assert trial.criteria == ({"type": "file_exists", "path": "a"},)
    assert (trial.skip, trial.pass_score, trial.metadata, trial.notes) == ("not now", 0.5, {"v": 3.1}, ())
    assert Trial.model_validate_json(trial.model_dump_json()) == trial


def test_layers_from_defaults_to_flags(tmp_path: Path) -> None:
    write(tmp_path / "experiments/extra/a")
    write(tmp_path / "tasks/w/a")
    write(
        tmp_path / "experiments/default.yaml",
        "defaults:\n  run_limits: {task_timeout: 5, max_turns: 7, turn_timeout: 9}\n  sandbox: {env: {A: d, B: d}, env_passthrough: [X],"
        " template_sources: [{type: template_dir, path: extra}]}\n",
    )
    text = MINIMAL + (
        "run_limits: {task_timeout: 6, turn_timeout: null}\n"
        "sandbox: {env: {B: t}, env_passthrough: [Y], template_sources: [{type: template_dir, path: w}]}\n"
    )
    trial = expand_one(tmp_path, text, ORACLE)
    assert (trial.limits.task_timeout, trial.limits.max_turns, trial.limits.turn_timeout, trial.limits.setup_timeout) == (6, 7, None, 600)
    assert trial.sandbox.env == {"A": "d", "B": "t"}
    assert trial.sandbox.env_passthrough == ("X", "Y")
    assert [Path(source.path or "").name for source in trial.sandbox.template_sources] == ["w", "extra"]
    assert [Path(ref.path).name for ref in trial.manifest] == ["t.yaml", "w", "extra"]
    assert expand_one(tmp_path, text, RunOptions(timeout=1.5)).limits.task_timeout == 1.5


def test_no_agent_is_a_trial_all_the_same(tmp_path: Path) -> None:
    assert expand_one(tmp_path, MINIMAL).agent.type is None


def test_flags_change_the_agent_and_drop_what_was_for_another(tmp_path: Path) -> None:
    text = MINIMAL + "agent: {type: claude-code, model: m, effort: high, env: {A: b}, scripted: {steps: [{say: hi}]}}\n"
    alone = expand_one(tmp_path, text)
    assert (alone.agent.type, alone.agent.model, alone.agent.table("scripted")) == ("claude", "m", {})
    changed = expand_one(tmp_path, text, RunOptions(agent="scripted"))
    assert (changed.agent.type, changed.agent.model, changed.agent.env) == ("scripted", None, {})
    assert changed.agent.table("scripted") == {"steps": [{"say": "hi"}]}
    assert changed.notes == ()
    assert expand_one(tmp_path, text, RunOptions(model="n")).agent.model == "n"


def test_a_task_without_an_agent_of_its_own_keeps_to_that(tmp_path: Path) -> None:
    text = "task_id: t\nagent: {type: none}\nsuccess_criteria: [{type: file_exists, path: a}]\n"
    options = RunOptions(
        agent="claude", model="m", permission_mode="plan", timeout=3, on_command_line=("agent", "model", "permission-mode")
    )
    trial = expand_one(tmp_path, text, options)
    assert (trial.agent.type, trial.agent.model, trial.agent.permission_mode, trial.prompt) == ("none", None, "auto", None)
    assert trial.limits.task_timeout == 3


@pytest.mark.parametrize(
    ("line", "place", "message"),
    [
        ("gateway: off", "5:10", "gateway: off is not available yet"),
        ("agent: {type: codex}", "5:15", "agent 'codex' is not available yet"),
        ("sandbox: {network: off}", "5:20", "sandbox.network: off needs driver bubblewrap or docker"),
        ("sandbox: {network: [a.b, c]}", "5:20", "sandbox.network: [a.b, c] needs driver bubblewrap or docker"),
        ("sandbox: {docker: {image: x}}", "5:19", "sandbox.docker needs driver docker"),
        ("sandbox: {docker: {image: --privileged}}", "5:19", "'sandbox.docker': 'image' is '--privileged', which names none"),
        (
            "sandbox: {setup: {python: {packages: [--pre]}}}",
            "5:39",
            "'sandbox.setup.python.packages[0]' must name a package; options of pip and npm are for the user's own settings",
        ),
        (
            "sandbox: {setup: {python: {version: 2.7}}}",
            "5:37",
            "'sandbox.setup.python.version' must be a version of Python 3, such as 3.12",
        ),
        ("sandbox: {driver: tempdri}", "5:19", "unknown driver 'tempdri' (did you mean 'tempdir'?)"),
    ],
)
def test_what_is_not_available_is_refused_where_a_task_sets_it(tmp_path: Path, line: str, place: str, message: str) -> None:
    assert refused(expand_one, tmp_path, f"{MINIMAL}{line}\n") == f"TASK_INVALID: tasks/t.yaml:{place}: {message}"


@pytest.mark.parametrize(
    "line",
    [
        "repeats: 1",
        "gateway: auto",
        "dialect: native",
        "sandbox: {network: on, limits: {output_mb: 3}, git: none, protected: [a], ignore_patterns: [b]}",
    ],
)
def test_what_says_the_default_is_fine(tmp_path: Path, line: str) -> None:
    assert expand_one(tmp_path, f"{MINIMAL}{line}\n").notes == ()


@pytest.mark.parametrize(
    ("sandbox", "note"),
    [
        ({"network": "off"}, "sandbox.network: off needs driver bubblewrap or docker; it is left out"),
        ({"network": ["a.b"]}, "sandbox.network: [a.b] needs driver bubblewrap or docker; it is left out"),
    ],
)
def test_what_only_a_default_sets_is_left_out_and_noted(tmp_path: Path, sandbox: dict[str, Any], note: str) -> None:
    trial = expand_one(tmp_path, MINIMAL, ORACLE, {"sandbox": sandbox})
    assert trial.notes == (note,)
    assert trial.sandbox == expand_one(tmp_path, MINIMAL, ORACLE).sandbox


def test_limits_under_the_names_of_coder_eval(tmp_path: Path) -> None:
    limits = expand_one(tmp_path, MINIMAL + "sandbox: {limits: {max_memory_mb: 512, max_cpus: 1.5, max_pids: 100}}\n").sandbox.limits
    assert (limits.memory_mb, limits.cpus, limits.pids) == (512, 1.5, 100)


def test_a_driver_that_is_not_there_yet_is_no_fault_of_the_task(tmp_path: Path) -> None:
    trial = expand_one(tmp_path, MINIMAL + "sandbox: {driver: bubblewrap, network: off, limits: {pids: 9}}\n")
    assert (trial.sandbox.driver, trial.sandbox.network, trial.notes) == ("bubblewrap", "off", ())
    assert expand_one(tmp_path, MINIMAL, RunOptions(driver="docker")).sandbox.driver == "docker"


def test_unknown_names_in_flags(tmp_path: Path) -> None:
    flags = RunOptions(agent="cladue", on_command_line=("agent",))
    assert refused(expand_one, tmp_path, MINIMAL, flags).startswith("UNKNOWN_BACKEND: unknown agent 'cladue' (did you mean 'claude'?)")
    flags = RunOptions(driver="tempdri", on_command_line=("driver",))
    assert refused(expand_one, tmp_path, MINIMAL, flags) == (
        "USAGE_ERROR: --codeprobe-driver: unknown driver 'tempdri' (did you mean 'tempdir'?)"
    )
    said = refused(expand_one, tmp_path, MINIMAL, RunOptions(driver="dokcer", on_command_line=("driver",)))
    assert said.endswith("unknown driver 'dokcer' (did you mean 'docker', which is not available yet?)")


def test_fields_that_an_agent_cant_honour(tmp_path: Path) -> None:
    with_type = MINIMAL + "agent: {type: fussy, allowed_tools: [read]}\n"
    assert refused(picky, tmp_path, with_type) == "TASK_INVALID: tasks/t.yaml:5:37: agent.allowed_tools is not supported by picky"
    neutral = picky(
        tmp_path, MINIMAL + "agent: {model: m, allowed_tools: [read], env: {A: b}, project_settings: true}\n", RunOptions(agent="fussy")
    )
    assert (neutral.agent.type, neutral.agent.model, neutral.agent.allowed_tools, neutral.agent.env) == ("picky", "m", None, {"A": "b"})
    assert neutral.notes == ("agent.allowed_tools is not supported by picky; it is left out",)
    by_flag = RunOptions(agent="oracle", model="m", on_command_line=("agent", "model"))
    assert refused(expand_one, tmp_path, MINIMAL, by_flag) == (
        "TASK_INVALID: tasks/t.yaml:1:1: agent.model is not supported by oracle (set by --codeprobe-model)"
    )
    by_ini = expand_one(tmp_path, MINIMAL, RunOptions(agent="oracle", model="m", on_command_line=("agent",)))
    assert by_ini.agent.model is None
    assert by_ini.notes == ("agent.model is not supported by oracle; it is left out",)


def test_permission_modes(tmp_path: Path) -> None:
    flag = RunOptions(agent="picky", permission_mode="plan", on_command_line=("permission-mode",))
    assert picky(tmp_path, MINIMAL, flag).agent.permission_mode == "plan"
    flag = RunOptions(agent="picky", permission_mode="acceptEdits", on_command_line=("permission-mode",))
    assert refused(picky, tmp_path, MINIMAL, flag) == (
        "INVALID_PERMISSION_MODE: --codeprobe-permission-mode: 'acceptEdits' is not supported by picky"
    )
    typed = MINIMAL + "agent: {type: picky, permission_mode: acceptEdits}\n"
    assert (
        refused(picky, tmp_path, typed) == "TASK_INVALID: tasks/t.yaml:5:39: agent.permission_mode: acceptEdits is not supported by picky"
    )
    ini = picky(tmp_path, MINIMAL, RunOptions(agent="picky", permission_mode="acceptEdits"))
    assert ini.agent.permission_mode == "auto"
    assert len(ini.notes) == 1


def test_what_an_agent_says_is_placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = MINIMAL + "agent: {type: picky, model: [a, b]}\n"
    monkeypatch.setattr(Picky, "said", (("success_criteria[0].path", "is not what I like"), ("agent.model", "has a flaw")))
    assert refused(picky, tmp_path, text.replace("[a, b]", "m")) == (
        "TASK_INVALID: tasks/t.yaml:4:31: 'success_criteria[0].path' is not what I like (and 1 more in this file)"
    )


def test_what_the_real_agents_say(tmp_path: Path) -> None:
    text = MINIMAL + "agent: {type: command}\n"
    assert refused(expand_one, tmp_path, text).startswith("TASK_INVALID: tasks/t.yaml:5:1: 'agent.command': agent command needs 'command'")
