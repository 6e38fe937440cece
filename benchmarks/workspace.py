"""What a workspace costs: laid out from its template, compared with it after a session, deleted; next to `cp -a` and `rm -rf` of it.

    python benchmarks/workspace.py [--files N] [--count N] [--rounds N]

The workspace has N files in 156 folders and the one-commit repository that goes with it. The session changes ten files and adds one.
One at a time and 16 at once, in threads of one process, on tmpfs.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measure import Cost, machine, median, scratch, table

from pytest_codeprobe.model.config import SandboxConfig
from pytest_codeprobe.sandboxes.trees import remove_tree
from pytest_codeprobe.sandboxes.workspace import CopiedWorkspace, Template, TemplateStore

AT_ONCE = (1, 16)


def make_source(top: Path, files: int) -> None:
    """A tree of small text files, 5.5 kB each on average."""
    chance = random.Random(1)
    for number in range(files):
        path = top / f"package{number % 13}" / f"part{number // 13 % 12}" / f"file{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"line {n} = {chance.random()}\n" for n in range(chance.randrange(1, 360))), encoding="utf-8")


def change(workspace: Path) -> None:
    """What a session does."""
    for number in range(10):
        next(workspace.glob(f"package{number}/*/file*.py")).write_text("changed\n", encoding="utf-8")
    (workspace / "new.py").write_text("new\n", encoding="utf-8")


class Trial:
    """One workspace's life, in a folder of its own."""

    def __init__(self, template: Template, place: Path) -> None:
        self._template, self._place = template, place

    def ours(self) -> None:
        """As a trial does it. RuntimeError where the changes are not found."""
        (self._place / "workspace").mkdir(parents=True)
        space = CopiedWorkspace(self._template, self._place / "workspace", self._place / "baseline")
        space.lay_out()
        space.snapshot()
        change(self._place / "workspace")
        if len(found := space.changes()) != 11:
            raise RuntimeError(f"{len(found)} changes were found instead of 11")
        if left := remove_tree(self._place):
            raise RuntimeError(f"{left[0]} was left")

    def bare(self) -> None:
        """The same with the system's tools, without looking for changes."""
        self._place.mkdir()
        subprocess.run(["cp", "-a", str(self._template.tree), str(self._place / "workspace")], check=True)
        change(self._place / "workspace")
        subprocess.run(["rm", "-rf", str(self._place)], check=True)


def cost(work: Callable[[int], None], count: int, threads: int) -> Cost:
    """Of one of `count`, so many at once."""

    def spent() -> float:
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(u.ru_utime + u.ru_stime for u in usage)

    before, began = spent(), time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(count)))
    return Cost((time.perf_counter() - began) * 1000, (spent() - before) * 1000) / count


def main(argv: list[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--files", type=int, default=2000, metavar="N", help="files of the workspace (default: 2000)")
    parser.add_argument("--count", type=int, default=32, metavar="N", help="workspaces in each round (default: 32)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds (default: 3)")
    args = parser.parse_args(argv)
    rows: list[list[str | float | None]] = []
    with scratch() as place:
        (place / "source").mkdir()
        make_source(place / "source", args.files)
        source = {"type": "template_dir", "path": str(place / "source")}
        began = time.process_time()
        store = TemplateStore(place / "templates")  # its templates go with it
        template = store.get(SandboxConfig.model_validate({"template_sources": [source]}))
        made = (time.process_time() - began) * 1000
        for threads in AT_ONCE:
            taken: dict[str, list[Cost]] = {"bare": [], "ours": []}
            for turn in range(args.rounds):
                for name, costs in taken.items():

                    def work(number: int, name: str = name, turn: int = turn, threads: int = threads) -> None:
                        trial = Trial(template, place / f"{name}-{threads}-{turn}-{number}")
                        trial.bare() if name == "bare" else trial.ours()

                    costs.append(cost(work, args.count, threads))
            bare, ours = median(taken["bare"]), median(taken["ours"])
            rows.append([f"{threads} at once", bare.cpu, ours.cpu, ours.cpu / bare.cpu, bare.wall, ours.wall, ours.wall / bare.wall])
    print(f"{machine()}\n{args.files} files; milliseconds per workspace, median of {args.rounds} rounds of {args.count}\n")
    print(table(["", "cp + rm CPU", "ours CPU", "ratio", "cp + rm wall", "ours wall", "ratio"], rows))
    print(f"\nmaking the template, once in a run: {made:.0f} ms CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
