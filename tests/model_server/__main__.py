"""`python -m tests.model_server --script FILE.json --port-file F`: serve a scenario until a signal comes or the starter is gone.

The port is written to the port file (whole: temporary name, then rename) once the server listens; nothing is printed. Ends with code 0
on SIGTERM and SIGINT, and by itself when its parent process has ended.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from tests.model_server.scenario import ScenarioError, load
from tests.model_server.server import ModelServer

PARENT_LOOKS_SECONDS = 0.5


def main(argv: list[str] | None = None) -> int:
    """Run the command; 2 when the script file can't be used."""
    parser = argparse.ArgumentParser(prog="python -m tests.model_server", description="A scripted model server on 127.0.0.1.")
    parser.add_argument("--script", type=Path, required=True, metavar="FILE", help="the scenario, JSON")
    parser.add_argument("--port-file", type=Path, required=True, metavar="FILE", help="where to write the port that was chosen")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="the port (default: a free one)")
    parser.add_argument("--api-key", metavar="KEY", help="answer any other credential with 401")
    options = parser.parse_args(argv)
    try:
        scenario = load(options.script)
    except ScenarioError as error:
        parser.error(str(error))
    parent = os.getppid()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with ModelServer(scenario, api_key=options.api_key, port=options.port) as server:
        draft = options.port_file.with_name(f"{options.port_file.name}.{os.getpid()}")
        draft.write_text(f"{server.port}\n", encoding="ascii")
        draft.replace(options.port_file)
        while not stop.wait(PARENT_LOOKS_SECONDS):
            if os.getppid() != parent:
                break
    return 0


if __name__ == "__main__":
    sys.exit(main())
