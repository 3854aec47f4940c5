"""Cases whose operator is written as the nodes that define it go on passing, too."""

import pytest

from .cases import all_cases, run
from .test_node_tests import EXPANDED, skip_unless_known


@pytest.mark.sampled
@pytest.mark.parametrize("name", EXPANDED)
def test_passes(name: str) -> None:
    skip_unless_known(name)
    run(all_cases()[name])
