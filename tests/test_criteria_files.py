from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pytest_codeprobe.criteria import BUILTIN
from pytest_codeprobe.criteria.answer import AnswerContains
from pytest_codeprobe.criteria.base import MAX_FILE_BYTES, NotThere, inside, locate, read_text
from pytest_codeprobe.criteria.files import FileCheck, FileContains, FileExists, FileMatchesRegex
from pytest_codeprobe.model.criterion import NotApplicable
from tests.fake_grading import FakeGrading, write

KINDS: list[tuple[type[Any], dict[str, Any]]] = [
    (FileExists, {}),
    (FileContains, {"includes": ["x"]}),
    (FileMatchesRegex, {"pattern": "x"}),
    (FileCheck, {"includes": ["x"]}),
]


@pytest.fixture
def grading(tmp_path: Path) -> FakeGrading:
    made = FakeGrading(folder=tmp_path)
    write(made.workspace, {"a.txt": "one two\nthree\n", "sub/b.txt": "x"})
    return made


def make(kind: type[Any], **fields: Any) -> Any:
    return kind.model_validate({"type": kind.model_fields["type"].annotation.__args__[0], **fields})


def test_every_type_is_there_once() -> None:
    names = [kind.model_fields["type"].annotation.__args__[0] for kind in BUILTIN]  # type: ignore[union-attr]
    assert len(set(names)) == len(names)
    known = "file_exists file_contains file_matches_regex file_check json_check run_command pytest answer_contains "
    known += "classification_match cli_called command_executed command_not_executed "
    known += "command_order commands_efficiency tool_used skill_triggered limits"
    assert set(known.split()) == set(names)


@pytest.mark.parametrize(("kind", "fields"), KINDS)
@pytest.mark.parametrize("path", ["../a", "/etc/passwd", "a/../../b", "", "~/x", "a\0b", None, True])
def test_a_path_that_leaves_the_workspace_is_refused_at_load(kind: type[Any], fields: dict[str, Any], path: object) -> None:
    with pytest.raises(ValidationError):
        make(kind, path=path, **fields)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (FileContains, {}),
        (FileCheck, {}),
        (FileMatchesRegex, {"pattern": "("}),
        (FileMatchesRegex, {"pattern": "x", "flags": ["NOSUCH"]}),
        (FileMatchesRegex, {"pattern": "x", "flags": 2}),
        (FileCheck, {"patterns": [{"pattern": "["}]}),
        (FileCheck, {"patterns": [{"patern": "x"}]}),
        (FileExists, {"exists": "yes"}),
    ],
)
def test_what_makes_no_sense_is_refused_at_load(kind: type[Any], fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make(kind, path="a", **fields)


@pytest.mark.parametrize(
    ("path", "exists", "score"),
    [("a.txt", True, 1), ("a.txt", False, 0), ("sub", True, 1), ("nope", True, 0), ("nope", False, 1), ("a.txt/x", True, 0)],
)
def test_file_exists(grading: FakeGrading, path: str, exists: bool, score: float) -> None:
    assert make(FileExists, path=path, exists=exists).evaluate(grading).value == score


@pytest.mark.parametrize(
    ("includes", "excludes", "score"),
    [
        (["one", "three"], [], 1),
        (["one", "four"], [], 0.5),
        ([], ["four"], 1),
        (["one"], ["two"], 0.5),
        (["four"], ["five"], 0.5),
        (["ONE"], [], 0),
    ],
)
def test_file_contains(grading: FakeGrading, includes: list[str], excludes: list[str], score: float) -> None:
    assert make(FileContains, path="a.txt", includes=includes, excludes=excludes).evaluate(grading).value == score


@pytest.mark.parametrize(
    ("pattern", "flags", "must_match", "score"),
    [
        ("^three$", [], True, 0),
        ("^three$", ["MULTILINE"], True, 1),
        ("^THREE$", "re.M|re.I", True, 1),
        ("one.*three", ["s"], True, 1),
        ("four", [], False, 1),
        ("one", [], False, 0),
    ],
)
def test_file_matches_regex(grading: FakeGrading, pattern: str, flags: Any, must_match: bool, score: float) -> None:
    criterion = make(FileMatchesRegex, path="a.txt", pattern=pattern, flags=flags, must_match=must_match)
    assert criterion.evaluate(grading).value == score


@pytest.mark.parametrize("must_match", [True, False])
def test_a_missing_file_matches_nothing_and_is_no_success(grading: FakeGrading, must_match: bool) -> None:
    assert make(FileMatchesRegex, path="nope", pattern="x", must_match=must_match).evaluate(grading).value == 0


@pytest.mark.parametrize("must_match", [True, False])
def test_a_pattern_that_explodes_is_given_up(grading: FakeGrading, monkeypatch: pytest.MonkeyPatch, must_match: bool) -> None:
    monkeypatch.setattr("pytest_codeprobe.criteria.base.found.__defaults__", (0.2,))
    write(grading.workspace, {"bomb": "1,2,3,4,5,6,7,8,9,10," * 20 + "p"})
    score = make(FileMatchesRegex, path="bomb", pattern=r"^(.*?,){25}P", must_match=must_match).evaluate(grading)
    assert score.value == 0
    assert "took too long" in score.explanation


def test_file_check_is_the_mean_over_the_kinds_used(grading: FakeGrading) -> None:
    patterns = [{"pattern": "one"}, {"pattern": "two", "must_match": False}]
    score = make(FileCheck, path="a.txt", includes=["one"], patterns=patterns).evaluate(grading)
    assert score.value == 0.75
    assert "'two' matches" in score.explanation


def test_encodings(grading: FakeGrading) -> None:
    write(grading.workspace, {"u16": "grün".encode("utf-16"), "bom": b"\xef\xbb\xbfgr\xc3\xbcn", "bad": b"gr\xfcn\0"})
    assert read_text(grading.workspace, "u16") == "grün"
    assert read_text(grading.workspace, "bom") == "grün"
    assert read_text(grading.workspace, "bad") == "gr\ufffdn\0"


def _fifo_behind_link(workspace: Path) -> None:
    os.mkfifo(workspace / "g")
    (workspace / "f").symlink_to("g")


def _socket(workspace: Path) -> None:
    here = Path.cwd()
    os.chdir(workspace)  # a socket's path is at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("f")
    finally:
        os.chdir(here)


HOSTILE = {
    "link out": lambda w: (w / "f").symlink_to("/etc/passwd"),
    "link to the folder above": lambda w: (w / "f").symlink_to(w.parent / "secret"),
    "sibling with the workspace's name as prefix": lambda w: (w / "f").symlink_to(w.parent / "workspace-of-mine"),
    "loop": lambda w: (w / "f").symlink_to("f"),
    "dangling": lambda w: (w / "f").symlink_to("nowhere"),
    "device": lambda w: (w / "f").symlink_to("/dev/zero"),
}
UNREADABLE = {
    "fifo": lambda w: os.mkfifo(w / "f"),
    "link to a fifo": _fifo_behind_link,
    "folder": lambda w: (w / "f").mkdir(),
    "socket": _socket,
    "sparse giant": lambda w: os.truncate(os.open(w / "f", os.O_CREAT | os.O_RDWR), MAX_FILE_BYTES * 1000),
}


@pytest.mark.parametrize("shape", HOSTILE | UNREADABLE)
@pytest.mark.parametrize(("kind", "fields"), KINDS)
def test_nothing_but_regular_files_of_the_workspace_is_read(
    grading: FakeGrading, shape: str, kind: type[Any], fields: dict[str, Any]
) -> None:
    write(grading.folder, {"secret": "x", "workspace-of-mine": "x"})
    (HOSTILE | UNREADABLE)[shape](grading.workspace)
    score = make(kind, path="f", **fields).evaluate(grading)
    assert score.value == (1 if kind is FileExists and shape in UNREADABLE else 0)
    assert score.explanation.startswith("f ")
    if shape in HOSTILE:
        assert make(FileExists, path="f", exists=False).evaluate(grading).value == 1


def test_a_folder_that_leads_out_counts_as_not_there(grading: FakeGrading) -> None:
    (grading.workspace / "out").symlink_to("/etc")
    score = make(FileContains, path="out/passwd", includes=["root"]).evaluate(grading)
    assert score.value == 0
    assert "leaves the workspace" in score.explanation


def test_links_within_the_workspace_are_followed_also_where_the_workspace_is_reached_by_one(grading: FakeGrading, tmp_path: Path) -> None:
    (grading.workspace / "in").symlink_to("sub")
    (tmp_path / "alias").symlink_to(grading.workspace)
    assert read_text(tmp_path / "alias", "in/b.txt") == "x"


@given(st.text(max_size=12) | st.lists(st.sampled_from(["..", ".", "a", "/", "~", ""]), max_size=5).map("/".join))
def test_an_accepted_path_stays_inside(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    root = Path("/work/space")
    try:
        accepted = inside(path)
    except ValueError:
        return
    assert Path(os.path.normpath(root / accepted)).is_relative_to(root)


def test_locate_says_why(grading: FakeGrading) -> None:
    with pytest.raises(NotThere, match="nope does not exist"):
        locate(grading.workspace, "nope")


@pytest.mark.parametrize(
    ("fields", "score"),
    [
        ({"includes": ["42"]}, 1),
        ({"includes": ["42", "43"]}, 0.5),
        ({"excludes": ["42"]}, 0),
        ({"regex": r"(?i)ANSWER.*\d+"}, 1),
        ({"includes": ["42"], "regex": "no"}, 0.5),
    ],
)
def test_answer_contains(grading: FakeGrading, fields: dict[str, Any], score: float) -> None:
    grading.final_message = "The answer is 42."
    assert make(AnswerContains, **fields).evaluate(grading).value == score


def test_answer_contains_needs_a_session(grading: FakeGrading) -> None:
    criterion = make(AnswerContains, includes=["x"])
    assert criterion.needs_session
    with pytest.raises(NotApplicable):
        criterion.evaluate(grading)
    grading.final_message = ""
    assert criterion.evaluate(grading).value == 0


@pytest.mark.parametrize("fields", [{}, {"regex": "("}, {"includes": "42"}])
def test_answer_contains_is_checked_at_load(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make(AnswerContains, **fields)
