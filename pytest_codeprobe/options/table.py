"""The option table: every flag, ini key and environment variable once, and what becomes of them. Standard library only.

The parser, the console script, the docs page and RunOptions are made from it. A row whose feature is not built yet is
not registered anywhere (`built=False`), so that there are no dead flags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

Kind = Literal["text", "word", "flag", "choice", "count", "money", "duration", "size", "words", "list", "share"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting of a run."""

    name: str  #: `--codeprobe-<name>`; ini `codeprobe_<name>`, environment `CODEPROBE_<NAME>` with underscores
    cli: tuple[str, ...] = ()  #: spellings of `codeprobe run`
    kind: Kind = "text"
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    cli_choices: Mapping[str, str] | None = None  #: spellings of other systems -> ours
    code: str = "USAGE_ERROR"  #: raised for a bad value
    most: int = 1_000_000_000  #: of a count
    settable: bool = False  #: also an ini key and an environment variable
    environ: str | None = None  #: the environment variable, where its name is not ours alone
    default: str = "none"  #: for the docs
    help: str = ""
    built: bool = True

    @property
    def flag(self) -> str:
        """The pytest flag."""
        return f"--codeprobe-{self.name}"

    @property
    def dest(self) -> str:
        """The attribute of pytest's namespace."""
        return f"codeprobe_{self.name.replace('-', '_')}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return self.environ or self.dest.upper()

    @property
    def field(self) -> str:
        """The field of RunOptions."""
        return self.name.replace("-", "_")


MAX_JOBS = 1000
AUTO_DRIVERS = ("bubblewrap", "tempdir")  #: what driver `auto` comes to: the first that works; the last one always does
MODES = ("auto", "default", "acceptEdits", "plan", "bypassPermissions")
PRESERVE = {"NONE": "none", "MOVE_ON_WRITE": "move", "DIRECT_WRITE": "direct"}

OPTIONS: tuple[Option, ...] = (
    Option(name="agent", cli=("--agent", "--type", "-T"), metavar="NAME", settable=True, help="agent for every task"),
    Option(name="model", cli=("--model", "-m"), kind="word", metavar="M", settable=True, help="model for every task"),
    Option(
        name="driver",
        cli=("--driver",),
        metavar="D",
        settable=True,
        default="per task",
        help="kind of sandbox: auto, bubblewrap, tempdir, …",
    ),
    Option(
        name="run-dir",
        cli=("--run-dir",),
        metavar="DIR",
        default="a new one below .codeprobe/runs",
        help="folder of this run; must not exist yet or be empty",
    ),
    Option(
        name="preserve",
        cli=("--preservation-mode",),
        kind="choice",
        choices=("none", "move", "direct"),
        cli_choices=PRESERVE,
        metavar="none|move|direct",
        settable=True,
        default="move",
        help="what is kept of a workspace: nothing, a copy, or the workspace itself",
    ),
    Option(
        name="timeout",
        cli=("--timeout",),
        kind="duration",
        metavar="D",
        settable=True,
        default="task's, else 600",
        help="task_timeout for every task: 90, 90s, 30m, 2h",
    ),
    Option(
        name="permission-mode",
        cli=("--permission-mode",),
        kind="choice",
        choices=MODES,
        code="INVALID_PERMISSION_MODE",
        metavar="MODE",
        settable=True,
        default="task's, else auto",
        help=f"permission mode for every task: {', '.join(MODES)}",
    ),
    Option(
        name="jobs",
        cli=("-j", "--max-parallel"),
        kind="count",
        most=MAX_JOBS,
        metavar="N",
        settable=True,
        default="1",
        help='trials at once inside this process; docs: "Many trials at once"',
    ),
    Option(name="json", cli=("--json",), kind="flag", default="off", help="stdout = the envelope alone, one line of JSON"),
    Option(
        name="json-lines",
        cli=("--json-lines",),
        kind="flag",
        default="off; on for `codeprobe run` on a pipe",
        help="stdout = NDJSON events, then the envelope",
    ),
    Option(
        name="experiment",
        cli=("--experiment", "-e", "--config"),
        metavar="X",
        settable=True,
        default="experiments/default.yaml, if it exists",
        help="experiment file, or the bare name of one",
    ),
    Option(name="suite", cli=("--suite",), metavar="FILE", help="suite.toml: which of the tasks run"),
    Option(
        name="max-cost-usd",
        cli=("--max-cost-usd",),
        kind="money",
        metavar="X",
        settable=True,
        help="budget of the whole run, in US dollars",
    ),
    Option(
        name="max-duration",
        cli=("--max-duration",),
        kind="duration",
        metavar="D",
        settable=True,
        help="wall-time budget of the whole run: 90s, 30m, 2h",
    ),
    Option(
        name="backend",
        cli=("--backend", "-b"),
        kind="choice",
        choices=("direct", "bedrock", "vertex"),
        code="UNKNOWN_BACKEND",
        metavar="direct|bedrock|vertex",
        environ="API_BACKEND",
        default="direct",
        help="which provider's environment variables an agent gets",
    ),
    Option(
        name="dry-run",
        cli=("--dry-run",),
        kind="flag",
        default="off",
        help="resolve everything, start no agent, print the estimate",
    ),
    Option(
        name="offline",
        cli=("--offline",),
        kind="flag",
        settable=True,
        default="off",
        help="hold harness, graders and agents to loopback, the agent's own provider and ini codeprobe_offline_allow",
    ),
    Option(
        name="offline-expected-run-duration",
        cli=("--offline-expected-run-duration",),
        kind="duration",
        metavar="D",
        settable=True,
        default="1h",
        help="how long credentials must hold under --codeprobe-offline: 90, 90s, 30m, 2h, 1d",
    ),
    Option(
        name="canary",
        cli=("--canary",),
        kind="choice",
        choices=("off", "auto", "require", "renew"),
        metavar="off|auto|require|renew",
        settable=True,
        default="off",
        help='prove with one small task that the agent works before anything else is paid for; docs: "Canaries and capabilities"',
    ),
    Option(
        name="capabilities",
        cli=("--capabilities",),
        metavar="FILE",
        settable=True,
        help="capability snapshot to hold each session to; made by `codeprobe capabilities`",
    ),
    Option(
        name="trace-overflow",
        cli=("--trace-overflow",),
        kind="choice",
        choices=("fail", "truncate", "off"),
        metavar="fail|truncate|off",
        settable=True,
        default="truncate",
        help="what a transcript over its limit means: an error, a marked end, or no transcripts at all",
    ),
    Option(
        name="trace-max-bytes",
        cli=("--trace-max-bytes",),
        kind="size",
        metavar="N",
        settable=True,
        default="64MiB",
        help="limit of one transcript, in bytes: 1000000, 512KiB, 64MiB",
    ),
    Option(
        name="trace-budget",
        cli=("--trace-budget",),
        kind="size",
        metavar="N",
        settable=True,
        help="limit of all transcripts of the run together, in bytes",
    ),
    Option(
        name="set",
        cli=("--set", "-D"),
        kind="list",
        metavar="PATH=VALUE",
        help="override a setting of every task, below agent, sandbox or run_limits: agent.effort=high; may be given several times",
    ),
    Option(
        name="tags",
        cli=("--tags", "-t"),
        kind="words",
        metavar="A,B",
        settable=True,
        help="only tasks that have one of the tags",
    ),
    Option(
        name="exclude-tags",
        cli=("--exclude-tags",),
        kind="words",
        metavar="A,B",
        settable=True,
        help="no task that has one of the tags; beats --codeprobe-tags",
    ),
    Option(name="include-skipped", cli=("--include-skipped",), kind="flag", default="off", help="run tasks that say `skip` too"),
    Option(
        name="repeats",
        cli=("--repeats",),
        kind="count",
        most=999,
        metavar="N",
        settable=True,
        default="experiment's or task's, else 1",
        help="trials of each task (row, variant); min_passes grows and shrinks with it",
    ),
    Option(name="sample", cli=("--sample",), kind="count", metavar="N", help="so many rows of each dataset, the same in every run"),
    Option(
        name="sample-per-stratum",
        cli=("--sample-per-stratum",),
        kind="count",
        metavar="N",
        help="so many rows of each stratum of a dataset; --codeprobe-sample beats it",
    ),
    Option(
        name="min-score",
        cli=("--min-score",),
        kind="share",
        metavar="X",
        settable=True,
        help="least mean score of the run's verdicts, 0 to 1; below it the run exits 1",
    ),
    Option(
        name="min-pass-rate",
        cli=("--min-pass-rate",),
        kind="share",
        metavar="X",
        settable=True,
        help="least share of the run's verdicts that pass, 0 to 1 or 80%; below it the run exits 1",
    ),
    Option(
        name="resume",
        cli=("--resume",),
        kind="flag",
        default="off",
        help="go on with the run in --codeprobe-run-dir: what it has finished is told again and not run again",
    ),
    Option(
        name="rerun",
        cli=("--rerun",),
        kind="words",
        metavar="OUTCOMES",
        default="error,not_run",
        help="with --codeprobe-resume: outcomes that are run again: passed, failed, error, skipped, not_run, or all, or none",
    ),
    Option(name="doctor", kind="flag", default="off", help="check what a run would need, and run nothing"),
    *(
        Option(name=name, cli=cli, built=False)
        for name, cli in (
            ("stream", ("--stream", "-s")),
            ("gateway", ("--gateway",)),
            ("record", ("--record",)),
            ("replay", ("--replay",)),
            ("replay-match", ("--replay-match",)),
        )
    ),
)
BUILT: tuple[Option, ...] = tuple(option for option in OPTIONS if option.built)
OUTCOMES = ("passed", "failed", "error", "skipped", "not_run")  #: of a trial: values of --codeprobe-rerun
NEEDS_VALUE = "\0"  #: what the parser stores for a flag whose value is missing: it must not fail inside argparse


@dataclass(frozen=True, slots=True, kw_only=True)
class Ini:
    """An ini key without a flag."""

    name: str
    type: Literal["string", "args", "linelist"]
    default: Any
    help: str


INIS: tuple[Ini, ...] = (
    Ini(
        name="codeprobe_files",
        type="args",
        default=["tasks/**/*.yaml", "tasks/**/*.yml", "*.task.yaml", "*.task.yml"],
        help="git-style patterns of task files, relative to rootdir",
    ),
    Ini(name="codeprobe_ignore", type="args", default=[], help="git-style patterns of files that are no task files"),
    Ini(name="codeprobe_unknown_fields", type="string", default="error", help="unknown top-level fields of a task: error or warn"),
    Ini(
        name="codeprobe_dialect", type="string", default="native", help="of task and experiment files that name none: native or coder-eval"
    ),
    Ini(name="codeprobe_template_roots", type="args", default=[], help="folders outside the repository that tasks may refer to"),
    Ini(
        name="codeprobe_ahead_fixtures",
        type="args",
        default=[],
        help="fixtures of this project that need not be set up before an agent starts: with jobs they don't hold a trial back",
    ),
    Ini(name="codeprobe_runs_dir", type="string", default=".codeprobe/runs", help="where run directories are made, relative to rootdir"),
    Ini(
        name="codeprobe_offline_allow",
        type="args",
        default=[],
        help="hosts that a run under --codeprobe-offline may reach beside loopback: host, host:port, *.domain, address or network",
    ),
    Ini(
        name="codeprobe_bind",
        type="args",
        default=[],
        help="files and folders of this machine that driver bubblewrap shows read-only, beside the system's own and the agent's program",
    ),
    Ini(
        name="codeprobe_engine",
        type="string",
        default="",
        help="container engine of driver docker: docker, podman, or the path of such a program; by default the first that works",
    ),
    Ini(
        name="codeprobe_secrets",
        type="args",
        default=[],
        help="environment variables whose values are redacted, beside those that look like keys",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The settings of a run, resolved once in the controller; workers get them as JSON and read neither environment nor ini."""

    agent: str | None = None
    model: str | None = None
    driver: str | None = None
    run_dir: str | None = None
    preserve: Literal["none", "move", "direct"] | None = None
    timeout: float | None = None  #: seconds
    permission_mode: str | None = None
    jobs: int | None = None
    json: bool = False
    json_lines: bool = False
    experiment: str | None = None
    suite: str | None = None
    max_cost_usd: float | None = None  #: US dollars
    max_duration: float | None = None  #: seconds
    backend: Literal["direct", "bedrock", "vertex"] | None = None
    dry_run: bool = False
    offline: bool = False
    offline_expected_run_duration: float | None = None  #: seconds
    canary: Literal["off", "auto", "require", "renew"] | None = None
    capabilities: str | None = None
    trace_overflow: Literal["fail", "truncate", "off"] | None = None
    trace_max_bytes: int | None = None
    trace_budget: int | None = None  #: bytes
    doctor: bool = False
    tags: tuple[str, ...] = ()  #: a task runs that has one of them; empty: all
    exclude_tags: tuple[str, ...] = ()
    include_skipped: bool = False
    set: tuple[str, ...] = ()  #: PATH=VALUE, those of addopts first
    repeats: int | None = None
    sample: int | None = None
    sample_per_stratum: int | None = None
    min_score: float | None = None
    min_pass_rate: float | None = None
    resume: bool = False
    regrade: str | None = None  #: run dir whose kept workspaces are graded again
    invoked_in: str | None = None  #: absolute: what relative paths in flags are relative to; under regrade, in those of the earlier run
    check: bool = False  #: of `codeprobe check`: no gate over repeats leaves some out, and a task without an agent is left out
    rerun: tuple[str, ...] = ("error", "not_run")  #: outcomes
    drawn_seed: int = 0  #: for datasets that want another sample in each run
    on_command_line: tuple[str, ...] = ()  #: names of the options given by flag
    typed: tuple[str, ...] = ()  #: of these, those that do not come from addopts
    typed_sets: int = 0  #: how many of `set`, from the end, likewise
    unknown_fields: str = "error"
    dialect: Literal["native", "coder-eval"] = "native"
    template_roots: tuple[str, ...] = ()
    ahead_fixtures: tuple[str, ...] = ()
    runs_dir: str = ".codeprobe/runs"
    offline_allow: tuple[str, ...] = ()  #: hosts, each as ALLOWED_HOST has it
    secrets: tuple[str, ...] = ()
    bind: tuple[str, ...] = ()  #: absolute paths
    engine: str = ""  #: program; empty: whichever works
    files: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    console: bool = False  #: started by `codeprobe run`

    def to_json(self) -> str:
        """For a worker."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RunOptions:
        """The inverse of to_json()."""
        data: dict[str, Any] = json.loads(text)
        tuples = {f.name for f in fields(cls) if str(f.type).startswith("tuple")}
        values: dict[str, Any] = {k: tuple(v) if k in tuples else v for k, v in data.items()}
        return cls(**values)


_FLAG = re.compile(r"--codeprobe-[a-z][a-z-]*[a-z](=?)")
#: what a text says to users of pytest -> to those of `codeprobe run`
_CONSOLE_WORDS = {"`pytest --help`, section codeprobe": "`codeprobe run --help`"}


def spelled(text: str, *, console: bool) -> str:
    """A text of ours that names flags of pytest, in the spelling of `codeprobe run` where that was used."""
    if not console:
        return text
    for ours, theirs in _CONSOLE_WORDS.items():
        text = text.replace(ours, theirs)
    flags = {option.flag: option.cli for option in OPTIONS if option.cli}

    def theirs_of(match: re.Match[str]) -> str:
        names = flags.get(match[0].removesuffix("="), ())
        fitting = [name for name in names if name.startswith("--")] if match[1] else names
        return fitting[0] + match[1] if fitting else match[0]

    return _FLAG.sub(theirs_of, text)
