"""--codeprobe-trace-budget: what all transcripts of a run may take together, held by the controller."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.context import TRUNCATE

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.run.book import RunBook


class TraceBudget:
    """Looks at what the spools have told, and raises the flag that all processes hear. From the main thread and the follower."""

    def __init__(self, live: Live, book: RunBook) -> None:
        options = live.state.options
        self._live, self._book, self._limit = live, book, options.trace_budget
        self._flag = "trace" if options.trace_overflow == "fail" else TRUNCATE
        self._over = False

    def look(self) -> None:
        """Raise the flag once the budget is passed."""
        if self._over or self._limit is None or self._book.transcript_bytes <= self._limit:
            return
        self._over = True
        with contextlib.suppress(OSError):  # a full disk; this process hears of it all the same
            self._live.stops.raise_flag(self._flag)

    def close(self) -> list[CodeprobeError]:
        """The run is over: what became of the budget."""
        self.look()
        if not self._over:
            return []
        said = f"the transcripts of the run passed their budget of {self._limit} bytes"
        if self._flag == TRUNCATE:
            self._live.warn(f"{said}; those that came later were truncated")
            with contextlib.suppress(OSError):
                (self._live.folder.stop / TRUNCATE).unlink(missing_ok=True)  # no reason why the run ended
            return []
        return [CodeprobeError("TRACE_BUDGET_EXCEEDED", said, detail={"limit": self._limit, "bytes": self._book.transcript_bytes})]
