"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Machines that run tests are busy: slowness of generating examples is no fault of the code.
settings.register_profile("fleet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fleet")
