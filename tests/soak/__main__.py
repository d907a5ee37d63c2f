"""Two days of a cluster in ten minutes: load in all its moods, restarts, drains, kills; then: is it flat?

A gateway pair and three fake workers under the supervisor. As many requests as come in two days at
--per-minute are asked as fast as the machine takes them, in bursts; during each burst something is
done to a process, after each, when nothing is under way, everything is measured. It passes when
the medians of the last quarter are no larger than those of the second: memory by 5 % or 4 MiB at
most, descriptors, threads and files not at all, logs within what is configured.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.integration.cluster import wait_for
from tests.integration.operating import operating
from tests.soak.fleet import LIMITS, Fleet
from tests.soak.measures import Sample, judge, table
from tests.soak.requests import burst

MINUTES = 2 * 24 * 60
CLIENTS = 16
TOLERATED = {
    "ok",
    "ConnectError",  # this and the rest: whose gateway was killed or restarted
    "ConnectionRefusedError",
    "ConnectionResetError",
    "ReadError",
    "WriteError",
    "RemoteProtocolError",
    "shutting_down",
}


def main() -> int:
    options = _options()
    total = int(MINUTES * options.per_minute)
    each = max(1, total // options.bursts)
    print(
        f"{total} requests: {options.per_minute:g} a minute for two days; {options.bursts} bursts of {each}"
    )
    print(f"seed {options.seed}")
    rng = random.Random(options.seed)
    outcomes: Counter[str] = Counter()
    samples: list[Sample] = []
    begun = time.monotonic()
    with operating() as operator:
        fleet = Fleet(operator, rng)
        for number in range(options.bursts):
            burst_begun = time.monotonic()
            outcomes += _one_burst(fleet, each, rng, warm=number >= options.bursts // 4)
            fleet.settle()
            samples.append(fleet.sample())
            pause = options.seconds / options.bursts - (time.monotonic() - burst_begun)
            time.sleep(max(0.0, pause))
        seconds = time.monotonic() - begun
        operator.run("down")
        wait_for(lambda: operator.processes() == [], "everything to have ended")
    return _verdict(samples, outcomes, seconds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--per-minute", type=float, default=12.0, help="requests in those two days (12)")
    parser.add_argument("--bursts", type=int, default=96, help="one stands for half an hour (96)")
    parser.add_argument("--seconds", type=float, default=600.0, help="take at least so long (600)")
    parser.add_argument("--seed", type=int, default=random.randrange(1, 1_000_000), help="repeats a run")
    options = parser.parse_args()
    if options.bursts < 8:
        parser.error("fewer than 8 bursts tell nothing")
    return options


def _one_burst(fleet: Fleet, count: int, rng: random.Random, *, warm: bool) -> Counter[str]:
    with ThreadPoolExecutor(1) as operator:
        disturbance = operator.submit(fleet.disturb, warm=warm)
        outcomes = asyncio.run(burst(fleet.urls, count, CLIENTS, rng))
        print(f"{disturbance.result()}: {dict(outcomes)}", flush=True)
    return outcomes


def _verdict(samples: list[Sample], outcomes: Counter[str], seconds: float) -> int:
    rows = judge(samples, LIMITS)
    print("\n".join(table(rows)))
    print(f"{sum(outcomes.values())} requests in {seconds:.0f} s: {dict(outcomes.most_common())}")
    wrong = [f"{row.name} grows" for row in rows if not row.ok]
    wrong += [f"{outcome}: {outcomes[outcome]}" for outcome in outcomes if outcome not in TOLERATED]
    print(f"soak: {'; '.join(wrong)}" if wrong else "soak: flat")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
