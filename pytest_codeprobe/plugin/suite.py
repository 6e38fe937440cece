"""--codeprobe-suite: deselects the tasks that are not in the suite, as pytest's own -k and -m deselect items."""

from __future__ import annotations

import collections
from pathlib import Path

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.plugin.collect import TaskItem
from pytest_codeprobe.plugin.refusal import refused
from pytest_codeprobe.plugin.state import STATE
from pytest_codeprobe.tasks.problems import relative
from pytest_codeprobe.tasks.suite import Facts, Suite, read_suite


def suite_of(config: pytest.Config) -> Suite:
    """The suite that was asked for. NO_SUITE_MATCH where it can't be read."""
    path = Path(config.stash[STATE].options.suite or "")
    return read_suite(path, relative(path, config.rootpath))


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the suite's tasks, and all that is no task. Refuses the run if no task is left."""
    try:
        suite = suite_of(config)
        kept, deselected, all_facts = list[pytest.Item](), list[pytest.Item](), list[Facts]()
        removed = collections.Counter[str]()
        for item in items:
            if not isinstance(item, TaskItem):
                kept.append(item)
                continue
            facts = Facts(task_id=item.head.task_id, tags=item.head.tags, metadata=item.metadata if suite.needs_metadata else {})
            all_facts.append(facts)
            by = suite.leaves_out(facts)
            (kept if by is None else deselected).append(item)
            removed.update([by] if by is not None else [])
        if all_facts and len(deselected) == len(all_facts):
            raise suite.no_match(removed, all_facts)
    except CodeprobeError as error:
        raise refused(error, config) from error
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = kept
