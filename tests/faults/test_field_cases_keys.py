"""Field cases about keys. The ids are those of the issue."""

from __future__ import annotations

import httpx
import psutil
import pytest

from protocol.api_keys import digest
from tests.integration.cluster import PATIENCE_S, chat, config_text, fake_worker, running, script
from tests.integration.test_keys import bearer, becomes, clusterctl, keys

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PROMPT = "a-prompt-of-fc-90"


# FC-90: key material in logs and error bodies
def test_fc_90_no_key_and_no_prompt_is_in_logs_errors_metrics_or_arguments():
    config = config_text(fake_worker("w-1"), extra='[log]\nlevel = "debug"\n')
    wrong = f"sf-0badc0de-{'w' * 43}"
    answers: list[httpx.Response] = []
    with (
        running(config, "w-1") as cluster,
        httpx.Client(base_url=cluster.url(), timeout=PATIENCE_S) as client,
    ):
        key = keys(cluster, "create", "alice")
        becomes(client, 401)

        def ask(headers: dict[str, str], path: str = "/v1/chat/completions", **fields: object) -> None:
            answers.append(client.post(path, json=chat(PROMPT) | fields, headers=headers))

        for given in (key, wrong):
            ask(bearer(given))
            ask({"x-api-key": given})
            ask({"authorization": f"Basic {given}"})
            ask({}, f"/v1/chat/completions?key={given}")
            ask(bearer(key), model=given)
            ask(bearer(key), path=f"/v1/{given}")
            ask(bearer(key) | {"x-request-id": given})
        crash = script(tokens=["a"], raise_at=0)
        ask(bearer(key), messages=[{"role": "user", "content": crash}])
        answers += [client.get(path, headers=bearer(key)) for path in ("/metrics", "/admin/state")]
        shown = [
            clusterctl(cluster, *words) for words in (["status"], ["status", "--json"], ["keys", "list"])
        ]
        commands = [psutil.Process(process.pid).cmdline() for process in cluster.processes.values()]
        logs = [cluster.log(process_id) for process_id in cluster.processes]

    assert {answer.status_code for answer in answers} == {200, 401, 404, 500}
    refused = {answer.text for answer in answers if answer.status_code == 401}
    assert len(refused) == 1, "a missing key and a wrong one are told the same"
    texts = [*shown, *logs, *(answer.text for answer in answers), *(" ".join(words) for words in commands)]
    for secret in (key, wrong, digest(key), digest(wrong), PROMPT):
        assert not any(secret in text for text in texts), secret
    assert "key alice" in logs[0]
