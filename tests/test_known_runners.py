"""Which known runners a command line starts."""

from __future__ import annotations

import pytest

from pytest_codeprobe.criteria.command.runners import CONFIGURATION, runners_of
from pytest_codeprobe.trial.exposed import _example
from pytest_codeprobe.trial.protect import matcher


@pytest.mark.parametrize(
    ("command", "runners"),
    [
        ("npm test", ["npm"]),
        ("cd app && CI=1 npm run build; make -s check | tail", ["npm", "make"]),
        ("python3 -m pytest -q", ["pytest"]),
        (".venv/bin/python -I -m pytest", ["pytest"]),
        ("env A=b timeout 30 /usr/bin/make", ["make"]),
        ("npx --yes jest", ["jest"]),
        ("uv run pytest", ["pytest"]),
        ('bash -c "cargo test && go test ./..."', ["cargo", "go"]),
        ("if make; then true; fi", ["make"]),
        ("(make)", ["make"]),
        ("make\nmake all", ["make"]),
        ("pip install pytest", []),
        ("grep -q make README.md", []),
        ("echo npm test; cat Makefile", []),
        ("./make.sh", []),
        ("make 'unfinished", []),
    ],
)
def test_runners_of(command: str, runners: list[str]) -> None:
    assert list(runners_of(command)) == runners


@pytest.mark.parametrize("glob", sorted({glob for globs in CONFIGURATION.values() for glob in globs}))
def test_what_is_advised_holds(glob: str) -> None:
    """Once it is protected nothing more is said of it."""
    assert matcher([glob])(_example(glob))
