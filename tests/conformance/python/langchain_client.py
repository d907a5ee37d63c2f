"""LangChain's standard suite for chat models, where BASE_URL is a gateway's with the embedded model."""

import os
from typing import Any, ClassVar

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

SHORT, LONG = 8, 60
"""Tokens of an answer: of those in which a form or a call has to come to its end, more."""
COMMON = {"api_key": "none", "model": "smollm2-135m", "max_retries": 0, "temperature": 0, "timeout": 300}
OPENAI = {**COMMON, "base_url": os.environ["BASE_URL"] + "/v1", "stream_usage": True}
PENALTY = {"repetition_penalty": 1.2}
"""Without, a model of this size fills texts that have no bounds with one sentence."""


class OpenAI(ChatOpenAI):
    """Asks for one call, for this model would repeat it."""

    def bind_tools(self, tools: Any, *, tool_choice: Any = None, **further: Any) -> Any:
        further["parallel_tool_calls"] = False
        return super().bind_tools(tools, tool_choice=tool_choice, **further)


class Anthropic(ChatAnthropic):
    """The same."""

    def bind_tools(self, tools: Any, *, tool_choice: Any = None, **further: Any) -> Any:
        further["parallel_tool_calls"] = False
        return super().bind_tools(tools, tool_choice=tool_choice, **further)


class Standard(ChatModelIntegrationTests):
    """What the dialects have in common."""

    model_override_value = "default"

    @pytest.fixture
    def model(self, request: Any) -> Any:
        name, further = request.node.name, getattr(request, "param", None) or {}
        if "structured" in name:
            further = {**further, **self.penalized}
        room = {"max_tokens": LONG if "tool" in name or "structured" in name else SHORT}
        return self.chat_model_class(**self.chat_model_params, **room, **further)


class TestChat(Standard):
    chat_model_class = OpenAI
    chat_model_params: ClassVar = OPENAI
    penalized: ClassVar = {"extra_body": PENALTY}


class TestResponses(Standard):
    chat_model_class = OpenAI
    chat_model_params: ClassVar = {**OPENAI, "use_responses_api": True}
    penalized: ClassVar = {"extra_body": PENALTY}


class TestMessages(Standard):
    chat_model_class = Anthropic
    chat_model_params: ClassVar = {**COMMON, "base_url": os.environ["BASE_URL"]}
    penalized: ClassVar = {"model_kwargs": {"extra_body": PENALTY}}
    structured_output_kwargs: ClassVar = {"method": "json_schema"}
