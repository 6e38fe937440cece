"""What files of coder-eval mean without saying it: no field name shows it, so the file (`dialect:`) or ini `codeprobe_dialect` does.

Two parts: a layer of settings below all others, and what the entries of a file lack that have no layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pytest_codeprobe.tasks.layers import Layer

Dialect = Literal["native", "coder-eval"]
CODER_EVAL: Dialect = "coder-eval"
DIALECTS: tuple[Dialect, ...] = ("native", CODER_EVAL)

#: that its default experiment offers to an agent; names of Claude's, so no other agent gets them
_TOOLS = ("Bash", "Read", "Write", "Edit", "Glob", "Grep", "Skill")
#: that it leaves out of a folder which it copies, anywhere in it
_NOT_COPIED = (
    *(".venv", "venv", "ENV", "env", "virtualenv", ".git", ".svn", ".hg"),
    *("__pycache__", "*.pyc", "*.pyo", "*.pyd", ".pytest_cache", ".ruff_cache", "*.egg-info", ".eggs", "dist", "build"),
    *(".vscode", ".idea", "*.swp", "*.swo", "*~", ".DS_Store", "Thumbs.db", "node_modules", ".npm", "bower_components"),
    *(".coverage", "htmlcov", ".tox", ".nox", "*.so", "*.dylib", "*.dll", "cli_mocks"),
)
_REPOSITORY = "repo"  #: folder of the workspace that a repository is cloned into


def dialect_of(raw: Mapping[str, Any], otherwise: Dialect) -> Dialect:
    """Of a file, or of a task in it; what is no dialect is its model's business."""
    return next((known for known in DIALECTS if known == raw.get("dialect")), otherwise)


def layer(agent: str | None, *, simulated: bool) -> Layer:
    """Its settings below experiments/default.yaml. `agent` is the one that is chosen; `simulated`: a layer above speaks of a user."""
    values: dict[str, Any] = {"sandbox": {"driver": "tempdir", "setup": {"python": {}}}}
    if agent == "claude":
        values["agent"] = {"allowed_tools": [*_TOOLS]}
    if simulated:
        values["simulation"] = {"enabled": False}
    return Layer(name="dialect", values=values)


def completed_task(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A task in our names with what it means beside; `raw` is not changed."""
    task = _with_sources(raw)
    dataset = task.get("dataset")
    if isinstance(dataset, dict) and "sample_seed" not in dataset:
        task["dataset"] = {**dataset, "sample_seed": None}  # another sample in each run
    return task


def completed_experiment(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The same of an experiment."""
    found = dict(raw)
    if isinstance(found.get("defaults"), dict):
        found["defaults"] = _with_sources(found["defaults"])
    if isinstance(found.get("variants"), list):
        found["variants"] = [_with_sources(each) if isinstance(each, dict) else each for each in found["variants"]]
    return found


def _with_sources(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Template sources, under `sandbox` or short for that, as they are copied there."""
    found = dict(settings)
    sandbox = found.get("sandbox")
    own = sandbox.get("ignore_patterns") if isinstance(sandbox, dict) else None
    patterns = own if isinstance(own, list) else []
    if isinstance(sandbox, dict) and isinstance(sandbox.get("template_sources"), list):
        found["sandbox"] = {**sandbox, "template_sources": list(_sources(sandbox["template_sources"], patterns))}
    if isinstance(found.get("template_sources"), list):
        found["template_sources"] = list(_sources(found["template_sources"], patterns))
    return found


def _sources(entries: list[Any], patterns: list[Any]) -> Iterator[Any]:
    for entry in entries:
        kind = entry.get("type") if isinstance(entry, dict) else None
        if kind == "repo":
            yield {"mount_point": _REPOSITORY, **entry}
        elif kind == "template_dir":
            named = entry.get("exclude")
            yield {**entry, "exclude": [*_NOT_COPIED, *patterns, *(named if isinstance(named, list) else [])]}
        else:
            yield entry
