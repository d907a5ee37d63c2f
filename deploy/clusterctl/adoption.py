"""Taking over what an earlier supervisor left running: by its pid files, and where it was killed
before it had written one, by the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from clusterctl import supervision
from clusterctl.control import NAME
from clusterctl.processes import Child, find_children, read_record
from clusterctl.supervision import Kind, Process, Spec
from clusterctl.sweeping import sweep_process
from protocol.addresses import Home

Adopted = list[tuple[Process, Child]]


def adopt_recorded(home: Home) -> Adopted:
    """The processes of the pid files; what others left behind is removed."""
    adopted: Adopted = []
    for path in sorted(home.run.glob("*.pid")):
        process_id, record = path.stem, read_record(path)
        if process_id == NAME:
            continue
        if record is None or record.kind not in tuple(Kind):
            sweep_process(home, process_id)
            continue
        spec = Spec(process_id, Kind(record.kind), record.drain_s, record.digest)
        child = Child(record.pid, record.identity, None)
        adopted.append((supervision.adopted(spec, record.pid, record.digest), child))
    return adopted


def adopt_unrecorded(home: Home, specs: Iterable[Spec], commands: Mapping[str, Sequence[str]]) -> Adopted:
    """Those among `specs` that run with their command of `commands`.

    With which configuration they were started nobody knows any more: they count as outdated.
    """
    found = find_children(commands, home.path)
    return [
        (supervision.adopted(spec, found[spec.id].pid, ""), found[spec.id])
        for spec in specs
        if spec.id in found
    ]
