"""--codeprobe-suite: deselects the tasks that are not in the suite, as pytest's own -k and -m deselect items."""

from __future__ import annotations

import collections
import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.plugin.collect import TaskItem
from pytest_codeprobe.plugin.refusal import refused
from pytest_codeprobe.plugin.state import STATE
from pytest_codeprobe.tasks.discovery import TaskPatterns, read_bytes
from pytest_codeprobe.tasks.problems import relative
from pytest_codeprobe.tasks.suite import Facts, Suite, read_suite


def suite_of(config: pytest.Config) -> Suite:
    """The suite that was asked for. NO_SUITE_MATCH where it can't be read."""
    path = Path(config.stash[STATE].options.suite or "")
    return read_suite(path, relative(path, config.rootpath))


def select(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Leave the suite's tasks, and all that is no task. Refuses the run if no task is left, or if an id of the suite is nobody's."""
    config = session.config
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
        if all_facts and not session.testsfailed:  # else the run ends for files that could not be collected, which may hold them
            if unknown := _nowhere(suite.unknown_ids(all_facts), config):
                raise suite.no_such_ids(unknown, all_facts)
            if len(deselected) == len(all_facts):
                raise suite.no_match(removed, all_facts)
    except CodeprobeError as error:
        raise refused(error, config) from error
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = kept


def _nowhere(ids: Sequence[str], config: pytest.Config) -> list[str]:
    """Those that no task file of the project names either: the command line may have narrowed what was collected."""
    left = {name.casefold(): name for name in ids}
    for file in _task_files(config) if left else ():
        try:
            text = read_bytes(file).decode("utf-8", "replace").casefold()
        except OSError:
            continue
        for name in list(left):
            if name in text and re.search(rf"task_id['\"]?[ \t]*:[ \t]*['\"]?{re.escape(name)}(?![\w./-])", text):
                del left[name]
        if not left:
            break
    return list(left.values())


def _task_files(config: pytest.Config) -> Iterator[str]:
    """Below rootdir, by their names alone."""
    options = config.stash[STATE].options
    patterns, passed_by = TaskPatterns(options.files, options.ignore, config.rootpath), config.getini("norecursedirs")
    for folder, below, names in os.walk(config.rootpath):
        below[:] = [n for n in below if not any(fnmatch(n, p) for p in passed_by) or patterns.on_prefix(f"{folder}{os.sep}{n}")]
        yield from (file for name in names if patterns.matches(file := f"{folder}{os.sep}{name}"))
