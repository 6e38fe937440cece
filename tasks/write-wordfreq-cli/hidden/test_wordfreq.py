import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path.cwd() / "wordfreq.py"


def wordfreq(*args, stdin="", cwd=None):
    return subprocess.run(
        [sys.executable, "-X", "utf8", str(PROGRAM), *map(str, args)],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        cwd=cwd,
        timeout=30,
    )


def test_most_frequent_first_ties_by_name():
    done = wordfreq(stdin="pear fig Fig apple PEAR kiwi")
    assert (done.returncode, done.stdout) == (0, "2\tfig\n2\tpear\n1\tapple\n1\tkiwi\n")


def test_words_have_letters_and_inner_apostrophes():
    done = wordfreq(stdin="'Don't' don't 42 x2y Ärger, ärger -- rock'n'roll")
    assert done.stdout.splitlines() == ["2\tdon't", "2\tärger", "1\trock'n'roll", "1\tx", "1\ty"]


def test_ten_lines_unless_told():
    text = " ".join(f"w{chr(97 + n)}" for n in range(20))
    assert len(wordfreq(stdin=text).stdout.splitlines()) == 10
    assert len(wordfreq("--top", "15", stdin=text).stdout.splitlines()) == 15


def test_files_and_standard_input_are_counted_together(tmp_path):
    (tmp_path / "a.txt").write_text("one two", encoding="utf-8")
    (tmp_path / "b.txt").write_text("two three", encoding="utf-8")
    done = wordfreq("a.txt", "-", "b.txt", stdin="two", cwd=tmp_path)
    assert done.stdout == "3\ttwo\n1\tone\n1\tthree\n"


def test_json_keeps_the_order():
    done = wordfreq("--json", "--top", "2", stdin="b b a c c c")
    assert list(json.loads(done.stdout).items()) == [("c", 3), ("b", 2)]


def test_no_words_is_no_error():
    assert (wordfreq(stdin="").returncode, wordfreq(stdin="").stdout) == (0, "")


def test_a_missing_file_is_named_and_nothing_printed(tmp_path):
    (tmp_path / "good.txt").write_text("one", encoding="utf-8")
    done = wordfreq(tmp_path / "good.txt", tmp_path / "missing.txt")
    assert (done.returncode, done.stdout) == (1, "")
    assert "missing.txt" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("args", [("--top", "0"), ("--top", "many"), ("--frequency",)])
def test_wrong_usage(args):
    assert wordfreq(*args, stdin="a").returncode == 2
