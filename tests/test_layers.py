"""Workspaces of layers over their template: the same as copies, in all that can be asked of them."""

# ruff: noqa: PTH101, PTH102, PTH103, PTH104, PTH108, PTH112, PTH114, PTH115, PTH120, PTH123, PTH211
# (names that are no text: bytes, so no Path objects)
from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.config import SandboxConfig
from pytest_codeprobe.sandboxes import mounts
from pytest_codeprobe.sandboxes.layers import LayeredBaseline
from pytest_codeprobe.sandboxes.overlaid import OverlaidWorkspace
from pytest_codeprobe.sandboxes.trees import empty_folder, remove_tree
from pytest_codeprobe.sandboxes.workspace import CopiedWorkspace, TemplateStore
from tests.unprivileged import unprivileged_argv

CAN_MOUNT = sys.platform == "linux" and mounts.layers_unusable(tempfile.gettempdir()) is None
needs_mounts = pytest.mark.skipif(not CAN_MOUNT, reason="needs the right to mount layers, which CI has")

TREE = {
    "a.txt": b"one\ntwo\n",
    "b.bin": bytes(range(256)),
    "pkg/__init__.py": b"",
    "pkg/mod.py": b"x = 1\n",
    "pkg/sub/deep.py": b"y = 2\n",
    "lib/z.py": b"z = 3\n",
}


def make_store(folder: Path) -> TemplateStore:
    source = folder / "source"
    for name, content in TREE.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    (source / "link").symlink_to("pkg/mod.py")
    (source / "a.txt").chmod(0o755)
    return TemplateStore(folder / "scratch")


def template_of(store: TemplateStore, folder: Path) -> Any:
    source = {"type": "template_dir", "path": str(folder / "source")}
    return store.get(SandboxConfig.model_validate({"template_sources": [source]}))


class Pair:
    """The same template as layers and as a copy, `self.spaces` and `self.folders`, with what is done to both."""

    def __init__(self, folder: Path, store: TemplateStore, *, idle: Callable[[], bool] = lambda: True) -> None:
        template = template_of(store, folder)
        self.top = Path(tempfile.mkdtemp(dir=folder))
        self.folders = [self.top / "layered" / "workspace", self.top / "copied" / "workspace"]
        for each in self.folders:
            each.mkdir(parents=True)
        (self.top / "layered" / "layers").mkdir()
        self.layered = OverlaidWorkspace(template, self.folders[0], self.top / "layered/baseline", self.top / "layered/layers", idle)
        self.copied = CopiedWorkspace(template, self.folders[1], self.top / "copied/baseline")
        self.spaces: Sequence[CopiedWorkspace] = (self.layered, self.copied)
        for space in self.spaces:
            space.lay_out()

    def do(self, operations: Sequence[tuple[Any, ...]]) -> None:
        for operation in operations:
            for folder in self.folders:
                apply(os.fsencode(folder), *operation)

    def snapshot(self) -> None:
        for space in self.spaces:
            space.snapshot()

    def changes(self) -> list[Any]:
        """What both say."""
        layered, copied = (list(space.changes()) for space in self.spaces)
        assert layered == copied
        return layered

    def patch(self) -> bytes:
        """What both write."""
        for space, folder in zip(self.spaces, self.folders, strict=True):
            space.write_diff(folder.parent / "diff.patch", max_file_bytes=10_000_000)
        layered, copied = ((folder.parent / "diff.patch").read_bytes() for folder in self.folders)
        assert layered == copied
        return layered

    def restore(self, paths: Sequence[str]) -> None:
        """In both, or in neither: a FIFO, say, can't be put back."""
        said: list[str] = []
        for space in self.spaces:
            try:
                space.restore(paths)
                said.append("")
            except CodeprobeError as error:
                said.append(error.message)
        assert said[0] == said[1]

    def same_trees(self, name: str) -> None:
        layered, copied = (listing(folder.parent / name) for folder in self.folders)
        assert layered == copied

    def close(self) -> None:
        assert list(self.layered.release()) == []
        assert mounts.below(str(self.top)) == []
        assert remove_tree(self.top) == []


@contextmanager
def paired(folder: Path, store: TemplateStore, **options: Any) -> Iterator[Pair]:
    pair = Pair(folder, store, **options)
    try:
        yield pair
    finally:
        pair.close()


def listing(top: Path) -> dict[bytes, tuple[Any, ...]]:
    """All of a tree but times, owners and what is in `.git`."""
    found: dict[bytes, tuple[Any, ...]] = {}
    for folder, folders, names in os.walk(os.fsencode(top)):
        for name in (*folders, *names):
            path = folder + b"/" + name
            info = os.lstat(path)
            content: Any = None
            if stat.S_ISLNK(info.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(info.st_mode):
                with open(path, "rb") as file:
                    content = file.read()
            found[os.path.relpath(path, os.fsencode(top))] = (info.st_mode, content)
        folders[:] = [name for name in folders if name != b".git"]
    return found


# ---- what sessions do; an operation that can't be done in one workspace can't be done in the other


def apply(top: bytes, what: str, path: bytes, *more: Any) -> None:
    place = top + b"/" + path
    with suppress(OSError):
        if what == "write":
            with suppress(OSError):
                os.makedirs(os.path.dirname(place))
            write(place, os.O_CREAT | os.O_TRUNC, more[0])
        elif what == "append":
            write(place, os.O_CREAT | os.O_APPEND, more[0])
        elif what == "chmod":
            os.chmod(place, more[0])
        elif what == "touch":
            os.utime(place, (1, 1))
        elif what == "open":
            os.close(os.open(place, os.O_WRONLY | os.O_NONBLOCK))
        elif what == "remove":
            shutil.rmtree(place) if os.path.isdir(place) and not os.path.islink(place) else os.unlink(place)
        elif what == "mkdir":
            os.mkdir(place)
        elif what == "rename":
            os.rename(place, top + b"/" + more[0])
        elif what == "link":
            os.symlink(more[0], place)
        elif what == "hard":
            os.link(place, top + b"/" + more[0])
        elif what == "fifo":
            os.mkfifo(place)


def write(place: bytes, how: int, content: bytes) -> None:
    fd = os.open(place, os.O_WRONLY | os.O_NONBLOCK | how, 0o644)  # it may be a FIFO
    os.write(fd, content)
    os.close(fd)


NAMES = [b"a.txt", b"b.bin", b"link", b"pkg", b"pkg/mod.py", b"pkg/sub", b"pkg/sub/deep.py", b"lib", b"lib/z.py"]
NAMES += [b"new", b"new/x", b"pkg/new", b"lib/sub", b"lib/sub/y", b"pkg.txt", b".git/own", b"pkg/.git", b"pkg/.git/x", b"pkg/caf\xe9"]
path = st.sampled_from(NAMES)
content = st.sampled_from([b"", b"one\ntwo\n", b"x = 1\n", b"y = 2\n", b"other\n", b"\0\1\2"])
operation = st.one_of(
    st.tuples(st.just("write"), path, content),
    st.tuples(st.just("append"), path, content),
    st.tuples(st.just("chmod"), path, st.sampled_from([0o644, 0o755, 0o600, 0o000])),
    st.tuples(st.sampled_from(["touch", "open", "remove", "remove", "mkdir", "fifo"]), path),
    st.tuples(st.sampled_from(["rename", "rename", "hard"]), path, path),
    st.tuples(st.just("link"), path, st.sampled_from([b"pkg", b"a.txt", b"sub", b"nowhere"])),
)
operations = st.lists(operation, max_size=8)


@pytest.fixture
def store(tmp_path: Path) -> TemplateStore:
    return make_store(tmp_path)


@needs_mounts
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=operations, after=operations, back=st.lists(path, max_size=4, unique=True), direct=st.booleans())
def test_layers_tell_what_a_copy_tells(
    tmp_path: Path,
    store: TemplateStore,
    before: list[tuple[Any, ...]],
    after: list[tuple[Any, ...]],
    back: list[bytes],
    direct: bool,
) -> None:
    with paired(tmp_path, store) as pair:
        pair.do(before)
        pair.snapshot()
        assert pair.changes() == []
        pair.do(after)
        pair.changes()
        pair.patch()
        first, second = ([(c.path, c.kind) for c in space.touched(lambda path: "b" in path)] for space in pair.spaces)
        assert first == second
        kept = [
            (space.move if direct else space.keep)(folder.parent / "kept", ["*.bin"])
            for space, folder in zip(pair.spaces, pair.folders, strict=True)
        ]
        assert kept[0] == kept[1]
        pair.same_trees("kept")
        if direct:
            for folder in pair.folders:
                (folder.parent / "kept").rename(folder)
        pair.restore([os.fsdecode(each) for each in back if b".git" not in each])
        pair.same_trees("workspace")
        pair.changes()


# ---- what is in the way


@needs_mounts
def test_what_is_in_use_is_compared_and_given_up_all_the_same(tmp_path: Path, store: TemplateStore) -> None:
    """By somebody here, whom the kernel knows of, or in another namespace, where it does not tell."""
    with paired(tmp_path, store) as pair, (pair.folders[0] / "lib/z.py").open("a"):
        pair.do([("append", b"pkg/mod.py", b"pre_run\n")])
        pair.snapshot()
        assert not isinstance(pair.layered._baseline, LayeredBaseline)  # as a copy would do it
        pair.do([("remove", b"pkg/mod.py"), ("write", b"new", b"x")])
        assert [change.path for change in pair.changes()] == ["new", "pkg/mod.py"]
        assert pair.patch()
    with paired(tmp_path, store) as pair:
        pair.snapshot()
        pair.do([("remove", b"pkg/mod.py"), ("write", b"pkg.txt", b"x")])
        with (pair.folders[0] / "lib/z.py").open():
            assert [change.path for change in pair.changes()] == ["pkg/mod.py", "pkg.txt"]
            folder = pair.folders[0]
            pair.layered.restore(["pkg.txt"])
            pair.layered.move(folder.parent / "kept", [])
            assert not folder.exists()
    with paired(tmp_path, store, idle=lambda: False) as pair:
        pair.do([("append", b"pkg/mod.py", b"pre_run\n")])
        pair.snapshot()
        pair.do([("append", b"a.txt", b"x")])
        assert [change.path for change in pair.changes()] == ["a.txt"]


@needs_mounts
def test_names_of_one_file_stay_names_of_one_file(tmp_path: Path, store: TemplateStore) -> None:
    with paired(tmp_path, store) as pair:
        pair.do([("write", b"new", b"x"), ("hard", b"new", b"lib/new")])
        pair.snapshot()
        pair.do([("append", b"new", b"y")])
        assert [change.path for change in pair.changes()] == ["lib/new", "new"]
    source = tmp_path / "linked"
    source.mkdir()
    (source / "one").write_text("x")
    (source / "two").hardlink_to(source / "one")
    sources = [{"type": "template_dir", "path": str(folder)} for folder in (source, tmp_path / "source")]
    linked = [store.get(SandboxConfig.model_validate({"template_sources": [each]})).linked for each in sources]
    template = store.get(SandboxConfig.model_validate({"template_sources": [sources[0]]}))
    same = (template.tree / "one").stat().st_ino == (template.tree / "two").stat().st_ino
    assert linked == [same, False]


@needs_mounts
def test_who_reaches_the_layers_hides_nothing(tmp_path: Path, store: TemplateStore) -> None:
    """The kernel would go on showing what it has in mind of a file that is gone from its layer."""
    with paired(tmp_path, store) as pair:
        pair.snapshot()
        pair.do([("append", b"a.txt", b"forged")])
        (pair.top / "layered/layers/u1/a.txt").unlink()
        assert list(pair.layered.changes()) == []
        assert (pair.folders[0] / "a.txt").read_bytes() == TREE["a.txt"]


@needs_mounts
def test_any_name_of_a_folder_will_do(tmp_path: Path) -> None:
    folder = tmp_path / "a b,c:d\\e\nf\u00e9"
    folder.mkdir()
    store = make_store(folder)
    with paired(folder, store) as pair:
        pair.do([("append", b"a.txt", b"x")])
        pair.snapshot()
        pair.do([("append", b"b.bin", b"x")])
        assert [change.path for change in pair.changes()] == ["b.bin"]
        assert len(mounts.below(str(folder))) == 2
        assert mounts.below(str(tmp_path / "a")) == []
    assert mounts.layers_unusable(str(folder)) is None


@needs_mounts
@pytest.mark.parametrize("files", [2, 300])  # few are removed here, many by a program
def test_nothing_is_removed_of_what_is_mounted_by_others(tmp_path: Path, files: int) -> None:
    top, theirs = tmp_path / "top", tmp_path / "theirs"
    (top / "place").mkdir(parents=True)
    theirs.mkdir()
    (theirs / "precious").write_text("x")
    for number in range(files):
        (top / f"f{number}").touch()
    mounts.bind(str(theirs), str(top / "place"))
    try:
        assert remove_tree(top) == [str(top / "place")]
        assert empty_folder(top) == [str(top / "place")]
        assert (theirs / "precious").exists()
        assert [path.name for path in top.iterdir()] == ["place"]
    finally:
        assert mounts.detach(str(top)) == []
    assert remove_tree(top) == []
    assert (theirs / "precious").exists()


@needs_mounts
def test_a_template_that_somebody_wrote_to_is_noticed_once_it_is_large(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    for number in range(100):
        (tmp_path / f"source/pkg/f{number}.py").touch()
    template = template_of(store, tmp_path)
    assert [template.check() for _ in range(3)] == [None] * 3
    (template.tree / "pkg/f7.py").write_text("forged")
    assert template.check() == "pkg/f7.py"
    fresh = template_of(store, tmp_path)
    assert fresh is not template
    assert fresh.check() is None
    (fresh.tree / ".git/hooks").mkdir(exist_ok=True)
    assert fresh.check() == ".git"


@needs_mounts
def test_many_threads_lay_out_compare_and_give_up(tmp_path: Path, store: TemplateStore) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(3):
                with paired(tmp_path, store) as pair:
                    pair.do([("write", b"pkg/new", b"x")])
                    pair.snapshot()
                    pair.do([("rename", b"pkg", b"moved"), ("remove", b"lib")])
                    assert len(pair.changes()) == 9
        except BaseException as error:  # noqa: BLE001  # told below
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_what_an_ordinary_user_can_not_mount_is_no_error(tmp_path: Path) -> None:
    program = (
        "import sys; from pytest_codeprobe.sandboxes import mounts\n"
        "print(mounts.layers_unusable(sys.argv[1])); print(mounts.room_unusable(sys.argv[1]))"
    )
    argv = unprivileged_argv([sys.executable, "-c", program, str(tmp_path)])
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(said) == 2
    assert all("mount" in line for line in said)
    assert list(tmp_path.iterdir()) == []
