"""Programs that stand in for others: what is recorded of them, what they answer, and criterion cli_called."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pytest_codeprobe.criteria.cli.matching import fits, sort
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.clock import SystemClock
from pytest_codeprobe.model.config import SandboxConfig
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.invocations import CALLS_FILE, Facets, RecordedCli
from pytest_codeprobe.model.sandbox import Sandbox
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.trial import recorder as recorders
from pytest_codeprobe.trial.recorder import recording
from pytest_codeprobe.trial.standins import lay_calls
from tests.fake_grading import descriptors_kept
from tests.front_door import Project, scripted

FOREVER = time.monotonic() + 3600

# ---- what a call must have


@pytest.mark.parametrize(
    ("facets", "call", "fit"),
    [
        ({"verb": "pr create"}, "pr create x", True),
        ({"verb": "pr create"}, "--repo=a pr -v create", True),
        ({"verb": "pr create"}, "pr list create", False),
        ({"verb": "create"}, "recreate", False),
        ({"verb_any_of": ["pr", "pr create"], "positional": ["x"]}, "pr create x", True),
        ({"verb_any_of": ["pr list", "pr create"], "positional": ["x"]}, "pr list y x", False),
        ({"positional": ["a", "b"]}, "a b c", True),
        ({"positional": ["a", "b"]}, "a", False),
        ({"positional": []}, "a", True),
        ({"verb": "rm", "positional": ["p1"]}, "rm --yes p1", True),  # a switch takes no word away
        ({"verb": "rm", "positional": ["p1"], "flags": {"yes": {"present": True}}}, "rm --yes p1", True),
        ({"verb": "rm", "positional": ["p1"], "flags": {"force": {"equals": "x"}}}, "rm --force x p1", True),
        ({"verb": "rm", "positional": ["p1"], "value_flags": ["--region"]}, "rm --region eu p1", True),
        ({"verb": "rm", "positional": ["p1"]}, "rm --region eu p1", False),
        ({"verb": "rm", "positional": ["p1"], "ignore_flags": ["v"]}, "-v rm -v p1", True),
        ({"positional": ["-1", "-"]}, "-1 -", True),
        ({"positional": ["--x"]}, "-- --x", True),
        ({"flags": {"version": "14"}}, "--version 14", True),
        ({"flags": {"--version": "14"}}, "--version=14", True),
        ({"flags": {"version": "14"}}, "--version 15", False),
        ({"flags": {"version": "14"}}, "x", False),
        ({"flags": {"output": {"equals": "json", "aliases": ["o"]}}}, "-ojson", True),
        ({"flags": {"output": {"equals": "json", "aliases": ["o"]}}}, "-o json", True),
        ({"flags": {"output": {"equals": "a=b", "aliases": ["-D"]}}}, "-Da=b", True),
        ({"flags": {"yes": {"absent": True, "aliases": ["y"]}}}, "-fy", False),
        ({"flags": {"yes": {"absent": True, "aliases": ["y"]}}}, "-f", True),
        ({"flags": {"yes": {"present": True, "aliases": ["y"]}}}, "-fy", True),
        ({"flags": {"verbose": {"present": True}}}, "-verbose", True),
        ({"flags": {"title": {"contains": "bug"}}}, "--title a-bug-b", True),
        ({"flags": {"label": {"any_of": ["a", "b"]}}}, "--label c --label b", True),
        ({"flags": {"label": {"matches_regex": "^B$", "flags": ["IGNORECASE"]}}}, "--label c --label b", True),
        ({"flags": {"label": {"matches_regex": "^B$"}}}, "--label b", False),
        ({}, "anything", True),
    ],
)
def test_what_fits(facets: dict[str, Any], call: str, fit: bool) -> None:
    assert fits(Facets.model_validate(facets), call.split(), FOREVER) is fit


TOKENS = st.lists(st.text(alphabet="ab-=1 ", max_size=5), max_size=8)


@given(TOKENS)
def test_no_argument_vanishes(argv: list[str]) -> None:
    """Each word and each letter of a flag is somewhere; without a value flag each argument that is no flag is a word, in its order."""
    found = sort(argv, valued=frozenset(), known=frozenset())
    head = argv[: argv.index("--")] if "--" in argv else argv
    tail = argv[len(head) + 1 :]
    plain = [a for a in head if not a.startswith("-")]
    assert [w for w in found.words if not w.startswith("-")] == [*plain, *(t for t in tail if not t.startswith("-"))]
    assert all(any(name in arg for arg in head) for name in found.flags)
    assert len(found.words) + sum(map(len, found.flags.values())) >= len(head) + len(tail)


@given(TOKENS, st.integers(0, 8))
def test_a_switch_that_is_ignored_may_stand_anywhere(argv: list[str], at: int) -> None:
    facets = Facets(ignore_flags=("quiet",), positional=tuple(sort(argv, valued=frozenset(), known=frozenset()).words))
    head = argv.index("--") if "--" in argv else len(argv)
    at = min(at, head)
    assert fits(facets, [*argv[:at], "--quiet", *argv[at:]], FOREVER)


@given(st.text(alphabet="ab", min_size=1), st.text(alphabet="ab-= ", min_size=1))
def test_both_ways_to_give_a_value_are_one(name: str, value: str) -> None:
    facets = Facets.model_validate({"flags": {f"x{name}": value}})
    assert fits(facets, [f"--x{name}={value}"], FOREVER)
    assert fits(facets, [f"--x{name}", value], FOREVER)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"tool": "bash"}, "no shell, interpreter or git"),
        ({"tool": "python3.12"}, "no shell, interpreter or git"),
        ({"tool": "node"}, "no shell, interpreter or git"),
        ({"tool": "git"}, "no shell, interpreter or git"),
        ({"tool": "../gh"}, "the name of a program"),
        ({"tool": ""}, "the name of a program"),
        ({}, "tool"),
        ({"tool": "gh", "exit_code": 256}, "255"),
        ({"tool": "gh", "responses": [{"when": {}}]}, "'when' needs"),
        ({"tool": "gh", "responses": [{"when": {"verb": "a", "verb_any_of": ["b"]}}]}, "not both"),
        ({"tool": "gh", "responses": [{"when": {"verb": " "}}]}, "blank"),
        ({"tool": "gh", "responses": [{"when": {"flags": {"a": {}}}}]}, "exactly one"),
        ({"tool": "gh", "responses": [{"when": {"flags": {"a": {"equals": "x", "present": True}}}}]}, "exactly one"),
        ({"tool": "gh", "responses": [{"when": {"flags": {"a": {"matches_regex": "("}}}}]}, "not a regular expression"),
        ({"tool": "gh", "responses": [{"when": {"flags": {"a": {"equals": "x", "flags": ["DOTALL"]}}}}]}, "belong to"),
        ({"tool": "gh", "responses": [{"when": {"flags": {"--": "x"}}}]}, "needs a name"),
        ({"tool": "gh", "responses": [{"when": {"flags": {"a": True}}}]}, "put it in quotes"),
        ({"tool": "gh", "responses": [{"when": {"log": "x"}}]}, "Extra inputs"),
    ],
)
def test_what_can_not_stand_in_is_refused_at_load(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        SandboxConfig.model_validate({"record_cli": [entry]})
    with pytest.raises(ValidationError, match="twice"):
        SandboxConfig.model_validate({"record_cli": [{"tool": "gh"}, {"tool": "gh"}]})


# ---- the recorder

GH = {
    "tool": "gh",
    "exit_code": 4,
    "stderr": "offline\n",
    "responses": [
        {"when": {"verb": "pr", "flags": {"slow": {"matches_regex": "(a|aa)+$"}}}, "stdout": "never\n"},
        {"when": {"verb": "pr view"}, "stdout": "é #1\n", "stderr": "note\n"},
        {"when": {"verb": "pr"}, "exit_code": 3},
    ],
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A private folder whose path is longer than a socket's may be."""
    folder = tmp_path / ("deep" * 30)
    folder.mkdir(parents=True)
    return folder


@contextlib.contextmanager
def recorded(place: Path, *tools: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """While the programs can be called; afterwards the list holds the log."""
    trial = SimpleNamespace(sandbox=SandboxConfig.model_validate({"record_cli": tools or [GH]}))
    context = SimpleNamespace(python=sys.executable, clock=SystemClock())
    log: list[dict[str, Any]] = []
    with recording(cast(Trial, trial), cast(Sandbox, SimpleNamespace(root=place)), cast(Context, context)) as calls:
        yield log
    content = calls()
    assert content is not None
    log += map(json.loads, content.splitlines())


def test_a_listener_that_does_not_end_holds_up_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(recorders, "_LAST_SECONDS", 0.01)
    monkeypatch.setattr(recorders.Recorder, "_drain", lambda _: over.wait(60))
    try:
        with pytest.raises(CodeprobeError, match="can't be taken in") as caught, recorded(tmp_path):
            pass
        assert caught.value.code == "SANDBOX_FAILED"
    finally:
        over.set()


def call(place: Path, *argv: str | bytes, **more: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([place / "cli" / "bin" / "gh", *argv], capture_output=True, timeout=60, check=False, cwd="/", **more)


def send(place: Path, data: bytes, *, wait: bool = True) -> bytes:
    """Write into the socket what no shim would."""
    folder = os.open(place / "cli", os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(f"/proc/self/fd/{folder}/calls")
        channel.settimeout(30)
        os.close(folder)
        with contextlib.suppress(OSError):
            channel.sendall(data)
            if wait:
                return channel.recv(1 << 16)
    return b""


def told(*parts: str) -> bytes:
    data = "\0".join(parts).encode()
    return b"%08d" % len(data) + data


def test_calls_are_answered_and_recorded(place: Path) -> None:
    with recorded(place) as log:
        done = call(place, "pr", "view", "--json", "", "a b\n'", b"\xff", "é")
        assert (done.returncode, done.stdout.decode(), done.stderr) == (0, "é #1\n", b"note\n")
        assert (call(place, "pr", "list").returncode, call(place).returncode, call(place).stderr) == (3, 4, b"offline\n")
        big = "x" * 100_000
        assert call(place, "issue", big).returncode == 4
        with open("/dev/full", "wb") as full:  # noqa: PTH123
            shim = subprocess.run([place / "cli/bin/gh", "pr", "view"], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
        assert (shim.returncode, shim.stderr) == (0, b"")
    assert [(entry["tool"], entry["exit"], entry["rule"]) for entry in log[:3]] == [("gh", 0, 1), ("gh", 3, 2), ("gh", 4, None)]
    assert log[0]["argv"] == ["pr", "view", "--json", "", "a b\n'", "\udcff", "é"]
    assert log[0]["ts"].endswith("Z")
    assert log[4]["argv"] == ["issue", big]
    assert len(log) == 6
    late = call(place, "pr")  # nobody listens any more: it fails, and is heard by nobody
    assert (late.returncode, late.stdout, b"can't be used" in late.stderr) == (1, b"", True)


def test_hostile_writers(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "MATCHING", 0.05)
    threads = threading.active_count()
    with descriptors_kept():
        with recorded(place) as log:
            send(place, b"hello", wait=False)
            for junk in (b"\0" * 100, b"99999999", b"-0000001", b"{}\n" * 1000, told("rm", "-rf"), told(""), b"00000000"):
                assert send(place, junk) == b""
            half = [send(place, told("gh", "half")[:-1], wait=False) for _ in range(3)]
            assert half == [b""] * 3
            assert send(place, told("gh", "pr", "--slow", "a" * 300 + "!")).startswith(b"4 ")  # its expression takes for ever
            assert send(place, told("gh", "x" * 3_000_000)).startswith(b"4 ")
            send(place, told("gh", "unheard"), wait=False)
            opened = [socket.socket(socket.AF_UNIX) for _ in range(20)]
            folder = os.open(place / "cli", os.O_RDONLY)
            for channel in opened:  # these stay, and say nothing
                channel.connect(f"/proc/self/fd/{folder}/calls")
            os.close(folder)
            assert call(place, "pr", "view").returncode == 0
        for channel in opened:
            channel.close()
    assert threading.active_count() == threads
    assert [entry["argv"][0] for entry in log] == ["pr", "x" * 1000, "unheard", "pr"]
    assert log[1]["truncated"] is True
    assert not (place / "cli" / "calls").exists()


def test_a_flood_of_calls_is_bounded_and_counted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "MAX_LOG", 5000)
    monkeypatch.setattr(recorders, "MAX_CONNECTIONS", 4)
    with recorded(place) as log:
        callers = [threading.Thread(target=lambda: [send(place, told("gh", "pr")) for _ in range(50)]) for _ in range(6)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(60)
        assert send(place, told("gh", "pr")).startswith(b"3 ")
    assert len(log[:-1]) + log[-1]["lost"] == 301
    assert len(log) < 60


def test_a_caller_that_never_ends_is_dropped(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "PATIENCE", 0.05)
    with recorded(place) as log:
        assert send(place, told("gh", "half")[:-1]) == b""  # closed by the other side
    assert log == []


def test_what_was_sent_before_the_end_counts(place: Path) -> None:
    with recorded(place) as log:
        for number in range(20):
            send(place, told("gh", "pr", str(number)), wait=False)
    assert sorted(int(entry["argv"][1]) for entry in log) == list(range(20))


def test_a_place_that_is_taken_is_an_error(place: Path) -> None:
    (place / "cli").write_text("")
    with descriptors_kept(), pytest.raises(CodeprobeError, match=r"SANDBOX_FAILED: sandbox\.record_cli"), recorded(place):
        pass


def test_where_nothing_may_be_executed_no_real_program_is_called(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(CodeprobeError, match="not mounted noexec"), recorded(place):
        pass


@pytest.mark.parametrize("planted", ["nothing", "link", "file", "folder"])
def test_the_log_is_laid_whatever_is_in_its_place(tmp_path: Path, planted: str) -> None:
    workspace, elsewhere = tmp_path / "workspace", tmp_path / "elsewhere"
    workspace.mkdir()
    elsewhere.mkdir()
    if planted == "link":
        (workspace / "cli_mocks").symlink_to(elsewhere)
    elif planted == "file":
        (workspace / "cli_mocks").write_text("mine")
    elif planted == "folder":
        (workspace / CALLS_FILE / "sub").mkdir(parents=True)
    lay_calls(workspace, b"{}\n")
    assert (workspace / CALLS_FILE).read_bytes() == b"{}\n"
    assert not list(elsewhere.iterdir())


# ---- in a run


@pytest.mark.parametrize("driver", ["tempdir", "bubblewrap"])
def test_in_a_run(project: Project, driver: str) -> None:
    """Under scripted, command and oracle: answers, log in the grading copy and the run dir, stand-ins of the task's own."""
    mock = {
        "path": "mocks/deploy",
        "content": '#!/bin/sh\necho "{\\"tool\\": \\"deploy\\", \\"argv\\": [\\"$1\\"]}" >> mocks/calls.jsonl\n',
    }
    sandbox = {
        "record_cli": [GH],
        "mock_path_dirs": ["mocks", "missing"],
        "template_sources": [{"type": "starter_files", "files": [mock]}],
    }
    work = "gh pr view > view.txt; gh pr list; echo $? > status.txt; deploy prod; mkdir -p cli_mocks; echo forged > cli_mocks/calls.jsonl"
    criteria = [
        {"type": "cli_called", "tool": "gh", "verb": "pr view", "max_count": 1},
        {"type": "cli_called", "log": "mocks/calls.jsonl", "tool": "deploy", "positional": ["prod"]},
        {"type": "file_contains", "path": "view.txt", "includes": ["#1"]},
        {"type": "file_contains", "path": "status.txt", "includes": ["3"]},
        {"type": "run_command", "command": "deploy grader; echo forged > cli_mocks/calls.jsonl"},
        {"type": "file_contains", "path": CALLS_FILE, "includes": ['"argv": ["pr", "view"]'], "excludes": ["forged"], "pass_threshold": 1},
    ]
    fields: dict[str, Any] = {"sandbox": sandbox, "success_criteria": criteria, "solution": {"script": work}}
    project.task("s", agent=scripted({"run": work}), **fields)
    project.task("c", agent={"type": "command", "command": ["sh", "-c", work]}, **fields)
    project.task("o", agent={"type": "oracle"}, **fields)
    wrong = [{"type": "cli_called", "tool": "glab"}]
    project.task("w", agent=scripted(), sandbox={"record_cli": [GH]}, success_criteria=wrong)
    run = project.run(*(f"tasks/{name}.yaml" for name in "scow"), f"--codeprobe-driver={driver}")
    assert run.statuses == {"s": "passed", "c": "passed", "o": "passed", "w": "error"}
    assert "sandbox.record_cli has no 'glab', only gh" in run.output
    for name in "sco":
        log = [json.loads(text) for text in (run.trial(name) / "attempt-1" / "calls.jsonl").read_text().splitlines()]
        assert [(entry["argv"], entry["exit"], entry["rule"]) for entry in log] == [(["pr", "view"], 0, 1), (["pr", "list"], 3, 2)]
        changed = run.result(name)["changed_files"]
        assert "M mocks/deploy" not in changed
        kept = run.trial(name) / "artifacts"
        assert (kept / CALLS_FILE).read_text() == "forged\n"  # what the agent left, as it left it
    assert [c["verdict"] for c in run.result("o")["criteria"]][:2] == ["left out"] * 2


def test_recorded_entries_are_equal_after_json() -> None:
    entry = RecordedCli.model_validate(GH)
    assert RecordedCli.model_validate_json(entry.model_dump_json()) == entry
    config = SandboxConfig.model_validate({"record_cli": [GH]})
    assert SandboxConfig.model_validate(config.model_dump(mode="json", exclude_unset=True)) == config
