from . import arg_info as arg_info
from . import database as database
