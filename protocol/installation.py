"""Which installation of ours this process runs from."""

from __future__ import annotations

import sys
from pathlib import Path

from protocol import __version__


def version_in(prefix: Path) -> str:
    """Of what is installed in a Python's folder: on nodes the folder's name, which tells builds of one
    version apart."""
    made_by_clusterctl = prefix.parent.name == "versions" and prefix.name.startswith(f"{__version__}-")
    return prefix.name if made_by_clusterctl else __version__


VERSION = version_in(Path(sys.prefix))
PLACE = f"{VERSION} in {sys.prefix}"
"""Two processes with the same run the same program, as far as a name can tell."""
