"""What an HTTP client can do to a gateway: each of it ends in words, in time, and harms nobody else."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.cluster import (
    PATIENCE_S,
    Cluster,
    chat,
    config_text,
    fake_worker,
    running,
    script,
    sse,
    text_of,
    wait_for,
)
from tests.integration.raw_http import (
    connect,
    error_code,
    exchange,
    get,
    is_closed,
    parse,
    read_to_end,
    read_until,
    request,
    reset,
    seconds,
)

pytestmark = pytest.mark.integration

LIMITS = """
[limits]
body_timeout_s = 1.5
keepalive_s = 0.3
stream_buffer_bytes = 20000
stream_stall_s = 1.5
max_connections = 50
drain_timeout_s = 1.0
"""
ENDLESS = chat(script(tokens=["a"], repeat=1_000_000, delay_ms=5))
TWO = chat(script(tokens=["a", "b"]))
CLOSE = "Connection: close"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running(config_text(fake_worker("w-1", max_num_seqs=4), extra=LIMITS), "w-1") as found:
        yield found
        found.wait_idle()
        for process_id in found.processes:
            log = found.log(process_id)
            assert "Traceback" not in log
            assert " ERROR " not in log
            assert "socket.send() raised" not in log


def descriptors(cluster: Cluster) -> int:
    """Of the gateway. Linux tells; elsewhere the counters alone have to do."""
    folder = f"/proc/{cluster.processes['gw-1'].pid}/fd"
    return len(os.listdir(folder)) if os.path.isdir(folder) else 0


def raw_post(head: str, body: bytes) -> bytes:
    lines = "POST /v1/chat/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
    return lines.encode() + head.encode() + b"\r\n\r\n" + body


# --- bytes that are no request ---


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"FOO /v1/models HTTP/1.1\r\n\r\n",
        b"GET /v1/\x00 HTTP/1.1\r\n\r\n",
        b"CONNECT other:80 HTTP/1.1\r\nHost: other\r\n\r\n",
        b"GET http://other HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        raw_post("Transfer-Encoding: chunked", b"ZZ\r\nabc\r\n"),
        raw_post("Transfer-Encoding: chunked", b"-1\r\nabc\r\n"),
        raw_post("Transfer-Encoding: chunked\r\nContent-Length: 5", b"0\r\n\r\n"),
        raw_post("Content-Length: 5\r\nContent-Length: 6", b"abcdef"),
        raw_post("Content-Length: -5", b"abcde"),
        raw_post("Content-Length: 5", b"12345 and more than was announced"),
    ],
)
def test_bytes_that_are_no_request_are_answered_in_openais_shape(cluster: Cluster, sent: bytes):
    assert error_code(exchange(cluster.url(), sent)) == (400, "invalid_http")


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"GET /", b"x" * 65_536),
        (b"GET / HTTP/1.1\r\nA: ", b"x" * 65_536),
        (b"GET / HTTP/1.1\r\n", b"a: b\r\n" * 10_000),
        (raw_post("Transfer-Encoding: chunked", b"1\r\n{\r\n0\r\n"), b"a: b\r\n" * 10_000),
        (raw_post("Transfer-Encoding: chunked", b"1;"), b"x" * 65_536),
    ],
    ids=["path", "header", "headers", "trailers", "chunk extension"],
)
def test_what_is_not_body_is_bounded(cluster: Cluster, begin: bytes, piece: bytes):
    with connect(cluster.url()) as connection:
        connection.sendall(begin)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            connection.sendall(piece * 1000)


def test_a_head_that_is_too_long_is_told_so(cluster: Cluster):
    with connect(cluster.url()) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nA: " + b"x" * 70_000)
        assert error_code(read_to_end(connection)) == (413, "request_too_large")


def test_a_body_in_chunks_of_one_byte_with_extensions_and_trailers_is_read(cluster: Cluster):
    body = b"".join(b"1;e=1\r\n%c\r\n" % byte for byte in json.dumps(TWO).encode())
    sent = raw_post(f"Transfer-Encoding: chunked\r\n{CLOSE}", body + b"0\r\nT: x\r\n\r\n")
    status, _headers, answer = parse(exchange(cluster.url(), sent))
    assert status == 200
    assert json.loads(answer)["choices"][0]["message"]["content"] == "ab"


# --- slow ones ---


def test_heads_bodies_and_silence_have_their_time(cluster: Cluster):
    url = cluster.url()
    began = time.monotonic()
    with connect(url) as silent, connect(url) as head, connect(url) as body, connect(url) as expects:
        head.sendall(b"POST /v1/chat")
        body.sendall(raw_post("Content-Length: 100", b'{"model'))
        expects.sendall(raw_post("Content-Length: 100\r\nExpect: 100-continue", b""))
        assert read_until(expects, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert error_code(read_to_end(head)) == (408, "request_timeout")
        assert error_code(read_to_end(body)) == (408, "request_timeout")
        assert error_code(read_to_end(expects)) == (408, "request_timeout")
        assert is_closed(silent)
    assert 1.0 < seconds(began) < 10


def test_a_head_that_trickles_in_buys_no_time(cluster: Cluster):
    began = time.monotonic()
    with connect(cluster.url()) as connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(b"GET / HTTP/1.1\r\nA: ")
        while seconds(began) < PATIENCE_S:
            connection.sendall(b"x")
            time.sleep(0.05)
    assert seconds(began) < 10


# --- clients that leave ---


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_with_a_second_request_sent_frees_the_first(cluster: Cluster, stream: bool):
    for leave in (socket.socket.close, reset):
        connection = connect(cluster.url())
        connection.sendall(request({**ENDLESS, "stream": stream}) + request(ENDLESS))
        wait_for(lambda: cluster.worker("w-1")["running"], "the request to run")
        leave(connection)
        cluster.wait_idle(patience_s=5)


def test_a_client_that_closes_its_half_has_left(cluster: Cluster):
    with connect(cluster.url()) as connection:
        connection.sendall(request(ENDLESS))
        wait_for(lambda: cluster.worker("w-1")["running"], "the request to run")
        connection.shutdown(socket.SHUT_WR)
        cluster.wait_idle(patience_s=5)


def test_many_quick_visits_leave_nothing_behind(cluster: Cluster):
    cluster.wait_idle()
    before = descriptors(cluster)
    sent = request({**ENDLESS, "stream": True})

    def visit(number: int) -> None:
        for turn in range(50):
            connection = connect(cluster.url())
            connection.sendall(sent[: (number * 50 + turn) * len(sent) // 450])
            (reset if turn % 2 else socket.socket.close)(connection)

    visitors = [threading.Thread(target=visit, args=(number,)) for number in range(10)]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join()
    cluster.wait_idle()
    wait_for(lambda: descriptors(cluster) <= before, "the descriptors to be closed")


@pytest.mark.parametrize("tokens", [{"repeat": 1_000_000}, {"repeat": 2_500}])
def test_clients_that_never_read_are_cut_off(cluster: Cluster, tokens: dict[str, int]):
    """Also when the answer is complete and only waits to be read."""
    cluster.wait_idle()
    before = descriptors(cluster)
    body = chat(script(tokens=["x" * 2000], delay_ms=0.1, **tokens), stream=True)
    readers = [connect(cluster.url(), receive_buffer=4096) for _ in range(3)]
    for reader in readers:
        reader.sendall(request(body))
    for reader in readers:
        assert reader.recv(1, socket.MSG_PEEK), "the answer began"
    cluster.wait_idle()
    wait_for(lambda: descriptors(cluster) <= before, "the descriptors to be closed")
    for reader in readers:
        assert not read_to_end(reader).endswith(b"0\r\n\r\n")
        reader.close()


def test_a_stream_beside_clients_that_never_read_goes_on(cluster: Cluster):
    flood = request(chat(script(tokens=["x" * 2000], repeat=1_000_000, delay_ms=1), stream=True))
    with connect(cluster.url(), receive_buffer=4096) as reader:
        reader.sendall(flood)
        body = {**chat(script(tokens=["a"], repeat=100, delay_ms=20)), "stream": True}
        with httpx.stream("POST", cluster.url() + "/v1/chat/completions", json=body) as answer:
            assert text_of(sse(list(answer.iter_lines()))) == "a" * 100


def test_a_client_that_reads_slowly_but_steadily_is_served(cluster: Cluster):
    """For twice as long as one that reads nothing may stay; then it takes the rest."""
    text = "x" * 100_000
    with connect(cluster.url()) as reader:
        reader.sendall(request(chat(script(tokens=[text], repeat=200)), headers=[CLOSE]))
        received = [reader.recv(65_536)]
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            received.append(reader.recv(16_384))
            time.sleep(0.05)
        received.append(read_to_end(reader))
    _status, _headers, body = parse(b"".join(received))
    assert len(json.loads(body)["choices"][0]["message"]["content"]) == 200 * len(text)
    cluster.wait_idle()


# --- several on one connection ---


def test_requests_sent_ahead_are_answered_in_their_order(cluster: Cluster):
    sent = b"".join(request(chat(script(tokens=[f"answer {i}"]))) for i in range(5))
    answer = exchange(cluster.url(), sent + get("/health", CLOSE)).decode()
    places = [answer.index(f'"answer {i}"') for i in range(5)]
    assert places == sorted(places)
    assert answer.endswith('{"status":"ok"}')


def test_too_many_requests_sent_ahead_end_the_connection(cluster: Cluster):
    answer = exchange(cluster.url(), request(ENDLESS) + get("/health") * 100)
    assert error_code(answer) == (400, "invalid_http")
    cluster.wait_idle(patience_s=5)


# --- older and newer clients ---


def test_a_stream_for_http_1_0_has_no_chunks(cluster: Cluster):
    status, headers, body = parse(exchange(cluster.url(), request({**TWO, "stream": True}, version="1.0")))
    assert status == 200
    assert "transfer-encoding" not in headers
    assert headers["connection"] == "close"
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")
    assert text_of(sse(body.decode().splitlines())) == "ab"


def test_an_answer_for_http_1_0_has_its_length(cluster: Cluster):
    status, headers, body = parse(exchange(cluster.url(), request(TWO, version="1.0")))
    assert (status, int(headers["content-length"])) == (200, len(body))


def test_a_wish_for_another_protocol_is_passed_over_and_the_body_is_read(cluster: Cluster):
    """As Java's own client begins each of its connections."""
    wish = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"]
    with connect(cluster.url()) as connection:
        connection.sendall(request(TWO, headers=wish) + get("/health", CLOSE))
        answer = read_to_end(connection).decode()
    assert '"content":"ab"' in answer
    assert answer.endswith('{"status":"ok"}')


def test_an_answer_on_a_kept_connection_does_not_wait_for_acknowledgements(cluster: Cluster):
    with httpx.Client(base_url=cluster.url(), timeout=PATIENCE_S) as client:
        taken = []
        for _ in range(15):
            began = time.monotonic()
            assert client.post("/v1/chat/completions", json=TWO).status_code == 200
            taken.append(seconds(began))
    assert min(taken) < 0.03, "a delayed acknowledgement holds each of them for 40 ms, a busy machine some"


# --- too many ---


def test_idle_connections_give_way_to_new_ones(cluster: Cluster):
    idle = [connect(cluster.url()) for _ in range(200)]
    answers = [exchange(cluster.url(), request(TWO, headers=[CLOSE])) for _ in range(3)]
    answers += [exchange(cluster.url(), get("/health", CLOSE)) for _ in range(3)]
    assert [parse(answer)[0] for answer in answers] == [200] * 6
    assert descriptors(cluster) < 150
    for connection in idle:
        connection.close()


def test_more_clients_than_may_connect_are_refused_and_health_is_told():
    config = config_text(fake_worker("w-1", max_num_seqs=4), extra="[limits]\nmax_connections = 10\n")
    with running(config, "w-1") as cluster, contextlib.ExitStack() as held:
        for _ in range(10):
            held.enter_context(connect(cluster.url())).sendall(request(ENDLESS))
        wait_for(lambda: cluster.state()["gateways"][0]["queued"] == 6, "the places to be taken")
        answer = exchange(cluster.url(), request(TWO))
        assert error_code(answer) == (429, "rate_limit_exceeded")
        assert parse(answer)[1]["connection"] == "close"
        assert parse(exchange(cluster.url(), get("/health", CLOSE)))[0] == 200
        held.close()
        cluster.wait_idle()
        assert parse(exchange(cluster.url(), request(TWO, headers=[CLOSE])))[0] == 200


def test_the_gateway_gets_itself_the_descriptors_that_it_needs():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        cluster_of_few = running(config_text(fake_worker("w-1")), "w-1")
        cluster = cluster_of_few.__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with contextlib.ExitStack() as held:
        held.push(cluster_of_few)
        idle = [held.enter_context(connect(cluster.url())) for _ in range(200)]
        for connection in idle:
            connection.sendall(get("/health"))
        for connection in idle:
            assert parse(read_until(connection, b'{"status":"ok"}'))[0] == 200


# --- the end ---


def test_a_gateway_that_is_stopped_tells_everybody_and_leaves_in_time():
    with (
        running(config_text(fake_worker("w-1"), extra=LIMITS), "w-1") as cluster,
        contextlib.ExitStack() as held,
    ):
        url = cluster.url()

        def client(sent: bytes, receive_buffer: int | None = None) -> socket.socket:
            connection = held.enter_context(connect(url, receive_buffer=receive_buffer))
            connection.sendall(sent)
            return connection

        unread = chat(script(tokens=["y" * 2000], repeat=1_000_000, delay_ms=1), stream=True)
        client(b"POST /v1/ch")
        client(raw_post("Content-Length: 100", b"{"))
        client(request(unread), 4096)
        whole = client(request(ENDLESS))
        streamed = client(request({**ENDLESS, "stream": True}))
        ahead = client(request(TWO) + request(ENDLESS))
        wait_for(lambda: cluster.worker("w-1")["running"] >= 3, "the requests to run")
        cluster.signal("gw-1", signal.SIGHUP)
        cluster.signal("gw-1", signal.SIGTERM)
        began = time.monotonic()
        assert cluster.wait_exit("gw-1") == 0
        assert seconds(began) < 6
        assert error_code(read_to_end(whole)) == (503, "shutting_down")
        last = read_to_end(streamed)
        assert b'"code":"shutting_down"}}\n\n' in last
        assert last.endswith(b"0\r\n\r\n")
        assert b'"code":"shutting_down"' in read_to_end(ahead)
        log = cluster.log("gw-1")
        assert "Traceback" not in log
        assert " ERROR " not in log


# --- what is sent, to the byte ---


def test_a_stream_is_made_of_these_bytes(cluster: Cluster):
    body = chat(script(tokens=['a\n\nb\r"\\\0é👋']), stream=True, stream_options={"include_usage": True})
    answer = httpx.post(cluster.url() + "/v1/chat/completions", json=body, timeout=PATIENCE_S)
    first = json.loads(answer.text.split("\n\n")[0][6:])
    common = ",".join(
        f'"{key}":{json.dumps(first[key])}'
        for key in ("id", "object", "created", "model", "system_fingerprint")
    ).replace('": ', '":')

    def chunk(choices: str, usage: str = "null") -> str:
        return f'data: {{{common},"choices":[{choices}],"usage":{usage}}}\n\n'

    def choice(delta: str, reason: str = "null") -> str:
        return f'{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{reason}}}'

    usage = (
        '{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6,"prompt_tokens_details":'
        '{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}'
    )
    assert answer.text == "".join(
        [
            chunk(choice('{"role":"assistant","content":""}')),
            chunk(choice('{"content":"a\\n\\nb\\r\\"\\\\\\u0000é👋"}')),
            chunk(choice("{}", '"stop"')),
            chunk("", usage),
            "data: [DONE]\n\n",
        ]
    )


def test_silence_is_filled_with_comments_that_join_the_next_event(cluster: Cluster):
    body = chat(script(tokens=["a"], prefill_ms=1500), stream=True)
    with httpx.stream(
        "POST", cluster.url() + "/v1/chat/completions", json=body, timeout=PATIENCE_S
    ) as answer:
        pieces = [(time.monotonic(), piece) for piece in answer.iter_raw()]
    comments = [now for now, piece in pieces if piece == b": keepalive\n"]
    assert 2 <= len(comments) <= 5
    assert all(0.25 <= later - now < 1.0 for now, later in itertools.pairwise(comments))
    assert b"".join(piece for _now, piece in pieces).count(b": keepalive\n") == len(comments)


ANSWERS = [
    ({"tokens": ["one ", "tw", "o th", "ree"]}, {"stop": ["two"]}, "one ", "stop"),
    ({"tokens": ["ab", "cd", "ef"]}, {"stop": ["bcde", "cd", "d", "abcdefg", "f"]}, "ab", "stop"),
    ({"tokens": ["ab"], "bytes": ["f09f", "9880", "41"]}, {"stop": ["😀A"]}, "ab", "stop"),
    ({"tokens": ["ab"], "bytes": ["f09f", "9880"]}, {"stop": ["😀A", ""]}, "ab😀", "stop"),
    ({"tokens": ["<", "st", "op"]}, {"stop": ["<stop>"]}, "<stop", "stop"),
    ({"tokens": ["abc"]}, {"stop": "abc"}, "", "stop"),
    ({"tokens": ["a"], "repeat": 50}, {"max_tokens": 7}, "a" * 7, "length"),
    ({"tokens": ["x"], "bytes": ["f09f"]}, {}, "x\ufffd", "stop"),
    ({"tokens": []}, {}, "", "stop"),
]


@pytest.mark.parametrize(("scripted", "settings", "text", "reason"), ANSWERS)
def test_a_stream_and_a_whole_answer_agree(
    cluster: Cluster, scripted: dict[str, Any], settings: dict[str, Any], text: str, reason: str
):
    url = cluster.url() + "/v1/chat/completions"
    body = chat(script(**scripted), **settings)
    whole = httpx.post(url, json=body, timeout=PATIENCE_S).json()
    streamed = httpx.post(
        url, json={**body, "stream": True, "stream_options": {"include_usage": True}}, timeout=PATIENCE_S
    )
    events = sse(streamed.text.split("\n"))
    assert whole["choices"][0]["message"]["content"] == text_of(events) == text
    assert whole["choices"][0]["finish_reason"] == events[-3]["choices"][0]["finish_reason"] == reason
    assert whole["usage"] == events[-2]["usage"]
    assert [event["usage"] for event in events[:-2]] == [None] * (len(events) - 2)


# --- names ---


def test_the_same_id_given_to_two_requests_keeps_them_apart(cluster: Cluster):
    headers = {"x-request-id": "mine"}
    with connect(cluster.url()) as leaves:
        leaves.sendall(request({**ENDLESS, "stream": True}, headers=["x-request-id: mine"]))
        wait_for(lambda: cluster.worker("w-1")["running"], "the request to run")
        body = chat(script(tokens=["z"], repeat=50, delay_ms=10), stream=True)
        with httpx.stream(
            "POST", cluster.url() + "/v1/chat/completions", json=body, headers=headers
        ) as answer:
            assert answer.headers["x-request-id"] == "mine"
            leaves.close()
            assert text_of(sse(list(answer.iter_lines()))) == "z" * 50


def test_names_that_clients_make_up_reach_neither_labels_nor_lines(cluster: Cluster):
    url = cluster.url()
    lines = len(httpx.get(url + "/metrics").text.splitlines())
    evil = 'evil"}\n2026-01-01 INFO forged'
    for number in range(50):
        body = chat("x", model=evil + str(number))
        assert httpx.post(url + "/v1/chat/completions", json=body).status_code == 404
    exchange(
        url, get("/evil%0a2026-01-01%20INFO%20forged%0d%00%1b[31m", f"x-request-id: evil\tid\r\n{CLOSE}")
    )
    metrics = httpx.get(url + "/metrics").text
    assert "evil" not in metrics
    assert len(metrics.splitlines()) <= lines + 3
    assert not [line for line in cluster.log("gw-1").splitlines() if line.startswith("2026-01-01 INFO")]
    assert "\x1b" not in cluster.log("gw-1")


def test_a_flood_is_counted_to_the_request():
    config = config_text(fake_worker("w-1", max_num_seqs=2), extra="[queue]\nmax_requests = 5\n")
    with running(config, "w-1") as cluster, contextlib.ExitStack() as held:
        url = cluster.url()
        sent = request(chat(script(tokens=["a"], repeat=20, delay_ms=50)), headers=[CLOSE])
        clients = [held.enter_context(connect(url)) for _ in range(60)]
        began = time.monotonic()
        for client in clients:
            client.sendall(sent)
        answers = [parse(read_to_end(client)) for client in clients]
        assert sorted(status for status, _headers, _body in answers) == [200] * 7 + [429] * 53
        assert seconds(began) > 1
        refused = [headers for status, headers, _body in answers if status == 429]
        assert all(1 <= int(headers["retry-after"]) <= 36 for headers in refused)
        cluster.wait_idle()
        metrics = httpx.get(url + "/metrics").text
        assert 'studiofleet_requests_total{code="ok",model="fake-model"} 7.0' in metrics
        assert 'studiofleet_requests_total{code="overloaded",model="fake-model"} 53.0' in metrics
