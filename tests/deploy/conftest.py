"""The cluster that the live tests of a file share: two replicas of one thread each."""

import pytest

from live_cluster import fleet


@pytest.fixture(scope="module")  # other files start clusters of their own, at the same ports
def two_replicas(tmp_path_factory, smollm2_path):
    with fleet(tmp_path_factory.mktemp("fleet"), f"smollm2={smollm2_path}") as made:
        made.up("--replicas", 2, "--threads", 1)
        yield made
