"""What of this machine a sandbox with a file system of its own shows: the system's folders, interpreters, the started program."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

#: folders of the system, as they are everywhere; nothing of a user is in them
SYSTEM = ("/usr", "/etc", "/opt", "/nix")
#: folders at the top that are links into /usr, or folders of their own
TOP = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
#: files and folders of /etc that only the system's own programs read
HIDDEN_FILES = ("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/krb5.keytab")
HIDDEN_FOLDERS = ("/etc/sudoers.d", "/etc/ssh", "/etc/ssl/private", "/etc/docker", "/etc/kubernetes")
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")
_CHILDREN = Path(__file__).resolve().parents[1] / "children"
_SHEBANGS = 4  #: interpreters of interpreters


@functools.cache
def roots_own(top: str = "/etc") -> tuple[frozenset[str], frozenset[str]]:
    """Files and folders there that only root may read, where we are root: anybody else can't read them anyway."""
    files, folders = set[str](), set[str]()
    for place, below, names in os.walk(top) if os.geteuid() == 0 else ():
        for name in (*below, *names):
            with contextlib.suppress(OSError):
                mode = os.lstat(path := f"{place}/{name}").st_mode
                if stat.S_ISDIR(mode) and mode & 0o5 != 0o5:
                    folders.add(path)
                elif stat.S_ISREG(mode) and not mode & 0o4:
                    files.add(path)
        below[:] = [name for name in below if f"{place}/{name}" not in folders]
    return frozenset(files), frozenset(folders)


def own_python() -> str:
    """The interpreter that runs pytest, without its environment; it is shown."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


@functools.cache
def harness() -> tuple[Path, ...]:
    """The interpreter that runs pytest, its base, and our own programs that run inside."""
    base = Path(own_python())
    own = Path(sys.prefix)
    is_made = (own / "pyvenv.cfg").is_file()  # some make it in their repository: of that nothing else is shown
    parts = [own / name for name in ("pyvenv.cfg", "bin", "lib", "lib64")] if is_made else [own]
    places = [*parts, Path(sys.base_prefix), *([base.parent.parent] if base.parent.name == "bin" else [base]), _CHILDREN]
    return tuple(dict.fromkeys(places))


def covered(places: Iterable[Path]) -> list[Path]:
    """Which of these folders the system's would show, as they are seen there: to be hidden, since they are a user's. No inner ones."""
    found: list[Path] = []
    for place in sorted({os.path.realpath(place) for place in places}):  # outer ones first
        for system in SYSTEM:
            real = os.path.realpath(system)
            if place.startswith(f"{real}/") and os.path.isdir(place):  # noqa: PTH112
                seen = Path(system, os.path.relpath(place, real))
                found += [] if any(seen.is_relative_to(other) for other in found) else [seen]
    return found


def narrowed(places: Iterable[Path], hidden: Sequence[Path] = ()) -> Iterator[Path]:
    """Those that are there, and that neither the system's folders nor another one shows. Never the root or a home as a whole.

    `hidden`: folders in which the system's show nothing.
    """
    shown, closed = list(SYSTEM), list(map(str, hidden))  # of texts: this is asked for each command
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  # Path.home() raises where nobody knows it
    never = {"/", str(home), str(home.parent)}
    for place in sorted(dict.fromkeys(map(str, places)), key=lambda path: path.count("/")):
        if place in never or not os.path.exists(place):  # noqa: PTH110
            continue
        if not any(_is_in(place, other) and not _between(other, place, closed) for other in shown):
            shown.append(place)
            yield Path(place)


def never_bound(place: Path) -> str | None:
    """Why nothing is shown of what was asked for, as the end of a sentence; None if it is."""
    if not place.exists():
        return "does not exist"
    return None if any(narrowed([place], [place])) else "is never shown as a whole: name what is needed of it"


def _is_in(place: str, outer: str) -> bool:
    return place == outer or place.startswith(f"{outer}/")


def _between(outer: str, place: str, hidden: Iterable[str]) -> bool:
    return any(_is_in(place, each) and each != outer and _is_in(each, outer) for each in hidden)


def unseen(path: str, bound: Iterable[Path]) -> list[str]:
    """Folders of a PATH that a sandbox with a file system of its own does not show; `bound`: what it shows by request."""
    shown = [*map(Path, (*SYSTEM, *TOP)), *harness(), *bound]
    folders = dict.fromkeys(Path(part) for part in path.split(os.pathsep))
    return [
        str(folder)
        for folder in folders
        if folder.is_absolute() and folder.is_dir() and not any(folder.is_relative_to(place) for place in shown)
    ]


def found(program: str, env: Mapping[str, str], folder: Path) -> Path:
    """The file that a command starts, as its own shell would find it. FileNotFoundError."""
    if "/" in program:
        return folder / program
    for part in env.get("PATH", os.defpath).split(os.pathsep):
        candidate = folder / part / program
        if program and candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise FileNotFoundError(2, os.strerror(2), program)


def program_places(program: Path, env: Mapping[str, str]) -> Iterator[Path]:
    """What a program is made of, as far as its file tells: of an npm package all of `node_modules`, of a virtual environment all of it.

    And what its first line names. Of any other program its own file alone: what lies beside it may be anybody's.
    """
    for _ in range(_SHEBANGS):
        yield from _installed(program)
        interpreter = _interpreter(program, env)
        if interpreter is None:
            return
        program = interpreter


def _installed(program: Path) -> Iterator[Path]:
    yield program
    real = Path(os.path.realpath(program))
    modules = [Path(*real.parts[: n + 1]) for n, part in enumerate(real.parts) if part == "node_modules"]
    yield from modules[:1] or [real]
    for place in (program, real):  # the link of an environment's python leads out of it
        if (home := place.parent.parent / "pyvenv.cfg").is_file():
            yield home.parent
            base = Path(os.path.realpath(place.parent / "python"))
            yield base.parent.parent if base.parent.name == "bin" else base


def _interpreter(program: Path, env: Mapping[str, str]) -> Path | None:
    try:
        with program.open("rb") as file:
            line = file.readline(256)
    except OSError:
        return None
    if not line.startswith(b"#!"):
        return None
    try:
        words = shlex.split(line[2:].decode("utf-8", "replace"))
    except ValueError:
        return None
    if words and Path(words[0]).name == "env":
        named = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), None)
        where = shutil.which(named, path=env.get("PATH", os.defpath)) if named else None
        return Path(where) if where else None
    return Path(words[0]) if words and words[0].startswith("/") else None


def certificates(env: Mapping[str, str]) -> list[Path]:
    """Files and folders that variables of an environment name, by which programs know whom they talk to."""
    return [Path(env[name]) for name in CERTIFICATES if env.get(name, "").startswith("/")]


def resolver() -> Sequence[Path]:
    """Where the names of hosts are looked up, if /etc/resolv.conf is a link out of /etc."""
    real = Path(os.path.realpath("/etc/resolv.conf"))
    return [] if real.is_relative_to("/etc") or not real.is_file() else [real]
