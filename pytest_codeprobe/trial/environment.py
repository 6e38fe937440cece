"""Environments of sessions, task commands and graders: an allowlist of the harness's own plus what the task declares."""

# ruff: noqa: PTH102, PTH211
# (made for every trial: plain calls)
from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.rows import ROW_FILE, row_variables
from pytest_codeprobe.model.sandbox import Sandbox
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.tasks.repositories import secrets_of_url
from pytest_codeprobe.text import MIN_SECRET, is_secret_name

_PROXIES = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}
_CERTIFICATES = {"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"}
_PLAIN = {"PATH", "LANG", "LANGUAGE", "TZ", "TERM", "USER", "LOGNAME", "SHELL"}
_ALLOWED = frozenset({*_PLAIN, *_CERTIFICATES, *_PROXIES, *(name.lower() for name in _PROXIES)})
#: what a session leaves in the user's own folders otherwise
XDG = {"XDG_CONFIG_HOME": ".config", "XDG_CACHE_HOME": ".cache", "XDG_DATA_HOME": ".local/share", "XDG_STATE_HOME": ".local/state"}
_URL = re.compile(r"(?:https?|ssh)://\S+")  #: also behind `name @ ` and `git+`
#: nothing that we start inherits these
_OURS = ("PYTEST_", "CODEPROBE_", "_CODEPROBE_", "COV_")


def allowlisted(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of the harness's environment that every process gets."""
    return {k: v for k, v in environ.items() if k in _ALLOWED or k.startswith("LC_")}


def passed_through(trial: Trial, context: Context, role: str) -> dict[str, str]:
    """Variables of the host that the task names for this role (`NAME`, `agent:NAME`, `grader:NAME`)."""
    found: dict[str, str] = {}
    for entry in trial.sandbox.env_passthrough:
        whom, colon, name = entry.rpartition(":")
        if (not colon or whom == role) and name in context.environ and not name.startswith(_OURS):
            found[name] = context.environ[name]
    return found


def session_environment(trial: Trial, context: Context, sandbox: Sandbox, extra: Mapping[str, str]) -> dict[str, str]:
    """What the agent's process sees: HOME, TMPDIR and every config dir inside the trial's folder."""
    home = str(sandbox.home)
    environment = {
        "PATH": os.defpath,
        "TERM": "dumb",
        **allowlisted(context.environ),
        "HOME": home,
        "TMPDIR": str(sandbox.tmp),
        "PWD": str(sandbox.workspace),
        **{name: f"{home}/{below}" for name, below in XDG.items()},
        **passed_through(trial, context, "agent"),
        **trial.sandbox.env,
        **trial.agent.env,
        **extra,
    }
    first = [str(shims_of(sandbox) / "bin")] if trial.sandbox.record_cli else []
    first += map(str, mock_folders(trial, sandbox))
    environment["PATH"] = os.pathsep.join([*first, *own_programs(trial, sandbox), environment["PATH"]])
    if trial.sandbox.setup is not None and trial.sandbox.setup.python is not None:
        environment["VIRTUAL_ENV"] = str(sandbox.root / "python")  # other installers than pip go by it
    return _unasked(trial) | environment


def _unasked(trial: Trial) -> dict[str, str]:
    """Of pip and npm, where the task has them: they ask no server whether there is a newer one of them."""
    return {} if trial.sandbox.setup is None else {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "npm_config_update_notifier": "false"}


def own_programs(trial: Trial, sandbox: Sandbox) -> list[str]:
    """Folders of programs that sandbox.setup has brought, and that a session may add to."""
    setup = trial.sandbox.setup
    if setup is None:
        return []
    python = [f"{sandbox.root}/python/bin"] if setup.python is not None else []
    return [*python, *([f"{sandbox.root}/node_modules/.bin"] if setup.node is not None and setup.node.packages else [])]


def shims_of(sandbox: Sandbox) -> Path:
    """Where the programs of `sandbox.record_cli` lie, in `bin`, and the socket by which they ask."""
    return sandbox.root / "cli"


def mock_folders(trial: Trial, sandbox: Sandbox) -> list[Path]:
    """Those of `sandbox.mock_path_dirs` that are there, in the workspace itself and not by a link elsewhere."""
    if not trial.sandbox.mock_path_dirs:
        return []
    top = os.path.realpath(sandbox.workspace)
    folders = [Path(sandbox.workspace, name) for name in trial.sandbox.mock_path_dirs]
    return [f for f in folders if f.is_dir() and Path(os.path.realpath(f)).is_relative_to(top)]


def of_host(trial: Trial, context: Context) -> dict[str, str]:
    """Variables of the process that runs pytest, for the commands of a task that sees them; else none.

    HOME is its own too. What would change how Python and node start is left out, as everywhere.
    """
    if not trial.host_environment:
        return {}
    return {k: v for k, v in context.environ.items() if not k.startswith((*_OURS, "PYTHON")) and k != "NODE_OPTIONS"}


def with_host(trial: Trial, context: Context, environment: Mapping[str, str]) -> dict[str, str]:
    """An environment of commands on top of the host's."""
    host = of_host(trial, context)
    own_home = {"HOME": host["HOME"]} if "HOME" in host and "HOME" not in trial.sandbox.env else {}
    return {**host, **environment, **own_home}


def command_environment(
    trial: Trial, context: Context, sandbox: Sandbox, tools: Path, role: str, *, trusted: bool = False
) -> dict[str, str]:
    """What pre_run, post_run, solutions and graders see. `tools` holds the `python` that they find first.

    The directories that a session may have filled (stand-ins, `node_modules/.bin`, the trial's own environments) come last, but for those
    environments while `trusted`, before the session; PYTHON* and NODE_OPTIONS are not set.
    """
    base = allowlisted(context.environ)
    own = own_programs(trial, sandbox)
    last = (*mock_folders(trial, sandbox), f"{sandbox.workspace}/node_modules/.bin", *(() if trusted else own))
    path = ":".join((*(own if trusted else ()), f"{tools}/bin", base.get("PATH", os.defpath), *map(str, last)))
    return {
        "TERM": "dumb",
        **_unasked(trial),
        **base,
        "PATH": path,
        "HOME": str(tools / "home"),
        "TMPDIR": str(tools / "tmp"),
        "PWD": str(sandbox.workspace),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_COUNT": "2",  # beats the workspace's own .git/config
        "GIT_CONFIG_KEY_0": "core.hooksPath",
        "GIT_CONFIG_VALUE_0": os.devnull,
        "GIT_CONFIG_KEY_1": "core.fsmonitor",
        "GIT_CONFIG_VALUE_1": "false",
        **trial.variables(sandbox.workspace),
        **({} if trial.row is None else {**row_variables(trial.row), "ROW_JSON": str(tools / ROW_FILE)}),
        **passed_through(trial, context, role),
        **trial.sandbox.env,
    }


def make_tools(
    folder: Path, row: Mapping[str, Any] | None = None, python: str | None = None, lay_python: Callable[[Path], None] | None = None
) -> Path:
    """A fresh folder with HOME, TMPDIR and a `python` without site-packages, made when nothing of the agent is alive.

    And with the row of the dataset, if there is one. `lay_python` puts another `python` there.

    A virtual environment of two links and a line of configuration: `sys.executable` stays inside it. With `python`, the name of the
    sandbox's own interpreter, it is that one.
    """
    if python is not None:
        return _tools_elsewhere(folder, row, python)
    top, (program, configuration, names) = str(folder), _python()
    try:
        for part in ("", "/bin", "/home", "/tmp"):
            os.mkdir(top + part)
        if lay_python is not None:
            lay_python(folder)
        else:
            fd = os.open(f"{top}/pyvenv.cfg", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                os.write(fd, configuration)
            finally:
                os.close(fd)
            for name in names:
                os.symlink(program, f"{top}/bin/{name}")
        if row is not None:
            (folder / ROW_FILE).write_text(json.dumps(row), encoding="utf-8")
    except OSError as error:
        raise CodeprobeError("SANDBOX_FAILED", f"{folder}: {error.strerror}") from error
    return folder


def _tools_elsewhere(folder: Path, row: Mapping[str, Any] | None, python: str) -> Path:
    """For a sandbox with programs of its own: `python` is what is called python3 there, since systems often have no other name for it."""
    try:
        for part in (folder, folder / "bin", folder / "home", folder / "tmp"):
            part.mkdir()
        shim = folder / "bin" / "python"
        shim.write_text(f'#!/bin/sh\nexec {python} "$@"\n', encoding="utf-8")
        shim.chmod(0o755)
        if row is not None:
            (folder / ROW_FILE).write_text(json.dumps(row), encoding="utf-8")
    except OSError as error:
        raise CodeprobeError("SANDBOX_FAILED", f"{folder}: {error.strerror}") from error
    return folder


def interpreter_inside(sandbox: Sandbox) -> str | None:
    """The interpreter inside, by name, of a sandbox with programs of its own; None where this machine's are there."""
    name = getattr(sandbox, "python", None)
    return name if isinstance(name, str) else None


@functools.cache
def _python() -> tuple[str, bytes, tuple[str, ...]]:
    """The interpreter that graders find, the content of its pyvenv.cfg, the names that it has."""
    program = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    home = program.parent if program.parent.name == "bin" else Path(sys.base_prefix) / "bin"
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return str(program), f"home = {home}\ninclude-system-site-packages = false\n".encode(), ("python", "python3", version)


def trial_secrets(trial: Trial, context: Context) -> frozenset[str]:
    """Secret values that this trial adds to the run's."""
    setup = trial.sandbox.setup
    sets = [setup.python, setup.node] if setup is not None else []
    urls = [url for packages in sets if packages is not None for package in packages.packages for url in _URL.findall(package)]
    urls += [source.url for source in trial.sandbox.template_sources if source.url is not None]
    of_urls = [part for url in urls for part in secrets_of_url(url)]
    return frozenset(value for value in (*_declared_secrets(trial, context).values(), *of_urls) if len(value) >= MIN_SECRET)


def short_secrets(trial: Trial, context: Context) -> list[str]:
    """Names of secret variables whose values are too short to be replaced: they would hit ordinary text."""
    named = {name: context.environ.get(name, "") for name in context.options.secrets}
    return sorted(name for name, value in {**named, **_declared_secrets(trial, context)}.items() if 0 < len(value) < MIN_SECRET)


def _declared_secrets(trial: Trial, context: Context) -> dict[str, str]:
    """Variables that the task gives its processes and that look like keys, or that the user calls secret."""

    def is_secret(name: str) -> bool:
        return is_secret_name(name) or name in context.options.secrets

    passed = {**passed_through(trial, context, "agent"), **passed_through(trial, context, "grader")}
    declared = {**passed, **trial.sandbox.env, **trial.agent.env}
    found = {name: value for name, value in declared.items() if is_secret(name)}
    if trial.sandbox.docker is not None:
        found |= {f"{name} of the image": value for name, value in trial.sandbox.docker.build_args.items() if is_secret(name)}
    user = trial.simulation.agent if trial.simulation is not None else None
    if user is not None:
        found |= {f"{name} of the simulated user": value for name, value in user.env.items() if is_secret(name)}
    for whose, config in (("", trial.agent), (" of the simulated user", user)):
        for server, table in ((config.mcp_servers if config is not None else None) or {}).items():  # two may have one name for two keys
            own = table.get("env")
            values = own if isinstance(own, dict) else {}
            named = f"{server}{whose}"
            found |= {f"{name} of {named}": value for name, value in values.items() if isinstance(value, str) and is_secret(name)}
    return found
