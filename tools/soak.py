"""Sends mixed requests of many callers for some minutes; memory and threads must not grow.

    python -m tools.soak MODEL --minutes 10 --streams 2

Callers use `run`, `submit`, `run_async` and bound arrays, of one long-lived session and of
short-lived ones, in threads that come and go; some cancel, some send wrong inputs. Resident memory
and threads of the process are recorded every second, and printed every minute. It ends with code 1
if the last quarter has more of either than the second quarter, or if a result is wrong.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import statistics
import sys
import threading
import time
from collections import Counter
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np

from tvm_hybrid import InferenceSession
from tvm_hybrid.bench.feeds import complete_feeds, load_feeds
from tvm_hybrid.errors import FeedError, QueueFullError
from tvm_hybrid.executable.executable import Executable

MOST_GROWTH = 0.02  # of memory, beside the memory of one more session
SPARE_BYTES = 16 << 20
SPARE_THREADS = 4
CALLS_OF_A_CALLER = 50  # then its thread ends, and a new one takes its place


class Soak:
    """Callers that send `feeds` to sessions of a model, and the errors that they saw."""

    def __init__(self, executable: Executable, streams: int, feeds: dict[str, np.ndarray]) -> None:
        self._executable, self._streams, self._feeds = executable, streams, feeds
        self._session = InferenceSession(executable, streams=streams)
        self._right = self._session.run(None, feeds)
        self.counts: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self.over = threading.Event()

    def call_in_turns(self, seed: int) -> None:
        """Runs one caller after the other, until `over` is set."""
        number = seed
        while not self.over.is_set():
            thread = threading.Thread(target=self._call, args=(number,))
            thread.start()
            thread.join()
            number += 1000

    def _call(self, seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(CALLS_OF_A_CALLER):
                if self.over.is_set():
                    return
                name = chance.choice(["run", "submit", "callback", "bound", "wrong", "own"])
                getattr(self, f"_{name}")(self._session)
                self.counts[name] += 1
        except BaseException as error:
            self.errors.append(error)
            self.over.set()

    def _check(self, results: list[np.ndarray]) -> None:
        for result, right in zip(results, self._right, strict=True):
            np.testing.assert_array_equal(result, right)

    def _run(self, session: InferenceSession) -> None:
        self._check(session.run(None, self._feeds))

    def _submit(self, session: InferenceSession) -> None:
        try:
            futures = [session.submit(None, self._feeds, timeout=0.001) for _ in range(3)]
        except QueueFullError:
            self.counts["full"] += 1
            return
        futures[1].cancel()
        for future in futures:
            try:
                self._check(future.result())
            except CancelledError:
                self.counts["cancelled"] += 1

    def _callback(self, session: InferenceSession) -> None:
        done = threading.Event()
        found: list[list[np.ndarray]] = []

        def tell(results: list[np.ndarray], _data: object, _error: str) -> None:
            found.append(results)
            done.set()

        session.run_async(None, self._feeds, tell)
        done.wait()
        self._check(found[0])

    def _bound(self, session: InferenceSession) -> None:
        binding = session.io_binding()
        for name, value in self._feeds.items():
            binding.bind_input(name, value)
        for output in session.get_outputs():
            binding.bind_output(output.name)
        session.run_with_iobinding(binding)
        self._check(binding.get_outputs())

    def _wrong(self, session: InferenceSession) -> None:
        try:
            session.submit(None, {}).result()
        except FeedError:
            return
        raise AssertionError("a request without inputs was served")

    def _own(self, _session: InferenceSession) -> None:
        with InferenceSession(self._executable, streams=self._streams) as session:
            self._run(session)
            self._submit(session)


def resident_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def threads() -> int:
    """Number of threads of this process, including those of TVM's pools."""
    return len(os.listdir("/proc/self/task"))


def grown(values: list[int], spare: float) -> bool:
    """Whether the last quarter's median exceeds the second quarter's by more than `spare`."""
    quarter = max(1, len(values) // 4)
    before, after = values[quarter : 2 * quarter] or values[:1], values[-quarter:]
    return statistics.median(after) > statistics.median(before) + spare


def main() -> int:
    """Runs the callers, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="ONNX file")
    parser.add_argument("--inputs", type=Path, help=".npz file with an array for each input")
    parser.add_argument("--minutes", type=float, default=10.0, help="default: 10")
    parser.add_argument("--streams", type=int, default=2, help="sessions' streams; default: 2")
    parser.add_argument(
        "--threads", type=int, default=None, help="number of threads, all streams together"
    )
    parser.add_argument(
        "--callers", type=int, default=16, help="threads that send requests; default: 16"
    )
    options = parser.parse_args()
    given = load_feeds([], options.inputs)
    made = InferenceSession(
        options.model,
        streams=options.streams,
        num_threads=options.threads,
        shapes={name: value.shape for name, value in given.items()} or None,
    )
    executable = made.executable
    feeds, _ = complete_feeds(executable.inputs, given)
    del made
    soak = Soak(executable, options.streams, feeds)
    callers = [
        threading.Thread(target=soak.call_in_turns, args=(number,))
        for number in range(options.callers)
    ]
    for caller in callers:
        caller.start()
    memory, counts = [], []
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end and not soak.over.wait(1.0):
        gc.collect()
        memory.append(resident_bytes())
        counts.append(threads())
        if len(memory) % 60 == 0:
            requests = sum(soak.counts.values())
            print(
                f"after {len(memory)} s: {memory[-1] >> 20} MB, {counts[-1]} threads, "
                f"{requests} requests",
                flush=True,
            )
    soak.over.set()
    for caller in callers:
        caller.join()
    if not memory:
        memory, counts = [resident_bytes()], [threads()]
    print(f"requests: {dict(soak.counts)}")
    print(f"resident MB, at first, most, last: {[each >> 20 for each in _three(memory)]}")
    print(f"threads, at first, most, last: {_three(counts)}; {threads()} without callers")
    for error in soak.errors:
        print(f"failed: {error!r}")
    more_memory = grown(memory, MOST_GROWTH * statistics.median(memory) + SPARE_BYTES)
    more_threads = grown(counts, SPARE_THREADS)
    print(f"memory grew: {more_memory}; threads grew: {more_threads}")
    return 1 if soak.errors or more_memory or more_threads else 0


def _three(values: list[int]) -> list[int]:
    return [values[0], max(values), values[-1]]


if __name__ == "__main__":
    sys.exit(main())
