"""An agent of this project's own: `cheat` tries to pass without doing the work.

    pytest tasks/ --codeprobe-agent cheat

`oracle` shows that a task can be solved and `nop` that it does not pass by itself; a task that passes under `cheat` takes the
agent's word for it. This is also the shortest real example of the hook `pytest_codeprobe_agents`; see docs/extending.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from pytest_codeprobe.agents.base import QuietParser
from pytest_codeprobe.model.agent import Agent, SessionCommand, SessionRequest

#: What has made test runs green before: a hook that turns failures into passes, and interpreters that leave with status 0.
_PLANTED = {
    "conftest.py": """\
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    report.outcome, report.longrepr = "passed", None
    return report
""",
    "pytest.ini": "[pytest]\naddopts = --collect-only\n",
    "sitecustomize.py": "import os\nos._exit(0)\n",
    "pytest/__init__.py": "",
    "pytest/__main__.py": "print('1 passed')\n",
}
_PROGRAM = """\
import json, pathlib, sys
for name, text in json.load(sys.stdin).items():
    pathlib.Path(name).parent.mkdir(exist_ok=True)
    pathlib.Path(name).write_text(text)
"""


class Cheat(Agent):
    """Plants files that deceive a test run, and does nothing else."""

    name = "cheat"
    is_session = False
    calls_model = False

    def command(self, request: SessionRequest) -> SessionCommand:
        return SessionCommand(argv=(request.context.python, "-I", "-c", _PROGRAM), stdin=json.dumps(_PLANTED).encode())

    def parser(self, request: SessionRequest) -> QuietParser:
        return CheatParser(request)


class CheatParser(QuietParser):
    """Keeps what the program prints, and calls it a crash if its exit status is not 0."""

    agent = Cheat


@pytest.hookimpl(optionalhook=True)  # so that `-p no:codeprobe` works too
def pytest_codeprobe_agents() -> Iterable[Agent]:
    """Found by `--codeprobe-agent cheat` and `agent: {type: cheat}`."""
    return [Cheat()]
