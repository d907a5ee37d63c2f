"""LiteLLM's proxy, from the registry of packages, in an environment of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from servers import Processes, environment, start_peer

ENVIRONMENT = Path("~/.cache/studiofleet/bench-litellm").expanduser()
LITELLM = "litellm[proxy]==1.95.1"
FASTAPI = "fastapi==0.136.3"
"""LiteLLM imports what later ones have no more."""
CONFIG = """model_list:
  - model_name: m
    litellm_params: {{model: openai/m, api_base: "{url}/v1", api_key: none}}
"""


def start_litellm(
    folder: Path, backend_url: str, owned: Processes, cores: set[int]
) -> tuple[subprocess.Popen[bytes], str]:
    """One worker process in front of that server."""
    config = folder / "litellm.yaml"
    config.write_text(CONFIG.format(url=backend_url))
    command = [str(environment(ENVIRONMENT, [LITELLM, FASTAPI]) / "litellm"), "--config", str(config)]
    environ = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    return start_peer("litellm", command, environ, owned, folder, cores)
