"""Images of containers: found, fetched or built, once in a process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_codeprobe.errors import CodeprobeError, Stopped
from pytest_codeprobe.model.config import DockerConfig
from pytest_codeprobe.sandboxes.engines import Engine
from pytest_codeprobe.sandboxes.sweep import new_folder
from pytest_codeprobe.sandboxes.trees import remove_tree
from pytest_codeprobe.text import ending, one_line

Stopping = Callable[[], str | None]  #: why not to go on, as run_tool() takes it
#: as engines set it where an image has none
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Image:
    """One that is there. `env`: the variables that it sets."""

    id: str
    env: Mapping[str, str]

    @property
    def path(self) -> str:
        """PATH inside."""
        return self.env.get("PATH") or DEFAULT_PATH


class Images:
    """The images that were asked for so far. Several trials that want one wait for the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._known: dict[str, Image] = {}

    def get(self, engine: Engine, config: DockerConfig, *, scratch: Path, timeout: float, offline: bool, stopped: Stopping) -> Image:
        """The image of a sandbox, ready to be used. SANDBOX_FAILED where it can't be had; `timeout` in seconds. Stopped.

        `scratch`: where a private folder can be made.
        """
        key = f"{engine.program}\0{config.image}\0{config.dockerfile}\0{json.dumps(config.build_args, sort_keys=True)}"
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._known:
                try:
                    self._known[key] = _image(engine, config, scratch=scratch, timeout=timeout, offline=offline, stopped=stopped)
                except Stopped:
                    raise
                except OSError as error:
                    raise _failed(config, error.strerror or str(error)) from error
            return self._known[key]


def known_id(engine: Engine, name: str) -> str | None:
    """The id of an image that is there, by its name; None if it is not there, or the engine does not say."""
    try:
        image = _inspect(engine, name)
    except OSError:
        return None
    return image.id if image is not None else None


def _image(engine: Engine, config: DockerConfig, *, scratch: Path, timeout: float, offline: bool, stopped: Stopping) -> Image:
    if config.dockerfile is not None:
        name = _build(engine, config, scratch, timeout, offline=offline, stopped=stopped)
    else:
        name = config.image or ""
    image = _inspect(engine, name)
    if image is None:
        if offline:
            raise _failed(config, "it is not there, and under --codeprobe-offline nothing is fetched")
        done = engine.ask("pull", "-q", name, timeout=timeout, stopped=stopped)
        image = _inspect(engine, name) if done.status == 0 else None
        if image is None:
            raise _failed(config, one_line(ending(done.complaints.decode("utf-8", "replace"), 500), 500))
    return image


def _build(engine: Engine, config: DockerConfig, scratch: Path, timeout: float, *, offline: bool, stopped: Stopping) -> str:
    """The id of what a Dockerfile makes, with its folder as the context. Values of arguments are handed over by the environment."""
    file = Path(config.dockerfile or "")
    args = [word for name in config.build_args for word in ("--build-arg", name)]
    folder = new_folder(scratch)  # swept, should this process be killed
    try:
        told = folder / "id"
        net = ["--network", "none", "--pull=never"] if offline and engine.kind == "podman" else ["--network", "none"] if offline else []
        words = ("build", "-q", "-f", str(file), "--iidfile", str(told), *net, *args, str(file.parent))
        done = engine.ask(*words, timeout=timeout, env=config.build_args, stopped=stopped)
        if done.status != 0:
            raise _failed(config, one_line(ending(done.complaints.decode("utf-8", "replace"), 800), 800))
        return told.read_text(encoding="ascii").strip()
    finally:
        remove_tree(folder)


def _inspect(engine: Engine, name: str) -> Image | None:
    done = engine.ask("image", "inspect", "--format", "{{.Id}} {{json .Config.Env}}", name)
    if done.status != 0:
        return None
    identity, _, env = done.output.decode("utf-8", "replace").strip().partition(" ")
    try:
        pairs = json.loads(env or "null") or []
    except ValueError:
        pairs = []
    return Image(identity.removeprefix("sha256:"), dict(pair.split("=", 1) for pair in pairs if "=" in pair))


def _failed(config: DockerConfig, why: str) -> CodeprobeError:
    what = f"sandbox.docker.dockerfile: {config.dockerfile} can't be built" if config.dockerfile else f"image {config.image!r} can't be had"
    return CodeprobeError(
        "SANDBOX_FAILED",
        f"{what}: {why}",
        remediation=(
            "Correct the Dockerfile; `docker build` or `podman build` by hand shows all that it says."
            if config.dockerfile
            else "Correct sandbox.docker.image, or fetch it by hand (`docker pull` or `podman pull`), which shows all that the engine says."
        ),
        detail={"image": config.image, "dockerfile": config.dockerfile},
    )
