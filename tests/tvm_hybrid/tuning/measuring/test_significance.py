"""The sign test of the finals: compared with its definition, and with luck."""

from __future__ import annotations

import random

import pytest

from tvm_hybrid.tuning.measuring.sampling import LEVEL, MARGIN, is_faster, sign_test


def test_the_binomial_tail() -> None:
    assert sign_test([], []) == 1.0
    assert sign_test([1.0], [2.0]) == 0.5
    assert sign_test([1.0] * 10, [2.0] * 10) == 2.0**-10
    assert sign_test([1.0] * 9 + [3.0], [2.0] * 10) == 11 * 2.0**-10
    assert sign_test([3.0] * 5, [2.0] * 5) == 1.0
    assert sign_test([1.0, 1.0], [2.0]) == 0.5  # unpaired samples do not count


def test_a_little_faster_is_not_enough() -> None:
    times = [100 * (1 - MARGIN / 2)] * 100
    assert not is_faster(times, [100.0] * 100)
    assert is_faster([100 * (1 - 2 * MARGIN)] * 100, [100.0] * 100)


def test_one_bad_moment_changes_little() -> None:
    times = [90.0] * 38 + [1000.0] * 3
    assert is_faster(times, [100.0] * 41, tests=3)


@pytest.mark.parametrize("tests", [1, 3])
def test_equals_are_seldom_confirmed(tests: int) -> None:
    """Among kernels faster by exactly the margin, at most the level's share is confirmed."""
    generator = random.Random(tests)
    confirmed = 0
    for _ in range(2000):
        baseline = [generator.lognormvariate(0, 0.05) for _ in range(41)]
        times = [(1 - MARGIN) * generator.lognormvariate(0, 0.05) for _ in range(41)]
        confirmed += is_faster(times, baseline, tests)
    # Expected at most 20 of 2000, standard deviation at most 4.5; four of them are allowed.
    assert confirmed <= 2000 * LEVEL / tests + 18
