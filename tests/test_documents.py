"""README, CONTRIBUTING and docs/extending name only files and modules that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXTENDING = sorted((ROOT / "docs" / "extending").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *EXTENDING]
PLACEHOLDER = re.compile(r"[<>*{}]")
# Files that readers create when they follow the pages.
EXAMPLES = {
    "tir_schedules/rows/cumsum.py",
    "microkernels/machines/sierraforest.json",
    "build/site/index.html",
}
CONTRIBUTING_LINES = 60


def test_contributing_is_one_page() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert len(text.splitlines()) <= CONTRIBUTING_LINES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_named_files_exist(page: Path) -> None:
    text = page.read_text()
    linked = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    quoted = re.findall(r"`([\w.<>*{}-]+(?:/[\w.<>*{}-]+)+\.\w+)`", text)
    assert linked or quoted
    paths = {page.parent / path for path in linked}
    paths |= {ROOT / path for path in quoted if not PLACEHOLDER.search(path)}
    paths -= {ROOT / path for path in EXAMPLES}
    assert not [path for path in sorted(paths) if not path.exists()]


def test_named_modules_exist() -> None:
    text = "".join(path.read_text() for path in EXTENDING)
    packages = "microkernels|tir_schedules|relay_passes|tvm_hybrid|tests|tools"
    found = set(re.findall(rf"`((?:{packages})(?:\.\w+)+)`", text))
    assert len(found) > 3
    # The last parts of a dotted name may be names in a module.
    missing = [name for name in sorted(found) if not _file_of(name.split("."))]
    assert not missing


def _file_of(parts: list[str]) -> bool:
    """Whether a module exists, perhaps without the name's last part or last two parts."""
    modules = [ROOT.joinpath(*parts[:end]) for end in range(len(parts), max(1, len(parts) - 2), -1)]
    return any(path.with_suffix(".py").is_file() for path in modules) or modules[0].is_dir()
