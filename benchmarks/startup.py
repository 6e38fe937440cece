"""What an installed pytest-codeprobe costs a plain pytest run: the same run with and without it, turn by turn. And what a task costs one.

    python benchmarks/startup.py [--rounds N]

Only the last kind has a task. Medians, since a busy machine makes outliers; on tmpfs, since the disk is not what is measured.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

from measure import environment, machine, scratch

CASES = {
    "--version": ["--version"],
    "collect 1 file": ["--collect-only", "-q"],
    "run 20 tests": ["-q"],
}
VARIANTS = {"without": ["-p", "no:codeprobe"], "with": []}
TASK = """task_id: one
initial_prompt: do it
success_criteria: [{type: file_exists, path: out.txt}]
agent: {type: scripted, scripted: {steps: [{write: {path: out.txt, content: x}}]}}
"""


def main(argv: list[str] | None = None) -> int:
    """Measure and print the table; 1 when a run failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="runs of each kind (default: 15)")
    rounds = parser.parse_args(argv).rounds
    with scratch() as project:
        (project / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        tests = "\n".join(f"def test_{number}():\n    assert {number} >= 0\n" for number in range(20))
        (project / "test_plain.py").write_text(tests, encoding="utf-8")
        print(f"{machine()}\nplain pytest, median of {rounds} interleaved runs, milliseconds\n")
        print(f"{'':<16}{'without':>10}{'with':>10}{'ratio':>10}{'added':>10}")
        for name, arguments in CASES.items():
            without, loaded = measure(project, {variant: [*flags, *arguments] for variant, flags in VARIANTS.items()}, rounds)
            print(f"{name:<16}{without:>10.1f}{loaded:>10.1f}{loaded / without:>10.3f}{loaded - without:>10.1f}")
        (project / "tasks").mkdir()
        (project / "tasks" / "one.yaml").write_text(TASK, encoding="utf-8")
        plain, task = measure(
            project,
            {"plain": ["-q", "test_plain.py"], "task": ["-q", "tasks", "--codeprobe-agent=scripted", "--codeprobe-driver=tempdir"]},
            rounds,
        )
        print(f"{'run 1 task':<16}{'':>10}{task:>10.1f}{task / plain:>10.3f}{task - plain:>10.1f}   beside 20 plain tests")
    return 0


def measure(project: Path, variants: dict[str, list[str]], rounds: int) -> list[float]:
    """Median milliseconds of each variant. A first round only warms caches; with 0 rounds it is the only one."""
    taken: dict[str, list[float]] = {variant: [] for variant in variants}
    for number in range(rounds + 1):
        for variant, arguments in variants.items():
            elapsed = once(project, arguments)
            if number or not rounds:
                taken[variant].append(elapsed)
    return [statistics.median(times) for times in taken.values()]


def once(project: Path, arguments: list[str]) -> float:
    """Milliseconds of one pytest process. Raises CalledProcessError when it fails."""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *arguments],
        cwd=project,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return (time.perf_counter() - started) * 1000


if __name__ == "__main__":
    sys.exit(main())
