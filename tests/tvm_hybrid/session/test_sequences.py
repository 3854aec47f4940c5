"""Sessions with sequence or optional inputs and outputs, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_hybrid
from tests.tvm_hybrid.frontend.models import onnxruntime_run, parsed, random
from tvm_hybrid.errors import (
    FeedError,
    ModelError,
    OptionError,
    ShapeError,
    UnsupportedOperatorError,
)

JOIN = """
    agraph (seq(float[n, 4]) xs, float[4] bias) => (float[m, 4] y, seq(float[n, 4]) zs)
    {
        joined = ConcatFromSequence<axis = 0>(xs)
        y = Add(joined, bias)
        two = Constant<value_int = 2>()
        zs = SplitToSequence<axis = 0>(y, two)
    }"""


def session_of(model: onnx.ModelProto | str, **options: Any) -> tvm_hybrid.InferenceSession:
    model = parsed(model) if isinstance(model, str) else model
    return tvm_hybrid.InferenceSession(model, num_threads=1, cache=False, **options)


def check(text: str, *feeds: dict[str, Any]) -> tvm_hybrid.InferenceSession:
    """Checks a session against ONNX Runtime for all feeds."""
    model, session = parsed(text), session_of(text)
    for each in feeds:
        found, expected = session.run(None, each), onnxruntime_run(model, each)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert type(one) is type(other)
            np.testing.assert_equal([np.shape(x) for x in one], [np.shape(x) for x in other])
            for part, wanted in zip(one, other, strict=True):
                np.testing.assert_array_equal(part, wanted)
    return session


def rows(*counts: int) -> list[np.ndarray]:
    return [random(count, 4, seed=count) for count in counts]


def test_sequences_in_and_out() -> None:
    bias = random(4)
    session = check(
        JOIN,
        {"xs": rows(2, 3), "bias": bias},
        {"xs": rows(1, 1), "bias": bias},
        {"xs": rows(5), "bias": bias},
    )
    told = [(each.name, each.type, each.shape) for each in session.get_inputs()]
    assert told == [("xs", "seq(tensor(float))", []), ("bias", "tensor(float)", [4])]
    assert [each.type for each in session.get_outputs()] == ["tensor(float)", "seq(tensor(float))"]
    inputs = [sorted(each.shapes) for each in session.programs]
    assert inputs.count(["bias", "xs[0]", "xs[1]"]) >= 1
    assert ["bias", "xs[0]"] in inputs
    assert "one program for each number of elements of xs" in str(session.explain())
    (only,) = session.run(["zs"], {"xs": rows(3), "bias": bias})
    assert [each.shape for each in only] == [(2, 4), (1, 4)]


def test_sequences_within_a_model() -> None:
    text = """
    agraph (float[3, 8] x) => (float[3, 4] y, int64 count)
    {
        sizes = Constant<value = int64[3] {1, 4, 3}>()
        parts = SplitToSequence<axis = 1>(x, sizes)
        last = Constant<value_int = -1>()
        more = SequenceInsert(parts, x, last)
        fewer = SequenceErase(more)
        one = Constant<value_int = 1>()
        y = SequenceAt(fewer, one)
        count = SequenceLength(fewer)
    }"""
    x = random(3, 8)
    found = tvm_hybrid.InferenceSession(parsed(text), num_threads=1).run(None, {"x": x})
    np.testing.assert_array_equal(found[0], x[:, 1:5])
    assert found[1] == 3


def test_a_sequence_of_outputs_is_compiled_to_tensors() -> None:
    text = "agraph (float[3, 4] x) => (seq(float[4]) y) { y = SplitToSequence<keepdims = 0>(x) }"
    made = tvm_hybrid.compile(parsed(text), num_threads=1)
    assert [info.name for info in made.outputs] == ["y[0]", "y[1]", "y[2]"]
    x = random(3, 4)
    np.testing.assert_array_equal([each.numpy() for each in made.run({"x": x})], x)


@pytest.mark.parametrize("opset", [11, 17])
def test_split_of_an_older_opset(opset: int) -> None:
    text = """
    agraph (float[5, 2] x) => (float[2, 2] y)
    {
        two = Constant<value = int64 {2}>()
        parts = SplitToSequence(x, two)
        one = Constant<value = int64 {1}>()
        y = SequenceAt(parts, one)
    }"""
    x = random(5, 2)
    (found,) = session_of(parsed(text, opset)).run(None, {"x": x})
    np.testing.assert_array_equal(found, x[2:4])


def test_places_and_lengths_that_are_inputs() -> None:
    """Positions and lengths are parameters: each value has a program."""
    text = """
    agraph (seq(float[n]) xs, int64 place) => (float[n] y)
    {
        two = Constant<value_int = 2>()
        less = SequenceErase(xs, place)
        y = SequenceAt(less, two)
    }"""
    xs = [random(3, seed=n) for n in range(4)]
    check(text, *({"xs": xs, "place": np.array(place)} for place in (0, -1, 2)))
    with pytest.raises(ShapeError, match="a sequence of 4 has no position 4"):
        session_of(text).run(None, {"xs": xs, "place": np.array(4)})


def test_a_sequence_that_a_loop_builds() -> None:
    text = """
    agraph (float[2, 3] x, int64 count) => (seq(float[2, 3]) ys)
    {
        going = Constant<value = bool {1}>()
        start = SequenceEmpty<dtype = 1>()
        ys = Loop(count, going, start) <body = step (int64 i, bool before, seq(float[2, 3]) sofar)
            => (bool after, seq(float[2, 3]) more)
        {
            after = Identity(before)
            number = Cast<to = 1>(i)
            part = Add(x, number)
            more = SequenceInsert(sofar, part)
        }>
    }"""
    x = random(2, 3)
    check(text, *({"x": x, "count": np.array(count)} for count in (3, 1)))


def test_a_map_over_sequences_and_a_tensor() -> None:
    text = """
    agraph (seq(float[n]) xs, seq(float[n]) ys, float[1] z)
        => (seq(float[n]) made, seq(float[n]) sums)
    {
        made, sums = SequenceMap(xs, ys, z) <body = each (float[n] x, float[n] y, float[1] w)
            => (float[n] product, float[n] total)
        {
            product = Mul(x, w)
            total = Add(x, y)
        }>
    }"""
    xs, ys = [random(n, seed=n) for n in (3, 2)], [random(n, seed=-n % 9) for n in (3, 2)]
    session = session_of(text)
    made, sums = session.run(None, {"xs": xs, "ys": ys, "z": random(1)})
    for x, y, product, total in zip(xs, ys, made, sums, strict=True):
        np.testing.assert_array_equal(product, x * random(1))
        np.testing.assert_array_equal(total, x + y)
    with pytest.raises(ShapeError, match="its sequences differ in length: 2, 1, 2"):
        session.run(None, {"xs": xs, "ys": ys[:1], "z": random(1)})


def optional_model() -> onnx.ModelProto:
    """A model that returns its optional input or zeros, and the input itself."""
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    optional = helper.make_optional_type_proto(tensor)
    then = helper.make_graph(
        [helper.make_node("OptionalGetElement", ["x"], ["found"])], "then", [],
        [helper.make_value_info("found", tensor)],
    )  # fmt: skip
    zeros = helper.make_tensor("zeros", TensorProto.FLOAT, [2], [0.0, 0.0])
    other = helper.make_graph(
        [helper.make_node("Constant", [], ["nothing"], value=zeros)], "other", [],
        [helper.make_value_info("nothing", tensor)],
    )  # fmt: skip
    nodes = [
        helper.make_node("OptionalHasElement", ["x"], ["here"]),
        helper.make_node("If", ["here"], ["y"], then_branch=then, else_branch=other),
        helper.make_node("Identity", ["x"], ["same"]),
    ]
    graph = helper.make_graph(
        nodes, "optional", [helper.make_value_info("x", optional)],
        [helper.make_value_info("y", tensor), helper.make_value_info("same", optional)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_an_optional_input_may_be_left_out() -> None:
    session, x = session_of(optional_model()), random(2)
    assert session.get_inputs()[0].type == "optional(tensor(float))"
    y, same = session.run(None, {"x": x})
    np.testing.assert_array_equal((y, same), (x, x))
    for feeds in ({"x": None}, {}):
        y, same = session.run(None, feeds)
        np.testing.assert_array_equal(y, [0, 0])
        assert same is None


def test_an_optional_sequence_is_empty_or_absent() -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"])
    optional = helper.make_optional_type_proto(helper.make_sequence_type_proto(tensor))
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "passed on",
        [helper.make_value_info("x", optional)], [helper.make_value_info("y", optional)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    session = session_of(model)
    assert session.run(None, {"x": []}) == [[]]
    assert session.run(None, {"x": None}) == [None]
    (found,) = session.run(None, {"x": [random(3), random(1)]})
    np.testing.assert_array_equal(found[0], random(3))
    np.testing.assert_array_equal(found[1], random(1))


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"xs": random(2, 4), "bias": random(4)}, "'xs': a list of arrays.*not ndarray"),
        ({"bias": random(4)}, "no value for input 'xs'"),
        ({"xs": rows(2), "bias": random(4), "z": 1}, "the model has no input 'z'"),
        ({"xs": [random(2, 5)], "bias": random(4)}, r"'xs\[0\]'"),
        ({"xs": [random(2, 4), random(2)], "bias": random(4)}, r"'xs\[1\]'"),
        ({"xs": [np.zeros((2, 4), np.int64)], "bias": random(4)}, r"'xs\[0\]'"),
        ([random(4)], "must be a dictionary"),
    ],
)
def test_feeds_that_do_not_fit(feeds: Any, message: str) -> None:
    session = session_of(JOIN)
    with pytest.raises((FeedError, ShapeError), match=message):
        session.run(None, feeds)
    with pytest.raises(FeedError, match="no output 'w'"):
        session.run(["w"], {"xs": rows(2), "bias": random(4)})


def test_what_a_model_of_sequences_refuses() -> None:
    with pytest.raises(ModelError, match=r"'xs' is seq\(tensor\(float\)\).*InferenceSession"):
        tvm_hybrid.compile(parsed(JOIN))
    session = session_of(JOIN)
    with pytest.raises(ShapeError, match="no program has run yet"):
        _ = session.executable
    binding = session.io_binding()
    with pytest.raises(FeedError, match="cannot be bound"):
        binding.bind_output("y")
        session.run_with_iobinding(binding)
    with pytest.raises(FeedError, match="no OrtValue holds"):
        session.run_with_ort_values(None, {})
    options = tvm_hybrid.SessionOptions()
    options.enable_profiling = True
    with pytest.raises(OptionError, match="cannot be profiled"):
        tvm_hybrid.InferenceSession(parsed(JOIN), options)


@pytest.mark.parametrize(
    ("form", "message"),
    [("axis = 2", "axis 2 of a tensor of rank 2"), ("axis = -3", "axis -3 of a tensor of rank 2")],
)
def test_a_split_along_an_axis_that_is_not_there(form: str, message: str) -> None:
    text = f"agraph (float[3, 4] x) => (seq(float[3, 4]) y) {{ y = SplitToSequence<{form}>(x) }}"
    with pytest.raises(ShapeError, match=message):
        tvm_hybrid.compile(parsed(text))


def test_a_split_of_nothing_is_an_empty_sequence() -> None:
    text = """
    agraph (float[0, 4] x) => (int64 n)
    {
        parts = SplitToSequence(x)
        n = SequenceLength(parts)
    }"""
    feeds = {"x": np.zeros((0, 4), np.float32)}
    assert session_of(text).run(None, feeds) == onnxruntime_run(parsed(text), feeds) == [0]


def test_a_place_that_depends_on_data() -> None:
    text = """
    agraph (float[3, 100] x) => (float[1, 100] y)
    {
        parts = SplitToSequence(x)
        sums = ReduceSum<keepdims = 0>(x)
        place = Cast<to = 7>(sums)
        y = SequenceAt(parts, place)
    }"""
    with pytest.raises(UnsupportedOperatorError, match="'place' depends on data"):
        tvm_hybrid.compile(parsed(text))


def test_streams_and_a_fast_start() -> None:
    with session_of(JOIN, streams=2, start="fast") as session:
        request = session.submit(None, {"xs": rows(2, 3), "bias": random(4)})
        y, zs = request.result()
        assert (y.shape, len(zs)) == ((5, 4), 3)
        assert "no fast start" in str(session.explain())


def test_the_least_used_session_is_dropped() -> None:
    session = session_of("agraph (seq(float[n]) xs) => (int64 n) { n = SequenceLength(xs) }")
    for count in range(1, 11):
        assert session.run(None, {"xs": [random(2)] * count}) == [count]
    assert len(session.programs) == 8
