"""Pictures from official clients, in each dialect, to workers that see."""

from __future__ import annotations

import base64
import io
import signal
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import psutil
import pytest

from tests.integration.cluster import Cluster, config_text, fake_worker, running, sse, text_of
from tests.mlx.tiny_vision import picture
from tests.pictures import JPEG, data_url, png, png_head

pytestmark = [pytest.mark.mlx, pytest.mark.timeout(600)]

PATIENCE_S = 240.0
UNSURE = {"temperature": 2.0, "seed": 11, "max_tokens": 400, "ignore_eos": True}
"""Long answers that are not easily guessed."""


@pytest.fixture(scope="module")
def cluster(seeing) -> Iterator[Cluster]:
    workers = fake_worker("blind") + "".join(
        f'[[workers]]\nid = "{name}"\nmodel = "{seeing}"\nserved_name = "eye"\nmax_num_seqs = 4\n'
        for name in ("eye-1", "eye-2")
    )
    config = config_text(workers, extra='[log]\nlevel = "debug"\n')
    with running(config, "blind", "eye-1", "eye-2", patience_s=PATIENCE_S) as found:
        yield found
        for process_id in found.processes:
            assert "Traceback" not in found.log(process_id)


@pytest.fixture(scope="module")
def openai_client(cluster: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=cluster.url() + "/v1", api_key="none", max_retries=0, timeout=PATIENCE_S
    ) as made:
        yield made


@pytest.fixture(scope="module")
def anthropic_client(cluster: Cluster) -> Iterator[anthropic.Anthropic]:
    made = anthropic.Anthropic(base_url=cluster.url(), api_key="none", max_retries=0, timeout=PATIENCE_S)
    with made:
        yield made


def saved(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def pictures() -> dict[str, tuple[bytes, str, str]]:
    """Of each its bytes, the type that is claimed for it, and what it shows."""
    turned = picture("blue", 84, 56).getexif()
    turned[0x0112] = 6
    moving = {"save_all": True, "append_images": [picture("red")]}
    return {
        "png": (saved(picture("red")), "image/png", "red"),
        "jpeg": (saved(picture("green"), "JPEG"), "image/jpeg", "green"),
        "webp": (saved(picture("blue"), "WEBP"), "image/webp", "blue"),
        "huge": (saved(picture("yellow", 3000, 2000)), "image/png", "yellow"),
        "tiny": (saved(picture("black", 1, 1)), "image/png", "black"),
        "lying": (saved(picture("white")), "image/jpeg", "white"),
        "moving": (saved(picture("green"), "GIF", **moving), "image/gif", "green"),
        "print": (saved(picture("red").convert("CMYK"), "JPEG"), "image/jpeg", "red"),
        "turned": (saved(picture("blue", 84, 56), "JPEG", exif=turned), "image/jpeg", "blue"),
    }


PICTURES = pictures()


def chat_turn(*given: bytes, kind: str = "image/png") -> list[Any]:
    parts = [{"type": "image_url", "image_url": {"url": data_url(data, kind)}} for data in given]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What do you see?"}]}]


def chat_body(*given: bytes, **fields: Any) -> dict[str, Any]:
    return {"model": "eye", "messages": chat_turn(*given), **fields}


@pytest.mark.parametrize("name", PICTURES)
def test_chat_completions_see(openai_client: openai.OpenAI, name: str):
    data, kind, shown = PICTURES[name]
    messages = chat_turn(data, kind=kind)
    answer = openai_client.chat.completions.create(model="eye", messages=messages, temperature=0)
    assert answer.choices[0].message.content == shown
    stream = openai_client.chat.completions.create(model="eye", messages=messages, temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == shown


@pytest.mark.parametrize("name", ["png", "jpeg", "webp", "lying"])
def test_responses_and_messages_see(
    openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic, name: str
):
    data, kind, shown = PICTURES[name]
    question: Any = {"type": "input_text", "text": "What do you see?"}
    seen: Any = {"type": "input_image", "image_url": data_url(data, kind), "detail": "auto"}
    turn: Any = [{"role": "user", "content": [question, seen]}]
    assert openai_client.responses.create(model="eye", input=turn, temperature=0).output_text == shown
    source: Any = {"type": "base64", "media_type": kind, "data": base64.b64encode(data).decode()}
    block: Any = [{"type": "image", "source": source}, {"type": "text", "text": "What do you see?"}]
    answer = anthropic_client.messages.create(
        model="eye",
        max_tokens=20,
        messages=[{"role": "user", "content": block}],
        extra_body={"temperature": 0},
    )
    assert [getattr(each, "text", None) for each in answer.content] == [shown]


def test_tokens_of_pictures_are_counted_and_come_from_the_cache(openai_client: openai.OpenAI):
    def usage(*given: bytes) -> Any:
        answer = openai_client.chat.completions.create(model="eye", messages=chat_turn(*given), max_tokens=1)
        return answer.usage

    small, large = saved(picture("red", 56, 56)), saved(picture("red", 112, 112))
    counted = [usage(*given).prompt_tokens for given in ((), (small,), (large,), (small, large))]
    marks = 2  # the beginning and the end of a picture
    tokens = [count - counted[0] - marks for count in counted[1:3]]
    assert tokens == [4, 16]
    assert counted[3] == counted[0] + 4 + 16 + 2 * marks
    fresh = saved(picture("green", 140, 56))
    assert usage(fresh).prompt_tokens_details.cached_tokens < 30
    again = usage(fresh)
    assert again.prompt_tokens_details.cached_tokens == again.prompt_tokens - 1


def test_models_tell_what_they_take_and_who_can_see(openai_client: openai.OpenAI, cluster: Cluster):
    models = {entry["id"]: entry for entry in httpx.get(cluster.url() + "/v1/models").json()["data"]}
    assert {name: entry["input_modalities"] for name, entry in models.items()} == {
        "fake-model": ["text"],
        "eye": ["text", "image"],
    }
    with pytest.raises(openai.BadRequestError, match="takes text only; models that see: eye"):
        openai_client.chat.completions.create(model="fake-model", messages=chat_turn(png()))


def bomb(side: int) -> bytes:
    """Whole, and small itself."""
    data = zlib.compress(b"\0" * (side * 3 + 1) * 40)
    chunk = len(data).to_bytes(4, "big") + b"IDAT" + data
    return png_head(side, side) + chunk + zlib.crc32(b"IDAT" + data).to_bytes(4, "big")


HOSTILE = {
    "bomb of 100 Mpx": (data_url(bomb(10_000)), "10000 x 10000 pixels"),
    "bomb of 900 Mpx": (data_url(png_head(30_000, 30_000) + b"\0" * 1000), "30000 x 30000 pixels"),
    "empty": ("data:image/png;base64,", ""),
    "cut jpeg": (data_url(JPEG[:-200], "image/jpeg"), "picture 2 "),
    "cut png": (data_url(saved(picture("red"))[:60]), "picture 2 "),
    "no base64": ("data:image/png;base64,@@@", "base64"),
    "a page": ("data:text/html,<p>", ""),
    "no comma": ("data:image/png;base64", ""),
    "film": ("data:video/mp4;base64,AAAA", ""),
    "a file": ("file:///etc/passwd", ""),
}


def test_fc_56_hostile_pictures_are_refused_by_number_and_disturb_nobody(
    openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic, cluster: Cluster
):
    body = chat_body(saved(picture("yellow")), stream=True, **UNSURE)
    undisturbed = streamed(cluster, body)
    resting = {name: resident(cluster, name) for name in ("gw-1", "eye-1", "eye-2")}
    said: list[str] = []
    stream = threading.Thread(target=lambda: said.append(streamed(cluster, body)))
    stream.start()
    good: Any = {"type": "image_url", "image_url": {"url": data_url(saved(picture("red")))}}
    for name, (url, words) in HOSTILE.items():
        bad: Any = {"type": "image_url", "image_url": {"url": url}}
        with pytest.raises(openai.BadRequestError) as refused:
            openai_client.chat.completions.create(
                model="eye", messages=[{"role": "user", "content": [good, bad]}]
            )
        assert words in str(refused.value), name
        assert "messages" in str(refused.value.param), name
    with pytest.raises(openai.BadRequestError, match="at most 20"):
        openai_client.chat.completions.create(model="eye", messages=chat_turn(*[png()] * 500))
    source: Any = {
        "type": "base64",
        "media_type": "image/jpeg",
        "data": base64.b64encode(JPEG[:-200]).decode(),
    }
    block: Any = [{"type": "image", "source": source}]
    with pytest.raises(anthropic.BadRequestError, match="picture 1"):
        anthropic_client.messages.create(
            model="eye", max_tokens=9, messages=[{"role": "user", "content": block}]
        )
    stream.join()
    assert said == [undisturbed]
    for name, before in resting.items():
        assert resident(cluster, name) - before < 50 << 20, name
        log = cluster.log(name)
        assert base64.b64encode(JPEG[:-200]).decode()[60:100] not in log
        assert len(log) < 1 << 20


def test_another_worker_goes_on_when_one_is_killed_in_a_stream(cluster: Cluster):
    body = chat_body(saved(picture("red")), saved(picture("blue", 84, 56)), stream=True, **UNSURE)
    body["max_tokens"] = 1500
    undisturbed = streamed(cluster, body)
    assert len(set(undisturbed)) > 20
    seen: list[str] = []
    with (
        httpx.Client(base_url=cluster.url(), timeout=PATIENCE_S) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        worker = answer.headers["x-worker-id"]
        for line in answer.iter_lines():
            seen.append(line)
            if len(seen) == 20:
                cluster.signal(worker, signal.SIGKILL)
    assert text_of(sse(seen)) == undisturbed
    (other,) = {"eye-1", "eye-2"} - {worker}
    assert "attempt 1 accepted" in cluster.log(other)  # the first is number 0


def streamed(cluster: Cluster, body: dict[str, Any]) -> str:
    with (
        httpx.Client(base_url=cluster.url(), timeout=PATIENCE_S) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        assert answer.status_code == 200, answer.read()
        return text_of(sse(list(answer.iter_lines())))


def resident(cluster: Cluster, process_id: str) -> int:
    return int(psutil.Process(cluster.processes[process_id].pid).memory_info().rss)
