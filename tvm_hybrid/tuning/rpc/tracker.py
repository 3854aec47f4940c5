"""A client of TVM's RPC tracker, which hands out servers: who there is, and the next free one.

`tvm.rpc.TrackerSession` does the same, but it tries for a minute to reach a tracker and connects to
the server in the same breath; here both can be told apart, and fail at once.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any

import msgspec

from microkernels.errors import ServerError

SECONDS = 10.0


class Address(msgspec.Struct, frozen=True):
    """Where a tracker listens, and the key of the servers to ask it for.

    Attributes
    ----------
    host : str
    port : int
    key : str
    """

    host: str
    port: int
    key: str

    @staticmethod
    def parse(text: str, key: str) -> Address:
        """The address written as HOST:PORT.

        Raises
        ------
        ServerError
            If it is not written so, or there is no key.
        """
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ServerError(f"a tracker is written HOST:PORT, such as localhost:9190: {text!r}")
        if not key:
            raise ServerError(
                "a tracker needs the key of the servers that may measure; "
                "name it with --key, as they were started with"
            )
        return Address(host.strip("[]"), int(port), key)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Server(msgspec.Struct, frozen=True):
    """A server that the tracker handed out.

    Attributes
    ----------
    host : str
    port : int
    password : str
        What it expects of the client that it was handed to.
    """

    host: str
    port: int
    password: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Tracker:
    """A connection to a tracker.

    Raises
    ------
    ServerError
        If there is no tracker at that address.
    """

    def __init__(self, address: Address) -> None:
        from tvm.rpc import base

        self.address = address
        try:
            self._socket = socket.create_connection((address.host, address.port), SECONDS)
            self._socket.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
            answer = struct.unpack("<i", base.recvall(self._socket, 4))[0]
        except (OSError, struct.error) as error:
            raise self._unreachable(error) from error
        if answer != base.RPC_TRACKER_MAGIC:
            raise self._unreachable(f"something else answers there: {answer:#x}")

    def servers(self) -> int:
        """How many servers of the key there are, free or not."""
        from tvm.rpc import base

        found = self._ask([base.TrackerCode.SUMMARY])
        wanted = f"server:{self.address.key}"
        return sum(info.get("key") == wanted for info in found["server_info"])

    def request(self) -> Server:
        """The next free server of the key; waits until there is one."""
        from tvm.rpc import base

        self._socket.settimeout(None)
        host, port, password = self._ask([base.TrackerCode.REQUEST, self.address.key, "", 1])
        return Server(host, port, password)

    def _ask(self, question: list[Any]) -> Any:
        from tvm.rpc import base

        try:
            base.sendjson(self._socket, question)
            code, answer = base.recvjson(self._socket)
        except (OSError, ValueError, TypeError, struct.error) as error:
            raise self._unreachable(error) from error
        if code != base.TrackerCode.SUCCESS:
            raise self._unreachable(f"it answers {code}")
        return answer

    def _unreachable(self, reason: object) -> ServerError:
        return ServerError(
            f"no tracker at {self.address} ({reason}); start one there: "
            f"python -m tvm.exec.rpc_tracker --port {self.address.port}"
        )

    def close(self) -> None:
        """Ends the connection."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
