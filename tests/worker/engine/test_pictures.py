"""Pictures as models see them: what is taken, turned, and refused in words."""

import base64
import io
import zlib

import pytest

from tests.pictures import GIF, JPEG, WEBP, png, png_head
from worker.engine.output import PromptError
from worker.engine.pictures import decoded, named, read_data_url

Image = pytest.importorskip("PIL.Image")
RED, BLUE = (255, 0, 0), (0, 0, 255)


def saved(image, kind="PNG", **options):
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def halves():
    """Four wide and two high, red at the left."""
    image = Image.new("RGB", (4, 2), RED)
    image.paste(BLUE, (2, 0, 4, 2))
    return image


def near(colour, wanted):
    return all(abs(a - b) < 40 for a, b in zip(colour, wanted, strict=True))


@pytest.mark.parametrize("data", [png(), JPEG, WEBP, GIF])
def test_every_kind_is_three_colours(data):
    assert decoded(data, 1).mode == "RGB"


def test_it_is_turned_as_its_camera_was_held():
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright: the first row is the right side
    large = halves().resize((64, 32), Image.Resampling.NEAREST)
    turned = decoded(saved(large, "JPEG", exif=exif, quality=95), 1)
    assert turned.size == (32, 64)
    assert near(turned.getpixel((16, 8)), RED)
    assert near(turned.getpixel((16, 56)), BLUE)


def test_what_is_transparent_is_white():
    image = Image.new("RGBA", (2, 1), (*RED, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))
    seen = decoded(saved(image), 1)
    assert [seen.getpixel((x, 0)) for x in (0, 1)] == [RED, (255, 255, 255)]
    few = image.convert("P", palette=Image.Palette.ADAPTIVE)
    few.info["transparency"] = few.getpixel((1, 0))
    assert decoded(saved(few), 1).getpixel((1, 0)) == (255, 255, 255)


def test_of_what_moves_the_first_frame_is_taken():
    frames = [Image.new("RGB", (3, 3), colour) for colour in (RED, BLUE)]
    moving = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decoded(moving, 1).getpixel((1, 1)) == RED


def test_print_colours_and_grey():
    grey = Image.new("L", (3, 3), 200)
    assert decoded(saved(grey), 1).getpixel((0, 0)) == (200, 200, 200)
    printed = saved(halves().resize((64, 32)).convert("CMYK"), "JPEG", quality=95)
    assert near(decoded(printed, 1).getpixel((8, 8)), RED)


def test_a_bomb_is_known_before_it_goes_off():
    def chunk(kind, data):
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    rows = zlib.compress(b"\0" * 1000)
    bomb = png_head(30_000, 30_000) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    with pytest.raises(PromptError, match="picture 3 has 30000 x 30000 pixels; at most 50000000 are taken"):
        decoded(bomb, 3)
    with pytest.raises(PromptError, match="more than 200 times as long as wide"):
        decoded(saved(Image.new("1", (1000, 2))), 1)


@pytest.mark.parametrize("data", [b"", b"no picture", png()[:40], JPEG[:60], b"%PDF-1.7", b"<svg/>"])
def test_what_is_no_picture_is_refused_without_being_told(data):
    with pytest.raises(PromptError, match=r"picture 2 \(\d+ bytes, sha256 [0-9a-f]{16}\) cannot be read"):
        decoded(data, 2)


def test_nothing_is_fetched_and_no_file_is_opened():
    given = b"a picture"
    url = "data:image/png;base64," + base64.b64encode(given).decode()
    assert read_data_url(url, 1) == given
    for other in (
        "/etc/passwd",
        "https://example.org/a.png",
        "data:text/html,<p>",
        "data:image/png;base64,@",
    ):
        with pytest.raises(PromptError, match="picture 1 is not"):
            read_data_url(other, 1)
    assert b"a picture" not in named(given).encode()
