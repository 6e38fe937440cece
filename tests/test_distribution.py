"""The package as it is installed: from a wheel in `make test`, from this folder where somebody develops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import pytest_codeprobe

ROOT = Path(__file__).resolve().parents[1]
NAME = "pytest-codeprobe"


def editable_root() -> Path | None:
    """The folder of an editable installation; None for one from a wheel."""
    text = metadata.distribution(NAME).read_text("direct_url.json")
    direct = json.loads(text) if text else {}
    if not direct.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlsplit(direct["url"]).path))


def installed_folder() -> Path:
    editable = editable_root()
    return Path(str(metadata.distribution(NAME).locate_file("pytest_codeprobe"))) if editable is None else editable / "pytest_codeprobe"


def where_imported(folder: Path) -> Path:
    """Where another Python, started in a folder, finds the package."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    code = "import pytest_codeprobe; print(pytest_codeprobe.__file__)"
    argv = [sys.executable, "-c", code]
    return Path(subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, check=True).stdout.strip()).parent


@pytest.mark.joint
def test_the_tests_meet_the_installed_package(tmp_path: Path) -> None:
    here = Path(pytest_codeprobe.__file__).parent
    assert here.samefile(installed_folder())
    assert where_imported(tmp_path).samefile(here)


@pytest.mark.joint
def test_the_wheel_holds_the_source_whole() -> None:
    installed = Path(pytest_codeprobe.__file__).parent
    source = ROOT / "pytest_codeprobe"

    def content(folder: Path) -> dict[str, bytes]:
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }

    held = content(installed)
    assert held == content(source)
    assert {"py.typed", "error_codes.json", "children/keeper.py", "children/spawner.py"} <= held.keys()


@pytest.mark.joint
def test_metadata() -> None:
    distribution = metadata.distribution(NAME)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert distribution.version == project["version"] == pytest_codeprobe.__version__
    entries = {(entry.group, entry.name): entry.value for entry in distribution.entry_points}
    assert entries == {
        ("pytest11", "codeprobe"): "pytest_codeprobe.plugin",
        ("console_scripts", "codeprobe"): "pytest_codeprobe.cli:main",
        ("console_scripts", "pytest-codeprobe"): "pytest_codeprobe.cli:main",
    }


@pytest.mark.joint
@pytest.mark.parametrize("script", ["codeprobe", "pytest-codeprobe"])
def test_console_script(script: str, tmp_path: Path) -> None:
    path = Path(sys.executable).with_name(script)
    done = subprocess.run([path, "--version"], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert pytest_codeprobe.__version__ in done.stdout
