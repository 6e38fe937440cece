"""Where sessions can run, and what each place keeps them from: found out by doing it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.sandbox import Driver, ProcessLimits
from pytest_codeprobe.run.doctor.check import Check, Subject
from pytest_codeprobe.sandboxes import best, choose
from pytest_codeprobe.sandboxes.cgroups import held
from pytest_codeprobe.sandboxes.hierarchies import Place
from pytest_codeprobe.sandboxes.mounts import room_unusable
from pytest_codeprobe.sandboxes.sweep import new_folder
from pytest_codeprobe.sandboxes.trees import remove_tree
from pytest_codeprobe.sandboxes.visible import unseen

_OUTLIVES = ("/bin/sh", "-c", "sleep 300 & exit 0")  #: a command that leaves a process behind


def checks(subject: Subject) -> Iterator[tuple[str, Callable[[], Sequence[Check]]]]:
    """Name and work of each."""
    for name, driver in sorted(subject.context.registry.drivers.items()):
        yield f"driver.{name}", lambda driver=driver: [_driver(subject, driver), *_path(subject, driver)]  # type: ignore[misc]  # mypy can't infer a default's type
    yield "driver", lambda: [_auto(subject)]
    yield "limits", _limits


def _auto(subject: Subject) -> Check:
    """What a run's trials get that name no driver."""
    name, why = best(subject.context.registry, subject.context)
    if why is None:
        return Check(name="driver", status="pass", message=f"auto, the default, is {name} here")
    fix = "Install bubblewrap (Debian: apt install bubblewrap), or say that it is meant: --codeprobe-driver tempdir."
    return Check(name="driver", status="warn", message=f"auto, the default, is {name} here, which is no security boundary: {why}", fix=fix)


def _limits() -> list[Check]:
    """Which limits of sandbox.limits this user can hold here."""
    found = held()
    there = [f"{name} (v{place.version})" for name, place in found.items() if isinstance(place, Place)]
    fix = "Run as root, or where the system has delegated a control group to you; tasks that set it run without it, and say so."
    missing = [
        Check(name=f"limits.{name}", status="info", message=f"sandbox.limits.{name} can't be held here: {why}", fix=fix)
        for name, why in found.items()
        if isinstance(why, str)
    ]
    if why := room_unusable(tempfile.gettempdir()):
        words = f"sandbox.limits.disk_mb can't be held here: {why}"
        missing.append(
            Check(name="limits.disk_mb", status="info", message=words, fix="Run as root; tasks that set it run without it, and say so.")
        )
    held_here = [f"held by control groups: {', '.join(there)}"] if there else []
    held_here += [] if why else ["by a mount of that size: disk_mb"]
    return [*([Check(name="limits", status="pass", message="; ".join(held_here))] if held_here else []), *missing]


def _uses(subject: Subject, name: str) -> bool:
    """Whether the run would use this driver, as far as options say."""
    wanted = subject.context.options.driver or "auto"
    if wanted != "auto":
        return wanted == name
    try:
        return choose("auto", subject.context.registry, subject.context).name == name
    except CodeprobeError:
        return name == "tempdir"


def _driver(subject: Subject, driver: Driver) -> Check:
    name, used = f"driver.{driver.name}", _uses(subject, driver.name)
    bad: Literal["fail", "warn"] = "fail" if used else "warn"
    if (reason := driver.unavailable(subject.context)) is not None:
        fix = "Install what it needs, or start it; another driver is for a human to choose."
        return Check(name=name, status="fail" if used else "info", message=f"{driver.name}: {reason}", fix=fix)
    if driver.name != "tempdir":
        what = "keeps the agent's tools inside" if driver.isolates else "is no security boundary"
        by = getattr(driver, "program", None)  # which of several programs does it
        way = f", by {program}" if by is not None and (program := by(subject.context)) is not None else ""
        return Check(name=name, status="pass", message=f"{driver.name}: {what}{way}", detail={"isolates": driver.isolates})
    try:
        tree = _tree(subject)
        folder = new_folder(subject.scratch)
        remove_tree(folder)
    except OSError as error:
        fix = "Free disk space, processes or open files, or see what this system forbids."
        return Check(name=name, status=bad, message=f"tempdir: {error.strerror or error}", fix=fix)
    if tree is None:
        message = "tempdir: a process outlived its command, and was not ended"
        return Check(name=name, status=bad, message=message, fix="Report it.")
    message = f"tempdir: a process tree of its own ({tree}), HOME and TMPDIR; neither files nor network, it is no security boundary"
    return Check(name=name, status="pass", message=message, detail={"isolates": False, "process_tree": tree})


def _path(subject: Subject, driver: Driver) -> Iterator[Check]:
    """Which programs of this machine are not there for sessions."""
    context = subject.context
    if driver.name != "bubblewrap" or driver.unavailable(context) is not None:
        return
    if folders := unseen(context.environ.get("PATH", os.defpath), map(Path, context.options.bind)):
        yield Check(
            name="driver.bubblewrap.path",
            status="info",
            message=f"bubblewrap: sessions don't see the programs in {', '.join(folders)}, but the agent's own CLI",
            fix="Name those that agents are to use, with what they are made of, in ini codeprobe_bind.",
        )


def _tree(subject: Subject) -> str | None:
    """How trees are held together; None if they are not."""
    with Path(os.devnull).open("r+b") as null:
        process = subject.context.processes.start(
            _OUTLIVES, env={"PATH": subject.context.environ.get("PATH", os.defpath)}, cwd="/", stdin=null.fileno(), stdout=null.fileno(),
            stderr=null.fileno(), limits=ProcessLimits(timeout=5.0, grace=0.0), role="setup",
        )  # fmt: skip
        ended = process.wait(5.0) or process.destroy()
    if not ended.proved or not ended.left:
        return None
    words = {"pidns": "a pid namespace", "userns": "a pid namespace of a user namespace", "subreaper": "a child subreaper"}
    mode = str(getattr(subject.context.processes, "mode", ""))
    return words.get(mode, mode or "ended as a whole")
