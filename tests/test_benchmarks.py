"""The programs of benchmarks/ run: what nobody runs every day is broken the day somebody needs it. What they measure is not looked at."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.front_door import clean_environment

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
#: program -> arguments of a small run
SMALL = {
    "collect": ("--files", "3", "--rounds", "0"),
    "hidden": ("--tasks", "2", "--rounds", "0"),
    "measure": (),
    "overhead": ("--tasks", "2", "--rounds", "0"),
    "overhead --stages": ("--tasks", "2", "--rounds", "1"),
    "parallel": ("--sessions", "2", "--seconds", "0.2"),
    "peers": ("--tasks", "2", "--rounds", "0"),
    "scale": ("--trials", "20"),
    "soak": ("--minutes", "0.01", "--jobs", "2", "--seconds", "0.2"),
    "startup": ("--rounds", "0"),
    "workspace": ("--files", "10", "--count", "2", "--rounds", "0", "--large", "8", "--trials", "2"),
}


def test_each_has_a_small_run() -> None:
    assert {name.split()[0] for name in SMALL} == {path.stem for path in FOLDER.glob("[a-z]*.py")}


@pytest.mark.parametrize("name", SMALL)
def test_it_prints_a_table(name: str) -> None:
    program, *flags = name.split()
    command = [sys.executable, str(FOLDER / f"{program}.py"), *flags, *SMALL[name]]
    result = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(result.stdout.splitlines()) >= (1 if program == "measure" else 3), result.stdout
