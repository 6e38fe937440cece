"""What graders depend on that an agent may change: told to whoever tries a task with its own solution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_codeprobe.model.config import SandboxConfig, package_path
from pytest_codeprobe.model.criterion import Criterion
from pytest_codeprobe.model.sandbox import Change
from pytest_codeprobe.trial.protect import matcher


def exposed(name: str, criteria: Sequence[Criterion], protected: Sequence[str], changes: Sequence[Change]) -> Iterator[str]:
    """A sentence for each program of a criterion whose configuration is neither protected nor what the solution changes.

    `name`: of the task. `changes`: what its own solution did, so what an agent is meant to change.
    """
    held = matcher(protected)
    for number, criterion in enumerate(criteria, 1):
        if not criterion.enabled:
            continue
        for program, globs in criterion.steered_by().items():
            meant = {glob for glob in globs if any(map(matcher([glob]), (change.path for change in changes)))}
            free = [glob for glob in globs if glob not in meant and not held(_example(glob))]
            if free:
                starts = f"{name}: criterion {number} ({criterion.type}) starts {program}"
                remedy = f"unless it is meant to change them, add to sandbox.protected: [{', '.join(map(_quoted, free))}]"
                yield f"{starts}, which files that the agent may write can tell to succeed; {remedy}"


def copied(name: str, sandbox: SandboxConfig) -> Iterator[str]:
    """A sentence for each package that is installed out of a folder which the workspace is made from, too."""
    sources = [Path(source.path) for source in sandbox.template_sources if source.type == "template_dir" and source.path is not None]
    for kind in ("python", "node"):
        setup = getattr(sandbox.setup, kind, None)
        for package in setup.packages if setup is not None else ():
            folder = package_path(package)
            if folder is not None and folder.is_dir() and any(folder.is_relative_to(source) for source in sources):
                yield (
                    f"{name}: sandbox.setup.{kind} installs {folder} as it is, and the workspace is made from it, too: whoever calls its "
                    "programs by name, graders above all, runs that copy and not what the agent has changed"
                )


def _example(glob: str) -> str:
    """A path that the glob is about."""
    return glob.replace("**/", "").replace("**", "x").replace("*", "x")


def _quoted(glob: str) -> str:
    return f'"{glob}"' if glob.startswith("*") else glob
