"""Known secret values leave a trial in no file, stream or report, however an agent or a grader spreads them."""

from __future__ import annotations

import base64
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from pytest_codeprobe.text import MARK, REDACTED
from tests.containers import use
from tests.front_door import Project, Run, scripted

#: of the harness's environment; the agent gets the first only by env_passthrough, the second not at all
KEYS = {
    "ANTHROPIC_API_KEY": "sk-ant-api03-fe1dcafe00112233",
    "DEPLOY_TOKEN": 'quo"te\\back\u00fcslash/and\ttab',
    "NAMED_BY_INI": "plain-looking-value-77",
}
#: declared by the task
DECLARED = {"SERVICE_PASSWORD": "declared-p4ssw0rd-xyz"}
SHORT = "1234567"  # too short to be replaced without harm
SPREAD = """
import base64, json, os, re, sys
from pathlib import Path
from urllib.parse import quote, quote_plus
secrets = json.loads(Path(os.environ["LIST"]).read_text())
for s in secrets:
    for form in ("raw " + s, json.dumps({"k": s}), json.dumps(s, ensure_ascii=False)):
        sys.stdout.buffer.write(form.encode() + b"\\n")
    sys.stderr.buffer.write(s.encode() + b"\\n")
    for before in ("", "u", "us"):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            sys.stdout.buffer.write(b"Basic " + encode(f"{before}{s}:x".encode()) + b"\\n")
    for quoted in (quote(s, safe=""), quote_plus(s)):
        print("https://x/?key=" + quoted, re.sub("%..", lambda code: code[0].lower(), quoted), file=sys.stderr)
    Path(f"b{len(s)}.txt").write_bytes(base64.b64encode(b"user:" + s.encode()))
Path("plain.txt").write_text("harmless\\n")
Path("out.txt").write_text("\\n".join(secrets) + "\\n")
Path("data.json").write_text(json.dumps(secrets))
Path("big.bin").write_bytes(b"\\0" * ((1 << 20) - 9) + secrets[0].encode() + b"\\0" * (1 << 20))  # across the border of a chunk
Path("deep/er").mkdir(parents=True)
Path("deep/er/x").write_bytes(b"\\xff" + secrets[0].encode() + b"\\xff")
Path("kept.txt").write_text("x" * 100)
os.symlink("out.txt", "link")
for s in secrets:
    if "/" not in s:
        Path("n-" + s).write_text("a secret in its name")
"""


def forms() -> Iterator[bytes]:
    """Each secret, raw, as JSON spells it, in base64 but for its edges, in a URL."""
    for secret in (*KEYS.values(), *DECLARED.values()):
        yield secret.encode()
        for before in range(3):
            inner = secret.encode()[(3 - before) % 3 :]  # from where a group of three begins
            inner = inner[: len(inner) // 3 * 3]
            yield from (base64.b64encode(inner), base64.urlsafe_b64encode(inner))
        yield from (quote(secret, safe="").encode(), quote_plus(secret).encode())
        yield json.dumps(secret)[1:-1].encode()
        yield json.dumps(secret, ensure_ascii=False)[1:-1].encode()


def leaks(run: Run) -> list[str]:
    """Files and streams of a run that hold a secret."""
    found = []
    places = [run.folder.resolve(), run.project.scratch]
    for place in places:
        for path in place.rglob("*"):
            if path.is_file() and not path.is_symlink() and path.name != "list.json":
                data = path.read_bytes()
                found += [f"{path}: {form!r}" for form in forms() if form in data]
            found += [f"name {path}" for form in forms() if form in os.fsencode(path.name)]
    return found


def prepare(project: Project, engine: str = "") -> dict[str, str]:
    """The environment of the run; the values lie where only the agent's program looks."""
    (project.scratch / "list.json").write_text(json.dumps([*KEYS.values(), *DECLARED.values()]))
    places = f"{project.scratch}/list.json {project.scratch}/spread.py"  # for drivers that show a session nothing else
    project.write("pytest.ini", f"[pytest]\ncodeprobe_secrets = NAMED_BY_INI\ncodeprobe_bind = {places}\ncodeprobe_engine = {engine}\n")
    (project.scratch / "spread.py").write_text(SPREAD)
    return {**KEYS, "SHORT_KEY": SHORT}


def sandbox(project: Project) -> dict[str, object]:
    mounts = {"docker": {"mounts": [f"{place}:{place}" for place in (project.scratch / "list.json", project.scratch / "spread.py")]}}
    shown = mounts if project.environment["CODEPROBE_DRIVER"] == "docker" else {}
    return {"env": {**DECLARED, "LIST": str(project.scratch / "list.json")}, "env_passthrough": ["ANTHROPIC_API_KEY"], **shown}


@pytest.mark.parametrize(("mode", "driver"), [("xdist", "tempdir"), ("jobs", "tempdir"), ("jobs", "bubblewrap"), ("jobs", "docker")])
def test_nothing_leaks(project: Project, mode: str, driver: str) -> None:
    engine = use(project) if driver == "docker" else {}
    env = {**prepare(project, engine="podman" if engine else ""), **engine}
    spread = ["python3" if engine else sys.executable, str(project.scratch / "spread.py")]
    show = f"{shlex.join(spread)}; exit 1"
    says_all = [{"type": "run_command", "command": show}, {"type": "file_contains", "path": "out.txt", "includes": ["absent"]}]
    project.task("command", agent={"type": "command", "command": spread}, sandbox=sandbox(project), success_criteria=says_all)
    steps = [{"run": shlex.join(spread)}, *({"say": f"I found {s}"} for s in (*KEYS.values(), *DECLARED.values()))]
    # what a task file itself holds is in the plan's hash alone, so what the steps say must be kept out as well
    project.task("scripted", agent=scripted(*steps), sandbox=sandbox(project), success_criteria=says_all)
    # elsewhere: with work in the workspace it would be graded
    crash = f'cd "$TMPDIR"; {shlex.join(spread)}; cat "$LIST" >&2; exit 127'
    project.task("crash", agent={"type": "command", "command": ["sh", "-c", crash]}, sandbox=sandbox(project))
    project.task("setup", agent=scripted(), sandbox=sandbox(project), pre_run=[{"command": f"{shlex.join(spread)}; exit 3"}])
    project.task("post", agent=scripted({"write": {"path": "out.txt", "content": "x"}}), sandbox=sandbox(project),
                 post_run=[{"command": f"{shlex.join(spread)}; exit 3"}])  # fmt: skip
    flags = (f"--codeprobe-driver={driver}", "--codeprobe-json-lines", "-rA", "-vv")
    run = project.run("tasks/*.yaml", *flags, mode=mode, env=env).assert_consistent()
    assert run.statuses == {"command": "failed", "scripted": "failed", "crash": "error", "setup": "error", "post": "passed"}
    assert leaks(run) == []
    # they were there to be replaced
    for name in ("agent.stdout", "agent.stderr", "transcript.json"):
        assert REDACTED in (run.trial("command") / "attempt-1" / name).read_text(errors="replace")
    assert REDACTED in (run.trial("command") / "diff.patch").read_text(errors="replace")
    assert REDACTED in run.result("command")["final_message"]
    assert REDACTED in json.dumps(run.result("command")["criteria"])
    assert REDACTED in run.result("crash")["reason"]
    assert REDACTED in run.result("crash")["stderr_tail"]
    assert REDACTED in run.result("setup")["reason"]
    assert REDACTED in run.output


def test_kept_files_are_replaced_whole(project: Project) -> None:
    env = prepare(project)
    project.task("t", agent={"type": "command", "command": [sys.executable, str(project.scratch / "spread.py")]}, sandbox=sandbox(project))
    run = project.run("tasks/t.yaml", env=env).assert_consistent()
    kept = run.trial("t") / "artifacts"
    for name in ("out.txt", "data.json", "big.bin", "deep/er/x"):
        assert (kept / name).read_text() == MARK, name
    assert (kept / "plain.txt").read_text() == "harmless\n"
    assert (kept / "kept.txt").read_text() == "x" * 100
    assert (kept / "link").readlink() == Path("out.txt")
    assert run.result("t")["kept"] == "partial"
    assert leaks(run) == []


def test_across_every_border(project: Project) -> None:
    """Logs are copied in chunks of 1 MiB: a secret at each offset around a border is found."""
    env = prepare(project)
    secret = KEYS["ANTHROPIC_API_KEY"]
    program = (
        "import sys, json\n"
        f"s = json.loads(open({str(project.scratch / 'list.json')!r}).read())[0].encode()\n"
        "total = bytearray()\n"
        "for n in range(len(s) + 1):\n"
        "    total += b'.' * ((n + 1) * (1 << 20) - n - len(total)) + s\n"
        "sys.stdout.buffer.write(total); open('out.txt', 'w').write('x')\n"
    )
    (project.scratch / "borders.py").write_text(program)
    project.task("t", agent={"type": "command", "command": [sys.executable, str(project.scratch / "borders.py")]}, sandbox=sandbox(project))
    run = project.run("tasks/t.yaml", env=env).assert_consistent()
    log = (run.trial("t") / "attempt-1" / "agent.stdout").read_bytes()
    assert log.count(REDACTED.encode()) == len(secret) + 1
    assert leaks(run) == []


@pytest.mark.parametrize("mode", ["xdist"])  # a worker's environment has more in it
def test_a_session_sees_no_key_that_nobody_gave_it(project: Project, mode: str) -> None:
    env = prepare(project)
    project.task("t", agent=scripted({"run": "env | sort >out.txt"}), sandbox={"env_passthrough": ["grader:DEPLOY_TOKEN"]},
                 success_criteria=[{"type": "run_command", "command": 'test -n "$DEPLOY_TOKEN" -a -z "$ANTHROPIC_API_KEY"'}])  # fmt: skip
    run = project.run("tasks/t.yaml", mode=mode, env=env).assert_consistent()
    assert run.statuses == {"t": "passed"}
    names = [line.partition("=")[0] for line in (run.trial("t") / "artifacts" / "out.txt").read_text().splitlines()]
    assert "HOME" in names
    assert not {"ANTHROPIC_API_KEY", "DEPLOY_TOKEN", "NAMED_BY_INI", "SHORT_KEY"} & set(names)


def test_no_key_in_what_survives_a_kill(project: Project) -> None:
    """Raw logs and workspaces lie in the private folder alone: after kill -9 the run dir holds nothing raw."""
    import signal

    from tests.process_watch import none_within, trial_processes
    from tests.stages import holding

    env = prepare(project)
    spread = shlex.join([sys.executable, str(project.scratch / "spread.py")])
    project.task("t", agent={"type": "command", "command": ["sh", "-c", f"{spread}; {holding(project, 't')}"]}, sandbox=sandbox(project))
    run = project.start("tasks/t.yaml", env=env)
    run.wait_for("t")
    run.signal(signal.SIGKILL)
    run.wait()
    none_within(lambda: trial_processes(project), 5)
    (folder,) = Path(project.environment["TMPDIR"]).glob("codeprobe-*/logs")
    assert oct(folder.parent.stat().st_mode & 0o777) == "0o700"
    found = [line for line in leaks(run) if str(run.folder.resolve()) in line]
    assert found == []


def test_odd_values(project: Project) -> None:
    """A key may be a PEM block, and any JSON of it has its newlines escaped."""
    values = {"A_KEY": "line one\nline two of it", "B_KEY": "with spaces in it", "C_KEY": "ümläut-secret-ß"}
    for name in values:
        program = f"import os, json; v = os.environ['{name}']; print(v); print(json.dumps({{'a': v}})); open('out.txt', 'w').write(v)"
        command = [sys.executable, "-X", "utf8", "-c", program]
        project.task(name, agent={"type": "command", "command": command}, sandbox={"env_passthrough": [name]})
    run = project.run(*(f"tasks/{name}.yaml" for name in values), env={**values, "PYTHONUTF8": "1"}).assert_consistent()
    ways = [(v, json.dumps(v)[1:-1], json.dumps(v, ensure_ascii=False)[1:-1]) for v in values.values()]
    spelt = {text.encode() for way in ways for text in way}
    for path in run.folder.resolve().rglob("*"):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            assert not [s for s in spelt if s in data], path
    assert [run.result(name)["final_message"].count(REDACTED) for name in values] == [2, 2, 2]


def test_a_short_secret_is_not_replaced_and_that_is_said(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\ncodeprobe_secrets = PIN_OF_MINE\n")
    agent = scripted({"run": "printf '%s' \"$SOME_TOKEN\" > out.txt"}, {"say": "1234 and ab"})
    project.task("short", agent={**agent, "env": {"SOME_TOKEN": "ab"}})
    run = project.run("tasks", "--codeprobe-agent=scripted", env={"PIN_OF_MINE": "1234"}).assert_consistent()
    said = [w for w in run.envelope["warnings"] if "is not redacted" in w]
    assert [w.split()[3] for w in said] == ["PIN_OF_MINE", "SOME_TOKEN"]
    assert run.result("short")["final_message"] == "1234 and ab"
    assert (run.trial("short") / "artifacts" / "out.txt").read_text() == "ab"
