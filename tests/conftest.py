"""Settings for every test."""

import os

import pytest
from hypothesis import settings

from microkernels.isa import allowed_on_host, isa_named

# Compiling takes as long as the machine lets it; time must not fail a test. Developers' runs draw
# new examples; continuous integration draws the same ones every time.
settings.register_profile("tvm_hybrid", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("tvm_hybrid")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what this CPU cannot run: tests marked `isa(name)` for a rung that it lacks."""
    for mark in item.iter_markers("isa"):
        if not allowed_on_host(isa_named(mark.args[0])):
            pytest.skip(f"this CPU has no {mark.args[0]}")
