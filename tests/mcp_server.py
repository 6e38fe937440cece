"""A small MCP server on standard input and output, as a task may declare one: `python mcp_server.py TOOL...`.

Each tool answers with the arguments that it was called with and the variables of its environment whose names begin with MCP_.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def answer(method: str, params: dict[str, Any], tools: list[str]) -> dict[str, Any] | None:
    """The result of a request; None for one that is not known."""
    if method == "initialize":
        version = params.get("protocolVersion", "2025-06-18")
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "test", "version": "1"}}
    if method == "tools/list":
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        return {"tools": [{"name": tool, "description": f"The tool {tool}.", "inputSchema": schema} for tool in tools]}
    if method == "tools/call":
        environment = {name: value for name, value in os.environ.items() if name.startswith("MCP_")}
        said = {"tool": params.get("name"), "arguments": params.get("arguments"), "environment": environment, "cwd": str(Path.cwd())}
        return {"content": [{"type": "text", "text": json.dumps(said)}]}
    return {} if method == "ping" else None


def main(tools: list[str]) -> None:
    """Serve until standard input ends."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = answer(message["method"], message.get("params") or {}, tools)
        rest: dict[str, Any] = {"result": result} if result is not None else {"error": {"code": -32601, "message": "unknown"}}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **rest}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
