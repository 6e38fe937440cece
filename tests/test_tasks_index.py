"""The index of parsed tasks: what it may answer, when it must not, and that nothing in its file can do harm."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.tasks import index as module
from pytest_codeprobe.tasks.heads import FileHeads, Reference, Text, head_of, trial_of, trial_text
from pytest_codeprobe.tasks.index import Index, digest, fingerprint
from pytest_codeprobe.tasks.paths import Places, Sought
from tests.task_files import MINIMAL, expand_one, write

CONTENT = b"task_id: t\n"


def trial(root: Path, **changed: Any) -> Trial:
    return expand_one(root, MINIMAL).model_copy(update={"node_id": "t", **changed})


def found(*trials: Trial, references: list[Reference] | None = None) -> FileHeads:
    return FileHeads(
        holds_tasks=True,
        heads=[head_of(t, ("tmp_path",)) for t in trials],
        texts=[trial_text(t) for t in trials],
        references=references or [],
        warnings=["tasks/t.yaml:9:1: is no task and is left out"],
    )


def kept(folder: Path, *, name: str = "f") -> Index:
    index = Index(folder, name)
    index.read()
    return index


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the index."""
    (made := tmp_path / "cache").mkdir()
    return made


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(write(tmp_path / "tasks/t.yaml", CONTENT))


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def test_an_entry_comes_back_as_it_was(tmp_path: Path, folder: Path, file: str, places: Places) -> None:
    trials = [trial(tmp_path, task_id=name, tags=("a", "b:c"), skip="later", xfail="bad") for name in ("one", "two", "three")]
    index = kept(folder)
    index.put(file, CONTENT, found(*trials))
    index.write([file])
    back = kept(folder).get(file, CONTENT, places)
    assert back is not None
    assert (back.holds_tasks, back.heads, back.references, back.warnings, back.fault) == (
        True, found(*trials).heads, [], found().warnings, None
    )  # fmt: skip
    assert [trial_of(text, "tasks/t.yaml::t") for text in back.texts] == [
        t.model_copy(update={"node_id": "tasks/t.yaml::t"}) for t in trials
    ]  # fmt: skip
    assert kept(folder).get(file, CONTENT + b" ", places) is None
    assert kept(folder).get(file + "x", CONTENT, places) is None
    assert kept(folder, name="g").get(file, CONTENT, places) is None


def cut(content: bytes) -> bytes:
    return content[:-30]


def flip(content: bytes) -> bytes:
    place = content.index(b'"prompt"')
    return content[:place] + b'"promqt"' + content[place + 8 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "cut": cut,
    "flipped": flip,
    "of another release": lambda content: content.replace(b"index 2", b"index 1"),
    "another check": lambda content: content[:-8] + b"00000000",
    "no check": lambda content: content[:-9],
    "twice": lambda content: content + b"\n" + content,
    "noise": lambda _: bytes(range(256)) * 50,
    "pickle": lambda _: b"\x80\x04cos\nsystem\n",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_is_none_at_all_and_is_replaced(tmp_path: Path, folder: Path, file: str, places: Places, damage: str) -> None:
    index = kept(folder)
    index.put(file, CONTENT, found(trial(tmp_path)))
    index.write([file])
    (stored,) = folder.iterdir()
    stored.write_bytes(DAMAGES[damage](stored.read_bytes()))
    again = kept(folder)
    assert again.get(file, CONTENT, places) is None
    again.put(file, CONTENT, found(trial(tmp_path)))
    again.write([file])
    assert kept(folder).get(file, CONTENT, places) is not None


def test_nothing_new_writes_nothing(tmp_path: Path, folder: Path, file: str) -> None:
    kept(folder).write([file])
    assert list(folder.iterdir()) == []
    index = kept(folder)
    index.put(file, CONTENT, found(trial(tmp_path)))
    index.write([file])
    (stored,) = folder.iterdir()
    before = stored.stat().st_ino
    kept(folder).write([])
    assert stored.stat().st_ino == before


def test_entries_of_files_that_were_not_asked_for_stay_while_the_files_do(tmp_path: Path, folder: Path, places: Places) -> None:
    files = [str(write(tmp_path / f"tasks/{name}.yaml", CONTENT)) for name in "abc"]
    index = kept(folder)
    for file in files:
        index.put(file, CONTENT, found(trial(tmp_path)))
    index.write(files)
    Path(files[1]).unlink()
    index = kept(folder)
    index.put(files[2], b"new", found(trial(tmp_path)))
    index.write([files[2]])
    index = kept(folder)
    assert [index.get(file, CONTENT, places) is not None for file in files] == [True, False, False]
    assert index.get(files[2], b"new", places) is not None


@pytest.mark.parametrize("name", [b"tab\there", b"line\nhere", b"\xff\xfe", "ü".encode(), b"a b"])
def test_any_name_of_a_file(tmp_path: Path, folder: Path, places: Places, name: bytes) -> None:
    file = os.fsdecode(os.fsencode(tmp_path) + b"/" + name + b".yaml")
    write(Path(file), CONTENT)
    index = kept(folder)
    index.put(file, CONTENT, found(trial(tmp_path)))
    index.write([file])
    assert (kept(folder).get(file, CONTENT, places) is not None) == (b"\t" not in name and b"\n" not in name)


def edit_file(root: Path) -> None:
    write(root / "tasks/prompt.md", "else")


def remove_file(root: Path) -> None:
    (root / "tasks/prompt.md").unlink()


def become_folder(root: Path) -> None:
    remove_file(root)
    (root / "tasks/prompt.md").mkdir()


def become_link(root: Path) -> None:
    (root / "tasks/prompt.md").rename(root / "p.md")
    (root / "tasks/prompt.md").symlink_to("../p.md")


def lead_out(root: Path) -> None:
    remove_file(root)
    (root / "tasks/prompt.md").symlink_to(write(root.parent / f"{root.name}-outside.md", "do it"))


def leave_repository(root: Path) -> None:
    (root / ".git").rmdir()


@pytest.mark.parametrize(
    ("change", "still"),
    [(lambda _: None, True), (edit_file, False), (remove_file, False), (become_folder, False), (become_link, True), (lead_out, False),
     (leave_repository, False)],
)  # fmt: skip
def test_what_a_file_names_is_looked_at_again(tmp_path: Path, folder: Path, change: Callable[[Path], None], still: bool) -> None:
    root = tmp_path / "project"
    (root / ".git").mkdir(parents=True)
    write(root / "shared/x")
    prompt = write(root / "tasks/prompt.md", "do it")
    file = str(write(root / "tasks/t.yaml", CONTENT))
    references = [
        Reference(Sought("prompt.md", "file"), str(prompt), digest(b"do it")),
        Reference(Sought("../shared", "folder"), str(root / "shared")),
    ]
    index = kept(folder)
    index.put(file, CONTENT, found(trial(root), references=references))
    index.write([file])
    change(root)
    # as it would be for a task file whose rootdir is the folder below the repository's
    back = kept(folder).get(file, CONTENT, Places(root / "tasks"))
    assert (back is not None) == still
    if back is not None:
        assert back.references == references


def test_a_plugin_found_elsewhere_is_another_one(tmp_path: Path, folder: Path, file: str) -> None:
    (tmp_path / "plug").mkdir()
    reference = Reference(Sought("plug", "folder", anywhere=True, below_rootdir=True), str(tmp_path / "plug"))
    index = kept(folder)
    index.put(file, CONTENT, found(trial(tmp_path), references=[reference]))
    index.write([file])
    assert kept(folder).get(file, CONTENT, Places(tmp_path)) is not None
    (tmp_path / "tasks/plug").mkdir()  # beside the file goes first
    assert kept(folder).get(file, CONTENT, Places(tmp_path)) is None


def test_only_the_last_used_indexes_are_kept(tmp_path: Path, folder: Path, file: str) -> None:
    for number in range(10):
        index = kept(folder, name=f"f{number}")
        index.put(file, CONTENT, found(trial(tmp_path)))
        index.write([file])
        for stored in folder.iterdir():  # as if each had been a minute ago
            os.utime(stored, ns=(stored.stat().st_atime_ns, stored.stat().st_mtime_ns - 60_000_000_000))
        kept(folder, name="f0")  # used again and again
    assert sorted(stored.name for stored in folder.iterdir()) == ["tasks-f0", *(f"tasks-f{n}" for n in range(5, 10))]


def test_no_place_to_write(tmp_path: Path, file: str) -> None:
    index = kept(tmp_path / "none")
    index.put(file, CONTENT, found(trial(tmp_path)))
    index.write([file])
    assert not (tmp_path / "none").exists()


def test_no_room_leaves_the_old_index(tmp_path: Path, folder: Path, file: str, places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    index = kept(folder)
    index.put(file, CONTENT, found(trial(tmp_path)))
    index.write([file])
    index = kept(folder)
    index.put(file, b"new", found(trial(tmp_path)))

    def full(self: Index, seen: set[bytes]) -> Any:
        yield self._header
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Index, "_lines", full)
        index.write([file])
    assert len(list(folder.iterdir())) == 1
    assert kept(folder).get(file, CONTENT, places) is not None


WRITER = """
import sys
from pathlib import Path
from pytest_codeprobe.tasks.heads import FileHeads, Head
from pytest_codeprobe.tasks.index import Index
from pytest_codeprobe.tasks.paths import Places
folder, file, mine = Path(sys.argv[1]), sys.argv[2], sys.argv[3].encode()
head = Head("t", "t", 1, None, [], [], None, None)
for _ in range(50):
    index = Index(folder, "f")
    index.read()
    known = index.get(file, b"task_id: t\\n", Places(folder))
    assert known is None or (known.heads == [head] and bytes(known.texts[0]).strip(b"x") == b"{}"), known
    index.put(file, b"task_id: t\\n", FileHeads(holds_tasks=True, heads=[head], texts=[b"{}" + b"x" * 200_000 * int(mine)]))
    index.write([file])
"""


def test_many_writers_and_readers_at_once(folder: Path, file: str, places: Places) -> None:
    """Of different sizes, so that a half-written one would be seen."""
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, str(folder), file, str(number)]) for number in range(4)]
    assert [process.wait(120) for process in processes] == [0, 0, 0, 0]
    assert kept(folder).get(file, CONTENT, places) is not None
    assert [stored.name for stored in folder.iterdir()] == ["tasks-f"]


def test_a_fingerprint_of_all_that_loading_depends_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    facts: dict[str, Any] = {"rootdir": "/a", "options": {"agent": None, "on_command_line": ("agent",)}}
    known = fingerprint(facts)
    assert fingerprint(json.loads(json.dumps(facts))) == known
    assert fingerprint({**facts, "rootdir": "/b"}) != known
    for name in ("_code", "_releases"):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda: [("x.py", 1, 2)])
            assert fingerprint(facts) != known
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version", "3.99")
        assert fingerprint(facts) != known


def test_the_code_of_this_package_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = write(tmp_path / "package/tasks/index.py", "1")
    monkeypatch.setattr(module, "__file__", str(source))
    one = list(module._code())
    assert [name for name, _, _ in one] == ["tasks/index.py"]
    os.utime(source, ns=(1, 1))
    assert list(module._code()) != one
    assert any(name.lower().startswith("pydantic-") for name in module._releases())


def test_what_json_cannot_hold_is_no_text(tmp_path: Path, folder: Path, file: str, places: Places) -> None:
    odd: list[Trial] = [
        trial(tmp_path, criteria=({"type": "json_check", "expected": math.inf},)),
        trial(tmp_path, task_file="/a/\udcff.yaml"),
        trial(tmp_path, metadata={"x": [math.nan]}),
    ]
    for one in odd:
        text: Text = trial_text(one)
        assert text is one
        assert trial_of(text, "n") == one.model_copy(update={"node_id": "n"})
        index = kept(folder)
        index.put(file, CONTENT, found(one))
        index.write([file])
    assert list(folder.iterdir()) == []
    assert isinstance(trial_text(trial(tmp_path)), bytes)
