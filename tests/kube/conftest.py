"""What the tests on a real cluster share. `make test-kube` runs them; nothing else does, as
KUBECONFIG may point at somebody's.
"""

import os
import uuid
from collections.abc import Iterator

import pytest

from tests.kube.cluster import LOAD_IMAGE, Cluster
from tests.kube.release import REDIS_IMAGE, REPLICA_IMAGE, ROUTER_IMAGE, Release

MEANT = "PREFIXLB_TEST_KUBE"


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    if MEANT not in os.environ:
        pytest.skip("needs a cluster: make test-kube, with KUBECONFIG")
    return Cluster()


@pytest.fixture(scope="session")
def restricted(cluster: Cluster) -> Iterator[str]:
    """A namespace that takes restricted pods alone."""
    name = f"prefixlb-test-{uuid.uuid4().hex[:8]}"
    level = "pod-security.kubernetes.io"
    cluster.namespace(name, {f"{level}/enforce": "restricted", f"{level}/warn": "restricted"})
    yield name
    cluster.delete_namespace(name)


@pytest.fixture(scope="session")
def monitoring(cluster: Cluster) -> Iterator[str]:
    """Another namespace, where Prometheus would be."""
    name = f"prefixlb-test-{uuid.uuid4().hex[:8]}"
    cluster.namespace(name)
    yield name
    cluster.delete_namespace(name)


@pytest.fixture(scope="session")
def release(cluster: Cluster, restricted: str, monitoring: str) -> Iterator[Release]:
    """The chart, installed and ready."""
    if LOAD_IMAGE not in os.environ:
        pytest.skip(f"needs a node, and ${LOAD_IMAGE}: a command that brings an image there")
    cluster.load_images(ROUTER_IMAGE, REPLICA_IMAGE, REDIS_IMAGE)
    release = Release(cluster, namespace=restricted, monitoring=monitoring)
    release.install()
    yield release
    release.uninstall()
