"""Children run where their caller does, whichever thread starts them."""

from __future__ import annotations

import json
import os
import sys

import pytest

from tvm_hybrid.tuning.measuring.child_process import ChildProcess

TELL = "import json, os; print(json.dumps(sorted(os.sched_getaffinity(0))), flush=True)"
SECONDS = 30.0
CPUS = sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(len(CPUS) < 2, reason="the caller has one CPU only")
def test_a_child_has_the_cpus_that_its_caller_has_then() -> None:
    found = []
    try:
        for wanted in (CPUS[:1], CPUS, CPUS[1:]):
            os.sched_setaffinity(0, wanted)
            child = ChildProcess([sys.executable, "-c", TELL])
            child.spawn()
            line = child.answer(SECONDS)
            assert line is not None
            found.append(json.loads(line))
            child.close()
    finally:
        os.sched_setaffinity(0, CPUS)
    assert found == [CPUS[:1], CPUS, CPUS[1:]]
