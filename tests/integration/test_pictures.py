"""Pictures through a cluster of real processes: to models that see, from servers that are what they like."""

from __future__ import annotations

import base64
import hashlib
import signal
import threading
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
)
from tests.integration.picture_server import PictureServer, moved, picture_server, whole
from tests.pictures import GIF, JPEG, WEBP, data_url, png, png_head

pytestmark = pytest.mark.integration

ECHO = script(echo_prompt=True)
SECRET = "token=do-not-tell"


@pytest.fixture(scope="module")
def server() -> Iterator[PictureServer]:
    with picture_server() as found:
        yield found


@pytest.fixture(scope="module")
def cluster(server: PictureServer) -> Iterator[Cluster]:
    media = f'[media]\nhttp = true\nports = [{server.port}]\nallow_private = ["127.0.0.1"]\ntimeout_s = 2.0\n'
    workers = fake_worker("blind") + "".join(
        fake_worker(name, model="eye", max_num_seqs=4, engine_options={"sees": True})
        for name in ("eye-1", "eye-2")
    )
    config = config_text(workers, extra=f'{media}[log]\nlevel = "debug"\n')
    with running(config, "blind", "eye-1", "eye-2") as found:
        yield found
        found.wait_idle()
        for process_id in found.processes:
            log = found.log(process_id)
            assert "Traceback" not in log
            assert SECRET not in log
            assert base64.b64encode(png()).decode()[20:40] not in log


@pytest.fixture
def http(cluster: Cluster) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cluster.url(), timeout=PATIENCE_S) as client:
        yield client


def turn(*pictures: str, text: str = ECHO) -> dict[str, Any]:
    """A turn of chat completions."""
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
    return {"role": "user", "content": [{"type": "text", "text": text}, *parts]}


def told(data: bytes, kind: str = "png") -> str:
    """What an engine tells of a picture that arrived whole."""
    return f"[image/{kind} of {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}]"


def refused(http: httpx.Client, url: str, *, model: str = "eye") -> dict[str, Any]:
    answer = http.post("/v1/chat/completions", json={"model": model, "messages": [turn(url)]})
    assert answer.status_code == 400, answer.text
    assert SECRET not in answer.text
    return dict(answer.json()["error"])


def test_every_dialect_brings_pictures_whole_to_a_model_that_sees(http: httpx.Client, server: PictureServer):
    for name, data in (("a.jpg", JPEG), ("b.webp", WEBP)):
        server.answers[f"/{name}"] = whole(data, "Content-Type: text/plain")
    fetched, given = server.url(f"/a.jpg?{SECRET}"), data_url(GIF, "image/png")
    text = {"type": "text", "text": ECHO}
    openai = http.post("/v1/chat/completions", json={"model": "eye", "messages": [turn(fetched, given)]})
    content = openai.json()["choices"][0]["message"]["content"]
    assert content.index(told(JPEG, "jpeg")) < content.index(told(GIF, "gif"))

    result = {"type": "image", "source": {"type": "url", "url": server.url("/b.webp")}}
    use = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png()).decode()}
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [use]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": [result]},
                text,
                {"type": "image", "source": source},
            ],
        },
    ]
    anthropic = http.post("/v1/messages", json={"model": "eye", "max_tokens": 500, "messages": turns})
    content = "".join(block.get("text", "") for block in anthropic.json()["content"])
    assert content.index(told(WEBP, "webp")) < content.index(told(png()))

    ollama = http.post(
        "/api/chat",
        json={
            "model": "eye",
            "stream": False,
            "messages": [{"role": "user", "content": ECHO, "images": [source["data"]]}],
        },
    )
    assert told(png()) in ollama.json()["message"]["content"]


def test_a_conversation_that_is_kept_keeps_its_pictures(http: httpx.Client):
    picture = {"type": "input_image", "image_url": data_url(png())}
    first = http.post(
        "/v1/responses", json={"model": "eye", "input": [{"role": "user", "content": [picture]}]}
    )
    body = {"model": "eye", "previous_response_id": first.json()["id"], "input": ECHO}
    assert told(png()) in http.post("/v1/responses", json=body).json()["output"][0]["content"][0]["text"]
    blind = http.post("/v1/responses", json={**body, "model": "fake-model"})
    assert (blind.status_code, blind.json()["error"]["code"]) == (400, "unsupported_value")


def test_all_choices_share_the_pictures(http: httpx.Client):
    answer = http.post(
        "/v1/chat/completions", json={"model": "eye", "n": 3, "messages": [turn(data_url(png()))]}
    )
    texts = [choice["message"]["content"] for choice in answer.json()["choices"]]
    assert [told(png()) in text for text in texts] == [True] * 3


def test_nothing_is_fetched_for_a_model_that_cannot_see(http: httpx.Client, server: PictureServer):
    url = server.url("/never.png")
    error = refused(http, url, model="fake-model")
    assert (error["param"], error["code"]) == ("messages[0].content[1].type", "unsupported_value")
    assert error["message"].endswith("takes text only; models that see: eye")
    source = {"type": "image", "source": {"type": "url", "url": url}}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        body = {"model": "fake-model", "max_tokens": 5, "messages": [{"role": "user", "content": [source]}]}
        answer = http.post(path, json=body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    counted = http.post("/v1/messages/count_tokens", json={**body, "model": "eye"})
    assert "tokens are not told" in counted.json()["error"]["message"]
    assert "/never.png" not in server.paths
    models = {entry["id"]: entry["input_modalities"] for entry in http.get("/v1/models").json()["data"]}
    assert models == {"fake-model": ["text"], "eye": ["text", "image"]}


def test_hostile_pictures_are_refused_in_words_and_a_stream_beside_them_goes_on(
    http: httpx.Client, cluster: Cluster, server: PictureServer
):
    def endless(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + png())
        while True:
            connection.sendall(b"x" * 65536)

    def crumbs(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            connection.sendall(b"1\r\nx\r\n" * 5000)

    private = f"http://127.0.0.2:{server.port}/ok.png?{SECRET}"
    server.answers |= {
        "/endless": endless,
        "/crumbs": crumbs,
        "/silent": lambda connection: server.over.wait(60),
        "/inward": moved(private),
        "/packed": whole(b"\x1f\x8b" * 100, "Content-Encoding: gzip"),
        "/page": whole(b"<html>" * 100, "Content-Type: image/png"),
        "/bomb": whole(png_head(30_000, 30_000)),
    }
    hostile = {
        private: "no address on the public internet",
        f"http://localhost:22/?{SECRET}": "the port 22",
        f"file:///etc/passwd?{SECRET}": "has to begin with",
        "http://169.254.169.254/latest/meta-data": "the port 80",
        server.url(f"/inward?{SECRET}"): "no address on the public internet",
        server.url(f"/endless?{SECRET}"): "more than 20971520 bytes",
        server.url(f"/crumbs?{SECRET}"): "neither PNG",
        server.url(f"/silent?{SECRET}"): "was not there within 2 s",
        server.url(f"/packed?{SECRET}"): "compressed",
        server.url(f"/page?{SECRET}"): "neither PNG",
        server.url(f"/bomb?{SECRET}"): "30000 x 30000 pixels",
        server.url(f"/nothing?{SECRET}"): "the status 404",
        data_url(png_head(30_000, 30_000)): "30000 x 30000 pixels",
        "data:image/png;base64,@@@": "not valid base64",
        "data:text/html,<p>": "not of the form",
        "": "neither an address",
    }
    events: list[Any] = []

    def read() -> None:
        words = script(tokens=["a "], repeat=150, delay_ms=20)
        with (
            httpx.Client(base_url=cluster.url(), timeout=PATIENCE_S) as client,
            client.stream("POST", "/v1/chat/completions", json=chat(words, stream=True)) as answer,
        ):
            events.extend(sse(list(answer.iter_lines())))

    stream = threading.Thread(target=read)
    stream.start()
    for url, words in hostile.items():
        error = refused(http, url)
        assert error["param"] == "messages[0].content[1].image_url"
        assert words in error["message"], url[:60]
    stream.join()
    assert text_of(events) == "a " * 150
    assert b"127.0.0.2" not in b"".join(server.heads)


def test_a_client_that_leaves_while_its_picture_is_fetched_leaves_nothing(
    cluster: Cluster, server: PictureServer
):
    gone = threading.Event()

    def hold(connection):
        connection.settimeout(PATIENCE_S)
        connection.recv(1)  # the gateway hangs up
        gone.set()

    server.answers["/hold"] = hold
    body = {"model": "eye", "messages": [turn(server.url("/hold"))]}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(cluster.url() + "/v1/chat/completions", json=body, timeout=0.5)
    assert gone.wait(PATIENCE_S)


def test_a_stream_with_a_picture_goes_on_at_another_worker(cluster: Cluster, http: httpx.Client):
    body = {
        "model": "eye",
        "stream": True,
        "messages": [turn(data_url(png()), text=script(echo_prompt=True, tokens=["z "] * 30, delay_ms=20))],
    }
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        undisturbed = text_of(sse(list(answer.iter_lines())))
    assert told(png()) in undisturbed
    seen: list[str] = []
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        worker = answer.headers["x-worker-id"]
        for line in answer.iter_lines():
            seen.append(line)
            if len(seen) == 20:
                cluster.signal(worker, signal.SIGKILL)
    assert text_of(sse(seen)) == undisturbed
