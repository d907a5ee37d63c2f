import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.media.pictures import Facts, facts_of
from gateway.media.refusal import PictureError
from tests import pictures

MOST = 50_000_000
WHOLE = {
    "png": (pictures.png(), "image/png"),
    "cmyk jpeg": (pictures.JPEG, "image/jpeg"),
    "progressive jpeg": (pictures.JPEG_PROGRESSIVE, "image/jpeg"),
    "webp": (pictures.WEBP, "image/webp"),
    "lossless webp": (pictures.WEBP_LOSSLESS, "image/webp"),
    "extended webp": (pictures.WEBP_EXTENDED, "image/webp"),
    "gif": (pictures.GIF, "image/gif"),
    "animated gif": (pictures.GIF_ANIMATED, "image/gif"),
}
SIZES = st.integers(min_value=1, max_value=65535)


def refusal(data):
    with pytest.raises(PictureError) as raised:
        facts_of(data, MOST)
    return raised.value


@pytest.mark.parametrize("name", WHOLE)
def test_kind_and_size_are_read_from_the_bytes(name):
    data, media_type = WHOLE[name]
    assert facts_of(data, MOST) == Facts(media_type, 7, 5)


@pytest.mark.parametrize("name", WHOLE)
def test_pieces_of_a_picture_are_read_right_or_refused(name):
    data, media_type = WHOLE[name]
    assert refusal(data[:16]).reason in ("image_parse_error", "invalid_image_format")
    for length in range(len(data)):
        with contextlib.suppress(PictureError):
            assert facts_of(data[:length], MOST) == Facts(media_type, 7, 5)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty_image_file"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "invalid_image_format"),
        (b"%PDF-1.7 and so on", "invalid_image_format"),
        (b"BM" + b"\0" * 60, "invalid_image_format"),
        (b"II*\0" + b"\0" * 60, "invalid_image_format"),
        (b"<html>" + b"\0" * 60, "invalid_image_format"),
        (b"RIFF\0\0\0\0WAVE" + b"\0" * 60, "invalid_image_format"),
        (b"RIFF\0\0\0\0WEBPVP9 " + b"\0" * 60, "image_parse_error"),
        (pictures.png_head(0, 5), "image_parse_error"),
        (pictures.jpeg_head(7, 0), "image_parse_error"),
        (b"\xff\xd8\xff\xd9" + b"\0" * 60, "image_parse_error"),
        (b"\xff\xd8\xff\xe0\x00\x00" + b"\0" * 60, "image_parse_error"),
        (b"\xff\xd8\xff" + b"\xff" * 60, "image_parse_error"),
        (pictures.png_head(30_000, 30_000), "image_too_large"),
        (pictures.jpeg_head(10_000, 10_000), "image_too_large"),
        (pictures.gif_head((1, 1), (0, 0, 65535, 65535)), "image_too_large"),
        (pictures.gif_head((1, 1), (65535, 65535, 1, 1)), "image_too_large"),
        (b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff" * 6, "image_too_large"),
        (b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + b"\xff" * 4, "image_too_large"),
    ],
)
def test_bombs_and_what_is_no_picture_are_known_without_decoding(data, reason):
    assert refusal(data).reason == reason


def test_the_limit_of_pixels_is_told():
    assert "30000 x 30000 pixels; at most 50000000 are taken" in str(
        refusal(pictures.png_head(30_000, 30_000))
    )


def test_the_size_of_a_jpeg_is_its_frames_and_not_its_thumbnails():
    thumbnail = b"\xff\xe1" + (2 + 40).to_bytes(2, "big") + pictures.jpeg_head(1, 1).ljust(40, b"\0")
    found = facts_of(pictures.jpeg_head(300, 200, before=thumbnail, frame=0xC2), MOST)
    assert (found.width, found.height) == (300, 200)


@given(SIZES, SIZES)
def test_every_size_is_read(width, height):
    comment = b"!\xfe\x03abc\x00"
    for data in (
        pictures.png_head(width, height),
        pictures.jpeg_head(width, height),
        pictures.gif_head((width, height), (0, 0, 1, 1), before=comment),
        pictures.gif_head((1, 1), (0, 0, width, height), before=comment),
    ):
        found = facts_of(data, 2**33)
        assert (found.width, found.height) == (width, height)


@given(st.sampled_from([data for data, _ in WHOLE.values()]), st.data())
def test_damaged_pictures_are_read_or_refused_and_nothing_else(data, draw):
    damaged = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 8))):
        damaged[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    try:
        found = facts_of(bytes(damaged), MOST)
    except PictureError:
        return
    assert 0 < found.width * found.height <= MOST


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_and_nothing_else(data):
    for head in (b"", b"\xff\xd8\xff", b"GIF89a", b"RIFF\0\0\0\0WEBPVP8 ", b"\x89PNG\r\n\x1a\n"):
        with contextlib.suppress(PictureError):
            facts_of(head + data, MOST)
