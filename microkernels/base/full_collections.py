"""Keeps Python's garbage collector from looking through all objects while a model is compiled.

A pass makes so many objects that Python looks through all there are every few passes, those of all
imports too. With younger ones that took 5 to 6% of the time of QDQ BERTs. Hardly any are garbage:
what has no users goes at once, and young objects are still looked through.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = 1 << 30  # collections of the middle generation before a full one

_lock = threading.Lock()
_compiling: list[int] = []  # for each that compiles, the threshold to put back in the end


@contextmanager
def without_full_collections() -> Iterator[None]:
    """Puts full collections off until the last of those that are in here has left."""
    with _lock:
        young, middle, full = gc.get_threshold()
        _compiling.append(_compiling[0] if _compiling else full)
        gc.set_threshold(young, middle, _NEVER)
    try:
        yield
    finally:
        with _lock:
            before = _compiling.pop()
            young, middle, full = gc.get_threshold()
            if not _compiling and full == _NEVER:  # else somebody has chosen another one
                gc.set_threshold(young, middle, before)
