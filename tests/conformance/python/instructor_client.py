"""instructor as a client. BASE_URL is a gateway's with a fake engine, which says OBJECT and CALL."""

import asyncio
import os

import instructor
import openai
import pytest
from instructor import Mode
from pydantic import BaseModel


class User(BaseModel):
    name: str
    age: int


SCRIPTS = {
    Mode.TOOLS: "CALL",
    Mode.RESPONSES_TOOLS: "CALL",
    Mode.JSON: "OBJECT",
    Mode.JSON_SCHEMA: "OBJECT",
}
FOUND = {"name": "Ann", "age": 41}
SETTINGS = {"base_url": os.environ["BASE_URL"] + "/v1", "api_key": "none", "max_retries": 0}
MODES = pytest.mark.parametrize("mode", SCRIPTS, ids=lambda mode: mode.name)


def asked(mode):
    content = os.environ[SCRIPTS[mode]]
    return {"model": "fake-model", "messages": [{"role": "user", "content": content}], "max_retries": 0}


@MODES
def test_an_object(mode):
    client = instructor.from_openai(openai.OpenAI(**SETTINGS), mode=mode)
    assert client.create(response_model=User, **asked(mode)).model_dump() == FOUND


@MODES
def test_an_object_in_parts(mode):
    client = instructor.from_openai(openai.OpenAI(**SETTINGS), mode=mode)
    *_, last = client.create_partial(response_model=User, **asked(mode))
    assert last.model_dump() == FOUND


@MODES
def test_an_object_for_asyncio(mode):
    client = instructor.from_openai(openai.AsyncOpenAI(**SETTINGS), mode=mode)
    assert asyncio.run(client.create(response_model=User, **asked(mode))).model_dump() == FOUND


def test_a_wrong_object_is_asked_for_again():
    class Other(BaseModel):
        other: str

    client = instructor.from_openai(openai.OpenAI(**SETTINGS), mode=Mode.TOOLS)
    counted = []
    client.on("completion:response", counted.append)
    # The script is followed to the letter; once the complaint about it is last, the schema alone rules.
    assert isinstance(client.create(response_model=Other, **asked(Mode.TOOLS) | {"max_retries": 2}), Other)
    assert len(counted) == 2
