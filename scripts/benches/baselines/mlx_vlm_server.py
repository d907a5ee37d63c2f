"""mlx-vlm's own server, with OpenBLAS as the worker has it. Its packages for speech are not installed:
it imports them when it starts, and chats never call them."""

from __future__ import annotations

import importlib.util
import sys
from unittest import mock

from worker.engine.blas import prepare_blas

prepare_blas()
if importlib.util.find_spec("mlx_audio") is None:
    for name in ("mlx_audio", "mlx_audio.audio_io", "mlx_audio.utils"):
        sys.modules[name] = mock.MagicMock()

from mlx_vlm.server import main  # noqa: E402

main()
