"""What an installation calls itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol import __version__
from protocol.installation import version_in

BUILD = f"{__version__}-92ac11f2"


@pytest.mark.parametrize(
    ("prefix", "version"),
    [
        (f"/opt/studiofleet/versions/{BUILD}", BUILD),
        (f"/opt/studiofleet/{BUILD}", __version__),
        ("/opt/studiofleet/versions/9.9.9-92ac11f2", __version__),
        ("/srv/studiofleet/.venv", __version__),
    ],
)
def test_only_a_folder_that_clusterctl_made_names_the_build(prefix: str, version: str):
    assert version_in(Path(prefix)) == version
