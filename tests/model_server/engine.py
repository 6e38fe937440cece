"""Chooses what a request gets: which script, which turn, which fault. No HTTP here and no protocol."""

from __future__ import annotations

import re
import threading
from collections import Counter
from typing import Any

from tests.model_server.protocol import Answer, Call, Conversation
from tests.model_server.scenario import Fault, Scenario, Script, Turn

_NONCE = re.compile(r"(?:canary|probe)-[0-9a-f]{16}")  #: what the built-in canary asks an agent to repeat


class ScriptMistake(Exception):
    """The script doesn't fit the request; the message says how."""


class Engine:
    """The scenario at work. Its only state is how often each fault has looked at a request and struck."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._lock = threading.Lock()
        self._seen: Counter[tuple[str, int, str]] = Counter()
        self._struck: Counter[tuple[str, int, str]] = Counter()

    def choose(self, conversation: Conversation) -> tuple[Script | None, Turn]:
        """The script and the turn for a request; no script for a side request. Raises ScriptMistake when none fits."""
        script = self._scenario.script_for(conversation.first_message, conversation.system, tools=bool(conversation.tools))
        if script is None and not conversation.tools:
            return None, self._scenario.side
        if script is None:
            raise ScriptMistake(f"no script for the prompt {conversation.first_message[-200:]!r}")
        return script, script.turn(conversation.replies)

    def fault(self, conversation: Conversation, script: Script | None) -> Fault | None:
        """The fault that strikes this request, if any; the script's own come first."""
        kind = "main" if script else "side"
        owners = [(f"script {script.key}", script.faults)] if script else []
        owners.append(("server", self._scenario.faults))
        with self._lock:
            for owner, faults in owners:
                for place, fault in enumerate(faults):
                    if fault.where in (kind, "all") and fault.turn in (None, conversation.replies):
                        count = (owner, place, conversation.session if fault.per == "session" else "")
                        if self._strikes(fault, count):
                            return fault
        return None

    def _strikes(self, fault: Fault, count: tuple[str, int, str]) -> bool:
        self._seen[count] += 1
        if self._seen[count] <= fault.skip or (fault.times is not None and self._struck[count] >= fault.times):
            return False
        self._struck[count] += 1
        return True


def answer_for(turn: Turn, conversation: Conversation) -> Answer:
    """Fill a turn in for a request. Raises ScriptMistake for a tool that isn't offered or a placeholder without value."""
    calls = []
    for call in turn.calls:
        if call.offered and call.tool not in conversation.tools:
            raise ScriptMistake(f"the scripted tool {call.tool!r} is not offered; offered are {', '.join(conversation.tools)}")
        calls.append(Call(call.tool, {name: _filled(value, conversation) for name, value in call.arguments.items()}))
    return Answer(conversation.model, _filled(turn.text, conversation), tuple(calls), turn.usage)


def _filled(value: Any, conversation: Conversation) -> Any:
    if isinstance(value, str):
        if "{cwd}" in value and not conversation.cwd:
            raise ScriptMistake("the script uses {cwd}, but the request names no working directory")
        nonce = _NONCE.search(conversation.first_message) or _NONCE.search(conversation.messages)
        if "{nonce}" in value and nonce is None:
            raise ScriptMistake("the script uses {nonce}, but there is none in the prompt, nor in what a tool has read")
        return value.replace("{cwd}", conversation.cwd).replace("{nonce}", nonce[0] if nonce else "")
    if isinstance(value, list):
        return [_filled(item, conversation) for item in value]
    if isinstance(value, dict):
        return {name: _filled(item, conversation) for name, item in value.items()}
    return value
