from __future__ import annotations

import http.client
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model_server import Fault, ModelServer, Script, ToolCall, Turn, Usage
from tests.model_server.protocol import Answer, Call
from tests.model_server.server import PROTOCOLS

WRITE = ToolCall("Write", {"file_path": "{cwd}/a.txt", "content": "a\n" * 40})
SCRIPT = Script(turns=[Turn("I write.", [WRITE], Usage(101, 53, 307, 211)), Turn("Done.", usage=Usage(103, 23, 509, 0))])
FIRST = "<system-reminder>\n - Primary working directory: /some/where\n</system-reminder>\nDo it."


def request(
    replies: int = 0, prompt: str = FIRST, *, stream: bool = True, tools: tuple[str, ...] = ("Write",), system: str = ""
) -> dict[str, Any]:
    """A request as an agent sends it after so many replies."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": prompt}]}]
    for at in range(replies):
        messages.append({"role": "assistant", "content": [{"type": "tool_use", "id": f"t{at}", "name": "Write", "input": {}}]})
        messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{at}", "content": "ok"}]})
    named = [{"name": name, "input_schema": {"type": "object"}} for name in tools]
    return {"model": "m1", "max_tokens": 100, "stream": stream, "system": system, "messages": messages, "tools": named}


def post(server: ModelServer, body: Any, path: str = "/v1/messages?beta=true", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """POST and read to the end; raises what http.client raises when the reply is broken off."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("POST", path, json.dumps(body), {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def get(server: ModelServer, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def events(raw: bytes) -> list[dict[str, Any]]:
    """Parse server-sent events strictly: an event line, a data line, an empty line, and the type said twice."""
    found = []
    assert raw.endswith(b"\n\n")
    for block in raw.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def said(reply: tuple[int, dict[str, str], bytes]) -> str:
    """The text of a streamed reply."""
    assert reply[0] == 200
    return "".join(event["delta"].get("text", "") for event in events(reply[2]) if event["type"] == "content_block_delta")


# -- replies


def test_a_streamed_turn_is_well_formed_and_says_what_the_script_says() -> None:
    with ModelServer([SCRIPT]) as server:
        status, headers, raw = post(server, request())
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    seen = events(raw)
    kinds = [event["type"] for event in seen]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 2
    deltas = [event["delta"] for event in seen if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == "I write."
    arguments = json.loads("".join(delta.get("partial_json", "") for delta in deltas))
    assert arguments == {"file_path": "/some/where/a.txt", "content": "a\n" * 40}
    assert len(deltas) > 3, "arguments come in pieces, as from the provider"
    assert seen[0]["message"]["usage"] == {
        "input_tokens": 101,
        "cache_creation_input_tokens": 211,
        "cache_read_input_tokens": 307,
        "output_tokens": 1,
    }
    assert seen[-2]["delta"]["stop_reason"] == "tool_use"
    assert seen[-2]["usage"]["output_tokens"] == 53


def test_a_whole_reply_says_the_same_as_a_streamed_one() -> None:
    with ModelServer([SCRIPT]) as server:
        status, _, raw = post(server, request(stream=False))
        body = json.loads(raw)
        assert status == 200
        assert [block["type"] for block in body["content"]] == ["text", "tool_use"]
        assert body["content"][1]["input"]["file_path"] == "/some/where/a.txt"
        assert (body["stop_reason"], body["usage"]["output_tokens"]) == ("tool_use", 53)
        assert server.stats.tokens == Usage(101, 53, 307, 211)


def test_the_turn_follows_from_the_conversation_and_a_retry_gets_the_same() -> None:
    with ModelServer([SCRIPT]) as server:
        assert said(post(server, request(1))) == said(post(server, request(1))) == "Done."
        assert said(post(server, request(0))) == "I write."
        assert said(post(server, request(7))) == "Done."
        assert [record.turn for record in server.stats.log] == [1, 1, 0, 7]


def test_system_turns_and_split_replies_do_not_move_the_turn() -> None:
    body = request(1)
    body["messages"].insert(2, {"role": "assistant", "content": "the same reply, second part"})
    body["messages"].insert(1, {"role": "system", "content": "a reminder"})
    with ModelServer([SCRIPT]) as server:
        assert said(post(server, body)) == "Done."


def test_a_looping_script_starts_again() -> None:
    with ModelServer([Script(SCRIPT.turns, loop=True)]) as server:
        assert [said(post(server, request(at))) for at in range(4)] == ["I write.", "Done.", "I write.", "Done."]


def test_the_key_chooses_the_script_the_prompt_before_the_system_prompt() -> None:
    scripts = [Script([Turn(f"script {key or 'default'}")], key=key) for key in ("red", "blue", "")]
    with ModelServer(scripts) as server:
        assert said(post(server, request(prompt="paint it blue"))) == "script blue"
        assert said(post(server, request(prompt="paint it", system="always red"))) == "script red"
        assert said(post(server, request(prompt="blue", system="red"))) == "script blue"
        assert said(post(server, request(prompt="paint it"))) == "script default"
        assert {key: tally["main"] for key, tally in server.stats.as_json()["by_key"].items()} == {"blue": 2, "red": 1, "": 1}


def test_requests_without_tools_are_side_requests() -> None:
    with ModelServer([SCRIPT]) as server:
        assert said(post(server, request(tools=()))) == "A short title"
        assert (server.stats.main, server.stats.side, server.stats.all) == (0, 1, 1)


def test_the_other_paths() -> None:
    with ModelServer([SCRIPT]) as server:
        assert get(server, "/", "HEAD") == (200, b"")
        status, _, raw = post(server, request(), "/v1/messages/count_tokens?beta=true")
        assert status == 200
        assert json.loads(raw)["input_tokens"] > 10
        assert get(server, "/v1/models")[0] == 404
        assert post(server, {}, "/v1/nothing")[0] == 404
        assert post(server, {"model": "m1", "messages": []})[0] == 400
        assert post(server, ["not", "an", "object"])[0] == 400
        assert server.stats.as_json()["requests"] == {"all": 6, "probe": 1, "count_tokens": 1, "other": 4}
        assert server.stats.main == 0


# -- mistakes of a script are loud


def test_a_tool_that_is_not_offered_is_a_problem() -> None:
    with ModelServer([SCRIPT]) as server:
        status, _, raw = post(server, request(tools=("Bash",)))
        assert status == 400
        assert "'Write' is not offered; offered are Bash" in json.loads(raw)["error"]["message"]
        assert server.stats.problems == ["the scripted tool 'Write' is not offered; offered are Bash"]


def test_a_tool_may_be_invented_on_purpose() -> None:
    with ModelServer([Script([Turn("", [ToolCall("Fly", offered=False)])])]) as server:
        assert b'"Fly"' in post(server, request())[2]
        assert server.stats.problems == []


def test_no_script_and_no_working_directory_are_problems() -> None:
    with ModelServer([Script(SCRIPT.turns, key="something else")]) as server:
        assert post(server, request())[0] == 400
    assert server.stats.problems[0].startswith("no script for the prompt")
    with ModelServer([SCRIPT]) as server:
        assert post(server, request(prompt="no folder named"))[0] == 400
    assert "names no working directory" in server.stats.problems[0]


# -- faults


@pytest.mark.parametrize(
    ("status", "kind"), [(429, "rate_limit_error"), (500, "api_error"), (401, "authentication_error"), (529, "overloaded_error")]
)
def test_a_status_strikes_as_often_as_it_says(status: int, kind: str) -> None:
    with ModelServer([SCRIPT], [Fault("status", status=status, times=2, skip=1)]) as server:
        replies = [post(server, request()) for _ in range(4)]
        assert [reply[0] for reply in replies] == [200, status, status, 200]
        assert json.loads(replies[1][2])["error"]["type"] == kind
        assert "retry-after" not in replies[1][1]
        assert server.stats.as_json()["faults"] == {str(status): 2}
        assert server.stats.tokens == Usage(202, 106, 614, 422)


def test_retry_after_and_for_ever() -> None:
    with ModelServer([SCRIPT], [Fault("status", status=429, times=None, retry_after=1.5)]) as server:
        assert {(reply[0], reply[1]["retry-after"]) for reply in (post(server, request()) for _ in range(5))} == {(429, "1.5")}


def test_a_fault_can_belong_to_a_script_a_turn_a_session_or_side_requests() -> None:
    mine = Script([Turn("one")], key="mine", faults=[Fault("status", status=503)])
    with ModelServer([mine, SCRIPT]) as server:
        assert post(server, request())[0] == 200
        assert [post(server, request(prompt="mine"))[0] for _ in range(2)] == [503, 200]
    with ModelServer([SCRIPT], [Fault("status", turn=1)]) as server:
        assert [post(server, request(at))[0] for at in (0, 1, 1)] == [200, 500, 200]
    with ModelServer([SCRIPT], [Fault("status", per="session")]) as server:
        ids = ["a", "b", "a", "b"]
        assert [post(server, request(), x_claude_code_session_id=each)[0] for each in ids] == [500, 500, 200, 200]
    with ModelServer([SCRIPT], [Fault("status", where="side")]) as server:
        assert [post(server, request())[0], post(server, request(tools=()))[0]] == [200, 500]


def test_a_cut_stream_ends_without_its_end() -> None:
    with ModelServer([SCRIPT], [Fault("cut", times=2, after_events=3)]) as server:
        with pytest.raises(http.client.IncompleteRead) as caught:
            post(server, request())
        assert [event["type"] for event in events(caught.value.partial)] == ["message_start", "content_block_start", "content_block_delta"]
        with pytest.raises(http.client.IncompleteRead):
            post(server, request(stream=False))
        assert (server.stats.tokens, server.stats.cut_tokens) == (Usage(0, 0, 0, 0), Usage(101, 1, 307, 211))
        assert said(post(server, request())) == "I write."


def test_a_cut_is_never_the_whole_reply() -> None:
    with ModelServer([SCRIPT], [Fault("cut", after_events=999)]) as server, pytest.raises(http.client.IncompleteRead) as caught:
        post(server, request())
    assert events(caught.value.partial)[-1]["type"] == "message_delta"


def test_malformed_empty_and_error_event() -> None:
    with ModelServer([SCRIPT], [Fault("malformed", times=2), Fault("empty", times=2), Fault("error_event", times=2)]) as server:
        malformed, malformed_whole, empty, empty_whole, overloaded, overloaded_whole = (
            post(server, request(stream=at % 2 == 0)) for at in range(6)
        )
        assert server.stats.as_json()["faults"] == {"malformed": 2, "empty": 2, "error_event": 2}
    first, second = malformed[2].decode().removesuffix("\n\n").split("\n\n")
    json.loads(first.split("data: ")[1])
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(second.split("data: ")[1])
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(malformed_whole[2])
    assert (empty[0], empty[2], empty_whole[2]) == (200, b"", b"")
    assert [event["error"]["type"] for event in events(overloaded[2])] == ["overloaded_error"]
    assert overloaded_whole[0] == 529


def test_slow_waits_before_the_first_byte_and_between_events() -> None:
    with ModelServer([SCRIPT], [Fault("slow", delay=0.3), Fault("slow", event_delay=0.05)]) as server:
        for least in (0.3, 0.25):
            started = time.monotonic()
            assert said(post(server, request())) == "I write."
            assert time.monotonic() - started >= least
        assert server.stats.tokens == Usage(202, 106, 614, 422)


def test_refused_means_that_nobody_listens() -> None:
    with ModelServer([SCRIPT], [Fault("refused")]) as server:
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", server.port), timeout=5)


def test_another_key_is_refused() -> None:
    with ModelServer([SCRIPT], api_key="right") as server:
        assert post(server, request(), x_api_key="wrong")[0] == 401
        assert post(server, request(), x_api_key="right")[0] == 200
        assert post(server, request(), authorization="Bearer right")[0] == 200
        assert [record.credential for record in server.stats.log] == ["wrong", "right", "right"]


def test_a_client_that_goes_away_is_noted_and_gets_no_tokens_booked() -> None:
    with ModelServer([Script([Turn("x" * 5000, event_delay=0.02)])]) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
            body = json.dumps(request()).encode()
            connection.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            assert connection.recv(100)
        deadline = time.monotonic() + 20
        while "client gone" not in server.stats.as_json()["faults"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert server.stats.tokens.output == 0
        assert server.stats.problems == []


def test_closing_does_not_wait_for_slow_replies() -> None:
    server = ModelServer([SCRIPT], [Fault("slow", delay=600)])
    with ThreadPoolExecutor() as pool, server:
        waiting = pool.submit(post, server, request())
        deadline = time.monotonic() + 20
        while server.stats.main == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        started = time.monotonic()
        server.close()
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            waiting.result(20)
        assert time.monotonic() - started < 10


# -- books


def test_many_sessions_at_once_are_counted_exactly() -> None:
    scripts = [Script(SCRIPT.turns, key=f"task-{at:02d}") for at in range(48)]

    def session(server: ModelServer, at: int) -> list[str]:
        prompt = f"{FIRST} task-{at:02d}"
        return [said(post(server, request(replies, prompt), x_claude_code_session_id=str(at))) for replies in (0, 1)]

    with ModelServer(scripts) as server, ThreadPoolExecutor(48) as pool:
        assert list(pool.map(lambda at: session(server, at), range(48))) == [["I write.", "Done."]] * 48
        told = server.stats.as_json()
        assert json.loads(get(server, "/_stats")[1]) == told
    assert told["requests"] == {"all": 96, "main": 96}
    assert told["tokens"] == {"input": 48 * 204, "output": 48 * 76, "cache_read": 48 * 816, "cache_write": 48 * 211}
    assert {tally["main"] for tally in told["by_key"].values()} == {2}
    assert told["by_model"]["m1"]["tokens"] == told["tokens"]


def test_the_log_is_bounded_and_bodies_are_kept_only_on_demand() -> None:
    with ModelServer([SCRIPT]) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        for _ in range(1100):
            connection.request("HEAD", "/")
            connection.getresponse().read()
        connection.close()
        assert (server.stats.all, len(server.stats.log)) == (1100, 1000)
        assert server.stats.log[-1].number == 1100
    with ModelServer([SCRIPT], keep_bodies=True) as server:
        post(server, request(), "/v1/messages/count_tokens")
        assert server.stats.log[0].body == request()
        assert json.loads(get(server, "/_log")[1])[0]["body"] == request()


usages = st.builds(Usage, *(st.integers(0, 10**9) for _ in range(4)))


@given(usage=usages, text=st.text(max_size=300), names=st.lists(st.text(min_size=1, max_size=5), max_size=3))
def test_the_tokens_told_by_events_add_up_to_the_usage(usage: Usage, text: str, names: list[str]) -> None:
    answer = Answer("m", text, tuple(Call(name, {"x": text}) for name in names), usage)
    for protocol in PROTOCOLS:
        seen = list(protocol.events(answer))
        total = Usage(0, 0, 0, 0)
        for event in seen:
            total = total + event.told
        assert total == usage
        assert (
            "".join(each["delta"].get("text", "") for each in events(b"".join(e.data for e in seen)) if "text" in each.get("delta", {}))
            == text
        )
