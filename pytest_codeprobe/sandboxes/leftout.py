"""What no template brings into a workspace, though it lies below its folder: what grades the task, and the harness's own files.

A folder that holds what grades the task is a repository that is used as its own workspace. A session gets it as somebody gets it who
has just cloned it: without what git ignores; and without its history, in which the hidden files may lie as well.
"""

# ruff: noqa: PTH110, PTH118, PTH120
# (as text: made for every trial, and compared with what a scan of a folder finds)
from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from subprocess import PIPE

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.config import TemplateSource
from pytest_codeprobe.model.trial import HIDDEN_ROLES, Trial
from pytest_codeprobe.sandboxes.patch import find_git
from pytest_codeprobe.sandboxes.sweep import is_private
from pytest_codeprobe.sandboxes.tools import run_tool
from pytest_codeprobe.text import one_line

_NEVER = frozenset((".codeprobe", ".pytest_cache"))  #: runs, proofs; parsed tasks
_RUN_DIR = ("plan.json", "events.ndjson")  #: a folder that holds these is a run directory, wherever the user put it
_GIT_SECONDS = 120.0
#: a file beside the task that a command names
_BESIDE = re.compile(r"\$(?:TASK_DIR|\{TASK_DIR\})[\"']?/([\w.@+-]+(?:/[\w.@+-]+)*)")


def what_grades(trial: Trial) -> tuple[str, ...]:
    """Files and folders that the agent must not see: the task file, hidden tests, solution, reference.

    And what the commands that grade name as `$TASK_DIR/…`, but only where a template holds the task file itself: other templates
    were made for the agent, and a command may well compare with a file of one.
    """
    hidden = [ref.path for ref in trial.manifest if ref.role in HIDDEN_ROLES]
    folder = os.path.dirname(trial.task_file)
    if any(_holds(source.path, [trial.task_file]) for source in trial.sandbox.template_sources if source.path):
        hidden += [os.path.join(folder, name) for name in _named(trial) if ".." not in name.split("/")]
    return tuple(hidden)


def graders_files(trial: Trial) -> tuple[str, ...]:
    """Files and folders that criteria look into: hidden tests, schemas, the reference, what the task's commands name as `$TASK_DIR/…`."""
    found = [ref.path for ref in trial.manifest if ref.role in ("hidden", "schema", "reference")]
    folder = os.path.dirname(trial.task_file)
    return tuple(dict.fromkeys([*found, *(os.path.join(folder, name) for name in _named(trial))]))


def _named(trial: Trial) -> Iterator[str]:
    commands = [trial.solution.script] if trial.solution is not None and trial.solution.script is not None else []
    commands += [text for criterion in trial.criteria for text in criterion.values() if isinstance(text, str)]
    for command in commands:
        yield from _BESIDE.findall(command)


def below(hidden: Iterable[str], sources: Sequence[TemplateSource]) -> tuple[str, ...]:
    """Those that lie below a folder of a template, by their real paths, sorted: on them alone it depends what is laid out."""
    tops = [os.path.realpath(source.path) for source in sources if source.path is not None]
    real = {os.path.realpath(path) for path in hidden} if tops else set()
    return tuple(sorted(path for path in real if any(path.startswith(top.rstrip("/") + "/") for top in tops)))


def _holds(top: str, hidden: Iterable[str]) -> bool:
    return any(os.path.realpath(path).startswith(os.path.realpath(top).rstrip("/") + "/") for path in hidden)


class LeftOut:
    """Of one template's folder. `top` and `hidden` are real paths.

    `commit`: the paths of all files, where it is a commit of the repository at `top` that is laid out: git ignores none of them.
    """

    def __init__(self, top: str, hidden: Sequence[str], *, commit: Collection[str] | None = None) -> None:
        inside = top.rstrip("/") + "/"
        self._top, self._commit = top, commit
        self._hidden = {path.removeprefix(inside) for path in hidden if path.startswith(inside)}
        self._ignored = _ignored(top) if self._hidden and commit is None else frozenset()
        for path in list(self._hidden):
            parents = path.split("/")[:-1]
            self._hidden.update("/".join([*parents[:depth], ".git"]) for depth in range(len(parents) + 1))

    def match(self, path: str, *, folder: bool) -> bool:
        """Whether the template leaves it out, with all that lies below it. `path`: relative to the folder, with `/`."""
        parent, _, name = path.rpartition("/")
        if name in _NEVER or path in self._hidden or path in self._ignored:
            return True
        if folder:
            return is_private(name) or all(self._is_there(f"{path}/{part}") for part in _RUN_DIR)
        above, _, cache = parent.rpartition("/")
        return cache == "__pycache__" and "/".join(filter(None, (above, f"{name.partition('.')[0]}.py"))) in self._hidden

    def _is_there(self, path: str) -> bool:
        return os.path.exists(os.path.join(self._top, path)) if self._commit is None else path in self._commit


def _ignored(top: str) -> frozenset[str]:
    """What git ignores below a folder of a repository; a folder that is ignored as a whole stands for all that is in it."""
    place = Path(top)
    if not any((folder / ".git").exists() for folder in (place, *place.parents)):
        return frozenset()
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # the repository may belong to somebody else than who runs pytest, as in a container; no program of its configuration is started
    options = ["-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", top]
    argv = [find_git(), *options, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"]
    done = run_tool(argv, env=env, timeout=_GIT_SECONDS, stdout=PIPE)
    if done.status != 0:
        raise CodeprobeError(
            "SANDBOX_FAILED",
            f"git can't say what it ignores in {top!r}: {one_line(done.complaints.decode('utf-8', 'replace'), 300)}",
            remediation="Correct the repository, or name a folder of its own as the template.",
        )
    return frozenset(os.fsdecode(name).rstrip("/") for name in done.output.split(b"\0") if name)
