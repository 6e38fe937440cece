"""A scripted model server: a real HTTP server on loopback that speaks model providers' protocols and answers from a script.

In a test:

    write = ToolCall("Write", {"file_path": "{cwd}/hello.py", "content": "print('hello')\\n"})
    script = Script(turns=[Turn(calls=[write]), Turn(text="Done.")])
    with ModelServer([script]) as server:
        ...  # run a CLI with ANTHROPIC_BASE_URL=server.url
        assert server.stats.main == 2

As a command: `python -m tests.model_server --script FILE.json --port-file F` (see `scenario.py` for the file's form).

`scenario` is the data (scripts, turns, faults), `protocol` what a provider's protocol has to say, `anthropic` the first of them,
`engine` chooses the answer and keeps the books, `server` is the HTTP part. Scripts and faults know nothing of protocols.
"""

from __future__ import annotations

from tests.model_server.scenario import Fault, FaultKind, Scenario, ScenarioError, Script, ToolCall, Turn, Usage
from tests.model_server.server import ModelServer
from tests.model_server.stats import RequestRecord, Stats

__all__ = [
    "Fault",
    "FaultKind",
    "ModelServer",
    "RequestRecord",
    "Scenario",
    "ScenarioError",
    "Script",
    "Stats",
    "ToolCall",
    "Turn",
    "Usage",
]
