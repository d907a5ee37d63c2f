"""Which requests go on when their worker is lost, and how many retries a gateway adds."""

from __future__ import annotations

from gateway.retry import RetryBudget


def test_three_a_second_are_free_and_a_tenth_of_the_requests_comes_on_top():
    budget = RetryBudget()
    assert sum(budget.take(0.0) for _ in range(100)) == 30
    for _ in range(200):
        budget.request(1.0)
    assert sum(budget.take(1.0) for _ in range(100)) == 20


def test_what_is_ten_seconds_old_is_forgotten():
    budget = RetryBudget()
    assert sum(budget.take(0.0) for _ in range(40)) == 30
    assert not budget.take(9.9)
    assert budget.take(10.1)
