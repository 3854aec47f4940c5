from socket import socket
from typing import Any

RPC_TRACKER_MAGIC: int

class TrackerCode:
    SUCCESS: int
    REQUEST: int
    SUMMARY: int

def recvall(sock: socket, nbytes: int) -> bytes: ...
def sendjson(sock: socket, data: object) -> None: ...
def recvjson(sock: socket) -> Any: ...
