"""A fast BLAS beneath MLX on Linux, put in place before MLX is imported for the first time.

The Linux wheel of MLX brings the reference BLAS: one thread, no vector instructions. Symbols that
are already global win over it, so loading OpenBLAS with RTLD_GLOBAL makes prefill about twenty
times faster, without a compiler or another start command.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import logging
import os
import sys
from collections.abc import MutableMapping

logger = logging.getLogger(__name__)

CURE = "apt-get install libopenblas0-pthread"


def prepare_blas(workers: int = 1) -> None:
    """Load OpenBLAS with this worker's share of the cores, and keep MLX from compiling on the CPU.

    Call it before anything imports MLX; a second call does nothing new. `workers` is the number
    of workers that share the machine.
    """
    if sys.platform != "linux":
        return
    share_cores(os.environ, cores=len(os.sched_getaffinity(0)), workers=workers)
    if not load_openblas(ctypes.util.find_library("openblas")):
        logger.warning(
            "OpenBLAS was not found, so prompts are read about twenty times slower; cure: %s", CURE
        )
    _disable_compiler_on_cpu()


def share_cores(environ: MutableMapping[str, str], cores: int, workers: int) -> None:
    """Give OpenBLAS its share of the cores, unless the environment already says how many."""
    environ.setdefault("OPENBLAS_NUM_THREADS", str(max(1, cores // max(1, workers))))


def load_openblas(library: str | None) -> bool:
    """Make the symbols of that library global. False when it is not there or does not load."""
    if library is None:
        return False
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        logger.warning("OpenBLAS (%s) does not load: %s", library, error)
        return False
    return True


def _disable_compiler_on_cpu() -> None:
    """On the CPU, MLX's compiler gains nothing and leaves files in the temporary folder."""
    import mlx.core as mx  # noqa: PLC0415 (after OpenBLAS)

    if mx.default_device().type == mx.cpu:
        mx.disable_compile()
