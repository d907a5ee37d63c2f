from worker.tenancy import LEAST_STAY_S, Tenancy


def test_a_model_that_nobody_used_yet_stays_for_a_moment():
    tenancy = Tenancy(600)
    tenancy.begin(100)
    assert not tenancy.may_end(100 + LEAST_STAY_S - 0.1)
    assert tenancy.may_end(100 + LEAST_STAY_S)


def test_a_model_that_was_used_may_go_at_once():
    tenancy = Tenancy(600)
    tenancy.begin(100)
    tenancy.used(101)
    assert tenancy.may_end(101)
    tenancy.begin(102)
    assert not tenancy.may_end(102)


def test_it_is_idle_since_its_last_use_and_never_while_something_is_in_hand():
    tenancy = Tenancy(60)
    tenancy.begin(100)
    assert tenancy.idle_s(0, 130) == 30
    tenancy.used(130)
    assert tenancy.idle_s(0, 150) == 20
    assert tenancy.idle_s(1, 150) == 0


def test_the_time_out_runs_from_the_last_use():
    tenancy = Tenancy(60)
    tenancy.begin(100)
    assert tenancy.left_s(0, 150) == 10
    assert tenancy.left_s(3, 500) == 60
    tenancy.used(150)
    assert tenancy.left_s(0, 209) == 1
    assert tenancy.left_s(0, 211) == 0
