"""Pictures from real servers on loopback: what is fetched, and what no server can do to a gateway."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import threading
from pathlib import Path

import pytest

from gateway.binding import StartError
from gateway.media.fetching import Fetcher
from gateway.media.intake import Pictures
from gateway.media.refusal import PictureError
from gateway.media.resolving import Resolver
from gateway.media.values import Picture
from protocol.config import MediaConfig
from protocol.errors import ClusterError, ErrorCode
from tests.certificates import certificate
from tests.integration.picture_server import PictureServer, moved, picture_server, whole
from tests.pictures import data_url, png, png_head

pytestmark = pytest.mark.integration

LOOPBACK = "127.0.0.1"
PUBLIC = "8.8.8.8"


@pytest.fixture
def server():
    with picture_server() as server:
        yield server


class Names:
    """Says of every host what it is told, one answer after another, and the last one for ever."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers = list(answers) or [[LOOPBACK]]
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int, asker: str) -> list[str]:
        self.asked.append(host)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def config(server: PictureServer, **given) -> MediaConfig:
    return MediaConfig(
        **{"http": True, "allow_private": (LOOPBACK,), "ports": (server.port,), "timeout_s": 60.0, **given}
    )


def fetched(
    server: PictureServer, path: str, names: Names | None = None, *, host: str = "pics.test", **given
):
    async def fetch() -> bytes:
        return await Fetcher(config(server, **given), names or Names()).fetch(server.url(path, host), "")

    return asyncio.run(fetch())


def refusal(server: PictureServer, path: str, names: Names | None = None, **given) -> str:
    with pytest.raises(PictureError) as raised:
        fetched(server, path, names, **given)
    assert "secret" not in str(raised.value)
    return str(raised.value)


def test_a_picture_is_fetched_and_nothing_is_told_but_what_is_needed(server):
    assert fetched(server, "/ok.png?key=1") == png()
    head = server.heads[0].decode().lower().splitlines()
    assert head[0] == "get /ok.png?key=1 http/1.1"
    assert {line.partition(":")[0] for line in head[1:] if line} == {
        *("host", "user-agent", "accept", "accept-encoding", "connection"),
    }
    assert f"host: pics.test:{server.port}" in head


def test_a_private_address_is_not_connected_to_by_name_or_by_number(server):
    for names in (Names([LOOPBACK]), Names([PUBLIC, LOOPBACK]), Names(["::ffff:127.0.0.1"]), Names([])):
        said = refusal(server, "/ok.png?secret", names, allow_private=())
        assert said == "pics.test has no address on the public internet"
    for host in ("localhost", LOOPBACK, "127.1", "2130706433", "0x7f.1", "0", "[::1]", "[::ffff:7f00:1]"):

        async def fetch(host: str = host) -> None:
            await Fetcher(config(server, allow_private=()), Resolver()).fetch(server.url("/ok.png", host), "")

        with pytest.raises(PictureError, match="no address on the public internet"):
            asyncio.run(fetch())
    assert server.heads == []


def test_a_redirect_to_a_private_address_is_not_followed(server):
    server.answers["/away"] = moved(f"http://inside.test:{server.port}/ok.png?secret")
    names = Names([LOOPBACK], ["127.0.0.2"])
    assert "inside.test has no address" in refusal(server, "/away", names)
    assert (names.asked, server.paths) == (["pics.test", "inside.test"], ["/away"])


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("file:///etc/passwd", "begin with https or http"),
        ("http://user:secret@pics.test/", "a user name or a password"),
        ("http://pics.test:22/secret", "the port 22"),
        ("http://[", "no address"),
        ("http://pics.test:99999/", "no URL"),
    ],
)
def test_every_redirect_is_judged_anew(server, location, words):
    server.answers["/away"] = moved(location)
    assert words in refusal(server, "/away")


def test_redirects_are_followed_a_bounded_number_of_times(server):
    server.answers["/1"] = moved("/2", "301 Moved Permanently")
    server.answers["/2"] = moved("3?x=y", "307 Temporary Redirect")
    server.answers["/3"] = moved(f"//pics.test:{server.port}/ok.png", "308 Permanent Redirect")
    assert fetched(server, "/1") == png()
    assert server.paths == ["/1", "/2", "/3?x=y", "/ok.png"]
    server.answers["/round"] = moved("/round")
    assert "more than 3 times" in refusal(server, "/round")
    assert server.paths.count("/round") == 4
    server.answers["/nowhere"] = whole(b"", status="302 Found")
    assert "not where to" in refusal(server, "/nowhere")


def test_a_name_that_changes_its_mind_is_asked_once(server):
    names = Names([LOOPBACK], ["10.0.0.1"])
    assert fetched(server, "/ok.png", names) == png()
    assert names.asked == ["pics.test"]
    names = Names(["127.0.0.2"], [LOOPBACK])
    said = refusal(server, "/ok.png", names, allow_private=("127.0.0.2",))
    assert "takes no connection" in said
    assert (names.asked, server.paths) == (["pics.test"], ["/ok.png"])


def test_the_next_address_of_a_host_is_tried(server):
    names = Names(["127.0.0.2", LOOPBACK])
    assert fetched(server, "/ok.png", names, allow_private=("127.0.0.0/8",)) == png()


def test_a_refused_connection_is_told(server):
    server.close()
    assert "takes no connection" in refusal(server, "/ok.png?secret")


def test_an_endless_body_is_read_up_to_the_limit(server):
    sent = []

    def endless(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + png())
        while True:
            sent.append(connection.send(b"x" * 65536))

    server.answers["/endless"] = endless
    assert "more than 100000 bytes" in refusal(server, "/endless", max_bytes=100_000)


def test_what_says_that_it_is_too_long_is_not_read(server):
    server.answers["/long"] = b"HTTP/1.1 200 OK\r\nContent-Length: 100001\r\n\r\n"
    assert "more than 100000 bytes" in refusal(server, "/long", max_bytes=100_000)
    server.answers["/limit"] = whole(png().ljust(100_000, b"x"))
    assert len(fetched(server, "/limit", max_bytes=100_000)) == 100_000


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + png(), "broke off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n\x89PNG\r\n", "broke off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n" + png(), "no HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n" + png(), "no HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000, "no HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no HTTP"),
        (png(), "no HTTP"),
        (b"", "no HTTP"),
        (whole(gzip.compress(png() * 10_000), "Content-Encoding: gzip"), "compressed"),
        (whole(b"<html>secret</html>" * 10, "Content-Type: image/png"), "neither PNG"),
        (whole(b"no", status="404 Not Found"), "the status 404"),
        (whole(png(), status="206 Partial Content"), "the status 206"),
        (whole(png(), status="500 Oh"), "the status 500"),
    ],
)
def test_what_is_no_plain_answer_with_a_picture_is_refused(server, answer, words):
    server.answers["/odd"] = answer
    assert words in refusal(server, "/odd?secret")


def test_type_and_length_are_the_bodys_own(server):
    server.answers["/page"] = whole(png(), "Content-Type: text/html")
    server.answers["/chunks"] = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % len(png()) + png() + b"\r\n0\r\n\r\n"
    )
    server.answers["/close"] = b"HTTP/1.0 200 OK\r\n\r\n" + png()
    assert [fetched(server, path) for path in ("/page", "/chunks", "/close")] == [png()] * 3


def test_what_is_no_picture_is_not_read_to_its_end(server):
    def page(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b"<html>" * 10)
        server.over.wait(60)

    server.answers["/page"] = page
    assert "neither PNG" in refusal(server, "/page")


def test_chunks_of_a_byte_do_not_hold_up_the_loop(server):
    def crumbs(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for byte in png() * 1000:
            connection.sendall(b"1\r\n%c\r\n" % byte)

    server.answers["/crumbs"] = crumbs
    assert "more frame than picture" in refusal(server, "/crumbs")


def test_a_slow_body_and_silence_have_their_time(server):
    def slow(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + png())
        while not server.over.wait(0.05):
            connection.sendall(b"x")

    server.answers["/slow"] = slow
    server.answers["/silent"] = lambda connection: server.over.wait(60)

    async def late(path: str) -> ClusterError:
        pictures = Pictures(config(server, timeout_s=0.5), Names())
        with pytest.raises(ClusterError) as raised:
            await pictures.take([Picture(path="p", url=server.url(path, "pics.test"))], "")
        return raised.value

    for path in ("/slow", "/silent"):
        error = asyncio.run(late(path))
        assert (error.message, error.param) == ("p was not there within 0.5 s", "p")


def test_a_server_that_takes_no_handshake_has_its_time(server):
    async def fetch() -> None:
        fetcher = Fetcher(config(server, connect_timeout_s=0.2), Names())
        await fetcher.fetch(f"https://pics.test:{server.port}/ok.png", "")

    with pytest.raises(PictureError, match="does not answer in time"):
        asyncio.run(fetch())


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Of a certificate for the name pics.test."""
    return certificate(tmp_path_factory.mktemp("pair"), "pics.test", names="DNS:pics.test")


@pytest.fixture
def encrypted(pair):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*pair)
    with picture_server(tls) as server:
        yield server


def test_a_certificate_has_to_be_the_names_and_from_somebody_trusted(encrypted, pair):
    ca = str(pair[0])
    assert fetched(encrypted, "/ok.png", ca_file=ca) == png()
    assert "self-signed" in refusal(encrypted, "/ok.png")
    said = refusal(encrypted, "/ok.png", host="other.test", ca_file=ca)
    assert "Hostname mismatch" in said
    assert "127.0.0.1" in refusal(encrypted, "/ok.png", host=LOOPBACK, ca_file=ca)
    assert encrypted.paths == ["/ok.png"]


def test_a_redirect_from_https_to_http_needs_leave(encrypted, pair):
    encrypted.answers["/away"] = moved(f"http://pics.test:{encrypted.port}/ok.png")
    said = refusal(encrypted, "/away", ca_file=str(pair[0]), http=False)
    assert "begin with https://" in said
    assert encrypted.paths == ["/away"]


def test_trusted_certificates_that_cannot_be_read_are_named(tmp_path: Path):
    for name, content, words in (("none", None, "No such file"), ("text", "text", "PEM")):
        if content is not None:
            (tmp_path / name).write_text(content)
        with pytest.raises(StartError, match=rf"media.ca_file: .*{name} cannot be used: .*{words}"):
            Fetcher(MediaConfig(ca_file=str(tmp_path / name)), Names())


def test_so_many_are_fetched_at_once_and_the_next_one_is_told_to_come_again(server):
    held = threading.Semaphore(0)

    def hold(connection):
        held.release()
        server.over.wait(60)

    server.answers["/hold"] = hold

    async def overloaded() -> None:
        fetcher = Fetcher(config(server, max_fetches=2, timeout_s=0.5), Names())
        url = server.url("/hold", "pics.test")
        both = [asyncio.create_task(fetcher.fetch(url, asker)) for asker in ("one", "other")]
        for _ in both:
            assert await asyncio.to_thread(held.acquire, timeout=60)
        with pytest.raises(ClusterError) as raised:
            await fetcher.fetch(server.url("/ok.png", "pics.test"), "third")
        assert raised.value.code is ErrorCode.OVERLOADED
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        assert await fetcher.fetch(server.url("/ok.png", "pics.test"), "third") == png()

    asyncio.run(overloaded())
    assert server.paths.count("/hold") == 2


def test_one_that_asks_for_ever_so_many_keeps_nobody_else_from_fetching(server):
    held = threading.Semaphore(0)

    def hold(connection):
        held.release()
        server.over.wait(60)

    server.answers["/hold"] = hold

    async def crowded() -> None:
        fetcher = Fetcher(config(server, max_fetches=4), Names())
        url = server.url("/hold", "pics.test")
        greedy = [asyncio.create_task(fetcher.fetch(url, "greedy")) for _ in range(20)]
        for _ in range(2):
            assert await asyncio.to_thread(held.acquire, timeout=60)
        assert await fetcher.fetch(server.url("/ok.png", "pics.test"), "modest") == png()
        for task in greedy:
            task.cancel()
        await asyncio.gather(*greedy, return_exceptions=True)

    asyncio.run(crowded())
    assert server.paths.count("/hold") == 2


def test_names_that_are_never_found_keep_nobody_else_from_finding_theirs(monkeypatch):
    over = threading.Event()
    begun = threading.Semaphore(0)

    def look_up(host: str, *_rest, **_settings):
        if host == "silent.test":
            begun.release()
            over.wait(60)
        return [(None, None, None, "", (LOOPBACK, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    async def crowded() -> None:
        resolve = Resolver()
        greedy = [asyncio.create_task(resolve("silent.test", 443, "greedy")) for _ in range(20)]
        for _ in range(4):
            assert await asyncio.to_thread(begun.acquire, timeout=60)
        for task in greedy:
            task.cancel()  # who gave up waiting has not ended the look-up
        await asyncio.gather(*greedy, return_exceptions=True)
        assert await resolve("pics.test", 443, "modest") == [LOOPBACK]
        over.set()

    asyncio.run(crowded())
    assert not begun.acquire(blocking=False)


def test_pictures_of_a_request_are_bounded_in_number_and_together(server):
    async def taken(given: list[Picture], **limits) -> str:
        with pytest.raises(ClusterError) as raised:
            await Pictures(config(server, **limits), Names()).take(given, "")
        return f"{raised.value.param}: {raised.value.message}"

    def some(count: int, url: str = data_url(png())) -> list[Picture]:
        return [Picture(path=f"p[{number}]", url=url) for number in range(count)]

    assert "p[20]: p[20] is one picture too many" in asyncio.run(taken(some(500)))
    assert "p[2]: p[2] goes beyond" in asyncio.run(taken(some(5), max_total_bytes=2 * len(png())))
    bomb = [*some(1), Picture(path="p[1]", url=data_url(png_head(30_000, 30_000)))]
    assert "p[1]: p[1] cannot be used: it has 30000 x 30000 pixels" in asyncio.run(taken(bomb))
    server.answers["/bomb.png"] = whole(png_head(30_000, 30_000))
    fetched_bomb = [Picture(path="p", url=server.url("/bomb.png", "pics.test"))]
    assert "30000 x 30000" in asyncio.run(taken(fetched_bomb))
    assert "p: p cannot be used: there is neither" in asyncio.run(taken([Picture(path="p")]))


def test_names_that_do_not_exist_have_no_addresses():
    assert asyncio.run(Resolver()("nowhere.invalid", 443, "")) == []
    assert asyncio.run(Resolver()("a" * 300, 443, "")) == []
    assert LOOPBACK in asyncio.run(Resolver()("localhost", 443, ""))
