"""Streams of a session: where and when requests run, what waits, and how all of them end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import weakref
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import tvm_hybrid
from tests.tvm_hybrid.onnx_models import saved, two_layers
from tests.tvm_hybrid.small_models import mlp, mlp_module, mlp_reference, run_python
from tvm_hybrid.errors import (
    ArtifactError,
    FeedError,
    QueueFullError,
    SessionClosedError,
    TargetError,
)

pytestmark = pytest.mark.turns

X = np.random.default_rng(5).standard_normal((1, 16)).astype(np.float32)
TOLERANCE = 17 * 64 * 2.0**-24  # as in test_session.py
WAIT = 60.0  # seconds until a test that hangs fails


def session_with(streams: int | None, **options: Any) -> tvm_hybrid.InferenceSession:
    return tvm_hybrid.InferenceSession(mlp(), streams=streams, **options)


class Gate:
    """Stands for the model: calls block until they are released, and are counted."""

    def __init__(self, session: tvm_hybrid.InferenceSession) -> None:
        self.inside = threading.Semaphore(0)
        self.open = threading.Event()
        self.threads: list[int] = []
        self.order: list[float] = []
        self.most = self._now = 0
        self._lock = threading.Lock()
        if "run" in session._direct:
            session._direct["run"] = self
            call = session._requests.call
            session.__dict__["run"] = lambda *arguments: call(self, *arguments)
        else:
            session.__dict__["run"] = self

    def __call__(self, names: Any, feeds: Any, options: Any = None) -> list[np.ndarray]:
        with self._lock:
            self.threads.append(threading.get_ident())
            self.order.append(float(feeds["x"]))
            self._now += 1
            self.most = max(self.most, self._now)
        self.inside.release()
        assert self.open.wait(WAIT)
        with self._lock:
            self._now -= 1
        return [np.asarray(feeds["x"])]

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert self.inside.acquire(timeout=WAIT)


def until(condition: Any) -> None:
    """Waits until another thread makes the condition true."""
    for _ in range(int(WAIT * 200)):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it does not happen")


def in_thread(function: Any, *arguments: Any) -> Future[Any]:
    """Calls a function in a new thread."""
    found: Future[Any] = Future()

    def call() -> None:
        try:
            found.set_result(function(*arguments))
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return found


@pytest.mark.parametrize("streams", [None, 2])
def test_many_requests_of_many_callers_have_their_own_results(streams: int | None) -> None:
    with session_with(streams) as session:
        feeds = [np.full((1, 16), number, np.float32) for number in range(24)]
        futures = [session.submit(None, {"x": x}) for x in feeds[:12]]
        calls = [in_thread(session.run, ["output"], {"x": x}) for x in feeds[12:]]
        for x, found in zip(feeds, [*futures, *calls], strict=True):
            (y,) = found.result(WAIT)
            assert np.allclose(y, mlp_reference(x), rtol=1e-5, atol=TOLERANCE)


def test_a_caller_runs_in_his_own_thread_while_a_stream_is_free() -> None:
    with session_with(1) as session:
        gate = Gate(session)
        gate.open.set()
        session.run(None, {"x": 0})
        session.submit(None, {"x": 1}).result(WAIT)
        assert gate.threads[0] == threading.get_ident() != gate.threads[1]


def test_no_more_run_at_once_than_there_are_streams_and_nobody_overtakes() -> None:
    with session_with(2) as session:
        gate = Gate(session)
        first = [in_thread(session.run, None, {"x": number}) for number in range(2)]
        gate.wait_for(2)
        later = []
        for number in range(2, 8):
            kind = session.submit if number % 2 else lambda *what: in_thread(session.run, *what)
            later.append(kind(None, {"x": number}))
            until(lambda: len(session._requests._queue) == len(later))
        gate.open.set()
        for number, found in enumerate([*first, *later]):
            assert found.result(WAIT) == [np.asarray(number)]
        assert gate.most == 2
        # Two threads serve the queue: each takes the next request and may then be delayed.
        assert all(abs(place - number) < 2 for place, number in enumerate(gate.order))
        assert len(set(gate.threads[2:])) <= 2 and threading.get_ident() not in gate.threads


def test_threads_are_started_on_demand_and_end_with_the_session() -> None:
    session = session_with(3)
    assert session._requests.alive() == 0
    for _ in range(3):
        session.submit(None, {"x": X}).result(WAIT)
        until(lambda: session._requests._idle == 1)
    assert session._requests.alive() == 1
    gate = Gate(session)
    futures = [session.submit(None, {"x": number}) for number in range(5)]
    gate.wait_for(3)
    assert session._requests.alive() == 3
    gate.open.set()
    session.close()
    assert session._requests.alive() == 0 and all(each.done() for each in futures)
    session.close()


def test_a_collected_session_leaves_no_thread_and_serves_what_waits() -> None:
    session = session_with(2)
    requests, futures = session._requests, [session.submit(None, {"x": X}) for _ in range(4)]
    gone = weakref.ref(session)
    del session
    (y,) = futures[-1].result(WAIT)
    assert np.allclose(y, mlp_reference(X), rtol=1e-5, atol=TOLERANCE)

    def collected() -> bool:
        gc.collect()
        return gone() is None and requests.alive() == 0

    until(collected)


@pytest.mark.parametrize("streams", [None, 2])
def test_a_closed_session_takes_no_more(streams: int | None) -> None:
    session = session_with(streams)
    session.run(None, {"x": X})
    session.close()
    for call in (session.run, session.submit):
        with pytest.raises(SessionClosedError, match="make another one"):
            call(None, {"x": X})
    with pytest.raises(SessionClosedError):
        session.run_async(None, {"x": X}, print)
    with pytest.raises(SessionClosedError):
        session.run_with_iobinding(session.io_binding())


def test_what_waits_may_be_cancelled() -> None:
    session = session_with(1, queue_size=3)
    gate = Gate(session)
    told: list[tuple[Any, ...]] = []
    running = session.submit(None, {"x": 0})
    gate.wait_for(1)
    mine, dropped = session.submit(None, {"x": 1}), session.submit(None, {"x": 2})
    session.run_async(None, {"x": 3}, lambda *what: told.append(what), "mine")
    caller = in_thread(session.run, None, {"x": 4})
    until(lambda: len(session._requests._queue) == 4)
    assert mine.cancel() and not running.cancel()
    closing = in_thread(session.close, True)
    with pytest.raises(SessionClosedError, match="before the request was run"):
        dropped.result(WAIT)
    with pytest.raises(SessionClosedError):
        caller.result(WAIT)
    gate.open.set()
    closing.result(WAIT)
    assert running.result(WAIT) == [np.asarray(0)] and gate.order == [0.0]
    assert told == [([], "mine", "this session was closed before the request was run")]
    with pytest.raises(CancelledError):
        mine.result(WAIT)


def test_a_full_queue_says_so_or_waits() -> None:
    with session_with(1, queue_size=2) as session:
        gate = Gate(session)
        found = [session.submit(None, {"x": 0})]
        gate.wait_for(1)
        found += [session.submit(None, {"x": number}) for number in (1, 2)]
        for seconds in (0, 0.01):
            with pytest.raises(QueueFullError, match=r"2 requests wait.*larger queue_size"):
                session.submit(None, {"x": 9}, timeout=seconds)
        late = in_thread(session.submit, None, {"x": 3})
        caller = in_thread(session.run, None, {"x": 4})  # waits without room in the queue
        until(lambda: len(session._requests._queue) == 3)
        assert not late.done()
        gate.open.set()
        found.append(late.result(WAIT))
        assert [each.result(WAIT)[0] for each in found] == [0, 1, 2, 3]
        assert caller.result(WAIT) == [4]


def test_closing_wakes_who_waits_for_room() -> None:
    session = session_with(1, queue_size=1)
    gate = Gate(session)
    session.submit(None, {"x": 0})
    gate.wait_for(1)
    session.submit(None, {"x": 1})
    late = in_thread(session.submit, None, {"x": 2})
    closing = in_thread(session.close)
    with pytest.raises(SessionClosedError):
        late.result(WAIT)
    gate.open.set()
    closing.result(WAIT)


def test_callbacks_are_as_those_of_onnx_runtime(caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[Any, ...]] = []
    with session_with(None) as session:
        session.run_async(["output"], {"x": X}, lambda *what: told.append(what), 7)
        session.run_async(None, {"z": X}, lambda *what: told.append(what))
        with caplog.at_level(logging.ERROR, logger="tvm_hybrid"):
            session.run_async(None, {"x": X}, lambda *what: told[99].count(what), None)
            session.submit(None, {"x": X}).result(WAIT)  # the stream continues
    assert "callback of run_async" in caplog.text and "IndexError" in caplog.text
    ((y,), user_data, error), (nothing, no_data, why) = told
    assert np.allclose(y, mlp_reference(X), rtol=1e-5, atol=TOLERANCE)
    assert (user_data, error, nothing, no_data) == (7, "", [], None)
    assert "no value for input 'x'" in why
    with pytest.raises(FeedError, match="callback must be a function"):
        session.run_async(None, {"x": X}, "no function")  # type: ignore[arg-type]


def test_callbacks_get_what_those_of_onnx_runtime_get(tmp_path: Path) -> None:
    path = saved(tmp_path)
    x = np.ones((4, 8), np.float32)
    sessions: list[Any] = [
        tvm_hybrid.InferenceSession(path, num_threads=1),
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]),
    ]
    seen = []
    for session in sessions:
        for feeds in ({"x": x}, {"x": x[:, :7]}):
            done: Future[Any] = Future()
            # Every argument by keyword, with ONNX Runtime's names.
            session.run_async(
                output_names=["y"],
                input_feed=feeds,
                callback=lambda *what, done=done: done.set_result(what),
                user_data="mine",
                run_options=None,
            )
            results, user_data, error = done.result(WAIT)
            seen.append((type(results), len(results), user_data, type(error), bool(error)))
    assert seen[:2] == seen[2:] == [(list, 1, "mine", str, False), (list, 0, "mine", str, True)]


def test_a_callback_may_run_the_session_but_never_waits_for_room() -> None:
    with session_with(1, queue_size=1) as session:
        done: Future[Any] = Future()

        def callback(results: Any, _data: Any, _error: str) -> None:
            again = session.run(None, {"x": results[0]})
            session.submit(None, {"x": X})
            try:
                session.submit(None, {"x": X})
            except QueueFullError as error:
                done.set_result((again, error))

        session.run_async(None, {"x": X}, callback)
        (y,), _ = done.result(WAIT)
        assert np.allclose(y, mlp_reference(mlp_reference(X)), rtol=1e-4, atol=1e-4)


def test_errors_reach_the_caller() -> None:
    with session_with(2) as session:
        gate = Gate(session)
        held = [session.submit(None, {"x": number}) for number in range(2)]
        gate.wait_for(2)
        bad = in_thread(session._requests.call, lambda: 1 / 0)
        gate.open.set()
        with pytest.raises(ZeroDivisionError):
            bad.result(WAIT)
        assert [each.result(WAIT)[0] for each in held] == [0, 1]
    with session_with(2) as session, pytest.raises(FeedError, match="no value for input 'x'"):
        session.submit(None, {}).result(WAIT)


def test_a_future_can_be_awaited() -> None:
    async def all_of_them(session: tvm_hybrid.InferenceSession) -> list[Any]:
        futures = [asyncio.wrap_future(session.submit(None, {"x": X})) for _ in range(4)]
        return await asyncio.gather(*futures)

    with session_with(2) as session:
        for (y,) in asyncio.run(all_of_them(session)):
            assert np.allclose(y, mlp_reference(X), rtol=1e-5, atol=TOLERANCE)


def test_bound_arrays_wait_for_their_turn_too() -> None:
    with session_with(1) as session:
        y = np.zeros((1, 16), np.float32)
        binding = session.io_binding()
        binding.bind_input("x", X)
        binding.bind_output("output", y)
        release, started = threading.Event(), threading.Event()

        def hold() -> None:
            started.set()
            release.wait(WAIT)

        held = in_thread(session._requests.call, hold)
        assert started.wait(WAIT)
        run = in_thread(session.run_with_iobinding, binding)
        until(lambda: len(session._requests._queue) == 1)
        assert not y.any()
        release.set()
        run.result(WAIT), held.result(WAIT)
        assert np.allclose(y, mlp_reference(X), rtol=1e-5, atol=TOLERANCE)


def test_threads_are_shared_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def made(streams: int, threads: int) -> str:
        session = tvm_hybrid.InferenceSession(
            mlp_module(), streams=streams, num_threads=threads, cache=False
        )
        assert session.executable.num_threads == max(1, threads // streams)
        return session.explain().summary()

    with caplog.at_level(logging.INFO, logger="tvm_hybrid"):
        assert made(1, 2).startswith("1 stream of 2 threads each: 1 of 1 nodes")
    assert "1 stream of 2 threads each" in caplog.text
    assert made(2, 3).startswith("2 streams of 1 thread each, 1 of 3 threads left over: ")
    assert made(3, 2).startswith("3 streams of 1 thread each, more than the 2 threads asked for: ")
    library = mlp(1).export(tmp_path / "m.so")
    session = tvm_hybrid.InferenceSession(library, streams=2, num_threads=2)
    assert session.explain().summary().startswith("2 streams of 1 thread each: ")
    with pytest.raises(ArtifactError, match="compiled for 1 threads, not 2"):
        tvm_hybrid.InferenceSession(library, streams=2, num_threads=4)


@pytest.mark.parametrize("options", [{"streams": 0}, {"streams": 1.5}, {"queue_size": True}])
def test_what_is_no_number_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(TargetError, match="must be a whole number from 1 up"):
        tvm_hybrid.InferenceSession(mlp(), **options)


def test_a_place_is_not_shared_out(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="streams do not share out"):
        tvm_hybrid.InferenceSession(tmp_path / "no model", streams=2, threads="all")
    cpus = sorted(os.sched_getaffinity(0))[:1]
    bound = tvm_hybrid.compile(mlp_module(), threads=cpus)
    with pytest.raises(TargetError, match=rf"bound to CPUs \({cpus[0]},\), which streams do not"):
        tvm_hybrid.InferenceSession(bound, streams=2)
    with pytest.raises(TargetError, match="at most 1024"):
        tvm_hybrid.InferenceSession(tmp_path / "no model", streams=1025)


def test_sizes_may_be_dynamic(tmp_path: Path) -> None:
    path = saved(tmp_path, two_layers("rows"))
    with tvm_hybrid.InferenceSession(path, streams=2, num_threads=1) as session:
        futures = [
            session.submit(None, {"x": np.zeros((rows, 8), np.float32)}) for rows in (1, 2, 3)
        ]
        assert [each.result(WAIT)[0].shape for each in futures] == [(1, 5), (2, 5), (3, 5)]


def test_the_interpreter_ends_when_what_waits_is_served(tmp_path: Path) -> None:
    library = mlp().export(tmp_path / "m.so")
    done = run_python(
        "import numpy as np, tvm_hybrid\n"
        f"session = tvm_hybrid.InferenceSession({str(library)!r}, streams=2)\n"
        "def tell(results, number, error):\n"
        "    print(f'done{number}{error}\\n', end='', flush=True)\n"
        "for number in range(6):\n"
        "    session.run_async(None, {'x': np.ones((1, 16), 'f4')}, tell, number)\n"
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == [f"done{number}" for number in range(6)]
