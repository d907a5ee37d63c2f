"""A request's life in sentences."""

from __future__ import annotations

from clusterctl.explaining import lines

LIFE = {
    "id": "req-1.ab",
    "model": "m",
    "events": [
        {"after_s": 0.0, "what": "came", "bytes": 12, "priority": "normal"},
        {"after_s": 0.0, "what": "waits", "ahead": 3},
        {
            "after_s": 1.5,
            "what": "sent",
            "worker": "w-2",
            "attempt": 0,
            "free": [
                {"worker": "w-1", "running": 2, "waiting": 1, "unconfirmed": 0, "cost_s": 9.5},
                {"worker": "w-2", "running": 1, "waiting": 0, "unconfirmed": 0, "cost_s": 2.5},
            ],
            "without_a_place": 1,
        },
        {"after_s": 1.6, "what": "began", "worker": "w-2", "prompt_tokens": 9, "cached_tokens": 4},
        {"after_s": 2.0, "what": "goes_on", "worker": "w-2", "code": "worker_lost", "tokens": 5},
        {"after_s": 2.0, "what": "sent", "worker": "w-1", "attempt": 1, "free": [], "tried": ["w-2"]},
        {"after_s": 3.25, "what": "finished", "worker": "w-1", "finish_reason": "stop", "tokens": 9},
        {"after_s": 3.5, "what": "of a later version"},
    ],
}


def test_each_event_is_a_sentence_with_its_time_and_who_was_chosen_is_marked():
    assert (
        "\n".join(lines("gw-1", LIFE))
        == """\
req-1.ab, model m, gateway gw-1
    0.000 s  came: 12 bytes of prompt, class normal
    0.000 s  waits in the gateway's line, 3 there before it
    1.500 s  sent to w-2
               w-1: 2 running, 1 waiting, 0 unconfirmed; done with all in 9.5 s
             * w-2: 1 running, 0 waiting, 0 unconfirmed; done with all in 2.5 s
               1 without a place
    1.600 s  w-2 begins it: 9 tokens of prompt, 4 of them in its cache
    2.000 s  w-2 is left (worker_lost) after 5 tokens; another one goes on
    2.000 s  sent to w-1, attempt 2
               tried before: w-2
    3.250 s  w-1 ends it: stop, 9 tokens
    3.500 s  of a later version"""
    )
