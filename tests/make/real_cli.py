"""The part of the demo that runs the real CLI, in a process of its own because it may live in a network namespace of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.make.demo import Run, pytest_run, require
from tests.make.project import ROOT, MakeError, clean_environ, say
from tests.model_server.scenario import Script, ToolCall, Turn, Usage
from tests.model_server.server import ModelServer

TASK = "write-wordfreq-cli"
LINES = 8


def script() -> Script:
    """The model's side of the session: look, write the program, try it, report."""
    program = (ROOT / "tasks" / TASK / "solution" / "wordfreq.py").read_text(encoding="utf-8")
    return Script(
        turns=(
            Turn("I look at what is there.", (ToolCall("Bash", {"command": "ls -l && head -3 poem.txt"}),), Usage(input=2100, output=60)),
            Turn(
                "A small program with argparse and a regular expression will do.",
                (ToolCall("Write", {"file_path": "{cwd}/wordfreq.py", "content": program}),),
                Usage(input=300, output=520, cache_read=2100),
            ),
            Turn(
                "Now I try it.",
                (ToolCall("Bash", {"command": "python wordfreq.py --top 3 poem.txt"}),),
                Usage(input=640, output=40, cache_read=2400),
            ),
            Turn(
                "`wordfreq.py` is written; its three most frequent words of the poem are the, rain and all.",
                (),
                Usage(input=90, output=45, cache_read=3000),
            ),
        )
    )


def main(python: Path) -> int:
    """Serve the script, run the task, show cost and transcript; 0 when the task passed."""
    with ModelServer([script()], api_key="sk-ant-of-the-demo") as server:
        environ = clean_environ() | {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "sk-ant-of-the-demo"}
        run = pytest_run(python, [f"tasks/{TASK}/task.yaml", "--codeprobe-agent", "claude"], environ)
        served = server.stats.as_json()
    try:
        require(run, 0, total=1, passed=1)
        _require_tokens(run, served)
    except MakeError as error:
        say(str(error))
        return 1
    _show(run, served)
    return 0


def _require_tokens(run: Run, served: dict[str, Any]) -> None:
    counted = {name.removesuffix("_tokens"): number for name, number in run.envelope["data"]["tokens"].items()}
    if counted != served["tokens"] or served["problems"]:
        raise MakeError(f"the server sent {served['tokens']} tokens, and {counted} were counted; its problems: {served['problems']}")


def _show(run: Run, served: dict[str, Any]) -> None:
    (path,) = run.folder.glob("trials/**/transcript.json")
    data = run.envelope["data"]
    for line in readable(json.loads(path.read_text(encoding="utf-8"))):
        say(line)
    say(f"cost:       ${data['cost_usd']:.4f}, by the CLI's own count")
    say(f"tokens:     {json.dumps(data['tokens'])}; the server sent {json.dumps(served['tokens'])}")
    say(f"transcript: {path.relative_to(ROOT)}")


def readable(transcript: dict[str, Any]) -> Iterator[str]:
    """A transcript as a person reads it, long texts cut."""
    for step in transcript["steps"]:
        if step.get("message"):
            yield from _block(step["source"], step["message"])
        for call in step.get("tool_calls") or ():
            yield from _block("  call", f"{call['function_name']} {json.dumps(call['arguments'], ensure_ascii=False)}"[:300])
        for result in (step.get("observation") or {}).get("results", ()):
            yield from _block("  result", str(result.get("content") or ""))


def _block(label: str, text: str) -> Iterator[str]:
    lines = text.strip().splitlines()
    for number, line in enumerate(lines[:LINES]):
        yield f"  {label if number == 0 else '':<9}| {line[:140]}"
    if len(lines) > LINES:
        yield f"  {'':<9}| … {len(lines) - LINES} more lines"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
