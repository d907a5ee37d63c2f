"""The models of this machine: a folder each beneath STUDIOFLEET_MODELS, or anywhere else by its path."""

from __future__ import annotations

import os
from pathlib import Path

from clusterctl.operations import RefusedError
from protocol.addresses import models_folder
from protocol.models import find_model


def found_folder(model: str) -> Path:
    """The folder of a model that is there. Raises `RefusedError` with the cure."""
    try:
        return find_model(model, models_folder(os.environ))
    except ValueError as error:
        raise RefusedError(str(error)) from error
