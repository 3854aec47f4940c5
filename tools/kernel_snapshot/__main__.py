"""Runs the command."""

from .command import main

main()
