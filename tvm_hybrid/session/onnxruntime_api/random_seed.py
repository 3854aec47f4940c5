"""set_seed: makes the random operators of later sessions draw a sequence that can be repeated."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from relay_passes.ir.decisions import Decision

_KEY = "random_key"  # the kernel that counts cycles, of frontend/onnx/ops/random_numbers.py
_WORD = 2**32
_given: int | None = None


def set_seed(seed: int) -> None:
    """Seeds the random operators without the attribute `seed`, in sessions that are made later.

    A session draws other numbers in each run, and the same sequence as every session of the same
    model and seed; runs in several threads share the sequence. Numbers differ from ONNX Runtime's.
    Earlier sessions, and `Executable.run`, draw numbers that cannot be repeated. In a seeded
    session every function that a program with random operators calls costs some microseconds more.

    Parameters
    ----------
    seed : int
        Its lowest 32 bits count.

    Raises
    ------
    TypeError
        If it is not an int, as in ONNX Runtime.
    """
    global _given
    if not isinstance(seed, int | np.integer):
        raise TypeError(f"a seed is an int, not {seed!r}")
    _given = int(seed) % _WORD


Instrument = Callable[..., int]


class RandomKeys:
    """The keys of one session's random operators: the seed, and how many were drawn before.

    Programs keep no state, so the virtual machine's instrument replaces the key of each draw, also
    in exported libraries.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn = itertools.count()

    @classmethod
    def given(cls) -> RandomKeys | None:
        """New keys by `set_seed`; None if it was not called."""
        return None if _given is None else cls(_given)

    def instrument(self, decisions: Iterable[Decision]) -> Instrument | None:
        """The instrument for machines of a program; None if it draws no such numbers."""
        kernels = {each.function for each in decisions if each.op == _KEY}

        def replace_key(_function: Any, name: str, before: bool, _result: Any, *args: Any) -> int:
            if name in kernels and not before:
                key = next(self._drawn) % _WORD * _WORD + self._seed
                args[-1].copyfrom(np.array([key], np.uint64))
            return 0

        return replace_key if kernels else None
