import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.media.data_urls import decoded, payload
from gateway.media.refusal import PictureError
from tests.pictures import data_url, png


def refusal(text, most=1000):
    with pytest.raises(PictureError) as raised:
        decoded(text, most)
    return raised.value.reason


@pytest.mark.parametrize("head", ["data:image/png;base64", "data:;base64", "DATA:image/jpeg;name=x;BASE64"])
def test_the_base64_of_a_data_url_is_found(head):
    assert payload(f"{head},QUJD") == "QUJD"


@pytest.mark.parametrize(
    "url", ["data:", "data:image/png;base64", "data:text/html,<p>", "data:image/png,QUJD"]
)
def test_other_data_urls_are_refused(url):
    with pytest.raises(PictureError, match="not of the form"):
        payload(url)


@pytest.mark.parametrize(
    "text", ["@@@", "QUJ", "QUJDR", "QUJD\n", "QU JD", "QQ==QQ==", "=QUJ", "QUJ\u00e4", "QU-_"]
)
def test_base64_is_taken_strictly(text):
    assert refusal(text) == "invalid_base64_image"


def test_what_is_too_long_is_refused_before_it_is_decoded():
    assert refusal("@" * 4000) == "image_file_too_large"
    assert refusal(base64.b64encode(b"a" * 1001).decode()) == "image_file_too_large"
    assert decoded(base64.b64encode(b"a" * 1000).decode(), 1000) == b"a" * 1000


@given(st.binary(max_size=2000))
def test_all_bytes_come_back(data):
    assert decoded(base64.b64encode(data).decode(), 2000) == data


def test_long_ones_are_decoded_in_pieces():
    data = png() * 10_000
    assert decoded(payload(data_url(data)), len(data)) == data
    text = base64.b64encode(data).decode()
    assert refusal(text[: 256 * 1024 - 4] + "QQ==" + text[: 256 * 1024], len(data)) == "invalid_base64_image"
