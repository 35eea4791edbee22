"""The chart installed: it answers, it is updated without losing a request, and leaves nothing."""

import json

import pytest

from tests.kube.release import PREVIOUS, REPLICAS, ROUTERS, Release
from tests.kube.steady_load import steadily_loaded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LOOK_AROUND = """
import errno, importlib.util, json, os
try:
    open("/written", "x")
    refused = None
except OSError as error:
    refused = errno.errorcode[error.errno]
torch = importlib.util.find_spec("torch")
print(json.dumps({"user": os.getuid(), "write": refused, "torch": bool(torch)}))
"""


def test_helm_test_gets_an_answer(release: Release) -> None:
    log = release.test()
    answer = json.loads(log[log.index("{") : log.rindex("}") + 1])
    assert answer["completion_tokens"] > 0


def test_routers_find_every_replica_and_mirror_it(release: Release) -> None:
    assert len(release.pods("replica")) >= 2
    release.settle()


@pytest.mark.parametrize("part", ["router", "replica"])
def test_a_pod_s_user_is_nobody_special_and_may_not_write_to_the_root(
    release: Release, part: str
) -> None:
    pod = release.pods(part)[0]["metadata"]["name"]
    found = json.loads(release.kubectl("exec", pod, "--", "python3", "-c", LOOK_AROUND))
    assert found == {"user": 10001, "write": "EROFS", "torch": part == "replica"}


def test_an_upgrade_without_a_change_makes_no_new_pods(release: Release) -> None:
    before = {p["metadata"]["uid"] for part in ("router", "replica") for p in release.pods(part)}
    release.upgrade(release.values())
    after = {p["metadata"]["uid"] for part in ("router", "replica") for p in release.pods(part)}
    assert after == before


def test_a_policy_changes_without_a_restart(release: Release) -> None:
    before = {pod["metadata"]["uid"] for pod in release.pods("router")}
    release.upgrade(release.values(policy="round_robin"))

    def changed() -> bool:
        logs = [
            release.kubectl("logs", each["metadata"]["name"]) for each in release.pods("router")
        ]
        return all("settings changed policy" in each for each in logs)

    release.cluster.wait_for("routers tell of the new policy", changed, timeout_s=150)
    assert {pod["metadata"]["uid"] for pod in release.pods("router")} == before
    release.rollback()


@pytest.mark.parametrize(
    "sets",
    [(ROUTERS,), (REPLICAS,), (ROUTERS, REPLICAS)],
    ids=["routers", "replicas", "both"],
)
def test_a_rolling_update_loses_no_request(release: Release, sets: tuple[str, ...]) -> None:
    with steadily_loaded(release) as load:
        release.roll(*sets)
    rolled = {pod["metadata"]["name"] for pod in release.pods("replica")}
    assert set(load.lost) == (rolled if REPLICAS in sets else set())
    assert all(load.lost.values())


def test_an_upgrade_from_the_chart_before_and_its_rollback_lose_no_request(
    release: Release,
) -> None:
    release.upgrade(release.values(), PREVIOUS)
    with steadily_loaded(release) as load:
        release.upgrade(release.values())
        load.mark()
        release.rollback()
    release.upgrade(release.values())
    release.settle()


def test_uninstall_leaves_nothing(release: Release) -> None:
    """The last one, as the others need the release."""
    release.uninstall()
    release.cluster.wait_for("nothing is left", lambda: not release.remains(), timeout_s=180)
