"""sandbox.setup through the front door: packages that a session and its graders find, and what each trial has of its own."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.sandboxes.sweep import is_private
from tests.front_door import Project, Run, scripted
from tests.package_index import TOKEN, USER, index
from tests.packages import node_package, wheel

GREETER = {"setup": {"python": {"packages": ["greeter"]}}}
OUT = [{"type": "file_exists", "path": "out.txt"}]
IMPORTS = scripted({"run": "python -c 'import greeter; greeter.main()' > out.txt"})


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """greeter 1.0, and other 2.0, in a folder."""
    folder = tmp_path_factory.mktemp("wheels")
    wheel(folder, "greeter")
    wheel(folder, "other", "2.0")
    return folder


@pytest.fixture(scope="session")
def installers(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Mapping[str, str]:
    """The user's settings: packages come from the folder, and what is kept is kept for all tests here, pip itself above all."""
    cache = str(tmp_path_factory.mktemp("cache"))
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "XDG_CACHE_HOME": cache, "npm_config_cache": f"{cache}/npm"}


def from_index(installers: Mapping[str, str], url: str) -> dict[str, str]:
    """The same, but from an index."""
    return {"PIP_INDEX_URL": url, **{name: value for name, value in installers.items() if not name.startswith("PIP_")}}


def left(project: Project) -> list[str]:
    """Private folders that still stand."""
    return sorted(path.name for path in Path(project.environment["TMPDIR"]).iterdir() if is_private(path.name))


WORK = """
python -c "import greeter; print(greeter.VERSION)" > own.txt; greeter >> own.txt; hello-x >> own.txt
echo 'import x from "hello-x"; console.log("module", x)' > a.mjs; node a.mjs >> own.txt
pip install -q --no-index --find-links WHEELS other && other >> own.txt
npm install --no-audit --no-fund --loglevel=error TARBALL && node -p 'require("hello-y")' >> own.txt
python -c "import greeter; open(greeter.__file__, 'a').write('VERSION = 7')"
echo 'module.exports = 7' > ../node_modules/hello-x/main.js
env > env.txt
"""
LOOK = """
pip list --format=freeze > list.txt; python -c "import greeter; print(greeter.VERSION)" >> list.txt
ls node_modules >> list.txt; node -p 'require("hello-x")' >> list.txt
"""


def test_packages_that_lie_beside_the_task(project: Project, installers: Mapping[str, str]) -> None:
    """Paths are the file's own, as those of templates are; extras stay."""
    project.environment.update(installers)
    file = wheel(project.path / "tasks/lib", "greeter", "3.0")
    project.write("lib/hello-x/package.json", json.dumps({"name": "hello-x", "version": "1.0.0", "main": "main.js"}))
    project.write("lib/hello-x/main.js", "module.exports = 'hello';\n")
    setup = {"python": {"packages": [f"./lib/{file.name}[x]"]}, "node": {"packages": ["../lib/hello-x"]}}
    work = "python -c 'import greeter; print(greeter.VERSION)' > out.txt; node -p 'require(\"hello-x\")' >> out.txt"
    says = [{"type": "file_contains", "path": "out.txt", "includes": ["3.0\nhello"]}]
    for driver in ("tempdir", "bubblewrap"):
        own = {"driver": driver, "setup": setup}
        project.task(driver, sandbox=own, agent=scripted({"run": work}), success_criteria=says)
    project.environment["CODEPROBE_DRIVER"] = ""
    run = project.run("tasks", "--codeprobe-agent=scripted").assert_consistent()
    assert run.statuses == {"tempdir": "passed", "bubblewrap": "passed"}, run.output


def test_a_resumed_run_tells_of_a_package_s_folder_that_has_changed(project: Project, installers: Mapping[str, str]) -> None:
    """Its results are kept, for much may change in a repository that is a package of its own tasks."""
    project.environment.update(installers)
    project.write("package.json", json.dumps({"name": "hello-x", "version": "1.0.0", "main": "main.js"}))
    main = project.write("main.js", "module.exports = 'hello';\n")
    setup = {"node": {"packages": [".."]}}
    task: dict[str, Any] = {"sandbox": {"setup": setup}, "agent": scripted({"run": "node -p 'require(\"hello-x\")' > out.txt"})}
    project.task("t", **task)
    flags = ("tasks", "--codeprobe-agent=scripted", "--codeprobe-run-dir=run", "--codeprobe-resume")
    assert project.run(*flags[:-1]).assert_consistent().statuses == {"t": "passed"}
    warning = f"warning: sandbox.setup installs {project.path}, where main.js is newer than sessions whose results are kept"
    # its tasks, and what runs and installers leave, are no part of it
    project.task("t", **task, success_criteria=[{"type": "file_exists", "path": "out.txt", "description": "other"}])
    for name in (".cache/x", "build/x", "hello_x.egg-info/x"):
        project.write(name, "x")
    quiet = project.run(*flags)
    assert (quiet.code, "1 kept" in quiet.output, "installs" in quiet.output) == (0, True, False), quiet.output
    main.write_text("module.exports = 'other';\n")
    told = project.run(*flags)
    assert (told.code, "1 kept" in told.output) == (0, True), told.output
    assert warning in told.output
    again = project.run(*flags, "--codeprobe-rerun=all")
    assert "installs" not in again.output
    assert (again.trial("t") / "artifacts/out.txt").read_text() == "other\n"
    assert "installs" not in project.run(*flags).output


@pytest.mark.parametrize("driver", ["tempdir", "bubblewrap"])
def test_packages_of_a_task_and_of_a_trial(
    project: Project, tmp_path: Path, wheels: Path, installers: Mapping[str, str], driver: str
) -> None:
    """Both kinds are found by sessions, graders, hidden tests and pre_run. What one trial installs, or spoils, no other has."""
    first, second = (node_package(tmp_path, f"hello-{letter}") for letter in "xy")
    project.write("pytest.ini", f"[pytest]\ncodeprobe_bind = {wheels} {second}\n")
    project.write("tasks/hidden/test_it.py", "import greeter\ndef test_it(): assert greeter.VERSION == '1.0'\n")
    setup = {"setup": {"python": {"packages": ["greeter"]}, "node": {"packages": [str(first)]}}}
    work = WORK.replace("WHEELS", str(wheels)).replace("TARBALL", str(second))
    project.task(
        "a",
        sandbox=setup,
        pre_run=[{"command": "greeter > before.txt && hello-x >> before.txt"}],
        agent=scripted({"run": f"({work}) > said.txt 2>&1; true"}),
        success_criteria=[
            {"type": "run_command", "command": "greeter && other | grep '^other 2.0' && hello-x && python -c 'import greeter, other'"},
            {"type": "pytest", "paths": ["hidden"]},
        ],
    )
    project.task("b", sandbox=setup, agent=scripted({"run": LOOK}), success_criteria=[{"type": "file_exists", "path": "list.txt"}])
    run = project.run("tasks", "--codeprobe-agent=scripted", f"--codeprobe-driver={driver}", env=installers).assert_consistent()
    own, said, listed, env = (
        (run.trial(task) / "artifacts" / name).read_text()
        for task, name in (("a", "own.txt"), ("a", "said.txt"), ("b", "list.txt"), ("a", "env.txt"))
    )
    assert run.statuses == {"a": "passed", "b": "passed"}, (run.output, own, said)
    lines = own.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["1.0"], ["greeter", "1.0"], ["hello-x", "1.0.0"], ["module", "1.0.0"], ["other", "2.0"], ["1.0.0"],
    ]  # fmt: skip
    prefix = lines[1].split()[2]
    assert prefix.endswith("/python")
    assert f"VIRTUAL_ENV={prefix}\n" in env
    assert "PIP_FIND_LINKS" not in env
    assert said.count("Read-only file system") == (2 if driver == "bubblewrap" else 0), said
    assert "other" not in listed
    assert [line for line in listed.splitlines() if "==" not in line] == ["1.0", "1.0.0"]  # and nothing in node_modules
    assert (run.trial("a") / "artifacts" / "before.txt").read_text().startswith("greeter 1.0 ")
    assert left(project) == []
    run.assert_nothing_left()


FORGE = """
P=../python; S=$(echo $P/lib/python3*/site-packages)
printf 'import os; os._exit(0)' > $S/forged.pth; echo 'import os; os._exit(0)' | tee $S/sitecustomize.py > $S/usercustomize.py
for name in python python3 greeter pip; do rm -f $P/bin/$name; printf '#!/bin/sh\\nexit 0\\n' > $P/bin/$name; chmod +x $P/bin/$name; done
echo 'home = /nowhere' > $P/pyvenv.cfg; rm -rf ../node_modules; ln -s /nowhere ../node_modules
mkdir -p src/edited; echo 'X = 1' > src/edited/__init__.py; echo "$PWD/src" > $S/edited.pth; echo done > out.txt
mkdir -p $S/planted-1.dist-info; echo 'import os; os._exit(0)' > $S/planted.py
printf '[pytest11]\\nplanted = planted\\n' > $S/planted-1.dist-info/entry_points.txt
printf 'Metadata-Version: 2.1\\nName: planted\\nVersion: 1\\n' > $S/planted-1.dist-info/METADATA
"""


@pytest.mark.parametrize("driver", ["tempdir", "bubblewrap"])
def test_no_verdict_is_forged_in_the_environment(project: Project, tmp_path: Path, installers: Mapping[str, str], driver: str) -> None:
    """What a session plants in its environment does not run in graders'; a project that it has installed to be edited is found."""
    project.write("tasks/hidden/test_it.py", "import greeter\ndef test_it(): assert greeter.VERSION == '2.0'\n")
    (tmp_path / "key").write_text("a key of the user's")
    show = f"\nprintf '#!{tmp_path}/key\\n' > $VIRTUAL_ENV/bin/new-tool; chmod +x $VIRTUAL_ENV/bin/new-tool"
    project.task(
        "t",
        sandbox={"setup": {"python": {"packages": ["greeter"]}, "node": {"packages": [str(node_package(tmp_path, "hello-x"))]}}},
        agent=scripted({"run": FORGE + show}),
        success_criteria=[
            {"type": "run_command", "command": "python -c 'raise SystemExit(3)'"},
            {"type": "run_command", "command": "greeter | grep '^greeter 2'"},
            {"type": "pytest", "paths": ["hidden"]},
            {"type": "run_command", "command": f"command -v new-tool && cat {tmp_path}/key; new-tool"},
            {"type": "run_command", "command": "python3 -c 'import edited' && greeter && hello-x && node -e 'require(\"hello-x\")'"},
        ],
    )  # fmt: skip
    run = project.run("tasks", "--codeprobe-agent=scripted", f"--codeprobe-driver={driver}", env=installers).assert_consistent()
    found = [(c["verdict"], c["explanation"]) for c in run.result("t")["criteria"]]
    assert [verdict for verdict, _ in found] == ["failed", "failed", "failed", "failed", "passed"], found
    assert "exit code 3" in found[0][1]
    said = run.result("t")["criteria"][3]["evidence"]["stdout"]  # what a program needs is shown, but none that the session has named
    assert "/new-tool" in said
    assert ("a key" in said) == (driver == "tempdir")


@pytest.mark.parametrize("mode", ["xdist", "jobs"])
def test_installed_once_by_the_user_s_own_settings(project: Project, wheels: Path, installers: Mapping[str, str], mode: str) -> None:
    """Whichever process is the first, by an index that wants a login: which is in nothing that a trial or a reader of the run sees."""
    look = f"grep -rl {TOKEN[:-1]}[{TOKEN[-1]}] .. $(dirname $(dirname $(python -c 'import pip; print(pip.__file__)'))) > out.txt; true"
    project.task("look", sandbox=GREETER, agent=scripted({"run": look}))
    for name in "abcd":
        project.task(name, sandbox=GREETER, agent=scripted({"run": f"{{ env; cat {sys.prefix}/nothing; greeter; }} > out.txt 2>&1; true"}))
    with index(wheels) as served:
        run = project.run("tasks", "--codeprobe-agent=scripted", mode=mode, env=from_index(installers, served.url)).assert_consistent()
    assert set(run.statuses.values()) == {"passed"}, run.output
    assert [path for path in served.asked if path.endswith(".whl")] == ["/greeter-1.0-py3-none-any.whl"]
    assert (run.trial("look") / "artifacts/out.txt").read_text() == ""
    places = [*run.folder.resolve().rglob("*"), project.scratch / "stdout", project.scratch / "stderr", run.junit_file]
    places += [*Path(installers["XDG_CACHE_HOME"], "pytest-codeprobe").rglob("*.json")]
    assert [path for path in places if path.is_file() and TOKEN.encode() in path.read_bytes()] == []
    assert left(project) == []


def test_a_login_in_a_package_s_url_is_on_no_command_line(project: Project, wheels: Path, installers: Mapping[str, str]) -> None:
    """All users of a machine see these; pip has it from a file that is gone afterwards."""
    with index(wheels) as served:
        place = served.url.partition("@")[2].partition("/")[0]
        url = f"http://{USER}:{TOKEN}@{place}/greeter-1.0-py3-none-any.whl"
        project.task(
            "t", sandbox={"setup": {"python": {"packages": ["other==2.0", f"greeter @ {url}"]}}}, agent=IMPORTS, success_criteria=OUT
        )
        run = project.start("tasks", "--codeprobe-agent=scripted", env=dict(installers))
        seen: dict[str, bool] = {}
        while run.process.poll() is None:
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    words = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if "pip install" in words and str(project.scratch) in words:
                        seen[words] = TOKEN in words
        run.wait()
    assert run.statuses == {"t": "passed"}, run.output
    assert seen
    assert not any(seen.values()), seen
    assert left(project) == []


def test_what_can_not_be_installed(project: Project, wheels: Path, installers: Mapping[str, str]) -> None:
    """An error and no verdict, tried once for all that ask for it, with the installer's own words; nothing of the trial starts."""
    mark = scripted({"run": f"touch {project.marks}/started"})
    for name in ("one", "two"):
        project.task(name, sandbox={"setup": {"python": {"packages": ["greeter", "nowhere>=3"]}}}, agent=mark)
    project.task("npm", sandbox={"setup": {"node": {"packages": ["/nowhere/x.tgz"]}}}, agent=mark)
    login = "a-login-of-an-index"
    project.task(
        "version", sandbox={"setup": {"python": {"version": "3.99", "packages": [f"x @ git+https://{login}@127.0.0.1:9/x"]}}}, agent=mark
    )
    project.task("fine", sandbox=GREETER, agent=IMPORTS)
    with index(wheels) as served:
        env = from_index(installers, served.url)
        run = project.run("tasks", "--codeprobe-agent=scripted", mode="jobs", env=env).assert_consistent()
    assert run.code == 6
    assert run.statuses == {"one": "error", "two": "error", "npm": "error", "version": "error", "fine": "passed"}, run.output
    reasons = {task: run.finished[task]["reason"] for task in run.statuses}
    assert {run.finished[task]["code"] for task in ("one", "two", "npm", "version")} == {"SANDBOX_FAILED"}
    assert "pip could not install greeter, nowhere>=3: ERROR: " in reasons["one"]
    assert "No matching distribution found for nowhere>=3" in reasons["one"]
    assert reasons["one"] == reasons["two"]
    assert served.asked.count("/simple/nowhere/") == 1 + served.asked.count("/simple/nowhere")
    assert "npm could not install /nowhere/x.tgz: npm error" in reasons["npm"]
    assert "there is no Python 3.99 on PATH" in reasons["version"]
    assert TOKEN not in json.dumps(run.envelope)
    assert not [file for file in run.folder.rglob("*") if file.is_file() and login in file.read_text(errors="replace")]
    assert not list(project.marks.iterdir())
    assert left(project) == []


def test_an_interrupt_ends_an_installation(project: Project, wheels: Path, installers: Mapping[str, str]) -> None:
    for name in ("one", "two"):
        project.task(name, sandbox=GREETER, agent=IMPORTS)
    with index(wheels, silent=True) as served:
        run = project.start("tasks", "--codeprobe-agent=scripted", mode="jobs", env=from_index(installers, served.url))
        run.poll(lambda: bool(served.asked))
        run.signal(signal.SIGINT)
        run.wait().assert_consistent()
    assert run.code == 2
    assert run.statuses == {"one": "not_run", "two": "not_run"}
    assert {event["reason"] for event in run.finished.values()} == {"interrupted"}
    run.assert_nothing_left()
    assert left(project) == []


def test_without_a_place_to_keep_anything(project: Project, wheels: Path) -> None:
    (project.scratch / "cache").write_text("a file")
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "XDG_CACHE_HOME": str(project.scratch / "cache")}
    exact = {"setup": {"python": {"packages": ["greeter==1.0"]}}}
    project.task("t", sandbox=exact, agent=IMPORTS)
    run = project.run("tasks", "--codeprobe-agent=scripted", env=env).assert_consistent()
    assert run.statuses == {"t": "passed"}, run.output
    assert left(project) == []


def test_an_installation_has_setup_timeout(project: Project, wheels: Path, installers: Mapping[str, str]) -> None:
    project.task("t", sandbox=GREETER, agent=IMPORTS, run_limits={"setup_timeout": 4})
    with index(wheels, silent=True) as served:
        env = from_index(installers, served.url)
        run = project.run("tasks", "--codeprobe-agent=scripted", env=env).assert_consistent()
    end = run.finished["t"]
    assert (end["code"], end["limit_hit"]) == ("SANDBOX_FAILED", {"name": "setup_timeout", "value": 4.0})
    assert "took longer than setup_timeout = 4 s" in end["reason"]
    assert left(project) == []


def test_a_run_that_is_killed_while_it_installs(project: Project, wheels: Path, installers: Mapping[str, str]) -> None:
    """Nothing of pip outlives it; what it left is swept, and installed by the next run."""
    project.task("t", sandbox=GREETER, agent=IMPORTS)
    with index(wheels, silent=True) as served:
        run = project.start("tasks", "--codeprobe-agent=scripted", env=from_index(installers, served.url))
        run.poll(lambda: bool(served.asked))
        run.signal(signal.SIGKILL)
        run.process.wait(30)
        run.assert_nothing_left(15)
    assert left(project) != []
    again = project.run("tasks", "--codeprobe-agent=scripted", env=installers).assert_consistent()
    assert again.statuses == {"t": "passed"}, again.output
    assert left(project) == []


def test_offline(project: Project, wheels: Path, installers: Mapping[str, str]) -> None:
    """An index on this machine may be asked, no other; what an earlier run has kept needs none."""
    project.task("loose", sandbox=GREETER, agent=IMPORTS)
    exact = {"setup": {"python": {"packages": ["greeter==1.0", "other == 2.0"]}}}
    project.task("exact", sandbox=exact, agent=IMPORTS)

    def run(url: str, *args: str) -> Run:
        env = from_index(installers, url)
        return project.run("tasks", "--codeprobe-agent=scripted", *args, env=env).assert_consistent()

    with index(wheels) as served:
        near = run(served.url, "--codeprobe-offline")
        assert near.statuses == {"loose": "passed", "exact": "passed"}, near.output
        asked = len([path for path in served.asked if path.endswith(".whl")])
        assert asked == 3
    far = run("https://index.elsewhere.test/simple", "--codeprobe-offline")
    assert far.statuses == {"loose": "error", "exact": "passed"}, far.output
    assert far.finished["loose"]["code"] == "OFFLINE_NET_ATTEMPT", far.finished["loose"]["reason"]
    assert "index.elsewhere.test" in far.finished["loose"]["reason"]


def test_what_is_shared_stays_as_it_was_made(project: Project, installers: Mapping[str, str]) -> None:
    """Where a session can write into it, no trial is judged with it any more; a later run makes what was kept anew."""
    cache = Path(installers["XDG_CACHE_HOME"]) / "pytest-codeprobe" / "environments"
    alone = "[ -e $(dirname $f)/greeter.py ] || echo 'VERSION = 7' >> $f"
    spoil = f"for f in {cache}/*/lib/python3*/site-packages/other.py; do {alone}; done; other > out.txt"
    setup = {"setup": {"python": {"packages": ["other==2.0"]}}}
    for name in ("a", "b"):
        project.task(name, sandbox=setup, agent=scripted({"run": spoil}), success_criteria=[{"type": "run_command", "command": "other"}])
    run = project.run("tasks", "--codeprobe-agent=scripted", env=installers).assert_consistent()
    assert run.statuses == {"a": "error", "b": "error"}
    assert "a session changed the packages that trials share" in run.finished["a"]["reason"]
    again = project.run("tasks", "--codeprobe-agent=nop", env=installers).assert_consistent()
    assert again.statuses == {"a": "passed", "b": "passed"}, again.output
    modules = [path for path in cache.glob("*/lib/python3*/site-packages/other.py") if not (path.parent / "greeter.py").exists()]
    assert ["7" in path.read_text() for path in modules] == [False]


def test_a_dry_run_installs_nothing(project: Project, tmp_path: Path) -> None:
    project.task("t", sandbox=GREETER, agent=IMPORTS, success_criteria=[{"type": "pytest", "paths": ["hidden"], "requires": ["greeter"]}])
    project.write("tasks/hidden/test_it.py", "import greeter\ndef test_it(): pass\n")
    args = ("tasks", "--codeprobe-agent=scripted", "--codeprobe-dry-run")
    run = project.run(*args, env={"XDG_CACHE_HOME": str(tmp_path / "cache")}).run_dir_of_it()
    assert run.code == 0, run.output
    assert "the packages of sandbox.setup are not installed" in run.output
    assert not (tmp_path / "cache").exists()
    project.task("u", sandbox={"setup": {"python": {"version": "3.99"}}}, agent=IMPORTS)
    assert "there is no Python 3.99 on PATH" in project.run(*args).output
    assert left(project) == []


def test_between_exchanges_and_graded_again(project: Project, installers: Mapping[str, str]) -> None:
    """Graders on a copy find the packages too, and so does a later grading of what was kept."""
    user: dict[str, Any] = {"goal": "g", "check_criteria": "every_turn", "agent": scripted({"say": "go on"}, {"say": "<<<END>>>"})}
    checks = [{"type": "run_command", "command": "greeter && python -c 'import greeter'"}]
    project.task("t", sandbox=GREETER, agent=scripted({"say": "a"}, {"say": "b"}), simulation=user, success_criteria=checks)
    run = project.run("tasks", "--codeprobe-agent=scripted", env=installers).assert_consistent()
    assert run.statuses == {"t": "passed"}, run.output
    again = project.codeprobe("regrade", str(run.folder), env=installers)
    assert again.code == 0, again.output
