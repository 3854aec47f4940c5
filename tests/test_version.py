"""The version is stated once and heads the changelog, whose lines are short."""

import configparser
import re
from pathlib import Path

import tvm_hybrid

ROOT = Path(__file__).resolve().parents[1]
FRAGMENTS = ROOT / "changelog.d"
KINDS = {"added", "changed", "deprecated", "removed", "fixed"}
LONGEST = 120  # characters of a line for users


def test_the_changelog_begins_with_the_version() -> None:
    newest = re.search(
        r"^## \[(.+?)\] - \d{4}-\d{2}-\d{2}$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    assert newest is not None
    assert newest[1] == tvm_hybrid.__version__


def test_a_change_is_one_line() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    assert not [line for line in lines if len(line) > LONGEST]


def test_fragments_are_one_line_for_users() -> None:
    """`changelog.d/README.md` describes their names."""
    for path in sorted(FRAGMENTS.glob("*.md")):
        if path.name == "README.md":
            continue
        assert path.name.split(".")[1:] in [[kind, "md"] for kind in KINDS], path.name
        lines = path.read_text().splitlines()
        assert len(lines) == 1 and len(lines[0]) <= LONGEST - len("- "), path.name


def test_the_package_takes_its_version_from_the_source() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["metadata"]["version"] == "attr: tvm_hybrid.version_check.__version__"
