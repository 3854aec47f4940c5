"""Simulated borrowing works as the real one: the nearest region's best, fitted, as measured."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tvm_hybrid.cli.simulate import simulate as command
from tvm_hybrid.tuning.recordings.simulate import Loan, Recording, simulate_borrowing

from ..synthetic import load_recording, product, synthetic_records, write_recording

pytestmark = pytest.mark.usefixtures("factor_of_two")


def recording(path: Path, rows: int, fast: int, speedup: float = 1.2) -> Recording:
    """All configurations are as fast as the default, except those with `fast` rows of registers."""
    records = [
        msgspec.structs.replace(
            made,
            status="ok",
            error="",
            times_us=[100.0 / speedup if made.config["rows"] == fast and number else 100.0],
            baseline_us=100.0,
        )
        for number, made in enumerate(synthetic_records(product(rows)))
    ]
    return load_recording(write_recording(path / f"rows{rows}.jsonl", records))


def test_loans(tmp_path: Path) -> None:
    near, far = recording(tmp_path, 24, 2), recording(tmp_path, 128, 2)
    wrong = recording(tmp_path, 20, 3)
    assert simulate_borrowing([near, far]) == []
    (there, back) = simulate_borrowing([near, wrong])
    assert isinstance(there, Loan) and (there.lender, there.borrower) == ("rows20", "rows24")
    assert (back.lender, back.borrower) == ("rows24", "rows20")
    for loan in (there, back):
        assert loan.promised == pytest.approx(1.2) == loan.best
        assert loan.gain == pytest.approx(1.0)
    other = recording(tmp_path, 18, 3)
    gains = {loan.borrower: (loan.lender, loan.gain) for loan in simulate_borrowing([wrong, other])}
    assert gains == {
        "rows20": ("rows18", pytest.approx(1.2)),
        "rows18": ("rows20", pytest.approx(1.2)),
    }


def test_who_gained_nothing_lends_nothing(tmp_path: Path) -> None:
    recordings = [recording(tmp_path, rows, 2, 1.01) for rows in (16, 20)]
    assert simulate_borrowing(recordings) == []


def test_the_command_tells_what_would_be_borrowed() -> None:
    """Two recordings of unlike regions give nothing to borrow."""
    names = ["attention_f32", "resnet18_c8_f32"]
    found = CliRunner().invoke(command, ["--borrowing", "--json", *names])
    assert found.exit_code == 0 and json.loads(found.stdout) == []
