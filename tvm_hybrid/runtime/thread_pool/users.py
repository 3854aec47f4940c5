"""Programs that want the workers of the pool awake, for as long as these programs live."""

from __future__ import annotations

import weakref

from .native import installed
from .spin import ALWAYS


def note_user(program: object, spin: str) -> None:
    """Lets workers stay awake between the runs of a program of several threads, if it says so."""
    pool = installed() if spin == ALWAYS else None
    if pool is not None:
        pool.add_always(1)
        weakref.finalize(program, pool.add_always, -1).atexit = False
