"""The parts of --codeprobe-offline by themselves: which hosts are meant, the sink, the guard."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import http.server
import os
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.network import DOOR_PORT, Endpoint
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.options import resolve
from pytest_codeprobe.run.offline.hosts import Policy, Rule, is_loopback
from pytest_codeprobe.run.offline.network import Offline
from pytest_codeprobe.run.offline.upstream import Upstream
from tests.loopback_proxy import LoopbackProxy

ELSEWHERE = "192.0.2.1"  # of a network that no host is in


def trial(name: str = "t") -> Trial:
    agent, sandbox = SimpleNamespace(type="claude"), SimpleNamespace(network="on")
    return cast(Trial, SimpleNamespace(node_id=f"tasks/{name}.yaml::{name}", agent=agent, sandbox=sandbox))


@pytest.fixture
def offline() -> Iterator[Offline]:
    made = Offline(["allowed.test", "*.inside.test:443"], lambda _: [Endpoint("provider.test", 443)])
    yield made
    made.close()
    assert not [t for t in threading.enumerate() if t.name == "codeprobe-sink"]


class _Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        body = f"{self.path} {self.headers['host']}".encode()
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr."""


@pytest.fixture
def web() -> Iterator[int]:
    """A web server on loopback: its port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def attempts(offline: Offline, of: Trial) -> list[tuple[str, str | None, str, int | None, int]]:
    error = offline.end(of)
    if error is None:
        return []
    assert error.code == "OFFLINE_NET_ATTEMPT"
    return [(a["component"], a["by"], a["host"], a["port"], a["count"]) for a in error.detail["attempts"]]


def through(url: str, request: bytes) -> bytes:
    """What a proxy answers to these bytes, to the end."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as client:
        client.sendall(request)
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while data := client.recv(1 << 16):
                found += data
        return found


def proxy_of(offline: Offline, of: Trial, role: Any = "session", **environ: str) -> str:
    return offline.environment(of, role, environ)["HTTP_PROXY"]


def test_a_door_lets_in_what_listens_elsewhere_once(offline: Offline, tmp_path: Path) -> None:
    """What else is sent counts for nothing; each start has a door of its own; when the role is over, all are shut, what waited is told."""
    of, served = trial(), []
    folder = tmp_path / ("long" * 30)
    for number in range(2):
        (place := folder / str(number)).mkdir(parents=True)
        assert offline.environment(of, "grader", {}, place)["HTTP_PROXY"] == f"http://127.0.0.1:{DOOR_PORT}"
        here = os.open(place, os.O_RDONLY)
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel,
            socket.create_server(("127.0.0.1", 0)) as first,
            socket.create_server(("127.0.0.1", 0)) as second,
            socket.socket() as idle,
        ):
            channel.connect(f"/proc/self/fd/{here}/door")
            channel.send(b"x")
            for bad in (channel.fileno(), here, idle.fileno()):
                socket.send_fds(channel, [b"x"], [bad])
            socket.send_fds(channel, [b"x"], [first.fileno()])
            urls = [f"http://127.0.0.1:{each.getsockname()[1]}" for each in (first, second)]
            with contextlib.suppress(OSError):
                socket.send_fds(channel, [b"x"], [second.fileno()])
        os.close(here)
        served.append(urls[0])
        assert through(urls[0], b"CONNECT outside.test:443 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 403")
        assert b"not to be asked for" in through(urls[0], b"GET http://127.0.0.1:1/ HTTP/1.1\r\n\r\n")
        with pytest.raises(ConnectionRefusedError):
            through(urls[1], b"")
    with socket.create_connection(("127.0.0.1", int(served[1].rpartition(":")[2]))) as late:
        late.sendall(b"CONNECT late.test:443 HTTP/1.1\r\n\r\n")
        offline.settle(of, "grader")
    for url in served:
        with pytest.raises(ConnectionRefusedError):
            through(url, b"")
    assert attempts(offline, of) == [("grader", None, "outside.test", 443, 2), ("grader", None, "late.test", 443, 1)]


# ---- hosts


def read(words: list[str]) -> tuple[str, ...]:
    """As the ini file's line is."""
    ini = {"codeprobe_offline_allow": words, "codeprobe_unknown_fields": "error", "codeprobe_dialect": "native"}
    return resolve({}, {}, lambda key: ini.get(key, "")).offline_allow


@pytest.mark.parametrize(
    ("word", "host", "port", "fits"),
    [
        ("a.test", "A.TEST.", 1, True),
        ("a.test", "b.a.test", 1, False),
        ("*.a.test", "b.a.test", 1, True),
        ("*.a.test", "a.test", 1, False),
        ("*.a.test", "ba.test", 1, False),
        ("a.test:443", "a.test", 443, True),
        ("a.test:443", "a.test", 80, False),
        ("10.0.0.0/8", "10.9.8.7", 1, True),
        ("10.0.0.0/8", "11.9.8.7", 1, False),
        ("10.0.0.7:22", "10.0.0.7", 22, True),
        ("10.0.0.7:22", "10.0.0.7", 23, False),
        ("fd00::/8", "fd00::1", 1, True),
        ("[fd00::1]:22", "[fd00::1]", 22, True),
        ("[fd00::1]:22", "fd00::1", 23, False),
        ("fd00::1", "::ffff:10.0.0.7", 22, False),
        ("10.0.0.7", "::ffff:10.0.0.7", 22, True),
        ("bücher.test", "xn--bcher-kva.test", 1, True),
        ("a_b.test", "a_b.test", 1, True),
    ],
)
def test_what_an_allowed_host_means(word: str, host: str, port: int, fits: bool) -> None:
    (allowed,) = read([word])
    assert Policy([Rule.parse(allowed)]).allows(host, port) is fits


NO_HOSTS = ("http://a.test", "a.test/x", "*", "*a.test", "a b", "a.test:0", "a.test:99999", "[a.test]", "1.2.3.4/99", "::1::", "-", ".a")


@pytest.mark.parametrize("word", NO_HOSTS)
def test_what_is_no_host_is_refused(word: str) -> None:
    with pytest.raises(Exception, match="codeprobe_offline_allow"):
        read([word])


@pytest.mark.parametrize(
    ("host", "yes"),
    [
        ("127.0.0.1", True), ("127.1", True), ("2130706433", True), ("0x7f.1", True), ("::1", True), ("[::1]", True), ("0.0.0.0", True),
        ("localhost", True), ("LOCALHOST.", True), ("a.localhost", True), ("::ffff:127.0.0.1", True), ("", True),
        ("127.0.0.1.nip.test", False), ("localhost.test", False), ("128.0.0.1", False), ("::ffff:8.8.8.8", False), ("1", False),
    ],
)  # fmt: skip
def test_loopback(host: str, yes: bool) -> None:
    assert is_loopback(host) is yes


def test_no_proxy_means_what_curl_makes_of_it() -> None:
    upstream = Upstream.of({"HTTPS_PROXY": "proxy.test:3128", "no_proxy": "a.test, .b.test 10.0.0.0/8,c.test:81"})
    hosts = ("a.test", "x.a.test", "x.b.test", "10.1.1.1", "c.test", "d.test")
    without = {host for host in hosts if not upstream.proxy_for(host, 443, encrypted=True)}
    assert without == {"a.test", "x.a.test", "x.b.test", "10.1.1.1"}
    assert upstream.proxy_for("d.test", 80, encrypted=False) is None
    assert Upstream.of({"all_proxy": "http://p", "NO_PROXY": "*"}).proxy_for("d.test", 80, encrypted=False) is None


# ---- the sink


def test_each_component_and_trial_is_told_apart(offline: Offline) -> None:
    one, two = trial("one"), trial("two")
    ports = {proxy_of(offline, one), proxy_of(offline, two), proxy_of(offline, one, "setup")}
    assert len(ports) == 3
    assert proxy_of(offline, one) in ports  # the next process of a session is the same component
    through(proxy_of(offline, one), b"CONNECT a.test:443 HTTP/1.1\r\n\r\n")
    through(proxy_of(offline, one), b"CONNECT a.test:443 HTTP/1.1\r\n\r\n")
    through(proxy_of(offline, two), b"GET http://b.test/x HTTP/1.1\r\nHost: b.test\r\n\r\n")
    with offline.acting(two, "criterion", "criterion 1 (run_command)"):
        through(proxy_of(offline, two, "grader"), b"CONNECT [fd00::9]:22 HTTP/1.0\r\n\r\n")
    assert offline.has_attempts(one)
    assert attempts(offline, one) == [("agent", None, "a.test", 443, 2)]
    assert attempts(offline, two) == [("agent", None, "b.test", 80, 1), ("grader", "criterion 1 (run_command)", "fd00::9", 22, 1)]
    assert not offline.has_attempts(one)
    assert offline.end(one) is None


def test_the_models_host_is_for_the_agent_alone(offline: Offline) -> None:
    asked, other_port = b"CONNECT provider.test:443 HTTP/1.1\r\n\r\n", b"CONNECT provider.test:444 HTTP/1.1\r\n\r\n"
    with LoopbackProxy({}) as users:
        agent, grader = (proxy_of(offline, trial(), role, https_proxy=users.url) for role in ("session", "grader"))
        assert through(agent, asked).startswith(b"HTTP/1.1 502 ")  # allowed, but the user's proxy does not know it
        assert through(grader, asked).startswith(b"HTTP/1.1 403 ")
        assert through(agent, other_port).startswith(b"HTTP/1.1 403 ")
        assert users.asked == ["provider.test:443"]
    assert attempts(offline, trial()) == [("grader", None, "provider.test", 443, 1), ("agent", None, "provider.test", 444, 1)]


def test_what_is_allowed_goes_through_the_users_own_proxy(offline: Offline, web: int) -> None:
    with LoopbackProxy({"allowed.test:80": web, "allowed.test:443": web, "x.inside.test:443": web}) as users:
        proxy = proxy_of(offline, trial(), http_proxy=users.url, HTTPS_PROXY=users.url)
        opened = urllib.request.build_opener(urllib.request.ProxyHandler({"http": proxy})).open("http://allowed.test/a?b=c", timeout=10)
        with opened:
            assert opened.read() == b"/a?b=c allowed.test"
        for host in (b"allowed.test:443", b"x.inside.test:443"):
            said = through(proxy, b"CONNECT %s HTTP/1.1\r\n\r\nGET /t HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n" % host)
            assert said.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")
            assert said.endswith(b"/t h")
        assert through(proxy, b"CONNECT b.test:443 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 403")
        assert users.asked == ["allowed.test:80", "allowed.test:443", "x.inside.test:443"]
    assert attempts(offline, trial()) == [("agent", None, "b.test", 443, 1)]


def test_the_users_proxy_wants_a_password(offline: Offline, web: int) -> None:
    with LoopbackProxy({"allowed.test:80": web}, login="Basic bWU6cEBzcw==") as users:
        given = users.url.replace("http://", "http://me:p%40ss@")
        environ = offline.environment(trial(), "session", {"HTTP_PROXY": given})
        assert not [v for v in environ.values() if "p%40ss" in v]
        said = through(environ["http_proxy"], b"GET http://allowed.test/ HTTP/1.1\r\nHost: h\r\nProxy-Connection: keep-alive\r\n\r\n")
        assert said.endswith(b"/ h")
        assert "proxy-connection" not in users.heads[0].lower()
    assert attempts(offline, trial()) == []


def test_the_next_request_of_a_connection_is_not_for_the_first_ones_host(offline: Offline, web: int) -> None:
    with LoopbackProxy({"allowed.test:80": web}) as users:
        proxy = proxy_of(offline, trial(), http_proxy=users.url)
        two = b"GET http://allowed.test/1 HTTP/1.1\r\nHost: h\r\n\r\nGET http://b.test/2 HTTP/1.1\r\nHost: b.test\r\n\r\n"
        said = through(proxy, two)
        assert said.count(b"HTTP/1.1") == 1
        assert said.endswith(b"/1 h")
        assert users.asked == ["allowed.test:80"]
    offline.end(trial())


def test_loopback_is_tunnelled_for_those_who_ignore_no_proxy(offline: Offline, web: int) -> None:
    request = f"CONNECT localhost:{web} HTTP/1.1\r\n\r\nGET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    plain = f"GET http://127.0.0.1:{web}/x HTTP/1.1\r\nHost: h\r\n\r\n"
    for users in ("", "http://192.0.2.1:3128"):  # the user's own proxy is on another machine, which has a loopback, too
        proxy = proxy_of(offline, trial(), http_proxy=users, https_proxy=users)
        assert through(proxy, request.encode()).endswith(b"/x h")
        assert through(proxy, plain.encode()).endswith(b"/x h")
    assert attempts(offline, trial()) == []


LONG = b"X: " + b"y" * 100_000
ASKED = {
    b"CONNECT allowed.test:80 HTTP/1.1\r\n\r\n": None,  # the offline fixture's rule has no port
    b"CONNECT X.inside.test.:443 HTTP/1.1\r\n\r\n": None,
    b"CONNECT x.inside.test:80 HTTP/1.1\r\n\r\n": ("x.inside.test", 80),
    b"CONNECT x.inside.test.outside.test:443 HTTP/1.1\r\n\r\n": ("x.inside.test.outside.test", 443),
    b"CONNECT %s.inside.test:443 HTTP/1.1\r\n\r\n" % (b"x" * 70): None,  # no name that can be looked up
    b"CONNECT 2001:db8::1:443 HTTP/1.1\r\n\r\n": ("2001:db8::1", 443),
    b"CONNECT [::ffff:192.0.2.1]:53 HTTP/1.1\r\n\r\n": ("::ffff:192.0.2.1", 53),
    b"connect Outside.test:443 HTTP/1.1\r\n\r\n": ("Outside.test", 443),
    "CONNECT bücher.test:443 HTTP/1.1\r\n\r\n".encode(): ("bücher.test", 443),
    b"CONNECT outside.test:443 HTTP/1.1\nHost: x\n\n": ("outside.test", 443),
    b"CONNECT outside.test:443 HTTP/1.1\r\n" + LONG: ("outside.test", 443),
    b"GET http://allowed.test@outside.test/ HTTP/1.1\r\n\r\n": ("outside.test", 80),
    b"GET https://outside.test/ HTTP/1.1\r\n\r\n": ("outside.test", 443),
    b"GET ftp://outside.test/ HTTP/1.1\r\n\r\n": ("outside.test", 21),  # curl asks so
    b"GET ftp://allowed.test/ HTTP/1.1\r\n\r\n": None,
}


def test_whoever_is_asked_for_is_heard(offline: Offline) -> None:
    """Requests as clients write them, and as somebody might who tries to get past."""
    for number, (request, place) in enumerate(ASKED.items()):
        mine = trial(str(number))
        said = through(proxy_of(offline, mine), request)
        assert said.startswith((b"HTTP/1.1 403 ",) if place else (b"HTTP/1.1 502 ", b"HTTP/1.1 400 ")), (request[:80], said)
        assert attempts(offline, mine) == ([("agent", None, *place, 1)] if place else []), request[:80]


def test_a_client_that_goes_before_it_has_said_all(offline: Offline) -> None:
    host, port = proxy_of(offline, trial()).removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as client:
        client.sendall(b"CONNECT outside.test:443 HTTP/1.1\r\nUser-Agent: sl")
    assert attempts(offline, trial()) == [("agent", None, "outside.test", 443, 1)]


@pytest.mark.parametrize(
    "junk", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\r\n\r\n", b"CONNECT x HTTP/1.1\r\n\r\n", b"CONNECT x:99999 HTTP/1.1\r\n\r\n",
             b"GET http:///x HTTP/1.1\r\n\r\n", b"GET http://[x/ HTTP/1.1\r\n\r\n", b"\r\n\r\n"],
)  # fmt: skip
def test_what_is_no_request_to_a_proxy(offline: Offline, junk: bytes) -> None:
    proxy = proxy_of(offline, trial())
    assert through(proxy, junk).startswith(b"HTTP/1.1 400 ")
    assert through(proxy, b"CONNECT a.test:1 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 403 ")
    assert attempts(offline, trial()) == [("agent", None, "a.test", 1, 1)]


def test_a_head_without_an_end(offline: Offline) -> None:
    proxy = proxy_of(offline, trial())
    host, port = proxy.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as client, contextlib.suppress(ConnectionError):
        client.sendall(b"CONNECT " + b"x" * 200_000)
        assert client.recv(12) in (b"", b"HTTP/1.1 400")
    assert attempts(offline, trial()) == []


def test_who_has_said_it_and_gone_is_still_heard(offline: Offline) -> None:
    """A process that is killed at once: its last words lie in the listening socket's queue."""
    proxy = proxy_of(offline, trial())
    host, port = proxy.removeprefix("http://").split(":")
    for number in range(50):
        with socket.create_connection((host, int(port)), 10) as client:
            client.sendall(b"CONNECT a%d.test:443 HTTP/1.1\r\n\r\n" % number)
    assert len(attempts(offline, trial())) == 50
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 10)


def test_a_settled_port_cuts_what_it_tunnels(offline: Offline, web: int) -> None:
    proxy = proxy_of(offline, trial())
    host, port = proxy.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as client:
        client.sendall(f"CONNECT 127.0.0.1:{web} HTTP/1.1\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        offline.settle(trial(), "session")
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(100) == b""
    assert proxy_of(offline, trial()) != proxy  # another attempt has a port of its own
    offline.end(trial())


def test_more_connections_than_one_port_takes(offline: Offline) -> None:
    proxy = proxy_of(offline, trial())
    host, port = proxy.removeprefix("http://").split(":")
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection((host, int(port)), 10)) for _ in range(200)]
        other = proxy_of(offline, trial("other"))
        assert through(other, b"CONNECT b.test:443 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 403")
        for client in idle[:150]:
            client.close()
        idle[-1].sendall(b"CONNECT a.test:443 HTTP/1.1\r\n\r\n")
        assert idle[-1].recv(100).startswith(b"HTTP/1.1 403")
    assert attempts(offline, trial()) == [("agent", None, "a.test", 443, 1)]
    offline.end(trial("other"))


def test_many_trials_at_once(offline: Offline, web: int) -> None:
    def one(number: int) -> list[Any]:
        mine = trial(f"t{number}")
        for _ in range(3):
            proxy = proxy_of(offline, mine)
            through(proxy, b"CONNECT own%d.test:443 HTTP/1.1\r\n\r\n" % number)
            through(proxy, f"CONNECT 127.0.0.1:{web} HTTP/1.1\r\n\r\nGET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
            offline.settle(mine, "session")
        return attempts(offline, mine)

    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(one, range(64))) == [[("agent", None, f"own{n}.test", 443, 3)] for n in range(64)]


def test_no_more_places_than_a_record_can_hold(offline: Offline) -> None:
    proxy = proxy_of(offline, trial())
    for number in range(220):
        through(proxy, b"CONNECT a%d.test:443 HTTP/1.1\r\n\r\n" % number)
    through(proxy, b"CONNECT " + b"x" * 5000 + b"\x1b[31m:443 HTTP/1.1\r\n\r\n")
    error = offline.end(trial())
    assert error is not None
    assert "and 197 more" in error.message
    assert len(error.detail["attempts"]) == 50


def test_without_a_port_nothing_starts(monkeypatch: pytest.MonkeyPatch, offline: Offline) -> None:
    def no_more(*_: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket.socket, "listen", no_more)
    with pytest.raises(CodeprobeError, match=r"SANDBOX_FAILED.*no port for what the agent asks: .*Too many open files"):
        offline.environment(trial(), "session", {})
    assert offline.end(trial()) is None


# ---- the guard


def tries(work: Callable[[], None]) -> str | None:
    """What the guard says of it; None where it says nothing."""
    try:
        work()
    except PermissionError as refused:
        return str(refused)
    return None


def connect(host: str = ELSEWHERE, port: int = 9) -> None:
    """Of a datagram's socket: where nobody forbids it, no packet leaves either."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((host, port))


def stream() -> None:
    socket.create_connection((ELSEWHERE, 9), 0.05).close()


def datagram() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"x", (ELSEWHERE, 53))


def connect_ex() -> None:
    with socket.socket() as sock:
        sock.connect_ex((ELSEWHERE, 9))


def in_thread() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(pool.submit, connect).result().result()


def in_loop() -> None:
    async def work() -> None:
        await asyncio.open_connection("outside.test", 80)

    asyncio.run(work())


def by_name() -> None:
    socket.gethostbyname("outside.test")


def by_url() -> None:
    urllib.request.urlopen("http://outside.test/")


def in_to_thread() -> None:
    async def work() -> None:
        await asyncio.to_thread(connect)

    asyncio.run(work())


def by_raw_loop() -> None:
    async def work() -> None:
        with socket.socket() as sock:
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, (ELSEWHERE, 9))

    asyncio.run(work())


def in_another_context() -> None:
    contextvars.Context().run(connect)


HELD = (in_another_context, in_to_thread, by_raw_loop, connect, stream, datagram, connect_ex, in_thread, in_loop, by_name, by_url)


@pytest.mark.parametrize("work", HELD, ids=lambda work: str(work.__name__))
def test_code_of_a_trial_is_held(offline: Offline, work: Callable[[], None]) -> None:
    """The guard speaks before a packet leaves: its error is the one that comes back."""
    with offline.acting(trial(), "criterion", "criterion 2 (mine)"), pytest.raises(OSError, match="--codeprobe-offline"):
        work()
    ((component, by, host, _, _),) = attempts(offline, trial())
    assert (component, by) == ("criterion", "criterion 2 (mine)")
    assert host in (ELSEWHERE, "outside.test")


def test_loopback_and_this_machines_name_are_not_held(offline: Offline, web: int, tmp_path: Any) -> None:
    with offline.acting(trial(), "criterion"):
        for host in ("127.0.0.1", "localhost"):
            socket.create_connection((host, web), 10).close()
        with contextlib.suppress(OSError):  # some machines don't know their own name
            socket.getaddrinfo(socket.gethostname(), None)
        socket.getaddrinfo(None, web)
        with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(OSError):
            sock.connect(str(tmp_path / "none"))
    assert attempts(offline, trial()) == []


def test_other_threads_are_not_touched_meanwhile(offline: Offline) -> None:
    """An ordinary test in the main thread, while trials are in theirs."""
    inside, outside = threading.Event(), threading.Event()
    said: list[str | None] = []

    def ordinary() -> None:
        inside.wait(10)
        said.append(tries(connect))
        outside.set()

    thread = threading.Thread(target=ordinary)
    thread.start()
    with offline.acting(trial(), "criterion"):
        inside.set()
        outside.wait(10)
    thread.join()
    assert said == [None]
    assert tries(connect) is None
    assert attempts(offline, trial()) == []


def test_a_thread_that_outlives_its_trial_is_let_go(offline: Offline) -> None:
    over = threading.Event()
    said: list[str | None] = []

    def late() -> None:
        over.wait(10)
        said.append(tries(connect))

    with offline.acting(trial(), "criterion"):
        thread = threading.Thread(target=late)
        thread.start()
    assert offline.end(trial()) is None
    over.set()
    thread.join()
    assert said == [None]


def test_an_allowed_name_leads_where_its_addresses_are(monkeypatch: pytest.MonkeyPatch, offline: Offline) -> None:
    """The resolver is replaced by one that knows the name, and says what the real one would say to an audit hook."""

    def resolver(host: str, port: int | None, *_: Any) -> list[Any]:
        sys.audit("socket.getaddrinfo", host, port, 0, 0, 0)
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (ELSEWHERE, port or 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    with offline.acting(trial(), "criterion"):
        assert tries(connect) is not None
        socket.getaddrinfo("allowed.test", 80)
        assert tries(connect) is None
        assert tries(lambda: connect("192.0.2.2")) is not None
    assert [a[2:] for a in attempts(offline, trial())] == [(ELSEWHERE, 9, 1), ("192.0.2.2", 9, 1)]
