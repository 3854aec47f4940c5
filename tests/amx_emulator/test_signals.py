"""The emulator works in programs that do not know it, and passes on other SIGILLs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.amx_emulator import emulator

pytestmark = pytest.mark.skipif(
    not emulator.available(), reason="it is never installed on a machine that has AMX"
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles programs/signals.c and links it to the emulator."""
    path = tmp_path_factory.mktemp("signals") / "signals"
    source = Path(__file__).with_name("programs") / "signals.c"
    command = [emulator.compiler(), "-O1", "-Wall", "-Wextra", "-Werror", str(source)]
    library = emulator.library_path()
    command += [str(library), f"-Wl,-rpath,{library.parent}", "-pthread"]
    subprocess.run([*command, "-o", str(path)], check=True)
    return path


def run(program: Path, word: str, wish: str = "1") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "AMX_EMULATOR": wish, "LD_PRELOAD": str(emulator.library_path())}
    command = [str(program), word]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    "word", ["amx", "former", "probe", "raise", "displaced", "alternate", "fork"]
)
def test_programs_run(program: Path, word: str) -> None:
    result = run(program, word)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("word", ["ud2", "circle", "sent"])
def test_other_signals_end_the_process(program: Path, word: str) -> None:
    result = run(program, word)
    assert (result.returncode, result.stderr) == (-signal.SIGILL, "")


def test_a_former_handler_without_a_context_is_called(program: Path) -> None:
    result = run(program, "former_plain")
    assert (result.returncode, result.stdout) == (7, "plain handler\n")


def test_a_fault_ends_the_process_and_says_why(program: Path) -> None:
    result = run(program, "fault")
    assert result.returncode == -signal.SIGILL
    assert result.stderr.startswith("amx_emulator: tileloadd tmm1 at rip 0x")
    assert result.stderr.endswith("no tile configuration (ldtilecfg); no configuration\n")


def test_the_report_at_the_end(program: Path) -> None:
    lines = run(program, "amx", "report").stderr.splitlines()
    counts = {line.split()[2]: int(line.split()[1]) for line in lines[:-1]}
    assert counts == {
        "ldtilecfg": 1,
        "tilerelease": 1,
        "tilezero": 1,
        "tileloadd": 2,
        "tilestored": 1,
        "tdpbusd": 10,
    }
    assert lines[-1].endswith("traps, 0 faults, 0 threads left configured")


@pytest.mark.parametrize("wish", ["", "0"])
def test_it_is_not_installed_without_being_asked_for(program: Path, wish: str) -> None:
    result = run(program, "amx", wish)
    assert (result.returncode, result.stderr) == (-signal.SIGILL, "")


def test_it_is_visible_to_the_whole_process() -> None:
    """Generated code and guards find the symbol by name; faulthandler gets other SIGILLs."""
    text = """
import ctypes, faulthandler
faulthandler.enable()
from tests.amx_emulator import emulator
assert emulator.install() and emulator.install()
assert ctypes.CDLL(None).amx_emulator_active() == 1
ctypes.CDLL(None).amx_emulator_uninstall()
assert ctypes.CDLL(None).amx_emulator_active() == 0
assert emulator.install()
from tests.amx_emulator.assembly import assembled
assembled({"amx": "tilerelease", "ud2": "ud2"}).amx()
print(emulator.counts()["tilerelease"], flush=True)
assembled({"ud2": "ud2"}).ud2()
"""
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", text], cwd=root, capture_output=True, text=True, check=False
    )
    assert result.stdout == "1\n", result.stderr
    assert result.returncode == -signal.SIGILL
    assert "Fatal Python error: Illegal instruction" in result.stderr


def test_the_command_of_the_readme_builds_it(program: Path, tmp_path: Path) -> None:
    folder = Path(__file__).parent
    text = (folder / "README.md").read_text(encoding="utf-8")
    command = next(line.strip() for line in text.splitlines() if line.startswith("    gcc "))
    built = tmp_path / "libamx_emulator.so"
    # The slow part of -O3 is tested elsewhere.
    command = command.replace("-o libamx_emulator.so", f"-o {built}").replace("-O3", "-O1")
    command = command.replace("gcc", emulator.compiler(), 1)
    subprocess.run(command, shell=True, cwd=folder, check=True)
    environment = {**os.environ, "AMX_EMULATOR": "1", "LD_PRELOAD": str(built)}
    assert subprocess.run([str(program), "amx"], env=environment, check=False).returncode == 0
