"""Fixtures that tests of several folders use."""

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
    """Folders of the program and kernel caches, which do not exist yet; captures the log."""
    monkeypatch.setenv("TVM_HYBRID_CACHE", "1")
    monkeypatch.setenv("TVM_HYBRID_CACHE_DIR", str(tmp_path / "cache"))
    # Sources may be newer than this process while somebody edits them.
    monkeypatch.setattr(program_key, "_IMPORTED", time.time_ns())
    program_key._first_sources.cache_clear()
    caplog.set_level(logging.INFO, "tvm_hybrid")
    return tmp_path / "cache"
