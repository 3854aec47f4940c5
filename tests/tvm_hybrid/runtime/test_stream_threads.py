"""The queue itself: it loses nothing with any callers, and nobody waits forever."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tvm_hybrid.errors import QueueFullError
from tvm_hybrid.runtime.stream_threads import Request, StreamThreads

WAIT = 60.0


def same(number: int) -> int:
    """Returns its argument, sometimes after a moment."""
    if number % 7 == 0:
        time.sleep(1e-4)
    return number


def call_in_every_way(streams: StreamThreads, seed: int) -> int:
    """Waits for each of many requests; returns how many were served."""
    chance, served = random.Random(seed), 0
    for number in range(100):
        way = chance.randrange(4)
        if way == 0:
            assert streams.call(same, number) == number
        elif way == 1:
            done = threading.Event()

            def callback(result: object, event: object, error: str) -> None:
                assert streams.call(same, 1) == 1 and isinstance(event, threading.Event)
                event.set()

            request = Request(same, number)
            request.future.add_done_callback(
                lambda future, done=done: callback(future.result(), done, "")
            )
            streams.put(request, None)
            assert done.wait(WAIT)
        else:
            request = Request(same, number)
            try:
                streams.put(request, None if way == 2 else 0.0005)
            except QueueFullError:
                continue
            if way == 3 and request.future.cancel():
                continue
            assert request.future.result(WAIT) == number
        served += 1
    return served


@pytest.mark.parametrize(("count", "size"), [(1, 1), (2, 3), (5, 2)])
def test_nothing_is_lost_among_many_callers(count: int, size: int) -> None:
    streams = StreamThreads(count, size)
    with ThreadPoolExecutor(8) as callers:
        found = [callers.submit(call_in_every_way, streams, seed) for seed in range(8)]
        assert all(each.result(2 * WAIT) >= 50 for each in found)
    assert 1 <= streams.alive() <= count
    streams.stop()
    streams.join()
    assert streams.alive() == 0 and not streams._queue
    assert (streams._running, streams._bounded, streams._idle) == (0, 0, 0)
