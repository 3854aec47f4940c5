"""A closed loop of callers: each sends its next request when it has the result of the last one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class LoadTurn:
    """What callers saw in one turn.

    Attributes
    ----------
    times : list of float
        Seconds from sending to the result, of every request.
    rate : float
        Requests a second: the sum of the callers' own rates, each until its last result, so that
        it does not matter that some end earlier than others.
    """

    times: list[float]
    rate: float

    @property
    def seconds(self) -> float:
        """How long so many requests take at this rate."""
        return len(self.times) / self.rate


def total_rate(turns: Iterable[LoadTurn]) -> float:
    """Requests a second in several turns."""
    turns = list(turns)
    return sum(len(turn.times) for turn in turns) / sum(turn.seconds for turn in turns)


def load_turn(
    call: Callable[[], object],
    callers: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> LoadTurn:
    """Has threads call for about `seconds`, each at least once.

    Parameters
    ----------
    call : callable
        One request; it returns when the result is there.
    callers : int
        How many threads call.
    seconds : float
        When no more requests are sent.
    clock : callable
        Tells the time.

    Raises
    ------
    Exception
        What a call raised first.
    """
    found: list[tuple[list[float], float]] = []
    errors: list[BaseException] = []
    ready = threading.Barrier(callers)

    def caller() -> None:
        times: list[float] = []
        try:
            ready.wait()
            start = last = clock()
            end = start + seconds
            while True:
                call()
                now = clock()
                times.append(now - last)
                last = now
                if now >= end or errors:
                    break
        except BaseException as error:
            errors.append(error)
            ready.abort()
        else:
            found.append((times, last - start))

    threads = [threading.Thread(target=caller) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    times = [time for each, _ in found for time in each]
    return LoadTurn(times, sum(len(each) / spent for each, spent in found))


class SessionLoad:
    """Callers of one session with onnxruntime's interface, in this process.

    Parameters
    ----------
    session : InferenceSession
        Whose `run` is called.
    feeds : mapping
        The inputs, which all callers share.
    callers : int
        How many threads call.

    Attributes
    ----------
    outputs : list of numpy.ndarray
        Results of the first run.
    """

    def __init__(self, session: Any, feeds: Mapping[str, np.ndarray], callers: int) -> None:
        self._session, self._feeds, self._callers = session, dict(feeds), callers
        self.outputs: list[np.ndarray] = session.run(None, self._feeds)

    def load_for(self, seconds: float) -> LoadTurn:
        """Keeps all callers busy for about `seconds`."""
        run, feeds = self._session.run, self._feeds
        return load_turn(lambda: run(None, feeds), self._callers, seconds)

    def close(self) -> None:
        """Nothing to free."""
