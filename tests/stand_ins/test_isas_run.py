"""What `make test` prints about the samples and the instruction sets that ran."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from microkernels.isa import isa_named
from tests.examples import DAY_VARIABLE, DAYS
from tests.stand_ins import isas_run

ROOT = Path(__file__).parents[2]


def test_a_table_of_isas_and_ways() -> None:
    tests = [
        [["avx2", "native"], ["avx512", "by stand-in"]],
        [["avx512", "by stand-in"]],
        [["amx", "not at all"]],
        [],
    ]
    lines = [line.split() for line in isas_run.table(tests)]
    assert lines[0] == ["code", "for", "native", "by", "stand-in", "not", "at", "all"]
    assert {line[0]: line[1:] for line in lines[1:]} == {
        "scalar": ["0", "0", "0"],
        "avx2": ["1", "0", "0"],
        "avx2_vnni": ["0", "0", "0"],
        "avx512": ["0", "2", "0"],
        "avx512_vnni": ["0", "0", "0"],
        "avx512_bf16": ["0", "0", "0"],
        "amx": ["0", "0", "1"],
        "amx_fp16": ["0", "0", "0"],
    }


def test_ways_follow_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def has(isa: str) -> None:
        monkeypatch.setattr(isas_run, "PRESENT", frozenset(isa_named(isa).features))

    has("avx512_vnni")
    assert isas_run.runs_itself("avx512") and not isas_run.runs_itself("avx512_bf16")
    assert isas_run.substitute_of("avx2_vnni") == "avx512_vnni"
    assert isas_run.runs_itself("avx2_vnni")
    has("avx2")
    assert isas_run.substitute_of("avx2_vnni") == "avx2_vnni"
    assert isas_run.can_run("avx512_bf16") and not isas_run.runs_itself("avx512_bf16")
    has("amx")
    assert isas_run.can_run("amx") and not isas_run.can_run("amx_fp16")
    has("scalar")
    assert isas_run.can_run("scalar") and not isas_run.can_run("avx512")


TESTS = """
import pytest
from tests.stand_ins import isas_run

@pytest.mark.isa("avx512")
def test_one(): pass

@pytest.mark.parametrize("isa", ["scalar", "scalar"])
def test_two(isa): isas_run.note(isa)

@pytest.mark.slow
def test_three(): pass
"""


def test_the_numbers_of_a_run(tmp_path: Path) -> None:
    file = tmp_path / "test_isas.py"
    file.write_text(TESTS, encoding="utf-8")
    options = ["-p", "no:cacheprovider", "-p", "tests.conftest", "-m", "not slow"]
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "setup.cfg"), *options, str(file)]
    environment = {**os.environ, DAY_VARIABLE: "7"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    day_line = f"samples of day 7 of {DAYS}; for them again: {DAY_VARIABLE}=7"
    assert day_line in done.stdout.splitlines()
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["scalar", "2", "0", "0"] in lines
    way = 1 if isas_run.runs_itself("avx512") else 2
    assert [line[way] for line in lines if line[:1] == ["avx512"]] == ["1"]
    assert "1 slow tests are left to `make test-all`" in done.stdout
