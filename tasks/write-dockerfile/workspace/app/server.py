"""Says what time it is, over HTTP."""

import json
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def answer(path: str) -> tuple[int, dict[str, str]]:
    if path == "/healthz":
        return 200, {"status": "ok"}
    if path == "/time":
        return 200, {"time": datetime.now(UTC).isoformat()}
    return 404, {"error": "not found"}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = answer(self.path)
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    ThreadingHTTPServer(("", 8080), Handler).serve_forever()


if __name__ == "__main__":
    main()
