"""Sessions of models with parameters among their inputs compile for the values that arrive."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_hybrid
from tvm_hybrid.errors import ArtifactError, FeedError, InputValueError, ShapeError
from tvm_hybrid.session.programs import MOST_PROGRAMS

INT64, FLOAT = TensorProto.INT64, TensorProto.FLOAT


def cut(rows: int | str = "n") -> onnx.ModelProto:
    """y = x[start:end] + 1 with x: [n, 2]."""
    graph = helper.make_graph(
        [
            helper.make_node("Slice", ["x", "start", "end"], ["part"]),
            helper.make_node("Add", ["part", "one"], ["y"]),
        ],
        "cut",
        [
            helper.make_tensor_value_info("x", FLOAT, [rows, 2]),
            helper.make_tensor_value_info("start", INT64, [1]),
            helper.make_tensor_value_info("end", INT64, [1]),
        ],
        [helper.make_tensor_value_info("y", FLOAT, [None, 2])],
        [helper.make_tensor("one", FLOAT, [], [1.0])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def feeds(rows: int, start: int, end: int) -> dict[str, np.ndarray]:
    x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    return {"x": x, "start": np.array([start]), "end": np.array([end])}


def check(session: tvm_hybrid.InferenceSession, rows: int, start: int, end: int) -> None:
    given = feeds(rows, start, end)
    np.testing.assert_array_equal(session.run(None, given)[0], given["x"][start:end] + 1)


def kept(session: tvm_hybrid.InferenceSession) -> list[tuple]:
    """Rows, start and end for which each program was compiled."""
    return [
        (program.shapes["x"][0], *(int(program.values[name][0]) for name in ("start", "end")))
        for program in session.programs
    ]


def test_every_set_of_values_has_one_program_for_all_shapes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = tvm_hybrid.InferenceSession(cut(), num_threads=1)
    assert session.programs == ()
    check(session, 3, 0, 2)
    first = session.executable
    with caplog.at_level(logging.INFO, "tvm_hybrid"):
        check(session, 3, 1, 2)
        check(session, 4, 0, 2)
        check(session, 3, 0, 2)
    compiled = [text for text in caplog.messages if text.startswith("making a program for")]
    assert compiled == ["making a program for dynamic shapes, start=[1], end=[2]"]
    assert session.executable is first
    assert kept(session) == [("n", 1, 2), ("n", 0, 2)]
    assert session.programs[-1].executable is first
    summary = session.explain().summary()
    assert "one program for each value of 'start', 'end'; made for start=[0], end=[2]" in summary
    names = [item.name for item in session.get_inputs()]
    assert names == ["x", "start", "end"]
    (empty,) = session.run(None, feeds(3, 2, 1))
    assert empty.shape == (0, 2)


def test_shapes_may_be_given_without_values() -> None:
    session = tvm_hybrid.InferenceSession(cut(), shapes={"n": 3}, num_threads=1)
    check(session, 3, 0, 1)
    with pytest.raises(FeedError, match=r"expected x: float32\[3, 2\], got shape \(4, 2\)"):
        session.run(None, feeds(4, 0, 1))


def test_some_values_may_be_given() -> None:
    session = tvm_hybrid.InferenceSession(cut(), values={"start": [1]}, num_threads=1)
    assert [item.name for item in session.get_inputs()] == ["x", "end"]
    check(session, 3, 1, 2)
    given = feeds(3, 1, 3)
    del given["start"]
    np.testing.assert_array_equal(session.run(None, given)[0], given["x"][1:] + 1)
    with pytest.raises(FeedError, match=r"made for start=\[1\], not for start=\[0\]"):
        session.run(None, feeds(3, 0, 2))


def test_programs_of_known_values_run_by_name_by_place_and_from_a_library(tmp_path: Path) -> None:
    values = {"start": [1], "end": [3]}
    executable = tvm_hybrid.compile(cut(3), values=values, num_threads=1)
    given = feeds(3, 1, 3)
    wanted = given["x"][1:3] + 1
    library = executable.export(tmp_path / "cut.so")
    for program in (executable, tvm_hybrid.load(library)):
        assert [info.name for info in program.inputs] == ["x"]
        assert [str(value) for value in program.values] == ["start=[1]", "end=[3]"]
        for result in (program.run(given["x"]), program.run(given), program.run({"x": given["x"]})):
            np.testing.assert_array_equal(result[0].numpy(), wanted)
        with pytest.raises(FeedError, match=r"made for end=\[3\], not for end=\[2\]"):
            program.run({**given, "end": [2]})
    session = tvm_hybrid.InferenceSession(library)
    np.testing.assert_array_equal(session.run(None, given)[0], wanted)
    np.testing.assert_array_equal(session.run(None, {"x": given["x"]})[0], wanted)
    assert kept(session) == [(3, 1, 3)]
    with pytest.raises(ArtifactError, match="values"):
        tvm_hybrid.InferenceSession(library, values=values)


def test_what_cannot_be_compiled_says_for_which_input() -> None:
    with pytest.raises(InputValueError, match=r"'start'.*must be known"):
        tvm_hybrid.compile(cut(3))
    with pytest.raises(InputValueError, match="'nothing'"):
        tvm_hybrid.InferenceSession(cut(3), values={"nothing": 1})
    session = tvm_hybrid.InferenceSession(cut(3), num_threads=1)
    with pytest.raises(ShapeError, match=r"run the session.*values=\{"):
        session.explain()
    with pytest.raises(FeedError, match="no value for input 'end'"):
        session.run(None, {"x": feeds(3, 0, 1)["x"], "start": [0]})
    with pytest.raises(FeedError, match="float64"):
        session.run(None, {**feeds(3, 0, 1), "start": [0.5]})
    check(session, 3, 0, 1)


def test_a_model_whose_inputs_are_all_parameters() -> None:
    graph = helper.make_graph(
        [helper.make_node("Range", ["start", "limit", "delta"], ["y"])],
        "range",
        [helper.make_tensor_value_info(name, FLOAT, []) for name in ("start", "limit", "delta")],
        [helper.make_tensor_value_info("y", FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    given = {name: np.float32(value) for name, value in (("start", 1), ("limit", 4), ("delta", 2))}
    first, second = (session.run(None, given)[0] for _ in range(2))
    np.testing.assert_array_equal(first, np.array([1, 3], np.float32))
    first[0] = 7  # changes the caller's array
    np.testing.assert_array_equal(second, np.array([1, 3], np.float32))


def test_programs_are_dropped_and_their_return_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = tvm_hybrid.InferenceSession(cut(), num_threads=1)
    for end in range(1, MOST_PROGRAMS + 2):
        check(session, 9, 0, end)
    assert kept(session) == [("n", 0, end) for end in range(2, MOST_PROGRAMS + 2)]
    assert not caplog.messages
    for end in (1, 2):
        check(session, 9, 0, end)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1 and "was dropped and is made again" in warnings[0].getMessage()


def test_threads_share_programs() -> None:
    session = tvm_hybrid.InferenceSession(cut(), num_threads=1)

    def work(end: int) -> None:
        for _ in range(5):
            check(session, 3, 0, end)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [1, 2, 1, 2]))
    assert sorted(kept(session)) == [("n", 0, 1), ("n", 0, 2)]


def merged_decoder(flag_shape: tuple[int, ...]) -> onnx.ModelProto:
    """Decodes with a cache of dynamic length, or without one, depending on the flag."""
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)

    def branch(name: str, cached: bool) -> onnx.GraphProto:
        own, present, y = (f"{name}_{each}" for each in ("own", "present", "y"))
        nodes = [helper.make_node("MatMul", ["x", "w"], [own])]
        if cached:
            nodes += [helper.make_node("Concat", ["past", own], [present], axis=1)]
        else:
            present = own
        nodes += [
            helper.make_node("ReduceMean", [present], [f"{name}_mean"], axes=[1]),
            helper.make_node("Add", [own, f"{name}_mean"], [y]),
        ]
        outputs = [helper.make_tensor_value_info(each, FLOAT, None) for each in (y, present)]
        return helper.make_graph(nodes, name, [], outputs)

    flag = "use_cache_branch"
    bodies = {"then_branch": branch("with_past", True), "else_branch": branch("first", False)}
    graph = helper.make_graph(
        [helper.make_node("If", [flag], ["y", "present"], **bodies)],
        "decoder",
        [
            helper.make_tensor_value_info("x", FLOAT, ["batch", "sequence", 8]),
            helper.make_tensor_value_info("past", FLOAT, ["batch", "past", 8]),
            helper.make_tensor_value_info(flag, TensorProto.BOOL, flag_shape),
        ],
        [
            helper.make_tensor_value_info("y", FLOAT, ["batch", "sequence", 8]),
            helper.make_tensor_value_info("present", FLOAT, ["batch", "total", 8]),
        ],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("flag_shape", [(), (1,)])
def test_a_merged_decoder_has_two_dynamic_programs_from_the_start(
    flag_shape: tuple[int, ...],
) -> None:
    model = merged_decoder(flag_shape)
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0]).astype(np.float64)
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    made = {id(program.executable) for program in session.programs}
    assert len(made) == 2
    random = np.random.default_rng(1)
    past = np.zeros((2, 0, 8), np.float32)
    for token in range(6):
        x = random.standard_normal((2, 1 if token else 3, 8)).astype(np.float32)
        flag = np.full(flag_shape, token > 0)
        y, past_and_own = session.run(None, {"x": x, "past": past, "use_cache_branch": flag})
        own = x @ weight
        wanted = np.concatenate([past, own], axis=1)
        # Sums of 8 products and means of up to 8 rows: 16 roundings of numbers below 16.
        error = 16 * 16 * np.finfo(np.float32).eps
        np.testing.assert_allclose(past_and_own, wanted, rtol=0, atol=error)
        np.testing.assert_allclose(y, own + wanted.mean(1, keepdims=True), rtol=0, atol=error)
        past = past_and_own
        summary = session.explain().summary()
        assert f"made for use_cache_branch={flag.tolist()}" in summary
        assert "one program for each value of 'use_cache_branch'" in summary
    assert {id(program.executable) for program in session.programs} == made
    flags = [bool(program.values["use_cache_branch"]) for program in session.programs]
    assert flags == [False, True]  # the most recently used one comes last
