"""Results of surveys: a JSON file for each CPU and day, which is complete after every section."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterable
from pathlib import Path

import msgspec

from microkernels.base.files import replacing
from tools.decoding.environments import CTRANSLATE2, LLAMA_CPP
from tvm_hybrid.bench.peers.peers import ONNX_RUNTIME, OPENVINO, OURS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "measured"
ONEDNN = "oneDNN"
OTHERS = (ONNX_RUNTIME, OPENVINO, ONEDNN, LLAMA_CPP, CTRANSLATE2)
TORN = ".torn"


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One measurement.

    Attributes
    ----------
    case : str
        What was measured.
    threads : int
        Number of threads.
    dtype : str
        Type of the operands; empty if the section has one type.
    unit : str
        Unit of all values.
    values : dict
        Name of a contestant or of a figure -> value. Times are the least of all runs.
    notes : dict
        Contestant -> why it has no value, or how its results are wrong.
    """

    case: str
    threads: int = 1
    dtype: str = ""
    unit: str = "us"
    values: dict[str, float] = {}
    notes: dict[str, str] = {}

    @property
    def ratio(self) -> float | None:
        """Time of the best other library over ours; None if one of them is missing."""
        theirs = [self.values[name] for name in OTHERS if name in self.values]
        return min(theirs) / self.values[OURS] if theirs and OURS in self.values else None


class Result(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The result of a section.

    Attributes
    ----------
    rows : list of Row
        Measurements, in their order.
    seconds : float
        How long the section took.
    faults : dict
        Case -> why it failed; "" stands for the section itself.
    left_out : list of str
        Cases for which there was no time.
    """

    rows: list[Row] = []
    seconds: float = 0.0
    faults: dict[str, str] = {}
    left_out: list[str] = []


class Survey(msgspec.Struct, kw_only=True):
    """Measurements of one CPU.

    Attributes
    ----------
    cpu : str
        LLVM's name of the CPU.
    processor : str
        Linux's name of the CPU.
    threads : int
        The largest number of threads; one thread is measured, too.
    date : str
        Day of the measurement.
    commit : str
        Commit of the source; it ends with "+" if files were changed since.
    load : float
        Load of the machine just before the measurement.
    versions : dict
        Library -> version.
    missing : dict
        Library -> why it did not take part.
    sections : dict
        Name -> result of each section that was measured.
    """

    cpu: str
    processor: str
    threads: int
    date: str
    commit: str
    load: float
    versions: dict[str, str]
    missing: dict[str, str]
    sections: dict[str, Result] = {}

    @property
    def rows(self) -> list[tuple[str, Row]]:
        """All rows, each with its section."""
        return [(name, row) for name, found in self.sections.items() for row in found.rows]


def write(path: Path, survey: Survey) -> None:
    """Replaces the file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(survey), indent=1) + b"\n")


def read(path: Path) -> Survey:
    """The survey in a file; ValueError if the file holds none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Survey)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} holds no survey: {error}") from error


def resumed(path: Path, new: Survey) -> tuple[Survey, str]:
    """The survey to continue, and why: that in the file, or a new one if there is none.

    The reason is empty if there was no file.
    """
    if not path.exists():
        return new, ""
    try:
        found = read(path)
    except ValueError as error:
        torn = path.with_suffix(TORN)
        path.replace(torn)
        return new, f"{error}; it is {torn.name} now, and all is measured anew"
    return found, f"{path.name} has {len(found.sections)} sections"


def newest(folder: Path = FOLDER) -> list[Survey]:
    """The newest survey of each CPU, newest first; ValueError if a file is not a survey."""
    by_cpu: dict[str, Survey] = {}
    for each in sorted(map(read, folder.glob("*.json")), key=lambda one: one.date, reverse=True):
        by_cpu.setdefault(each.cpu, each)
    return list(by_cpu.values())


def file_for(new: Survey, folder: Path = FOLDER) -> Path:
    """The CPU's newest file if it is of the current source, else a file of the survey's day."""
    for path in sorted(folder.glob(f"{new.cpu}-*.json"))[-1:]:
        with contextlib.suppress(ValueError):
            if read(path).commit == new.commit:
                return path
    return folder / f"{new.cpu}-{new.date}.json"


def source_state() -> str:
    """The commit of the source, with "+" if files were changed; "unknown" outside of git.

    Files that surveys write do not count as source.
    """
    try:
        commit = _git("rev-parse", "--short=10", "HEAD")
        asked = "status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs", ":!README.md"
        return commit + "+" * bool(_git(*asked))
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


GAIN = "best neighbour is faster"
SHORT = 0.97
BEHIND = 1.05
BUSY = 0.3
"""Load above which times are unreliable."""


def shortfalls(sections: Iterable[tuple[str, Row]]) -> list[str]:
    """Rows that a library beats, and defaults that a neighbour beats, worst first.

    `sections` has the form of `Survey.rows`.
    """
    found = []
    for section, row in sections:
        text = f"{section}: {row.case}" + f", {row.dtype}" * bool(row.dtype)
        text += f", {row.threads} threads" if row.threads > 1 else ", one thread"
        if row.ratio is not None and row.ratio < SHORT:
            best = min((row.values[name], name) for name in OTHERS if name in row.values)[1]
            found.append((row.ratio, f"{text}: {row.ratio:.2f}x of {best}"))
        gain = row.values.get(GAIN, 1.0)
        if gain > BEHIND:
            found.append((1 / gain, f"{text}: a neighbour of the default is {gain:.2f}x as fast"))
    return [text for _, text in sorted(found)]
