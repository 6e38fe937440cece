"""`codeprobe clean`: remove what killed runs left behind. The next run does the same by itself."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from pytest_codeprobe.cli.answers import complain, envelope_line, json_by_environment, say
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.run.envelope import ErrorEntry, entry
from pytest_codeprobe.sandboxes import hierarchies
from pytest_codeprobe.sandboxes.sweep import abandoned, owner_of, take_away


@click.command(short_help="Remove what killed runs left behind.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON, in the envelope's form.")
@click.pass_context
def clean(ctx: click.Context, dry_run: bool, as_json: bool) -> None:
    """Remove private folders of trials whose pytest is dead, below the system's temporary folder (TMPDIR), and their control groups.

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
    line, code = envelope_line("clean", {"dry_run": dry_run, "root": str(root), "folders": folders, "groups": groups}, errors)
    if as_json or json_by_environment():
        say(line)
    else:
        _tell(root, found, ended, dry_run=dry_run)
    for error in errors:
        complain(error)
    ctx.exit(code)


def _tell(root: Path, found: list[tuple[str, Path | None]], groups: list[tuple[str, bool]], *, dry_run: bool) -> None:
    word = "would remove" if dry_run else "removed"
    for name, left in found:
        if dry_run or left is None:
            say(f"{word} {root / name} (process {owner_of(name)} is gone)")
    for group, gone in groups:
        if dry_run or gone:
            say(f"{word} control group {group} (process {hierarchies.owner_of(group)} is gone)")
    if not found and not groups:
        say(f"nothing to clean in {root}")


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
