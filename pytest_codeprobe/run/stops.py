"""Stop flags: empty files in the run dir that tell every process at once, without a channel."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pytest_codeprobe.model.context import FORBID


class StopFolder:
    """The folder `stop/` of a run. Safe to use in a signal handler: system calls only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.expected = False  #: there is a plan, and processes look here: should somebody delete the run dir, a flag makes its place anew
        self._raised = set[str]()  #: by this process, which must hear of it also where the disk is full
        self.unwritten: dict[str, OSError] = {}  #: flags that this process could not raise for the others

    @property
    def folder(self) -> Path:
        """Where the flags lie; it may not exist yet."""
        return self._folder

    def raise_flag(self, reason: str, agent: str = "") -> None:
        """Tell every process. Without a run dir there is no trial that could listen. OSError: only this one has heard of it."""
        name = f"{reason}@{agent}" if agent else reason
        self._raised.add(name)
        try:
            self._put(name)
        except FileNotFoundError:
            pass
        except OSError as error:
            self.unwritten.setdefault(name, error)
            raise
        self.unwritten.pop(name, None)

    def _put(self, name: str) -> None:
        with contextlib.suppress(FileExistsError):
            (os.makedirs if self.expected else os.mkdir)(self._folder)
        try:
            os.close(os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            try:  # no room for one more file: a second name of one that is there takes none
                os.link(self._folder.parent / "plan.json", self._folder / name)
            except FileExistsError:
                pass
            except OSError:
                raise error from None

    def is_raised(self, reason: str) -> bool:
        """Whether a flag of that name stands."""
        return reason in self._raised or os.path.exists(self._folder / reason)

    def forbids_start(self, agent: str) -> str | None:
        """Why no trial of this agent may start any more; None = go on."""
        standing = set(self._raised)
        with contextlib.suppress(OSError):
            standing.update(os.listdir(self._folder))
        for flag, reason in FORBID.items():
            if flag in standing:
                return reason
        return "auth" if f"auth@{agent}" in standing else None
