"""What tests of driver docker need: podman with a storage of the tests' own, and an image made of what Debian packages hold.

All of it lies in a cache of the user's, named after its content: the image is made once on a machine. No registry is asked, and the
user's own containers and images are never seen. Needs root, podman, runc and dpkg.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.front_door import Project, Run
from tests.install_clis import cache_root

IMAGE = "localhost/codeprobe-test:1"
BARE = "localhost/codeprobe-bare:1"  #: a shell and little else
DRIVER = "--codeprobe-driver=docker"
BRIDGE = "10.88.0.1"  #: this machine, as containers on podman's own bridge see it
_PACKAGES = (
    "dash", "bash", "coreutils", "grep", "sed", "findutils", "tar", "git", "mount", "util-linux", "diffutils", "libc6", "libc-bin",
    "libgcc-s1", "base-files", "python3", "python3-minimal", "ca-certificates",
)  # fmt: skip
_BARE = ("dash", "coreutils", "libc6")
_LEFT_OUT = re.compile(r"/usr/share/(doc|man|locale|info|lintian|bash-completion|perl5|zoneinfo)/|/idlelib/|/lib2to3/|/ensurepip/")
_SECONDS = 300.0
_RECIPE = "4"  #: another one makes other images


def require_podman() -> Mapping[str, str]:
    """Variables for podman's client, with both images there. Skips the test where that can't be had; fails it where CI is set."""
    why = _why_not()
    if why is not None:
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    return _made()


def of(environment: Mapping[str, str], run: Run) -> list[str]:
    """Names of the containers, running or not, that processes of a run have made and that are there still."""
    label = f"label=codeprobe.run={run.events[0]['run_id']}"
    return podman(environment, "ps", "-a", "--filter", label, "--format", "{{.Names}}").split()


def wait_until_gone(environment: Mapping[str, str], run: Run, seconds: float = 30.0) -> None:
    """Until there is none of them; fails if the time is over first."""
    until = time.monotonic() + seconds
    while left := of(environment, run):
        assert time.monotonic() < until, left
        time.sleep(0.1)


def podman(environment: Mapping[str, str], *words: str) -> str:
    """What it says; fails where it fails."""
    done = subprocess.run(
        ["podman", *words], env={**os.environ, **environment}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def use(project: Project, image: str | None = IMAGE) -> Mapping[str, str]:
    """Lets a project's pytest find podman, and gives its tasks an image."""
    environment = require_podman()
    project.environment |= {**environment, "CODEPROBE_DRIVER": "docker"}
    project.write("conftest.py", "")
    project.write("pytest.ini", "[pytest]\ncodeprobe_engine = podman\n")
    if image is not None:
        project.write("experiments/default.yaml", json.dumps({"defaults": {"sandbox": {"docker": {"image": image}}}}))
    return environment


def apart(project: Project) -> Mapping[str, str]:
    """As use(), with a storage of the project's own, where no other test's run sweeps; the images are those of all."""
    environment = dict(use(project))
    shared = Path(environment["CONTAINERS_STORAGE_CONF"])
    text = shared.read_text()
    own = project.scratch / "storage.conf"
    roots = {"graphroot": project.scratch / "storage", "runroot": project.scratch / "running"}
    for name, place in roots.items():
        text = re.sub(f"^{name} = .*$", f'{name} = "{place}"', text, flags=re.MULTILINE)
    own.write_text(f'{text}[storage.options]\nadditionalimagestores = ["{shared.parent}/storage"]\n')
    environment["CONTAINERS_STORAGE_CONF"] = str(own)
    project.environment |= environment
    return environment


@functools.cache
def _why_not() -> str | None:
    if os.geteuid() != 0:
        return "podman without root is not set up here"
    missing = [name for name in ("podman", "runc", "dpkg") if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


@functools.cache
def _made() -> Mapping[str, str]:
    folder = cache_root().parent / "podman" / _name()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment = _configured(folder)
        there = podman(environment, "images", "--format", "{{.Repository}}:{{.Tag}}").split()
        for image, packages in ((IMAGE, _PACKAGES), (BARE, _BARE)):
            if image not in there:
                with tempfile.TemporaryDirectory(dir=folder) as scratch:
                    archive = Path(scratch, "image.tar")
                    _pack(archive, packages)
                    podman(environment, "import", "-q", str(archive), image)
    return environment


def _name() -> str:
    """After the packages' versions and how images are made of them."""
    versions = subprocess.run(["dpkg-query", "-W", *_PACKAGES], capture_output=True, text=True, check=False).stdout
    return hashlib.sha256(f"{_RECIPE}\n{versions}".encode()).hexdigest()[:16]


def _configured(folder: Path) -> Mapping[str, str]:
    files = {name: folder / name for name in ("containers.conf", "storage.conf")}
    if not all(file.exists() for file in files.values()):
        # limits of processes and files no higher than this machine's own, or runc refuses
        soft = {name: _lowest(name) for name in ("NOFILE", "NPROC")}
        files["containers.conf"].write_text(
            f'[containers]\ndefault_ulimits = ["nofile={soft["NOFILE"]}:{soft["NOFILE"]}", "nproc={soft["NPROC"]}:{soft["NPROC"]}"]\n'
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
            f'[network]\nnetwork_config_dir = "{folder}/networks"\n'
        )
        run = Path("/run/codeprobe-tests") / folder.name  # gone after a start of the machine, as podman wants it
        files["storage.conf"].write_text(f'[storage]\ndriver = "{_storage(folder)}"\ngraphroot = "{folder}/storage"\nrunroot = "{run}"\n')
    return {"CONTAINERS_CONF": str(files["containers.conf"]), "CONTAINERS_STORAGE_CONF": str(files["storage.conf"])}


def _lowest(name: str) -> int:
    import resource

    soft, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
    return min(20_000, soft if soft > 0 else 20_000)


def _storage(folder: Path) -> str:
    """`overlay` where one can be mounted there; a container of one's own often forbids it."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for part in ("lower", "upper", "work", "top"):
            Path(scratch, part).mkdir()
        options = f"lowerdir={scratch}/lower,upperdir={scratch}/upper,workdir={scratch}/work"
        if subprocess.run(["mount", "-t", "overlay", "-o", options, "none", f"{scratch}/top"], capture_output=True).returncode != 0:
            return "vfs"
        subprocess.run(["umount", f"{scratch}/top"], check=True)
    return "overlay"


def _pack(archive: Path, packages: tuple[str, ...]) -> None:
    """The files of these packages, of Python's own libraries, and the shared libraries that their programs ask for."""
    listed = set(_files(packages))
    if "python3" in packages:
        listed |= set(_files(tuple(_python_packages())))
    programs = [path for path in listed if ("/bin/" in path or "/sbin/" in path or ".so" in path) and Path(path).is_file()]
    asked = subprocess.run(["ldd", *sorted(programs)], capture_output=True, text=True, check=False).stdout
    listed |= {place for match in re.findall(r"(?:=>\s+|^\s+)(/\S+)", asked, re.MULTILINE) if (place := _in_place(match))}
    with tarfile.open(archive, "w") as tar:
        for top in ("/bin", "/sbin", "/lib", "/lib64"):
            tar.add(top, arcname=top[1:], recursive=False)
        for entry in sorted({link for path in listed for link in (path, *_behind(path))}):
            tar.add(entry, arcname=entry[1:], recursive=False)
        for name, text in {"etc/passwd": "root:x:0:0:root:/root:/bin/bash\n", "etc/group": "root:x:0:\n"}.items():
            made = Path(archive.parent, Path(name).name)
            made.write_text(text)
            tar.add(made, arcname=name)


def _files(packages: tuple[str, ...]) -> Iterator[str]:
    for line in subprocess.run(["dpkg", "-L", *packages], capture_output=True, text=True, check=False).stdout.splitlines():
        if line.startswith("/") and not _LEFT_OUT.search(line) and (place := _in_place(line)):
            yield place


def _in_place(path: str) -> str | None:
    """A path without links on the way: /bin is one on most systems."""
    place = str(Path(os.path.realpath(Path(path).parent), Path(path).name))
    return place if os.path.lexists(place) and place not in ("/", "/bin", "/sbin", "/lib", "/lib64") else None


def _behind(path: str) -> Iterator[str]:
    """What a link leads to."""
    while Path(path).is_symlink():
        place = _in_place(os.path.normpath(Path(path).parent / Path(path).readlink()))
        if place is None:
            return
        path = place
        yield path


def _python_packages() -> Iterator[str]:
    version = Path(os.path.realpath("/usr/bin/python3")).name
    yield from (version, f"{version}-minimal", f"lib{version}-stdlib", f"lib{version}-minimal", "libpython3-stdlib")
