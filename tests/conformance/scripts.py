"""What the fake engine is told to say in more than one of these tests."""

from __future__ import annotations

from tests.integration.cluster import script

TWO_CALLS = script(
    tokens=[
        "<thi",
        "nk>hm",
        ", yes",
        "</think>",
        "ok ",
        "<tool_",
        'call>{"name": "f", "argu',
        'ments": {"a": 1, "b": "<é>"}}</tool_call>',
        '<tool_call>{"name": "g", "arguments": {}}</tool_call>',
    ]
)
"""Reasoning, text and two calls of tools, cut at awkward places."""
