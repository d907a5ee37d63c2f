from itertools import pairwise

import pytest

from worker.engine.base import EngineBusy
from worker.engine.fake_core import Effects, FakeCore, FakeRequest, Speed
from worker.engine.fake_script import Script, WordTokenizer, answer_of
from worker.engine.output import EngineFailed, EngineOutput
from worker.stops import StopMatcher


class Bench:
    """A core under a clock of its own, that records what each request was given and when."""

    def __init__(self, slots=2, room=1, speed=None):
        self.now = 100.0
        self.items = {}
        self.started = []
        self.blocked: list[float] = []
        self.exits = 0
        effects = Effects(block=self.blocked.append, exit=self.exit)
        speed = speed or Speed()
        self.core = FakeCore(slots, room, speed, WordTokenizer(), self.note_start, effects)

    def exit(self):
        self.exits += 1

    def note_start(self, request):
        self.started.append(request.request_id)

    def add(self, name, script=None, *, prompt_tokens=10, max_tokens=100, stop=(), attempt=0, resumed=0):
        script = script or Script(tokens=("a", "b"))
        self.items[name] = []
        request = FakeRequest(
            request_id=name,
            attempt=attempt,
            script=script,
            answer=answer_of(script, "prompt", False),
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            matcher=StopMatcher(stop),
            emit=lambda item: self.items[name].append((round(self.now, 6), item)),
            resumed=resumed,
        )
        self.core.add(request, self.now)
        return request

    def run(self, until=None, steps=1000):
        for _ in range(steps):
            due = self.core.next_due()
            if due is None or (until is not None and due > until):
                return
            self.now = max(self.now, due)
            self.core.step(self.now)
        raise AssertionError("the core never comes to rest")

    def outputs(self, name):
        return [item for _, item in self.items[name] if isinstance(item, EngineOutput)]

    def text(self, name):
        return "".join(output.new_text for output in self.outputs(name))

    def end(self, name):
        return self.items[name][-1][1]


def test_the_first_item_tells_that_the_prompt_was_taken():
    bench = Bench()
    bench.add("r")
    bench.run()
    first = bench.outputs("r")[0]
    assert (first.text, first.tokens, first.finished, first.prompt_tokens) == ("", [], False, 10)
    assert first.finish_reason is None


def test_one_token_an_item_and_the_last_says_why():
    bench = Bench()
    bench.add("r", Script(tokens=("He", "llo"), finish="tool_calls"))
    bench.run()
    _, one, two = bench.outputs("r")
    assert (one.text, one.new_text, one.finished, one.finish_reason) == ("He", "He", False, None)
    assert (two.text, two.new_text, two.finished, two.finish_reason) == ("Hello", "llo", True, "tool_calls")
    assert len(one.tokens) == 1
    assert two.completion_tokens == 2


def test_max_tokens_cuts():
    bench = Bench()
    bench.add("r", Script(tokens=("a",), repeat=50), max_tokens=3)
    bench.run()
    assert (bench.text("r"), bench.end("r").finish_reason) == ("aaa", "length")


def test_an_answer_without_tokens_ends_at_once():
    bench = Bench()
    bench.add("r", Script(tokens=()))
    bench.run()
    assert (bench.end("r").finished, bench.end("r").tokens, bench.end("r").finish_reason) == (
        True,
        [],
        "stop",
    )


def test_a_code_point_in_pieces_comes_whole():
    bench = Bench()
    bench.add("r", Script(tokens=("x",), bytes=("f09f98", "80")))
    bench.run()
    assert [output.new_text for output in bench.outputs("r")[1:]] == ["x", "", "😀"]


def test_bytes_that_are_no_text_become_replacement_characters():
    bench = Bench()
    bench.add("r", Script(bytes=("ff", "41", "f09f98")))
    bench.run()
    assert bench.text("r") == "\ufffdA\ufffd"


def test_a_code_point_cut_by_max_tokens_is_dropped():
    bench = Bench()
    bench.add("r", Script(bytes=("41", "f09f98", "80")), max_tokens=2)
    bench.run()
    assert bench.text("r") == "A"


def test_a_stop_string_across_tokens_ends_the_answer():
    bench = Bench()
    bench.add("r", Script(tokens=("one", "EN", "D two", "three")), stop=("END",))
    bench.run()
    end = bench.end("r")
    assert (bench.text("r"), end.finish_reason, end.matched_stop, end.completion_tokens) == (
        "one",
        "stop",
        "END",
        3,
    )


def test_slots_then_waiting_room_then_busy():
    bench = Bench(slots=2, room=1)
    for name in "abc":
        bench.add(name)
    with pytest.raises(EngineBusy):
        bench.add("d")
    bench.core.step(bench.now)
    assert bench.started == ["a", "b"]
    bench.run()
    assert bench.started == ["a", "b", "c"]
    assert (bench.core.load(bench.now).running, bench.core.load(bench.now).waiting) == (0, 0)


def test_a_removed_request_frees_its_place():
    bench = Bench(slots=1, room=0)
    request = bench.add("a")
    bench.core.step(bench.now)
    assert bench.core.remove(request)
    assert not bench.core.remove(request)
    bench.add("b")
    bench.run()
    assert bench.text("b") == "ab"


def test_tokens_keep_the_set_speed():
    bench = Bench(speed=Speed(decode=10))
    bench.add("r", Script(tokens=("a",), repeat=4))
    bench.run()
    times = [at for at, output in bench.items["r"] if output.tokens]
    assert [round(b - a, 3) for a, b in pairwise(times)] == [0.1, 0.1, 0.1]


def test_requests_of_one_speed_share_their_steps():
    bench = Bench(speed=Speed(decode=10))
    bench.add("a", Script(tokens=("a",), repeat=4))
    bench.run(until=100.01)
    bench.now += 0.03
    bench.add("b", Script(tokens=("b",), repeat=4))
    bench.run()
    grid = [{at for at, output in bench.items[name] if output.tokens} for name in "ab"]
    assert len(grid[0] & grid[1]) >= 3


def test_a_late_step_is_not_made_up_for():
    bench = Bench(speed=Speed(decode=10))
    bench.add("r", Script(tokens=("a",), repeat=3))
    bench.core.step(bench.now)
    bench.now += 5
    bench.core.step(bench.now)
    bench.core.step(bench.now)
    assert bench.text("r") == "aa"


def test_a_long_prefill_delays_its_own_request_only():
    bench = Bench(speed=Speed(prefill=100))
    bench.add("long", prompt_tokens=1000)
    bench.add("short", prompt_tokens=1)
    bench.core.step(bench.now)
    bench.now += 5
    assert bench.core.load(bench.now).prefill_tokens == 500
    bench.core.step(bench.now)
    assert bench.text("short") == "a"
    assert bench.text("long") == ""
    bench.run()
    assert bench.text("long") == "ab"
    assert bench.items["long"][1][0] == 110.0


def test_prefill_and_delay_of_the_script_win():
    bench = Bench(speed=Speed(prefill=1, decode=1))
    bench.add("r", Script(tokens=("a",), repeat=2, prefill_ms=500, delay_ms=20))
    bench.run()
    assert bench.items["r"][1][0] == 100.5
    assert bench.items["r"][2][0] == pytest.approx(100.52, abs=0.02)


def test_a_resumed_answer_goes_on_with_the_next_token():
    bench = Bench()
    bench.add("r", Script(tokens=("a", "b", "c", "d"), finish="stop"), resumed=2)
    bench.run()
    assert bench.text("r") == "cd"
    assert (bench.end("r").text, bench.end("r").completion_tokens) == ("abcd", 4)


def test_a_resumed_answer_goes_on_in_the_middle_of_a_code_point():
    bench = Bench()
    bench.add("r", Script(bytes=("f09f98", "80", "41")), resumed=1)
    bench.run()
    assert bench.text("r") == "😀A"


@pytest.mark.parametrize(
    ("once", "attempt", "fails"), [(False, 0, True), (False, 1, True), (True, 0, True), (True, 1, False)]
)
def test_a_fault_happens_again_unless_once(once, attempt, fails):
    bench = Bench()
    bench.add("r", Script(tokens=("a", "b"), raise_at=1, once=once), attempt=attempt)
    bench.run()
    assert isinstance(bench.end("r"), RuntimeError) is fails
    assert bench.core.load(bench.now).running == 0


def test_a_failing_request_leaves_the_others_alone():
    bench = Bench()
    bench.add("bad", Script(tokens=("a", "b"), raise_at=1))
    bench.add("good")
    bench.run()
    assert bench.text("bad") == "a"
    assert bench.text("good") == "ab"


def test_a_busy_script_is_refused_at_once():
    bench = Bench()
    with pytest.raises(EngineBusy):
        bench.add("r", Script(busy=True))
    bench.add("r", Script(busy=True, once=True), attempt=1)


def test_a_hang_stops_all_steps_and_its_age_grows():
    bench = Bench()
    other = bench.add("other", Script(tokens=("a",), repeat=10, delay_ms=100))
    bad = bench.add("bad", Script(tokens=("a", "b"), hang_at=1))
    bench.run()
    bench.now += 7
    bench.core.step(bench.now)
    assert bench.text("bad") == "a"
    assert bench.core.load(bench.now).step_age_s == pytest.approx(7, abs=0.2)
    bench.core.remove(bad)
    bench.core.remove(other)
    assert bench.core.load(bench.now).step_age_s == pytest.approx(7, abs=0.2)


def test_an_engine_that_breaks_ends_every_request_for_good():
    bench = Bench(slots=1, room=1)
    bench.add("bad", Script(tokens=("a", "b"), break_at=1))
    bench.add("waiting")
    bench.run()
    assert bench.text("bad") == "a"
    assert [type(bench.end(name)) for name in ("bad", "waiting")] == [EngineFailed, EngineFailed]
    assert not list(bench.core.requests())


def test_waiting_behind_a_busy_slot_is_no_hang():
    bench = Bench(slots=1)
    bench.add("a", Script(tokens=("a",), prefill_ms=60_000))
    bench.add("b")
    bench.core.step(bench.now)
    bench.now += 30
    assert bench.core.load(bench.now).step_age_s == 0


def test_exit_and_block_reach_the_process():
    bench = Bench()
    bench.add("r", Script(tokens=("a", "b"), exit_at=1, block_ms=2000))
    bench.run()
    assert (bench.blocked, bench.exits) == ([2.0], 1)
