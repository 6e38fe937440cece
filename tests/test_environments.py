"""The parts of sandbox.setup: scripts that have moved, whose packages are kept, what installers see, which interpreter is taken."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_codeprobe.errors import CodeprobeError, Stopped
from pytest_codeprobe.model.network import Unheld
from pytest_codeprobe.sandboxes.environments import _EXACT_NODE, _EXACT_PYTHON
from pytest_codeprobe.sandboxes.installing import Installer, find_interpreter, own_interpreter
from pytest_codeprobe.sandboxes.sealed import seal
from pytest_codeprobe.sandboxes.sweep import abandoned, folder_of, is_private
from pytest_codeprobe.sandboxes.thin import PythonSet, lay_thin, moved, paths_named
from pytest_codeprobe.sandboxes.turns import turn
from pytest_codeprobe.trial.setup import installers_environment
from tests.fake_grading import spawner
from tests.task_files import MINIMAL, expand_one


@pytest.mark.parametrize("folder", ["short", "with a space", "long" * 40])
def test_a_script_that_has_moved_still_starts(tmp_path: Path, folder: str) -> None:
    there = tmp_path / folder
    (there / "bin").mkdir(parents=True)
    (there / "bin" / "python").symlink_to(sys.executable)
    script = there / "bin" / "tool"
    script.write_bytes(
        moved(b"#!/old place/bin/python -I\nimport sys\nprint(sys.argv[1:], sys.flags.isolated)\n", Path("/old place"), there)
    )
    script.chmod(0o755)
    done = subprocess.run([script, "a b", "c"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "['a b', 'c'] 1\n"
    assert moved(b"#!/bin/sh\nexec /old/x\n", Path("/old"), Path("/new")) == b"#!/bin/sh\nexec /new/x\n"


def test_what_is_kept_for_later_runs() -> None:
    """Only what will be the same whenever it is asked for."""
    exact = ["a==1", "a.b-c == 1.0.post1+x", "a[b, c]==2!1.0rc1"]
    loose = ["a", "a>=1", "a==1.*", "a==1,>0", "a~=1.0", "a==1; python_version>'3'", "a @ https://h/a.whl", "/x/a.whl", "a===1"]
    assert [bool(_EXACT_PYTHON.fullmatch(text)) for text in (*exact, *loose)] == [True] * 3 + [False] * 9
    exact, loose = ["a@1.2.3", "@s/a@1.2.3-rc.1"], ["a", "a@^1.2.3", "a@latest", "a@1.2", "/x/a.tgz", "git+ssh://h/a.git"]
    assert [bool(_EXACT_NODE.fullmatch(text)) for text in (*exact, *loose)] == [True] * 2 + [False] * 6


def test_what_pip_and_npm_see() -> None:
    """The user's settings for them, proxies and certificates; no key of a model, and nothing that puts packages elsewhere."""
    seen = {"HOME": "h", "PATH": "p", "PIP_INDEX_URL": "i", "npm_config_registry": "r", "NPM_CONFIG_PROXY": "q", "https_proxy": "q",
            "NPM_TOKEN": "t", "SSL_CERT_FILE": "s", "CC": "c"}  # fmt: skip
    unseen = {"ANTHROPIC_API_KEY": "k", "PIP_TARGET": "x", "PIP_USER": "1", "npm_config_prefix": "x", "NPM_CONFIG_GLOBAL": "1",
              "PYTHONPATH": "x", "VIRTUAL_ENV": "x", "PYTEST_ADDOPTS": "-x", "NODE_OPTIONS": "x"}  # fmt: skip
    assert installers_environment({**seen, **unseen}) == seen


def test_projects_that_are_installed_to_be_edited(tmp_path: Path) -> None:
    """Their folders where they lie in the workspace; no line is run, and no link leads out."""
    site, workspace = tmp_path / "site", tmp_path / "workspace"
    for folder in (site, workspace / "src", tmp_path / "elsewhere"):
        folder.mkdir(parents=True)
    (workspace / "out").symlink_to(tmp_path / "elsewhere")
    lines = [
        str(workspace / "src"),
        str(workspace / "out"),
        str(tmp_path / "elsewhere"),
        "import os; os._exit(3)",
        "src",
        str(workspace / "no"),
    ]
    (site / "a.pth").write_text("\n".join(lines))
    (site / "b.pth").symlink_to(site / "a.pth")
    os.mkfifo(site / "c.pth")
    assert list(paths_named(site, workspace)) == [workspace / "src"]
    assert list(paths_named(tmp_path / "nowhere", workspace)) == []


def test_which_interpreter(tmp_path: Path) -> None:
    """Ours where it fits, else the first on PATH that says that it is one: a program of the name may be none."""
    own = own_interpreter()
    liar, real = tmp_path / "liar", tmp_path / "real"
    for folder, text in ((liar, "exit 127"), (real, 'echo \'["/opt/py/bin/python3.99", "/opt/py", [3, 99, 4]]\'')):
        folder.mkdir()
        (folder / "python3.99").write_text(f"#!/bin/sh\n{text}\n")
        (folder / "python3.99").chmod(0o755)
    context = SimpleNamespace(network=Unheld(), processes=spawner(), stops=SimpleNamespace(folder=tmp_path / "stops"))
    env = {"PATH": f"{liar}:{real}:{os.defpath}"}
    installer = Installer(cast("Any", context), cast("Any", None), env, tmp_path, time.monotonic() + 60)
    for version in (None, "3", own.version, own.version.rpartition(".")[0]):
        assert find_interpreter(version, installer) == own
    for version in ("3.99", "3.99.4"):
        assert find_interpreter(version, installer)[1:] == ("/opt/py", "3.99.4")
    with pytest.raises(CodeprobeError, match=r"there is no Python 3.99.5 on PATH: .*liar/python3.99, .*real/python3.99"):
        find_interpreter("3.99.5", installer)


def test_a_folder_that_processes_share(tmp_path: Path) -> None:
    mine = folder_of(os.getpid(), tmp_path, "0123456789abcdef")
    assert mine == folder_of(os.getpid(), tmp_path, "0123456789abcdef")
    assert is_private(mine.name)
    assert list(abandoned(tmp_path)) == []
    (mine / "owner.json").unlink()  # whoever made it was killed
    assert (folder_of(os.getpid(), tmp_path, "0123456789abcdef") / "owner.json").exists()


def test_a_turn_is_waited_for_no_longer_than_told(tmp_path: Path) -> None:
    with turn(tmp_path / "lock", lambda: None, 1.0) as held:
        assert held
        with turn(tmp_path / "lock", lambda: None, 0.01) as second:
            assert not second
        with pytest.raises(Stopped), turn(tmp_path / "lock", lambda: "interrupted", 60.0):
            pass
    with turn(tmp_path / "lock", lambda: None, 1.0) as held:
        assert held


def test_packages_make_another_session(tmp_path: Path) -> None:
    from pytest_codeprobe.trial.fingerprint import _sandbox

    found = [
        _sandbox(expand_one(tmp_path, f"{MINIMAL}sandbox: {{setup: {setup}}}\n"))
        for setup in ("{}", "{python: {}}", "{python: {packages: [a]}}", "{python: {packages: [b]}}", "{node: {packages: [b]}}")
    ]
    assert len({str(values) for values in found}) == len(found)


def test_what_comes_first_in_graders_python(tmp_path: Path) -> None:
    """What the session has installed before what was asked for; of both the modules, of the session's no `.pth` file."""
    own = own_interpreter()
    site = f"lib/python{own.version.rpartition('.')[0]}/site-packages"
    shared, installed = tmp_path / "shared", tmp_path / "installed"
    for folder in (shared / "bin", shared / site, installed):
        folder.mkdir(parents=True)
    (shared / "bin" / "python").symlink_to(own.program)
    (shared / "bin" / "tool").write_text(f"#!{shared}/bin/python\nimport sys\nprint(sys.prefix)\n")
    (shared / "bin" / "tool").chmod(0o755)
    (shared / "pyvenv.cfg").write_text(f"home = {Path(own.program).parent}\ninclude-system-site-packages = false\n")
    for name, place in (("asked", shared / site), ("newer", shared / site), ("newer", installed), ("added", installed)):
        (place / f"{name}.py").write_text(f"WHERE = {place.name!r}\n")
    (shared / site / "hook.pth").write_text("import sys; sys.hooked = True\n")  # as packages have them
    (installed / "evil.pth").write_text("import os; os._exit(0)\n")
    (installed / "sitecustomize.py").write_text("import os; os._exit(0)\n")
    made = PythonSet(shared, own.program, own.prefix, site)
    lay_thin(made, tmp_path / "tools", before=[installed], quiet=True)
    code = "import sys, asked, newer, added; print(asked.WHERE, newer.WHERE, added.WHERE, sys.hooked)"
    done = subprocess.run([tmp_path / "tools/bin/python", "-c", code], capture_output=True, text=True, check=True, timeout=60, env={})
    assert done.stdout.split() == ["site-packages", "installed", "installed", "True"]
    tool = subprocess.run([tmp_path / "tools/bin/tool"], capture_output=True, text=True, check=True, timeout=60, env={})
    assert tool.stdout == f"{tmp_path / 'tools'}\n"
    before = seal(shared)
    assert seal(shared) == before
    (shared / site / "asked.py").write_text("WHERE = 'elsewhere'\n")
    assert seal(shared) != before
