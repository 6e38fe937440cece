"""What collection needs to know of a task file, without the models: standard library only.

A file is read and expanded by the loader once; from then on its trials are text, in memory as in the index (`tasks/index.py`),
and become models when they run. So a trial is the same whether its file was loaded just now or in an earlier run, and ten
thousand of them that wait cost little.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pytest_codeprobe.tasks.paths import Sought

if TYPE_CHECKING:
    from pytest_codeprobe.model.trial import Trial


#: a waiting trial, see trial_text(); a view of it where it stands in an index
Text: TypeAlias = "bytes | memoryview | Trial"


class Head(NamedTuple):
    """What pytest must know of a trial before it runs. JSON values only: lists where the model has tuples."""

    name: str  #: of its item within the file: `fix-parser`, `fix-parser[sonnet]`
    task_id: str
    line: int  #: of the task in its file, 1-based
    agent: str | None  #: None: nobody has chosen one
    tags: list[str]
    fixtures: list[str]
    skip: str | None  #: reason
    xfail: str | None  #: reason
    expect: str = "pass"  #: `fail`: of a task tagged `canary` that must fail
    sampled: bool = True  #: False: its row is left out


class Fault(NamedTuple):
    """What is wrong with a task that is valid by itself."""

    task_id: str
    line: int
    error: Exception


class Reference(NamedTuple):
    """A file or folder that a task file names."""

    sought: Sought
    path: str  #: what it led to, absolute
    content: str | None = None  #: digest of a file that became part of the trial


class Resolved(NamedTuple):
    """How a task's settings came to be under one variant. JSON values only."""

    task_id: str
    variant_id: str | None
    settings: dict[str, Any]  #: the layers as one; values of variables and the like are left out
    origins: dict[str, list[str | None]]  #: of each leaf, dotted: the layer, and the file that it stands in


@dataclass(slots=True)
class FileHeads:
    """A task file as collection sees it."""

    holds_tasks: bool = False
    heads: list[Head] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)  #: for each head
    references: list[Reference] = field(default_factory=list)
    resolved: bytes | memoryview = b"[]"  #: how settings came to be: JSON, a list of Resolved, read where lock.json is written
    warnings: list[str] = field(default_factory=list)
    fault: Fault | None = None  #: behind the tasks that `heads` tells of


def trial_text(trial: Trial) -> Text:
    """The trial without its node id, as one line of JSON; the trial itself where JSON can't hold what is in it."""
    agent, docker = trial.agent, trial.sandbox.docker
    free = (trial.criteria, trial.metadata, agent.model_extra, agent.mcp_servers, agent.plugins, docker and docker.model_dump())
    try:
        json.dumps(free, allow_nan=False)  # the models would make null of an infinite number
        return trial.model_dump_json(exclude={"node_id"}, exclude_unset=True).encode()
    except (TypeError, ValueError):  # also for half a surrogate pair, from the name of a file that is no UTF-8
        return trial


def trial_of(text: Text, node_id: str) -> Trial:
    """The inverse of trial_text()."""
    from pytest_codeprobe.model.trial import Trial

    if isinstance(text, Trial):
        return text.model_copy(update={"node_id": node_id})
    return Trial.model_validate_json(b'{"node_id":%s,%s' % (json.dumps(node_id).encode(), text[1:]))


def metadata_of(text: Text) -> Mapping[str, Any]:
    """The metadata of a waiting trial, without its model."""
    if isinstance(text, bytes | memoryview):
        found = json.loads(bytes(text)).get("metadata") or {}
        return found if isinstance(found, dict) else {}
    return text.metadata


def left_out_head(name: str, task_id: str, line: int) -> Head:
    """The head of a trial whose row is left out: it has no text."""
    return Head(name, task_id, line, None, [], [], None, None, sampled=False)


def head_of(trial: Trial, fixtures: tuple[str, ...]) -> Head:
    """The head of a trial whose node id is no more than its name."""
    return Head(
        trial.node_id, trial.task_id, trial.line, trial.agent.type, [*trial.tags], [*fixtures], trial.skip, trial.xfail, trial.expect
    )
