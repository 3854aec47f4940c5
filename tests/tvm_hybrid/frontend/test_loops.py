"""Scan and Loop with unrolled iterations, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tvm_hybrid.errors import ModelError
from tvm_hybrid.frontend import import_onnx

from .models import SCAN, compare, onnxruntime_run, operators, parsed, random


def _check(text: str, feeds: dict[str, NDArray], opset: int = 17) -> Any:
    """The imported model, which is checked against ONNX Runtime's results."""
    model = parsed(text, opset)
    return compare(model, feeds, onnxruntime_run(model, feeds))


@pytest.mark.parametrize("opset", [9, 12, 17])
def test_scan_with_axes_directions_and_captured_values(opset: int) -> None:
    text = f"""
    agraph (float[4] s, float[2, 3, 5, 4] x, float[5, 4] y, float[4] w)
        => (float[4] last, float[4, 5] down, float[5, 4] up)
    {{
        first = Identity(s)
        z = ReduceMax<axes = [0, 1], keepdims = 0>(x)
        {SCAN}(first, first, z, y)
    }}"""
    if opset == 9:  # this opset has no negative axes
        text = text.replace("[-2, 0]", "[0, 0]").replace("[-1, 0]", "[1, 0]")
    feeds = {"s": random(4), "x": random(2, 3, 5, 4, seed=1), "y": random(5, 4, seed=2)}
    _check(text, feeds | {"w": random(4, seed=3)}, opset)


def test_scan_of_opset_8_scans_each_batch() -> None:
    text = """
    agraph (float[3, 2] s, float[3, 4, 2] x) => (float[3, 2] last, float[3, 4, 2] sums)
    {
        last, sums = Scan<num_scan_inputs = 1, directions = [1],
            body = b (float[2] a, float[2] p) => (float[2] a2, float[2] c)
            { a2 = Add(a, p) c = Identity(a2) }>("", s, x)
    }"""
    _check(text.replace('""', ""), {"s": random(3, 2), "x": random(3, 4, 2, seed=1)}, 8)


def test_scan_without_steps() -> None:
    text = """
    agraph (float[2] s, float[0, 2] x) => (float[2] last, float[0, 2] sums)
    {
        last, sums = Scan<num_scan_inputs = 1,
            body = b (float[2] a, float[2] p) => (float[2] a2, float[2] c)
            { a2 = Add(a, p) c = Neg(a2) }>(s, x)
    }"""
    feeds = {"s": random(2), "x": random(0, 2)}
    compare(parsed(text), feeds, [feeds["s"], feeds["x"]])  # ONNX Runtime fails


_LOOP = """
    agraph (float[2, 3] x) => (float[2, 3] last, float[N, 2, 3] made)
    <int64 limit = {LIMIT}, bool yes = {1}>
    {
        last, made = Loop<body = b (int64 i, bool going, float[2, 3] v)
            => (bool next, float[2, 3] v2, float[2, 3] row)
        {
            stop = Constant<value = int64 {STOP}> ()
            next = Less(i, stop)
            step = Cast<to = 1>(i)
            v2 = Add(v, step)
            row = Mul(v2, x)
        }>(limit, yes, x)
    }"""


@pytest.mark.parametrize(("limit", "stop", "rows"), [(4, 9, 4), (9, 2, 3), (0, 5, 0), (1, 5, 1)])
def test_loop_ends_by_its_limit_or_a_folded_condition(limit: int, stop: int, rows: int) -> None:
    text = _LOOP.replace("LIMIT", str(limit)).replace("STOP", str(stop)).replace("N", str(rows))
    imported = _check(text, {"x": random(2, 3)})
    assert imported.outputs[1].shape == (rows, 2, 3)


def test_loop_whose_state_grows() -> None:
    text = """
    agraph (float[1, 2] x) => (float[4, 2] all)
    <int64 limit = {3}>
    {
        all = Loop<body = b (int64 i, bool going, float[n, 2] v) => (bool next, float[m, 2] v2)
        { next = Identity(going) v2 = Concat<axis = 0>(v, x) }>(limit, , x)
    }"""
    _check(text, {"x": random(1, 2)})


def test_nested_bodies_see_values_of_all_surroundings() -> None:
    text = """
    agraph (float[2] x, bool c) => (float[3, 2] made)
    <int64 two = {2}, int64 three = {3}, float[2] w = {0.5, -2.0}>
    {
        last, made = Loop<body = outer (int64 i, bool g, float[2] v)
            => (bool next, float[2] v2, float[2] row)
        {
            next = Identity(g)
            v2 = Loop<body = inner (int64 j, bool h, float[2] u) => (bool more, float[2] u2)
            {
                more = Identity(h)
                chosen = If(c) <
                    then_branch = yes () => (float[2] p) { p = Mul(u, w) },
                    else_branch = no () => (float[2] q) { q = Add(u, v) }>
                u2 = Tanh(chosen)
            }>(two, , v)
            row = Add(v2, x)
        }>(three, , x)
    }"""
    for condition in (True, False):
        _check(text, {"x": random(2), "c": np.array(condition)})


def test_constants_of_a_body_are_shared_by_its_iterations() -> None:
    text = """
    agraph (float[1, 2] x) => (float[1, 2] y)
    <int64 limit = {5}>
    {
        y = Loop<body = b (int64 i, bool going, float[1, 2] v) => (bool next, float[1, 2] v2)
        {
            w = Constant<value = float[2, 2] {1.0, 2.0, 3.0, 4.0}> ()
            next = Identity(going)
            p = MatMul(v, w)
            v2 = Tanh(p)
        }>(limit, , x)
    }"""
    imported = _check(text, {"x": random(1, 2)})
    assert operators(imported)["matmul"] == 5


def test_a_body_with_too_few_values_is_refused() -> None:
    text = _LOOP.replace("LIMIT", "3").replace("STOP", "9").replace("N", "3")
    with pytest.raises(ModelError, match="takes 3 values"):
        import_onnx(parsed(text.replace("limit, yes, x)", "limit, yes)")))


def test_range_of_vectors_of_one_element() -> None:
    text = """
    agraph (float[3] x) => (float[3] y) <int64[1] zero = {0}, int64[1] end = {3}, int64 one = {1}>
    { steps = Range(zero, end, one) values = Cast<to = 1>(steps) y = Add(x, values) }"""
    x = random(3)
    compare(parsed(text), {"x": x}, [x + np.arange(3, dtype=np.float32)])
