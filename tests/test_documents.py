"""README and CONTRIBUTING name only files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLACEHOLDER = re.compile(r"[<>*{}]")
# Files that the text tells to make.
EXAMPLES = {"tir_schedules/rows/cumsum.py", "relay_passes/canonicalize/drop_double_negation.py"}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_named_files_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    linked = re.findall(r"\]\(([^)#:]+)\)", text)
    quoted = re.findall(r"`([\w.<>*{}-]+(?:/[\w.<>*{}-]+)+\.\w+)`", text)
    paths = {path for path in (*linked, *quoted) if not PLACEHOLDER.search(path)} - EXAMPLES
    assert len(paths) > 5
    assert not [path for path in sorted(paths) if not (ROOT / path).exists()]


def test_named_modules_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    packages = "microkernels|tir_schedules|relay_passes|tvm_hybrid|tests|tools"
    found = set(re.findall(rf"`((?:{packages})(?:\.\w+)+)`", text))
    assert len(found) > 3
    # The last parts may be names in a module.
    missing = [name for name in sorted(found) if not _file_of(name.split("."))]
    assert not missing


def _file_of(parts: list[str]) -> bool:
    """Whether a module, or one that holds the last part or the last two, exists."""
    modules = [ROOT.joinpath(*parts[:end]) for end in range(len(parts), max(1, len(parts) - 2), -1)]
    return any(path.with_suffix(".py").is_file() for path in modules) or modules[0].is_dir()
