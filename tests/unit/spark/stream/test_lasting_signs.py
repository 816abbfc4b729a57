from __future__ import annotations

from tidemill.core.ids import TopicPartition
from tidemill.spark.stream.lasting_signs import LastingSigns

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_sign_counts_when_it_has_lasted():
    signs = LastingSigns(30)
    assert signs.lasting({A}, 100) == []
    assert signs.may_pass(100)
    assert signs.lasting({A, B}, 129) == []
    assert signs.lasting({A, B}, 130) == [A]
    assert signs.may_pass(130)
    assert signs.lasting({A, B}, 159) == [A, B]
    assert not signs.may_pass(159)


def test_a_sign_that_passed_starts_over():
    signs = LastingSigns(30)
    signs.lasting({A}, 100)
    assert signs.lasting((), 110) == []
    assert not signs.may_pass(110)
    assert signs.lasting({A}, 135) == []
