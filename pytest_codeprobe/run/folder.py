"""The run directory: where everything of a run lies, and how its files come to be whole or not at all."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.text import write_whole

if TYPE_CHECKING:
    from pytest_codeprobe.model.result import TrialResult

_log = logging.getLogger(__name__)


class RunFolder:
    """Paths of one run directory, and the writes that several processes may try at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan_file = path / "plan.json"
        self.events_file = path / "events.ndjson"
        self.envelope_file = path / "envelope.json"
        self.ledger_file = path / "ledger.sqlite"
        self.spool = path / "spool"
        self.stop = path / "stop"

    def publish_plan(self, plan: Mapping[str, Any]) -> bool:
        """Write plan.json unless another process of this run has: the first wins, and it is always whole. True if this one won.

        USAGE_ERROR where there is no room for it, or the folder is another run's: nothing has started yet.
        """
        try:
            self.spool.mkdir(parents=True, exist_ok=True)
            self.stop.mkdir(exist_ok=True)  # now: a flag must also find its place on a disk that is full by then
            write_whole(self.plan_file, json.dumps(plan, indent=1, ensure_ascii=True) + "\n", replace=False)
        except FileExistsError:
            other = self.read_plan()
            if other is not None and other["run_id"] != plan["run_id"]:
                raise CodeprobeError(
                    "USAGE_ERROR",
                    f"--codeprobe-run-dir {self.path}: run {other['run_id']} has just begun to write there",
                    remediation="Give each run a folder of its own, or leave the flag out.",
                ) from None
            return False
        except OSError as error:
            raise CodeprobeError(
                "USAGE_ERROR",
                f"run directory {self.path}: {error.strerror}",
                remediation="Free disk space, or choose another place with --codeprobe-run-dir.",
            ) from error
        return True

    def read_plan(self) -> dict[str, Any] | None:
        """plan.json; None as long as no process has published one, or where none can."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            return dict(json.loads(self.plan_file.read_text(encoding="utf-8")))
        return None

    def trial(self, folder: str) -> Path:
        """A trial's folder."""
        return self.path / "trials" / folder

    def write_result(self, folder: str, result: TrialResult) -> None:
        """result.json of a trial, replacing an earlier one."""
        from pytest_codeprobe.model.result import result_text

        target = self.trial(folder)
        target.mkdir(parents=True, exist_ok=True)
        write_whole(target / "result.json", result_text(result))

    def read_result(self, folder: str) -> TrialResult | None:
        """result.json of a trial; None if no process wrote one."""
        from pytest_codeprobe.model.result import TrialResult

        with contextlib.suppress(FileNotFoundError, ValueError):
            return TrialResult.model_validate_json((self.trial(folder) / "result.json").read_bytes())
        return None


def prepare_place(path: Path, *, default_place: bool) -> None:
    """Check that a run may be written to `path`; in the default place make it, and keep the runs of a repository out of its history.

    A folder that the user named is made with plan.json: a run in which nothing starts leaves nothing behind. USAGE_ERROR if it
    holds something, or the default place can't be made.
    """
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise CodeprobeError(
                "USAGE_ERROR",
                f"--codeprobe-run-dir {path}: is not empty",
                remediation=(
                    "Name a folder that does not exist yet, or leave the flag out; to go on with a run there, add --codeprobe-resume."
                ),
            )
        if default_place:
            path.parent.mkdir(parents=True, exist_ok=True)
            ignore = path.parent / ".gitignore"
            if not ignore.exists():
                write_whole(ignore, "*\n")
            path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CodeprobeError(
            "USAGE_ERROR",
            f"run directory {path}: {error.strerror}",
            remediation="Make its place writable, or choose another one with --codeprobe-run-dir.",
        ) from error


def point_latest(path: Path) -> None:
    """Make `latest` beside the run a relative link to it, swapped atomically. The run is worth more than the link."""
    part = path.parent / f".latest.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        part.symlink_to(path.name)
        part.replace(path.parent / "latest")
    except OSError as error:  # a full disk, a folder of that name
        part.unlink(missing_ok=True)
        _log.warning("%s: %s", path.parent / "latest", error)
