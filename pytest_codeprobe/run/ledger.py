"""The budget of a run as an SQLite file in the run dir. Every process of the run opens it and writes what its own sessions spend."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.context import CENT_FRACTION, Balance, Claim
from pytest_codeprobe.sandboxes.sweep import start_time

_BUSY = 30.0  # seconds that a writer waits for others; each of them takes a millisecond
_TABLES = """
CREATE TABLE IF NOT EXISTS entries(
  id INTEGER PRIMARY KEY, node_id TEXT NOT NULL, attempt INTEGER NOT NULL, agent TEXT NOT NULL, model TEXT NOT NULL,
  reserved REAL NOT NULL, spent REAL NOT NULL, open INTEGER NOT NULL, live INTEGER NOT NULL, assumed INTEGER NOT NULL DEFAULT 0,
  pid INTEGER NOT NULL, born INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS open_entries ON entries(open) WHERE open;
CREATE INDEX IF NOT EXISTS seen ON entries(agent, model, spent);
CREATE TABLE IF NOT EXISTS closed(id INTEGER PRIMARY KEY CHECK (id = 1), spent REAL NOT NULL);
INSERT OR IGNORE INTO closed VALUES (1, 0.0);
CREATE TABLE IF NOT EXISTS refused(
  id INTEGER PRIMARY KEY, node_id TEXT NOT NULL, why TEXT NOT NULL, agent TEXT NOT NULL, model TEXT NOT NULL,
  wanted REAL NOT NULL, spent REAL NOT NULL, reserved REAL NOT NULL);
CREATE TABLE IF NOT EXISTS unpriced(agent TEXT NOT NULL, asked TEXT NOT NULL, model TEXT NOT NULL, PRIMARY KEY (agent, asked, model));
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A trial that was not started for want of money."""

    node_id: str
    why: Literal["fit", "price"]  #: its reservation did not fit, or no price of its model is known
    agent: str
    model: str  #: the one without a price, else that which the task asks for; "" where nobody has named it
    wanted: float  #: its reservation, US dollars
    spent: float  #: at that moment
    reserved: float  #: likewise, for others


class LedgerFile:
    """See model.context.Ledger. One for each process; opened when it is first asked.

    Money is in US dollars. A process that is killed loses nothing that it has written; where it held reservations, the next one that
    wants money finds out and frees them. `birth` tells when a process started, None of one that is dead.
    """

    def __init__(self, path: Path, limit: float, birth: Callable[[int], int | None] = start_time) -> None:
        self._path, self._limit, self._birth = path, limit, birth
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    @property
    def limit(self) -> float:
        """Of the run, US dollars."""
        return self._limit

    # ---- Ledger
    def reserve(self, claim: Claim) -> int | Literal["wait", "no"]:
        with self._reading() as db:  # most of those that wait go on waiting: that needs no lock
            if self._answer(db, claim)[0] == "wait" and not self._dead(db):
                return "wait"
        with self._writing() as db:
            for entry in self._dead(db):
                self._release(db, entry)
            answer, wanted = self._answer(db, claim)
            if answer == "wait":
                return "wait"
            if answer == "yes":
                values = (
                    claim.node_id,
                    claim.attempt,
                    claim.agent,
                    claim.model,
                    wanted,
                    claim.live,
                    os.getpid(),
                    self._birth(os.getpid()) or 0,
                )
                columns = "node_id, attempt, agent, model, reserved, live, pid, born, spent, open"
                return int(db.execute(f"INSERT INTO entries({columns}) VALUES (?,?,?,?,?,?,?,?,0.0,1)", values).lastrowid or 0)
            balance = self._balance(db)
            unpriced = self._unpriced(db, claim) if answer == "unpriced" else None
            why, model = ("fit", claim.model) if unpriced is None else ("price", unpriced)
            refusal = (claim.node_id, why, claim.agent, model, wanted, balance.spent, balance.reserved)
            db.execute("INSERT INTO refused(node_id, why, agent, model, wanted, spent, reserved) VALUES (?,?,?,?,?,?,?)", refusal)
            return "no"

    def book(self, entry: int, spent: float, *, at_most: bool = False) -> Balance:
        with self._writing() as db:
            db.execute("UPDATE entries SET spent = ?, assumed = ? WHERE id = ? AND open", (spent, at_most, entry))
            return self._balance(db)

    def settle(self, entry: int, spent: float | None, *, assumed: float | None = None) -> Balance:
        with self._writing() as db:
            self._close(db, entry, spent, assumed)
            return self._balance(db)

    def unpriced(self, agent: str, asked: str, model: str) -> None:
        with self._writing() as db:
            db.execute("INSERT OR IGNORE INTO unpriced VALUES (?, ?, ?)", (agent, asked, model))

    def balance(self) -> Balance:
        with self._reading() as db:
            return self._balance(db)

    # ---- for the controller
    def refused(self) -> list[Refused]:
        """Trials that were not started, in the order in which they asked."""
        with self._reading() as db:
            rows = db.execute("SELECT node_id, why, agent, model, wanted, spent, reserved FROM refused ORDER BY id").fetchall()
        names = ("node_id", "why", "agent", "model", "wanted", "spent", "reserved")
        return [Refused(**dict(zip(names, row, strict=True))) for row in rows]

    def assumed(self) -> float:
        """How much of what is spent nobody knows: it counts as the most that it can be, or with what was kept back for it."""
        with self._reading() as db:
            return float(db.execute("SELECT TOTAL(spent) FROM entries WHERE assumed").fetchone()[0])

    def take_over(self, spent: float) -> None:
        """Earlier sessions of this run dir have spent so much at least, say their records: some may have run without a budget."""
        with self._writing() as db:
            db.execute("DELETE FROM refused")
            for entry in self._dead(db):
                self._release(db, entry)
            db.execute("UPDATE closed SET spent = MAX(spent, ?)", (spent,))

    def open(self) -> None:
        """Make the file, so that what is wrong with its place is known before anything starts."""
        with self._reading():
            pass

    def close(self) -> None:
        """Further calls open it again."""
        with self._lock:
            if self._connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.close()
                self._connection = None

    # ---- what is in it
    def _balance(self, db: sqlite3.Connection) -> Balance:
        row = db.execute(
            "SELECT (SELECT spent FROM closed), TOTAL(spent), TOTAL(MAX(reserved - spent, 0.0)) FROM entries WHERE open"
        ).fetchone()
        return Balance(limit=self._limit, spent=row[0] + row[1], reserved=row[2])

    def _answer(self, db: sqlite3.Connection, claim: Claim) -> tuple[Literal["yes", "wait", "no", "unpriced"], float]:
        """Whether the claim fits, and what would be kept back for it."""
        wanted = claim.max_usd
        if wanted is None:
            sql = "SELECT MAX(spent) FROM entries WHERE agent = ? AND model = ? AND NOT open"
            wanted = db.execute(sql, (claim.agent, claim.model)).fetchone()[0] or 0.0
        if claim.max_tokens is None and self._unpriced(db, claim) is not None:
            return "unpriced", wanted
        balance = self._balance(db)
        if balance.is_used_up or balance.spent + wanted > self._limit + CENT_FRACTION:
            return "no", wanted
        return ("yes" if balance.spent + balance.reserved + wanted <= self._limit + CENT_FRACTION else "wait"), wanted

    def _unpriced(self, db: sqlite3.Connection, claim: Claim) -> str | None:
        """The model without a price that such a session would use, as an earlier one has shown."""
        sql = "SELECT model FROM unpriced WHERE agent = ? AND (asked = ? OR model = ?)"
        row = db.execute(sql, (claim.agent, claim.model, claim.model)).fetchone()
        return None if row is None else str(row[0])

    def _dead(self, db: sqlite3.Connection) -> list[int]:
        """Open entries of processes that are gone."""
        rows = db.execute("SELECT id, pid, born FROM entries WHERE open").fetchall()
        births = {pid: self._birth(pid) for _, pid, _ in rows}
        return [entry for entry, pid, born in rows if (births[pid] or 0) != born]

    def _release(self, db: sqlite3.Connection, entry: int) -> None:
        """Of a dead process: its keepers have ended its sessions. What they had spent is booked, where that was known as it came."""
        live = db.execute("SELECT live FROM entries WHERE id = ?", (entry,)).fetchone()[0]
        self._close(db, entry, None, 0.0 if live else None)

    def _close(self, db: sqlite3.Connection, entry: int, spent: float | None, assumed: float | None) -> None:
        row = db.execute("SELECT reserved, spent, assumed FROM entries WHERE id = ? AND open", (entry,)).fetchone()
        if row is None:
            return
        reserved, booked, at_most = row
        final = spent if spent is not None else max(booked, reserved if assumed is None else assumed)
        unknown = spent is None and (bool(at_most) or final > booked)
        db.execute("UPDATE entries SET spent = ?, open = 0, assumed = ? WHERE id = ?", (final, unknown, entry))
        db.execute("UPDATE closed SET spent = spent + ?", (final,))

    # ---- the file
    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._opened()
            except sqlite3.Error as error:
                raise self._trouble(error) from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction. It is all there afterwards, or nothing of it: also where the process is killed in it."""
        with self._lock:
            try:
                db = self._opened()
                db.execute("BEGIN IMMEDIATE")
                try:
                    yield db
                except BaseException:
                    db.execute("ROLLBACK")
                    raise
                db.execute("COMMIT")
            except sqlite3.Error as error:
                with contextlib.suppress(sqlite3.Error):
                    if self._connection is not None and self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                raise self._trouble(error) from error

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            db = sqlite3.connect(self._path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
            try:
                # a reader never waits for a writer; what is lost when the machine goes down with the run is of no more use
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = OFF")
                db.execute("PRAGMA wal_autocheckpoint = 200")
                db.execute("BEGIN IMMEDIATE")
                for statement in filter(str.strip, _TABLES.split(";")):
                    db.execute(statement)
                db.execute("COMMIT")
            except BaseException:
                db.close()
                raise
            self._connection = db
        return self._connection

    def _trouble(self, error: sqlite3.Error) -> CodeprobeError:
        return CodeprobeError(
            "SANDBOX_FAILED",
            f"{self._path}: {error}: what the run spends can't be written down",
            remediation="Free disk space, or choose another place with --codeprobe-run-dir.",
        )
