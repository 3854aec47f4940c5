"""Fixtures of several folders' tests."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from tvm_hybrid.cache import program_key


@pytest.fixture
def caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Path:
    """Where the caches of programs and kernels are, which do not exist yet; the log is open."""
    monkeypatch.setenv("TVM_HYBRID_CACHE", "1")
    monkeypatch.setenv("TVM_HYBRID_CACHE_DIR", str(tmp_path / "cache"))
    # Sources may be newer than this process where somebody works on them.
    monkeypatch.setattr(program_key, "_IMPORTED", time.time_ns())
    program_key._first_sources.cache_clear()
    caplog.set_level(logging.INFO, "tvm_hybrid")
    return tmp_path / "cache"
