"""The live line: seen with the right figures on a terminal, nowhere else, and gone without a trace."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import termios
from collections.abc import Callable, Mapping

import pytest

from tests.front_door import Project, Run, scripted
from tests.terminals import LIVE, STREAMS, Terminal, terminal

AGENT = "--codeprobe-agent=scripted"
WRITE: Mapping[str, object] = {"write": {"path": "out.txt", "content": "done\n"}}
CRASH: Mapping[str, object] = {"fail": "AGENT_CRASHED"}
USAGE = {"usage": {"model": "m1", "input_tokens": 10, "output_tokens": 5, "cost_usd": 0.25}}


def gated(project: Project, name: str, *steps: Mapping[str, object], file: str | None = None) -> None:
    """A task whose agent does the steps once marks/go-<name> is there."""
    gate = shlex.quote(str(project.marks / f"go-{name}"))
    wait = {"run": f"until [ -e {gate} ]; do sleep 0.02; done"}
    project.task(name, file=file, agent=scripted(wait, USAGE, *steps))


def release(project: Project, name: str) -> None:
    (project.marks / f"go-{name}").touch()


def begun(run: Run, name: str) -> None:
    """Until the follower has published the start of a trial; it looks at the live line right after."""
    run.poll(lambda: any(e["event"] == "trial_started" and e["task_id"] == name for e in events(run)))


def events(run: Run) -> list[dict[str, object]]:
    return run.events if (run.folder / "events.ndjson").exists() else []


def settled(screen: Terminal) -> list[str]:
    """All that a terminal has shown in the end, without what no two runs have in common."""
    text = "\n".join(screen.transcript)
    text = re.sub(r"\d+\.\d+ ?s\b", "T", text)
    text = re.sub(r"slowest: .*", "slowest", text)
    text = re.sub(r"\[gw\d\]", "[worker]", text)
    return re.sub(r"=+", "=", text).split("\n")


# ---- on a terminal


#: what the line says once so many trials are done, but for what is running and the time
STEPS = (
    "0/6 done",
    "1/6 done, 100% passed, $0.25",
    "2/6 done, 50% passed, $0.50",
    "3/6 done, 50% passed, 1 error, $0.75",
    "4/6 done, 67% passed, 1 error, $1.00",
    "5/6 done, 67% passed, 2 errors, $1.25",
)
RUNNING = {"plain": (1, 1, 1, 1, 1, 1), "jobs": (4, 4, 4, 3, 2, 1)}


def six(project: Project) -> None:
    """A pass, a fail, an error, a pass, an error, a pass, each when it is told to; and a hook that prints."""
    for number, steps in enumerate(([WRITE], [], [CRASH], [WRITE], [CRASH], [WRITE])):
        gated(project, f"t{number}", *steps)
    project.write("conftest.py", "def pytest_runtest_logreport(report):\n    if report.failed: print('a hook says:', report.when)\n")


def run_six(project: Project, screen: Terminal, mode: str, *args: str, each: Callable[[Run, int], None] | None = None) -> None:
    """One after the other; `each` is called before a trial may end."""
    run = screen.start(project, "tasks", AGENT, "--codeprobe-run-dir=run", *args, mode=mode, junit=False)
    for number in range(6):
        if each is not None:
            each(run, number)
        release(project, f"t{number}")
        run.wait_for_events("trial_finished", number + 1)
    screen.ended(run)
    assert run.code == 1, screen.rows
    for number in range(6):
        (project.marks / f"go-t{number}").unlink()
    run.assert_consistent()
    shutil.rmtree(project.path / "run")


@pytest.mark.parametrize("mode", [pytest.param("plain", marks=pytest.mark.joint), pytest.param("xdist", marks=pytest.mark.joint), "jobs"])
def test_counts_and_nothing_left(project: Project, mode: str) -> None:
    six(project)

    def shown(run: Run, number: int) -> None:
        running = RUNNING[mode][number] if mode in RUNNING else "[12]"
        wanted = re.compile(rf"codeprobe: {running} running, {re.escape(STEPS[number])}, (\d+m)?\d+s")
        screen.wait_for(run, wanted.fullmatch)

    with terminal() as screen:
        run_six(project, screen, mode, each=shown)
    assert screen.most_lines == 1
    assert not screen.screen.cursor.hidden
    with terminal() as plain:
        run_six(project, plain, mode, "--capture=sys")
    assert plain.most_lines == 0
    assert settled(screen) == settled(plain)
    assert screen.cursor == plain.cursor


@pytest.mark.parametrize(("columns", "rows"), [(20, 5), (19, 24), (80, 1)])
def test_a_small_terminal(project: Project, columns: int, rows: int) -> None:
    """The line is cut to its width; where nothing would be left to read there is none."""
    project.task("first", agent=scripted(USAGE, WRITE), file="tasks/a-long-name-that-has-to-be-wrapped-in-every-one-of-them.yaml")
    gated(project, "second", WRITE)
    transcripts = []
    for flag in ("-v", "--capture=sys"):
        with terminal(columns, rows) as screen:
            run = screen.start(project, "tasks", AGENT, "-v", flag, "--codeprobe-run-dir=run", junit=False)
            if flag == "-v" and columns >= 20 and rows > 1:
                screen.wait_for(run, lambda text: text.endswith("...") and len(text) == screen.screen.columns - 1)
            begun(run, "second")
            release(project, "second")
            screen.ended(run)
        assert run.code == 0
        (project.marks / "go-second").unlink()
        shutil.rmtree(project.path / "run")
        shown = "".join(screen.transcript).partition("codeprobe ==")[0]  # below: times, and how they are wrapped
        transcripts.append(re.sub(r"collecting \d+ items?", "", shown))  # pytest says so where it takes its time
    assert transcripts[0] == transcripts[1]


def test_another_size(project: Project) -> None:
    gated(project, "t", WRITE)
    with terminal(60, 20) as screen:
        run = screen.start(project, "tasks", AGENT)
        screen.wait_for(run, lambda text: "0/1 done" in text)
        screen.resize(24, 20)
        screen.wait_for(run, lambda text: text == "codeprobe: 1 running...")
        screen.resize(100, 30)
        screen.wait_for(run, lambda text: "0/1 done" in text)
        release(project, "t")
        screen.ended(run)
    assert not any(LIVE.search(row) for row in screen.transcript)


def test_colour_is_pytests_to_choose(project: Project) -> None:
    gated(project, "t", WRITE)
    for number, (args, env, coloured) in enumerate([((), {}, True), ((), {"NO_COLOR": "1"}, False), (("--color=no",), {}, False)]):
        with terminal() as screen:
            run = screen.start(project, "tasks", AGENT, *args, f"--codeprobe-run-dir=run-{number}", env=env)
            screen.wait_for(run, bool)
            release(project, "t")
            screen.ended(run)
            (project.marks / "go-t").unlink()
        assert (b"m" + b"codeprobe: 1 running" in screen.raw) is coloured


# ---- whatever the end


def test_control_c(project: Project, mode: str) -> None:
    for number in range(4):
        gated(project, f"t{number}")
    with terminal() as screen:
        run = screen.start(project, "tasks", AGENT, mode=mode)
        screen.wait_for(run, lambda text: text.startswith(f"codeprobe: {({'plain': 1, 'xdist': 2, 'jobs': 4})[mode]} running"))
        screen.type("\x03")
        screen.ended(run)
    assert run.code == 2
    assert not any(LIVE.search(row) for row in screen.transcript)
    assert not screen.screen.cursor.hidden
    assert "run dir: " in "\n".join(screen.transcript)
    assert screen.cursor[1] == 0


def test_control_c_in_an_ordinary_test(project: Project) -> None:
    """Where pytest raises at once, in the middle of anything."""
    gated(project, "t")
    project.write(
        "ztests/test_long.py",
        f"import pathlib, time\ndef test_long():\n    pathlib.Path({str(project.marks)!r}, 'on').touch()\n    while 1: time.sleep(0.1)\n",
    )
    with terminal() as screen:
        run = screen.start(project, "tasks", "ztests", AGENT, "--codeprobe-jobs=2")
        run.wait_for("on")
        screen.wait_for(run, bool)
        screen.type("\x03")
        screen.ended(run)
    assert run.code == 2
    assert not any(LIVE.search(row) for row in screen.transcript)
    assert any("KeyboardInterrupt" in row for row in screen.transcript)


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_a_crash_of_pytest_itself(project: Project, mode: str) -> None:
    gated(project, "t", WRITE)
    project.write("conftest.py", "import os\nif 'PYTEST_XDIST_WORKER' not in os.environ:\n    def pytest_runtest_logreport(): 1 / 0\n")
    with terminal() as screen:
        run = screen.start(project, "tasks", AGENT, mode=mode)
        screen.wait_for(run, bool)
        release(project, "t")
        screen.ended(run)
    assert run.code == 3
    assert any(row.startswith("INTERNALERROR> ") for row in screen.transcript)
    assert not any(LIVE.search(row) for row in screen.transcript)


def test_a_controller_that_learns_late_of_tasks(project: Project) -> None:
    """Under xdist nothing on the command line was about tasks."""
    gated(project, "t", WRITE)
    with terminal() as screen:
        run = screen.start(project, "tasks/t.yaml", "-n1")
        screen.wait_for(run, lambda text: text.startswith("codeprobe: 1 running, 0/1 done, "))
        release(project, "t")
        screen.ended(run)
    assert run.code == 0
    assert not any(LIVE.search(row) for row in screen.transcript)


def test_the_header_stands_alone_under_xdist(project: Project) -> None:
    project.task("t", agent=scripted(WRITE))
    with terminal() as screen:
        screen.ended(screen.start(project, "tasks", AGENT, mode="xdist"))
    assert next(row for row in screen.transcript if "codeprobe: 1 trial, " in row).startswith("codeprobe: 1 trial, ")


# ---- nowhere else


def test_json_on_stdout_the_line_on_stderr(project: Project) -> None:
    for number, flag in enumerate(("--codeprobe-json", "--codeprobe-json-lines")):
        gated(project, "t", WRITE)
        with terminal() as screen:
            run = screen.start(project, "tasks", AGENT, flag, f"--codeprobe-run-dir=run-{number}", streams=("stdin", "stderr"))
            screen.wait_for(run, lambda text: text.startswith("codeprobe: 1 running, 0/1 done, "))
            release(project, "t")
            screen.ended(run)
            (project.marks / "go-t").unlink()
        run.assert_pure(events=flag == "--codeprobe-json-lines")
        assert b"running" not in (project.scratch / "stdout").read_bytes()
        assert not any(LIVE.search(row) for row in screen.transcript)


OFF = {
    "a file": ((), {}, ("stdin", "stderr")),
    "a file, coloured": (("--color=yes",), {"FORCE_COLOR": "1"}, ("stdin", "stderr")),
    "JSON, no terminal for the report": (("--codeprobe-json",), {}, ("stdin", "stdout")),
    "JSON lines on the terminal itself": (("--codeprobe-json-lines",), {}, STREAMS),
    "no terminal to speak of": ((), {"TERM": "dumb"}, STREAMS),
    "CI": ((), {"CI": "true"}, STREAMS),
    "quiet": (("-qq",), {}, STREAMS),
    "no capture": (("-s",), {}, STREAMS),
    "programs may write": (("--capture=sys",), {}, STREAMS),
    "tests may write": (("--capture=tee-sys",), {}, STREAMS),
    "live logs": (("-o", "log_cli=true"), {}, STREAMS),
    "no reporter": (("-p", "no:terminal"), {}, STREAMS),
    "another reporter": (("-p", "their_reporter"), {}, STREAMS),
}
THEIRS = """
import pytest
class Theirs(pytest.TerminalReporter): pass
@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    old = config.pluginmanager.get_plugin("terminalreporter")
    config.pluginmanager.unregister(old)
    config.pluginmanager.register(Theirs(config), "terminalreporter")
"""


@pytest.mark.parametrize("case", OFF)
def test_off(project: Project, case: str) -> None:
    args, env, streams = OFF[case]
    project.write("their_reporter.py", THEIRS)
    raw = run_two(project, *args, env=env | {"PYTHONPATH": str(project.path)}, streams=streams)
    assert b"running, " not in raw
    assert b"\x1bD" not in raw


def test_on(project: Project) -> None:
    """That the cases above would show it if it were there."""
    assert b"running, " in run_two(project, env={}, streams=STREAMS)


def run_two(project: Project, *args: str, env: dict[str, str], streams: tuple[str, ...]) -> bytes:
    """All that a run writes anywhere in which the follower had the time to draw."""
    gated(project, "one", WRITE)
    gated(project, "two", WRITE)
    with terminal() as screen:
        run = screen.start(project, "tasks", AGENT, *args, env=env, streams=streams)
        for name in ("one", "two"):  # when the second one's start is published, the look that published the first one's is over
            begun(run, name)
            release(project, name)
        screen.ended(run)
    assert run.code == 0, run.output + "\n".join(screen.rows)
    files = [project.scratch / "stdout", project.scratch / "stderr", run.junit_file]
    return bytes(screen.raw) + b"".join(file.read_bytes() for file in files)


# ---- beside others who write


def blocked(project: Project, body: str) -> None:
    """Two tasks, an ordinary test, two more tasks."""
    for name in ("a/t0", "a/t1", "c/t2", "c/t3"):
        gated(project, name.partition("/")[2], WRITE, file=f"tasks/{name}.yaml")
    project.write("tests/test_b.py", body)


def pass_on(project: Project, run: Run) -> None:
    """While the ordinary test holds the main thread: let the follower look twice."""
    for ends, starts in (("t0", "t2"), ("t1", "t3")):
        release(project, ends)
        begun(run, starts)


def test_a_prompt_of_the_debugger(project: Project) -> None:
    blocked(project, "def test_b(): breakpoint()\n")
    with terminal() as screen:
        run = screen.start(project, "tasks/a", "tests", "tasks/c", AGENT, "--codeprobe-jobs=2", junit=False)
        run.poll(lambda: screen.rows[screen.cursor[0]] == "(Pdb)")
        assert screen.live() == ""
        before = len(screen.raw)
        pass_on(project, run)
        assert screen.raw[before:] == b""
        screen.type("c\n")
        screen.wait_for(run, lambda text: "2 running, 2/4 done" in text)
        for name in ("t2", "t3"):
            release(project, name)
        screen.ended(run)
    assert run.code == 0
    assert not any(LIVE.search(row) for row in screen.transcript)
    assert screen.most_lines == 1


def test_a_test_without_capture(project: Project) -> None:
    """What a program writes past Python can't be seen coming: off while it may."""
    go, on = project.marks / "go", project.marks / "on"
    script = f"touch {shlex.quote(str(on))}; until [ -e {shlex.quote(str(go))} ]; do sleep 0.02; done; echo from a program"
    blocked(
        project,
        "import subprocess\n"
        "def test_b(capfd):\n"
        "    with capfd.disabled():\n"
        "        print('from the test')\n"
        f"        subprocess.run(['sh', '-c', {script!r}])\n",
    )
    with terminal() as screen:
        run = screen.start(project, "tasks/a", "tests", "tasks/c", AGENT, "--codeprobe-jobs=2")
        run.wait_for("on")
        run.poll(lambda: not screen.live())
        before = len(screen.raw)
        pass_on(project, run)
        assert screen.raw[before:] == b""
        go.touch()
        screen.wait_for(run, lambda text: "2 running, 2/4 done" in text)
        for name in ("t2", "t3"):
            release(project, name)
        screen.ended(run)
    assert run.code == 0
    assert screen.transcript.count("from a program") == 1
    assert not any(LIVE.search(row) for row in screen.transcript)


def test_a_stopped_terminal_stops_no_trial(project: Project) -> None:
    """Ctrl-S: pytest's own thread waits to write, the follower and the trials go on."""
    for number in range(5):
        gated(project, f"t{number}", WRITE)
    with terminal() as screen:
        run = screen.start(project, "tasks", AGENT, "--codeprobe-jobs=2")
        screen.wait_for(run, lambda text: "2 running" in text)
        termios.tcflow(screen.slave, termios.TCOOFF)
        for number in range(3):
            release(project, f"t{number}")
            begun(run, f"t{number + 2}")
        assert run.process.poll() is None
        termios.tcflow(screen.slave, termios.TCOON)
        for number in range(3, 5):
            release(project, f"t{number}")
        screen.ended(run)
    assert run.code == 0
    assert not any(LIVE.search(row) for row in screen.transcript)


def test_in_the_background_it_waits(project: Project) -> None:
    """A shell has its prompt there now. What pytest itself prints it prints."""
    for name in ("one", "three", "two"):
        gated(project, name, WRITE)
    with terminal() as screen:
        # as a shell does: the run is a job in a group of its own, and the terminal is the shell's
        wrapper = "import os, subprocess, sys; sys.exit(subprocess.Popen(sys.argv[1:], process_group=0).wait())"
        run = screen.start(project, "tasks", AGENT, before=(sys.executable, "-c", wrapper))
        for name in ("one", "three", "two"):
            begun(run, name)
            release(project, name)
        screen.ended(run)
    assert run.code == 0
    assert b"running, " not in screen.raw
