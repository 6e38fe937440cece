"""How a Claude Code session is started. Checked against the real CLI, 2.1.332."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pytest_codeprobe.agents.base import text
from pytest_codeprobe.agents.claude import access, clouds
from pytest_codeprobe.agents.claude import servers as mcp
from pytest_codeprobe.agents.claude.access import BASE_URL, KEYS, stored_login
from pytest_codeprobe.agents.claude.parser import ClaudeParser
from pytest_codeprobe.agents.claude.sources import setting_sources
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.agent import Agent, CredentialLife, SessionCommand, SessionRequest
from pytest_codeprobe.model.base import Model
from pytest_codeprobe.model.config import AgentConfig
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.network import Endpoint
from pytest_codeprobe.model.trial import Trial

#: pre-approved under `auto` where the driver doesn't isolate: without them the CLI refuses to run a test, and says success
_PRE_APPROVED = ("Bash", "Read", "Write", "Edit", "Glob", "Grep", "Skill")
_MCP_SECONDS = 30.0  #: that the CLI waits for an MCP server by itself
_MCP_PART = 0.8  #: of provider_patience that it may wait
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
#: `/model` of the CLI: with and without a longer context
_ALIASES = tuple(word + window for word in ("best", "default", "fable", "haiku", "opus", "opusplan", "sonnet") for window in ("", "[1m]"))
_MODES = {"default": "manual", "acceptEdits": "acceptEdits", "plan": "plan", "bypassPermissions": "bypassPermissions"}
_READ_ONLY = ("manual", "plan", "dontAsk")  #: of the CLI's modes: nothing is written unless somebody allows it
#: nothing but the model's endpoint is asked, nothing is written for the next session, and an outage doesn't last for minutes
_QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    "CLAUDE_CODE_MAX_RETRIES": "2",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
}


class ClaudeTable(Model):
    """`agent.claude`: what only this CLI has."""

    #: the CLI's own word, instead of `agent.permission_mode`
    permission_mode: Literal["acceptEdits", "auto", "bypassPermissions", "dontAsk", "manual", "plan"] | None = None
    #: whose settings files the CLI reads, instead of `agent.project_settings`; a session's user has none but what the task gives
    setting_sources: tuple[Literal["user", "project", "local"], ...] | None = None
    settings: dict[str, Any] | None = None  #: content of a settings file that is loaded on top of the project's


class Claude(Agent):
    """Claude Code, headless, with a private HOME and config dir. The prompt goes to its standard input."""

    name = "claude"
    aliases = ("claude-code",)
    executable = "claude"
    backends = ("direct", "bedrock", "vertex")
    usage_known = "live"
    resumes = True
    model_aliases = frozenset(_ALIASES)
    holds = frozenset({"max_turns", "max_usd"})
    supports = frozenset(
        {
            "model",
            "permission_mode",
            "allowed_tools",
            "disallowed_tools",
            "system_prompt",
            "system_prompt_file",
            "append_system_prompt",
            "mcp_servers",
            "max_thinking_tokens",
            "effort",
            "args",
            "project_settings",
        }
    )
    permission_modes = ("auto", *_MODES)
    tool_names: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "read": ("Read",),
        "write": ("Write",),
        "edit": ("Edit",),
        "shell": ("Bash",),
        "search": ("Glob", "Grep"),
        "web": ("WebFetch", "WebSearch"),
        "skill": ("Skill",),
        "agent": ("Task", "Agent"),
    }
    endpoint_variable = BASE_URL
    table = ClaudeTable
    minimum_version = "2.1.0"
    install_hint = "Install Claude Code with `npm install -g @anthropic-ai/claude-code`."

    def find(self, context: Context) -> str | None:
        found = shutil.which("claude", path=context.environ.get("PATH", os.defpath))
        return None if found is None else str(Path(found).absolute())

    def unavailable(self, context: Context, declared: frozenset[str] = frozenset()) -> CodeprobeError | None:
        if self.find(context) is None:
            message = "agent claude: `claude` is not on PATH"
            return CodeprobeError("NO_BACKENDS_CONFIGURED", message, remediation=self.install_hint, detail={"agent": self.name})
        if (cloud := access.cloud_of(context, access.named(declared))) is not None:
            return clouds.no_credentials(cloud, context, declared)
        has_key = any(context.environ.get(name) or name in declared for name in KEYS)
        if not has_key and stored_login(context.environ) is None:
            return CodeprobeError(
                "NO_BACKENDS_CONFIGURED",
                "agent claude has no credentials",
                remediation=f"Set one of {', '.join(sorted(KEYS))}, or log in with `claude /login`.",
                detail={"agent": self.name},
            )
        return None

    def credential_lives(self, context: Context, declared: frozenset[str] = frozenset()) -> Sequence[CredentialLife]:
        return access.lives(context, declared)

    def endpoints(self, trial: Trial, context: Context) -> Sequence[Endpoint]:
        return access.endpoints(trial, context)

    def problems(self, trial: Trial) -> Sequence[tuple[str, str]]:
        config = trial.agent
        found = []
        if config.system_prompt is not None and config.system_prompt_file is not None:
            found.append(("agent.system_prompt_file", "stands beside 'system_prompt'; give one of the two"))
        if config.effort is not None and config.effort not in _EFFORTS:
            found.append(("agent.effort", f"must be one of {', '.join(_EFFORTS)} for claude"))
        if trial.prompt is not None and not trial.prompt.strip():
            found.append(("initial_prompt", "is blank, which claude refuses"))
        found += mcp.problems(config.mcp_servers or {})
        return found

    def takes_away(self, config: AgentConfig, tool: str) -> bool:
        def covers(rule: str) -> bool:
            return rule == tool or (rule.startswith("mcp__") and tool.startswith(f"{rule}__"))

        denied = any(map(covers, _own_names(config.disallowed_tools or ())))  # with a pattern a rule takes only some calls away
        if config.allowed_tools is None:
            return denied
        return denied or not any(covers(rule.partition("(")[0]) for rule in _own_names(config.allowed_tools))

    def may_write(self, config: AgentConfig) -> bool:
        table = ClaudeTable.model_validate(config.table(self.name))
        return _permissions(config, table, isolates=False)[0] not in _READ_ONLY

    def paid_anyway(self, trial: Trial, context: Context, workspace: Path) -> str | None:
        table = ClaudeTable.model_validate(trial.agent.table(self.name))
        return access.paid_anyway(trial, context, table.settings or {}, workspace)

    def command(self, request: SessionRequest) -> SessionCommand:
        config = request.trial.agent
        table = ClaudeTable.model_validate(config.table(self.name))
        home = request.sandbox.home / ".claude"
        files: dict[Path, bytes] = {}
        mode, approved = _permissions(config, table, isolates=request.isolates)
        argv = [request.executable or "claude", "-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages"]
        argv += ["--setting-sources", ",".join(setting_sources(config)), "--strict-mcp-config", "--permission-mode", mode]
        servers = mcp.servers(config, request.sandbox.workspace)
        argv += _tools(config, approved, servers)
        argv += _options(config)
        argv += _limits(request)
        if request.exchange is not None and request.exchange.number > 1:
            argv += ["--resume", request.exchange.session_id]
        for option, content in _documents(request.trial, table).items():
            path = home / f"codeprobe{option.removeprefix('-')}"
            files[path] = content
            argv += [option, str(path)]
        env = {**_QUIET, "CLAUDE_CONFIG_DIR": str(home)}
        argv += _server_files(servers, home, files, env)
        if servers.declared:  # the CLI waits for them in silence, which must not be taken for the provider's
            env["MCP_TIMEOUT"] = str(int(1000 * min(_MCP_SECONDS, _MCP_PART * request.trial.limits.provider_patience)))
        if config.max_thinking_tokens is not None:
            env["MAX_THINKING_TOKENS"] = str(config.max_thinking_tokens)
        if mode == "bypassPermissions" and os.geteuid() == 0:
            env["IS_SANDBOX"] = "1"  # else the CLI refuses this mode for root
        secrets = _credentials(request, env, files, home)
        for name in {**request.trial.sandbox.env, **config.env}:
            if name != "CLAUDE_CONFIG_DIR":
                env.pop(name, None)  # what the task declares wins
        return SessionCommand(
            argv=(*argv, *config.args), env=env, stdin=request.prompt.encode("utf-8", "surrogatepass"), files=files, secrets=secrets
        )

    def parser(self, request: SessionRequest) -> ClaudeParser:
        servers = mcp.servers(request.trial.agent, request.sandbox.workspace)
        return ClaudeParser(request, type(self), declared=servers.declared)


def _permissions(config: AgentConfig, table: ClaudeTable, *, isolates: bool) -> tuple[str, tuple[str, ...]]:
    """The CLI's mode, and the tools that are approved beforehand where the task names none."""
    if table.permission_mode is not None:
        return table.permission_mode, ()
    if config.permission_mode != "auto":
        return _MODES[config.permission_mode], ()
    return ("bypassPermissions", ()) if isolates else ("acceptEdits", _PRE_APPROVED)


def _own_names(names: Sequence[str]) -> list[str]:
    """Neutral names as the CLI's; its own, with a pattern or without, stay as they are."""
    own: dict[str, None] = {}
    for name in names:
        if name.startswith("mcp:"):
            own[f"mcp__{name.removeprefix('mcp:')}"] = None
        else:
            plain, bracket, pattern = name.partition("(")
            own.update(dict.fromkeys(tool + bracket + pattern for tool in Claude.tool_names.get(plain, (plain,))))
    return list(own)


def _tools(config: AgentConfig, approved: Sequence[str], servers: mcp.Servers) -> list[str]:
    argv: list[str] = []
    denied = _own_names(config.disallowed_tools or ())
    if config.allowed_tools is not None:
        approved = _own_names(config.allowed_tools)
        offered = dict.fromkeys(name.partition("(")[0] for name in approved if not name.startswith("mcp__"))
        argv += ["--tools", ",".join(offered)]  # this says nothing of MCP tools
        denied += [rule for rule in servers.tools if not any(name == rule or name.startswith(f"{rule}__") for name in approved)]
    elif approved:
        approved = [*approved, *servers.tools]
    if approved:
        argv += ["--allowedTools", ",".join(approved)]
    if denied:
        argv += ["--disallowedTools", ",".join(denied)]
    return argv


def _options(config: AgentConfig) -> list[str]:
    given = {"--model": config.model, "--effort": config.effort}
    return [part for option, value in given.items() if value is not None for part in (option, value)]


def _limits(request: SessionRequest) -> list[str]:
    limits = request.trial.limits
    argv: list[str] = []
    if limits.max_turns is not None:
        # The CLI stops after its N-th reply with calls, without asking for the answer; ours lets the model come to its end.
        argv += ["--max-turns", str(limits.max_turns + 1)]
    if limits.max_usd is not None:
        argv += ["--max-budget-usd", str(limits.max_usd)]
    return argv


def _documents(trial: Trial, table: ClaudeTable) -> dict[str, bytes]:
    """What the CLI takes from files: no limit on length, and nothing to read in the process list."""
    config = trial.agent
    found: dict[str, bytes] = {}
    if config.system_prompt_file is not None:
        try:
            found["--system-prompt-file"] = Path(config.system_prompt_file).read_bytes()
        except OSError as error:
            raise CodeprobeError("TASK_INVALID", f"agent.system_prompt_file can't be read: {error}") from error
    elif config.system_prompt is not None:
        found["--system-prompt-file"] = config.system_prompt.encode("utf-8", "surrogatepass")
    if config.append_system_prompt is not None:
        found["--append-system-prompt-file"] = config.append_system_prompt.encode("utf-8", "surrogatepass")
    if table.settings is not None:
        found["--settings"] = json.dumps(table.settings).encode()
    return found


def _server_files(servers: mcp.Servers, home: Path, files: dict[Path, bytes], env: dict[str, str]) -> list[str]:
    """The option that names them; --strict-mcp-config leaves the workspace's out otherwise. Of one name the task's own counts."""
    argv = ["--mcp-config"]
    if servers.workspace_file is not None:
        argv.append(str(servers.workspace_file))
    if (document := servers.document()) is not None:
        path = home / mcp.FILE
        files[path] = document
        argv.append(str(path))
        if mcp.DOLLAR.encode() in document:
            env[mcp.DOLLAR] = "$"
    return argv if len(argv) > 1 else []


def _credentials(request: SessionRequest, env: dict[str, str], files: dict[Path, bytes], home: Path) -> frozenset[str]:
    """Hand the credential over, by environment or by file; returns the secret values.

    A stored login is among these even where it isn't used: a session whose driver doesn't isolate can read the user's file.
    """
    environ = request.context.environ
    declared = {**request.trial.sandbox.env, **request.trial.agent.env}
    if environ.get(BASE_URL):
        env[BASE_URL] = environ[BASE_URL]
    login = stored_login(environ) or {}
    stored = frozenset(filter(None, (text(login.get("accessToken")), text(login.get("refreshToken")))))
    if (cloud := access.cloud_of(request.context, declared)) is not None:
        handed = clouds.hand_over(cloud, environ, request.sandbox.home, declared)
        env.pop(BASE_URL, None)  # the cloud has one of its own
        env.update(handed.env)
        files.update({request.sandbox.home / name: content for name, content in handed.files.items()})
        return stored.union(handed.secrets)
    own = [declared[name] for name in KEYS if declared.get(name)]
    if own:  # the task's own credential, alone: two at once make the CLI choose
        return stored.union(own)
    given = {name: environ[name] for name in KEYS if environ.get(name)}
    if given:
        env.update(given)
        return stored.union(given.values())
    if login:
        # A session that refreshed its copy would make the user's own login void, and another session's too; the access token
        # alone is good for hours, and the CLI takes it without the other.
        files[home / ".credentials.json"] = json.dumps({"claudeAiOauth": {**login, "refreshToken": None}}).encode()
    return stored
