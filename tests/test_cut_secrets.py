"""Where text is shortened no part of a secret is left: not by who knows the secrets, nor by a child that does not."""

from __future__ import annotations

import base64
import io
import os
import sys
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_codeprobe.text import REDACTED, Redactor, ending, json_line, one_line, shorten
from tests.front_door import Project, Run, scripted

KEY = "Qz7Xv-Wk3Jp_9Tn4Gy-Hb6Lc-Rm2Sd_Vf8Kw"
PARTS = [KEY[i : i + 6] for i in range(len(KEY) - 5)]
#: wherever this is cut, it is cut through the secret
SPREAD = """
import json, os, sys
from pathlib import Path
key = os.environ["MY_API_KEY"]
many = (key + "|") * 50_000
for stream in (sys.stdout, sys.stderr):
    print(many, file=stream)
Path("app.py").write_text(f"text = {(key + '|') * 1000!r}\\n")
Path("data.json").write_text(json.dumps({"a": (key + '|') * 250, "b": key + "!"}))
sys.exit(int(sys.argv[1]))
"""
HIDDEN = """
import pytest, app
def test_shown():
    assert app.text == "nothing"
def test_said():
    print(app.text)
    raise RuntimeError(app.text)
@pytest.mark.parametrize("x", [1])
def test_in_lines(x):
    assert app.text.split("|") == []
"""
MARKED = """
import os, pytest
@pytest.mark.codeprobe(task="tasks/loud.yaml")
def test_marked(codeprobe_session):
    many = (os.environ["MY_API_KEY"] + "|") * 500
    print(many)
    assert many == "nothing"
@pytest.mark.codeprobe(task="tasks/loud.yaml")
def test_raises(codeprobe_session):
    raise ValueError("some words " + (os.environ["MY_API_KEY"] + "|") * 500)
@pytest.mark.codeprobe(task="tasks/loud.yaml")
def test_skips(codeprobe_sandbox):
    import pytest
    pytest.skip((os.environ["MY_API_KEY"] + "|") * 500)
"""


def leaks(run: Run) -> list[str]:
    """Where a part of the secret stands: the whole run dir, both streams, the JUnit file."""
    places = {str(path): path.read_bytes().decode("utf-8", "replace") for path in run.folder.rglob("*") if path.is_file()}
    places |= {"stdout": run.stdout, "stderr": run.stderr, "junit": run.junit_file.read_text()}
    found = [(name, text, text.index(part)) for name, text in places.items() for part in PARTS if part in text]
    return [f"{name}: {text[max(0, at - 60) : at + 60]!r}" for name, text, at in found]


def test_nothing_of_a_secret_is_left_at_any_cut(project: Project) -> None:
    spread = f"{sys.executable} {project.write('spread.py', SPREAD)}"
    both = {"env_passthrough": ["MY_API_KEY"]}
    shows = [
        {"type": "run_command", "command": f"{spread} 3"},
        {"type": "run_command", "command": f"{spread} 0", "expected_stdout": "else"},
        {"type": "run_command", "command": f"{spread} 0", "score_from_stdout": True},
        {"type": "json_check", "path": "data.json", "json_schema": {"properties": {"a": {"type": "integer"}, "b": {"enum": [1]}}},
         "assertions": [{"expression": "a", "expected": "x"}, {"expression": "b", "operator": "regex", "expected": "y"}]},
    ]  # fmt: skip
    project.task("loud", agent={"type": "command", "command": [*spread.split(), "0"]}, sandbox=both, success_criteria=shows)
    project.task("crash", agent={"type": "command", "command": ["sh", "-c", f'cd "$TMPDIR"; {spread} 127']}, sandbox=both)
    project.task("steps", agent=scripted({"run": f"{spread} 1"}), sandbox=both, success_criteria=shows[:1])
    project.task("setup", agent=scripted(), sandbox=both, pre_run=[{"command": f"{spread} 3"}])
    project.write("tasks/hidden/test_hidden.py", HIDDEN)
    project.task("hidden", agent={"type": "command", "command": [*spread.split(), "0"]}, sandbox=both,
                 success_criteria=[{"type": "pytest", "paths": ["hidden"]}])  # fmt: skip
    project.write("tasks/broken/test_hidden.py", "def test_x(): pass\n")
    project.write("tasks/broken/conftest.py", f"import os\nos.system({spread + ' 0'!r})\n")
    project.task("broken", agent=scripted(), sandbox=both,
                 success_criteria=[{"type": "pytest", "paths": ["broken"], "args": ["--no-such-option"]}])  # fmt: skip
    project.write("test_marked.py", MARKED)
    args = ("tasks/*.yaml", "test_marked.py", "-rA", "-vv", "--codeprobe-trace-max-bytes=30000")
    run = project.run(*args, env={"MY_API_KEY": KEY})
    assert run.wrote, run.output
    found = leaks(run)
    assert not found, "\n".join(found)
    assert set(run.statuses.values()) == {"failed", "error", "skipped"}, run.statuses
    for name in ("loud", "crash", "steps", "setup", "hidden", "broken"):
        assert REDACTED in (run.trial(name) / "result.json").read_text(), name


@pytest.mark.parametrize("secret", [KEY, 'quo"te\\back\u00fcslash/and\ttab', "line one of it\nline two of it"])
def test_a_part_beside_a_cut_is_found_in_every_spelling(secret: str) -> None:
    redactor = Redactor([secret])
    for size in range(6, len(secret)):
        head, tail = secret[:size], secret[-size:]
        for text in (f"a {head}…", f"…{tail} b", f"{head}...{tail}", f"x{head}\n[… 12 bytes left out …]\n{tail}y", f"{head}\ufffd…"):
            clean = redactor.text(text)
            assert REDACTED in clean, text
            assert head not in clean, text
            assert tail not in clean, text
            assert redactor.text(clean) == clean
            assert REDACTED.encode() in redactor.data(text.encode())
            assert REDACTED.encode() in redactor.data(json_line(text).encode()), json_line(text)
    for text in ("nothing … more", "wait...", f"{secret[:5]}…", "…", "[… 3 bytes left out …]"):
        assert redactor.text(text) == text


@pytest.mark.parametrize("cut", [shorten, one_line, ending])
def test_each_way_to_cut_leaves_a_mark(cut: object) -> None:
    assert callable(cut)
    redactor = Redactor([KEY])
    for before in range(90):
        text = redactor.text(cut("." * before + "x" + KEY * 3 + "y" + "." * (90 - before), 100))
        assert not [part for part in PARTS if part in text], text


def test_a_colour_in_the_middle_hides_nothing() -> None:
    redactor = Redactor([KEY])
    assert redactor.text(f"a \x1b[31m{KEY[:9]}\x1b[m\x1b[K{KEY[9:]} b") == f"a {REDACTED} b"
    assert redactor.text("a \x1b[31mred\x1b[m b") == "a \x1b[31mred\x1b[m b"
    assert redactor.text(f"a {KEY} b \x1b[31m{KEY[:9]}\x1b[m{KEY[9:]} c") == f"a {REDACTED} b {REDACTED} c"


@pytest.mark.parametrize("colour", ["\x1b[31;1m", "\x1b[m", "\\u001b[0m", "\\x1b[1m"])
def test_a_colour_in_the_middle_hides_nothing_in_a_file(colour: str) -> None:
    """As a log holds it, and as a transcript or a stream of events does."""
    redactor, whole = Redactor([KEY]), f'{{"a": "{KEY}"}} '.encode()
    for size in range(7, len(KEY) - 6):
        split = f'{{"b": "{colour}{KEY[:size]}{colour}{KEY[size:]}{colour} c"}}'.encode()
        redactor.stream(io.BytesIO(whole + split), target := io.BytesIO())
        for text in (redactor.data(split), redactor.data(whole + split), target.getvalue()):
            assert KEY[:7].encode() not in text
            assert KEY[-7:].encode() not in text
            assert text.count(colour.encode()) == 3


def test_a_part_at_the_border_of_a_chunk_is_found() -> None:
    redactor = Redactor([KEY])
    for shift in (*range(0, 130, 13), 700):
        block = b"z" * ((1 << 20) - shift) + KEY[:20].encode() + b"\n[\xe2\x80\xa6 9 bytes left out \xe2\x80\xa6]\n" + KEY[9:].encode()
        target = io.BytesIO()
        redactor.stream(io.BytesIO(block + b"z" * 3000), target)
        assert target.getvalue().count(REDACTED.encode()) == 2, shift
        assert target.getvalue().count(b"z") == (1 << 20) - shift + 3000
    hostile = io.BytesIO((b"..." + KEY[:7].encode()) * 100_000)
    redactor.stream(hostile, target := io.BytesIO())
    assert KEY[:7].encode() not in target.getvalue()[:-7]


def test_what_is_printed_before_the_kept_end_is_cut_at_a_mark(tmp_path: Path) -> None:
    from pytest_codeprobe.trial.session import tail

    log = tmp_path / "log"
    log.write_bytes(b"x" * 100)
    assert tail(log, 100) == "x" * 100
    assert tail(log, 10) == "…" + "x" * 10
    assert os.path.getsize(log) == 100  # noqa: PTH202


@given(
    secret=st.text(st.characters(codec="utf-8"), min_size=8, max_size=40),
    before=st.binary(max_size=7),
    behind=st.binary(max_size=7),
)
def test_nothing_of_it_is_left_in_base64_or_in_a_url(secret: str, before: bytes, behind: bytes) -> None:
    """Of base64 the characters at its edges, which hold bits of what stands beside it, and so at most five of the secret's."""
    known = Redactor([secret])
    raw = secret.encode()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = known.text(encode(before + raw + behind).decode())
        at = len(before)
        whole = encode(before + raw + behind).decode()
        inner = whole[-(-at * 8 // 6) : (at + len(raw)) * 8 // 6]
        assert inner not in text
        assert REDACTED in text
    for quoted in (quote(secret, safe=""), quote_plus(secret)):
        assert known.text(f"https://x/?a={quoted}&b") == f"https://x/?a={REDACTED}&b"
