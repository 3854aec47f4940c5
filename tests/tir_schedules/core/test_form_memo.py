"""A result cached for a region's form equals the function's result."""

from __future__ import annotations

from tir_schedules.core.kernel_numbers import FormMemo
from tir_schedules.core.region import Region, Tensor


def _region(zero_point: int, rows: int = 4) -> Region:
    return Region(
        op="matmul",
        inputs=(Tensor((rows, 8), "uint8"), Tensor((8, 8), "int8", constant=True)),
        output=Tensor((rows, 8), "int32"),
        attrs={"a_zero_point": zero_point},
    )


class _Asked:
    """Functions of regions that count their calls."""

    def __init__(self) -> None:
        self.count = 0

    def sums(self, region: Region) -> tuple[str, int]:
        self.count += 1
        sums = "sums" if region.integer("a_zero_point") else "no sums"
        return sums, region.output.shape[0]

    def zero_point(self, region: Region) -> int:
        self.count += 1
        return region.integer("a_zero_point") + 1

    def root(self, region: Region) -> float:
        self.count += 1
        return float(region.integer("a_zero_point") ** 2)


def test_regions_that_differ_in_numbers_are_asked_for_once() -> None:
    asked = _Asked()
    memo = FormMemo(asked.sums)
    assert [memo(_region(each)) for each in (3, 4, 5)] == [("sums", 4)] * 3
    assert asked.count == 1
    assert [memo(_region(each)) for each in (0, 6, 0)] == [
        ("no sums", 4),
        ("sums", 4),
        ("no sums", 4),
    ]
    assert asked.count == 2
    assert memo(_region(3, rows=5)) == ("sums", 5)
    assert asked.count == 3


def test_a_result_with_a_number_in_it_is_not_remembered() -> None:
    memo = FormMemo(_Asked().zero_point)
    assert [memo(_region(each)) for each in (3, 4, 3)] == [4, 5, 4]


def test_a_function_that_takes_nothing_but_numbers_is_asked_each_time() -> None:
    memo = FormMemo(_Asked().root)
    assert [memo(_region(each)) for each in (3, 4, 3)] == [9.0, 16.0, 9.0]
