"""One cluster for all tests of this folder; each begins with no job and idle nodes."""

import pytest

from tests.cluster.slurm_cluster import SlurmCluster, works_here
from tests.conftest import need


@pytest.fixture(scope="session")
def cluster():
    need("slurm", works_here())
    started = SlurmCluster()
    yield started
    started.close()


@pytest.fixture(autouse=True)
def slurm_conf(request, clean_environment, monkeypatch):
    """Commands of the test process find the cluster too."""
    if "cluster" in request.fixturenames:
        found = request.getfixturevalue("cluster")
        monkeypatch.setenv("SLURM_CONF", found.conf)
        found.clear()
