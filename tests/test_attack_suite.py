"""No agent changes its verdict, makes its failure an error, or holds the run up: each case under each driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import containers
from tests.attack_cases import DIGITS, FORGERIES, lay, name_of
from tests.doc_pages import DOCS, rows, section
from tests.front_door import Project

DRIVERS = ("tempdir", "bubblewrap", "docker")
#: those that containers could change, which cost more; CP_ALL_ATTACKS: all of them
IN_CONTAINERS = (
    "overwrite the hidden test",
    "a planted .pyc",
    "write reward.txt and result.json",
    "a background process that goes on writing",
    "a background process of what is graded",
    "a link out in place of a graded file",
    "a device in place of a graded file",
    "take what its keeper and the first process need",
    "kill everything",
)


@pytest.mark.parametrize("driver", DRIVERS)
def test_nothing_is_forged(project: Project, tmp_path: Path, driver: str) -> None:
    """All in one run, 4 at a time: none disturbs another one either."""
    outside = tmp_path / "outside"
    is_docker = driver == "docker"
    engine = containers.use(project) if is_docker else None
    some = is_docker and not os.environ.get("CP_ALL_ATTACKS")
    attacks = {words: FORGERIES[words] for words in (IN_CONTAINERS if some else FORGERIES)}
    lay(project, attacks, outside, python="python3" if is_docker else sys.executable)
    run = project.run("tasks", "--codeprobe-agent=command", f"--codeprobe-driver={driver}", "--codeprobe-jobs=4", seconds=200)
    run.assert_consistent()
    try:
        for words, attack in attacks.items():
            record = run.result(name_of(words))
            if driver in attack.errs and not attack.surely:
                assert (record["status"], record["code"]) in (("failed", None), ("error", "SANDBOX_FAILED")), (words, record["reason"])
                continue
            assert not attack.leaves or attack.leaves.format(digits=DIGITS) in record["changed_files"], (words, record["changed_files"])
            if driver in attack.errs:
                assert (record["status"], record["code"]) == ("error", "VERIFIER_FAILED"), words
                continue
            assert record["status"] == "failed", (words, record["reason"])
            assert all(c["verdict"] == "failed" for c in record["criteria"] if c["gate"]), (words, record["criteria"])
        assert not (outside / "ran").exists()
        run.assert_nothing_left()
        assert engine is None or not containers.of(engine, run)
        assert not list(Path(project.environment["TMPDIR"]).glob("codeprobe-*"))
    finally:  # what is kept of some is too deep for pytest's own clearing up
        subprocess.run(["rm", "-rf", str(run.folder.resolve())], check=True)


@pytest.mark.parametrize("driver", DRIVERS[:2])
def test_rights_taken_away_from_an_ordinary_user(project: Project, tmp_path: Path, driver: str) -> None:
    """Who runs pytest as root is hindered by no file's mode; others are, in the harness's own process too."""
    attacks = {words: attack for words, attack in FORGERIES.items() if "enter" in words or "FIFO" in words}
    lay(project, attacks, tmp_path / "outside")
    somebody = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--") if os.geteuid() == 0 else ()
    flags = ("--codeprobe-agent=command", f"--codeprobe-driver={driver}", "--codeprobe-jobs=3")
    run = project.start("tasks", *flags, prefix=somebody).wait(120).assert_consistent()
    assert run.statuses == {name_of(words): "failed" for words in attacks}, run.output
    assert not list(Path(project.environment["TMPDIR"]).glob("codeprobe-*"))


#: fill the disk and leave it full, in one file, in many, in what is none any more but open, and where the harness writes its logs
FILLS = {
    "one-file": "dd if=/dev/zero of=big bs=1M",
    "many-files": "i=0; while echo x > f$i; do i=$((i+1)); done; cp /bin/sh big; cat big big big > bigger",
    "home-and-tmp": "dd if=/dev/zero of=$HOME/big bs=1M; dd if=/dev/zero of=$TMPDIR/big bs=1M; echo x > $HOME/y",
    "own-output": "cat /dev/zero",
    "a-process-that-stays": "setsid sh -c 'exec 3> gone; rm gone; cat /dev/zero >&3; sleep 600' < /dev/null > /dev/null 2>&1 & sleep 1",
}


@pytest.mark.parametrize("driver", DRIVERS[:2])
def test_a_full_disk_passes_nobody_and_is_free_again(project: Project, driver: str) -> None:
    """Private folders lie on a disk of 24 MiB and 2,000 files of its own; the run dir does not."""
    for name, command in FILLS.items():
        criteria = [{"type": "file_contains", "path": "out.txt", "includes": ["done"]}]
        project.task(f"{name}-1", agent={"type": "command", "command": ["sh", "-c", command]}, success_criteria=criteria)
        project.task(f"{name}-2", agent={"type": "command", "command": ["sh", "-c", "echo done > out.txt"]}, success_criteria=criteria)
    small = ("unshare", "--mount", *(("--user", "--map-root-user") if os.geteuid() else ()), "sh", "-c")
    mounts = 'mount -t tmpfs -o size=24m,nr_inodes=2000 none "$TMPDIR" && exec "$@"'
    flags = ("--codeprobe-agent=command", f"--codeprobe-driver={driver}", "--codeprobe-preserve=none")
    run = project.start("tasks", *flags, prefix=(*small, mounts, "sh")).wait(120).assert_consistent()
    for name in FILLS:
        spoilt, after = run.finished[f"{name}-1"], run.finished[f"{name}-2"]
        assert spoilt["status"] in ("failed", "error"), (name, spoilt)
        assert spoilt["code"] in (None, "SANDBOX_FAILED", "VERIFIER_FAILED", "AGENT_CRASHED"), (name, spoilt)
        assert after["status"] == "passed", (name, after)
    run.assert_nothing_left()


def test_the_table_of_the_docs() -> None:
    table = {row[0]: tuple(row[1:]) for row in rows(section(DOCS / "security.md", "What an agent does to its verdict"))}
    assert table == {words: tuple("error" if d in attack.errs else "held" for d in DRIVERS) for words, attack in FORGERIES.items()}
