"""Container engines: which one there is, whether it answers, and all words that docker and podman say differently."""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Literal

from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.sandbox import Outside
from pytest_codeprobe.sandboxes.sweep import start_time
from pytest_codeprobe.sandboxes.tools import ToolResult, run_tool
from pytest_codeprobe.text import one_line

KINDS = ("docker", "podman")  #: in the order in which they are looked for
ANSWER_SECONDS = 20.0  #: that an engine has for a question
_CLIENT = frozenset({"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "STORAGE_DRIVER", "REGISTRY_AUTH_FILE", "SSH_AUTH_SOCK"})
_CLIENT_BEGIN = ("DOCKER_", "CONTAINER_", "CONTAINERS_", "XDG_", "BUILDAH_")
_FETCHING = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"})
#: ends a container and proves it: the engine said that it removed it, or that it knows none of that name
#: first it is asked, for a file, how the container ended, if the report does not say that its first process did
_END = """
if [ -n "$5" ] && [ ! -s "$5" ] && [ "$(tail -c 6 "$4" 2>/dev/null)" != ended ]; then
    "$1" container inspect --format '{{.State.Status}} {{.State.ExitCode}}' "$2" >"$5" 2>/dev/null
fi
"$1" rm -f -v $3 "$2" >/dev/null 2>&1 && exit 0; left=$("$1" ps -a -q --filter "name=^$2\\$" 2>/dev/null) && [ -z "$left" ]
"""
REPORT = "/run/codeprobe/report"  #: a file in each container; see containers.py
STOPPING = "/run/codeprobe-stopping"  #: one that is there once it is to end
#: to all in a container but its first process, which is ours, and then waits for the others too
_TERM = f"echo >{STOPPING}; kill -TERM -1; kill -CONT -1"


@dataclass(frozen=True, slots=True)
class Engine:
    """One that was found. `env`: what its client gets of the harness's environment."""

    kind: Literal["docker", "podman"]
    program: str
    env: Mapping[str, str] = field(hash=False)

    def ask(
        self,
        *words: str,
        timeout: float = ANSWER_SECONDS,
        env: Mapping[str, str] | None = None,
        stopped: Callable[[], str | None] | None = None,
    ) -> ToolResult:
        """Run its client to its end. OSError, TimeoutError; `env`: what the client gets beside its own; `stopped`: as run_tool's."""
        return run_tool([self.program, *words], env={**self.env, **(env or {})}, timeout=timeout, stdout=PIPE, stopped=stopped)

    def outside(self, name: str, report: Path | None = None, evidence: Path | None = None) -> Outside:
        """How a keeper ends the container of that name. docker kills at once; podman is told to.

        `evidence`: a file for how it ended, where its report does not say so; see containers.py.
        """
        at_once = "-t 0" if self.kind == "podman" else ""
        return Outside(
            stop_argv=[self.program, "exec", name, "/bin/sh", "-c", _TERM],
            end_argv=["/bin/sh", "-c", _END, "codeprobe", self.program, name, at_once, str(report or ""), str(evidence or "")],
            env=self.env,
        )

    def throwaway(self, image: str, script: str, *words: str) -> ToolResult:
        """Run a script in a container of its own, without a network, that goes with it. OSError, TimeoutError."""
        alone = ("--rm", "--name", new_name(), "--pull", "never", "--network", "none", "--entrypoint", "/bin/sh")
        return self.ask("run", *alone, *words, image, "-c", script)

    def user(self) -> list[str]:
        """Whoever runs pytest, inside too: what is written then belongs to them."""
        who = ["--user", f"{os.geteuid()}:{os.getegid()}"]
        return ["--userns", "keep-id", *who] if self.maps_users else who

    @property
    def maps_users(self) -> bool:
        """Whether users inside are others outside: podman without root."""
        return self.kind == "podman" and os.geteuid() != 0

    def own_words(self) -> list[str]:
        """What only one of them knows: podman would hand on the proxies of its client's environment."""
        return ["--http-proxy=false"] if self.kind == "podman" else []


class Engines:
    """The engines that were asked so far, each once in a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, tuple[tuple[str, str], ...]], Engine | str] = {}

    def get(self, context: Context) -> Engine | str:
        """The engine of a run, or why there is none: ini `codeprobe_engine`, else the first that answers."""
        env = client_environment(context.environ)
        key = context.options.engine, tuple(sorted(env.items()))
        with self._lock:
            if key not in self._known:
                self._known[key] = _find(context.options.engine, env)
            return self._known[key]


def all_of(environ: Mapping[str, str]) -> list[Engine]:
    """Each engine that works here."""
    env = client_environment(environ)
    return [engine for kind in KINDS if isinstance(engine := _find(kind, env), Engine)]


def client_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What an engine's client is to see: where the engine is, and how it gets to registries; no keys of anybody's models."""
    return {
        "PATH": os.defpath,
        **{k: v for k, v in environ.items() if k in _CLIENT or k in _FETCHING or k.startswith(_CLIENT_BEGIN)},
    }


def _find(wanted: str, env: Mapping[str, str]) -> Engine | str:
    tried = []
    for name in (wanted,) if wanted else KINDS:
        path = shutil.which(name, path=env["PATH"])
        if path is None:
            tried.append(f"there is no program `{name}` on PATH" if "/" not in name else f"there is no program {name}")
            continue
        engine = Engine("podman" if "podman" in Path(name).name else "docker", path, env)
        trouble = _trouble(engine)
        if trouble is None:
            return engine
        tried.append(f"`{name}` does not work here: {trouble}")
    return (f"ini codeprobe_engine = {wanted}: " if wanted else "") + "; ".join(tried)


def _trouble(engine: Engine) -> str | None:
    """Why it can't be used; found out by a question that only a working engine answers."""
    try:
        answer = engine.ask("ps", "-q", "--filter", "name=^codeprobe-none$")
    except OSError as error:
        return error.strerror or str(error)
    if answer.status == 0:
        return None
    said = answer.complaints.decode("utf-8", "replace").strip()
    return one_line(said.splitlines()[-1], 200) if said else f"exit status {answer.status}"


# ---- whose a container is


def new_name() -> str:
    """A name for a container of this process that no other has, and that says whose it is."""
    pid = os.getpid()
    return f"codeprobe-{pid}-{start_time(pid) or 0}-{_here()}-{secrets.token_hex(6)}"


@functools.cache
def _here() -> str:
    """What a process id is only unique within: the pid namespace, the machine, its start.

    An engine may serve several machines, and some of these have the same name.
    """
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        namespace = 0
    return f"{namespace}-{_digest(f'{socket.gethostname()} {_machine()}')}-{_digest(_boot())}"


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _machine() -> str:
    """As systemd numbers it; empty where it doesn't."""
    try:
        return Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _digest(text: str) -> str:
    return hashlib.blake2s(text.encode(), digest_size=4).hexdigest()


def owner_of(name: str) -> int:
    """The process id in a container's name."""
    return int(name.split("-")[1])


def _is_abandoned(name: str) -> bool:
    parts = name.split("-")
    if len(parts) != 7 or parts[0] != "codeprobe" or not all(part.isdigit() for part in parts[1:4]):
        return False
    namespace, host, boot = _here().split("-")
    if parts[4] != host:
        return False
    if parts[5] != boot:
        return bool(_machine())  # of before this machine was started; without its number it may be another one of that name
    return parts[3] == namespace and start_time(int(parts[1])) != int(parts[2])


def abandoned(engine: Engine) -> list[str]:
    """Names of the containers whose owner is dead. Empty where the engine has no answer."""
    try:
        answer = engine.ask("ps", "-a", "--filter", "name=^codeprobe-", "--format", "{{.Names}}")
    except OSError:
        return []
    return sorted(filter(_is_abandoned, answer.output.decode("utf-8", "replace").split())) if answer.status == 0 else []


def take_away(engine: Engine) -> list[tuple[str, bool]]:
    """Remove the abandoned containers; each, and whether it is gone."""
    found = []
    for name in abandoned(engine):
        end = engine.outside(name)
        try:
            gone = run_tool(end.end_argv, env=engine.env, timeout=ANSWER_SECONDS * 2).status == 0
        except OSError:
            gone = False
        found.append((name, gone))
    return found
