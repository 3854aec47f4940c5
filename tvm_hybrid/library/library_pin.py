"""Keeps copies of one exported library from being unloaded.

A library registers its loader with TVM when it is opened, under a name that its copies share: the
last one that was opened has it. Were that one unloaded while another copy is still open, nobody
would register anew, and the name would lead to memory that is gone.
"""

from __future__ import annotations

import ctypes
import threading

_paths: dict[str, set[str]] = {}
_lock = threading.Lock()


def pin_copies(digest: str, path: str) -> None:
    """Pins a library that is about to be opened, for as long as the process lives, if a copy was.

    Parameters
    ----------
    digest : str
        What tells the library from all but its copies.
    path : str
        The file.
    """
    with _lock:
        known = _paths.setdefault(digest, set())
        known.add(path)
        if len(known) > 1:
            ctypes.CDLL(path)  # which is never closed
