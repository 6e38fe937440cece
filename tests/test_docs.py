"""The documentation: every example does what it says, every table names all there is and nothing else, every link leads somewhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
import yaml
from pydantic import BaseModel

from pytest_codeprobe import agents, criteria, sandboxes
from pytest_codeprobe.cli.main import group
from pytest_codeprobe.errors import error_codes
from pytest_codeprobe.model.config import (
    AgentConfig,
    DockerConfig,
    NodeSetup,
    PreRunCommand,
    PythonSetup,
    Reference,
    RunLimits,
    SandboxConfig,
    SandboxLimits,
    Simulation,
    Solution,
    StarterFile,
    TemplateSource,
)
from pytest_codeprobe.model.criterion import Criterion
from pytest_codeprobe.model.result import Status
from pytest_codeprobe.options import BUILT, INIS
from pytest_codeprobe.tasks import availability
from pytest_codeprobe.tasks.task import Task
from tests.doc_pages import DOCS, PAGES, ROOT, Block, anchors, blocks, first_column, links, names, prose, rows, section
from tests.front_door import Project, clean_environment
from tests.shell import make_commands

WRITING, CRITERIA, OPTIONS, RUN_DIR, EXTENDING = (
    DOCS / f"{name}.md" for name in ("writing-tasks", "criteria", "options", "run-directory", "extending")
)
SCHEMAS = ROOT / "pytest_codeprobe" / "run" / "schemas"
#: languages of blocks that somebody could copy; each must say what the test does with it
COPIED = {"yaml", "python", "sh", "ini", "toml", "json"}


# ---- examples


def written(text: str) -> list[str]:
    """Output without what differs from run to run."""
    text = re.sub(r"\d{8}T\d{9}Z-[a-z0-9]{4}", "RUN", text)
    text = re.sub(r"\d+(\.\d+)? ?s\b", "N s", text)
    text = re.sub(r"(?m)^platform .*|^rootdir: .*|^plugins: .*|^timeout.*: .*", "HEAD", text)
    text = re.sub(r"(HEAD\n)+", "HEAD\n", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", "TIME", text)
    text = re.sub(r"([=_!])\1{2,}", r"\1\1\1", text)
    return [line.rstrip() for line in text.strip().splitlines()]


def agrees(shown: list[str], said: list[str]) -> bool:
    """Whether the output is what is shown, `...` standing for any number of lines."""
    pattern = "".join(r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line) + r"\n" for line in shown)
    return re.fullmatch(pattern, "".join(line + "\n" for line in said)) is not None


def follow(page: Path, project: Project, bin_folder: Path) -> None:
    """Do what a page says, from its first example to its last."""
    output = ""
    for block in blocks(page):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        match block.verb:
            case "new folder":
                for entry in project.path.iterdir():
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            case "file":
                project.write(block.argument, block.text)
            case "run":
                done = execute(block, project, bin_folder)
                output = done.stdout + done.stderr
                wanted = int(block.argument.removeprefix("exit ") or 0)
                assert done.returncode == wanted, f"{where}: exit status {done.returncode}, not {wanted}\n{output}"
            case "output":
                assert agrees(written(block.text), written(output)), f"{where}: shown is\n{block.text}\nbut it printed\n{output}"


def execute(block: Block, project: Project, bin_folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the commands of a block in the page's folder."""
    environment = clean_environment(CP_TEST_MARK=project.mark_text, **project.environment)
    environment.pop("CODEPROBE_DRIVER")  # as a reader has it: what is written in them holds with the driver that auto comes to
    environment["PATH"] = f"{bin_folder}:{environment['PATH']}"
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CONFIG_DIR", "NO_COLOR", "FORCE_COLOR"):
        environment.pop(name, None)
    return subprocess.run(
        ["sh", "-e", "-c", block.text],
        cwd=project.path,
        env=environment | {"HOME": str(project.scratch), "COLUMNS": "80"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """The commands that the docs use, of this interpreter's environment, whatever is on PATH."""
    return make_commands(tmp_path / "bin")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_do_what_they_say(page: Path, project: Project, bin_folder: Path) -> None:
    (project.path / "pytest.ini").unlink()  # a reader begins with an empty folder
    follow(page, project, bin_folder)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_example_is_left_out(page: Path) -> None:
    loose = [f"{page.name}:{b.line}: {b.language}" for b in blocks(page) if b.language in COPIED and b.verb is None]
    assert not loose
    assert not [b for b in blocks(page) if b.verb == "not run" and not b.argument], "say why"


def test_a_wrong_example_is_noticed(project: Project, bin_folder: Path) -> None:
    page = ROOT / "tests" / "data" / "docs" / "wrong.md"
    with pytest.raises(AssertionError, match="shown is"):
        follow(page, project, bin_folder)


# ---- links


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "tasks" / "README.md"], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        target, _, anchor = link.partition("#")
        if target.startswith(("https://", "http://")):
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.is_relative_to(ROOT), link
        assert file.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {link} (there are {sorted(anchors(file))})"


def test_messages_name_pages_by_their_titles() -> None:
    """What is installed has no folder docs/: a title can be looked for anywhere."""
    sources = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "pytest_codeprobe").rglob("*.py"))]
    titles = {page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for page in PAGES}
    named = {found for text in sources for found in re.findall(r'docs: \\?"([^"\\]+)', text)}
    assert named
    assert named <= titles
    assert not [text for text in sources if re.search(r"docs/[a-z-]+\.md", text)]


def test_every_page_is_linked_from_the_readme() -> None:
    found = {link.partition("#")[0] for link in links(ROOT / "README.md")}
    assert {f"docs/{page.name}" for page in PAGES if page.parent == DOCS} <= found


# ---- tables that must name all there is

MODELS: dict[str, tuple[type[BaseModel], ...]] = {
    "The task": (Task,),
    "agent": (AgentConfig,),
    "sandbox": (SandboxConfig,),
    "sandbox.limits": (SandboxLimits,),
    "sandbox.docker": (DockerConfig,),
    "sandbox.template_sources": (TemplateSource, StarterFile),
    "sandbox.setup": (PythonSetup, NodeSetup),
    "run_limits": (RunLimits,),
    "simulation": (Simulation,),
    "Commands before and after": (PreRunCommand,),
    "reference and solution": (Reference, Solution),
}
NOT_YET = "Not available yet"
FOR_SOME_VALUES = {"sandbox.network", "sandbox.docker", "sandbox.setup", "sandbox.setup.python"}  #: refused for some values only


def not_yet() -> set[str]:
    """What the strict models know and tasks/availability.py, the agents and the drivers refuse, as dotted names."""
    samples: dict[str, Any] = {
        "gateway": "off",
        "expect": "fail",
        "pass_score": 0.5,
        "xfail": "why",
        "skip": "why",
    }
    task = Task.model_validate({"task_id": "t", "success_criteria": [{"type": "x", "suite_thresholds": {"mean": 1}}], **samples})
    found = {str(path[0]) if path[0] != "success_criteria" else str(path[-1]) for path, _ in availability.of_task(task)}
    limits = dict.fromkeys(SandboxLimits.model_fields, 1)
    config = SandboxConfig.model_validate({"network": "off", "limits": limits, "docker": {}, "setup": {"python": {}}})
    for driver in sandboxes.BUILTIN:
        found |= {name for name, _ in driver.unsupported(cast("Any", SimpleNamespace(sandbox=config)))}
    held = {"type", "env", "permission_mode"}.union(*(agent.supports for agent in agents.BUILTIN))
    return found | {f"agent.{name}" for name in AgentConfig.model_fields if name not in held}


def is_refused(name: str, refused: set[str]) -> bool:
    """Whether a dotted name, or what it stands in, is refused whatever its value."""
    parts = name.split(".")
    return any(".".join(parts[:n]) in refused - FOR_SOME_VALUES for n in range(1, len(parts) + 1))


@pytest.mark.parametrize("heading", MODELS)
def test_every_field_of_a_task_is_documented(heading: str) -> None:
    fields = {name for model in MODELS[heading] for name in model.model_fields}
    prefix = "" if heading == "The task" else f"{heading}."
    later = {name for name in fields if is_refused(prefix + name, not_yet())}
    shown = first_column(section(WRITING, heading).partition("\n### ")[0])
    assert sorted(set(shown)) == sorted(fields - later)


def test_the_list_of_what_is_not_there_is_true() -> None:
    listed = {name for row in rows(section(WRITING, NOT_YET)) for name in names(row[0])}
    known = {
        "Agents": availability.KNOWN_AGENTS - {a.name for a in agents.BUILTIN},
        "Drivers": availability.KNOWN_DRIVERS - {"auto"} - {d.name for d in sandboxes.BUILTIN},
        "Criteria": availability.KNOWN_CRITERIA - {kind_of(c) for c in criteria.BUILTIN},
    }
    assert listed == not_yet()
    text = section(WRITING, NOT_YET)
    for what, missing in known.items():
        line = next(line for line in text.splitlines() if line.startswith(f"- {what}:"))
        assert set(names(line)) == set(missing), what


def examples(page: Path) -> Iterator[dict[str, Any]]:
    """The tasks that a page shows and the tests run."""
    for block in blocks(page):
        if block.verb == "file" and block.language == "yaml":
            for document in yaml.safe_load_all(block.text):
                yield from document if isinstance(document, list) else [document]


def keys(value: Any, path: str = "") -> Iterator[str]:
    """Dotted names of all keys, lists left out."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"{path}{name}"
            yield from keys(inner, f"{path}{name}.")
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner, path)


def test_every_field_of_a_task_has_an_example() -> None:
    used = {key for task in examples(WRITING) for key in keys(task)}
    wanted = {*Task.model_fields}
    wanted |= {f"agent.{n}" for n in AgentConfig.model_fields}
    wanted |= {f"sandbox.{n}" for n in SandboxConfig.model_fields} | {f"sandbox.limits.{n}" for n in SandboxLimits.model_fields}
    wanted |= {f"sandbox.template_sources.{n}" for n in TemplateSource.model_fields}
    wanted |= {f"sandbox.template_sources.files.{n}" for n in StarterFile.model_fields}
    wanted |= {f"run_limits.{n}" for n in RunLimits.model_fields} | {f"pre_run.{n}" for n in PreRunCommand.model_fields}
    wanted |= {f"solution.{n}" for n in Solution.model_fields} | {f"reference.{n}" for n in Reference.model_fields}
    assert not {name for name in wanted - used if not is_refused(name, not_yet())}


def kind_of(criterion: type[Criterion]) -> str:
    """The `type` of a criterion."""
    return str(criterion.model_fields["type"].annotation.__args__[0])  # type: ignore[union-attr]


@pytest.mark.parametrize("criterion", criteria.BUILTIN, ids=kind_of)
def test_every_criterion_is_documented_with_an_example(criterion: type[Criterion]) -> None:
    kind = kind_of(criterion)
    own = {
        n
        for n, f in criterion.model_fields.items()
        if n not in Criterion.model_fields or f.annotation != Criterion.model_fields[n].annotation
    }
    own |= {"timeout"} if criterion.model_fields["timeout"].default is not None else set()
    text = section(CRITERIA, kind)
    assert sorted(set(first_column(text))) == sorted(own - {"type"})
    assert f"Passes at {criterion.default_threshold:g}." in text
    used = {key for task in examples(CRITERIA) for c in task["success_criteria"] if c["type"] == kind for key in c}
    assert own - {"type"} <= used


def test_common_fields_of_criteria_are_documented() -> None:
    shown = first_column(section(CRITERIA, "Fields of every criterion"))
    assert sorted(shown) == sorted(Criterion.model_fields)


def test_nothing_but_criteria_is_documented_as_one() -> None:
    headings = re.findall(r"^### (\w+)$", section(CRITERIA, "The criteria"), re.MULTILINE)
    assert sorted(headings) == sorted(kind_of(c) for c in criteria.BUILTIN)


def test_every_agent_and_driver_is_documented() -> None:
    assert sorted(first_column(section(WRITING, "Agents"))) == sorted(a.name for a in agents.BUILTIN)


def test_every_error_code_is_documented() -> None:
    """The table itself is made from the code: tests/code_tables.py."""
    table = {row[0].strip("`"): row for row in rows(section(DOCS / "codes.md", "The codes"))}
    assert sorted(table) == sorted(error_codes())
    for code, row in table.items():
        entry = error_codes()[code]
        assert (row[1], row[3].partition(":")[0]) == (str(entry.exit_code), entry.retryable), code


def test_exit_codes_are_documented() -> None:
    assert [row[0] for row in rows(section(RUN_DIR, "Exit codes"))] == [str(n) for n in range(7)]


def test_events_and_envelope_are_documented() -> None:
    """The tables against the schemas, which every run of the tests is held to."""
    schemas = {name: json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8")) for name in ("event", "envelope")}
    assert first_column(section(RUN_DIR, "Events")) == schemas["event"]["properties"]["event"]["enum"]
    top, _, data = section(RUN_DIR, "Envelope").partition("\n### ")
    assert sorted(first_column(top)) == sorted(schemas["envelope"]["required"])
    counted = schemas["envelope"]["$defs"]["counts"]["required"]
    assert sorted(first_column(data)) == sorted({*schemas["envelope"]["$defs"]["data"]["required"], *counted})


def test_every_status_is_documented() -> None:
    assert first_column(section(RUN_DIR, "Status of a trial")) == list(get_args(Status))


def test_every_option_is_documented() -> None:
    table = {names(row[0])[0].split()[0]: row for row in rows(section(OPTIONS, "Flags"))}
    assert sorted(table) == sorted(option.flag for option in BUILT)
    for option in BUILT:
        _, spellings, settable, default, *_ = table[option.flag]
        assert sorted(names(spellings)) == sorted(option.cli), option.name
        assert (settable == "yes") == option.settable, option.name
        assert default.replace("`", "") == option.default.replace("`", ""), option.name
    assert sorted(first_column(section(OPTIONS, "Ini keys without a flag"))) == sorted(ini.name for ini in INIS)


def test_nothing_unbuilt_is_promised() -> None:
    """A flag or command that does not exist is worse than one that is not mentioned."""
    flags = {option.flag for option in BUILT} | {spelling for option in BUILT for spelling in option.cli}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        used = set(re.findall(r"--codeprobe-[a-z-]+", text))
        assert used <= flags, page.name
        assert set(re.findall(r"\bcodeprobe ([a-z]+)\b(?= [\w-]*/|`| -)", prose(page))) <= group.commands.keys(), page.name


def test_hooks_are_documented() -> None:
    from pytest_codeprobe.plugin import hookspecs

    hooks = {name for name in vars(hookspecs) if name.startswith("pytest_codeprobe_")}
    assert hooks == set(re.findall(r"pytest_codeprobe_\w+", prose(EXTENDING)))
