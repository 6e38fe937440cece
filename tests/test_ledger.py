"""The ledger by itself: reservations, waiting, many threads and processes, and what is left of one that was killed."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.context import Claim
from pytest_codeprobe.run.ledger import LedgerFile
from tests.front_door import clean_environment

ROOT = Path(__file__).resolve().parents[1]


def claim(node_id: str = "t", max_usd: float | None = None, **more: Any) -> Claim:
    return Claim(**{"node_id": node_id, "attempt": 1, "agent": "a", "model": "m", "max_usd": max_usd, **more})


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[LedgerFile]:
    made = LedgerFile(tmp_path / "ledger.sqlite", 3.0)
    yield made
    made.close()


def entry(answer: int | str) -> int:
    assert isinstance(answer, int)
    return answer


def test_what_fits_what_waits_and_what_never_will(ledger: LedgerFile) -> None:
    first = entry(ledger.reserve(claim(max_usd=2)))
    second = entry(ledger.reserve(claim(max_usd=1)))
    assert ledger.reserve(claim(max_usd=1)) == "wait"  # both are kept back for others
    assert ledger.reserve(claim(max_usd=3.1)) == "no"
    ledger.book(first, 1.5)
    assert (ledger.balance().spent, ledger.balance().reserved) == (1.5, 1.5)
    assert ledger.reserve(claim(max_usd=1.6)) == "no"  # that much is spent for good
    ledger.settle(first, 1.5)
    assert ledger.reserve(claim(max_usd=1)) == "wait"
    ledger.settle(second, 0.4)
    third = entry(ledger.reserve(claim(max_usd=1)))
    assert [refused.wanted for refused in ledger.refused()] == [3.1, 1.6]
    assert ledger.book(third, 1.2).is_gone  # more than it had
    assert ledger.settle(third, 1.2).spent == pytest.approx(3.1)
    assert ledger.reserve(claim()) == "no"


def test_without_a_bound_the_largest_cost_that_was_seen_is_kept_back(ledger: LedgerFile) -> None:
    first = entry(ledger.reserve(claim()))
    other = entry(ledger.reserve(claim(model="other")))
    assert ledger.balance().reserved == 0
    ledger.settle(first, 0.4)
    second = entry(ledger.reserve(claim()))
    assert ledger.balance().reserved == 0.4
    ledger.settle(second, 0.1)
    third = entry(ledger.reserve(claim()))
    assert ledger.balance().reserved == 0.4
    ledger.settle(third, 0.9)
    ledger.reserve(claim())
    assert ledger.balance().reserved == 0.9
    ledger.settle(other, 0.2)
    ledger.reserve(claim(model="other"))
    assert ledger.balance().reserved == pytest.approx(1.1)


def test_the_last_cent_is_no_more_money(ledger: LedgerFile) -> None:
    """Sums of prices are not exact: 0.1 thirty times is not 3."""
    for _ in range(30):
        ledger.settle(entry(ledger.reserve(claim(max_usd=0.1))), 0.1)
    balance = ledger.balance()
    assert balance.spent != 3
    assert (balance.is_gone, balance.is_used_up) == (False, True)
    assert ledger.reserve(claim(max_usd=0.1)) == "no"
    assert ledger.reserve(claim(agent="new")) == "no"


def test_a_cost_that_stays_unknown(ledger: LedgerFile) -> None:
    known, bounded, free = (entry(ledger.reserve(claim(max_usd=usd))) for usd in (1.0, 0.5, 0.0))
    assert ledger.settle(known, 0.25).spent == 0.25
    assert ledger.settle(bounded, None).spent == 0.75  # its reservation
    assert ledger.settle(free, None, assumed=0.125).spent == 0.875
    assert ledger.settle(free, 100.0).spent == 0.875  # once


def test_a_model_without_a_price(ledger: LedgerFile) -> None:
    entry(ledger.reserve(claim()))
    ledger.unpriced("a", "", "m")
    ledger.unpriced("a", "", "m")
    assert ledger.reserve(claim()) == "no"
    assert ledger.reserve(claim(model="")) == "no"
    assert [(refused.why, refused.model) for refused in ledger.refused()] == [("price", "m"), ("price", "m")]
    entry(ledger.reserve(claim(max_tokens=1000)))
    entry(ledger.reserve(claim(model="m2")))
    entry(ledger.reserve(claim(agent="b")))


def test_a_dead_owners_reservation_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had booked as it came stays; where nothing was booked, all of it is taken for spent."""
    births = {os.getpid(): 1, 11: 1, 12: 1, 13: 7}
    theirs = {pid: LedgerFile(tmp_path / "ledger.sqlite", 3.0, births.get) for pid in (11, 12, 13)}
    mine = LedgerFile(tmp_path / "ledger.sqlite", 3.0, births.get)
    for pid, live in ((11, True), (12, False), (13, True)):
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda pid=pid: pid)
            number = entry(theirs[pid].reserve(claim(max_usd=1, live=live)))
        if pid == 11:
            theirs[pid].book(number, 0.25)
    assert mine.reserve(claim(max_usd=1)) == "wait"
    del births[11]
    assert entry(mine.reserve(claim(max_usd=0.5)))
    assert (mine.balance().spent, mine.balance().reserved) == (0.25, 2.5)
    del births[12]
    births[13] = 8  # another process of that number
    assert entry(mine.reserve(claim(max_usd=0.5)))
    assert (mine.balance().spent, mine.balance().reserved) == (1.25, 1.0)


def test_many_threads_are_never_over_the_limit(tmp_path: Path) -> None:
    ledger = LedgerFile(tmp_path / "ledger.sqlite", 10.0)
    answers: list[int | str] = []
    over: list[float] = []
    barrier = threading.Barrier(64)

    def work() -> None:
        barrier.wait()
        for _ in range(5):
            answer = ledger.reserve(claim(max_usd=0.25))
            answers.append(answer)
            if isinstance(answer, int):
                for cents in (0.1, 0.2):
                    balance = ledger.book(answer, cents)
                    if balance.spent + balance.reserved > 10 + 1e-6:
                        over.append(balance.spent)
                ledger.settle(answer, 0.2)

    threads = [threading.Thread(target=work) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 320
    assert not over
    assert ledger.balance().spent == pytest.approx(0.2 * sum(isinstance(a, int) for a in answers))
    assert ledger.balance().spent <= 10
    assert ledger.balance().reserved == 0
    ledger.close()


_PROGRAM = """
import sys
from pathlib import Path
from pytest_codeprobe.model.context import Claim
from pytest_codeprobe.run.ledger import LedgerFile

ledger = LedgerFile(Path(sys.argv[1]), float(sys.argv[2]))
done = 0
while done < int(sys.argv[3]):
    answer = ledger.reserve(Claim(node_id="t", attempt=1, agent="a", model="m", max_usd=0.5))
    if answer == "no":
        break
    if answer == "wait":
        continue
    ledger.book(answer, 0.25)
    balance = ledger.book(answer, 0.5)
    assert balance.spent + balance.reserved <= balance.limit + 1e-6, balance
    ledger.settle(answer, 0.5)
    done += 1
    print(done, flush=True)
"""


def start(path: Path, limit: float, count: int) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", _PROGRAM, str(path), str(limit), str(count)]
    return subprocess.Popen(argv, cwd=ROOT, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_processes_share_it(tmp_path: Path) -> None:
    """Four begin at once, with a file that is not there yet."""
    path = tmp_path / "ledger.sqlite"
    processes = [start(path, 60.0, 40) for _ in range(4)]
    ends = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, ends
    assert sum(len(out.splitlines()) for out, _ in ends) == 120
    ledger = LedgerFile(path, 60.0)
    assert ledger.balance().spent == pytest.approx(60)
    assert ledger.balance().is_used_up
    assert {refused.why for refused in ledger.refused()} == {"fit"}
    ledger.close()
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.sqlite"]


def test_killed_while_it_writes(tmp_path: Path) -> None:
    """The file is whole, what was settled is there, and what was kept back is free."""
    path = tmp_path / "ledger.sqlite"
    settled = 0
    for _ in range(10):
        with start(path, 1e6, 10_000_000) as process:
            assert process.stdout is not None
            seen = 0
            while seen < 5:
                seen = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().split()  # not communicate(), which knows nothing of lines that readline() has read ahead
        settled += int(rest[-1]) if rest else seen
    ledger = LedgerFile(path, 1e6)
    entry(ledger.reserve(claim()))
    balance = ledger.balance()
    # of each process the last session may have been settled without a word, or have half of its money booked
    assert 0.5 * settled <= balance.spent <= 0.5 * (settled + 10)
    assert balance.reserved == 0.5  # our own: as much as was seen
    ledger.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("how", ["no folder", "no database", "a folder"])
def test_a_place_where_it_can_not_be(tmp_path: Path, how: str) -> None:
    path = tmp_path / ("none/ledger.sqlite" if how == "no folder" else "ledger.sqlite")
    if how == "no database":
        path.write_bytes(b"something else" * 1000)
    if how == "a folder":
        path.mkdir()
    ledger = LedgerFile(path, 1.0)
    for call in (ledger.open, ledger.balance, lambda: ledger.reserve(claim()), lambda: ledger.book(1, 1.0)):
        with pytest.raises(CodeprobeError, match=r"ledger\.sqlite") as caught:
            call()
        assert caught.value.code == "SANDBOX_FAILED"


def fill(ledger: LedgerFile) -> None:
    """There may be some room in what it has."""
    for number in range(1000):
        ledger.reserve(claim(f"{number}" * 100, max_usd=0.001))


def test_a_full_disk(tmp_path: Path) -> None:
    """What can't be written is said; what was written stands; and once there is room again it goes on."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system takes root")
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        ledger = LedgerFile(disk / "ledger.sqlite", 100.0)
        held = entry(ledger.reserve(claim(max_usd=1)))
        ledger.book(held, 0.5)
        with (disk / "ballast").open("wb") as ballast, contextlib.suppress(OSError):
            while True:
                os.write(ballast.fileno(), bytes(512))
        with pytest.raises(CodeprobeError, match="full"):
            fill(ledger)
        assert ledger.balance().spent == 0.5
        (disk / "ballast").unlink()
        assert ledger.settle(held, 0.75).spent == 0.75
        ledger.close()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
