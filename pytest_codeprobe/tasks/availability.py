"""What the task format knows and this version does not do yet, said where a task or a flag asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pytest_codeprobe.errors import CodeprobeError, did_you_mean
from pytest_codeprobe.tasks.problems import FieldPath, shown
from pytest_codeprobe.tasks.task import Task

KNOWN_CRITERIA = frozenset((
    "file_exists", "file_contains", "file_matches_regex", "file_check", "json_check", "run_command", "test_script", "pytest",
    "checkpoints", "answer_match", "dual", "reference_comparison", "diff_check", "command_executed", "command_not_executed",
    "command_order", "commands_efficiency", "cli_called", "skill_triggered", "tool_used", "classification_match",
    "answer_contains", "limits", "llm_judge", "agent_judge", "python",
))  # fmt: skip
#: criteria of other systems that only these can hold, and why
_ELSEWHERE: Mapping[str, str] = {
    "uipath_eval": "it is graded by that vendor's own program; a run_command with score_from_stdout can call it",
    "system_one_judge": "it asks a service of one vendor; llm_judge with a rubric is what asks any model",
}
KNOWN_AGENTS = frozenset((
    "claude", "codex", "opencode", "pi", "gemini", "qwen", "copilot", "mini-swe-agent", "aider", "acp", "command", "scripted",
    "oracle", "nop", "none",
))  # fmt: skip
KNOWN_DRIVERS = frozenset(("auto", "tempdir", "bubblewrap", "docker"))

Found = Iterator[tuple[FieldPath, str]]


def why_no_criterion(kind: str, known: Iterable[str]) -> str:
    """Why there is no criterion of a type, as a sentence; `known` are those that there are."""
    if (why := _ELSEWHERE.get(kind)) is not None:
        return f"criterion {kind!r} is not available yet: {why}"
    if kind in KNOWN_CRITERIA:
        return f"criterion {kind!r} is not available yet"
    return f"unknown criterion {kind!r}{did_you_mean(kind, {*known, *KNOWN_CRITERIA})}"


def check_driver(name: str, drivers: Iterable[str], spelled: str) -> None:
    """USAGE_ERROR if an option asks for a driver that neither a plugin nor the format knows; `spelled` is how it was given."""
    known = {*drivers, *KNOWN_DRIVERS}
    if name not in known:
        planned = did_you_mean(name, KNOWN_DRIVERS).replace("?)", ", which is not available yet?)")
        raise CodeprobeError(
            "USAGE_ERROR",
            f"{spelled}: unknown driver {name!r}{did_you_mean(name, {'auto', *drivers}) or planned}",
            remediation=f"Choose one of: auto, {', '.join(sorted(drivers))}.",
            detail={"driver": name, "known": sorted(known), "available": sorted({"auto", *drivers})},
        )


def of_task(task: Task) -> Found:
    """Fields of the task itself: where, and a sentence."""
    asked: dict[str, bool] = {
        "gateway": task.gateway != "auto",
    }
    for name, is_asked in asked.items():
        if is_asked:
            value = getattr(task, name)
            yield (name,), f"{name}{f': {shown_plain(value)}' if isinstance(value, int | str) else ''} is not available yet"


def shown_plain(value: Any) -> str:
    """A value without the quotes of Python: `off`, `3`, `[a, b]`."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(shown_plain(v) for v in value)}]"
    return value if isinstance(value, str) else shown(value)
