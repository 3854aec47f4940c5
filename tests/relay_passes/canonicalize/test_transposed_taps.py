"""Windows along one axis compute what the definition of a transposed convolution says."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_passes.canonicalize.transposed_conv import TransposedAxis, Window
from tir_schedules.core.size import SymbolicSize


def by_definition(axis: TransposedAxis, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """A transposed convolution by definition: each input adds x[i] * w[tap] to its outputs."""
    y = np.zeros(axis.output, np.int64)
    for i in range(axis.extent):
        for tap in range(axis.kernel):
            o = i * axis.stride + tap * axis.dilation - axis.before
            if 0 <= o < axis.output:
                y[o] += x[i] * w[tap]
    return y


def convolved(window: Window, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """[count, phases]: an ordinary convolution of stride 1 with the window's taps."""
    start, stop = max(0, -window.before), len(x) - max(0, -window.after)
    x = np.pad(x[start:stop], (max(0, window.before), max(0, window.after)))
    span = (window.size - 1) * window.dilation + 1
    assert len(x) - span + 1 == window.count
    return np.array(
        [
            [
                sum(
                    x[q + at * window.dilation] * w[tap]
                    for at, tap in enumerate(taps)
                    if tap is not None
                )
                for taps in window.taps
            ]
            for q in range(window.count)
        ]
    )


@st.composite
def axes(draw: st.DrawFn) -> TransposedAxis:
    extent, kernel = draw(st.integers(1, 6)), draw(st.integers(1, 7))
    stride, dilation = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    natural = (extent - 1) * stride + (kernel - 1) * dilation + 1 + draw(st.integers(0, stride - 1))
    before = draw(st.integers(0, natural - 1))
    output = natural - before - draw(st.integers(0, natural - before - 1))
    return TransposedAxis(extent, kernel, stride, dilation, before, output - extent * stride)


@settings(max_examples=300, deadline=None)
@given(axes())
def test_both_forms(axis: TransposedAxis) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(1, 100, axis.extent), rng.integers(1, 100, axis.kernel)
    wanted = by_definition(axis, x, w)
    together = axis.together()
    if axis.extent + min(0, together.before) + min(0, together.after) > 0:
        rows = convolved(together, x, w).reshape(-1)
        np.testing.assert_array_equal(rows[axis.first : axis.first + axis.output], wanted)
        assert axis.cut == (len(rows) != axis.output)
    apart = axis.apart()
    if apart is not None:
        for residue, window in enumerate(apart):
            if axis.extent + min(0, window.before) + min(0, window.after) > 0:
                found = convolved(window, x, w).reshape(-1)
                own = wanted[residue :: axis.stride]
                np.testing.assert_array_equal(found[: len(own)], own)


def test_windows_that_do_not_overlap() -> None:
    axis = TransposedAxis(extent=5, kernel=2, stride=2, dilation=1, before=0, more=0)
    assert axis.together() == Window(((0,), (1,)), 1, 0, 0, 5)
    assert axis.together().pointwise and not axis.cut


def test_taps_of_single_phases() -> None:
    """4 taps at stride 2: each phase has two taps and reads one position beyond x on one side."""
    axis = TransposedAxis(extent=5, kernel=4, stride=2, dilation=1, before=1, more=0)
    even, odd = axis.apart() or []
    assert even == Window(((3, 1),), 1, before=1, after=0, count=5)
    assert odd == Window(((2, 0),), 1, before=0, after=1, count=5)
    assert axis.cut  # computing all phases at once gives one extra result at both ends


def test_a_phase_without_taps_is_not_computed_alone() -> None:
    axis = TransposedAxis(extent=3, kernel=3, stride=2, dilation=2, before=0, more=3)
    assert axis.apart() is None
    assert axis.together().taps == ((2, 1, 0), (None, None, None))


def test_without_a_stride_the_dilation_stays() -> None:
    axis = TransposedAxis(extent=6, kernel=3, stride=1, dilation=2, before=2, more=0)
    assert axis.together() == Window(((2, 1, 0),), 2, before=2, after=2, count=6)


def test_an_extent_may_be_symbolic() -> None:
    n = SymbolicSize.of("n")
    axis = TransposedAxis(extent=n, kernel=4, stride=2, dilation=1, before=1, more=0)
    assert axis.output == n * 2
    even, odd = axis.apart() or []
    assert (even.before, even.after, even.count) == (1, 0, n)
    assert (odd.before, odd.after, odd.count) == (0, 1, n)
    assert axis.together().count == n + 1
