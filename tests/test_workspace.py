"""Workspaces: made from their sources, compared with what they were, kept, moved, put back and deleted."""

# ruff: noqa: PTH101, PTH103, PTH115, PTH120, PTH211
# (names that are no text: bytes, so no Path objects)
from __future__ import annotations

import hashlib
import inspect
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.config import SandboxConfig
from pytest_codeprobe.model.sandbox import Change
from pytest_codeprobe.sandboxes import changes as changes_module
from pytest_codeprobe.sandboxes import entries, trees
from pytest_codeprobe.sandboxes import patch as patch_module
from pytest_codeprobe.sandboxes.lane import LANE
from pytest_codeprobe.sandboxes.patch import refused_by_git
from pytest_codeprobe.sandboxes.patterns import Patterns
from pytest_codeprobe.sandboxes.workspace import CopiedWorkspace, TemplateStore
from tests.unprivileged import unprivileged_argv

GIT_ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
as_root = os.geteuid() == 0

#: what a path is: ("file", content, executable) or ("link", target)
Tree = Mapping[bytes, tuple[Any, ...]]


def git(folder: Path, *argv: str) -> bytes:
    done = subprocess.run(["git", *argv], cwd=folder, env=GIT_ENVIRONMENT, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    return done.stdout


def write_tree(top: Path, tree: Tree) -> None:
    for path, (kind, content, *executable) in tree.items():
        target = os.fsencode(top) + b"/" + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if kind == "link":
            os.symlink(content, target)
        else:
            Path(os.fsdecode(target)).write_bytes(content)
            os.chmod(target, 0o755 if executable[0] else 0o644)


def read_tree(top: Path) -> dict[bytes, tuple[Any, ...]]:
    found: dict[bytes, tuple[Any, ...]] = {}
    for folder, folders, files in os.walk(os.fsencode(top)):
        folders[:] = [name for name in folders if name != b".git"]
        for name in (*files, *folders):
            path = folder + b"/" + name
            relative = os.path.relpath(path, os.fsencode(top))
            info = os.lstat(path)
            if stat.S_ISLNK(info.st_mode):
                found[relative] = ("link", os.readlink(path))
            elif stat.S_ISREG(info.st_mode):
                found[relative] = ("file", Path(os.fsdecode(path)).read_bytes(), bool(info.st_mode & 0o100))
    return found


class Bench:
    """A folder with templates and the workspaces made from them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = TemplateStore(folder / "scratch")
        self.number = 0

    def source(self, name: str, tree: Tree | None = None) -> Path:
        top = self.folder / name
        top.mkdir(parents=True, exist_ok=True)
        write_tree(top, tree or {})
        return top

    def lay(self, *sources: Mapping[str, Any], git: str = "baseline") -> tuple[CopiedWorkspace, Path]:
        config = SandboxConfig.model_validate({"template_sources": sources, "git": git})
        self.number += 1
        top = self.folder / f"trial-{self.number}"
        (top / "workspace").mkdir(parents=True)
        space = CopiedWorkspace(self.store.get(config), top / "workspace", top / "baseline")
        space.lay_out()
        return space, top / "workspace"

    def ready(self, tree: Tree | None = None) -> tuple[CopiedWorkspace, Path]:
        """A workspace with its snapshot taken."""
        space, folder = self.lay({"type": "template_dir", "path": str(self.source(f"source-{self.number}", tree))})
        space.snapshot()
        return space, folder


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def listed(space: CopiedWorkspace) -> dict[str, str]:
    return {change.path: change.kind for change in space.changes()}


def patch_of(space: CopiedWorkspace, folder: Path, **options: Any) -> bytes:
    target = folder.parent / "diff.patch"
    space.write_diff(target, **{"max_file_bytes": 10_000_000, **options})
    return target.read_bytes()


def refusal(call: Any, *arguments: Any) -> CodeprobeError:
    with pytest.raises(CodeprobeError) as caught:
        call(*arguments)
    assert caught.value.code == "SANDBOX_FAILED"
    return caught.value


# ---- layout


def test_sources_overlay_each_other_and_keep_modes_times_and_links(bench: Bench) -> None:
    first = bench.source("first", {b"a.txt": ("file", b"one", False), b"d/run": ("file", b"#!", True), b"link": ("link", b"d/run")})
    os.utime(first / "a.txt", ns=(1_000_000_001, 2_000_000_003))
    second = bench.source("second", {b"d": ("file", b"a file now", False), b"x": ("file", b"x", False)})
    _, folder = bench.lay(
        {"type": "template_dir", "path": str(first)},
        {"type": "template_dir", "path": str(second), "mount_point": "sub/deep"},
        {"type": "starter_files", "files": [{"path": "a/b.sh", "content": "é\r\n", "mode": "750"}, {"path": "link/in", "content": "z"}]},
    )
    assert read_tree(folder) == {
        b"a.txt": ("file", b"one", False),
        b"d/run": ("file", b"#!", True),
        b"sub/deep/d": ("file", b"a file now", False),
        b"sub/deep/x": ("file", b"x", False),
        b"a/b.sh": ("file", "é\r\n".encode(), True),
        b"link/in": ("file", b"z", False),  # the link gave way; its target was not written through
    }
    assert (folder / "a.txt").stat().st_mtime_ns == 2_000_000_003
    assert stat.S_IMODE((folder / "a/b.sh").stat().st_mode) == 0o750


def test_include_takes_what_it_names_and_what_lies_below(bench: Bench) -> None:
    names = [b"src/a.py", b"src/b.txt", b"docs/c.py", b"docs/d.txt", b"e.py", b"secret/f.py"]
    top = bench.source("t", dict.fromkeys(names, ("file", b"", False)))
    _, folder = bench.lay({"type": "template_dir", "path": str(top), "include": ["/src/", "*.py", "!secret/*.py"]})
    assert sorted(read_tree(folder)) == [b"docs/c.py", b"e.py", b"src/a.py", b"src/b.txt"]


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "../d/../../outside", "."])
def test_a_link_that_leaves_the_template_is_refused(bench: Bench, target: str) -> None:
    top = bench.source("t", {b"d/f": ("file", b"", False), b"sub/link": ("link", target.encode())})
    config = SandboxConfig.model_validate({"template_sources": [{"type": "template_dir", "path": str(top)}]})
    if target in (".", "../outside"):
        bench.store.get(config)  # stays inside: it is relative to sub/
    else:
        error = refusal(bench.store.get, config)
        assert "sub/link" in error.message
        assert target in error.message


def test_links_that_leave_only_together_are_refused(bench: Bench) -> None:
    first = bench.source("first", {b"d/f": ("file", b"", False), b"up": ("link", b"d/../x")})
    second = bench.source("second", {b"e": ("file", b"", False)})
    (second / "d").symlink_to(".")
    sources = [{"type": "template_dir", "path": str(path)} for path in (first, second)]
    error = refusal(bench.store.get, SandboxConfig.model_validate({"template_sources": sources}))
    assert "'up'" in error.message


def test_bad_templates_are_named(bench: Bench) -> None:
    top = bench.source("t")
    os.mkfifo(top / "pipe")
    for source, word in (
        ({"type": "template_dir", "path": str(top)}, "pipe"),
        ({"type": "template_dir", "path": str(top / "missing")}, "missing"),
        ({"type": "template_dir", "path": str(top), "mount_point": "../up"}, "../up"),
        ({"type": "starter_files", "files": [{"path": "/etc/x", "content": ""}]}, "/etc"),
        ({"type": "starter_files", "files": [{"path": "a/../../x", "content": ""}]}, "a/../.."),
    ):
        error = refusal(bench.store.get, SandboxConfig.model_validate({"template_sources": [source]}))
        assert word in error.message
    (top / "pipe").unlink()
    bench.store.get(SandboxConfig.model_validate({"template_sources": [{"type": "template_dir", "path": str(top)}]}))  # not cached


def test_a_worktree_pointer_does_not_lead_into_the_users_repository(bench: Bench) -> None:
    top = bench.source("t", {b".git": ("file", b"gitdir: /somewhere/.git/worktrees/t\n", False), b"a": ("file", b"", False)})
    _, folder = bench.lay({"type": "template_dir", "path": str(top)})
    assert (folder / ".git").is_dir()
    assert git(folder, "rev-list", "--all", "--count") == b"1\n"


def test_the_baseline_is_one_commit_without_history(bench: Bench) -> None:
    tree: dict[bytes, tuple[Any, ...]] = {
        b"a.txt": ("file", b"text\n", False),
        b"a/b": ("file", b"", True),
        b"a.b/c": ("file", b"\0\xff" * 5000, False),
        b"a/z/deep/x y": ("file", b"text\n", False),
        b"ln": ("link", b"a/b"),
        b"new\nline": ("file", b"1", False),
        b"bad\xff": ("file", b"2", False),
        b"n" * 255: ("file", b"3", False),
        b"/".join([b"p" * 100] * 4 + [b"long"]): ("file", b"4", False),
        b".gitignore": ("file", b"*.txt\n", False),
    }
    top = bench.source("t", tree)
    _, folder = bench.lay({"type": "template_dir", "path": str(top)})
    assert git(folder, "fsck", "--strict", "--full") == b""
    assert git(folder, "status", "--porcelain") == b""
    assert sorted(git(folder, "ls-tree", "-r", "-z", "--name-only", "HEAD").split(b"\0")[:-1]) == sorted(tree)
    for argv in (("reflog",), ("remote",), ("stash", "list"), ("branch", "-a", "--format=%(refname)", "--no-contains", "main")):
        assert git(folder, *argv) == b""
    assert git(folder, "log", "--format=%s %at %P", "--all") == b"base 0 \n"
    assert git(folder, "count-objects").startswith(b"0 objects")
    clone = folder.parent / "clone"
    git(folder.parent, "clone", "-q", "--no-local", str(folder), str(clone))
    assert read_tree(clone) == tree
    (folder / "a.txt").write_bytes(b"TEXT\n")  # of the same size
    git(folder, "commit", "-qam", "work")
    assert git(folder, "show", "HEAD:a.txt") == b"TEXT\n"


def test_equal_sources_give_the_same_commit_and_one_template(bench: Bench) -> None:
    source = {"type": "starter_files", "files": [{"path": "a", "content": "1"}]}
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: bench.store.get(SandboxConfig.model_validate({"template_sources": [source]})), range(16)))
    assert len({id(template) for template in made}) == 1
    assert (made[0].tree / "a").read_text() == "1"
    second = TemplateStore(bench.folder / "other")
    other = second.get(SandboxConfig.model_validate({"template_sources": [source]}))
    assert git(other.tree, "rev-parse", "HEAD") == git(made[0].tree, "rev-parse", "HEAD")


def test_no_git_where_it_is_not_wanted_and_a_repository_stays_what_it_is(bench: Bench) -> None:
    _, plain = bench.lay({"type": "starter_files", "files": [{"path": "a", "content": "1"}]}, git="none")
    assert not (plain / ".git").exists()
    own = bench.source("own", {b"f": ("file", b"1", False)})
    git(own, "init", "-q", "-b", "trunk")
    _, folder = bench.lay({"type": "template_dir", "path": str(own)})
    assert git(folder, "symbolic-ref", "HEAD") == b"refs/heads/trunk\n"


def test_the_templates_go_with_their_store(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from pytest_codeprobe.model.config import SandboxConfig\n"
        "from pytest_codeprobe.sandboxes.workspace import TemplateStore\n"
        "store = TemplateStore(Path(sys.argv[1])); print(store.get(SandboxConfig()).tree.is_dir())\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True\n"
    assert list(tmp_path.iterdir()) == []


def test_templates_can_be_dropped_while_a_lane_is_held(bench: Bench) -> None:
    """As the garbage collector does it, at any place."""
    store = TemplateStore(bench.folder / "other")
    tree = store.get(SandboxConfig()).tree
    with LANE:
        del store
    assert not tree.parent.exists()


def test_many_threads_lay_out_large_and_small(bench: Bench) -> None:
    large = bench.source("large", {b"d%d/f%d" % (i % 7, i): ("file", b"%d" % i, False) for i in range(trees.SMALL_FILES * 3)})
    small = bench.source("small", {b"one": ("file", b"1", False)})

    def one(number: int) -> bool:
        source = large if number % 2 else small
        config = SandboxConfig.model_validate({"template_sources": [{"type": "template_dir", "path": str(source)}]})
        top = bench.folder / f"thread-{number}"
        (top / "w").mkdir(parents=True)
        space = CopiedWorkspace(bench.store.get(config), top / "w", top / "b")
        space.lay_out()
        space.snapshot()
        (top / "w" / "new").write_text(str(number))
        same = [change.path for change in space.changes()] == ["new"]
        (top / "w" / "new").unlink()
        return same and read_tree(top / "w") == read_tree(source) and trees.remove_tree(top) == []

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(24)))


# ---- changes


def test_every_kind_of_change_is_seen_and_nothing_else(bench: Bench) -> None:
    same = ("file", b"same", False)
    space, folder = bench.ready(
        dict.fromkeys((b"kept", b"touched", b"rewritten", b"forged", b"gone", b"mode", b"d/deep", b"tofile/x"), same)
        | {b"link": ("link", b"kept"), b"relinked": ("link", b"kept")}
    )
    (folder / "touched").touch()
    (folder / "rewritten").unlink()
    (folder / "rewritten").write_bytes(b"same")
    before = (folder / "forged").stat()
    (folder / "forged").write_bytes(b"SAME")
    os.utime(folder / "forged", ns=(before.st_atime_ns, before.st_mtime_ns))
    (folder / "gone").unlink()
    (folder / "mode").chmod(0o755)
    (folder / "relinked").unlink()
    (folder / "relinked").symlink_to("gone")
    shutil.rmtree(folder / "tofile")
    (folder / "tofile").write_bytes(b"")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(folder)  # the name of a socket may not be long
        listener.bind("sock")
        os.chdir(here)
    (folder / "empty").mkdir()
    (folder / ".git" / "inside").write_bytes(b"")
    (folder / "d" / ".git").mkdir()
    (folder / "d" / ".git" / "inside").write_bytes(b"")
    assert [(c.path, c.kind, c.size, c.mode, c.note) for c in space.changes()] == [
        ("forged", "modified", 4, 0o644, ""),
        ("gone", "deleted", None, None, ""),
        ("mode", "modified", 4, 0o755, ""),
        ("pipe", "added", 0, stat.S_IMODE((folder / "pipe").lstat().st_mode), "fifo"),
        ("relinked", "modified", 4, 0o777, "symlink"),
        ("sock", "added", 0, stat.S_IMODE((folder / "sock").lstat().st_mode), "socket"),
        ("tofile", "added", 0, 0o644, ""),
        ("tofile/x", "deleted", None, None, ""),
    ]


def test_what_pre_run_did_belongs_to_the_baseline(bench: Bench) -> None:
    tree = dict.fromkeys((b"edited", b"removed", b"both", b"kept"), ("file", b"old", False))
    top = bench.source("t", tree)
    space, folder = bench.lay({"type": "template_dir", "path": str(top)})
    before = (folder / "both").stat()
    for name in ("edited", "both", "made"):
        (folder / name).write_bytes(b"pre")
    os.utime(folder / "both", ns=(before.st_atime_ns, before.st_mtime_ns))  # even where the time says nothing
    (folder / "removed").unlink()
    for number in range(trees.SMALL_FILES * 2):
        (folder / "installed" / str(number)).mkdir(parents=True)
        (folder / "installed" / str(number) / "m").write_text(str(number))
    space.snapshot()
    assert listed(space) == {}
    (folder / "both").write_bytes(b"agent\n")
    (folder / "made").unlink()
    (folder / "installed" / "7" / "m").write_text("changed")
    (folder / "edited").touch()
    assert listed(space) == {"both": "modified", "made": "deleted", "installed/7/m": "modified"}
    patch = patch_of(space, folder)
    assert b"-pre\n\\ No newline at end of file\n+agent\n" in patch
    assert b"-7\n" in patch
    space.restore(["both", "made", "installed/7/m"])
    assert listed(space) == {}
    assert (folder / "both").read_bytes() == b"pre"


def test_names_of_any_bytes_survive(bench: Bench) -> None:
    names = [b"new\nline", b"bad\xff\xfe", b"tab\t", b'quo"te', b" lead", b"-dash", b"x" * 255, b"\xc3\xa9", b"back\\slash"]
    space, folder = bench.ready(dict.fromkeys(names, ("file", b"1", False)))
    for name in names:
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(b"2")
    assert {os.fsencode(path) for path in listed(space)} == set(names)
    patch_of(space, folder)
    fresh = bench.lay({"type": "template_dir", "path": str(bench.folder / "source-0")})[1]
    git(fresh, "apply", "--whitespace=nowarn", str(folder.parent / "diff.patch"))
    assert read_tree(fresh) == read_tree(folder)


def test_large_and_sparse_files_are_named_not_shown(bench: Bench) -> None:
    space, folder = bench.ready({b"small": ("file", b"1", False)})
    with (folder / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    (folder / "large").write_bytes(b"\0" * 10_000_001)
    (folder / "small").write_bytes(b"2")
    notes = {change.path: change.note for change in space.changes()}
    digest = hashlib.sha256(bytes(10_000_001)).hexdigest()
    assert notes["sparse"] == "too large: not hashed"
    assert notes["large"] == f"too large: sha256 {digest}"
    patch = patch_of(space, folder)
    assert len(patch) < 1000
    assert patch.splitlines()[0] == (f'# not in this patch: "large": 10000001 bytes, too large: sha256 {digest}'.encode())
    assert b"+2" in patch


def test_the_list_is_bounded_and_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "MAX_CHANGES", 20)
    monkeypatch.setattr(entries, "_IN_MEMORY", 500)  # the snapshot goes to its file
    monkeypatch.setattr(entries, "_CHUNK", 100)
    space, folder = bench.ready({b"%03d" % number: ("file", b"1", False) for number in range(100)})
    assert listed(space) == {}
    for number in range(0, 100, 3):
        (folder / f"{number:03d}").write_bytes(b"2")
    found = space.changes()
    assert len(found) == 21
    assert found[-1] == Change(path=".", kind="modified", note="14 further changes are not listed")
    monkeypatch.setattr(changes_module, "MAX_FILES", 50)
    assert "first 50 files" in space.changes()[-1].note


def test_a_workspace_that_became_a_link_is_not_followed(bench: Bench) -> None:
    space, folder = bench.ready({b"mine": ("file", b"1", False)})
    outside = bench.source("outside", {b"secret": ("file", b"2", False)})
    shutil.rmtree(folder)
    folder.symlink_to(outside)
    assert listed(space) == {"mine": "deleted"}
    assert space.keep(bench.folder / "kept", ()) == "partial"
    assert read_tree(bench.folder / "kept") == {}
    space.restore(["mine"])
    assert read_tree(outside) == {b"secret": ("file", b"2", False)}
    assert read_tree(folder) == {b"mine": ("file", b"1", False)}


# ---- patch

_names = st.sampled_from(
    [b"a", b"b", b"c", b"a b", b"n\nl", b"\xff", b'"q"', b".gitattributes", b".gitignore", b".hidden", b"x.git", b"\tt"]
)
_paths = st.lists(_names, min_size=1, max_size=3).map(b"/".join)
_contents = st.sampled_from(
    [b"", b"x", b"one\n", b"one\ntwo\n", b"\0bin\xff", b"a\r\nb\r\n", b"* -diff\n", b"diff --git b/x b/x\n-- a\n", b"-- a/b\n"]
)
_items = st.one_of(
    st.tuples(st.just("file"), _contents | st.binary(max_size=200), st.booleans()),
    st.tuples(st.just("link"), st.sampled_from([b"d", b"d/f", b"nowhere", b"new\nline"])),
)


def _without_conflicts(tree: dict[bytes, tuple[Any, ...]]) -> dict[bytes, tuple[Any, ...]]:
    """A path that is a file can't be a folder as well."""
    return {path: item for path, item in tree.items() if not any(other.startswith(path + b"/") for other in tree)}


_trees = st.dictionaries(_paths, _items, max_size=8).map(_without_conflicts)


@given(before=_trees, after=_trees, kept=st.sets(st.integers(0, 7)))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_changes_are_the_difference_and_the_patch_makes_it_again(before: Tree, after: Tree, kept: set[int]) -> None:
    _check_round_trip(before, after, kept)


_plain_paths = st.lists(st.sampled_from([b"a", b"b", b".gitattributes", b"x-y.py"]), min_size=1, max_size=3).map(b"/".join)
_lines = st.lists(st.sampled_from([b"a\n", b"b\n", b"\n", b"c\r\n", b"-- a\n", b"\xff\xc3\n", b"end"]), max_size=25).map(b"".join)
_plain_items = st.tuples(st.just("file"), _lines, st.booleans()) | st.tuples(st.just("link"), st.sampled_from([b"d", b"nowhere"]))
_plain_trees = st.dictionaries(_plain_paths, _plain_items, max_size=5).map(_without_conflicts)


@given(old=st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n"]), min_size=8, max_size=30), at=st.integers(0, 29), new=_lines)
@settings(max_examples=100, deadline=None)
def test_an_edit_in_the_middle_is_found_again(old: list[bytes], at: int, new: bytes) -> None:
    after = b"".join(old[:at]) + new + b"".join(old[at + 1 :])
    _check_round_trip({b"f": ("file", b"".join(old), False)}, {b"f": ("file", after, False)}, set())


@given(before=_plain_trees, after=_plain_trees, kept=st.sets(st.integers(0, 4)))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_small_texts_need_no_git(before: Tree, after: Tree, kept: set[int]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(patch_module, "_git_diff", None)
        _check_round_trip(before, after, kept)


def _check_round_trip(before: Tree, after: Tree, kept: set[int]) -> None:
    # links lead to this folder, to its file, or nowhere: in a circle of links `git apply` itself gets lost
    before, after = ({b"d/f": ("file", b"", False), **tree} for tree in (before, after))
    after = dict(after) | {path: item for number, (path, item) in enumerate(before.items()) if number in kept}
    after = _without_conflicts(dict(after))
    with tempfile.TemporaryDirectory() as top:
        bench = Bench(Path(top))
        space, folder = bench.ready(before)
        for entry in folder.iterdir():
            if entry.name != ".git":
                assert trees.remove_tree(entry) == []
        write_tree(folder, after)
        expected = {
            os.fsdecode(path): "modified" if path in before and path in after else "added" if path in after else "deleted"
            for path in {*before, *after}
            if before.get(path) != after.get(path)
        }
        assert listed(space) == expected
        patch = patch_of(space, folder)
        assert bool(patch) == bool(expected)
        fresh = bench.lay({"type": "template_dir", "path": str(bench.folder / "source-0")})[1]
        if patch:
            git(fresh, "apply", "--whitespace=nowarn", str(folder.parent / "diff.patch"))
        assert read_tree(fresh) == read_tree(folder) == after
        space.restore(list(listed(space)))
        assert listed(space) == {}
        assert read_tree(folder) == before


def test_patch_applies_to_text_and_mode_without_git_too(bench: Bench) -> None:
    space, folder = bench.ready({b"a": ("file", b"1\n", False), b"gone": ("file", b"1\n", False)})
    (folder / "a").write_bytes(b"1\n2\n")
    (folder / "d").mkdir()
    (folder / "d" / "new").write_bytes(b"x\n")
    (folder / "gone").unlink()
    space.changes()
    lines = patch_of(space, folder).splitlines()
    assert [line for line in lines if line.startswith((b"diff", b"---", b"+++"))] == [
        *(b"diff --git a/a b/a", b"--- a/a", b"+++ b/a"),
        *(b"diff --git a/d/new b/d/new", b"--- /dev/null", b"+++ b/d/new"),
        *(b"diff --git a/gone b/gone", b"--- a/gone", b"+++ /dev/null"),
    ]


def test_no_program_or_attribute_of_the_agent_has_a_say(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    space, folder = bench.ready({b"a": ("file", b"1\n", False), b".gitattributes": ("file", b"", False)})
    trap = folder.parent / "trapped"
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", f"touch {trap}")
    monkeypatch.setenv("GIT_DIR", str(folder / ".git"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", f"touch {trap}")
    (folder / ".git" / "config").write_text(f'[core]\n\tfsmonitor = touch {trap}\n[filter "x"]\n\tclean = touch {trap}\n')
    (folder / ".gitattributes").write_bytes(b"* filter=x -diff\n")
    (folder / "a").write_bytes(b"2\n")
    nested = folder / "nested"
    nested.mkdir()
    (nested / ".git").write_bytes(b"gitdir: ../elsewhere\n")
    (nested / ".GIT").write_bytes(b"x")
    assert set(listed(space)) == {".gitattributes", "a", "nested/.git", "nested/.GIT"}
    patch = patch_of(space, folder)
    assert b"-1\n+2\n" in patch
    assert b"+++ b/.gitattributes\n" in patch
    assert b'# not in this patch: "nested/.git": git refuses the name' in patch
    assert not trap.exists()


@pytest.mark.parametrize(
    ("path", "refused"),
    [(b"a/.git", True), (b".GIT/x", True), (b"git~1", True), (b".git ", True), (b".git::$x", True), (b".gitx", False), (b"a.git", False)],
)
def test_names_that_git_takes_for_its_own(path: bytes, refused: bool) -> None:
    assert refused_by_git(path) is refused


def test_missing_git_is_said_before_the_agent_is_paid(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch_module, "PATH", str(bench.folder))
    patch_module.find_git.cache_clear()
    error = refusal(bench.ready)
    assert "git is not on PATH" in error.message
    assert "Install git" in error.remediation


# ---- keep, move, restore, delete


def test_keep_leaves_out_what_is_ignored_and_what_is_no_file(bench: Bench) -> None:
    names = (b"a", b"d/b", b"d/c.log", b"d/e/f", b"node_modules/x", b"d/node_modules/y", b"keep.log")
    tree = {name: ("file", name, False) for name in names}
    space, folder = bench.ready(tree | {b"out": ("link", b"a")})
    (folder / "out").unlink()
    (folder / "out").symlink_to("/etc/passwd")
    (folder / "hollow").mkdir()
    assert space.keep(bench.folder / "all", ()) == "whole"
    assert read_tree(bench.folder / "all") == read_tree(folder)
    assert (bench.folder / "all" / "hollow").is_dir()
    assert (bench.folder / "all" / ".git" / "HEAD").is_file()
    os.mkfifo(folder / "d" / "e" / "pipe")
    assert space.keep(bench.folder / "some", ["node_modules/", "*.log", "!keep.log"]) == "partial"
    assert sorted(read_tree(bench.folder / "some")) == [b"a", b"d/b", b"d/e/f", b"keep.log", b"out"]
    assert (bench.folder / "some" / "out").readlink() == Path("/etc/passwd")
    assert (bench.folder / "some" / "hollow").is_dir()
    assert not (bench.folder / "some" / "d" / "e" / "pipe").exists()


@pytest.mark.parametrize("across", [False, True])
def test_move_leaves_nothing_behind(bench: Bench, monkeypatch: pytest.MonkeyPatch, across: bool) -> None:
    space, folder = bench.ready({b"a": ("file", b"1", False), b"d/x.log": ("file", b"2", False)})
    if across:

        def refuse(self: Path, target: Path) -> Path:
            raise OSError(18, "Invalid cross-device link", str(self), None, str(target))

        monkeypatch.setattr(Path, "rename", refuse)
    assert space.move(bench.folder / "run" / "artifacts", ["*.log"]) == "partial"
    assert read_tree(bench.folder / "run" / "artifacts") == {b"a": ("file", b"1", False)}
    assert not folder.exists()


def test_restore_follows_no_link_and_takes_away_what_was_not_there(bench: Bench) -> None:
    outside = bench.source("outside", {b"x": ("file", b"precious", False)})
    space, folder = bench.ready({b"d/x": ("file", b"good", True), b"link": ("link", b"d/x"), b"dir/f": ("file", b"1", False)})
    shutil.rmtree(folder / "d")
    (folder / "d").symlink_to(outside)
    (folder / "link").unlink()
    (folder / "link").write_bytes(b"")
    shutil.rmtree(folder / "dir")
    (folder / "dir").write_bytes(b"in the way")
    (folder / "added").mkdir()
    (folder / "added" / "f").write_bytes(b"")
    old = (bench.folder / "source-0" / "d" / "x").stat().st_mtime_ns
    space.restore(["d/x", "link", "dir/f", "added/f", "d/not-there"])
    assert read_tree(outside) == {b"x": ("file", b"precious", False)}
    assert read_tree(folder) == {b"d/x": ("file", b"good", True), b"link": ("link", b"d/x"), b"dir/f": ("file", b"1", False)}
    assert (folder / "d" / "x").stat().st_mtime_ns > old
    for path in ("../x", "/etc/passwd", "."):
        refusal(space.restore, [path])


def dig(folder: Path, depth: int, name: str) -> None:
    """Folders in folders, deeper than a path may be long, with a file in some of them."""
    here = os.open(folder, os.O_RDONLY)
    for level in range(depth):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
        if level % 50 == 0:
            os.close(os.open("f" * 20, os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


@pytest.fixture
def short_stack() -> Iterator[int]:
    """How often Python may call itself, as little as a tree can be deep that is made and removed quickly."""
    before, calls = sys.getrecursionlimit(), 150
    sys.setrecursionlimit(len(inspect.stack(0)) + calls)
    yield calls
    sys.setrecursionlimit(before)


def test_a_tree_deeper_than_a_path_may_be_long(bench: Bench, short_stack: int) -> None:
    space, folder = bench.ready({b"a": ("file", b"1\n", False)})
    # first what can be named, but is deeper than Python may call itself, then what can't be named
    dig(folder, 2 * short_stack, "nn")
    dig(folder.joinpath(*["nn"] * (2 * short_stack)), 60, "n" * 100)
    (folder / "a").write_bytes(b"2\n")
    found = listed(space)
    assert found["a"] == "modified"
    assert len(found) == 1 + 2 * short_stack // 50 + 1
    assert b"+2\n" in patch_of(space, folder)
    assert space.keep(bench.folder / "kept", ()) == "partial"
    assert (bench.folder / "kept" / "a").read_bytes() == b"2\n"
    assert space.keep(bench.folder / "less", ["f*"]) == "partial"
    space.restore(list(found))
    assert listed(space) == {}
    for left in (folder, bench.folder / "kept", bench.folder / "less"):
        assert trees.remove_tree(left) == []


def test_a_small_tree_deeper_than_a_path_may_be_long(bench: Bench) -> None:
    """A few folders with long names are enough; they are no trouble of the harness's."""
    space, folder = bench.ready({b"a": ("file", b"1\n", False)})
    dig(folder, 25, "n" * 200)
    listed(space)
    assert space.keep(bench.folder / "kept", ()) == "partial"
    assert (bench.folder / "kept" / "a").read_bytes() == b"1\n"
    for left in (folder, bench.folder / "kept"):
        assert trees.remove_tree(left) == []


def test_delete_follows_no_link_and_tells_what_is_left(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"")
    top = tmp_path / "top"
    for number in range(trees.SMALL_FILES * 3):
        (top / str(number)).mkdir(parents=True)
    (top / "link").symlink_to(outside)
    deep = top / "deep"
    deep.mkdir()
    dig(deep, 60, "n" * 100)
    assert trees.remove_tree(top) == []
    assert not top.exists()
    assert (outside / "f").exists()
    assert trees.remove_tree(top) == []
    (tmp_path / "link").symlink_to(outside)
    assert trees.remove_tree(tmp_path / "link") == []
    assert (outside / "f").exists()


def test_unreadable_files_and_folders(tmp_path: Path) -> None:
    """Root may read everything, so it gives up that right."""
    program = f"""
from pathlib import Path
from pytest_codeprobe.model.config import SandboxConfig
from pytest_codeprobe.sandboxes.trees import remove_tree
from pytest_codeprobe.sandboxes.workspace import CopiedWorkspace, TemplateStore
top = Path({str(tmp_path)!r}) / "top"
(top / "w").mkdir(parents=True)
files = [{{"path": p, "content": "1\\n"}} for p in ("a", "d/b", "e/c")]
store = TemplateStore(top / "s")
config = SandboxConfig.model_validate({{"template_sources": [{{"type": "starter_files", "files": files}}]}})
space = CopiedWorkspace(store.get(config), top / "w", top / "b")
space.lay_out(); space.snapshot()
(top / "w/a").write_text("2\\n"); (top / "w/a").chmod(0)
(top / "w/d").chmod(0)
(top / "w/e/c").unlink(); (top / "w/e").chmod(0o500)
print([(c.path, c.kind) for c in space.changes()])
space.write_diff(top / "p", max_file_bytes=1000)
print((top / "p").read_text().count("+2"), oct((top / "w/a").stat().st_mode & 0o777))
(top / "w/d").chmod(0)
print(remove_tree(top / "w"))
"""
    done = subprocess.run(unprivileged_argv([sys.executable, "-c", program]), capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["[('a', 'modified'), ('e/c', 'deleted')]", "1 0o0", "[]"]


@pytest.mark.skipif(not as_root or sys.platform != "linux", reason="a full disk needs root to mount one")
def test_a_full_disk_is_named(bench: Bench) -> None:
    space, _ = bench.ready({b"a": ("file", os.urandom(3 << 20), False)})
    small = bench.folder / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"can't mount a tmpfs here: {mounted.stderr.decode()}")
    try:
        (small / "t").mkdir()
        template = space._template
        error = refusal(CopiedWorkspace(template, small / "t", small / "b").lay_out)
        assert "No space left on device" in error.message
        assert str(small) in error.message
        assert "Free disk space" in error.remediation
        error = refusal(space.keep, small / "kept", ())
        assert "No space left on device" in error.message
    finally:
        subprocess.run(["umount", str(small)], check=True)


# ---- patterns


@pytest.mark.parametrize(
    ("patterns", "path", "folder", "matched"),
    [
        (["*.log"], "a/b.log", False, True),
        (["/*.log"], "a/b.log", False, False),
        (["a/*.log"], "a/b.log", False, True),
        (["a/*.log"], "x/a/b.log", False, False),
        (["**/b.log"], "a/x/b.log", False, True),
        (["a/**"], "a/x/y", False, True),
        (["a/**"], "a", True, False),
        (["a/**/z"], "a/z", False, True),
        (["build/"], "x/build", True, True),
        (["build/"], "build", False, False),
        (["*.log", "!keep.log"], "d/keep.log", False, False),
        (["[a-c]?.py"], "bx.py", False, True),
        (["[!a-c]x"], "dx", False, True),
        (["[!a]"], "/", False, False),
        ([r"\#x"], "#x", False, True),
        (["#x", "", "/"], "#x", False, False),
        (["[z-a]"], "m", False, False),
        (["a[b"], "a[b", False, False),
        (["sp\\ "], "sp ", False, True),
    ],
)
def test_patterns_mean_what_they_mean_to_git(tmp_path: Path, patterns: list[str], path: str, folder: bool, matched: bool) -> None:
    assert Patterns(patterns).match(path, folder=folder) is matched
    if path.startswith("/"):
        return
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("\n".join(patterns) + "\n")
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).mkdir() if folder else (tmp_path / path).touch()
    argv = ["git", "check-ignore", "-q", path]
    done = subprocess.run(argv, cwd=tmp_path, env=GIT_ENVIRONMENT, check=False, timeout=60)
    assert (done.returncode == 0) is matched


def test_a_folder_of_many_files_is_looked_at_in_little_memory(tmp_path: Path) -> None:
    """An agent may make a million; by then each costs no more than its name."""
    for number in range(5000):
        os.close(os.open(tmp_path / f"{number:0100}", os.O_CREAT | os.O_WRONLY))
    tracemalloc.start()
    try:
        count = sum(1 for _ in entries.scan(os.fsencode(tmp_path)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 5000
    assert peak < 5000 * 250


def test_names_beside_folders_keep_their_order(tmp_path: Path) -> None:
    for name in ("a", "a.b", "a\x01", "ab", "a-"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").touch()
        (tmp_path / f"{name}.f").touch()
    found = list(entries.scan(os.fsencode(tmp_path)))
    assert len(found) == 10
    assert found == sorted(found, key=lambda entry: entry.key)
