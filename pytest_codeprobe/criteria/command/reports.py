"""Test reports that a command wrote, as JUnit XML or TAP: which tests ran, and how each ended.

The command runs an agent's code, so a report is read as data from a stranger: bounded, without entities, without trust.
"""

from __future__ import annotations

import re
import xml.parsers.expat
from dataclasses import dataclass, field
from typing import Any, Literal

MAX_TESTS = 100_000  #: in one report: what a stranger writes must not fill the memory
MAX_LEVELS = 20  #: of subtests within each other
Outcome = Literal["passed", "failed", "skipped"]
_MAX_PROBLEMS = 100
_MAX_DIGITS = 9  # of a plan; Python refuses to read thousands
_TAP_POINT = re.compile(r"(?P<indent>\s*)(?P<word>not ok|ok)\b\s*(?P<number>\d+)?\s*(?:-\s*)?(?P<rest>.*)")
_TAP_DIRECTIVE = re.compile(r"(?:^|\s)(?<!\\)#\s*(?P<word>skip|todo)\S*(?:\s|$)", re.IGNORECASE)
_TAP_PLAN = re.compile(r"1\.\.(\d+)")
_TAP_BLOCK = re.compile(r"(?P<indent>\s+)(?P<mark>---|\.\.\.)\s*$")


class BadReport(Exception):
    """The file is not a report of its format."""


@dataclass(slots=True)
class ReportedTest:
    """One test of a report, under every name that a task may use for it."""

    names: tuple[str, ...]
    outcome: Outcome = "passed"


@dataclass(slots=True)
class Report:
    """What a report says. `problems` are faults of the run that belong to no single test."""

    tests: list[ReportedTest] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, test: ReportedTest) -> None:
        """Take a test; BadReport where there are more than MAX_TESTS."""
        if len(self.tests) >= MAX_TESTS:
            raise BadReport(f"it has more than {MAX_TESTS:,} tests")
        self.tests.append(test)

    def count(self, outcome: Outcome) -> int:
        """How many tests ended so."""
        return sum(t.outcome == outcome for t in self.tests)

    def problem(self, text: str) -> None:
        """Note a fault, up to a number that says enough."""
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(text)

    def not_passed(self, name: str) -> bool:
        """Whether the test is missing, or any test of that name did not pass."""
        outcomes = [t.outcome for t in self.tests if name in t.names]
        return not outcomes or any(o != "passed" for o in outcomes)


def read_junit(data: bytes) -> Report:
    """A JUnit report. BadReport for anything else, for a document type declaration (entities) and for a cut-off file."""
    report, open_test, is_root = Report(), False, True
    parser = xml.parsers.expat.ParserCreate()

    def refuse(*_: Any) -> None:
        raise BadReport("it has a document type declaration")

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal open_test, is_root
        if is_root and tag not in ("testsuites", "testsuite"):
            raise BadReport(f"its root is <{tag}>, not <testsuites> or <testsuite>")
        is_root = False
        if tag == "testcase":
            name, group = attributes.get("name", ""), attributes.get("classname", "")
            report.add(ReportedTest(tuple(dict.fromkeys((name, f"{group}.{name}", f"{group}::{name}", f"{group} {name}")))))
            open_test = True
        elif open_test and tag in ("failure", "error"):
            report.tests[-1].outcome = "failed"
        elif open_test and tag == "skipped" and report.tests[-1].outcome == "passed":
            report.tests[-1].outcome = "skipped"
        elif tag == "error":
            report.problem("an error outside of any test")

    def end(tag: str) -> None:
        nonlocal open_test
        if tag == "testcase":
            open_test = False

    parser.StartDoctypeDeclHandler, parser.StartElementHandler, parser.EndElementHandler = refuse, start, end
    try:
        parser.Parse(data, True)
    except (xml.parsers.expat.ExpatError, LookupError, ValueError) as error:  # the last two: an encoding that can't be used
        raise BadReport(f"it is not XML: {error}") from error
    return report


def read_tap(text: str) -> Report:
    """A TAP report (12 to 14, with indented subtests). A point that has subtests of its own is a suite, not a test.

    BadReport if there is no plan and no test point, and where it is too large or nested too deeply.
    """
    reader, block = _Tap(), None
    for line in text.splitlines():
        mark = _TAP_BLOCK.match(line)
        if block is not None:  # a YAML block of details: what stands in it is no test point
            if mark and mark["mark"] == "..." and mark["indent"] == block:
                block = None
        elif mark and mark["mark"] == "---":
            block = mark["indent"]
        else:
            reader.line(line)
    return reader.finish()


class _Tap:
    def __init__(self) -> None:
        self.report, self.planned, self.points = Report(), 0, 0
        # by indentation, tests whose suite, if they have one, comes after them; the least indented first
        self.waiting: list[tuple[int, list[ReportedTest]]] = []

    def line(self, line: str) -> None:
        if line.lstrip().lower().startswith("bail out!"):
            self.report.problem(line.strip())
        elif plan := _TAP_PLAN.match(line):
            if len(plan[1]) > _MAX_DIGITS:
                raise BadReport("its plan is no number of tests")
            self.planned += int(plan[1])
        elif point := _TAP_POINT.match(line):
            self.point(len(point["indent"]), _tap_test(point))

    def point(self, depth: int, test: ReportedTest) -> None:
        self.points += depth == 0
        children: list[ReportedTest] = []
        while self.waiting and self.waiting[-1][0] > depth:
            children = self.waiting.pop()[1] + children
        for child in children:
            if len(child.names) >= MAX_LEVELS:
                raise BadReport(f"its subtests are nested more than {MAX_LEVELS} levels deep")
            child.names += (f"{test.names[0]} > {child.names[-1]}",)
        if not children:
            self.report.add(test)
        elif test.outcome == "failed" and all(child.outcome != "failed" for child in children):
            self.report.problem(f"not ok: {test.names[0]}")
        if depth:
            if not self.waiting or self.waiting[-1][0] < depth:
                self.waiting.append((depth, []))
            self.waiting[-1][1].extend(children or [test])

    def finish(self) -> Report:
        if not (self.planned or self.points or self.report.problems):
            raise BadReport("it has neither a plan nor a test point")
        if self.points < self.planned:
            self.report.problem(f"{self.planned} tests were planned, {self.points} are reported")
        return self.report


def _tap_test(point: re.Match[str]) -> ReportedTest:
    rest = point["rest"]
    directive = _TAP_DIRECTIVE.search(rest)
    name = (rest[: directive.start()] if directive else rest).strip().replace("\\#", "#")
    if directive:  # an expected failure (todo) is no failure, but nothing was shown either
        return ReportedTest((name,), "skipped")
    return ReportedTest((name,), "passed" if point["word"] == "ok" else "failed")
