from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model_server import Fault, Scenario, ScenarioError, Script, ToolCall, Turn, Usage
from tests.model_server.scenario import load, parse

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = Script(turns=[Turn("Done.", usage=Usage(101, 53, 307, 211))])
REQUEST = {"model": "m1", "stream": True, "tools": [{"name": "Bash"}], "messages": [{"role": "user", "content": "Do it."}]}

usages = st.builds(Usage, *(st.integers(0, 10**9) for _ in range(4)))
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=2)
)
calls = st.builds(ToolCall, st.text(max_size=8), st.dictionaries(st.text(max_size=5), values, max_size=2), st.booleans())
turns = st.builds(Turn, st.text(max_size=8), st.lists(calls, max_size=2).map(tuple), usages, st.floats(0, 9), st.floats(0, 9))
faults = st.builds(Fault, st.sampled_from(["status", "cut", "slow", "empty"]), st.integers(400, 599), st.none() | st.integers(0, 9))
scripts = st.builds(
    Script, st.lists(turns, min_size=1, max_size=3).map(tuple), st.text(max_size=5), st.lists(faults, max_size=2).map(tuple), st.booleans()
)


@given(st.builds(Scenario, st.lists(scripts, max_size=2).map(tuple), st.lists(faults, max_size=2).map(tuple), turns))
def test_a_scenario_survives_json(scenario: Scenario) -> None:
    assert parse(json.loads(json.dumps(asdict(scenario)))) == scenario


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "scenario: an object is needed"),
        ({}, "scenario: scripts is missing"),
        ({"scripts": [{"turns": []}]}, r"scripts\[0\]: a script needs at least one turn"),
        ({"scripts": [{"turns": [{"txt": "x"}]}]}, r"scripts\[0\]\.turns\[0\]: unknown field 'txt'"),
        ({"scripts": [{"turns": [{"calls": [{"arguments": {}}]}]}]}, r"scripts\[0\]\.turns\[0\]\.calls\[0\]: tool is missing"),
        ({"scripts": [{"turns": [{}], "faults": [{"kind": "fire"}]}]}, r"scripts\[0\]\.faults\[0\]\.kind: one of status"),
        ({"scripts": [{"turns": [{}], "faults": [{"kind": "refused"}]}]}, "refused is a fault of the whole server"),
        ({"scripts": {}}, "scripts: a list is needed"),
    ],
)
def test_a_wrong_scenario_names_the_place(data: Any, message: str, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ScenarioError, match=message):
        load(file)


# -- as a command


@contextmanager
def command(tmp_path: Path, scenario: Scenario) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    script, port_file = tmp_path / "script.json", tmp_path / "port"
    script.write_text(json.dumps(asdict(scenario)), encoding="utf-8")
    argv = [sys.executable, "-m", "tests.model_server", "--script", str(script), "--port-file", str(port_file)]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            deadline = time.monotonic() + 30
            while not port_file.exists():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield process, int(port_file.read_text(encoding="ascii"))
        finally:
            process.kill()


def test_the_command_serves_prints_nothing_and_ends_on_a_signal(tmp_path: Path) -> None:
    with command(tmp_path, Scenario([SCRIPT])) as (process, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", "/v1/messages", json.dumps(REQUEST))
        assert b"message_stop" in connection.getresponse().read()
        connection.request("GET", "/_stats")
        assert json.loads(connection.getresponse().read())["tokens"]["output"] == 53
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=20)[0] == b""
        assert process.returncode == 0


def test_the_command_refuses_a_wrong_script(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("{", encoding="utf-8")
    argv = [sys.executable, "-m", "tests.model_server", "--script", str(tmp_path / "s.json"), "--port-file", str(tmp_path / "p")]
    done = subprocess.run(argv, check=False, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "s.json: Expecting" in done.stderr
