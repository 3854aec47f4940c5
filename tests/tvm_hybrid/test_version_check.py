"""Package pairs that work are accepted; others are refused before TVM is imported."""

from __future__ import annotations

import pytest

from tests.tvm_hybrid.small_models import run_python
from tvm_hybrid.errors import UnsupportedTvmError
from tvm_hybrid.version_check import MEND, check, check_pair


@pytest.mark.parametrize(
    ("tvm", "ffi"),
    [("0.27.0", "0.1.14.post0"), ("0.27.0.post1", "0.1.14.post1"), ("0.27.3", "0.1.14.post12")],
)
def test_accepts_what_works(tvm: str, ffi: str) -> None:
    check_pair(tvm, ffi)


@pytest.mark.parametrize(
    ("tvm", "ffi", "culprit"),
    [
        ("0.27.0", "0.1.15", "apache-tvm-ffi 0.1.15"),
        ("0.27.0", "0.1.15.post2", "apache-tvm-ffi 0.1.15.post2"),
        ("0.27.0", "0.1.15rc1", "apache-tvm-ffi 0.1.15rc1"),
        ("0.27.0", "0.1.14", "apache-tvm-ffi 0.1.14"),
        ("0.27.0", "0.1.14rc0", "apache-tvm-ffi 0.1.14rc0"),
        ("0.27.0", "0.1.13", "apache-tvm-ffi 0.1.13"),
        ("0.26.0", "0.1.14.post1", "apache-tvm 0.26.0"),
        ("0.28.0", "0.1.14.post1", "apache-tvm 0.28.0"),
        ("nonsense", "0.1.14.post1", "apache-tvm nonsense"),
        (None, "0.1.14.post1", "apache-tvm is not installed"),
        ("0.27.0", None, "apache-tvm-ffi is not installed"),
    ],
)
def test_refuses_the_rest_with_the_command_that_mends_it(
    tvm: str | None, ffi: str | None, culprit: str
) -> None:
    with pytest.raises(UnsupportedTvmError) as caught:
        check_pair(tvm, ffi)
    assert culprit in str(caught.value)
    assert MEND in str(caught.value)


def test_what_is_installed_here_works() -> None:
    check()


def test_a_bad_pair_is_refused_before_tvm_is_imported() -> None:
    done = run_python(
        """
import importlib.metadata, sys
real = importlib.metadata.version
importlib.metadata.version = lambda name: "0.1.15.post2" if name == "apache-tvm-ffi" else real(name)
try:
    import tvm_hybrid
except ImportError as error:
    print(type(error).__name__, "tvm" in sys.modules, "pip install" in str(error))
"""
    )
    assert done.stdout.split() == ["UnsupportedTvmError", "False", "True"], done.stderr
