import json
import shlex

import pytest

from clusterctl.adding import invitation, memory_steps, step

FIT = """\
local: 25.3 GB of memory, 6.3 GB of it reserved for the system: 19.0 GB for workers
w-1: 2.0 GB = 1.9 GB weights + 100 MB process
new worker: 1.5 GB = 1.0 GB weights + 401 MB KV cache of 1 x 8192 tokens
  a token takes 30 layers x (192 + 192) numbers of 4 B = 46.1 kB
together: 3.5 GB of 19.0 GB
"""


def test_of_the_arithmetic_the_new_worker_and_the_sum_are_told():
    assert memory_steps(FIT.splitlines(), "new worker") == [
        "memory    need 1.5 GB = 1.0 GB weights + 401 MB KV cache of 1 x 8192 tokens",
        "          3.5 GB of 19.0 GB taken after this",
    ]
    on_demand = FIT.replace("new worker:", "new worker (on demand):")
    assert memory_steps(on_demand.splitlines(), "new worker") == memory_steps(FIT.splitlines(), "new worker")
    assert memory_steps([], "new worker") == []


def test_steps_stand_in_columns():
    assert step("model", "m").index("m", 5) == step("", "m").index("m")


@pytest.mark.parametrize("needs_key", [True, False])
def test_what_is_to_be_pasted_is_one_command_of_a_shell(needs_key: bool):
    line = invitation("http://127.0.0.1:8000", "it's a model", needs_key=needs_key)[1]
    words = shlex.split(line)
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == "it's a model"
    assert ("authorization: Bearer $STUDIOFLEET_API_KEY" in words) == needs_key
