"""What each test costs in processor time, its child processes included: a figure that a busy machine changes little.

It is the property `cpu_seconds` of each case of a JUnit file. `pytest --costs` lists the dearest files and tests at the end.
"""

from __future__ import annotations

import resource
from collections import defaultdict
from collections.abc import Generator

import pytest

NAME = "cpu_seconds"
SHOWN = 25  #: lines of each list


def spent() -> float:
    """CPU seconds, user and system, of this process and of all children that it has waited for."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


class Costs:
    """A plugin of this project's own test runs. Children that outlive the one that started them are not seen."""

    def __init__(self) -> None:
        self._began = 0.0
        self._files: dict[str, float] = defaultdict(float)
        self._tests: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self._began = spent()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            report.user_properties.append((NAME, f"{spent() - self._began:.2f}"))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties if report.when == "teardown" else []:
            if name == NAME:
                self._files[report.nodeid.partition("::")[0]] += float(str(value))
                self._tests[report.nodeid] += float(str(value))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        if config.getoption("costs"):
            for title, costs in (("files", self._files), ("tests", self._tests)):
                terminalreporter.section(f"dearest {title} of {sum(costs.values()):.0f} CPU seconds")
                for name, cost in sorted(costs.items(), key=lambda pair: -pair[1])[:SHOWN]:
                    terminalreporter.line(f"{cost:7.1f}  {name}")
