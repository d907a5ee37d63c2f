import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.media.policy import Policy
from gateway.media.refusal import PictureError
from protocol.config import MediaConfig


def refusal(url, **config):
    with pytest.raises(PictureError) as raised:
        Policy(MediaConfig(**config)).place(url)
    return str(raised.value)


@pytest.mark.parametrize(
    ("url", "host", "port", "target"),
    [
        ("https://example.org/a.png?key=1#part", "example.org", 443, "/a.png?key=1"),
        ("HTTPS://EXAMPLE.org.", "example.org", 443, "/"),
        ("https://example.org:80?x", "example.org", 80, "/?x"),
        ("https://bücher.example/ü b".replace(" ", "%20"), "xn--bcher-kva.example", 443, "/%C3%BC%20b"),
        ("https://[2606:4700::1]/x", "2606:4700::1", 443, "/x"),
        ("https://127.0.0.1/x", "127.0.0.1", 443, "/x"),
        ("https://2130706433/", "2130706433", 443, "/"),
        ("https://\uff11\uff12\uff17.0.0.1/", "127.0.0.1", 443, "/"),
    ],
)
def test_a_url_names_a_place(url, host, port, target):
    place = Policy(MediaConfig()).place(url)
    assert (place.host, place.port, place.target) == (host, port, target)


def test_what_may_be_shown_of_a_place_has_neither_path_nor_query():
    place = Policy(MediaConfig(ports=(8443,))).place("https://[2606:4700::1]:8443/secret?key=secret")
    assert place.origin == "https://[2606:4700::1]:8443"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://example.org/", "https://"),
        ("file:///etc/passwd", "https://"),
        ("ftp://example.org/", "https://"),
        ("//example.org/", "https://"),
        ("/etc/passwd", "https://"),
        ("gopher://example.org/", "https://"),
        ("https://user:secret@example.org/", "a user name or a password"),
        ("https://@example.org/", "a user name or a password"),
        ("https://example.org@127.0.0.1/", "a user name or a password"),
        ("https://example.org:22/", "the port 22"),
        ("https://example.org:0/", "the port 0"),
        ("https://example.org:99999/", "no URL"),
        ("https://[::1/", "no URL"),
        ("https://", "no host"),
        ("https:///x", "no host"),
        ("https://a..b/", "no host"),
        ("https://-a/", "no host"),
        ("https://a%2eb/", "no host"),
        ("https://[fe80::1%25eth0/", "no URL"),
        ("https://" + "a" * 64 + ".org/", "no host"),
        ("https://exa mple.org/", "spaces"),
        ("https://example.org\\@127.0.0.1/", "backslashes"),
        ("https://example.org/\r\nHost: other", "control characters"),
        ("\thttps://example.org/", "control characters"),
        ("https://example.org/" + "a" * 8192, "more than 8192 characters"),
    ],
)
def test_no_other_url_is_fetched_from(url, words):
    assert words in refusal(url)


def test_http_and_other_ports_are_for_those_who_want_them():
    place = Policy(MediaConfig(http=True, ports=(8080,))).place("http://example.org:8080/x")
    assert (place.scheme, place.origin) == ("http", "http://example.org:8080")


def test_nothing_is_fetched_where_that_is_off():
    assert "not fetched here" in refusal("https://example.org/", fetch=False)


@pytest.mark.parametrize(
    ("host", "allowed", "denied", "is_fetched"),
    [
        ("a.org", (), (), True),
        ("a.org", ("a.org",), (), True),
        ("a.org.", ("a.org",), (), True),
        ("b.a.org", ("a.org",), (), False),
        ("b.a.org", ("*.a.org",), (), True),
        ("a.org", ("*.a.org",), (), False),
        ("ba.org", ("*.a.org",), (), False),
        ("B.A.org", (), ("*.a.org",), False),
        ("b.a.org", ("*.a.org",), ("b.a.org",), False),
        ("10.0.0.1", (), ("10.0.0.1",), False),
    ],
)
def test_hosts_are_allowed_and_denied_by_name(host, allowed, denied, is_fetched):
    url, lists = f"https://{host}/", {"allow_hosts": allowed, "deny_hosts": denied}
    if is_fetched:
        Policy(MediaConfig(**lists)).place(url)
    else:
        assert "not fetched from" in refusal(url, **lists)


def reached(addresses, **config):
    return Policy(MediaConfig(**config)).reachable("h", addresses)


def test_one_address_that_may_not_be_reached_spoils_the_host():
    assert reached(["8.8.8.8", "2606:4700::1"]) == ["8.8.8.8", "2606:4700::1"]
    for addresses in (["8.8.8.8", "10.0.0.1"], ["::1", "8.8.8.8"], [], ["no address"], ["fe80::1%eth0"]):
        with pytest.raises(PictureError, match=r"^h has no address on the public internet$"):
            reached(addresses)


def test_private_addresses_may_be_allowed_and_public_ones_denied():
    assert reached(["::ffff:10.0.0.7"], allow_private=("10.0.0.0/24",)) == ["10.0.0.7"]
    assert reached(["fd00::7"], allow_private=("fd00::/8",)) == ["fd00::7"]
    for addresses in (["10.0.1.7"], ["127.0.0.1"]):
        with pytest.raises(PictureError):
            reached(addresses, allow_private=("10.0.0.0/24",))
    with pytest.raises(PictureError):
        reached(["64:ff9b::8.8.8.8"], deny_addresses=("64:ff9b::/96",))


@pytest.mark.parametrize("address", ["8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1"])
@pytest.mark.parametrize("allowed", [(), ("8.8.0.0/16", "2002::/16")])
def test_a_denied_address_is_denied_in_all_its_spellings_whatever_is_allowed(address, allowed):
    with pytest.raises(PictureError):
        reached([address], deny_addresses=("8.8.8.0/24",), allow_private=allowed)


@given(st.text(max_size=60) | st.from_regex(r"https://[^/]{0,40}(/.*)?"))
def test_any_text_is_a_place_with_a_plain_host_or_refused(text):
    try:
        place = Policy(MediaConfig()).place(text)
    except PictureError:
        return
    assert (place.scheme, place.port in (80, 443)) == ("https", True)
    assert place.host.isascii()
    assert place.target.startswith("/")
    assert not set(place.host) & set("/@\\?# %")
    assert all(33 <= ord(letter) < 127 for letter in place.target)
