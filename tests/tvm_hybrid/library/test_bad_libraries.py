"""Files that are no library of ours are refused before they are opened, with a reason."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tvm_ffi

import tvm_hybrid
from tests.tvm_hybrid.small_models import mlp
from tvm_hybrid.errors import ArtifactError
from tvm_hybrid.library.artifact import MAGIC, OLDER_MAGIC, complete_library, read_manifest
from tvm_hybrid.library.weights_file import WeightsFile

FOOTER = struct.Struct("<QQ32sQ8s")
OLDER_FOOTER = struct.Struct("<32sQ8s")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a library that loads."""
    path = mlp().export(tmp_path_factory.mktemp("good") / "m.so")
    tvm_hybrid.load(path)
    return path.read_bytes()


def manifest_length(data: bytes) -> int:
    return FOOTER.unpack(data[-FOOTER.size :])[3]


def sealed(body: bytes, manifest: bytes) -> bytes:
    """A file without weights, with a right checksum for the given manifest."""
    place = struct.pack("<QQ", len(body), 0)
    digest = hashlib.sha256(body + manifest + place).digest()
    return body + manifest + place + digest + struct.pack("<Q8s", len(manifest), MAGIC)


def sealed_by_older(body: bytes, manifest: bytes) -> bytes:
    """Such a file in the format of versions without weights behind the library."""
    digest = hashlib.sha256(body + manifest).digest()
    return body + manifest + OLDER_FOOTER.pack(digest, len(manifest), OLDER_MAGIC)


def with_manifest(data: bytes, change: Callable[[dict[str, object]], object]) -> bytes:
    end = len(data) - FOOTER.size
    start = end - manifest_length(data)
    fields = msgspec.json.decode(data[start:end])
    return sealed(data[:start], msgspec.json.encode(change(fields)))


def older(data: bytes) -> bytes:
    """A library in the format of versions without weights behind the library."""
    end = len(data) - FOOTER.size
    start = end - manifest_length(data)
    fields = msgspec.json.decode(data[start:end])
    del fields["weights"]
    return sealed_by_older(data[:start], msgspec.json.encode({**fields, "format": 1}))


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


BAD: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("empty", lambda data: b"", "not a shared library"),
    ("text", lambda data: b"just some text\n" * 100, "not a shared library"),
    ("zip", lambda data: b"PK\x03\x04" + bytes(1000), "not a shared library"),
    ("onnx", lambda data: b"\x08\x08\x12\x04test" * 50, "not a shared library"),
    ("magic only", lambda data: data[:4], "truncated"),
    ("half a header", lambda data: data[:40], "truncated"),
    ("header only", lambda data: data[:64], "truncated"),
    ("half", lambda data: data[: len(data) // 2], "truncated"),
    ("one byte short", lambda data: data[:-1], "truncated"),
    ("one byte long", lambda data: data + b"\0", "not exported by tvm_hybrid"),
    ("no footer", lambda data: data[: -FOOTER.size], "truncated"),
    (
        "no manifest",
        lambda data: data[: -FOOTER.size - manifest_length(data)],
        "not exported by tvm_hybrid",
    ),
    ("another machine", lambda data: data[:18] + b"\xb7\0" + data[20:], "x86-64"),
    ("flipped code", lambda data: flipped(data, len(data) // 3), "checksum"),
    ("flipped manifest", lambda data: flipped(data, len(data) - FOOTER.size - 5), "checksum"),
    ("flipped checksum", lambda data: flipped(data, len(data) - 48), "checksum"),
    ("flipped place of weights", lambda data: flipped(data, len(data) - FOOTER.size), "damaged"),
    ("flipped bytes of weights", lambda data: flipped(data, len(data) - 56), "damaged"),
    ("older, flipped", lambda data: flipped(older(data), len(data) // 3), "checksum"),
    ("older, one byte short", lambda data: older(data)[1:], "not a shared library"),
    ("manifest too long", lambda data: data[:-16] + struct.pack("<Q8s", 1 << 40, MAGIC), "damaged"),
    ("manifest is no JSON", lambda data: sealed(data, b"{"), "unreadable manifest"),
    ("manifest is a list", lambda data: with_manifest(data, lambda m: [m]), "unreadable manifest"),
    (
        "from the future",
        lambda data: with_manifest(data, lambda m: {**m, "format": 99}),
        "format 99",
    ),
    (
        "field missing",
        lambda data: with_manifest(data, lambda m: {k: v for k, v in m.items() if k != "inputs"}),
        "inputs",
    ),
    (
        "field of another type",
        lambda data: with_manifest(data, lambda m: {**m, "threads": "two"}),
        "threads",
    ),
    ("unknown field", lambda data: with_manifest(data, lambda m: {**m, "spam": 1}), "spam"),
]


@pytest.mark.parametrize(("spoil", "culprit"), [case[1:] for case in BAD], ids=[c[0] for c in BAD])
def test_bad_files_are_refused(
    good: bytes, tmp_path: Path, spoil: Callable[[bytes], bytes], culprit: str
) -> None:
    path = tmp_path / "bad.so"
    path.write_bytes(spoil(good))
    with pytest.raises(ArtifactError) as caught:
        tvm_hybrid.load(path)
    assert "bad.so" in str(caught.value)
    assert culprit in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="No such file"):
        tvm_hybrid.load(tmp_path / "missing.so")
    with pytest.raises(ArtifactError, match="directory"):
        tvm_hybrid.load(tmp_path)


def test_a_library_of_another_origin_is_refused() -> None:
    with pytest.raises(ArtifactError, match="not exported by tvm_hybrid"):
        tvm_hybrid.load(tvm_ffi.libinfo.find_libtvm_ffi())


def test_a_library_with_our_manifest_but_other_contents_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.so"
    path.write_bytes(Path(_libm()).read_bytes())
    complete_library(path, mlp().manifest, WeightsFile([]))
    assert read_manifest(path) == mlp().manifest
    with pytest.raises(ArtifactError, match=r"other\.so holds no model"):
        tvm_hybrid.load(path)


def _libm() -> str:
    """Path of a library that is unrelated to TVM."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in lines if "libm.so" in line or "libm-" in line)


@pytest.mark.parametrize("made", [lambda data: data, older], ids=["now", "by older versions"])
def test_a_good_library_still_loads_after_all_that(
    good: bytes, made: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "good.so"
    path.write_bytes(made(good))
    x = np.ones((1, 16), np.float32)
    np.testing.assert_array_equal(tvm_hybrid.load(path).run(x)[0].numpy(), mlp().run(x)[0].numpy())
