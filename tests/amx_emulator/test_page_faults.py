"""Tile transfers whose memory is missing from some row on transfer earlier rows only once."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path

import pytest

from tests.amx_emulator import emulator

pytestmark = pytest.mark.skipif(
    not emulator.available(), reason="it is never installed on a machine that has AMX"
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles programs/page_faults.c."""
    path = tmp_path_factory.mktemp("page_faults") / "page_faults"
    source = Path(__file__).with_name("programs") / "page_faults.c"
    command = [emulator.compiler(), "-O1", "-Wall", "-Wextra", "-Werror", str(source)]
    subprocess.run([*command, "-o", str(path)], check=True)
    return path


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("what", "then"),
    list(itertools.product(["load", "store", "cut"], ["returns", "jumps", "zeroes"])),
)
def test_a_transfer_goes_on_where_it_faulted(program: Path, what: str, then: str) -> None:
    environment = {**os.environ, "AMX_EMULATOR": "1", "LD_PRELOAD": str(emulator.library_path())}
    result = subprocess.run(
        [str(program), what, then],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (result.returncode, result.stderr) == (0, "")
