"""How many examples Hypothesis draws."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings


def examples(count: int, **options: Any) -> settings:
    """So many examples in `make test-all`, a fifth of them in `make test`."""
    few = "TVM_HYBRID_ALL_TESTS" not in os.environ
    return settings(max_examples=-(-count // 5) if few else count, **options)
