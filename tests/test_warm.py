"""Hidden tests that are forked from a process which has pytest loaded: as good as new, out of reach, and never missed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.criteria.hidden import criterion as module
from pytest_codeprobe.criteria.hidden.channel import warm_program
from pytest_codeprobe.model.sandbox import ProcessLimits, WarmProgram
from pytest_codeprobe.sandboxes import keeper
from pytest_codeprobe.sandboxes.keeper import Spawner
from tests.front_door import Project, scripted
from tests.hidden_cases import CALC, TESTS, WRONG, Case, forked, hidden, prepare
from tests.unprivileged import unprivileged_argv

#: what a process can know of itself
REPORT = """
import ctypes, gc, json, locale, logging, os, resource, signal, stat, subprocess, sys, threading, time, warnings
import calc

SIGNALS = "SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd"
PRCTL = {"dumpable": 3, "pdeathsig": 2, "subreaper": 37}

def lines(name, *keys):
    with open("/proc/self/" + name) as file:
        return {k: v.split() for k, _, v in (line.partition(":") for line in file) if k in keys}

def prctl(number):
    value = ctypes.c_int(0)
    found = ctypes.CDLL(None).prctl(number, ctypes.byref(value))
    return found or value.value

def stream(file):
    flags = file.encoding, file.errors, file.name, file.mode, file.line_buffering, file.write_through, file.seekable(), file.isatty()
    return [*flags, file.fileno(), file.newlines, file.buffer.raw.name, file.buffer.raw.closefd]

def fill(kind):
    return subprocess.run(["env", "-0"], stdout=-1).stdout.decode()

def test_report():
    fds = [(int(n), "/proc/self/fd/" + n) for n in os.listdir("/proc/self/fd")]
    report = {
        "fds": [[number, stat.S_IFMT(os.stat(name).st_mode)] for number, name in sorted(fds) if os.path.exists(name)],
        "ids": [os.getpid(), os.getppid(), os.getsid(0) == os.getpgid(0) == os.getpid(), os.getuid(), os.getgroups()],
        "status": lines("status", "Name", "Umask", "TracerPid", "Threads", "CapEff", "NoNewPrivs", *SIGNALS),
        "handlers": {n: str(signal.getsignal(n)) for n in signal.valid_signals() if "pytest" not in str(signal.getsignal(n))},
        "wakeup": signal.set_wakeup_fd(-1),
        "rlimits": {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")},
        "prctl": {name: prctl(number) for name, number in PRCTL.items() if name != "dumpable"},
        "dumpable": ctypes.CDLL(None).prctl(3),
        "cpu": [os.nice(0), sorted(os.sched_getaffinity(0))],
        "cwd": os.getcwd(),
        "environ": dict(os.environ),
        "environ of children": sorted(fill("env").split("\\0")),
        "python": [sys.argv, sys.orig_argv, sys.executable, str(sys.flags), sys.path, sys.warnoptions, sys.dont_write_bytecode],
        "main": {n: str(getattr(sys.modules["__main__"], n, None)) for n in ("__name__", "__file__", "__spec__", "__package__")},
        "finders": [type(finder).__name__ if not isinstance(finder, type) else finder.__name__ for finder in sys.meta_path],
        "modules": sorted({n.split(".")[0] for n in sys.modules} - set(sys.stdlib_module_names)),
        "streams": [stream(s) for s in (sys.stdin, sys.stdout, sys.stderr)],
        "same streams": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
        "stdin": sys.stdin.read(),
        "gc": [gc.isenabled(), gc.get_threshold(), gc.callbacks == []],
        "encodings": [sys.getfilesystemencoding(), sys.getdefaultencoding(), locale.getlocale(), locale.getpreferredencoding(False)],
        "time zone": [time.tzname, time.timezone],
        "threads": [t.name for t in threading.enumerate()],
        "hooks": [str(h).partition(" at ")[0] for h in (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook)],
        "left over": [sorted(n for n in vars(sys) if n.startswith("last_")), str(logging.root.handlers), str(warnings.filters)],
        "sockets": sum(type(o).__name__ == "socket" for o in gc.get_objects()),
    }
    with open(os.environ["TMPDIR"] + "/report.json", "w") as file:
        json.dump(report, file)
"""


@pytest.fixture(params=["namespaces", "subreaper"])
def processes(request: pytest.FixtureRequest) -> Iterator[Spawner]:
    made = Spawner(namespaces=request.param == "namespaces")
    yield made
    made.close()


@pytest.fixture
def fresh() -> Iterator[Spawner]:
    made = Spawner()
    yield made
    made.close()


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def report(folder: Path, warm: bool, **more: Any) -> dict[str, Any]:
    """What the hidden tests' process says of itself, paths made comparable."""
    case = Case(agent={"calc.py": CALC}, hidden=hidden(REPORT))
    criterion, grading = prepare(folder, case, warm=warm, **more)
    score = criterion.evaluate(grading)
    assert score.value == 1, (score.explanation, score.evidence)
    assert forked(grading) == [warm]
    text = (grading.scratch / "tmp" / "report.json").read_text()
    text = re.sub(r"\b([rt])[0-9a-f]{12}\b", r"\1RANDOM", text.replace(str(folder), "FOLDER"))
    found = dict(json.loads(text))
    # glibc's posix_spawn leaves its two internal signals ignored
    found["status"]["SigIgn"] = [f"{int(mask, 16) & ~(3 << 31):x}" for mask in found["status"]["SigIgn"]]
    return found


@pytest.mark.joint
def test_a_fork_is_what_a_new_process_would_be(tmp_path: Path, processes: Spawner) -> None:
    env = {"TZ": "Asia/Kathmandu", "GREETING": "grüß=dich\n", "LC_ALL": "C.UTF-8"}
    new = report(tmp_path / "anew", False, processes=processes, env=env)
    fork = report(tmp_path / "forked", True, processes=processes, env=env)
    if processes.mode == "subreaper":
        del new["ids"][:2], fork["ids"][:2]
    assert fork == new
    assert new["time zone"][0] == ["+0545", "+0545"]


def test_two_forks_do_not_draw_the_same_numbers(tmp_path: Path) -> None:
    source = "import os, random, secrets, tempfile, uuid\nimport calc\ndef test_a():\n    found = [random.random(), secrets.token_hex(), tempfile.mkdtemp(), str(uuid.uuid4()), random.Random().random()]\n    open(os.environ['TMPDIR'] + '/drawn', 'w').write('\\n'.join(map(str, found)))\n"  # noqa: E501
    drawn = []
    for name in "ab":
        criterion, grading = prepare(tmp_path / name, Case(hidden=hidden(source)))
        assert criterion.evaluate(grading).value == 1
        drawn.append((grading.scratch / "tmp" / "drawn").read_text().split("\n"))
    assert [x for x, y in zip(*drawn, strict=True) if Path(x).name == Path(y).name] == []


def test_the_code_under_test_may_have_modules_of_any_name(tmp_path: Path) -> None:
    names = ("keeper", "spawner", "outside", "process_tree", "warm", "program", "hidden_runner")
    source = (
        "".join(f"import {name}\n" for name in names) + f"def test_a(): assert sum(m.N for m in ({', '.join(names)})) == {len(names)}\n"
    )
    criterion, grading = prepare(tmp_path, Case(template={}, agent={f"{name}.py": "N = 1\n" for name in names}, hidden=hidden(source)))
    score = criterion.evaluate(grading)
    assert score.value == 1, score
    assert forked(grading) == [True]


def test_processes_that_a_test_spawns_begin_as_usual(tmp_path: Path) -> None:
    source = (
        "import multiprocessing as mp, operator\nimport calc\n"
        "def test_a():\n    with mp.get_context('spawn').Pool(2) as pool: assert pool.map(operator.neg, [1, 2]) == [-1, -2]\n"
    )
    criterion, grading = prepare(tmp_path, Case(hidden=hidden(source)))
    assert criterion.evaluate(grading).value == 1
    assert forked(grading) == [True]


@pytest.mark.parametrize("args", [["-p", "no:doctest"], ["-pno:logging"]])
def test_a_task_that_chooses_plugins(tmp_path: Path, args: list[str]) -> None:
    source = "import calc\ndef test_a(request):\n    manager = request.config.pluginmanager\n    name = {0!r}\n    assert manager.is_blocked(name) and not manager.has_plugin(name)\n"  # noqa: E501
    case = Case(hidden=hidden(source.format(args[-1].rpartition(":")[2])), fields={"args": args})
    criterion, grading = prepare(tmp_path, case)
    score = criterion.evaluate(grading)
    assert score.value == 1, score


def test_what_is_not_public_in_pytest_is_still_there() -> None:
    """Without these a fork takes twice as long; nothing else tells."""
    import _pytest.config

    assert "terminal" in _pytest.config.default_plugins
    made = _pytest.config.get_config(["-pno:cacheprovider"])
    assert made.pluginmanager.has_plugin("terminal")
    assert not made.pluginmanager.has_plugin("cacheprovider")
    assert made.InvocationParams(args=[], plugins=None, dir=Path()).args == ()


# what is shared


def test_what_is_loaded_is_shared_by_all_tasks_and_knows_none() -> None:
    host = {"LD_LIBRARY_PATH": "/opt/lib", "PATH": "/bin"}
    env = {**host, "LANG": "C.UTF-8", "LC_ALL": "C", "LANGCHAIN_API_KEY": "secret", "HOME": "/x", "TOKEN": "secret"}
    program = warm_program("/usr/bin/python3", env, host)
    assert program is not None
    assert dict(program.env) == {"LANG": "C.UTF-8", "LC_ALL": "C", "LD_LIBRARY_PATH": "/opt/lib"}
    assert program == warm_program("/usr/bin/python3", {**env, "HOME": "/y", "TOKEN": "other"}, host)


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_LIBRARY_PATH", "MALLOC_PERTURB_", "GLIBC_TUNABLES"])
def test_what_works_before_python_does_takes_a_new_process(tmp_path: Path, name: str) -> None:
    assert warm_program("/usr/bin/python3", {name: "/workspace/x.so"}, {name: "/usr/lib/x.so"}) is None
    criterion, grading = prepare(tmp_path, Case(), env={name: ""})
    assert criterion.evaluate(grading).value == 1
    assert forked(grading) == [False]


def test_many_threads_share_one(tmp_path: Path, fresh: Spawner) -> None:
    def one(number: int) -> tuple[float, int]:
        code = CALC if number % 2 else WRONG
        criterion, grading = prepare(tmp_path / str(number), Case(agent={"calc.py": code}), processes=fresh)
        score = criterion.evaluate(grading)
        assert forked(grading) == [True]
        return score.value, grading.starts[0].spawner_pid

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(one, range(32)))
    assert [value for value, _ in found] == [0, 1] * 16
    (pid,) = {pid for _, pid in found}
    assert is_alive(pid)
    fresh.close()
    assert not is_alive(pid)


def test_only_so_many_programs_are_kept(tmp_path: Path, fresh: Spawner) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os\ndef prepare(): pass\ndef main(): os._exit(7)\n")
    loader = str(Path(keeper.SPAWNER).with_name("warm.py"))
    pids = []
    for number in range(6):
        warm = WarmProgram((sys.executable, "-I", "-B", loader, str(program)), (("NUMBER", str(number)),))
        pids.append(start(fresh, [sys.executable, "-I", "-B", str(program)], warm))
    assert len(set(pids)) == 5
    assert fresh.pid in pids[4:]


def start(processes: Spawner, argv: list[str], warm: WarmProgram) -> int:
    """Run it to its end; the pid of the spawner that did."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        process = processes.start(argv, env={}, cwd="/", stdin=null, stdout=null, stderr=null, limits=ProcessLimits(timeout=30), warm=warm)
    finally:
        os.close(null)
    end = process.wait(60)
    assert end is not None
    assert end.proved
    return process.spawner_pid


# when it can't be had


def test_a_program_that_can_not_be_loaded_is_tried_once(tmp_path: Path, fresh: Spawner) -> None:
    warm = WarmProgram((sys.executable, "-c", f"open({str(tmp_path / 'tries')!r}, 'a').write('x')\nraise SystemExit('no')"))
    for _ in range(3):
        assert start(fresh, ["/bin/true"], warm) == fresh.pid
    assert (tmp_path / "tries").read_text() == "x"
    assert start(fresh, ["/bin/true"], WarmProgram(("/no/such/python",))) == fresh.pid


MUTE = (
    "import json, socket, sys, time\nowner = socket.socket(fileno=json.loads(sys.argv[-1])['fd'])\n"
    'owner.send(b\'{"mode": "subreaper"}\')\ntime.sleep(600)\n'
)
BAD_FORKS = {"raises": "raise RuntimeError", "leaves": "import os; os._exit(0)", "ends a descriptor": "import os; os.close(0)"}


def test_one_that_does_not_answer_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: Spawner) -> None:
    monkeypatch.setattr(keeper, "_WARM_TIMEOUT", 0.5)
    warm = WarmProgram((sys.executable, "-c", MUTE + f"# {tmp_path}"))
    with pytest.raises(TimeoutError):
        start(fresh, ["/bin/true"], warm)
    until(lambda: not any(str(tmp_path) in line for line in command_lines()))


@pytest.mark.parametrize("trouble", ["mute", *BAD_FORKS])
def test_trouble_with_it_is_never_the_trial_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: Spawner, trouble: str) -> None:
    monkeypatch.setattr(keeper, "_WARM_TIMEOUT", 5.0)
    if trouble == "mute":
        program = WarmProgram((sys.executable, "-c", MUTE))
    else:
        (tmp_path / "program.py").write_text(f"def prepare(): pass\ndef main(): {BAD_FORKS[trouble]}\n")
        loader = str(Path(keeper.SPAWNER).with_name("warm.py"))
        program = WarmProgram((sys.executable, "-I", "-B", loader, str(tmp_path / "program.py")))
    monkeypatch.setattr(module, "warm_program", lambda *_: program)
    for name, code in {
        "right": CALC,
        "wrong": WRONG,
        "crash": "import os\ndef add(a, b):\n    if a == 1: os.abort()\n    return a + b\n",
    }.items():
        criterion, grading = prepare(tmp_path / name, Case(agent={"calc.py": code}), processes=fresh)
        score = criterion.evaluate(grading)
        assert score.value == {"right": 1, "wrong": 0, "crash": 0.5}[name], score
        assert not forked(grading)[-1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_it_is_killed_or_stopped(tmp_path: Path, processes: Spawner, number: int) -> None:
    """Between two trials, and while one runs."""
    seen = []
    for turn in range(3):
        criterion, grading = prepare(tmp_path / str(turn), Case(), processes=processes)
        if turn == 1:
            started = grading.start

            def strike(*args: Any, **kwargs: Any) -> Any:
                process = started(*args, **kwargs)  # noqa: B023
                os.kill(process.spawner_pid, number)
                return process

            grading.start = strike  # type: ignore[method-assign]
        score = criterion.evaluate(grading)
        assert score.value == 1, score
        assert forked(grading) == [True]
        seen.append(grading.starts[0].spawner_pid)
        if turn == 0:
            os.kill(seen[0], number)
    assert len(set(seen)) == (3 if number == signal.SIGKILL else 1)


def test_strikes_at_any_moment(tmp_path: Path, processes: Spawner) -> None:
    """Killed or stopped while several trials are graded: no verdict changes, none becomes an error."""
    codes = {CALC: 1.0, WRONG: 0.0, "import os\ndef add(a, b):\n    if a == 1: os.abort()\n    return a + b\n": 0.5}
    moments, over, seen = random.Random(7), threading.Event(), set[int]()

    def strike() -> None:
        while not over.wait(moments.uniform(0.02, 0.4)):
            for loaded in list(processes._warm.values()):
                if (victim := loaded._process) is not None:
                    victim.send_signal(moments.choice([signal.SIGKILL, signal.SIGSTOP]))

    def one(number: int) -> tuple[float, float]:
        code, wanted = list(codes.items())[number % 3]
        criterion, grading = prepare(tmp_path / str(number), Case(agent={"calc.py": code}), processes=processes)
        score = criterion.evaluate(grading).value
        seen.update(process.spawner_pid for process in grading.starts)
        return score, wanted

    striker = threading.Thread(target=strike)
    striker.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(one, range(18)))
    finally:
        over.set()
        striker.join()
    assert [score for score, _ in found] == [wanted for _, wanted in found]
    assert len(seen) > 2


def command_lines() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry / "cmdline").read_bytes().decode(errors="replace"))
            except OSError:
                continue
    return found


def test_it_ends_with_its_owner_and_so_do_its_forks(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from tests.hidden_cases import Case, prepare
code = "import os, time\\nif os.fork() == 0: os.setsid()\\nopen('up', 'w')\\ntime.sleep(600)"
criterion, grading = prepare(Path({str(tmp_path)!r}), Case(agent={{"calc.py": code}}))
criterion.evaluate(grading)
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(Path(__file__).parents[1])])}
    owner = subprocess.Popen([sys.executable, "-P", "-c", program], env=environ)
    until((tmp_path / "workspace" / "up").exists)
    tree = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if watches(pid, owner.pid)]  # noqa: PTH208
    assert len(tree) >= 4  # spawner or not: the loaded process, a keeper, the tests, their daemon
    owner.kill()
    owner.wait()
    until(lambda: not any(map(is_alive, tree)), 10)


def watches(pid: int, owner: int) -> bool:
    try:
        return f'"watch": [{owner}]' in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False


# what the code under test can do to it

#: tries everything on every process of the harness that it can see; runs at import, in a wrong solution
SEEKER = """
import ctypes, json, os, signal
libc = ctypes.CDLL(None, use_errno=True)
found, reached = [], []
REACH = {"mem": lambda n: open(n, "r+b"), "maps": lambda n: open(n).read(), "environ": lambda n: open(n).read(), "fd/0": os.readlink}
for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
    try:
        name, line = open(f"/proc/{pid}/comm").read().strip(), open(f"/proc/{pid}/cmdline").read()
    except OSError:
        continue
    if not name.startswith("codeprobe-") or '"watch": [OWNER]' not in line: continue
    found.append(name)
    for what, reach in REACH.items():
        try:
            reach(f"/proc/{pid}/{what}")
            reached.append([name, what])
        except OSError: pass
    if libc.ptrace(16, pid, 0, 0) == 0:
        reached.append([name, "ptrace"])
        libc.ptrace(17, pid, 0, 0)
    if name == "codeprobe-warm": WHAT
json.dump([found, reached], open("found.json", "w"))
"""


@pytest.mark.parametrize("what", ["pass", "os.kill(pid, signal.SIGKILL)", "os.kill(pid, signal.SIGSTOP)"])
@pytest.mark.parametrize("namespaces", [True, False])
def test_the_code_under_test_does_not_reach_it(tmp_path: Path, namespaces: bool, what: str) -> None:
    """As a user without rights. Without namespaces it can see and signal it; the next trial is graded as ever."""
    program = f"""
import os
from pathlib import Path
from pytest_codeprobe.sandboxes.keeper import Spawner
from tests.hidden_cases import CALC, WRONG, Case, forked, prepare
from tests.test_warm import SEEKER
processes = Spawner(namespaces={namespaces})
codes = [WRONG + SEEKER.replace("WHAT", {what!r}).replace("OWNER", str(os.getpid())), CALC, WRONG]
for number, code in enumerate(codes):
    criterion, grading = prepare(Path({str(tmp_path)!r}, str(number)), Case(agent={{"calc.py": code}}), processes=processes)
    print(criterion.evaluate(grading).value, *forked(grading))
print(processes.mode)
processes.close()
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(Path(__file__).parents[1])])}
    argv = unprivileged_argv([sys.executable, "-P", "-c", program])
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    *verdicts, mode = done.stdout.splitlines()
    assert verdicts == ["0.0 True", "1.0 True", "0.0 True"], done.stderr
    found, reached = json.loads((tmp_path / "0" / "workspace" / "found.json").read_text())
    if mode == "subreaper":
        assert {"codeprobe-warm", "codeprobe-keep"} <= set(found)
    else:
        assert found == ["codeprobe-keep"]
    assert reached == []


def test_memory_is_not_shared(tmp_path: Path) -> None:
    source = "import calc\ndef test_a(): assert not [l for l in open('/proc/self/maps') if 'w' in l.split()[1] and 's' in l.split()[1]]\n"
    criterion, grading = prepare(tmp_path, Case(hidden=hidden(source)))
    assert criterion.evaluate(grading).value == 1
    assert forked(grading) == [True]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("import mmap; KEPT = mmap.mmap(-1, 4096)", "forks would share memory"),
        ("import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()", "runs threads"),
    ],
)
def test_what_can_not_be_forked_safely_is_refused(tmp_path: Path, fresh: Spawner, line: str, says: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import os\n{line}\ndef prepare(): pass\ndef main(): os._exit(0)\n")
    loader = str(Path(keeper.SPAWNER).with_name("warm.py"))
    warm = WarmProgram((sys.executable, "-I", "-B", loader, str(program)))
    assert start(fresh, ["/bin/true"], warm) == fresh.pid
    with pytest.raises(ChildProcessError, match=says):
        _ = Spawner(program=warm).mode


# through the front door


def test_a_run_forks_its_hidden_tests_and_leaves_nothing(project: Project, mode: str) -> None:
    source = "import calc, sys\ndef test_a(): assert 'warm.py' in open('/proc/self/cmdline').read()\n"
    project.write("tasks/hidden/test_calc.py", source + TESTS)
    for number in range(3):
        agent = scripted({"write": {"path": "calc.py", "content": CALC if number else WRONG}})
        project.task(f"t{number}", agent=agent, success_criteria=[{"type": "pytest", "paths": ["hidden"]}])
    run = project.run("tasks", "--codeprobe-agent=scripted", mode=mode)
    assert run.statuses == {"t0": "failed", "t1": "passed", "t2": "passed"}, run.output
    assert [p for p in map(int, filter(str.isdigit, os.listdir("/proc"))) if watches(p, run.process.pid)] == []  # noqa: PTH208


def test_what_is_installed_later_is_there(tmp_path: Path) -> None:
    """A pre_run may install something where the hidden tests run; their interpreter reads its `.pth` files when it starts."""
    venv, late = tmp_path / "venv", tmp_path / "late"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    late.mkdir()
    (late / "arrived.py").write_text("N = 1\n")
    case = Case(hidden=hidden("import calc\ndef test_a(): assert True\n"), fields={"python": str(venv / "bin" / "python")})
    criterion, grading = prepare(tmp_path / "before", case)
    assert criterion.evaluate(grading).value == 1
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "late.pth").write_text(f"{late}\n")
    case = Case(
        hidden=hidden("import calc, arrived\ndef test_a(): assert arrived.N == 1\n"), fields={"python": str(venv / "bin" / "python")}
    )
    criterion, grading = prepare(tmp_path / "after", case)
    score = criterion.evaluate(grading)
    assert score.value == 1, score
    assert forked(grading) == [True, False]
