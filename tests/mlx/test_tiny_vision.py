"""The model that other tests look at pictures with: whether it sees at all, by mlx-vlm's own means."""

import pytest

from tests.mlx.tiny_vision import BLIND, COLOURS, picture


@pytest.fixture(scope="module")
def say(seeing):
    """What mlx-vlm's own generator says of some pictures."""
    from mlx_vlm import generate, load  # noqa: PLC0415 (OpenBLAS came first)

    model, processor = load(str(seeing))

    def say(*pictures):
        parts = [*([{"type": "image"}] * len(pictures)), {"type": "text", "text": "What do you see?"}]
        prompt = processor.tokenizer.apply_chat_template(
            [{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True
        )
        return generate(
            model, processor, prompt, image=list(pictures) or None, max_tokens=8, temperature=0.0
        ).text

    return say


def test_each_colour_is_named(say):
    assert [say(picture(colour)) for colour in COLOURS] == list(COLOURS)


def test_the_size_is_no_matter(say):
    assert [say(picture("green", width, height)) for width, height in ((28, 28), (84, 56), (200, 120))] == [
        "green"
    ] * 3


def test_without_a_picture_there_is_nothing_to_see(say):
    assert say() == BLIND
