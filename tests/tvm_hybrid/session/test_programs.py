"""Programs: how threads wait that request programs concurrently."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tvm_hybrid.errors import CompileError, FeedError, InputValueError
from tvm_hybrid.runtime.tensors import DeclaredInterface, DynamicTensorInfo
from tvm_hybrid.session.model_programs import DynamicSession
from tvm_hybrid.session.programs import MOST_PROGRAMS, MOST_REFUSALS, Programs

X = DynamicTensorInfo("x", ("n",), "int64")
MODE = DynamicTensorInfo("mode", (1,), "int64")
DECLARED = DeclaredInterface((X,), ())
BY_SHAPE = DynamicSession(DECLARED, "no template takes it", ())
LONG = 60  # seconds until a test that hangs fails


class Compiler:
    """Makes sessions that hold only a shape; compiling a shape waits until it is released."""

    def __init__(self) -> None:
        self.made: list[tuple[int, ...]] = []
        self.begun: dict[tuple[int, ...], Event] = {}
        self.may_end: dict[tuple[int, ...], Event] = {}
        self.lock = Lock()

    def hold(self, *shape: int) -> tuple[Event, Event]:
        self.begun[shape], self.may_end[shape] = Event(), Event()
        return self.begun[shape], self.may_end[shape]

    def __call__(self, shapes: dict[str, tuple[int, ...]], values: dict[str, np.ndarray]) -> Any:
        shape = shapes["x"]
        with self.lock:
            self.made.append(shape)
        if shape in self.begun:
            self.begun[shape].set()
            assert self.may_end[shape].wait(LONG)
        return SimpleNamespace(shape=shape, values=values)


def feeds(length: int) -> dict[str, np.ndarray]:
    return {"x": np.arange(length, dtype=np.int64)}


def test_a_shape_does_not_wait_for_another_one() -> None:
    compiler = Compiler()
    programs = Programs((X,), BY_SHAPE, compiler)
    begun, may_end = compiler.hold(1)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(programs.session_for, feeds(1))
        assert begun.wait(LONG)
        assert programs.session_for(feeds(2)).shape == (2,)  # a new shape
        assert programs.session_for(feeds(2)).shape == (2,)  # a kept shape
        assert not slow.done()
        may_end.set()
        assert slow.result(LONG).shape == (1,)


def test_two_shapes_are_compiled_at_once() -> None:
    together = Barrier(2, timeout=LONG)

    def compile_for(shapes: dict[str, Any], values: dict[str, Any]) -> Any:
        together.wait()  # fails unless both are here
        return SimpleNamespace(shape=shapes["x"])

    programs = Programs((X,), BY_SHAPE, compile_for)
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(programs.session_for, map(feeds, (1, 2)))
        assert [session.shape for session in found] == [(1,), (2,)]


def test_a_shape_is_compiled_once_however_many_want_it() -> None:
    compiler = Compiler()
    programs = Programs((X,), BY_SHAPE, compiler)
    begun, may_end = compiler.hold(3)
    with ThreadPoolExecutor(4) as pool:
        wanted = [pool.submit(programs.session_for, feeds(3)) for _ in range(4)]
        assert begun.wait(LONG)
        may_end.set()
        assert len({id(each.result(LONG)) for each in wanted}) == 1
    assert compiler.made == [(3,)]


def test_who_waited_for_a_failure_tries_again() -> None:
    failures = iter([CompileError("once")])
    begun, may_end = Event(), Event()

    def compile_for(shapes: dict[str, Any], values: dict[str, Any]) -> Any:
        begun.set()
        assert may_end.wait(LONG)
        for failure in failures:
            raise failure
        return SimpleNamespace(shape=shapes["x"])

    programs = Programs((X,), BY_SHAPE, compile_for)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(programs.session_for, feeds(1))
        assert begun.wait(LONG)
        second = pool.submit(programs.session_for, feeds(1))
        may_end.set()
        with pytest.raises(CompileError, match="once"):
            first.result(LONG)
        assert second.result(LONG).shape == (1,)


def test_values_that_are_found_to_be_needed_make_programs_of_their_own() -> None:
    def compile_for(shapes: dict[str, Any], values: dict[str, Any]) -> Any:
        if "x" not in values:
            raise InputValueError("the value of 'x' must be known", inputs=("x",))
        return SimpleNamespace(values=values)

    programs = Programs((X,), BY_SHAPE, compile_for)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(programs.session_for, [feeds(2), {"x": np.array([7, 8])}]))
    assert [session.values["x"].tolist() for session in found] == [[0, 1], [7, 8]]


class ByMode:
    """Makes dynamic programs for some values of `mode`, and single-shape programs for others."""

    def __init__(self, *dynamic: int) -> None:
        self.dynamic = dynamic
        self.asked: list[tuple[Any, int]] = []
        self.programs = Programs((X, MODE), DynamicSession(DECLARED, "mode", ("mode",)), self)

    def __call__(self, shapes: dict[str, Any] | None, values: dict[str, np.ndarray]) -> Any:
        mode = int(values["mode"][0])
        self.asked.append((None if shapes is None else shapes["x"], mode))
        if shapes is None and mode not in self.dynamic:
            return DynamicSession(DECLARED, f"mode {mode} is odd", ())
        return SimpleNamespace(executable=(shapes, mode))

    def run(self, length: int, mode: int) -> Any:
        return self.programs.session_for({**feeds(length), "mode": np.array([mode])}).executable


def test_a_value_has_one_dynamic_program_where_that_is_possible() -> None:
    made = ByMode(8, 16)
    for length, mode in ((1, 8), (2, 8), (3, 16), (4, 8), (5, 16)):
        made.run(length, mode)
    assert made.asked == [(None, 8), (None, 16)]
    assert made.programs.why_several((None, 8)) == "one program for each value of 'mode'"


def test_a_value_without_a_dynamic_program_has_one_for_each_shape() -> None:
    made = ByMode(8)
    for length, mode in ((1, 9), (2, 9), (1, 9), (1, 8), (2, 8)):
        made.run(length, mode)
    assert made.asked == [(None, 9), ((1,), 9), ((2,), 9), (None, 8)]
    assert made.programs.why_several(made.run(2, 9)) == (
        "one program for each value of 'mode'; one program for each combination of shapes, "
        "because mode 9 is odd"
    )
    assert made.programs.why_several(made.run(2, 8)) == "one program for each value of 'mode'"


def test_dynamic_programs_are_not_tried_for_ever() -> None:
    made = ByMode()
    for mode in range(MOST_REFUSALS + 2):
        made.run(1, mode)
    assert [mode for shape, mode in made.asked if shape is None] == list(range(MOST_REFUSALS))
    assert "because mode 1 is odd" in made.programs.why_several(made.run(1, 3))
    sometimes = ByMode(1)
    for mode in range(4):
        sometimes.run(1, mode)
    assert [mode for shape, mode in sometimes.asked if shape is None] == [0, 1, 2, 3]


def test_a_program_that_was_just_used_is_found_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making an `InputValue` for each parameter took three quarters of a call."""
    made = ByMode(8, 16)
    for mode in (8, 16, 8, 16):  # compiled, then looked up
        made.run(1, mode)
    monkeypatch.setattr("tvm_hybrid.session.programs.InputValue", None)
    assert [made.run(length, mode)[1] for length, mode in ((1, 8), (2, 16), (3, 8))] == [8, 16, 8]
    with pytest.raises(AttributeError):  # a list takes the way that makes one
        made.programs.session_for({**feeds(1), "mode": [8]})


def test_feeds_of_other_types_shapes_or_names_are_looked_at_closely() -> None:
    made = ByMode(8, 16)
    for mode in (8, 16, 8, 16):
        made.run(1, mode)
    eight = np.array([8])
    with pytest.raises(FeedError, match="mode"):  # has equal bytes
        made.programs.session_for({**feeds(1), "mode": eight.view(np.uint64)})
    with pytest.raises(FeedError, match="mode"):
        made.programs.session_for({**feeds(1), "mode": eight.reshape(1, 1)})
    with pytest.raises(FeedError, match="'x'"):
        made.programs.session_for({"mode": eight})
    with pytest.raises(FeedError, match="'x'"):
        made.programs.session_for({"mode": eight, "y": eight})


def test_the_program_that_is_used_all_the_time_is_not_the_one_that_is_dropped() -> None:
    modes = range(MOST_PROGRAMS + 1)
    made = ByMode(*modes)
    for mode in modes[1:]:
        for each in (mode, 0, 0):
            made.run(1, each)
    assert [mode for _, mode in made.asked].count(0) == 1
    kept = {session.executable[1] for session in made.programs._sessions.values()}
    assert kept == {0, *modes[2:]}


def test_a_dropped_program_is_not_found() -> None:
    modes = range(MOST_PROGRAMS + 1)
    made = ByMode(*modes)
    for mode in modes:
        for _ in range(3):
            made.run(1, mode)
    made.run(1, 0)
    assert [mode for _, mode in made.asked] == [*modes, 0]
