"""How many examples Hypothesis draws, and how many of a list a test goes through."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import settings

T = TypeVar("T")

_FEW = "TVM_HYBRID_ALL_TESTS" not in os.environ


def examples(count: int, **options: Any) -> settings:
    """So many examples in `make test-all`, a fifth of them in `make test`."""
    return settings(max_examples=-(-count // 5) if _FEW else count, **options)


def some(cases: Sequence[T]) -> list[T]:
    """All cases in `make test-all`; every third one and the last in `make test`.

    For loops within a test where each case compiles something.
    """
    return [*cases[:-1:3], cases[-1]] if _FEW else list(cases)
