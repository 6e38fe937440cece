"""Parsers and transcripts on output that nobody vouches for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_codeprobe.agents import BUILTIN
from pytest_codeprobe.agents.claude import Claude
from pytest_codeprobe.model.agent import Agent, SessionParser
from pytest_codeprobe.text import json_line
from tests.agent_sessions import checked_transcript, ended, make_request

RECORDED = [
    json.loads(line)
    for name in ("subagent", "permission_denied", "cut_once", "401", "unknown_model")
    for line in (Path(__file__).parent / "data" / "claude" / f"{name}.jsonl").read_bytes().splitlines()
]
NUMBERS = st.integers() | st.floats() | st.sampled_from([-1, 2**63, 10**400])
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | NUMBERS
    | st.text(st.characters(codec=None))
    | st.sampled_from(["", "\ud800", "\x00", "\x1b[2J", "a" * 500]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec=None), max_size=8), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A recorded line in which some values are something else."""
    line = json.loads(json.dumps(draw(st.sampled_from(RECORDED))))
    for _ in range(draw(st.integers(0, 3))):
        place: Any = line
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and place[key] and draw(st.integers(0, 3)):
                place = place[key]
                continue
            place[key] = draw(ANYTHING)
            break
    return json.dumps(line).encode("utf-8", "surrogatepass")


@st.composite
def scripted_event(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from(["call", "result", "say", "usage", "fail", "end"]) | ANYTHING)
    names = st.sampled_from(["id", "tool", "arguments", "content", "failed", "text", "usage", "code"])
    return json.dumps({"event": kind, **draw(st.dictionaries(names, ANYTHING))}).encode("utf-8", "surrogatepass")


#: one for each kind of parser: nop, oracle and none have one
PARSERS = [agent for agent in BUILTIN if agent.name not in ("oracle", "none")]
LINES = st.lists(
    mutated() | scripted_event() | st.binary(max_size=200) | st.builds(lambda v: json.dumps({"type": v}).encode(), ANYTHING), max_size=15
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


def fresh(agent: Agent, folder: Path) -> SessionParser:
    return agent.parser(make_request(folder, {"command": ["x"]}, prompt="\ud800 prompt \x00"))


@settings(max_examples=80, deadline=None)
@given(
    LINES, st.sampled_from([None, "final", "auth", "patience", "task_timeout", "stopped:interrupt"]), st.sampled_from([0, 1, -9, 143, None])
)
@pytest.mark.parametrize("agent", PARSERS, ids=lambda agent: agent.name)
def test_any_output_gives_a_valid_transcript(
    folder: Path, agent: Agent, lines: list[bytes], stopped_for: str | None, status: int | None
) -> None:
    parser = fresh(agent, folder)
    for number, line in enumerate(lines):
        parser.feed(line)
        if number == 5:
            parser.oversized(123, 9 << 20)
        assert all(n is None or n >= 0 for n in parser.usage().model_dump().values() if not isinstance(n, str))
    end = parser.end(ended(status), stopped_for=stopped_for, stderr_tail="\x1b[31m\udcff boom")
    transcript = checked_transcript(parser)
    assert transcript.steps
    for text in (
        json_line(transcript.model_dump(mode="json")),
        json_line(parser.usage().model_dump()),
        json_line(parser.info().model_dump()),
    ):
        json.loads(text)
    json_line([end.reason, parser.final_message(), *parser.warnings])
    if stopped_for == "stopped:interrupt" and agent.name != "scripted":
        assert end.code is None


def test_deep_and_huge_json_is_kept_as_it_came(folder: Path) -> None:
    parser = fresh(Claude(), folder)
    for line in (b"{" + b'"a":{' * 100_000, b'{"a":' + b"[" * 100_000, b'{"n":' + b"9" * 5000 + b"}", b"\xff\xfe{", b"{}x"):
        parser.feed(line)
    (raw,) = [step for step in checked_transcript(parser).steps if (step.extra or {}).get("raw")][
        2:
    ]  # the long ones are steps of their own
    assert raw.message.splitlines()[1:] == ["\\xff\\xfe{", "{}x"]


def test_nul_and_escapes_survive_and_lone_surrogates_are_spelt_out(folder: Path) -> None:
    parser = fresh(Claude(), folder)
    block = '{"type":"text","text":"a\\u0000b\\u001b[31m\\ud800 \\ud83d\\ude00"}'
    parser.feed(f'{{"type":"assistant","message":{{"id":"x","content":[{block}]}}}}'.encode())
    assert checked_transcript(parser).steps[-1].message == "a\0b\x1b[31m\\ud800 😀"


def test_an_oversized_line_is_a_raw_step_and_a_warning(folder: Path) -> None:
    parser = fresh(Claude(), folder)
    parser.oversized(17, 100_000_000)
    step = checked_transcript(parser).steps[-1]
    assert step.extra == {"raw": True, "offset": 17, "length": 100_000_000}
    assert any("1 lines" in warning for warning in parser.warnings)
