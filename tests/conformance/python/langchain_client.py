"""LangChain's standard suite for chat models, where BASE_URL is a gateway's with the embedded model."""

import os
from typing import ClassVar

from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


class TestChat(ChatModelIntegrationTests):
    chat_model_class = ChatOpenAI
    chat_model_params: ClassVar = {
        "base_url": os.environ["BASE_URL"] + "/v1",
        "api_key": "none",
        "model": "smollm2-135m",
        "max_retries": 0,
        "max_tokens": 16,
        "stream_usage": True,
    }
    model_override_value = "default"
