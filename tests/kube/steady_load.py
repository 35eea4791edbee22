"""Steady load on a release by a pod, what became of it, and what a fault costs."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.chart import Object
from tests.kube.release import Release, restricted_pod

SCRIPT = Path(__file__).parent / "load.py"
CLIENTS = int(os.environ.get("PREFIXLB_TEST_CLIENTS", "4"))
BLOCK_TOKENS = 16

WINDOW = 20
"""Answers over which a share of cached tokens is told."""


@dataclass
class Told:
    """What the load says of itself."""

    answered: int = 0
    first_s: float | None = None
    """When the first answer was complete, since the epoch."""
    failed: dict[str, int] = field(default_factory=dict)
    broken: dict[str, int] = field(default_factory=dict)
    """Answers that had begun when their replica was gone."""
    replicas: dict[str, int] = field(default_factory=dict)
    cached: int = 0
    prompt: int = 0

    def hit_rate_since(self, before: "Told") -> float:
        """Of the prompt tokens answered since then, which share was cached."""
        return (self.cached - before.cached) / max(1, self.prompt - before.prompt)


class Load:
    """A pod of the router's image that asks the routers all the time."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.lost: Counter[str] = Counter()
        """Tokens that were cached by each replica whose tree is gone; known at the end."""
        self._marked: dict[tuple[str, str], int] = {}

    def told(self) -> Told:
        lines = self.release.kubectl("logs", "load", "--tail=1").splitlines()
        return Told(**json.loads(lines[-1])) if lines else Told()

    def mark(self) -> None:
        """Before trees go: note what they hold now, of which `lost` will tell."""
        self._marked |= _trees(self.release)

    def count_lost(self) -> None:
        """All that was marked of trees that are no more."""
        now = _trees(self.release)
        for (replica, epoch), blocks in self._marked.items():
            if (replica, epoch) not in now:
                self.lost[replica] += blocks * BLOCK_TOKENS

    def answers(self, more: int) -> Told:
        """Wait for so many more answers."""
        goal = self.told().answered + more
        self.release.cluster.wait_for(
            f"{more} more answers", lambda: self.told().answered >= goal, timeout_s=180
        )
        return self.told()

    def uses(self, *replicas: str) -> None:
        """Wait until each of these answers again."""
        used = self.told().replicas

        def all_answer() -> bool:
            now = self.told().replicas
            return all(now.get(each, 0) > used.get(each, 0) for each in replicas)

        self.release.cluster.wait_for(f"{replicas} answer", all_answer, timeout_s=180)


@contextmanager
def loaded(release: Release, *, tls_secret: str = "") -> Iterator[Load]:
    """A pod that begins to ask, routers or not. `tls_secret`: what it knows of TLS."""
    files = "/etc/prefixlb/tls"
    environment = {"CLIENTS": str(CLIENTS), "PREFIXLB_ROUTER": release.router}
    volumes: list[Object] = [{"name": "load", "configMap": {"name": "load"}}]
    mounts = [{"name": "load", "mountPath": "/load"}]
    if tls_secret:
        environment["TLS_FILES"] = files
        volumes.append({"name": "tls", "secret": {"secretName": tls_secret}})
        mounts.append({"name": "tls", "mountPath": files})
    release.cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "load", "namespace": release.namespace},
            "data": {"load.py": SCRIPT.read_text()},
        },
        restricted_pod(
            "load",
            release.namespace,
            labels={"app": "load"},
            volumes=volumes,
            command=["python", "/load/load.py"],
            env=[{"name": name, "value": value} for name, value in environment.items()],
            volumeMounts=mounts,
        ),
    )
    try:
        release.kubectl("wait", "--for=condition=Ready", "pod/load", "--timeout=60s")
        yield Load(release)
    finally:
        release.kubectl("delete", "pod/load", "configmap/load", "--wait=true")


@contextmanager
def steadily_loaded(
    release: Release, *, tls_secret: str = "", may_break: int = 0
) -> Iterator[Load]:
    """Load in the block, of which no request fails; so many answers that had begun may break off.

    Every replica has something cached and is marked when the block begins. Afterwards every mirror
    equals its tree, and what the caches lost is counted and printed.
    """
    with loaded(release, tls_secret=tls_secret) as load:
        load.uses(*(pod["metadata"]["name"] for pod in release.pods("replica")))
        warm = load.answers(WINDOW)
        before = load.answers(WINDOW)
        load.mark()
        yield load
        during = load.told()
        after = load.answers(WINDOW)
        print(
            f"\n{after.answered - before.answered} answered, failed: {after.failed}, broken off: "
            f"{after.broken}; of prompt tokens cached before {before.hit_rate_since(warm):.1%}, "
            f"meanwhile {during.hit_rate_since(before):.1%}, "
            f"then {after.hit_rate_since(during):.1%}"
        )
        assert not after.failed, after.failed
        assert sum(after.broken.values()) <= may_break, after.broken
    release.settle()
    load.count_lost()
    print(f"tokens lost with their trees: {dict(load.lost)}")


def _trees(release: Release) -> dict[tuple[str, str], int]:
    """Blocks of each replica's tree, by its name and epoch, as far as a router can tell."""
    return {
        (each["replica_id"], each["epoch"]): each["tree_blocks"]
        for told in release.audits()
        for each in told
        if each["outcome"] != "undecided"
    }
