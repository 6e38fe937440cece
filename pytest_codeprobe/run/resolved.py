"""lock.json: what was resolved when a run began, so that anybody can see later what it ran, and why."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any

from pytest_codeprobe import __version__
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.run.final import Final
from pytest_codeprobe.sandboxes.patch import find_git
from pytest_codeprobe.sandboxes.sources import NOTES, notes_of
from pytest_codeprobe.sandboxes.tools import run_tool
from pytest_codeprobe.tasks.heads import Resolved
from pytest_codeprobe.tasks.index import digest
from pytest_codeprobe.text import Redactor, write_whole

_GIT_SECONDS = 20.0
_FILE = "lock.json"


def write_resolved(
    run_dir: Path,
    rootdir: Path,
    tasks: Mapping[str, Sequence[Resolved]],
    experiment: Mapping[str, Any] | None,
    templates: Mapping[str, str | None],
    redactor: Redactor,
) -> None:
    """Write lock.json of a run dir, unless it is there. `templates`: paths and what they hold. OSError."""
    content = {
        "schema_version": "1",
        "plugin_version": __version__,
        "git": git_state(rootdir),
        "experiment": experiment,
        "templates": {_shown(path, rootdir): found for path, found in templates.items()},
        "tasks": [
            {
                "task_id": each.task_id,
                "variant_id": each.variant_id,
                "file": _shown(path, rootdir),
                "content": _content(path),
                "settings": redactor.json(each.settings),
                "origins": each.origins,
            }
            for path, found in tasks.items()
            for each in found
        ],
    }
    try:
        write_whole(run_dir / _FILE, json.dumps(content, indent=1) + "\n", replace=False)
    except FileExistsError:
        return


def note_agents(run_dir: Path, finals: Iterable[Final]) -> None:
    """Add which agents have run, in which version and with which models. OSError."""
    found: dict[str, dict[str, list[str]]] = {}
    for final in finals:
        if final.agent is not None and final.attempts:
            known = found.setdefault(final.agent, {"versions": [], "models": []})
            for kind, value in (("versions", final.agent_version), ("models", final.model)):
                if value is not None and value not in known[kind]:
                    known[kind].append(value)
    path = run_dir / _FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # a worker was killed before it wrote it, or somebody else has
        return
    content["agents"] = {name: {kind: sorted(values) for kind, values in known.items()} for name, known in sorted(found.items())}
    write_whole(path, json.dumps(content, indent=1) + "\n")


def note_commits(run_dir: Path) -> None:
    """Add which commits the run's repositories stood for, and take away what told its processes so. OSError."""
    notes = notes_of(run_dir)
    path = run_dir / _FILE
    if not notes:
        return
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # as in note_agents()
        return
    content["commits"] = notes
    write_whole(path, json.dumps(content, indent=1) + "\n")
    shutil.rmtree(run_dir / NOTES)


def git_state(rootdir: Path) -> dict[str, Any] | None:
    """The commit that rootdir is at, and whether anything in it differs from that; None where it is in no repository."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {"GIT_OPTIONAL_LOCKS": "0"}
    git = ["-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", str(rootdir)]
    try:
        program = find_git()
        head = run_tool([program, *git, "rev-parse", "HEAD"], env=env, timeout=_GIT_SECONDS, stdout=PIPE)
        if head.status != 0:
            return None
        changes = run_tool([program, *git, "status", "--porcelain", "--untracked-files=no"], env=env, timeout=_GIT_SECONDS, stdout=PIPE)
    except (CodeprobeError, OSError):
        return None
    return {"commit": head.output.decode().strip(), "dirty": bool(changes.output.strip()) if changes.status == 0 else None}


def _content(path: str) -> str | None:
    try:
        return digest(Path(path).read_bytes())
    except OSError:
        return None


def _shown(path: str, rootdir: Path) -> str:
    place = Path(path)
    return place.relative_to(rootdir).as_posix() if place.is_relative_to(rootdir) else path
