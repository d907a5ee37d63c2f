"""A module that cannot be imported: it wants the process to end."""

raise SystemExit("no licence")
