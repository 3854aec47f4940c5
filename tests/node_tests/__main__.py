"""`python -m tests.node_tests`: see survey.py."""

from .survey import write

write()
