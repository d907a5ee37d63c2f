"""Settings that all tests share."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# Machines that run tests are busy: slowness of generating examples is no fault of the code.
settings.register_profile("fleet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fleet")

# A shell that starts the tests in the background has them ignore SIGINT, and what is ignored stays so in
# every child: Ctrl-C would end none of the programs that are tested.
signal.signal(signal.SIGINT, signal.default_int_handler)
