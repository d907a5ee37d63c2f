import pytest

pytest.register_assert_rewrite("tests.worker.engine.contract")
