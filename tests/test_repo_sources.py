"""Template sources of type repo: one commit of a repository, and nothing else that it holds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.config import SandboxConfig
from pytest_codeprobe.sandboxes import fetching, objects
from pytest_codeprobe.sandboxes.sources import Repositories
from pytest_codeprobe.sandboxes.workspace import CopiedWorkspace, TemplateStore
from tests.repositories import FIX, LOOK, bare, commit, daemon, git, web, with_a_fix


class Bench:
    """A folder in which workspaces are laid out from repositories."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said, self.number = folder, list[str](), 0
        self.cache = folder / "cache"
        self.environ = {"PATH": os.environ["PATH"], "HOME": str(folder / "home")}
        self.again()

    def again(self) -> None:
        """As a new run."""
        self.repositories = Repositories(self.environ, self.cache)
        self.store = TemplateStore(self.folder / "scratch", self.repositories, self.said.append)

    def lay(self, *sources: dict[str, Any], git: str = "baseline", hidden: tuple[str, ...] = ()) -> Path:
        given = [source if "type" in source else {"type": "repo", **source} for source in sources]
        config = SandboxConfig.model_validate({"template_sources": given, "git": git})
        self.number += 1
        top = self.folder / f"trial-{self.number}"
        (top / "workspace").mkdir(parents=True)
        CopiedWorkspace(self.store.get(config, hidden), top / "workspace", top / "baseline").lay_out()
        return top / "workspace"

    def refusal(self, **source: Any) -> CodeprobeError:
        with pytest.raises(CodeprobeError) as caught:
            self.lay(source)
        assert caught.value.code == "SANDBOX_FAILED"
        return caught.value


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def files(top: Path) -> dict[str, str]:
    return {
        str(path.relative_to(top)): path.read_text()
        for path in sorted(top.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(top).parts
    }


def looked(workspace: Path) -> str:
    """What an agent finds that asks git for everything."""
    subprocess.run(["sh", "-c", LOOK], cwd=workspace, check=False, env={**os.environ, "GIT_CONFIG_NOSYSTEM": "1"}, timeout=60)
    return (workspace / "found.txt").read_text(errors="replace")


def test_nothing_but_the_commit_is_there(bench: Bench) -> None:
    """By path, by URL of a whole and of a shortened hash: in no object, reference, log, stash, note, alternate or file."""
    source = bench.folder / "source"
    base = with_a_fix(source)
    assert FIX in looked(source)  # the look finds it where it is
    git(source, "checkout", "-q", "--", ".")
    url = f"file://{bare(source, bench.folder / 'bare.git')}"
    heads = set()
    for given in ({"path": str(source), "commit": base}, {"path": str(source), "commit": base[:9]}, {"path": f"{bench.folder}/bare.git",
                  "commit": base}, {"url": url, "commit": base.upper()}, {"url": url, "commit": base[:8]}):  # fmt: skip
        workspace = bench.lay(given)
        assert files(workspace) == {"app.py": "x = 1\n", "lib/a.py": "a = 1\n"}
        found = looked(workspace)
        assert FIX not in found, given
        assert "LEFT:" not in found
        assert "commits:1\n" in found.replace(" ", "")
        assert "status:?? found.txt" in found
        assert found.count("status:") == 1
        heads.add(git(workspace, "rev-parse", "HEAD"))
    assert len(heads) == 1  # the same files, the same commit
    assert base not in heads
    store = next(path for path in bench.cache.rglob(base) if path.is_dir())
    assert (
        len(git(store, "cat-file", "--batch-all-objects", "--batch-check").splitlines()) == 5
    )  # no more in the cache: commit, trees, files
    assert git(store, "for-each-ref") == ""
    assert sorted(path.name for path in store.parent.iterdir()) == [base, f"{base}.lock"]


def test_names_of_commits(bench: Bench) -> None:
    source = bench.folder / "source"
    first = commit(source, {"a": "1"})
    git(source, "tag", "one")
    second = commit(source, {"a": "2"})
    git(source, "tag", "-a", "two", "-m", "x")
    git(source, "branch", "one/side", first)
    commit(source, {"a": "3"})
    git(source, "branch", "two")  # a tag of that name goes first, as git has it
    url = f"file://{source}"
    for name, content in ((None, "3"), ("main", "3"), ("one", "1"), ("two", "2"), (second, "2"), ("one/side", "1"), ("refs/tags/one", "1"),
                          ("refs/heads/two", "3")):  # fmt: skip
        for place in ({"path": str(source)}, {"url": url}):
            assert files(bench.lay({**place, "commit": name})) == {"a": content}, (name, place)
    assert files(bench.lay({"path": str(source), "commit": "HEAD~2"})) == {"a": "1"}
    git(source, "worktree", "add", "-q", str(bench.folder / "tree"), "one")
    assert files(bench.lay({"path": str(bench.folder / "tree")})) == {"a": "1"}

    (bench.folder / "plain").mkdir()
    git(bench.folder, "init", "-q", str(bench.folder / "empty"))
    (source / "sub").mkdir()
    missing = "1" * 40
    for given, words in (
        ({"path": str(source), "commit": "mian"}, "'commit' is not in the repository"),
        ({"path": str(source), "commit": missing}, f"can't be read in|lacks|is not in the repository.*{missing}"),
        ({"path": str(source), "commit": "main:a"}, "is not in the repository|can't be read"),
        ({"path": str(source), "commit": "one..two"}, "must be a hash, a branch or a tag"),
        ({"path": str(source), "commit": "--all"}, "must be a hash, a branch or a tag"),
        ({"path": str(bench.folder / "plain")}, "names no git repository"),
        ({"path": str(bench.folder / "empty")}, "which has no commit yet"),
        ({"path": str(source / "sub")}, "not a folder in one; the repository is"),
        ({"url": url, "commit": "mian"}, r"has no branch or tag 'mian' \(did you mean 'main'\?\)"),
        ({"url": url, "commit": missing}, f"has no commit {missing}"),
        ({"url": url, "commit": "1234567"}, "has no commit, or more than one, that begins with '1234567'"),
        ({"url": f"file://{bench.folder}/empty"}, "has no HEAD"),
        ({"url": f"file://{bench.folder}/nowhere"}, "can't be fetched from: .*nowhere.* does not appear to be a git repository"),
        ({"url": "ext::sh -c true"}, "can't be fetched from: .*transport 'ext' not allowed"),
    ):  # fmt: skip
        error = bench.refusal(**given)
        with pytest.raises(CodeprobeError, match=words):
            raise error
        assert error.remediation


def test_contents_are_what_was_committed(bench: Bench, tmp_path: Path) -> None:
    """No filter, attribute, hook, replaced object or fsmonitor has a say, and none of them is run."""
    source, ran = bench.folder / "source", tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $0 >> {ran}\ncat\n")
    program.chmod(0o755)
    sub = commit(bench.folder / "sub", {"s": "s"})
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    commit(source, {
        ".gitattributes": "left.txt export-ignore\nid.txt export-subst ident\n*.crlf text eol=crlf\n*.f filter=f\nbig.bin filter=lfs\n",
        "left.txt": "here", "id.txt": "$Format:%H$ $Id$\n", "a.crlf": "a\nb\n", "x.f": "plain", "big.bin": pointer, "run.sh": "#!/bin/sh\n",
        ".gitignore": "*.log\n", "kept.log": "kept", "dir/deep/er/file": "deep", "naïve\nname": "odd", "exec/.keep": "",
    })  # fmt: skip
    (source / "run.sh").chmod(0o755)
    (source / "exec/link").symlink_to("../dir/deep")
    (source / "loose").symlink_to("not-there")
    git(source, "update-index", "--add", "--cacheinfo", f"160000,{sub},vendor/sub")
    (source / "vendor/sub").mkdir(parents=True)
    git(source, "add", "run.sh", "exec", "loose")
    git(source, "commit", "-qm", "more")
    head = git(source, "rev-parse", "HEAD")
    git(source, "replace", head, git(source, "commit-tree", "-m", "x", f"{head}~1^{{tree}}"))
    for name in ("core.fsmonitor", "filter.f.smudge", "filter.f.clean", "filter.lfs.smudge", "core.pager", "diff.external",
                 "core.sshCommand", "uploadpack.packObjectsHook", "core.alternateRefsCommand"):  # fmt: skip
        git(source, "config", name, str(program))
    hooks = source / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ("post-checkout", "reference-transaction", "post-index-change", "post-rewrite"):
        (hooks / hook).symlink_to(program)
    ran.unlink(missing_ok=True)
    for given in ({"path": str(source), "commit": head}, {"url": f"file://{source}", "commit": head}):
        workspace = bench.lay(given)
        assert files(workspace) == {
            ".gitattributes": (source / ".gitattributes").read_text(), "left.txt": "here", "id.txt": "$Format:%H$ $Id$\n",
            "a.crlf": "a\nb\n", "x.f": "plain", "big.bin": pointer, "run.sh": "#!/bin/sh\n", ".gitignore": "*.log\n", "kept.log": "kept",
            "dir/deep/er/file": "deep", "naïve\nname": "odd", "exec/.keep": "",
        }  # fmt: skip
        assert os.access(workspace / "run.sh", os.X_OK)
        assert not os.access(workspace / "id.txt", os.X_OK)
        assert str((workspace / "exec/link").readlink()) == "../dir/deep"
        assert (workspace / "loose").is_symlink()
        assert list((workspace / "vendor/sub").iterdir()) == []
        assert not ran.exists()
    shown = [f"repository {source}", f"repository file://{source}"]
    assert bench.said == [
        f"{where}: {words}"
        for where in shown
        for words in (
            "submodules are not followed, their folders are empty: vendor/sub",
            "files of Git LFS are not fetched, their pointers stand in their place: big.bin",
        )
    ]


def _tree(source: Path, *lines: tuple[str, str, str]) -> str:
    """A commit of a tree as nobody would add it: mode, name, content."""
    raw = b""
    for mode, name, content in lines:
        digest = content if mode == "40000" else git(source, "hash-object", "-w", "--stdin", stdin=content.encode())
        raw += f"{mode} {name}\0".encode() + bytes.fromhex(digest)
    tree = git(source, "hash-object", "-w", "-t", "tree", "--literally", "--stdin", stdin=raw)
    return git(source, "commit-tree", "-m", "x", tree)


def test_hostile_commits_are_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that would become the workspace's own `.git`, or leave it; links that leave; trees without end."""
    source = bench.folder / "source"
    commit(source, {"a": "1"})
    config = git(source, "rev-parse", f"{_tree(source, ('100644', 'config', '[core]'))}^{{tree}}")
    for name in (".git", ".GIT", "..", ".", "git~1", ".git ", "a/b"):
        error = bench.refusal(path=str(source), commit=_tree(source, ("40000", name, config)))
        assert "holds a name that git itself refuses" in error.message, name
    for goal in ("/etc/passwd", "../outside", "a/../../outside"):
        error = bench.refusal(path=str(source), commit=_tree(source, ("120000", "link", goal)))
        assert f"the link 'link' in a template leads out of it, to {goal!r}" in error.message
    assert not (bench.folder / "outside").exists()
    twice = bench.lay({"path": str(source), "commit": _tree(source, ("120000", "d", "."), ("40000", "d", config))})
    assert files(twice) == {"d/config": "[core]"}  # no link on the way is followed
    monkeypatch.setattr(objects, "_MAX_PATH", 300)
    level = config
    for _ in range(12):
        level = git(source, "rev-parse", f"{_tree(source, ('40000', 'd' * 30, level))}^{{tree}}")
    error = bench.refusal(path=str(source), commit=git(source, "commit-tree", "-m", "x", level))
    assert "holds a path of more than 300 bytes" in error.message
    monkeypatch.setattr(objects, "_MAX_PATH", 4000)
    monkeypatch.setattr(objects, "MAX_FILES", 1000)
    level = config
    for _ in range(30):
        level = git(source, "rev-parse", f"{_tree(source, *(('40000', f'd{n}', level) for n in range(9)))}^{{tree}}")
    error = bench.refusal(path=str(source), commit=git(source, "commit-tree", "-m", "x", level))
    assert "holds more than 1000 files" in error.message
    (source / ".git/objects" / config[:2] / config[2:]).chmod(0o600)
    (source / ".git/objects" / config[:2] / config[2:]).unlink()
    error = bench.refusal(path=str(source), commit=_tree(source, ("40000", "d", config)))
    assert config in error.message
    assert "fsck" in error.remediation


def test_where_it_lies_and_what_lies_over_it(bench: Bench) -> None:
    source = bench.folder / "source"
    base = with_a_fix(source)
    starter = {"type": "starter_files", "files": [{"path": "repo/app.py", "content": "mine"}, {"path": "top", "content": "t"}]}
    workspace = bench.lay({"path": str(source), "commit": base, "mount_point": "repo"}, starter)
    assert files(workspace) == {"repo/app.py": "mine", "repo/lib/a.py": "a = 1\n", "top": "t"}
    for place in (workspace, workspace / "repo"):
        assert git(place, "rev-parse", "--show-toplevel") == str(place)
        assert git(place, "status", "--short") == ""
        assert git(place, "rev-list", "--all", "--count") == "1"
    assert git(workspace / "repo", "ls-files").split() == ["app.py", "lib/a.py"]
    assert git(workspace, "ls-files").split() == ["repo/app.py", "repo/lib/a.py", "top"]
    assert FIX not in looked(workspace / "repo")
    plain = bench.lay({"path": str(source), "commit": base, "mount_point": "repo"}, git="none")
    assert not list(plain.rglob(".git"))
    over = bench.lay({"type": "template_dir", "path": str(source)}, {"path": str(source), "commit": base})
    assert FIX not in looked(over)  # the history of a source below it is not its own


def test_what_grades_stays_out_of_a_commit_too(bench: Bench) -> None:
    source = bench.folder / "source"
    commit(source, {
        "app.py": "x", "tasks/t/task.yaml": FIX, "tasks/t/hidden/test_x.py": FIX, "tasks/t/hidden/__init__.py": FIX, "tasks/other.md": "o",
        ".codeprobe/runs/x": FIX, "out/plan.json": FIX, "out/events.ndjson": FIX, "out/x": FIX, ".gitignore": "tasks/\n",
        ".pytest_cache/v": FIX, "lib/__pycache__/g.cpython-311.pyc": FIX, "lib/g.py": FIX,
    })  # fmt: skip
    hidden = tuple(str(source / name) for name in ("tasks/t/task.yaml", "tasks/t/hidden", "lib/g.py"))
    workspace = bench.lay({"path": str(source)}, hidden=hidden)
    assert files(workspace) == {"app.py": "x", "tasks/other.md": "o", ".gitignore": "tasks/\n"}
    assert FIX not in looked(workspace)


def test_servers(bench: Bench) -> None:
    """One that gives out single commits, one that gives out none but the ends of its branches, one that knows no commits at all."""
    source = bench.folder / "source"
    base = with_a_fix(source)
    served = bare(source, bench.folder / "served/x.git")
    git(served, "update-server-info")
    with daemon(served.parent) as url:
        assert files(bench.lay({"url": f"{url}/x.git", "commit": base})) == {"app.py": "x = 1\n", "lib/a.py": "a = 1\n"}
        assert f"{FIX} 1" in files(bench.lay({"url": f"{url}/x.git"}))["app.py"]
        error = bench.refusal(url=f"{url}/y.git")
        assert "can't be fetched from: fatal: remote error: access denied or repository not exported: /y.git" in error.message
        bench.environ |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "protocol.version", "GIT_CONFIG_VALUE_0": "0"}
    with daemon(served.parent) as url:
        pass
    error = bench.refusal(url=f"{url}/x.git", commit=base)  # nobody is there any more
    assert "can't be fetched from: " in error.message
    assert "Connection refused" in error.message
    with web(served.parent) as (place, asked):
        secret = "s3cr3t-t0ken"
        workspace = bench.lay({"url": f"http://{secret}@{place}/x.git", "commit": base})
        assert files(workspace) == {"app.py": "x = 1\n", "lib/a.py": "a = 1\n"}
        assert FIX not in looked(workspace)
        store = next(path for path in bench.cache.rglob(base) if "x = 1" in git(path, "show", f"{base}:app.py") and path.is_dir())
        assert len(git(store, "cat-file", "--batch-all-objects", "--batch-check").splitlines()) == 5
        count = len(asked)
        bench.again()
        bench.lay({"url": f"http://{secret}@{place}/x.git", "commit": base})
        assert len(asked) == count  # it is kept
        error = bench.refusal(url=f"http://me:{secret}@{place}/none.git?private={secret}", commit=base)
        said = f"{error.message} {error.remediation} {error.detail}"
        assert secret not in said
        assert f"http://[REDACTED]@{place}/none.git?[REDACTED]" in said
        assert "fatal: " in said


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("me:s3cr3t%2Fw%25rd@", "me:s3cr3t/w%rd"), ("t0ken-alone@", "t0ken-alone:"), ("me@", "me:of-the-helper")],
    ids=["both", "token", "helper"],
)
def test_who_logs_in_is_on_no_command_line(bench: Bench, monkeypatch: pytest.MonkeyPatch, given: str, wanted: str) -> None:
    """All users of a machine see these, of git's own helpers too. The user's own helpers still know passwords."""
    source = bench.folder / "source"
    base = commit(source, {"app.py": "x = 1\n"})
    served = bare(source, bench.folder / "served/x.git")
    git(served, "update-server-info")
    log, program = bench.folder / "trace", bench.folder / "git"
    program.write_text(f'#!/bin/sh\nGIT_TRACE={log} exec git "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(fetching, "find_git", lambda: str(program))
    if "helper" in wanted:
        helper = bench.folder / "helper"
        helper.write_text("#!/bin/sh\necho password=of-the-helper\n")
        helper.chmod(0o755)
        bench.environ |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "credential.helper", "GIT_CONFIG_VALUE_0": str(helper)}
        bench.again()
    with web(served.parent, wanted) as (place, asked):
        assert files(bench.lay({"url": f"http://{given}{place}/x.git", "commit": base})) == {"app.py": "x = 1\n"}
    assert any("401" in line for line in asked)
    said = log.read_text()
    assert "remote-http" in said
    assert not [part for part in {*wanted.split(":"), *given.strip("@").split(":")} - {"me", ""} if part in said]


def test_what_is_kept_is_not_believed(bench: Bench) -> None:
    """A session that could write into the cache changes no later workspace."""
    source = bench.folder / "source"
    base = commit(source, {"a": "1"})
    given = {"url": f"file://{source}", "commit": base}
    bench.lay(given)
    (store,) = (path for path in bench.cache.rglob(base) if path.is_dir())
    blob = git(source, "rev-parse", f"{base}:a")
    for path in list((store / "objects").rglob("*")):
        if path.is_file():
            path.chmod(0o600)
            path.unlink()
    for digest in git(source, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split():
        place = store / "objects" / digest[:2] / digest[2:]
        place.parent.mkdir(exist_ok=True)
        place.write_bytes((source / ".git/objects" / digest[:2] / digest[2:]).read_bytes())
    other = git(source, "hash-object", "-w", "--stdin", stdin=b"2")
    planted = store / "objects" / blob[:2] / blob[2:]
    planted.write_bytes((source / ".git/objects" / other[:2] / other[2:]).read_bytes())
    bench.again()
    error = bench.refusal(**given)
    assert f"commit {base[:12]} of the repository" in error.message
    assert files(bench.lay(given)) == {"a": "1"}  # it was thrown away, and is fetched anew
