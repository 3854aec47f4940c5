"""Mutates conditions that guard correctness, and reports mutations that no test notices.

    python -m tools.mutants --list
    python -m tools.mutants                         # all of them
    python -m tools.mutants 'layout-*' softmax-sum-of-another --jobs 2

`mutations/*.json` has the list, one file for each package. A mutation replaces a piece of a source
that occurs exactly once there, says why the result is wrong, and names the tests that should fail.
Each runs in a copy of the project, so the working tree does not change.
"""
