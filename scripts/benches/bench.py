"""Measures Studiofleet against baselines that cannot be slowed, side by side in one run.

Pairs are interleaved; each ratio is the median with its 95 % interval.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import bench_batching
import bench_decode
import bench_embeddings
import bench_gateway
import bench_overload
import bench_peers
import bench_prefix
import bench_profile
import bench_sampling
import bench_structured
import bench_vision

BENCHES = {
    "gateway": bench_gateway,
    "batching": bench_batching,
    "decode": bench_decode,
    "embeddings": bench_embeddings,
    "overload": bench_overload,
    "peers": bench_peers,
    "prefix": bench_prefix,
    "profile": bench_profile,
    "sampling": bench_sampling,
    "structured": bench_structured,
    "vision": bench_vision,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, bench in BENCHES.items():
        command = commands.add_parser(
            name, help=str(bench.__doc__).partition("\n")[0], description=bench.__doc__
        )
        command.add_argument("--pairs", type=int, default=9)
        bench.arguments(command)
    options = parser.parse_args()
    if options.pairs < 9:
        parser.error("fewer than 9 pairs give no interval")
    with tempfile.TemporaryDirectory(prefix="sf-bench-") as folder:
        BENCHES[options.command].run(Path(folder), options)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # an engine's threads that have just ended may abort an interpreter that ends
