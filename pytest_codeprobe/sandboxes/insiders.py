"""Who works in a container where that is not who runs pytest (`sandbox.docker.user`), and what they are given there."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.sandboxes.engines import Engine
from pytest_codeprobe.sandboxes.images import Image
from pytest_codeprobe.sandboxes.tools import run_tool
from pytest_codeprobe.text import ending, one_line

#: nothing but the shell's own words: an image may lack `id`
_WHO = r'while read -r key value rest; do case $key in Uid: | Gid:) echo "$value" ;; esac; done </proc/self/status'
_GIVING_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Insider:
    """A user by the numbers that the image knows them by."""

    uid: int
    gid: int

    def words(self, engine: Engine) -> list[str]:
        """For the engine. podman without root maps them to whoever runs pytest, so that files belong to both."""
        who = ["--user", f"{self.uid}:{self.gid}"]
        return ["--userns", f"keep-id:uid={self.uid},gid={self.gid}", *who] if engine.maps_users else who

    def can_read(self, place: Path) -> bool:
        """Whether all in it is for everybody, or theirs. SANDBOX_FAILED."""
        others = ["!", "-uid", str(self.uid), "(", "-type", "f", "!", "-perm", "-o=r", "-o", "-type", "d", "!", "-perm", "-o=rx", ")"]
        return not _find([str(place), *others, "-print", "-quit"])

    def give(self, places: Iterable[Path]) -> None:
        """Make what is there theirs, with all that is in it; links are not followed. SANDBOX_FAILED. Needs root."""
        there = [str(place) for place in places if place.exists()]
        if not there:
            return
        others = ["(", "!", "-uid", str(self.uid), "-o", "!", "-gid", str(self.gid), ")"]
        _find([*there, *others, "-exec", "chown", "-h", f"{self.uid}:{self.gid}", "{}", "+"])


class Insiders:
    """The users that were asked for so far, each of an image once in a process. Several trials that want one wait for the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[tuple[Engine, str, str], threading.Lock] = {}
        self._known: dict[tuple[Engine, str, str], Insider] = {}

    def get(self, engine: Engine, image: Image, name: str) -> Insider:
        """By `user`, `user:group`, in names or numbers, as the engine reads it. SANDBOX_FAILED."""
        key = engine, image.id, name
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._known:
                self._known[key] = _asked(engine, image, name)
            return self._known[key]


def _find(words: list[str]) -> bytes:
    """What `find` prints: there may be any number of files."""
    try:
        done = run_tool(["find", *words], env={"PATH": os.environ.get("PATH", os.defpath)}, timeout=_GIVING_SECONDS, stdout=PIPE)
    except OSError as error:
        raise _failed(f"files could not be given to them: {error.strerror or error}") from error
    if done.status != 0:
        raise _failed(f"files could not be given to them: {one_line(ending(done.complaints.decode('utf-8', 'replace'), 300), 300)}")
    return done.output


def _may_give() -> bool:
    """Whether files can be made somebody else's; or need not be, since an engine in a virtual machine hides whose they are."""
    return os.geteuid() == 0 or sys.platform == "darwin"


def _asked(engine: Engine, image: Image, name: str) -> Insider:
    try:
        done = engine.throwaway(image.id, _WHO, "--user", name)
    except OSError as error:
        raise _failed(f"the engine does not say who {name!r} is: {error.strerror or error}") from error
    numbers = done.output.decode("ascii", "replace").split()
    if done.status != 0 or len(numbers) != 2 or not all(number.isdigit() for number in numbers):
        said = one_line(ending(done.complaints.decode("utf-8", "replace"), 300), 300)
        raise _failed(f"the image has no user {name!r}: {said or f'exit status {done.status}'}")
    uid, gid = map(int, numbers)
    if not _may_give() and not engine.maps_users and uid != os.geteuid():
        raise _failed(f"{name!r} is user {uid} there, and user {os.geteuid()}, who runs pytest, can't give files to others")
    return Insider(uid, gid)


def _failed(why: str) -> CodeprobeError:
    return CodeprobeError(
        "SANDBOX_FAILED",
        f"sandbox.docker.user: {why}",
        remediation="Name a user of the image, or leave the field out: processes are then those of whoever runs pytest.",
    )
