"""What a workspace costs: laid out from its template, compared with it after a session, deleted; next to `cp -a` and `rm -rf` of it.

    python benchmarks/workspace.py [--files N ...] [--count N] [--rounds N] [--large MB] [--trials N]

A workspace has N files in 156 folders and the one-commit repository that goes with it. The session changes ten files and adds one.
As a copy, and as layers over the template where this user may mount them; one at a time and 64 at once, in threads of one process, on
tmpfs. Then the bytes that 20 workspaces take whose template is large, and whole trials under bubblewrap, beside a bare `bwrap`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measure import Cost, environment, machine, median, per_item, pytest_argv, run, scratch, table

from pytest_codeprobe.model.config import SandboxConfig
from pytest_codeprobe.sandboxes.bubblewrap import walls
from pytest_codeprobe.sandboxes.mounts import layers_unusable
from pytest_codeprobe.sandboxes.overlaid import OverlaidWorkspace
from pytest_codeprobe.sandboxes.trees import remove_tree
from pytest_codeprobe.sandboxes.workspace import CopiedWorkspace, Template, TemplateStore

AT_ONCE = (1, 64)
LARGE_COUNT = 20
_MOST_BYTES = 4 << 30  #: of copies that are there at once
_STAGES = ("lay out", "changes", "delete")


def make_source(top: Path, files: int) -> None:
    """A tree of small text files, 5.5 kB each on average."""
    chance = random.Random(1)
    for number in range(files):
        path = top / f"package{number % 13}" / f"part{number // 13 % 12}" / f"file{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"line {n} = {chance.random()}\n" for n in range(chance.randrange(1, 360))), encoding="utf-8")


def make_template(source: Path, store: TemplateStore) -> Template:
    """As a task's `template_dir` makes it."""
    sources = [{"type": "template_dir", "path": str(source)}]
    return store.get(SandboxConfig.model_validate({"template_sources": sources}))


def change(workspace: Path) -> None:
    """What a session does."""
    for number in range(10):
        next(workspace.glob(f"package{number}/*/file*.py")).write_text("changed\n", encoding="utf-8")
    (workspace / "new.py").write_text("new\n", encoding="utf-8")


class Bare:
    """What the system's tools do for one workspace, without looking for changes."""

    def __init__(self, template: Template, place: Path) -> None:
        self.template, self.place = template, place

    def lay_out(self) -> None:
        self.place.mkdir()
        subprocess.run(["cp", "-a", str(self.template.tree), str(self.place / "workspace")], check=True)

    def compare(self) -> None:
        return

    def delete(self) -> None:
        subprocess.run(["rm", "-rf", str(self.place)], check=True)


class Copied(Bare):
    """What a trial does for it. RuntimeError where it does not come out right."""

    def make(self) -> CopiedWorkspace:
        return CopiedWorkspace(self.template, self.place / "workspace", self.place / "baseline")

    def lay_out(self) -> None:
        (self.place / "workspace").mkdir(parents=True)
        self.space = self.make()
        self.space.lay_out()
        self.space.snapshot()

    def compare(self) -> None:
        if len(found := self.space.changes()) != 11:
            raise RuntimeError(f"{len(found)} changes were found instead of 11")

    def delete(self) -> None:
        if left := [*self.space.release(), *remove_tree(self.place)]:
            raise RuntimeError(f"{left[0]} was left")


class Layered(Copied):
    """The same with layers."""

    def make(self) -> CopiedWorkspace:
        (self.place / "layers").mkdir()
        return OverlaidWorkspace(self.template, self.place / "workspace", self.place / "baseline", self.place / "layers", lambda: True)


def cost(work: Callable[[Bare], None], trials: Sequence[Bare], pool: ThreadPoolExecutor) -> Cost:
    """Of one of them, as many at once as the pool has threads."""

    def spent() -> float:
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(u.ru_utime + u.ru_stime for u in usage)

    before, began = spent(), time.perf_counter()
    list(pool.map(work, trials))
    return Cost((time.perf_counter() - began) * 1000, (spent() - before) * 1000) / len(trials)


def stages(kind: type[Bare], template: Template, place: Path, count: int, threads: int, rounds: int) -> dict[str, Cost]:
    """What each stage of one workspace costs; all of a group are there at once, a single one after another."""
    taken: dict[str, list[Cost]] = {stage: [] for stage in _STAGES}
    with ThreadPoolExecutor(threads) as pool:
        for turn in range(rounds):
            for first in range(0, count, threads):
                trials = [kind(template, place / f"{kind.__name__}-{turn}-{n}") for n in range(first, min(count, first + threads))]
                taken["lay out"].append(cost(kind.lay_out, trials, pool))
                for trial in trials:
                    change(trial.place / "workspace")
                taken["changes"].append(cost(kind.compare, trials, pool))
                taken["delete"].append(cost(kind.delete, trials, pool))
    return {stage: median(costs) for stage, costs in taken.items()}


def sizes(args: argparse.Namespace, kinds: Mapping[str, type[Bare]]) -> str:
    """The table of all sizes."""
    rows: list[list[str | float | None]] = []
    for files in args.files:
        with scratch() as place:
            (place / "source").mkdir()
            make_source(place / "source", files)
            store = TemplateStore(place / "templates")  # its templates go with it
            began = time.process_time()
            template = make_template(place / "source", store)
            rows.append([f"{files} files: the template, once in a run", (time.process_time() - began) * 1000, None, None, None, None])
            for threads in AT_ONCE:
                bare: Cost | None = None
                for name, kind in kinds.items():
                    if kind is not Layered and template.size * threads > _MOST_BYTES:
                        continue
                    found = stages(kind, template, place, max(threads, args.count), threads, max(1, args.rounds))
                    bare = found["lay out"] if kind is Bare else bare
                    both = found["lay out"].cpu + found["changes"].cpu
                    wall = found["lay out"].wall + found["changes"].wall
                    ratio = both / bare.cpu if bare else None
                    rows.append([f"{files} files, {threads} at once: {name}", both, ratio, wall, found["delete"].cpu, found["delete"].wall])
            del template, store
    return table(["milliseconds per workspace", "lay out + changes CPU", "/ cp -a", "wall", "delete CPU", "wall"], rows)


def large(megabytes: int, kind: type[Copied]) -> str:
    """What 20 workspaces of a large template take, each with a small change."""
    with scratch() as place:
        (place / "source").mkdir()
        with (place / "source" / "large.bin").open("wb") as file:
            for _ in range(megabytes):
                file.write(os.urandom(1 << 20))
        for number in range(100):
            (place / "source" / f"small{number}.txt").write_text("small\n", encoding="utf-8")
        store = TemplateStore(place / "templates")
        template = make_template(place / "source", store)
        shutil.rmtree(place / "source")
        free = shutil.disk_usage(place).free
        trials = [kind(template, place / f"large-{number}") for number in range(LARGE_COUNT)]
        began = time.perf_counter()
        for trial in trials:
            trial.lay_out()
            (trial.place / "workspace" / "small0.txt").write_text("changed\n", encoding="utf-8")
            if len(found := trial.space.changes()) != 1:
                raise RuntimeError(f"{len(found)} changes were found instead of one")
        wall = (time.perf_counter() - began) * 1000 / LARGE_COUNT
        taken = (free - shutil.disk_usage(place).free) / (1 << 20)
        for trial in trials:
            trial.delete()
        del template, store
    share = taken / (megabytes * LARGE_COUNT)
    head = f"{LARGE_COUNT} workspaces of a template of {megabytes} MiB"
    return f"{head}: {taken:.1f} MiB together, {share:.4f} of as many copies; {wall:.1f} ms each"


# ---- whole trials


def bare_bwrap(place: Path, count: int) -> Cost:
    """Start a command in bwrap so many times, and nothing else."""
    argv = ["bwrap", *walls(network=True), "--bind", str(place), str(place), "--chdir", str(place), "--", "/bin/sh", "-c", ": > hello.txt"]
    program = "import json, subprocess, sys\nfor _ in range(int(sys.argv[2])): subprocess.run(json.loads(sys.argv[1]), check=True)"
    return run([sys.executable, "-I", "-S", "-c", program, json.dumps(argv), str(count)], place)


def trials(place: Path, count: int, driver: str, files: int, jobs: int) -> Cost:
    """A run of so many trials, each with an agent that writes one file."""
    (place / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (place / "tasks").mkdir()
    make_source(place / "source", files)
    for number in range(count):
        task = {
            "task_id": f"t{number:05}",
            "initial_prompt": "Write hello.txt.",
            "agent": {"type": "command", "command": ["sh", "-c", "echo hello > hello.txt"]},
            "sandbox": {"driver": driver, "template_sources": [{"type": "template_dir", "path": "../source"}] if files else []},
            "success_criteria": [{"type": "file_exists", "path": "hello.txt"}],
        }
        (place / "tasks" / f"t{number:05}.yaml").write_text(json.dumps(task), encoding="utf-8")  # JSON is YAML
    (place / ".git").mkdir()  # a root that holds tasks and template
    options = [*([f"--codeprobe-jobs={jobs}"] if jobs > 1 else []), "--codeprobe-preserve=none"]
    return run(pytest_argv(*options, "tasks", "--codeprobe-agent=command"), place, env=environment(TMPDIR=str(place)))


def whole(args: argparse.Namespace) -> str:
    """The table of whole trials."""

    def measured(work: Callable[..., Cost], *more: object) -> Cost:
        def once(number: int) -> Cost:
            with scratch() as place:
                return work(place, number, *more)

        return per_item(once, args.trials, args.rounds)[0]

    bare = measured(bare_bwrap)
    rows: list[list[str | float | None]] = [["a bare bwrap", bare.cpu, bare.wall, 1.0]]
    for driver, files, jobs in (
        ("tempdir", 0, 1),
        ("bubblewrap", 0, 1),
        ("bubblewrap", 0, 64),
        *(("bubblewrap", files, 1) for files in args.files),
    ):
        found = measured(trials, driver, files, jobs)
        name = f"{driver}, {f'{files} files' if files else 'no template'}, {jobs} at once"
        rows.append([name, found.cpu, found.wall, found.cpu / bare.cpu])
    return table(["milliseconds per trial", "CPU", "wall", "CPU / bare"], rows)


def main(argv: list[str] | None = None) -> int:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--files", type=int, nargs="+", default=[2000, 20000], metavar="N", help="files of a workspace (default: 2000 20000)"
    )
    parser.add_argument("--count", type=int, default=16, metavar="N", help="workspaces in each round, at least (default: 16)")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="rounds (default: 2)")
    parser.add_argument("--large", type=int, default=1024, metavar="MB", help="MiB of the large template (default: 1024)")
    parser.add_argument("--trials", type=int, default=100, metavar="N", help="trials of a run under bubblewrap (default: 100)")
    args = parser.parse_args(argv)
    with scratch() as place:
        reason = layers_unusable(str(place))
    kinds: dict[str, type[Bare]] = {"cp -a, rm -rf": Bare, "copy": Copied, **({} if reason else {"layers": Layered})}
    print(f"{machine()}\nmedian of {args.rounds} rounds\n")
    print(sizes(args, kinds))
    print(f"\nlayers: not measured: {reason}" if reason else f"\n{large(args.large, Layered)}")
    print(f"\n{whole(args)}" if shutil.which("bwrap") else "\nwhole trials: not measured: there is no bwrap")
    return 0


if __name__ == "__main__":
    sys.exit(main())
