"""Keeps a process on some CPUs for a while, and what it starts in that time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def on_cpus(cpus: Sequence[int]) -> Iterator[None]:
    """Inside, the calling thread and what it starts run on these CPUs alone; on any if there are
    none.
    """
    if not cpus:
        yield
        return
    former = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, former)
