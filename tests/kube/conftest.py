"""What the tests on a real cluster share. `make test-kube` runs them; nothing else does, as
KUBECONFIG may point at somebody's.
"""

import os
import time
from collections.abc import Iterator

import pytest

from tests.kube.cluster import LOAD_IMAGE, Cluster
from tests.kube.release import REDIS_IMAGE, REPLICA_IMAGE, ROUTER_IMAGE, Release
from tests.kube.steady_load import loaded

MEANT = "PREFIXLB_TEST_KUBE"


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    if MEANT not in os.environ:
        pytest.skip("needs a cluster: make test-kube, with KUBECONFIG")
    return Cluster()


@pytest.fixture(scope="session")
def restricted(cluster: Cluster) -> Iterator[str]:
    """A namespace that takes restricted pods alone."""
    with cluster.own_namespace("restricted") as name:
        yield name


@pytest.fixture(scope="session")
def monitoring(cluster: Cluster) -> Iterator[str]:
    """Another one, where Prometheus would be."""
    with cluster.own_namespace("restricted") as name:
        yield name


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """One for a test alone."""
    with cluster.own_namespace() as name:
        yield name


@pytest.fixture(scope="session")
def images(cluster: Cluster) -> None:
    """What pods run is on the nodes."""
    if LOAD_IMAGE not in os.environ:
        pytest.skip(f"needs a node, and ${LOAD_IMAGE}: a command that brings an image there")
    cluster.load_images(ROUTER_IMAGE, REPLICA_IMAGE, REDIS_IMAGE)


@pytest.fixture(scope="session")
def release(cluster: Cluster, images: None, restricted: str, monitoring: str) -> Iterator[Release]:
    """The chart, installed and ready."""
    release = Release(cluster, namespace=restricted, monitoring=monitoring)
    with loaded(release) as load:
        began_s = time.time()
        release.install()
        ready_s = time.time() - began_s
        first_s = load.answers(1).first_s
    assert first_s is not None
    print(f"\nhelm install: answers after {first_s - began_s:.0f} s, ready after {ready_s:.0f} s")
    yield release
    release.uninstall()
