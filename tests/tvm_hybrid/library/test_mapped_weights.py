"""Weights of exported libraries: shared pages of the file, read only by kernels."""

from __future__ import annotations

import functools
import gc
import json
import re
import shutil
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import IRModule, relax

import tvm_hybrid
from relay_passes.lower import native_code
from relay_passes.lower.weights import OUTSIDE_BYTES
from tests.tvm_hybrid.runtime_only import run_on_runtime_alone
from tests.tvm_hybrid.small_models import run_python
from tvm_hybrid import api
from tvm_hybrid.cli import main
from tvm_hybrid.errors import ArtifactError
from tvm_hybrid.executable.executable import Executable
from tvm_hybrid.library import weights_file
from tvm_hybrid.library.artifact import read_manifest
from tvm_hybrid.library.library_loader import weights_function, with_own_weights
from tvm_hybrid.library.weights_file import HEAD_BYTES

pytestmark = pytest.mark.turns

N = 256
X = np.random.default_rng(1).standard_normal((4, N)).astype(np.float32)
W = np.random.default_rng(0).standard_normal((N, N)).astype(np.float32)
BIAS = np.random.default_rng(2).standard_normal(N).astype(np.float32)


def module(weight: np.ndarray = W) -> IRModule:
    """x -> (x @ W + BIAS, W): the second output is the weight itself."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(X.shape, "float32"))
    constant = relax.const(weight)
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(x, constant))
            y = builder.emit(relax.op.add(y, relax.const(BIAS)))
            result = builder.emit_output(relax.Tuple([y, constant]))
        builder.emit_func_output(result)
    return builder.get()


@functools.cache
def compiled() -> Executable:
    return tvm_hybrid.compile(module(), num_threads=1)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled().export(tmp_path_factory.mktemp("mapped") / "m.so")


@pytest.fixture
def library(exported: Path, tmp_path: Path) -> Path:
    """A copy of the library, for one test."""
    return Path(shutil.copyfile(exported, tmp_path / "m.so"))


def weights_start(path: Path) -> int:
    return struct.unpack("<QQ", path.read_bytes()[-64:-48])[0]


def mappings(path: Path) -> list[dict[str, int]]:
    """Linux's entries, in kB, for each read-only shared mapping of a file."""
    found: list[dict[str, int]] = []
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            inside = words[-1] == str(path) and words[1] == "r--s"
            found += [{} for _ in range(inside)]
        elif inside and words[-1] == "kB":
            found[-1][words[0].rstrip(":")] = int(words[1])
    return found


def test_programs_of_a_library_share_pages_of_its_file(library: Path) -> None:
    both = [tvm_hybrid.load(library) for _ in range(2)]
    for each in both:
        y, weight = each.run(X)
        np.testing.assert_array_equal(y.numpy(), compiled().run(X)[0].numpy())
        np.testing.assert_array_equal(weight.numpy(), W)
    first, second = ([tensor.data_ptr() for tensor in each.weights()] for each in both)
    assert first == second and len(first) == 2  # unpacked, and packed for the product's kernel
    assert all(place % 64 == 0 for place in first)
    (mapped,) = mappings(library)
    assert mapped["Size"] >= 2 * W.nbytes // 1024
    assert mapped["Anonymous"] == 0
    assert mapped["Rss"] >= 2 * W.nbytes // 1024


def test_a_program_that_is_not_exported_has_the_same_weights(library: Path) -> None:
    pairs = list(zip(compiled().weights(), tvm_hybrid.load(library).weights(), strict=True))
    assert len(pairs) == 2
    for ours, mapped in pairs:
        np.testing.assert_array_equal(ours.numpy(), mapped.numpy())


def test_pages_go_with_the_last_program_or_output(tmp_path: Path) -> None:
    weight = W + 2  # a library with opened copies is never closed
    library = tvm_hybrid.compile(module(weight), num_threads=1).export(tmp_path / "m.so")
    executable = tvm_hybrid.load(library)
    executable.run(X)
    assert mappings(library)
    del executable
    gc.collect()
    assert not mappings(library)
    executable = tvm_hybrid.load(library)
    result = executable.run(X)[1]
    del executable
    gc.collect()
    np.testing.assert_array_equal(result.numpy(), weight)
    tvm_hybrid.load(library).run(X)


def test_small_constants_stay_in_the_program(exported: Path) -> None:
    manifest = read_manifest(exported)
    assert [each.size for each in manifest.weights] == [W.nbytes, W.nbytes]
    assert BIAS.nbytes < OUTSIDE_BYTES <= W.nbytes
    place = exported.read_bytes().index(BIAS.tobytes())
    assert place < weights_start(exported)


@pytest.mark.slow
def test_weights_may_lie_beyond_4_gib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_file, "ALIGNMENT", 1 << 32)  # the file has a hole
    library = compiled().export(tmp_path / "m.so")
    offsets = [each.offset for each in read_manifest(library).weights]
    assert offsets == [HEAD_BYTES, 1 << 32]
    assert library.stat().st_size > 2 << 32
    y, weight = tvm_hybrid.load(library).run(X)
    np.testing.assert_array_equal(y.numpy(), compiled().run(X)[0].numpy())
    np.testing.assert_array_equal(weight.numpy(), W)
    done = run_python(
        _RUNTIME_ALONE, library, TVM_USE_RUNTIME_LIB="1", TVM_DEVICE_BACKEND_AUTOLOAD="0"
    )
    assert done.stdout.split() == ["True", "1", "False"], done.stderr


def test_the_runtime_alone_maps_them(library: Path, tmp_path: Path) -> None:
    done = run_python(
        _RUNTIME_ALONE, library, TVM_USE_RUNTIME_LIB="1", TVM_DEVICE_BACKEND_AUTOLOAD="0"
    )
    assert done.stdout.split() == ["True", "1", "False"], done.stderr


_RUNTIME_ALONE = """
import sys, numpy as np, tvm
module = tvm.runtime.load_module(sys.argv[1])
machine = module["vm_load_executable"]()
machine["vm_initialization"](1, 0, 2)
x = np.eye(4, 256, dtype=np.float32)
y, weight = machine["main"](tvm.runtime.tensor(x))
print(np.allclose(y.numpy() - y.numpy()[:1], weight.numpy()[:4] - weight.numpy()[:1], atol=1e-5))
maps = open("/proc/self/maps").read()
print(sum("r--s" in line and sys.argv[1] in line for line in maps.splitlines()))
print("tvm_hybrid" in sys.modules)
"""


def cut(data: bytes, start: int) -> dict[str, bytes]:
    """Truncated files, cut behind the library that ends before the weights start."""
    size = len(data) - start
    return {f"{part} of 8": data[: start + size * part // 8] for part in range(8)} | {
        "one byte": data[:-1],
        "all but a page": data[: start + 4096],
    }


PARTS = [*(f"{part} of 8" for part in range(8)), "one byte", "all but a page"]


@pytest.mark.parametrize("part", PARTS)
def test_a_truncated_file_is_refused(part: str, exported: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    path.write_bytes(cut(exported.read_bytes(), weights_start(exported))[part])
    with pytest.raises(ArtifactError, match=r"m\.so"):
        tvm_hybrid.load(path)


@pytest.mark.parametrize("part", ["0 of 8", "3 of 8", "all but a page"])
def test_the_library_itself_refuses_a_truncated_file(
    part: str, exported: Path, tmp_path: Path
) -> None:
    path = tmp_path / "m.so"
    path.write_bytes(cut(exported.read_bytes(), weights_start(exported))[part])
    done = run_on_runtime_alone(path, X, tmp_path)
    assert done.returncode == 0, done.stderr
    message = done.stdout.splitlines()[0]
    assert message.startswith(f"RuntimeError: the weights of {path} cannot be used: it is trunc")


def test_weights_of_another_library_are_refused(library: Path, tmp_path: Path) -> None:
    other = tvm_hybrid.compile(module(W + 1), num_threads=1).export(tmp_path / "other.so")
    start, others = weights_start(library), weights_start(other)
    assert start == others
    mixed = tmp_path / "mixed.so"
    mixed.write_bytes(library.read_bytes()[:start] + other.read_bytes()[others:])
    with pytest.raises(ArtifactError, match="checksum"):
        tvm_hybrid.load(mixed)
    done = run_on_runtime_alone(mixed, X, tmp_path)
    message = done.stdout.splitlines()[0]
    assert message.endswith("they are those of another library; export it again")


def test_changed_weights_are_found_on_demand(
    library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = read_manifest(library).weights[1]
    place = weights_start(library) + stored.offset + stored.size // 2
    data = bytearray(library.read_bytes())
    data[place] ^= 1
    library.unlink()
    library.write_bytes(data)
    tvm_hybrid.load(library)
    damage = rf"damaged: the {stored.size} bytes of weights"
    with pytest.raises(ArtifactError, match=damage):
        tvm_hybrid.load(library, verify=True)
    assert main(["check", str(library)]) == 1
    assert re.search(damage, capsys.readouterr().err.replace("\n", " "))
    data[place] ^= 1
    library.unlink()
    library.write_bytes(data)
    tvm_hybrid.load(library, verify=True).run(X)
    assert main(["check", str(library), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "bytes": len(data),
        "weights": 2,
        "weight_bytes": 2 * W.nbytes,
    }
    assert main(["check", str(library)]) == 0
    assert "is whole" in capsys.readouterr().out


def test_a_fallback_shares_weights(tmp_path: Path) -> None:
    executable = tvm_hybrid.compile(module(), fallback="scalar", num_threads=1)
    path = executable.export(tmp_path / "both.so")
    assert path.read_bytes().count(W.tobytes()) == 1
    fallback = executable.manifest.fallback
    assert fallback is not None and not fallback.weights
    # Unpacked, and packed for each program.
    assert len(read_manifest(path).weights) in (2, 3)
    np.testing.assert_array_equal(
        tvm_hybrid.load(path).run(X)[0].numpy(), executable.run(X)[0].numpy()
    )


def test_a_program_can_have_weights_of_its_own(library: Path) -> None:
    shared = tvm_hybrid.load(library)
    found, name = with_own_weights(shared._code._open(), shared.manifest.model_sha256)
    own = Executable(shared.manifest, functools.partial(lambda module: module, found))
    np.testing.assert_array_equal(own.run(X)[0].numpy(), shared.run(X)[0].numpy())
    pairs = zip(own.weights(), shared.weights(), strict=True)
    assert all(one.data_ptr() != two.data_ptr() for one, two in pairs)
    machine = own.new_machine()
    tvm_ffi.registry.remove_global_func(name)
    del own, found, shared
    gc.collect()
    np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(X))[1].numpy(), W)


DTYPES = ("float16", "bfloat16", "int8", "uint8", "int64", "bool", "float64")


def test_weights_of_any_type(tmp_path: Path) -> None:
    """A program without kernels that returns constants."""
    bits = np.random.default_rng(3).integers(0, 2, OUTSIDE_BYTES).astype(np.int8)
    arrays = [bits.astype(getattr(ml_dtypes, name, name)).reshape(2, -1) for name in DTYPES]
    builder = relax.BlockBuilder()
    with builder.function("main", [relax.Var("x", relax.TensorType((1,), "float32"))]):
        with builder.dataflow():
            constants = [relax.const(tvm.runtime.tensor(array)) for array in arrays]
            result = builder.emit_output(relax.Tuple(constants))
        builder.emit_func_output(result)
    executable = tvm_hybrid.compile(builder.get(), num_threads=1)
    loaded = tvm_hybrid.load(executable.export(tmp_path / "m.so"))
    assert len(loaded.manifest.weights) == len(DTYPES) - 2  # three have equal bytes
    x = np.zeros(1, np.float32)
    for name, found, array in zip(DTYPES, loaded.run(x), arrays, strict=True):
        assert str(found.dtype) == name
        np.testing.assert_array_equal(found.numpy(), array)


def test_a_wrong_number_is_an_error(library: Path) -> None:
    (code,) = tvm.runtime.load_module(str(library)).imports
    weight = code.get_function(weights_function(0))
    assert weight() == 2
    for number in (2, -1, 1.0):
        with pytest.raises(IndexError, match="no weight of this number"):
            weight(number)


def test_a_program_that_is_only_exported_never_hashes_its_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A session with a cache does this, too; hashing takes TVM as long as a run of the model."""
    made: list[IRModule] = []

    def with_weights(native: object, code: IRModule) -> object:
        made.append(code)
        return native_code.with_weights(native, code)

    monkeypatch.setattr(api, "with_weights", with_weights)
    executable = tvm_hybrid.compile(module(), num_threads=1)
    loaded = tvm_hybrid.load(executable.export(tmp_path / "m.so"))
    result = loaded.run(X)[0].numpy()
    assert not made
    np.testing.assert_array_equal(executable.run(X)[0].numpy(), result)
    assert len(made) == 1
