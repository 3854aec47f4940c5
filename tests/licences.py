"""Finds other authors' files in the repository, and what NOTICE says of them."""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

# Folders of files that are shipped, or that come with a clone.
FOLDERS = (
    "microkernels",
    "tir_schedules",
    "relay_passes",
    "tvm_hybrid",
    "docs",
    "notebooks",
    "examples",
    "tools",
    "stubs",
)
# Our files that are not source text. Name a new kind of file here if it is ours, else in NOTICE.
OURS = {
    "*/py.typed": "empty",
    "microkernels/amx/*.ll": "asks Linux for AMX tiles",
    "tvm_hybrid/cli/examples.txt": "lines of help",
    "tools/tvm_tests/files.txt": "names of files",
    "docs/measured/*.json": "what surveys measured",
    "tools/decoding/reader.cc": "reads memory, to compare with",
    "tools/survey/onednn_peer.cc": "calls of oneDNN to compare with",
    "tvm_hybrid/library/loader.cc": "the loader of an exported library",
    "tvm_hybrid/report/page/static/*": "the page of a report",
    "tvm_hybrid/runtime/thread_pool/pool.*": "the pool of threads, in C and as clang translates it",
    "tvm_hybrid/runtime/thread_pool/*.h": "its parts",
    "tvm_hybrid/targets/cpuid.ll": "asks the CPU what it has",
    "tvm_hybrid/tuning/rpc/stopwatch.c": "times kernels at a server",
    "tvm_hybrid/records/shipped/*.jsonl": "records of our own measurements",
    "tvm_hybrid/tuning/recordings/*.jsonl.xz": "recordings of our own measurements",
    "microkernels/machines/measurements/tile_products.json": "our own measurements",
    "tools/mutants/mutations/*.json": "mutations of our own sources",
    "docs/*.svg": "made by our tools",
    "docs/*.png": "made by our tools",
    "examples/cpp/*": "an example",
    "notebooks/*.ipynb": "our tutorials, with what they put out",
}
SOURCES = {".py", ".pyi", ".md"}
BUILT = {".pyc", ".so"}
# Signs of other authors: in any file, and in files that are not meant for reading.
HOLDER = re.compile(
    r"(?:copyright (?:\(c\)|©)?|©) ?[12]\d{3}|copyright \(c\)|SPDX-License-Identifier"
    r"|@licen[cs]e\b|@preserve\b"
    r"|all rights reserved|permission is hereby granted|redistribution and use",
    re.IGNORECASE,
)
LICENCE = re.compile(
    r"\b(?:BSD|MIT|ISC|L?GPL|MPL|Apache|CC)[- ](?:\d|BY|licen[cs]e)", re.IGNORECASE
)
# Lines of minified scripts are longer than any line of ours.
MINIFIED = 2000  # characters of a line


@dataclass(frozen=True)
class Foreign:
    """A stanza of NOTICE.

    Attributes
    ----------
    pattern : str
        The files, relative to the root.
    origin : str
        Their origin.
    license_id : str
        SPDX's name of the licence.
    license_file : str
        The file with the licence's text, relative to the root.
    """

    pattern: str
    origin: str
    license_id: str
    license_file: str


def notice(root: Path) -> list[Foreign]:
    """The stanzas of NOTICE."""
    found = []
    for stanza in re.split(r"\n\s*\n", (root / "NOTICE").read_text()):
        fields = dict(re.findall(r"^(\w+): (.+)$", stanza, re.MULTILINE))
        if "file" in fields:
            license_id, _, license_file = fields["license"].partition(", ")
            found.append(Foreign(fields["file"], fields["from"], license_id, license_file))
    return found


def license_files(root: Path) -> list[str]:
    """The licence files that setup.cfg ships with a package, relative to the root."""
    setup = configparser.ConfigParser()
    setup.read(root / "setup.cfg")
    patterns = setup["metadata"]["license_files"].split()
    return sorted(str(path.relative_to(root)) for each in patterns for path in root.glob(each))


def files(root: Path) -> Iterator[Path]:
    """All files of the folders, except build results."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            hidden = any(part.startswith((".", "__pycache__")) for part in path.parts)
            if path.is_file() and path.suffix not in BUILT and not hidden:
                yield path


def unknown_origin(root: Path) -> list[str]:
    """Files that are not source text, not known as ours, and not listed in NOTICE."""
    patterns = [*OURS, *(each.pattern for each in notice(root))]
    names = [str(path.relative_to(root)) for path in files(root) if path.suffix not in SOURCES]
    return [name for name in names if not any(fnmatch(name, each) for each in patterns)]


def unlisted(root: Path) -> list[str]:
    """Files that look like other authors' and are not listed in NOTICE."""
    patterns = [each.pattern for each in notice(root)]
    found = []
    for path in files(root):
        name = str(path.relative_to(root))
        if not any(fnmatch(name, each) for each in patterns) and looks_foreign(path):
            found.append(name)
    return found


def looks_foreign(path: Path) -> bool:
    """Whether a file names a copyright holder or a licence, or is a minified script."""
    if path.suffix in {".png", ".xz"}:
        return False
    text = path.read_text(encoding="utf-8")
    minified = path.suffix in {".js", ".css", ".html"} and any(
        len(line) > MINIFIED for line in text.splitlines()
    )
    named = path.suffix not in SOURCES and LICENCE.search(text) is not None
    return minified or named or HOLDER.search(text) is not None
