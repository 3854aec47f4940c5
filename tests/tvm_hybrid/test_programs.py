"""Programs: what threads wait for that want programs at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tvm_hybrid.errors import CompileError, InputValueError
from tvm_hybrid.programs import Programs
from tvm_hybrid.tensors import OpenTensorInfo

X = OpenTensorInfo("x", ("n",), "int64")
LONG = 60  # seconds, after which a test that hangs fails


class Compiler:
    """Makes a session of nothing but its shape; a shape waits until it may go on."""

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
    programs = Programs((X,), (), compiler)
    begun, may_end = compiler.hold(1)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(programs.session_for, feeds(1))
        assert begun.wait(LONG)
        assert programs.session_for(feeds(2)).shape == (2,)  # a new one
        assert programs.session_for(feeds(2)).shape == (2,)  # and one that is kept
        assert not slow.done()
        may_end.set()
        assert slow.result(LONG).shape == (1,)


def test_two_shapes_are_compiled_at_once() -> None:
    together = Barrier(2, timeout=LONG)

    def compile_for(shapes: dict[str, Any], values: dict[str, Any]) -> Any:
        together.wait()  # fails unless both are here
        return SimpleNamespace(shape=shapes["x"])

    programs = Programs((X,), (), compile_for)
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(programs.session_for, map(feeds, (1, 2)))
        assert [session.shape for session in found] == [(1,), (2,)]


def test_a_shape_is_compiled_once_however_many_want_it() -> None:
    compiler = Compiler()
    programs = Programs((X,), (), compiler)
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

    programs = Programs((X,), (), compile_for)
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
            raise InputValueError("the value of 'x' must be known", ("x",))
        return SimpleNamespace(values=values)

    programs = Programs((X,), (), compile_for)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(programs.session_for, [feeds(2), {"x": np.array([7, 8])}]))
    assert [session.values["x"].tolist() for session in found] == [[0, 1], [7, 8]]
