"""Tests that pytest runs once in the process that hidden tests are forked from, before any task's: see hidden_runner.py.

They do what most tests do: pass, fail, and fail as a unittest.
"""

from __future__ import annotations

import unittest


def test_pass() -> None:
    """As it should."""
    assert sorted([2, 1]) == [1, 2]


def test_fail() -> None:
    """With an explanation."""
    assert {"a": len("ab")} == {"a": 1}


class TestMethods(unittest.TestCase):
    """The older kind."""

    def test_fail(self) -> None:
        """With an exception of unittest."""
        self.assertEqual(1, 2)  # noqa: PT009
