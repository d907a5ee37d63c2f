from worker.complaints import PAUSE_S, Complaints


def test_the_first_of_a_kind_is_said_and_then_one_in_a_while():
    complaints = Complaints()
    assert [complaints.count("a", 0.0) for _ in range(3)] == [1, 0, 0]
    assert complaints.count("b", 0.0) == 1
    assert complaints.count("a", PAUSE_S) == 4
    assert complaints.counts == {"a": 4, "b": 1}
