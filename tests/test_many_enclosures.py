"""Many trials under bubblewrap at once: every one starts, and with a network of its own none is in another's way."""

from __future__ import annotations

import os

import pytest

from tests import containers
from tests.front_door import Project, scripted
from tests.process_watch import mounts_below, private_folders

DRIVER = "--codeprobe-driver=bubblewrap"
AT_ONCE = 64
ROUNDS = int(os.environ.get("CP_START_ROUNDS", "2"))
PORT = 8000
#: serves its own name on the port, for as long as all others do, and asks what is there
SERVE = f"""
import http.server, os, threading, time, urllib.request
class Own(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(os.environ["NAME"].encode())
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", {PORT}), Own)
threading.Thread(target=server.serve_forever, daemon=True).start()
time.sleep(1)
print(urllib.request.urlopen("http://127.0.0.1:{PORT}").read().decode())
"""


def test_64_starts_at_once(project: Project) -> None:
    """pre_run, session and grader of each are one enclosure; CP_START_ROUNDS times 64 of them."""
    for number in range(AT_ONCE * ROUNDS):
        project.task(
            f"t{number:04}",
            pre_run=[{"command": "echo x > before.txt"}],
            agent=scripted({"run": "cat before.txt > out.txt"}),
            success_criteria=[{"type": "run_command", "command": "cmp before.txt out.txt"}],
        )
    run = project.run("tasks", "--codeprobe-agent=scripted", DRIVER, f"--codeprobe-jobs={AT_ONCE}", seconds=60 + 15 * ROUNDS)
    run.assert_consistent()
    others = {name: run.finished[name]["reason"] for name, status in run.statuses.items() if status != "passed"}
    assert not others
    assert len(run.statuses) == AT_ONCE * ROUNDS
    run.assert_nothing_left()
    assert private_folders(project) == []
    assert mounts_below(project.scratch) == []


@pytest.mark.parametrize(("driver", "network"), [("bubblewrap", "off"), ("docker", "on")])
def test_ten_trials_want_the_same_port(project: Project, driver: str, network: str) -> None:
    """Sessions and graders."""
    engine = containers.use(project) if driver == "docker" else None
    template = [{"type": "starter_files", "files": [{"path": "serve.py", "content": SERVE}]}]
    for number in range(10):
        name = f"t{number}"
        project.task(
            name,
            agent={"type": "command", "command": ["sh", "-c", "python3 serve.py > out.txt"]},
            sandbox={"network": network, "env": {"NAME": name}, "template_sources": template},
            success_criteria=[
                {"type": "file_contains", "path": "out.txt", "includes": [name]},
                {"type": "run_command", "command": "python serve.py", "expected_stdout": name},
            ],
        )
    run = project.run("tasks", "--codeprobe-agent=command", f"--codeprobe-driver={driver}", "--codeprobe-jobs=10").assert_consistent()
    assert run.statuses == {f"t{number}": "passed" for number in range(10)}, run.output
    assert engine is None or not containers.of(engine, run)
