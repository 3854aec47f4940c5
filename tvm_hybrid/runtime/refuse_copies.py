"""Refuses to pickle or copy what holds machine code of this process."""

from __future__ import annotations

from typing import NoReturn


def refuse_copies(what: object, name: str) -> NoReturn:
    """Says what to do instead of pickling or copying, by `copy` and `multiprocessing` too."""
    raise TypeError(
        f"{type(what).__name__} cannot be pickled or copied: it holds machine code of this "
        f'process. Threads may share it; for another process export it, {name}.export("model.so"), '
        'and load it there, tvm_hybrid.load("model.so")'
    )
