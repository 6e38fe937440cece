"""The HTTP part: a threaded server on loopback that hands requests to protocols and sends answers and faults."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar, Self

from tests.model_server.anthropic import AnthropicMessages
from tests.model_server.engine import Engine, ScriptMistake, answer_for
from tests.model_server.protocol import Answer, Conversation, Event, Protocol
from tests.model_server.scenario import NOTHING, Fault, Scenario, Script, Turn
from tests.model_server.stats import RequestRecord, Stats

PROTOCOLS: tuple[Protocol, ...] = (AnthropicMessages(),)


class ModelServer:
    """A scripted model server; a context manager that listens inside the `with`.

    scripts      the scripts, or a whole Scenario
    faults       faults for all scripts (with a Scenario: its own are used)
    api_key      when set, a request with another credential gets 401
    keep_bodies  keep request bodies in `stats.log`
    port         0 = a free one

    A scenario with the fault "refused" holds the port without listening, so that every connection is refused.
    """

    def __init__(
        self,
        scripts: Scenario | Sequence[Script],
        faults: Sequence[Fault] = (),
        *,
        api_key: str | None = None,
        keep_bodies: bool = False,
        port: int = 0,
    ) -> None:
        self.scenario = scripts if isinstance(scripts, Scenario) else Scenario(tuple(scripts), tuple(faults))
        self.stats = Stats(keep_bodies)
        self.api_key = api_key
        self.engine = Engine(self.scenario)
        self.started = time.monotonic()
        self.closing = threading.Event()
        self._http = _Http(self, port)
        self._fronts: list[tuple[_Http, threading.Thread]] = []

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1."""
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        """The base URL, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        if not self.scenario.refuses:
            self._http.server_activate()
            self._serve(self._http)
        return self

    def join(self, listener: socket.socket) -> None:
        """Answer on a further listening socket too, one of another network namespace for instance; it is closed with the server."""
        self._serve(_Http(self, listener=listener))

    def _serve(self, http: _Http) -> None:
        thread = threading.Thread(target=http.serve_forever, args=(0.05,), name="model server", daemon=True)
        self._fronts.append((http, thread))
        thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and break off what is still being sent; returns when all threads were told."""
        self.closing.set()
        for http, thread in self._fronts:
            http.shutdown()
            thread.join()
            http.server_close()
            http.drop_connections()
        self._fronts.clear()
        self._http.server_close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, owner: ModelServer, port: int = 0, listener: socket.socket | None = None) -> None:
        self.owner = owner
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        super().__init__(("127.0.0.1", port), _Handler, bind_and_activate=False)
        if listener is None:
            self.server_bind()
        else:
            self.socket.close()
            self.socket = listener

    def server_bind(self) -> None:
        # HTTPServer.server_bind would ask a name server for the host's name, which can't be reached in a namespace without network.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._open_lock:
            self._open.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._open_lock:
                self._open.discard(request)

    def drop_connections(self) -> None:
        """Wake every thread that waits on its connection; each closes its own socket."""
        with self._open_lock:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # already gone

    def handle_error(self, *_: Any) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, (ConnectionError, TimeoutError)):
            self.owner.stats.problem(f"handler: {error!r}")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "scripted-model-server"
    disable_nagle_algorithm = True
    # Read by socketserver: a client that keeps a connection open without a word is not kept for ever.
    timeout: ClassVar[float] = 600.0

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr; the log is in the statistics."""

    @property
    def owner(self) -> ModelServer:
        assert isinstance(self.server, _Http)
        return self.server.owner

    # -- requests

    def do_HEAD(self) -> None:
        self._note("probe")
        self._send(200, b"")

    def do_GET(self) -> None:
        if self.path == "/_stats":
            self._json(200, self.owner.stats.as_json())
        elif self.path == "/_log":
            self._json(200, [asdict(record) for record in self.owner.stats.log])
        else:
            self._note("other")
            self._json(404, {"error": {"type": "not_found_error", "message": "not found"}})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.partition("?")[0]
        for protocol in PROTOCOLS:
            operation = protocol.operation("POST", path)
            if operation is None:
                continue
            try:
                body = json.loads(raw)
                conversation = protocol.read(path, {name.lower(): value for name, value in self.headers.items()}, body)
            except (ValueError, AttributeError, TypeError) as error:
                self._note("other", reply="400")
                self._json(400, protocol.error(400, f"the request can't be read: {error}"))
                return
            if operation == "count":
                self._note("count_tokens", conversation, body)
                self._json(200, protocol.count(max(1, len(raw) // 4)))
            else:
                self._generate(protocol, conversation, body)
            return
        self._note("other")
        self._json(404, {"error": {"type": "not_found_error", "message": "not found"}})

    def _note(self, kind: str, conversation: Conversation | None = None, body: Any = None, key: str = "", reply: str = "") -> RequestRecord:
        elapsed = time.monotonic() - self.owner.started
        record = RequestRecord(0, round(elapsed, 4), self.command, self.path, kind, key=key, reply=reply, body=body)
        if conversation is not None:
            record.model, record.session, record.credential = conversation.model, conversation.session, conversation.credential
            record.turn, record.tools, record.stream = conversation.replies, conversation.tools, conversation.stream
        self.owner.stats.received(record)
        return record

    # -- replies

    def _generate(self, protocol: Protocol, conversation: Conversation, body: Any) -> None:
        owner = self.owner
        try:
            script, turn = owner.engine.choose(conversation)
        except ScriptMistake as mistake:
            self._mistake(protocol, self._note("main", conversation, body), mistake)
            return
        record = self._note("main" if script else "side", conversation, body, key=script.key if script else "")
        if owner.api_key is not None and conversation.credential != owner.api_key:
            self._refuse(protocol, record, Fault("status", status=401))
            return
        fault = owner.engine.fault(conversation, script)
        if fault is not None and fault.kind == "status":
            self._refuse(protocol, record, fault)
            return
        try:
            answer = answer_for(turn, conversation)
        except ScriptMistake as mistake:
            self._mistake(protocol, record, mistake)
            return
        if not owner.closing.wait(turn.delay + (fault.delay if fault else 0.0)):
            self._answer(protocol, conversation, record, turn, answer, fault)

    def _answer(
        self, protocol: Protocol, conversation: Conversation, record: RequestRecord, turn: Turn, answer: Answer, fault: Fault | None
    ) -> None:
        if conversation.stream:
            events, whole = _with_fault(protocol, answer, fault)
            self._stream(record, events, turn.event_delay + (fault.event_delay if fault else 0.0), fault, whole)
        elif fault is not None and fault.kind != "slow":
            self._spoil(protocol, record, fault)
        else:
            self.owner.stats.replied(record, f"turn {conversation.replies}", answer.usage)
            self._json(200, protocol.whole(answer))

    def _stream(self, record: RequestRecord, events: Sequence[Event], pause: float, fault: Fault | None, whole: bool) -> None:
        self.send_response(200)
        for name, value in (("content-type", "text/event-stream"), ("cache-control", "no-cache"), ("transfer-encoding", "chunked")):
            self.send_header(name, value)
        self.send_header("request-id", f"req_{record.number:012d}")
        self.end_headers()
        told = NOTHING
        booked = False
        try:
            for at, event in enumerate(events):
                if at and pause and self.owner.closing.wait(pause):
                    raise ConnectionAbortedError("the server is closing")
                told = told + event.told
                if whole and at == len(events) - 1:
                    # Before the last event: a client that has it may look into the books at once.
                    self.owner.stats.replied(record, f"turn {record.turn}", told)
                    booked = True
                self._chunk(event.data)
            if fault is not None and not whole:
                self.owner.stats.failed(record, fault.name, told)
                booked = True
            if fault is not None and fault.kind == "cut":
                self.owner.closing.wait(pause)
                self._hang_up()
            else:
                self._chunk(b"")
        except ConnectionError:
            if not booked:
                self.owner.stats.failed(record, "client gone", told)
            raise

    def _refuse(self, protocol: Protocol, record: RequestRecord, fault: Fault) -> None:
        if self.owner.closing.wait(fault.delay):
            return
        headers = {} if fault.retry_after is None else {"retry-after": f"{fault.retry_after:g}"}
        self.owner.stats.failed(record, fault.name)
        self._json(fault.status, protocol.error(fault.status, f"scripted: status {fault.status}"), headers)

    def _mistake(self, protocol: Protocol, record: RequestRecord, mistake: ScriptMistake) -> None:
        self.owner.stats.problem(str(mistake))
        self.owner.stats.failed(record, "mistake")
        self._json(400, protocol.error(400, str(mistake)))

    def _spoil(self, protocol: Protocol, record: RequestRecord, fault: Fault) -> None:
        """A stream's fault for a request that doesn't stream: the nearest thing that the provider could do."""
        self.owner.stats.failed(record, fault.name)
        if fault.kind == "error_event":
            self._json(529, protocol.error(529, "scripted: overloaded"))
        elif fault.kind == "cut":
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", "1000")
            self.end_headers()
            self.wfile.write(b"{")
            self._hang_up()
        else:
            self._send(200, b'{"type": ' if fault.kind == "malformed" else b"", {"content-type": "application/json"})

    # -- bytes

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _hang_up(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def _json(self, status: int, data: Any, headers: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(data).encode(), {"content-type": "application/json", **(headers or {})})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _with_fault(protocol: Protocol, answer: Answer, fault: Fault | None) -> tuple[list[Event], bool]:
    """The events to send, and whether they are the whole answer."""
    events = list(protocol.events(answer))
    if fault is None or fault.kind == "slow":
        return events, True
    if fault.kind == "cut":
        # Never so late that the answer is whole.
        return events[: min(fault.after_events, len(events) - 1)], False
    if fault.kind == "malformed":
        return [events[0], protocol.malformed_event()], False
    if fault.kind == "error_event":
        return [protocol.error_event("scripted: overloaded")], False
    return [], False
