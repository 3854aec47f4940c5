"""Closed forms for windows inside the image, compared with every position."""

from __future__ import annotations

from hypothesis import given

from tests.examples import examples
from tests.tir_schedules.conv_regions import conv_region, convolutions
from tir_schedules.convolution.direct.config import edge_tiles
from tir_schedules.convolution.geometry import AxisClasses, ConvGeometry
from tir_schedules.core.blocking import balanced
from tir_schedules.core.region import Region


@examples(60)
@given(convolutions())
def test_closed_forms_of_what_lies_inside(region: Region) -> None:
    geometry = ConvGeometry.of(region).as_volume()
    for axis, (outputs, taps) in enumerate(zip(geometry.outputs, geometry.kernel, strict=True)):
        inside = [geometry.inside(axis, output) for output in range(outputs)]
        first, last = geometry.whole(axis)
        cut = [found != (0, taps) for found in inside]
        assert [not first <= output < last for output in range(outputs)] == cut
        for tap in range(taps):
            for start in range(outputs):
                count = sum(low <= tap < high for low, high in inside[start:])
                assert geometry.reached(axis, tap, start, outputs) == count
        classes = AxisClasses.of(geometry, axis)
        for output in range(outputs):
            number = classes.number(output)
            assert isinstance(number, int)
            assert inside[classes.representative(number)] == inside[output]
    for rows in (1, 2, 3, 5):
        tiles = [
            (group.start + number * group.size, group.size)
            for group in balanced(geometry.outputs[2], rows)
            for number in range(group.count)
        ]
        first, last = geometry.whole(2)
        assert edge_tiles(geometry, rows) == [
            (start, size) for start, size in tiles if start < first or start + size > last
        ]


def test_a_long_line_has_few_tiles_at_its_ends() -> None:
    region = conv_region((1 << 20,), 1, 1, (256,), padding=(128, 127))
    assert len(edge_tiles(ConvGeometry.of(region).as_volume(), 14)) == 20
