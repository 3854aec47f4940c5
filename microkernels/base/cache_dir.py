"""The folder for files that were downloaded or generated, and can be made again."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

CACHE_VARIABLE = "TVM_HYBRID_CACHE_DIR"


def cache_dir() -> Path:
    """`TVM_HYBRID_CACHE_DIR`, or else a folder in the user's cache; it need not exist yet."""
    folder = os.environ.get(CACHE_VARIABLE)
    if folder:
        return Path(folder).expanduser()
    return Path(platformdirs.user_cache_dir("tvm_hybrid", appauthor=False))
