"""Settings for every test."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from microkernels.isa import allowed_on_host, isa_named
from tests.amx_emulator import emulator

# Compiling takes as long as the machine lets it; time must not fail a test. Developers' runs draw
# new examples; continuous integration draws the same ones every time.
settings.register_profile("tvm_hybrid", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("tvm_hybrid")

# Tests say which records count; those that the package brings would differ from CPU to CPU.
os.environ["TVM_HYBRID_RECORDS"] = "none"


def _rungs(item: pytest.Item) -> list[str]:
    """The names of the rungs that a test needs."""
    return [mark.args[0] for mark in item.iter_markers("isa")]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what this CPU cannot run: tests marked `isa(name)` for a rung that it lacks.

    AMX is emulated where it is missing, from the first test that needs it on: earlier, pytest's own
    handler of SIGILL would take its place.
    """
    for name in _rungs(item):
        if name == "amx":
            emulator.install()
        if not allowed_on_host(isa_named(name)):
            pytest.skip(f"this CPU has no {name}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fails tests for AMX that left a fault or a configured thread behind."""
    if "amx" not in _rungs(item):
        yield
        return
    emulator.reset()
    yield
    emulator.check()
