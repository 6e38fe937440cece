"""Proofs that an agent has done the canary's task here: a small file below `.codeprobe/canary/` for each way in which it is started."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from pytest_codeprobe import __version__
from pytest_codeprobe.model.base import Model
from pytest_codeprobe.text import write_whole

FOLDER = Path(".codeprobe", "canary")  #: below rootdir
_MOST = 1 << 20  #: bytes of a proof that are read
_MOST_FILES = 1000  #: proofs that are looked through for one that is alike


class Fingerprint(Model):
    """The circumstances under which a proof was made. Nothing in it is secret."""

    agent_version: str | None  #: as the CLI says it; None where the agent has no CLI of its own
    os: str
    plugin_major: str

    def differences(self, now: Fingerprint) -> dict[str, dict[str, Any]]:
        """By field: what it was (`old`) and what it is (`new`)."""
        before, after = self.model_dump(mode="json"), now.model_dump(mode="json")
        return {name: {"old": value, "new": after[name]} for name, value in before.items() if value != after[name]}


class Proof(Model):
    """The content of a proof file."""

    schema_version: Literal["1"] = "1"
    agent: str
    model: str | None
    driver: str
    configuration: dict[str, str]
    fingerprint: Fingerprint
    run_id: str
    proved_at: str
    duration_seconds: float
    cost_usd: float | None
    tokens: int | None

    @property
    def key(self) -> Key:
        """What it is for."""
        return Key(self.agent, self.model, self.driver, tuple(sorted(self.configuration.items())))


@dataclass(frozen=True, slots=True)
class Key:
    """What a proof is for: an agent as it is started in some task."""

    agent: str
    model: str | None  #: as asked for; None: whichever the CLI takes
    driver: str
    configuration: tuple[tuple[str, str], ...] = ()  #: see run/configuration.py; sorted

    @property
    def name(self) -> str:
        """Of the file: readable, and no two keys have one."""
        parts = [self.agent, self.model or "default", self.driver]
        words = "-".join(re.sub(r"[^A-Za-z0-9._]+", "_", part)[:40].strip("._") or "_" for part in parts)
        whole = repr((self.agent, self.model, self.driver, self.configuration))
        return f"{words}-{hashlib.sha256(whole.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"

    def is_like(self, other: Key) -> bool:
        """Whether the two differ in their configuration at most."""
        return (self.agent, self.model, self.driver) == (other.agent, other.model, other.driver)

    def differs_in(self, other: Key) -> list[str]:
        """Names in the configuration."""
        mine, its = dict(self.configuration), dict(other.configuration)
        return sorted(name for name in mine.keys() | its.keys() if mine.get(name) != its.get(name))

    def __str__(self) -> str:
        model = f"model {self.model}" if self.model else "its default model"
        return f"agent {self.agent} ({', '.join([model, f'driver {self.driver}', *self._settings()])})"

    def _settings(self) -> list[str]:
        """Names, with the few values that are no secret."""
        settings = dict(self.configuration)
        mode = settings.pop("permission_mode", "auto")
        said = [f"permission mode {mode}"] if mode != "auto" else []
        said += [f"backend {settings.pop('backend')}"] if "backend" in settings else []
        return [*said, f"own {', '.join(settings)}"] if settings else said


class ProofStore:
    """The proofs of one project."""

    def __init__(self, rootdir: Path) -> None:
        self.folder = rootdir / FOLDER
        self._rootdir = rootdir

    def path(self, key: Key) -> Path:
        """Where the proof lies, or would."""
        return self.folder / f"{key.name}.json"

    def shown(self, key: Key) -> str:
        """The same, relative to rootdir."""
        return str(self.path(key).relative_to(self._rootdir))

    def read(self, key: Key) -> Proof | str | None:
        """The proof; None if there is none; why it can't be used, as the end of a sentence, where it is broken."""
        found = _read(self.path(key))
        return "is the proof of something else" if isinstance(found, Proof) and found.key != key else found

    def others(self, agent: str) -> list[Proof]:
        """Readable ones of the agent, whatever they are for, the newest first."""
        try:
            files = sorted(self.folder.glob("*.json"))[:_MOST_FILES]
        except OSError:
            return []
        found = [proof for file in files if isinstance(proof := _read(file), Proof) and proof.agent == agent]
        return sorted(found, key=lambda proof: proof.proved_at, reverse=True)

    def write(self, key: Key, proof: Proof) -> None:
        """Replace the proof, all or nothing. OSError where the folder can't be written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        ignore = self.folder / ".gitignore"
        if not ignore.exists():
            write_whole(ignore, "*\n")
        write_whole(self.path(key), proof.model_dump_json(indent=1) + "\n")

    def remove(self, key: Key) -> None:
        """A proof that no longer holds. OSError where that can't be done."""
        self.path(key).unlink(missing_ok=True)


def _read(path: Path) -> Proof | str | None:
    """Whatever lies there, reading it neither blocks nor leads elsewhere."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return "is no file"
            content = file.read(_MOST)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"can't be read: {error.strerror}"
    try:
        return Proof.model_validate_json(content)
    except ValidationError:
        return "is no proof that this version can read"


def system() -> str:
    """The operating system as a fingerprint names it: without what each update of a kernel changes."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    distribution = " ".join(filter(None, (release.get("ID"), release.get("VERSION_ID")))) or platform.mac_ver()[0]
    return " ".join(filter(None, (platform.system(), platform.machine(), distribution)))


def plugin_major() -> str:
    """The first number of this plugin's version."""
    return __version__.partition(".")[0]
