"""What hidden tests' sources say before a run, without a warning that others in the process would see."""

from __future__ import annotations

import ast
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_codeprobe.criteria.hidden import sources

pytestmark = pytest.mark.joint

WORDS = r"""\ d 8 4 77 N u { } ' " f' b' r' 0x 1 . _ e if or in is not for and else ( ) x = 1j 0b1 0o7 # +AFw- ü"""
PIECES = st.sampled_from([*WORDS.split(" "), " ", "\n", "\r", "try:\n ", "finally:\n ", "return 1", "def f():\n ", "# coding: utf-7\n"])


@settings(max_examples=2000, deadline=None)
@given(st.lists(PIECES, max_size=12).map("".join))
@example("a = '\\d'")
@example("a = b'\\u1234'")
@example("a = '\\477'")
@example("a = 0x1for x in y")
@example("a = 1if b else 2")
@example("a = 1.or 2")
@example("a = 1e5or 2")
@example("a = 1jif b else 2")
@example("# coding: utf-7\na = '+AFw-d'")
@example("def f():\n try: pass\n finally: return 1")
def test_nothing_is_parsed_here_that_the_parser_warns_about(text: str) -> None:
    source = text.encode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            ast.parse(source)
        except (SyntaxError, ValueError):
            return
    assert not caught or sources.may_warn(source)


@pytest.mark.parametrize(
    "more", ["", "a = '\\d'\n", "def deep():\n    return " + "(" * 400 + ")" * 400 + "\n"], ids=["here", "process", "deep"]
)
def test_imports_are_the_same_in_both_ways(tmp_path: Path, more: str) -> None:
    file = tmp_path / "test_a.py"
    file.write_text(
        "import os.path, json as j\nfrom xml.dom import minidom\nfrom . import own\ndef f():\n    from email import policy\n" + more
    )
    names, unknown = sources.imported([file])
    result = subprocess.run([sys.executable, "-I", "-W", "ignore", "-c", sources.PARSE, file], capture_output=True, text=True, check=False)
    if "(((" in more:
        assert unknown == [file]
        assert result.returncode == 1
        assert result.stdout.startswith("test_a.py: ")
    else:
        assert unknown == ([file] if more else [])
        assert set(result.stdout.split()) == {"os", "json", "xml", "email"} == (names or {"os", "json", "xml", "email"})
