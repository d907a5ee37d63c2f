"""The JSON schema of `cluster.toml`, generated from `protocol.config`.

`python -P -m clusterctl.schema FILE` writes it; with `--check` it fails when FILE is not current.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from protocol.config import ClusterConfig, WorkerConfig


def schema_text() -> str:
    """The schema as the committed file has it."""
    schema: dict[str, Any] = msgspec.json.schema(ClusterConfig)
    for struct in (ClusterConfig, WorkerConfig):
        for name in not_built(struct):
            del schema["$defs"][struct.__name__]["properties"][name]
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "cluster.toml", **schema}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def not_built(struct: type[msgspec.Struct]) -> set[str]:
    """Keys that `parse` refuses: part of the format, without a type yet."""
    return {name for name, hint in get_type_hints(struct).items() if hint is Any}


def main() -> None:
    """The program."""
    arguments = argparse.ArgumentParser(prog="schema", description=__doc__)
    arguments.add_argument("file", type=Path)
    arguments.add_argument("--check", action="store_true")
    options = arguments.parse_args()
    if not options.check:
        options.file.write_text(schema_text(), encoding="utf-8")
    elif not options.file.exists() or options.file.read_text(encoding="utf-8") != schema_text():
        sys.exit(f"{options.file} is not current; run: scripts/schema")


if __name__ == "__main__":
    main()
