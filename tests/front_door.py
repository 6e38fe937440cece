"""The way in that users have: real pytest in a fresh folder, in every mode of parallelism, and what must hold of every run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pytest_codeprobe.errors import error_codes
from tests.schemas import check

#: how a run is spread; a later mode is added here, and every parity test gets it
MODES: Mapping[str, tuple[str, ...]] = {"plain": (), "xdist": ("-n", "2"), "jobs": ("--codeprobe-jobs=4",)}
#: what differs between two runs of the same trials, and nothing else does
VOLATILE = frozenset({"run_id", "worker", "started_at", "ended_at", "duration_seconds", "timings"})
_MARK = "CP_TEST_MARK"


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment of a test's pytest: nothing of the pytest that runs the test.

    Without Hypothesis's plugin, which our tests need and our users' runs don't: at its end it imports all of Hypothesis, in each process.
    """
    ours = ("PYTEST_", "CODEPROBE_", "_CODEPROBE_", "COV_")
    set_here = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": "-p no:hypothesispytest"}
    return {k: v for k, v in os.environ.items() if not k.startswith(ours)} | set_here | extra


def scripted(*steps: Mapping[str, Any]) -> dict[str, Any]:
    """An `agent:` mapping that does these steps."""
    return {"type": "scripted", "scripted": {"steps": list(steps)}}


@dataclass
class Run:
    """One ended (or running) pytest process and what it left."""

    project: Project
    args: tuple[str, ...]
    process: subprocess.Popen[bytes]
    run_dir: Path | None
    junit_file: Path
    code: int = -99
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0

    # ---- what it said
    @property
    def output(self) -> str:
        """Both streams: where pytest's own report goes depends on the mode."""
        return self.stdout + self.stderr

    @property
    def lines(self) -> list[dict[str, Any]]:
        """stdout as JSON; fails if a byte of it is none."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    # ---- what it left
    @property
    def folder(self) -> Path:
        """The run directory."""
        if self.run_dir is not None:
            return self.run_dir
        return self.project.path / ".codeprobe" / "runs" / "latest"

    def run_dir_of_it(self) -> Run:
        """The same, with the newest run directory as its own: `latest` never points to a dry run."""
        self.run_dir = self.project.run_dirs()[-1]
        return self

    @property
    def wrote(self) -> bool:
        """Whether there is a run directory."""
        return (self.folder / "plan.json").exists()

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "events.ndjson").read_text().splitlines()]

    @property
    def envelope(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "envelope.json").read_text()))

    @property
    def plan(self) -> list[dict[str, Any]]:
        return list(json.loads((self.folder / "plan.json").read_text())["trials"])

    @property
    def finished(self) -> dict[str, dict[str, Any]]:
        """trial_finished by task id."""
        return {e["task_id"]: e for e in self.events if e["event"] == "trial_finished"}

    @property
    def statuses(self) -> dict[str, str]:
        return {task: str(e["status"]) for task, e in self.finished.items()}

    def result(self, task_id: str) -> dict[str, Any]:
        """result.json of a task."""
        return dict(json.loads((self.trial(task_id) / "result.json").read_text()))

    def trial(self, task_id: str) -> Path:
        """A task's folder in the run dir."""
        return self.folder / "trials" / "default" / task_id.replace("/", "__") / "r001"

    def junit(self) -> dict[str, str]:
        """Test name -> passed, failure, error or skipped."""
        cases = ET.parse(self.junit_file).iter("testcase")
        return {
            c.get("name", ""): ",".join(sorted(x.tag for x in c if x.tag in ("error", "failure", "skipped"))) or "passed" for c in cases
        }

    def junit_properties(self, name: str) -> dict[str, str]:
        """Properties of one test case."""
        case = next(c for c in ET.parse(self.junit_file).iter("testcase") if c.get("name") == name)
        return {p.get("name", ""): p.get("value", "") for p in case.iter("property")}

    # ---- while it runs
    def poll(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        """Until the condition holds; fails if the run ends first or the time is over."""
        until = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"pytest ended first:\n{self._so_far()}"
            assert time.monotonic() < until, f"not within {seconds} s:\n{self._so_far()}"
            time.sleep(0.03)

    def wait_for_events(self, event: str, count: int = 1) -> None:
        """Until so many events of a kind are in events.ndjson."""

        def there() -> bool:
            with contextlib.suppress(FileNotFoundError):
                return (self.folder / "events.ndjson").read_text().count(f'"event":"{event}"') >= count
            return False

        self.poll(there)

    def wait_for_plan(self) -> None:
        """Until trials may start."""
        self.poll((self.folder / "plan.json").exists)

    def wait_for(self, name: str, count: int = 1) -> None:
        """Until so many files match a glob below the project's folder `marks` (see Project.mark)."""
        self.poll(lambda: len(list(self.project.marks.glob(name))) >= count)

    def signal(self, number: int) -> None:
        """To the pytest process alone."""
        self.process.send_signal(number)

    def wait(self, seconds: float = 60.0) -> Run:
        """Until it ends."""
        began = time.monotonic()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            text = self._so_far()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise AssertionError(f"pytest did not end within {seconds} s:\n{text}") from None
        self.code = self.process.returncode
        self.seconds = time.monotonic() - began
        self.stdout = (self.project.scratch / "stdout").read_text(errors="surrogateescape")
        self.stderr = (self.project.scratch / "stderr").read_text(errors="replace")
        return self

    def _so_far(self) -> str:
        return "".join((self.project.scratch / name).read_text(errors="replace")[-3000:] for name in ("stdout", "stderr"))

    def survivors(self) -> list[str]:
        """Command lines of live processes that carry this project's mark in their environment or arguments."""
        return survivors(self.project.mark_text)

    def assert_nothing_left(self, seconds: float = 2.0) -> None:
        """No process of the run is alive, and no private folder of its trials is on disk."""
        until = time.monotonic() + seconds
        while (left := self.survivors()) and time.monotonic() < until:
            time.sleep(0.1)
        assert not left, f"processes left: {left}"

    def assert_consistent(self) -> Run:
        """What holds of every run that has a plan: one final record for each trial, counts that add up, numbered events."""
        events, envelope, plan = self.events, self.envelope, self.plan
        check("envelope", envelope)
        for event in events:
            check("event", event)
        assert [e["seq"] for e in events] == list(range(len(events)))
        finished = [e["node_id"] for e in events if e["event"] == "trial_finished" and e.get("counted") is not False]
        assert sorted(finished) == sorted(t["node_id"] for t in plan)
        for start in (e for e in events if e["event"] == "trial_started"):
            (end,) = [e for e in events if e["event"] == "trial_finished" and e["node_id"] == start["node_id"]]
            assert end["seq"] > start["seq"]
        data = envelope["data"]
        names = ("passed", "failed", "error", "skipped", "not_run", "missed", "xfailed")
        assert data["tasks_total"] == len(plan) == sum(data[f"tasks_{n}"] for n in names) == len(data["results"])
        assert envelope["exit_code"] == self.code, (envelope["exit_code"], self.code, self.output[-2000:])
        assert (envelope["status"] == "error") == bool(envelope["errors"])
        assert not (self.folder / "spool").exists()
        assert "INTERNALERROR" not in self.output
        for line in data["results"]:
            file = next(self.folder / "trials" / t["folder"] / "result.json" for t in plan if t["node_id"] == line["node_id"])
            if file.exists():
                record = json.loads(file.read_text())
                check("result", record)
                assert record["status"] == line["status"], line
        return self

    # ---- the JSON modes
    def assert_pure(self, *, events: bool = True) -> dict[str, Any]:
        """What holds of stdout in a JSON mode, however the run ended; the envelope."""
        text = (self.project.scratch / "stdout").read_bytes().decode("utf-8", "strict")
        assert text.endswith("\n"), text[-200:]
        lines = text[:-1].split("\n")
        *early, envelope = [json.loads(line, parse_constant=_no_constant) for line in lines]
        check("envelope", envelope)
        assert envelope["exit_code"] == self.code, (envelope["exit_code"], self.code, self.stderr[-2000:])
        data = envelope["data"]
        names = ("passed", "failed", "error", "skipped", "not_run", "missed", "xfailed")
        assert data["tasks_total"] == sum(data[f"tasks_{n}"] for n in names) == len(data["results"])
        for error in envelope["errors"]:
            row = error_codes()[error["code"]]
            assert (error["kind"], error["retryable"], error["terminal"]) == (row.kind, row.retryable, row.terminal)
        for number, event in enumerate(early):
            check("event", event)
            assert (event["seq"], event["run_id"]) == (number, data["run_id"])
        if not events:
            assert not early
        if data["run_dir"] is not None:
            folder = Path(self.project.path, data["run_dir"])
            assert (folder / "envelope.json").read_text() == lines[-1] + "\n"
            if events:
                assert (folder / "events.ndjson").read_text().splitlines() == lines[:-1]
        else:
            assert not early
        return dict(envelope)


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def survivors(mark: str) -> list[str]:
    """Command lines of live processes whose environment or arguments hold the mark; this process is left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            if mark.encode() in command or mark.encode() in (entry / "environ").read_bytes():
                found.append(f"{entry.name}: {command.replace(bytes(1), b' ').decode(errors='replace')[:200]}")
    return found


@dataclass
class Project:
    """A fresh folder with pytest's configuration, in which tasks are written and pytest is run."""

    path: Path
    scratch: Path
    mark_text: str
    runs: int = 0
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def marks(self) -> Path:
        """A folder outside the project for files that agents and fixtures leave as signs."""
        folder = self.scratch / "marks"
        folder.mkdir(exist_ok=True)
        return folder

    def run_dirs(self) -> list[Path]:
        """Run directories in the default place, the newest last."""
        return sorted(p.parent for p in (self.path / ".codeprobe" / "runs").glob("2*/plan.json"))

    def envelopes(self) -> list[dict[str, Any]]:
        """Of real runs, in their order."""
        found = [json.loads((folder / "envelope.json").read_text()) for folder in self.run_dirs()]
        return [e for e in found if "estimate" not in e["data"]]

    def write(self, name: str, text: str) -> Path:
        """A file of the project."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def task(self, task_id: str, *, file: str | None = None, **fields: Any) -> Path:
        """`tasks/<id>.yaml`: by default the prompt `do it`, agent none of its own, and a criterion that out.txt exists."""
        content = {
            "task_id": task_id,
            "initial_prompt": "do it",
            "success_criteria": [{"type": "file_exists", "path": "out.txt"}],
            **fields,
        }
        return self.write(file or f"tasks/{task_id}.yaml", yaml.safe_dump(content, sort_keys=False))

    def start(self, *args: str, mode: str = "plain", env: Mapping[str, str] | None = None, program: tuple[str, ...] = ("-m", "pytest"),
              junit: bool = True, prefix: tuple[str, ...] = (), pass_fds: tuple[int, ...] = ()) -> Run:  # fmt: skip
        """Start pytest; see Run.wait(). Its processes carry the project's mark. `prefix`: a command line that becomes pytest's."""
        self.runs += 1
        junit_file = self.scratch / f"junit-{self.runs}.xml"
        argv = [*prefix, sys.executable, *program, *MODES[mode], *([f"--junitxml={junit_file}"] if junit else []), *args]
        run_dir = next((Path(self.path, a.partition("=")[2]) for a in args if a.startswith("--codeprobe-run-dir=")), None)
        environment = clean_environment(**{_MARK: self.mark_text, **self.environment, **(env or {})})
        with (self.scratch / "stdout").open("wb") as out, (self.scratch / "stderr").open("wb") as err:
            process = subprocess.Popen(
                argv, cwd=self.path, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                pass_fds=pass_fds,
            )  # fmt: skip
        return Run(project=self, args=args, process=process, run_dir=run_dir, junit_file=junit_file)

    def run(self, *args: str, mode: str = "plain", seconds: float = 90.0, env: Mapping[str, str] | None = None, junit: bool = True) -> Run:
        """Run pytest to its end."""
        return self.start(*args, mode=mode, env=env, junit=junit).wait(seconds)

    def codeprobe(self, *args: str, seconds: float = 90.0, env: Mapping[str, str] | None = None) -> Run:
        """Run the console script to its end."""
        program = ("-c", "from pytest_codeprobe.cli import main; main()")
        return self.start(*args, program=program, env=env, junit=False).wait(seconds)


def comparable(value: Any) -> Any:
    """A record without what may differ between two runs of one trial."""
    if isinstance(value, dict):
        return {k: comparable(v) for k, v in value.items() if k not in VOLATILE}
    if isinstance(value, list):
        return [comparable(v) for v in value]
    return value


def make_project(tmp_path: Path) -> Iterator[Project]:
    """A project in a git repository of its own; whatever it left running is ended."""
    path, scratch = tmp_path / "project", tmp_path / "scratch"
    path.mkdir()
    scratch.mkdir()
    (path / "pytest.ini").write_text("[pytest]\n")
    subprocess.run(["git", "init", "-q", str(path)], check=True, env=clean_environment(GIT_CONFIG_GLOBAL=os.devnull))
    project = Project(path=path, scratch=scratch, mark_text=f"cp-{os.getpid()}-{tmp_path.name}-{time.monotonic_ns()}")
    # most tests have agents, graders and fixtures leave signs outside of the workspace, so `auto` is not for them
    project.environment["CODEPROBE_DRIVER"] = "tempdir"
    # private folders of trials go where the test can look for what is left
    trials = scratch / "tmp"
    trials.mkdir()
    project.environment["TMPDIR"] = str(trials)
    yield project
    for line in survivors(project.mark_text):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line.partition(":")[0]), signal.SIGKILL)
