"""What the digests of a trial depend on, and what they do not."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_codeprobe.model.context import Context
from pytest_codeprobe.options import RunOptions
from pytest_codeprobe.tasks.expand import expand
from pytest_codeprobe.trial.fingerprint import Contents, changed, fingerprint
from tests.task_files import MINIMAL, expand_one, load_one, plan, settings, write

CONTEXT = cast("Context", SimpleNamespace(options=RunOptions()))
TEMPLATE = MINIMAL + "sandbox: {template_sources: [{type: template_dir, path: w}]}\n"


def session(root: Path, text: str, **more: Any) -> dict[str, str]:
    return dict(fingerprint(expand_one(root, text, RunOptions(agent="scripted"), **more), CONTEXT, Contents()).session)


def test_a_row_is_part_of_the_session(tmp_path: Path) -> None:
    """Also a field that no prompt names: pre_run and graders find it in their environment."""

    def digests(label: str) -> dict[str, str]:
        task = load_one(tmp_path, MINIMAL + f"dataset: {{rows: [{{id: a, label: {label}}}]}}\n")
        (trial,) = expand(task, plan(settings(tmp_path), RunOptions(agent="scripted")))
        return dict(fingerprint(trial, CONTEXT, Contents()).session)

    assert digests("x") == digests("x")
    assert changed(digests("x"), digests("y")) == ["row"]


@pytest.mark.parametrize(
    "where",
    [
        MINIMAL + "agent: {env: {A: '${V}'}}\n",
        MINIMAL + "agent: {type: claude, mcp_servers: {s: {command: c, args: [a, '$V']}}}\n",
    ],
)
def test_a_variable_counts_by_its_name(tmp_path: Path, where: str) -> None:
    def digests(text: str, value: str, **more: Any) -> dict[str, str]:
        trial = expand_one(tmp_path, text, RunOptions(agent="claude", **more), environ={"V": value, "W": value})
        assert value in trial.agent.model_dump_json()
        return dict(fingerprint(trial, CONTEXT, Contents()).session)

    assert digests(where, "one") == digests(where, "two")
    assert changed(digests(where, "one"), digests(where.replace("V", "W"), "one")) == ["agent"]
    over = ("agent.env.A=$W",)  # a flag is the highest layer; what it says holds
    assert digests(MINIMAL, "one", set=over) == digests(MINIMAL, "two", set=over)


def _empty_folder(folder: Path) -> None:
    (folder / "empty").mkdir()


def _commit(folder: Path) -> None:
    git(folder, "commit", "-q", "--allow-empty", "-m", "more")


def _look(folder: Path) -> None:
    """What a look at it, or keeping house, leaves behind."""
    (folder / ".git/index").write_bytes(b"renewed")
    (folder / ".git/index.lock").touch()
    git(folder, "pack-refs", "--all")


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


@pytest.mark.parametrize(("change", "counts"), [(_empty_folder, True), (_commit, True), (_look, False)])
def test_a_templates_repository_and_empty_folders(tmp_path: Path, change: Callable[[Path], None], counts: bool) -> None:
    folder = write(tmp_path / "tasks/w/a.txt", "a").parent
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "one")
    before = session(tmp_path, TEMPLATE)
    change(folder)
    assert changed(before, session(tmp_path, TEMPLATE)) == (["template"] if counts else [])


def test_a_dockerfile_counts_by_what_it_says(tmp_path: Path) -> None:
    trial = expand_one(tmp_path, MINIMAL, RunOptions(agent="scripted"))
    file = write(tmp_path / "Dockerfile", "FROM a")
    docker = trial.sandbox.model_validate({"docker": {"dockerfile": str(file)}})
    trial = trial.model_copy(update={"sandbox": docker})
    before = fingerprint(trial, CONTEXT, Contents()).session
    file.write_text("FROM b")
    assert changed(before, fingerprint(trial, CONTEXT, Contents()).session) == ["dockerfile"]


def test_a_package_counts_by_its_file_and_wherever_that_lies(tmp_path: Path) -> None:
    """A folder does not: installing from it writes into it."""
    text = MINIMAL + "sandbox: {setup: {python: {packages: ['./p.whl[x]', ./lib, other]}}}\n"
    roots = [tmp_path / name for name in "ab"]
    for root in roots:
        (root / "tasks/lib").mkdir(parents=True)
        (root / "tasks/p.whl").write_text("one")
    before = session(roots[0], text)
    assert before == session(roots[1], text)
    (roots[0] / "tasks/lib/build").mkdir()
    assert session(roots[0], text) == before
    (roots[0] / "tasks/p.whl").write_text("two")
    assert changed(before, session(roots[0], text)) == ["packages"]


def test_an_image_counts_by_what_its_name_stands_for(tmp_path: Path) -> None:
    """As the driver says; where it can't, by its name alone."""

    def digests(said: str | None, name: str = "x") -> dict[str, str]:
        driver = SimpleNamespace(image_id=lambda *_: said)
        context = cast("Context", SimpleNamespace(options=RunOptions(), registry=SimpleNamespace(drivers={"docker": driver})))
        trial = expand_one(tmp_path, MINIMAL, RunOptions(agent="scripted"))
        config = trial.sandbox.model_validate({"driver": "docker", "docker": {"image": name}})
        return dict(fingerprint(trial.model_copy(update={"sandbox": config}), context, Contents()).session)

    assert changed(digests("id-1"), digests("id-2")) == ["image"]
    assert changed(digests("id-1"), digests(None)) == ["image"]
    assert changed(digests(None), digests(None, "y")) == ["sandbox"]
