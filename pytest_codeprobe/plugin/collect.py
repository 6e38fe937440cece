"""Task files and tasks as nodes of pytest's collection tree."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.options import spelled
from pytest_codeprobe.plugin.discover import lines_of
from pytest_codeprobe.plugin.state import STATE
from pytest_codeprobe.tasks.heads import FileHeads, Head, Text, metadata_of, trial_of

if TYPE_CHECKING:
    from pytest_codeprobe.model.result import Attempt, TrialResult
    from pytest_codeprobe.model.trial import Trial
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.plugin.views import ScoreView
    from pytest_codeprobe.trial.run import TrialRun

_MAX_FAULTS = 20  #: of one file that are shown
NO_AGENT = "no agent chosen: pass --codeprobe-agent"
WITHOUT_AGENT = "no agent works on it, so there is nothing that could be left undone"  #: of a task that says so, in `codeprobe check`


def no_agent(live: Live) -> str:
    """The reason in the flags of the front door that was used."""
    return spelled(NO_AGENT, console=live.state.options.console)


class Unmet(Exception):
    """The verdict is fail: the only thing that the call phase of a task raises."""


def task_file(live: Live, path: Path, parent: pytest.Collector) -> TaskFile | None:
    """The node of a task file; None if it is none after all."""
    found = live.task_files.find(str(path))
    if isinstance(found, FileHeads) and not found.holds_tasks:
        if live.discovery is not None:
            live.discovery.not_tasks.add(str(path))
        return None
    node: TaskFile = TaskFile.from_parent(parent, path=path)
    node.live = live
    return node


class TaskFile(pytest.Module):
    """A task file. A Module, so that module-scoped fixtures resolve; never imported."""

    live: Live

    def _getobj(self) -> types.ModuleType:
        return types.ModuleType(self.path.stem)

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        try:
            found = self.live.task_files.trials(str(self.path))
        except CodeprobeError as error:
            if not self.live.is_fault_of_run(error):
                raise TaskError(error) from None
            return
        for head, text in zip(found.heads, found.texts, strict=True):
            yield self._item(head, text) if head.sampled else LeftOut.from_parent(self, name=head.name)

    def _item(self, head: Head, text: Text) -> TaskItem:
        closures = self.live.closures
        known = closures.known(self, head.fixtures)
        item: TaskItem = TaskItem.from_parent(
            self, name=head.name, callobj=_call(head.fixtures), head=head, text=text, live=self.live, **known
        )
        if not known:
            closures.note(self, head.fixtures, item)
        item.add_marker(self.live.marks.ours(task=head.task_id))
        for tag in head.tags:
            for mark in self.live.marks.of_tag(tag):
                item.add_marker(mark)
        item.extra_keyword_matches.update(head.tags)
        if item.skip_reason is not None:
            item.add_marker(pytest.mark.skip(reason=item.skip_reason))
        if head.xfail is not None:  # raises=: trouble of the harness is never expected
            item.add_marker(pytest.mark.xfail(reason=head.xfail, raises=Unmet))
        if head.expect == "fail":  # a pass makes the gate fall, which is said elsewhere: no strict ini makes a failure of it
            item.add_marker(pytest.mark.xfail(reason="expect: fail", raises=Unmet, strict=False))
        return item


class LeftOut(pytest.Item):
    """A trial whose row sampling has left out: there so that it can be told as deselected."""

    def runtest(self) -> None:
        """Where another plugin has selected it all the same."""
        pytest.skip("left out by sampling")

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take out what sampling and --codeprobe-tags leave out; ordinary tests stay."""
    from pytest_codeprobe.plugin.cases import case_of, mark_of

    live, options = config.stash[STATE].collecting(), config.stash[STATE].options
    tags, excluded = frozenset(options.tags), frozenset(options.exclude_tags)

    def leaves(item: pytest.Item) -> bool:
        if isinstance(item, LeftOut) or ((case := case_of(item)) is not None and case.trial is None):
            return True
        if not (tags or excluded) or not (isinstance(item, TaskItem) or mark_of(item) is not None):
            return False
        own = item.tags if isinstance(item, TaskItem) else live.cases.tags(item)
        return (bool(tags) and tags.isdisjoint(own)) or not excluded.isdisjoint(own)

    left = [item for item in items if leaves(item)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not leaves(item)]


class TaskError(pytest.Collector.CollectError):
    """A collection error that carries its code: a line for each fault of the file, as a compiler says them."""

    def __init__(self, error: CodeprobeError) -> None:
        super().__init__("\n".join(_faults(error)))
        self.error = error


def _faults(error: CodeprobeError) -> Iterator[str]:
    found = error.detail.get("errors", ())
    yield error.message
    yield from (f"{error.detail['file']}:{e['line']}:{e['column']}: {e['message']}" for e in found[1:_MAX_FAULTS])
    if len(found) > _MAX_FAULTS:
        yield f"… and {len(found) - _MAX_FAULTS} more"


def _call(fixtures: Sequence[str]) -> Callable[..., None]:
    def call(codeprobe_score: ScoreView) -> None:
        """The call phase only looks at the verdict: set-up has done the rest."""
        if not codeprobe_score.passed:
            raise Unmet

    return pytest.mark.usefixtures(*fixtures)(call) if fixtures else call


class HasTrial(Protocol):
    """What stands for a trial before it runs: a task's item, or a Python test with our marker."""

    @property
    def agent_name(self) -> str | None:
        """None: nobody has chosen one."""

    @property
    def task_file(self) -> str:
        """Absolute path."""

    @property
    def skip_reason(self) -> str | None:
        """Of the task."""

    @property
    def tags(self) -> Sequence[str]:
        """Of the task."""

    def make_trial(self) -> Trial:
        """What is to run."""


class TaskItem(pytest.Function):
    """One trial. Until it is asked for it is text: thousands wait at once."""

    def __init__(self, *, head: Head, text: Text, live: Live, **kw: Any) -> None:
        self.head, self.live = head, live
        self._text = text
        self._trial: Trial | None = None
        self.run: TrialRun | None = None
        self.record: TrialResult | None = None
        self.earlier: tuple[Attempt, ...] = ()  #: of the tries before a rerun
        self.why_again: str | None = None  #: what the last of them ended with
        self.ahead = False  #: `run` is a whole trial that a thread has been through, and pytest's set-up of this item is yet to come
        self.ran_ahead = False  #: the same, once that set-up has begun
        self.holds = False  #: the other threads wait until pytest has counted its failure
        super().__init__(**kw)
        self.node_id = self.nodeid  #: pytest-xdist may add a group to that

    @property
    def agent_name(self) -> str | None:
        return self.head.agent

    @property
    def task_file(self) -> str:
        return str(self.path)

    @property
    def skip_reason(self) -> str | None:
        return self.head.skip or (WITHOUT_AGENT if self.live.state.options.check and self.agent_name == "none" else None)

    @property
    def tags(self) -> Sequence[str]:
        return self.head.tags

    @property
    def trial(self) -> Trial:
        """What is to run."""
        if self._trial is None:
            self._trial = self.make_trial()
        return self._trial

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Of the task."""
        return metadata_of(self._text)

    def make_trial(self) -> Trial:
        """The same, not kept."""
        return trial_of(self._text, self.node_id)

    def setup(self) -> None:
        """Fixtures, but for a trial whose earlier result stands: no session is to be prepared."""
        if not self.is_kept:
            super().setup()

    def runtest(self) -> None:
        """Look at the verdict."""
        if not self.is_kept:
            super().runtest()
        elif self.record is not None and self.record.status != "passed":
            raise Unmet

    @property
    def is_kept(self) -> bool:
        """Whether --codeprobe-resume tells its earlier result again, and nothing runs."""
        resume = self.live.resume
        return resume is not None and resume.is_kept(self.trial.folder)

    def forget_trial(self) -> None:
        """It is over: pytest keeps its items to the end."""
        self._trial = None

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.head.line - 1, f"task: {self.name}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **kw: Any) -> Any:
        """No Python traceback for what is not Python's fault."""
        if self.record is not None and isinstance(excinfo.value, Unmet):
            from pytest_codeprobe.plugin.failure import failure_text, told

            text = failure_text(self.record, self.live.shown_run_dir())
            return told(self.record, excinfo, text, self.path, self.head.line)
        return super().repr_failure(excinfo, *args, **kw)


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Where no task was to run; else plugin/terminal.py tells it with the rest."""
    live = config.stash[STATE].live
    if live is not None and live.controller is None:
        for line in lines_of(live.collected()):
            terminalreporter.write_line(f"codeprobe: {line}")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Put the code on the report: it travels to the controller. What counts and tells of errors is loaded now, if it is not yet."""
    report = yield
    if report.failed:
        collector.config.stash[STATE].activate()
    error = getattr(getattr(report, "call", None), "excinfo", None)
    if isinstance(collector, TaskFile) and error is not None and isinstance(error.value, TaskError):
        wrong = error.value.error
        report.codeprobe = json.dumps(  # type: ignore[attr-defined]
            {"code": wrong.code, "message": wrong.message, "remediation": wrong.remediation, "detail": wrong.detail}, default=str
        )
    return report
