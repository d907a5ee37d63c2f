"""One filled-in message of every kind, for round trips and golden frames."""

from __future__ import annotations

from protocol import messages as m
from protocol.values import (
    Capacity,
    ChatMessage,
    ContentPart,
    Load,
    ModelCard,
    SamplingParams,
    Timings,
    ToolCall,
    ToolSpec,
    Usage,
)

LOAD = Load(running=3, waiting=1, prefill_tokens=120, kv_tokens=900)

SAMPLES: tuple[m.Message, ...] = (
    m.Hello(
        protocol=(1, 0),
        worker_id="smol-1",
        incarnation="01890-ab",
        node="local",
        pid=4121,
        card=ModelCard(name="smollm2-135m", aliases=("default",), max_model_len=8192, engine="batched"),
        capacity=Capacity(max_num_seqs=8, max_waiting=1, kv_tokens=32768),
        state="loading",
    ),
    m.Heartbeat(
        state="loading",
        load=LOAD,
        progress=0.5,
        detail="layer 15 of 30",
        decode_tokens_per_s=61.5,
        prefill_tokens_per_s=180.0,
        step_age_s=0.25,
        cache_epoch=2,
    ),
    m.Accepted(request_id="r1", attempt=0, load=LOAD),
    m.Rejected(request_id="r1", attempt=1, load=LOAD, reason="engine_busy", retry_after_s=0.5),
    m.Started(request_id="r1", attempt=0, prompt_tokens=37, cached_tokens=24),
    m.Deltas(
        deltas=(
            m.Delta("r1", 0, "Par", (12, 40000), 2),
            m.Delta(
                "r2",
                0,
                "",
                (7,),
                9,
                "because",
                (m.ToolCallDelta(0, "find", "{"),),
                (m.TokenLogprob(7, "x", -0.5, ((7, "x", -0.5), (8, "y", -1.5))),),
            ),
        )
    ),
    m.Finished(
        request_id="r1",
        attempt=0,
        finish_reason="stop",
        usage=Usage(prompt_tokens=37, cached_tokens=24, completion_tokens=9),
        load=LOAD,
        matched_stop="\n\n",
        timings=Timings(queued_s=0.1, prefill_s=0.4, decode_s=1.5),
    ),
    m.Failed(
        request_id="r1",
        attempt=0,
        code="invalid_request",
        message="the template raised",
        load=LOAD,
        param="messages",
        reason="invalid_value",
    ),
    m.Result(request_id="r1", value={"ids": [1, 2, 3]}),
    m.Goodbye(reason="drained"),
    m.Welcome(gateway_id="gw-1", protocol=(1, 0), refused="no"),
    m.WhoAreYou(gateway_id="gw-1"),
    m.Ping(gateway_id="gw-1"),
    m.Generate(
        request_id="r1",
        attempt=0,
        model="smollm2-135m",
        sampling=SamplingParams(max_tokens=20, temperature=0.5, stop=("END",), logit_bias={5: -100.0}),
        seed=2**63 - 1,
        messages=(
            ChatMessage(role="user", content=(ContentPart(type="text", text="hé 👋"),)),
            ChatMessage(role="assistant", tool_calls=(ToolCall(id="c", name="f", arguments="{}"),)),
            ChatMessage(role="tool", content="4", tool_call_id="c"),
        ),
        tools=(ToolSpec(name="f", parameters={"type": "object"}),),
        response_format={"type": "text"},
        time_left_s=30.0,
        trace_context={"traceparent": "00-1-2-01"},
        resume_token_ids=(1, 2, 3),
    ),
    m.Generate(
        request_id="r2", attempt=0, model="m", sampling=SamplingParams(), seed=0, prompt="Once upon a time"
    ),
    m.Abort(request_id="r1"),
    m.Embed(request_id="r1", inputs=("a", "b"), dimensions=64),
    m.Tokenize(request_id="r1", text="a"),
    m.Drain(then="exit", timeout_s=5.0),
    m.Undrain(),
    m.LoadModel(),
    m.Unload(),
    m.Stats(request_id="r1"),
    m.ClearCaches(request_id="r1"),
    m.Score(request_id="r1", attempt=1, queries=("a",), texts=("b", "c"), model="m", time_left_s=5.0),
)
