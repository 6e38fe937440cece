"""What graders find, whatever the session has left: the same under each driver."""

from __future__ import annotations

import re
from pathlib import Path

from tests.front_door import Project, scripted

#: programs of its own in every folder that is on somebody's PATH, and what interpreters and git read when they start
PLANT = """
for name in python python3 git grep env node; do
  for folder in node_modules/.bin mocks bin; do
    mkdir -p $folder; printf '#!/bin/sh\\nexit 0\\n' > $folder/$name; chmod +x $folder/$name
  done
done
echo 'import os; os._exit(0)' | tee sitecustomize.py usercustomize.py startup.py > forged.py; echo 'import forged' > forged.pth
mkdir -p .git/hooks; printf '#!/bin/sh\\nexit 0\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit
git config core.fsmonitor "echo forged > forged.txt; true"; git config core.hooksPath $PWD/.git/hooks
echo 'export PATH=$PWD/bin:$PATH' | tee $HOME/.profile $HOME/.bashrc > $HOME/.pydistutils.cfg; echo done > out.txt
"""
CHECKS = (
    "python -c 'raise SystemExit(3)'",
    "python3 -c 'raise SystemExit(3)'",
    "git status --porcelain > /dev/null; test -e forged.txt",
    "grep -q nothing out.txt",
    "command -v git | grep -F $WORKSPACE",
)


def test_the_same_under_each_driver(project: Project) -> None:
    """No planted program, setting or start-up file has a say; variables, and the order of PATH, are the same."""
    checks = [{"type": "run_command", "command": command} for command in ("env | sort", *CHECKS)]
    mocks = {
        "template_sources": [{"type": "starter_files", "files": [{"path": "mocks/other", "content": "x"}]}],
        "mock_path_dirs": ["mocks"],
    }
    project.task("t", sandbox=mocks, agent=scripted({"run": PLANT}), success_criteria=checks)
    host = {
        "PYTHONSTARTUP": "startup.py",
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "NODE_OPTIONS": "--no-warnings",
        "A_KEY": "of-the-harness",
    }
    seen = {}
    for driver in ("tempdir", "bubblewrap"):
        run = project.run("tasks", "--codeprobe-agent=scripted", f"--codeprobe-driver={driver}", f"--codeprobe-run-dir={driver}", env=host)
        shown, *rest = run.assert_consistent().result("t")["criteria"]
        assert [c["verdict"] for c in rest] == ["failed"] * len(CHECKS), (driver, [c["explanation"] for c in rest])
        lines = re.sub(r"codeprobe-\d+-\d+-\w+", "PRIVATE", shown["evidence"]["stdout"]).splitlines()
        seen[driver] = dict(line.split("=", 1) for line in lines if "=" in line)
    assert seen["tempdir"] == seen["bubblewrap"]
    found = seen["tempdir"]
    assert not [name for name in found if name in host or name.startswith(("PYTHON", "PYTEST_", "CODEPROBE"))]
    first, *_, mocked, modules = found["PATH"].split(":")
    assert (first.rpartition("PRIVATE/")[2], mocked.rpartition("PRIVATE/")[2]) == ("grade/tools/bin", "workspace/mocks")
    assert modules.endswith("workspace/node_modules/.bin")
