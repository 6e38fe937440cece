import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path.cwd() / "bin" / "rotate.sh"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory, monkeypatch):
    """A folder to stand in: a script that gets DIR wrong must not delete what it is graded with."""
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


def rotate(*args):
    return subprocess.run(["sh", str(SCRIPT), *map(str, args)], capture_output=True, encoding="utf-8", timeout=30)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "the backups"
    made.mkdir()
    return made


def fill(folder, *names):
    for age, name in enumerate(names):
        (folder / name).write_text(name)
        os.utime(folder / name, (1_600_000_000 + age, 1_600_000_000 + age))


def left(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_the_newest_by_name_stay(folder):
    fill(folder, "db-2024-03-01.tar.gz", "db-2023-12-31.tar.gz", "db-2024-02-29.tar.gz", "db-2024-01-01.tar.gz")
    done = rotate(folder, 2)
    assert (done.returncode, done.stderr) == (0, "")
    assert left(folder) == ["db-2024-02-29.tar.gz", "db-2024-03-01.tar.gz"]
    assert done.stdout.splitlines() == [f"{folder}/db-2023-12-31.tar.gz", f"{folder}/db-2024-01-01.tar.gz"]


def test_each_name_is_counted_apart(folder):
    fill(folder, *(f"{name}-2024-01-0{day}.tar.gz" for name in ("db", "www", "db-eu") for day in (1, 2, 3)))
    assert rotate(folder, 2).returncode == 0
    assert left(folder) == sorted(f"{name}-2024-01-0{day}.tar.gz" for name in ("db", "www", "db-eu") for day in (2, 3))


def test_blanks_and_dashes_in_names(folder):
    fill(folder, "my site-2024-01-02.tar.gz", "my site-2024-01-01.tar.gz", "-x y--2024-01-01.tar.gz", "-x y--2024-01-02.tar.gz")
    assert rotate(folder, 1).returncode == 0
    assert left(folder) == ["-x y--2024-01-02.tar.gz", "my site-2024-01-02.tar.gz"]


def test_everything_else_is_left_alone(folder):
    others = ["notes.txt", "db-2024-01-01.tar.gz.part", "db-2024-1-1.tar.gz", "db.tar.gz", "2024-01-01.tar.gz", "db-2024-01-01.tgz"]
    fill(folder, *others, "db-2024-01-01.tar.gz", "db-2024-01-05.tar.gz")
    (folder / "old-2020-01-01.tar.gz").mkdir()
    (folder / "old-2020-01-01.tar.gz" / "db-2020-01-01.tar.gz").write_text("inside")
    (folder / "db-2019-01-01.tar.gz").symlink_to("notes.txt")
    rotate(folder, 1)
    assert left(folder) == sorted([*others, "db-2024-01-05.tar.gz", "old-2020-01-01.tar.gz", "db-2019-01-01.tar.gz"])
    assert left(folder / "old-2020-01-01.tar.gz") == ["db-2020-01-01.tar.gz"]


def test_fewer_than_keep_and_none(folder):
    assert (rotate(folder, 3).returncode, rotate(folder, 3).stdout) == (0, "")
    fill(folder, "db-2024-01-01.tar.gz")
    done = rotate(folder, 3)
    assert (done.returncode, done.stdout, left(folder)) == (0, "", ["db-2024-01-01.tar.gz"])


@pytest.mark.parametrize("keep", ["0", "-1", "two", "", "1.5", "1 2"])
def test_a_wrong_number(folder, keep):
    fill(folder, "db-2024-01-01.tar.gz", "db-2024-01-02.tar.gz")
    done = rotate(folder, keep)
    assert (done.returncode, done.stdout, len(left(folder))) == (2, "", 2)
    assert done.stderr.strip()


@pytest.mark.parametrize("args", [(), ("only-a-folder",), ("a", "1", "b")])
def test_a_wrong_number_of_arguments(args):
    done = rotate(*args)
    assert done.returncode == 2
    assert done.stderr.strip()
