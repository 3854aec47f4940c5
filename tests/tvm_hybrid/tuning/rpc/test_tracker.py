"""Errors of a tracker or its address are reported at once."""

from __future__ import annotations

import socket
import threading

import pytest

from microkernels.base.errors import ConfigError, ServerError
from tvm_hybrid.cli import main
from tvm_hybrid.tuning.rpc.worker import Address, Tracker
from tvm_hybrid.tuning.tune_model import tune


def test_addresses() -> None:
    assert Address.parse("localhost:9190", "xeon") == Address("localhost", 9190, "xeon")
    assert Address.parse("[::1]:9190", "xeon") == Address("::1", 9190, "xeon")


@pytest.mark.parametrize("text", ["", "localhost", "localhost:", ":9190", "a:b", "a:0", "a:65536"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ServerError, match="a tracker is written HOST:PORT, such as"):
        Address.parse(text, "xeon")


def test_no_key() -> None:
    with pytest.raises(ServerError, match="a tracker needs the key of the servers"):
        Address.parse("localhost:9190", "")


def test_nobody_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # but it does not listen
        address = Address("127.0.0.1", bound.getsockname()[1], "xeon")
        start = f"start one there: python -m tvm.exec.rpc_tracker --port {address.port}"
        with pytest.raises(ServerError, match=f"no tracker at {address} .*; {start}"):
            Tracker(address)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"HT", b""])
def test_something_else_listens(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ServerError, match="no tracker at"):
            Tracker(Address("127.0.0.1", listening.getsockname()[1], "xeon"))
        thread.join()


def test_tune_says_so_before_it_reads_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ServerError, match="a tracker needs the key"):
        tune(b"", tracker="localhost:9190")
    with pytest.raises(ServerError, match="a tracker is written HOST:PORT"):
        tune(b"", key="xeon")
    with pytest.raises(ConfigError, match="a replay measures nothing, at servers neither"):
        tune(b"", tracker="localhost:9190", key="xeon", replay="r.jsonl")
    assert main(["tune", __file__, "--tracker", "localhost", "--key", "xeon"]) == 2
    assert "a tracker is written HOST:PORT" in " ".join(capsys.readouterr().err.split())
