"""What the server did: counts of requests, tokens by kind, faults, and a bounded log. Safe to read and write from many threads."""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.model_server.scenario import NOTHING, Usage

LOG_ENTRIES = 1000


@dataclass
class RequestRecord:
    """One request and what it got. `body` is kept only where the server was told to keep bodies."""

    number: int
    seconds: float
    method: str
    path: str
    kind: str
    model: str = ""
    key: str = ""
    session: str = ""
    credential: str = ""
    turn: int | None = None
    tools: tuple[str, ...] = ()
    stream: bool = False
    reply: str = ""
    usage: Usage = NOTHING
    body: Any = None


@dataclass
class Tally:
    """Requests and tokens of one script or model, or of all."""

    main: int = 0
    side: int = 0
    tokens: Usage = NOTHING
    faults: dict[str, int] = field(default_factory=dict)


class Stats:
    """The books of one server.

    `tokens` counts replies that were sent to their end; what a broken-off stream had already claimed is in `cut_tokens`. `problems`
    lists what a test should not have caused: a scripted tool that wasn't offered, no script for a prompt, an exception in a handler.
    """

    def __init__(self, keep_bodies: bool = False) -> None:
        self._lock = threading.Lock()
        self._keep_bodies = keep_bodies
        self._kinds: Counter[str] = Counter()
        self._total = Tally()
        self._cut = NOTHING
        self._by_key: dict[str, Tally] = {}
        self._by_model: dict[str, Tally] = {}
        self._problems: list[str] = []
        self._log: deque[RequestRecord] = deque(maxlen=LOG_ENTRIES)

    # -- reading

    @property
    def all(self) -> int:
        """Every HTTP request but those to the server's own `/_` paths."""
        with self._lock:
            return self._kinds.total()

    @property
    def main(self) -> int:
        """Requests of the agent itself (with tools), faults included."""
        with self._lock:
            return self._total.main

    @property
    def side(self) -> int:
        """Model requests without tools, such as titles."""
        with self._lock:
            return self._total.side

    @property
    def tokens(self) -> Usage:
        """Tokens of all replies sent to their end."""
        with self._lock:
            return self._total.tokens

    @property
    def cut_tokens(self) -> Usage:
        """Tokens claimed by streams that a fault, or the client, broke off."""
        with self._lock:
            return self._cut

    @property
    def problems(self) -> list[str]:
        """Mistakes of the script or of the server; a test that is right sees none."""
        with self._lock:
            return list(self._problems)

    @property
    def log(self) -> list[RequestRecord]:
        """The last requests, oldest first."""
        with self._lock:
            return list(self._log)

    def as_json(self) -> dict[str, Any]:
        """Everything but the log, ready for JSON."""
        with self._lock:
            return {
                "requests": {"all": self._kinds.total(), **self._kinds},
                "tokens": asdict(self._total.tokens),
                "cut_tokens": asdict(self._cut),
                "faults": dict(self._total.faults),
                "by_key": {key: asdict(tally) for key, tally in self._by_key.items()},
                "by_model": {model: asdict(tally) for model, tally in self._by_model.items()},
                "problems": list(self._problems),
            }

    # -- writing, by the server's threads

    def received(self, record: RequestRecord) -> None:
        """A request came in: number it, count it, log it."""
        with self._lock:
            self._kinds[record.kind] += 1
            record.number = self._kinds.total()
            if not self._keep_bodies:
                record.body = None
            self._log.append(record)
            for tally in self._tallies(record):
                tally.main += record.kind == "main"
                tally.side += record.kind == "side"

    def replied(self, record: RequestRecord, reply: str, usage: Usage) -> None:
        """The reply is whole: its last bytes are about to go."""
        with self._lock:
            record.reply, record.usage = reply, usage
            for tally in self._tallies(record):
                tally.tokens = tally.tokens + usage

    def failed(self, record: RequestRecord, fault: str, claimed: Usage = NOTHING) -> None:
        """A fault struck, or the client went away; `claimed` are tokens that had already been told."""
        with self._lock:
            record.reply, record.usage = f"fault:{fault}", claimed
            self._cut = self._cut + claimed
            for tally in self._tallies(record):
                tally.faults[fault] = tally.faults.get(fault, 0) + 1

    def problem(self, text: str) -> None:
        """Note a mistake."""
        with self._lock:
            self._problems.append(text)

    def _tallies(self, record: RequestRecord) -> list[Tally]:
        if record.kind not in ("main", "side"):
            return []
        by_key = self._by_key.setdefault(record.key, Tally())
        return [self._total, by_key, self._by_model.setdefault(record.model, Tally())]
