"""Code of an instruction set runs here if it was compiled to run here."""

from __future__ import annotations

from tests.amx_emulator import emulator
from tests.stand_ins.running import made_for
from tests.tvm_hybrid.small_models import run_python


def compile_for_tiles() -> None:
    """Run in a separate process, in which no test has requested AMX."""
    before = emulator.active()
    with made_for("amx"):
        assert (before, emulator.active()) == (False, emulator.available())


def test_tiles_are_emulated_from_their_first_code_on() -> None:
    code = f"from {__name__} import compile_for_tiles\ncompile_for_tiles()\nprint('right')"
    done = run_python(code)
    assert done.stdout.split() == ["right"], done.stderr
