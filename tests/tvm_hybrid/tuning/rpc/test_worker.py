"""Servers that cannot run the code, or that differ from the others, are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from microkernels.base.errors import ServerError
from microkernels.isa import isa_named
from tvm_hybrid.tuning.rpc.worker import Server, require_suitable, server_cpu

SERVER = Server("there", 9090, "")


class Session:
    """A session at a server with this CPU and a given number of threads."""

    def __init__(self, cpu: str, threads: int) -> None:
        self.cpu, self.most, self.threads = cpu, threads, 0

    def get_function(self, name: str) -> Callable[..., object]:
        if name == "target.llvm_get_system_cpu":
            if not self.cpu:
                raise AttributeError(name)
            return lambda: self.cpu
        if name == "runtime.config_threadpool":
            return self.configure
        assert name == "runtime.NumThreads"
        return lambda: self.threads

    def configure(self, mode: int, threads: int) -> None:
        del mode
        self.threads = min(threads, self.most)


@pytest.mark.parametrize(
    ("found", "isa", "cpu"),
    [
        ("znver4", "avx512_bf16", "znver4"),
        ("sapphirerapids", "amx", ""),
        ("haswell", "avx2", "haswell"),
        ("", "amx", "sapphirerapids"),  # unknown to the server
    ],
)
def test_suitable(found: str, isa: str, cpu: str) -> None:
    session = Session(found, 4)
    assert server_cpu(session) == found
    require_suitable(session, SERVER, isa_named(isa), cpu, 1)
    assert session.threads == 0  # a serial kernel has no pool
    require_suitable(session, SERVER, isa_named(isa), cpu, 4)
    assert session.threads == 4


@pytest.mark.parametrize(
    ("found", "isa", "cpu", "threads", "message"),
    [
        ("haswell", "avx512", "haswell", 1, "there:9090, a haswell, cannot run avx512 code: it la"),
        ("icelake-server", "avx512_vnni", "cascadelake", 1, "icelake-server and not a cascadelake"),
        ("znver4", "avx2", "znver4", 8, "runs 4 threads at most, not 8; start it with TVM_NUM_THR"),
    ],
)
def test_refused(found: str, isa: str, cpu: str, threads: int, message: str) -> None:
    with pytest.raises(ServerError, match=message):
        require_suitable(Session(found, 4), SERVER, isa_named(isa), cpu, threads)
