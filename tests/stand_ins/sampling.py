"""Which tests are left to `make test-all`, because others like them run.

Of each test marked `sampled` every eighth set of parameters stays, for each instruction set by
itself, beginning with another one from test to test. So it is with each test of code for
instruction sets that the CPU lacks, all of these together: code by stand-ins compiles and runs more
slowly. But tests of
microkernels stay, where a parameter is a kernel, and those of the AMX emulator, which are quick.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import pytest

from microkernels.isa import LADDER
from tests.microkernels.isa_targets import target_of

from .building import lacks

_EVERY = 8
_NAMES = {isa.name for isa in LADDER}
_WHOLE = ("tests/microkernels/", "tests/amx_emulator/")


def left_out(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Those of the tests that a run without slow tests can do without."""
    lacking = {name for name in _NAMES if lacks(target_of(name))}
    groups: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        isa = _isa_of(item)
        by_stand_ins = isa in lacking and not item.nodeid.startswith(_WHOLE)
        if by_stand_ins or item.get_closest_marker("sampled"):
            key = (item.nodeid.split("[")[0], "stand-ins" if by_stand_ins else isa)
            groups.setdefault(key, []).append(item)
    for key, group in groups.items():
        first = zlib.crc32(" ".join(key).encode()) % min(_EVERY, len(group))
        yield from (item for n, item in enumerate(group) if n % _EVERY != first)


def _isa_of(item: pytest.Item) -> str:
    """The highest ISA that a test names, in a mark or a parameter; "" if it names none."""
    names = [mark.args[0] for mark in item.iter_markers("isa")]
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        names += [value for value in item.callspec.params.values() if isinstance(value, str)]
    return next((isa.name for isa in reversed(LADDER) if isa.name in names), "")
