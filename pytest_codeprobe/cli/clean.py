"""`codeprobe clean`: remove what killed runs left behind. The next run does the same by itself."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from pytest_codeprobe.cli.answers import complain, envelope_line, json_by_environment, say
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.run.envelope import ErrorEntry, entry
from pytest_codeprobe.sandboxes import engines, hierarchies
from pytest_codeprobe.sandboxes.sweep import abandoned, owner_of, take_away


@click.command(short_help="Remove what killed runs left behind.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON, in the envelope's form.")
@click.pass_context
def clean(ctx: click.Context, dry_run: bool, as_json: bool) -> None:
    """Remove private folders of trials whose pytest is dead, below the system's temporary folder (TMPDIR), their control groups, and
    their containers in docker and podman.

    Those of living runs, of other users, machines and containers stay, and so does every run directory.
    """
    root = Path(tempfile.gettempdir())
    found: list[tuple[str, Path | None]] = [(name, root / name) for name in abandoned(root)] if dry_run else list(take_away(root))
    folders = [
        {"path": str(root / name), "pid": owner_of(name), "removed": left is None, "left": None if left is None or dry_run else str(left)}
        for name, left in found
    ]
    ended = [(group, False) for group in hierarchies.abandoned()] if dry_run else list(hierarchies.take_away())
    groups = [{"path": group, "pid": hierarchies.owner_of(group), "removed": gone} for group, gone in ended]
    errors = [] if dry_run else [_stuck(root / name, left) for name, left in found if left is not None]
    errors += [] if dry_run else [_still_there(group) for group, gone in ended if not gone]
    held = list(_of_engines(dry_run=dry_run))
    errors += [] if dry_run else [_still_held(engine, name) for engine, name, gone in held if not gone]
    containers = [{"name": name, "pid": engines.owner_of(name), "removed": gone} for _, name, gone in held]
    data = {"dry_run": dry_run, "root": str(root), "folders": folders, "groups": groups, "containers": containers}
    line, code = envelope_line("clean", data, errors)
    if as_json or json_by_environment():
        say(line)
    else:
        _tell(root, found, ended, held, dry_run=dry_run)
    for error in errors:
        complain(error)
    ctx.exit(code)


def _of_engines(*, dry_run: bool) -> Iterator[tuple[engines.Engine, str, bool]]:
    """The abandoned containers of each engine that answers, and whether one is gone now."""
    for engine in engines.all_of(os.environ):
        for name, gone in ((name, False) for name in engines.abandoned(engine)) if dry_run else engines.take_away(engine):
            yield engine, name, gone


def _tell(
    root: Path,
    found: list[tuple[str, Path | None]],
    groups: list[tuple[str, bool]],
    held: list[tuple[engines.Engine, str, bool]],
    *,
    dry_run: bool,
) -> None:
    word = "would remove" if dry_run else "removed"
    for name, left in found:
        if dry_run or left is None:
            say(f"{word} {root / name} (process {owner_of(name)} is gone)")
    for group, gone in groups:
        if dry_run or gone:
            say(f"{word} control group {group} (process {hierarchies.owner_of(group)} is gone)")
    for engine, name, gone in held:
        if dry_run or gone:
            say(f"{word} container {name} of {engine.kind} (process {engines.owner_of(name)} is gone)")
    if not found and not groups and not held:
        say(f"nothing to clean in {root}")


def _still_held(engine: engines.Engine, name: str) -> ErrorEntry:
    return entry(
        CodeprobeError(
            "SANDBOX_FAILED",
            f"container {name} of {engine.kind}: could not be removed",
            remediation=f"See why: {engine.program} rm -f {name}",
            detail={"name": name},
        )
    )


def _still_there(group: str) -> ErrorEntry:
    return entry(
        CodeprobeError(
            "SANDBOX_FAILED",
            f"control group {group}: could not be removed",
            remediation=f"See {group}/cgroup.procs for what is still in it, end that, then run `codeprobe clean` again.",
            detail={"path": group},
        )
    )


def _stuck(path: Path, left: Path) -> ErrorEntry:
    return entry(
        CodeprobeError(
            "SANDBOX_FAILED",
            f"{path}: could not be removed as a whole; the rest is in {left}",
            remediation=f"Look for mounts, immutable files and files of other users below {left}, then run `codeprobe clean` again.",
            detail={"path": str(path), "left": str(left)},
        )
    )
