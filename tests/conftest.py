"""Settings of all tests."""

import gc
import importlib.util
import os
import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from os import sched_getaffinity, sched_setaffinity  # tests may patch `os`
from typing import Any

import pytest
from hypothesis import settings

from microkernels.isa import CAP_VARIABLE, allowed_on_host, host_isa, isa_named
from tests.amx_emulator import emulator
from tests.examples import DAY_VARIABLE, DAYS, today
from tests.pinned_machine import pinned
from tests.stand_ins import isas_run, running, sampling
from tvm_hybrid.runtime.threads import use_threads

# The machine decides how long compiling takes; time must not fail a test. Developers' runs draw new
# examples; continuous integration draws fixed ones.
settings.register_profile("tvm_hybrid", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("tvm_hybrid")

# Tests state which records count; the package's records would differ from CPU to CPU.
os.environ["TVM_HYBRID_RECORDS"] = "none"

# Sessions compile instead of reading the cache, except in the cache's tests.
os.environ["TVM_HYBRID_CACHE"] = "0"

# Standard error of a test must not depend on how long compiling takes.
os.environ["TVM_HYBRID_PROGRESS"] = "0"

# An error in a rule for generic loops fails the test; users get another rule's loops.
os.environ["TVM_HYBRID_RULE_ERRORS"] = "raise"

# Parallel test processes have more threads than CPUs: waiting threads must sleep.
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
os.environ.setdefault("TVM_HYBRID_SPIN", "never")

# Parallel test processes must choose equal samples, at midnight too.
os.environ[DAY_VARIABLE] = str(today())

# A process started by a shell's "&" ignores Ctrl-C, and so do its children, which tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

THREADS = 2  # of parallel loops that a test starts directly; sessions have another setting
ISAS = "isas"  # key in a test's report: the instruction sets that it ran
TORCH_NOTEBOOKS = {"pytorch.ipynb"}
# Their code needs this feature; notebooks run without stand-ins.
NOTEBOOKS_FOR = {"amx_emulator.ipynb": "avx512_bf16"}
_LEFT_OUT = "slow tests left out"  # key in a worker's output for its parent process
_left_out = 0


def _isas(item: pytest.Item) -> list[str]:
    """The names of the instruction sets that a test needs."""
    return [mark.args[0] for mark in item.iter_markers("isa")]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Prints which tests have their turn: `-q` hides pytest's header."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        day = today()
        reporter.write_line(f"samples of day {day} of {DAYS}; for them again: {DAY_VARIABLE}={day}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Sets up and runs tests marked `isa(name)` or `machine(name)` as on such a CPU.

    Every test begins with our thread pool, whatever ran before in this process. Otherwise the first
    program of TVM's machine in a process would create TVM's pool, which binds its caller to a CPU.
    """
    use_threads(THREADS)
    with ExitStack() as stack:
        for name in _isas(item):
            stack.enter_context(running.pretending(name))
        for mark in item.iter_markers("machine"):
            stack.enter_context(pinned(mark.args[0]))
        return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests marked `isa(name)` for an ISA that neither this CPU nor a stand-in runs.

    Missing AMX is emulated from the first test that needs it: earlier, pytest's handler of SIGILL
    would displace the emulator's.
    """
    isas_run.taken()
    for name in _isas(item):
        if name.startswith("amx"):
            emulator.install()
        allowed = allowed_on_host(isa_named(name))
        if not allowed or not isas_run.can_run(name):
            isas_run.note_skipped(name)
            item.user_properties.append((ISAS, isas_run.taken()))
            reason = f"{CAP_VARIABLE} forbids {name}"
            pytest.skip(f"this CPU has no {name}, and no stand-in" if allowed else reason)
        isas_run.note(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Notes which ISAs ran, and fails tests that leave a changed state behind.

    A changed state is an affinity with fewer CPUs, and in tests that are marked for AMX or compile
    its code also a fault of the emulator or a thread with a tile configuration.
    """
    emulator.reset()
    cpus = sched_getaffinity(0)
    try:
        yield
    finally:
        ran = isas_run.taken()
        item.user_properties.append((ISAS, ran))
        left = sched_getaffinity(0)
        sched_setaffinity(0, cpus)
    assert left == cpus, f"{item.nodeid} bound its thread to CPUs {sorted(left)}"
    if any(isa.startswith("amx") for isa in [*_isas(item), *(isa for isa, _ in ran)]):
        emulator.check()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Excludes collected items from garbage collection: they live to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips notebooks that cannot run here, and marks tests `slow` that `make test` leaves out."""
    for item in items:
        name = item.path.name
        if name in TORCH_NOTEBOOKS and importlib.util.find_spec("torch") is None:
            item.add_marker(pytest.mark.skip(reason="needs torch, which .venv/torch has"))
        if name in NOTEBOOKS_FOR and not host_isa().includes(isa_named(NOTEBOOKS_FOR[name])):
            item.add_marker(pytest.mark.skip(reason=f"this CPU has no {NOTEBOOKS_FOR[name]}"))
    for item in sampling.left_out(items):
        item.add_marker("slow")


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Counts the deselected slow tests."""
    global _left_out
    _left_out += sum(item.get_closest_marker("slow") is not None for item in items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist sends its count to the process that prints the results."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_LEFT_OUT] = _left_out


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes a worker's count; every worker collects all tests and leaves out equal ones."""
    global _left_out
    _left_out = max(_left_out, getattr(node, "workeroutput", {}).get(_LEFT_OUT, 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints which ISAs' code ran, and how; reports contain the notes of other processes."""
    reports = [report for some in terminalreporter.stats.values() for report in some]
    reports = [report for report in reports if isinstance(report, pytest.TestReport)]
    # Skipped tests may have no call phase.
    last = [each for each in reports if each.when == "call" or each.skipped]
    tests = [pairs for each in last for key, pairs in each.user_properties if key == ISAS]
    if any(tests):
        terminalreporter.section("tests that ran code for each instruction set")
        for line in isas_run.table(tests):
            terminalreporter.write_line(line)
    if _left_out:
        terminalreporter.write_line(f"{_left_out} slow tests are left to `make test-all`")
