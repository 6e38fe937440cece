"""Runs the step of a workflow that calls unittest: it must pass on the workspace and fail on a broken copy.

Reads just enough YAML for that: `run:` with a text behind it, or a block scalar (`|`, `>`) below it.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def scripts(lines: list[str]) -> list[str]:
    """The text of every `run:`."""
    found = []
    for number, line in enumerate(lines):
        key, colon, value = line.strip().removeprefix("- ").partition(":")
        if key.strip() != "run" or not colon:
            continue
        value = value.strip()
        if value[:1] in ("|", ">"):
            column = line.index("run")
            block = []
            for below in lines[number + 1 :]:
                if below.strip() and len(below) - len(below.lstrip()) <= column:
                    break
                block.append(below.strip())
            found.append((" " if value[0] == ">" else "\n").join(block).strip())
        elif value[:1] == '"':
            found.append(json.loads(value))
        elif value[:1] == "'":
            found.append(value[1:-1].replace("''", "'"))
        else:
            found.append(value)
    return found


def passes(script: str, folder: Path) -> bool:
    done = subprocess.run(["/bin/sh", "-e", "-c", script], cwd=folder, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=30)
    sys.stderr.buffer.write(done.stderr)
    return done.returncode == 0 and b"\nRan 0 tests" not in done.stderr


def main() -> int:
    try:
        lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    tests = [script for script in scripts(lines) if "unittest" in script]
    if len(tests) != 1:
        sys.stderr.write(f"one step should call unittest, there are {len(tests)}\n")
        return 1
    with tempfile.TemporaryDirectory() as name:
        good, broken = Path(name) / "good", Path(name) / "broken"
        for copy in (good, broken):
            shutil.copytree(Path.cwd(), copy, ignore=shutil.ignore_patterns(".git", "__pycache__"))
        with open(broken / "roman" / "__init__.py", "a", encoding="utf-8") as file:
            file.write('\n\ndef to_roman(number):\n    return "I" * number\n')
        if not passes(tests[0], good):
            sys.stderr.write("the test step fails on code that is right, or runs no test\n")
            return 1
        if passes(tests[0], broken):
            sys.stderr.write("the test step passes on code that is wrong\n")
            return 1
    sys.stdout.write("the test step works\n")
    return 0


sys.exit(main())
