"""Whether a real apiserver takes all that the chart renders, field by field."""

import os

import pytest

from tests.chart import VALUE_SETS, of_kind, render
from tests.kube.cluster import Cluster
from tests.test_chart import CUSTOM

OPERATORS = "PREFIXLB_TEST_OPERATORS"
"""Set where all kinds of operators are defined that the chart has objects of."""


@pytest.mark.parametrize("name", VALUE_SETS)
def test_a_strict_dry_run_takes_every_object(cluster: Cluster, restricted: str, name: str) -> None:
    served = cluster.kinds()
    objects = [
        each
        for each in render(VALUE_SETS[name])
        if (each["apiVersion"], each["kind"]) in served or each["apiVersion"] not in CUSTOM
    ]
    assert {"Deployment", "StatefulSet", "Service"} <= {each["kind"] for each in objects}
    for each in objects:
        each["metadata"]["namespace"] = restricted
    told = cluster.would_take(*objects).splitlines()
    if name == "one-gpu-node":  # the one with a hostPath, and nothing else that is too much
        (warning,) = told
        assert warning.endswith('(volume "models" uses restricted volume type "hostPath")')
    else:
        # A cluster without IPv6 says so of every Service, and takes all else.
        assert [each for each in told if "not configured on this cluster" not in each] == []


@pytest.mark.parametrize(
    ("version", "kind"), [(v, kind) for v, kinds in CUSTOM.items() for kind in sorted(kinds)]
)
def test_custom_objects_are_taken_where_their_definitions_are(
    cluster: Cluster, restricted: str, version: str, kind: str
) -> None:
    if (version, kind) not in cluster.kinds():
        assert OPERATORS not in os.environ, f"{version} {kind} is not served"
        pytest.skip(f"this cluster does not serve {version} {kind}")
    found = 0
    for values in VALUE_SETS.values():
        for each in of_kind(render(values), kind).values():
            each["metadata"]["namespace"] = restricted
            assert cluster.would_take(each) == ""
            found += 1
    assert found


def test_a_field_that_there_is_none_of_is_noticed(cluster: Cluster, restricted: str) -> None:
    """Or the tests above would say nothing."""
    account = next(iter(of_kind(render({}), "ServiceAccount").values()))
    account["metadata"]["namespace"] = restricted
    assert "unknown field" in cluster.would_take(account | {"automount": True})


def test_a_pod_with_a_writable_way_to_root_is_refused(cluster: Cluster, restricted: str) -> None:
    pod = next(iter(of_kind(render({}), "Pod").values()))
    pod["metadata"]["namespace"] = restricted
    del pod["spec"]["containers"][0]["securityContext"]["capabilities"]
    assert "violates PodSecurity" in cluster.would_take(pod)
