"""The version is stated once, and the changelog begins with it."""

import configparser
import re
from pathlib import Path

import tvm_hybrid

ROOT = Path(__file__).resolve().parents[1]


def test_the_changelog_begins_with_the_version() -> None:
    newest = re.search(
        r"^## \[(.+?)\] - \d{4}-\d{2}-\d{2}$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    assert newest is not None
    assert newest[1] == tvm_hybrid.__version__


def test_the_package_takes_its_version_from_the_source() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["metadata"]["version"] == "attr: tvm_hybrid.version_check.__version__"
