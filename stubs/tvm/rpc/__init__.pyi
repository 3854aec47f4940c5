from . import base as base
from .client import RPCSession as RPCSession
from .client import connect as connect
