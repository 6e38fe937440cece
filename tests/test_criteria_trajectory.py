"""Criteria on what a session did: its tool calls, commands, skills and bills."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pytest_codeprobe.agents.base.transcripts import TranscriptBuilder
from pytest_codeprobe.criteria.labels import ClassificationMatch
from pytest_codeprobe.criteria.trajectory import (
    CommandExecuted,
    CommandNotExecuted,
    CommandOrder,
    CommandsEfficiency,
    Limits,
    SkillTriggered,
    ToolUsed,
    calls,
)
from pytest_codeprobe.criteria.trajectory.shell import simple_commands, words
from pytest_codeprobe.model.criterion import NotApplicable, Score
from pytest_codeprobe.model.result import AgentInfo, Usage
from pytest_codeprobe.model.transcript import Transcript
from pytest_codeprobe.options import RunOptions
from tests.fake_grading import FakeGrading

Made = tuple[str, Mapping[str, Any], str]  #: tool, arguments, "ok", "failed" or "" where no answer came


def bash(command: str, status: str = "ok") -> Made:
    return "Bash", {"command": command}, status


def transcript(*made: Made, agent: str = "claude", limit: int = 1 << 20) -> Transcript:
    builder = TranscriptBuilder("do it", limit=limit)
    for number, (tool, arguments, status) in enumerate(made):
        builder.call(builder.step("agent"), f"c{number}", tool, dict(arguments))
        if status:
            builder.result(f"c{number}", "answer", **({"failed": True} if status == "failed" else {}))
    return builder.build(AgentInfo(name=agent), Usage(), session_id="s")


def score(folder: Path, criterion: Any, *made: Made, agent: str = "claude", **more: Any) -> Score:
    more.setdefault("transcript", transcript(*made, agent=agent))
    found: Score = criterion.evaluate(FakeGrading(folder=folder, agent=agent, **more))
    return found


def make(kind: type[Any], **fields: Any) -> Any:
    return kind.model_validate({"type": kind.model_fields["type"].annotation.__args__[0], **fields})


# ---- command lines


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("npm test", ["npm test"]),
        ("cd app && npm test | tee log; echo $?", ["cd app", "npm test", "tee log", "echo $?"]),
        ("a&b||c\nd |& e", ["a", "b", "c", "d", "e"]),
        ("echo 'a; b' \"c && d\" e\\;f # g; h", ["echo 'a; b' \"c && d\" e\\;f"]),
        ("a#b; #c\nd", ["a#b", "d"]),
        ("make 2>&1 >&2 &>log >|x", ["make 2>&1 >&2 &>log >|x"]),
        ('echo "$(git push) `rm -r x`"', ['echo "$(git push) `rm -r x`"', "git push", "rm -r x"]),
        ("x=$(a $(b) 'c)' \")\"); y", ["x=$(a $(b) 'c)' \")\")", "a $(b) 'c)' \")\"", "b", "y"]),
        ("(cd a; b) && { c; }", ["cd a", "b", "c"]),
        ("if ! test -f x; then make; else :; fi", ["test -f x", "make", ":"]),
        ("for f in a b; do cat $f; done", ["for f in a b", "cat $f"]),
        ("bash -lc 'npm ci && npm test'", ["bash -lc 'npm ci && npm test'", "npm ci", "npm test"]),
        ('/usr/bin/env A=1 sh -e -c "git push"', ['/usr/bin/env A=1 sh -e -c "git push"', "git push"]),
        ("sh -c \"sh -c 'sh -c id'\"", ["sh -c \"sh -c 'sh -c id'\"", "sh -c 'sh -c id'", "sh -c id", "id"]),
        ("sh script -c x", ["sh script -c x"]),
        ("cat <<E > f; b\ngit push\nE\nc", ["cat <<E > f", "b", "c"]),
        ("cat <<-'E O'\n\tgit push\n\tE O\nc <<<x\nd", ["cat <<-'E O'", "c <<<x", "d"]),
        ("a \\\n  --b; c", ["a \\\n  --b", "c"]),
        ("echo 'open", ["echo 'open"]),
        ("$(", ["$("]),
        ("", []),
        (";;\n&&", []),
    ],
)
def test_a_command_line_is_taken_apart(line: str, parts: list[str]) -> None:
    assert simple_commands(line) == parts


@given(st.text(alphabet=st.sampled_from(list("ab \\'\"`$();&|<>\n#{}-EOF=")), max_size=60))
def test_any_command_line_is_taken(line: str) -> None:
    for part in simple_commands(line):
        assert part == part.strip()
        assert part
        words(part)


@given(st.lists(st.text(alphabet="abc-=/. ", min_size=1).filter(str.strip), min_size=1, max_size=6))
def test_quoted_words_hold_together(arguments: list[str]) -> None:
    import shlex

    line = shlex.join(["prog", *arguments])
    assert simple_commands(f"{line} && {line}; {line}") == [line] * 3
    assert words(line) == ["prog", *arguments]


def test_a_long_command_line_takes_no_time() -> None:
    began = time.process_time()
    for line in ("$(" * 50_000, "`" * 100_000, "a;" * 100_000, '"' * 100_001, "<<a\n" * 50_000, "sh -c 'x' ; " * 10_000):
        simple_commands(line)
    assert time.process_time() - began < 60  # hours, if it grew with the square


# ---- command_executed


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"command_pattern": "^npm test"}, 1),
        ({"command_pattern": "npm test$", "min_count": 4}, 0.5),
        ({"command_pattern": "^npm test", "max_count": 1}, 0),
        ({"command_pattern": "^npm test", "max_count": 2}, 1),
        ({"command_pattern": "npm", "exclude_pattern": "test"}, 1),
        ({"command_pattern": "npm test", "exclude_pattern": "tee"}, 1),
        ({"command_pattern": "cd app.*tee", "exclude_pattern": "log"}, 0),
        ({"command_pattern": "first.*last"}, 1),
        ({"command_pattern": "^make$"}, 1),
        ({"command_pattern": "^rm -rf /$"}, 1),
        ({"command_pattern": "^rm -rf /$", "require_success": True}, 0),
        ({"command_pattern": "README"}, 0),
        ({"command_pattern": "README", "tool_name": "Read"}, 1),
        ({"command_pattern": "README", "tool_name": "read"}, 1),
        ({"tool_name": "Bash", "min_count": 5}, 1),
        ({"tool_name": "shell", "min_count": 5}, 1),
        ({"tool_name": "search"}, 1),
        ({"tool_name": "Glob"}, 1),
        ({"tool_name": "Grep"}, 0),
        ({"tool_name": "mcp:docs"}, 1),
        ({"tool_name": "mcp:doc"}, 0),
        ({"tool_name": "mcp:docs__find", "command_pattern": '"query": "x"'}, 1),
        ({"tool_name": "mcp__docs__find"}, 1),
        ({"min_count": 8}, 1),
        ({"min_count": 0, "max_count": 0, "command_pattern": "git push"}, 1),
        ({"command_pattern": "late"}, 1),
    ],
)
def test_commands_are_counted(tmp_path: Path, fields: dict[str, Any], value: float) -> None:
    made = (
        bash("cd app && npm test | tee log"),
        bash("npm install; npm test"),
        bash("echo first \\\n  last"),
        bash("CFLAGS='-O2 -g' make"),
        bash("echo " + "x" * 100_000 + " late; rm -rf /", "failed"),
        ("Read", {"file_path": "README.md"}, "ok"),
        ("Glob", {"pattern": "*"}, ""),
        ("mcp__docs__find", {"query": "x"}, "ok"),
    )
    assert score(tmp_path, make(CommandExecuted, **fields), *made).value == value


def test_what_was_not_run(tmp_path: Path) -> None:
    guard = make(CommandNotExecuted, command_pattern="git push", exclude_pattern="--dry-run")
    assert score(tmp_path, guard, bash("git status"), bash("git push --dry-run")).value == 1
    hidden = score(tmp_path, guard, bash("git push --dry-run && git push"))
    assert (hidden.value, hidden.evidence["count"]) == (0, 1)
    assert "git push --dry-run && git push" in hidden.explanation
    assert score(tmp_path, make(CommandNotExecuted, tool_name="web"), ("WebFetch", {"url": "x"}, "failed")).value == 0
    assert score(tmp_path, guard).value == 1


def test_the_same_names_for_another_agent(tmp_path: Path) -> None:
    made = (("run", {"command": "npm test"}, "ok"), ("write", {"path": "a"}, "ok"))
    for name in ("shell", "Bash", "run"):
        assert score(tmp_path, make(CommandExecuted, tool_name=name, command_pattern="^npm"), *made, agent="scripted").value == 1
    assert score(tmp_path, make(ToolUsed, name="Write"), *made, agent="scripted").value == 1
    assert score(tmp_path, make(ToolUsed, name="Edit"), *made, agent="scripted").value == 0


def test_a_command_may_be_a_list_of_words(tmp_path: Path) -> None:
    made = ("Bash", {"command": ["bash", "-lc", "cd x && git push"]}, "ok")
    assert score(tmp_path, make(CommandExecuted, command_pattern="^git push$"), made).value == 1


def test_a_pattern_that_takes_for_ever_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SEARCH_SECONDS", 0.2)
    for kind in (CommandExecuted, CommandNotExecuted):
        found = score(tmp_path, make(kind, command_pattern=r"(a|aa)+$"), bash("a" * 200 + "!"))
        assert (found.value, "too long" in found.explanation) == (0, True)
    assert "too long" in score(tmp_path, make(CommandOrder, patterns=[r"(a|aa)+$"]), bash("a" * 200 + "!")).explanation


def test_a_transcript_that_is_cut_short_proves_no_absence(tmp_path: Path) -> None:
    cut = transcript(*[bash("git status")] * 100, limit=8000)
    guard, wanted = make(CommandNotExecuted, command_pattern="git push"), make(CommandExecuted, command_pattern="git status")
    assert "cut short" in score(tmp_path, guard, transcript=cut).explanation
    assert score(tmp_path, guard, transcript=cut).value == 0
    assert score(tmp_path, wanted, transcript=cut).value == 1
    assert score(tmp_path, make(CommandsEfficiency, expected_commands=500), transcript=cut).value == 0
    assert score(tmp_path, make(SkillTriggered, skill_name="x", expected=False), transcript=cut).value == 0
    with pytest.raises(NotApplicable, match="limit of the run"):
        score(tmp_path, guard, transcript=cut, options=RunOptions(trace_max_bytes=8000))


def test_where_nothing_is_known_of_calls_they_do_not_apply(tmp_path: Path) -> None:
    for kind, fields in ((CommandNotExecuted, {}), (CommandOrder, {"patterns": ["x"]}), (ToolUsed, {"name": "read"})):
        with pytest.raises(NotApplicable, match="tells nothing of its tool calls"):
            score(tmp_path, make(kind, **fields), agent="command")
        with pytest.raises(NotApplicable, match="no transcript"):
            score(tmp_path, make(kind, **fields), transcript=None)


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        (CommandExecuted, {"command_pattern": "("}, "not a regular expression"),
        (CommandExecuted, {"max_count": 0}, "use command_not_executed"),
        (CommandExecuted, {"min_count": 3, "max_count": 2}, "below 'min_count'"),
        (CommandExecuted, {"min_count": -1}, "greater than or equal to 0"),
        (CommandNotExecuted, {"min_count": 1}, "min_count"),
        (CommandOrder, {"patterns": []}, "at least 1"),
        (CommandOrder, {"patterns": ["("]}, "not a regular expression"),
        (CommandsEfficiency, {"expected_commands": 0}, "greater than 0"),
        (ToolUsed, {}, "either 'name' or 'mcp'"),
        (ToolUsed, {"name": "a", "mcp": "b"}, "either 'name' or 'mcp'"),
        (ToolUsed, {"name": "a", "max": 0}, "below 'min'"),
        (Limits, {}, "needs one of"),
        (SkillTriggered, {"skill_name": ""}, "at least 1"),
        (SkillTriggered, {"skill_name": "a", "expected": True, "expected_skill": "a"}, "not both"),
        (ClassificationMatch, {"expected_label": "a"}, "either 'path' or 'answer: true'"),
        (ClassificationMatch, {"expected_label": "a", "path": "x", "answer": True}, "either 'path' or 'answer: true'"),
        (ClassificationMatch, {"expected_label": "a", "path": "../x"}, "leaves the workspace"),
        (ClassificationMatch, {"expected_label": "a", "path": "x", "allowed_labels": []}, "at least 1"),
        (ClassificationMatch, {"expected_label": "a", "path": "x", "allowed_labels": ["b"]}, "none of 'allowed_labels'"),
        (ClassificationMatch, {"expected_label": "a", "path": "x", "allowed_labels": ["a", "A"]}, "'A' twice"),
        (ClassificationMatch, {"expected_label": True, "path": "x"}, "put it in quotes"),
    ],
)
def test_what_is_wrong_is_refused_at_load(kind: type[Any], fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        make(kind, **fields)


# ---- order, efficiency, tools, limits


@pytest.mark.parametrize(
    ("patterns", "value"),
    [
        (["^npm ci", "^npm test", "git commit"], 1),
        (["git commit", "^npm ci", "^npm test"], 2 / 3),
        (["^npm test", "^npm ci"], 0.5),
        (["nothing"], 0),
        (["npm", "npm"], 1),
        (["npm", "npm", "npm"], 2 / 3),
    ],
)
def test_order(tmp_path: Path, patterns: list[str], value: float) -> None:
    made = (bash("cd x && npm ci"), ("Read", {"file_path": "git commit"}, "ok"), bash("npm test; git commit -am x"))
    assert score(tmp_path, make(CommandOrder, patterns=patterns), *made).value == pytest.approx(value)


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from("abc"), min_size=1, max_size=5))
def test_order_is_the_longest_common_subsequence(events: list[str], patterns: list[str]) -> None:
    from itertools import combinations

    from pytest_codeprobe.criteria.trajectory.commands import _longest

    def holds(wanted: tuple[str, ...]) -> bool:
        rest = iter(events)
        return all(any(event == one for event in rest) for one in wanted)

    best = max(n for n in range(len(patterns) + 1) if n == 0 or any(holds(c) for c in combinations(patterns, n)))
    kept = _longest([[event == pattern for pattern in patterns] for event in events], len(patterns))
    assert kept.bit_count() == best
    assert holds(tuple(p for n, p in enumerate(patterns) if kept >> n & 1))


def test_efficiency_and_tools(tmp_path: Path) -> None:
    made: tuple[Made, ...] = (bash("a"), bash("b"), ("Read", {"file_path": "x"}, "ok"), ("mcp__docs__find", {}, "failed"))
    assert score(tmp_path, make(CommandsEfficiency, expected_commands=4), *made).value == 1
    assert score(tmp_path, make(CommandsEfficiency, expected_commands=3), *made).value == 0.75
    assert score(tmp_path, make(CommandsEfficiency, expected_commands=3)).value == 1
    assert score(tmp_path, make(ToolUsed, mcp="docs"), *made).value == 1
    assert score(tmp_path, make(ToolUsed, name="shell", min=3), *made).value == pytest.approx(2 / 3)
    assert score(tmp_path, make(ToolUsed, name="shell", max=1), *made).value == 0
    assert score(tmp_path, make(ToolUsed, name="edit", min=0, max=0), *made).value == 1


def test_limits(tmp_path: Path) -> None:
    usage = Usage(input_tokens=90, output_tokens=10, cost_usd=0.5, turns=3)
    held = make(Limits, max_usd=0.5, max_tokens=100, max_turns=3, max_seconds=2)
    assert score(tmp_path, held, usage=usage, session_seconds=2.0).value == 1
    over = score(tmp_path, held, usage=usage, session_seconds=2.5)
    assert (over.value, over.explanation) == (0, "seconds: 2.5, above 2")
    assert score(tmp_path, make(Limits, max_usd=0, max_turns=9), usage=usage).value == 0
    with pytest.raises(NotApplicable, match="not known: usd"):
        score(tmp_path, make(Limits, max_usd=1), usage=Usage())


# ---- skills


@pytest.mark.parametrize(
    "made",
    [
        ("Skill", {"skill": "review"}, "ok"),
        ("Skill", {"skill": "team:review", "args": "now"}, ""),
        ("Skill", {"command": "/review now"}, "ok"),
        ("Read", {"file_path": "/w/.claude/skills/review/SKILL.md"}, "ok"),
        ("Read", {"file_path": ".agents/skills/review/./skill.md"}, "ok"),
        bash("cat .claude/skills/review/SKILL.md"),
        bash("ls && sed -n '1,200p' skills/review/SKILL.md | head"),
        bash("cd skills/review && cat SKILL.md"),
        bash("cd skills; LC_ALL=C sudo less 'review/SKILL.md'"),
        bash("bash -lc 'cat skills/*/SKILL.md'"),
        bash("while read l; do :; done < skills/review/SKILL.md"),
    ],
)
def test_a_skill_that_was_used(tmp_path: Path, made: Made) -> None:
    found = score(tmp_path, make(SkillTriggered, skill_name="review"), made)
    assert (found.value, found.evidence["expected_label"], found.evidence["observed_label"]) == (1, "yes", "yes")
    assert score(tmp_path, make(SkillTriggered, skill_name="review", expected_skill="other"), made).value == 0


@pytest.mark.parametrize(
    "made",
    [
        ("Skill", {"skill": "reviewer"}, "ok"),
        ("Skill", {"skill": "review"}, "failed"),
        ("Skill", {"skill": "other", "args": "review"}, "ok"),
        ("Read", {"file_path": "skills/review/reference.md"}, "ok"),
        ("Read", {"file_path": "skills/reviewer/SKILL.md"}, "ok"),
        ("Read", {"file_path": "SKILL.md"}, "ok"),
        ("Read", {"file_path": "skills/review/SKILL.md"}, "failed"),
        ("Write", {"file_path": "skills/review/SKILL.md", "content": "x"}, "ok"),
        ("Grep", {"pattern": "skills/review/SKILL.md"}, "ok"),
        bash("ls skills/review/"),
        bash("ls -l skills/review/SKILL.md; echo cat skills/review/SKILL.md"),
        bash("test -f skills/review/SKILL.md && grep -l x skills/review/SKILL.md"),
        bash("cat template > skills/review/SKILL.md"),
        bash("cat skills/review/SKILL.md", "failed"),
        bash("cd skills/other && cat SKILL.md"),
    ],
)
def test_a_path_that_only_has_the_name_in_it_is_no_use_of_the_skill(tmp_path: Path, made: Made) -> None:
    found = score(tmp_path, make(SkillTriggered, skill_name="review", expected=False), made)
    assert (found.value, found.evidence["observed_label"], found.explanation) == (1, "no", "skill 'review' was not used")
    assert score(tmp_path, make(SkillTriggered, skill_name="review", expected_skill="review"), made).value == 0
    assert score(tmp_path, make(SkillTriggered, skill_name="review", expected_skill=None), made).value == 1


def test_a_skill_of_a_plugin_is_that_plugins(tmp_path: Path) -> None:
    mine = make(SkillTriggered, skill_name="team:review")
    assert score(tmp_path, mine, ("Skill", {"skill": "team:review"}, "ok")).value == 1
    assert score(tmp_path, mine, ("Skill", {"skill": "review"}, "ok")).value == 0


def test_those_that_classify_say_so() -> None:
    assert SkillTriggered.classifies
    assert ClassificationMatch.classifies
    assert not CommandExecuted.classifies


def test_a_secret_is_gone_before_anything_is_cut_off(tmp_path: Path) -> None:
    class Redacting(FakeGrading):
        def redact(self, text: str) -> str:
            return text.replace("s3cret" * 20, "***")

    grading = Redacting(folder=tmp_path, agent="claude", transcript=transcript(bash("echo " + "x" * 60 + "s3cret" * 20)))
    found = make(CommandExecuted, command_pattern="echo").evaluate(grading)
    assert "s3cret" not in found.explanation + str(found.evidence)
