"""A real cluster by its kubeconfig: kubectl for what is there, Helm for releases."""

import json
import os
import shlex
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightkube import AsyncClient, KubeConfig
from lightkube.config.models import Cluster as ClusterAddress
from lightkube.config.models import User

from tests.chart import Object
from tests.ports import free_port

LOAD_IMAGE = "PREFIXLB_LOAD_IMAGE"
"""Names a command that brings an image, whose name is appended, to the cluster's nodes."""

TIMEOUT_S = 300.0


class Cluster:
    """Whatever KUBECONFIG points at."""

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """What it prints. If it fails and `check`, raises AssertionError with its complaint."""
        done = subprocess.run(
            ["kubectl", *arguments], input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        if check and done.returncode:
            raise AssertionError(f"kubectl {shlex.join(arguments)}: {done.stderr or done.stdout}")
        return done.stdout

    def get(self, *arguments: str) -> list[Object]:
        """Objects, by what `kubectl get` takes."""
        listed: Any = json.loads(self.kubectl("get", "-o", "json", *arguments))
        return list(listed.get("items", [listed]))

    def apply(self, *objects: Object) -> None:
        self.kubectl("apply", "-f", "-", stdin=_list(objects))

    def would_take(self, *objects: Object) -> str:
        """What the apiserver objects to, which also looks for fields that there are none of."""
        done = subprocess.run(
            ["kubectl", "create", "--dry-run=server", "--validate=strict", "-f", "-"],
            input=_list(objects),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        warned = [line for line in done.stderr.splitlines() if line]
        return "\n".join(warned) if done.returncode or warned else ""

    def kinds(self) -> set[tuple[str, str]]:
        """Version and kind of all that the apiserver serves."""
        lines = self.kubectl("api-resources", "--no-headers").splitlines()
        return {(line.split()[-3], line.split()[-1]) for line in lines}

    def load_images(self, *names: str) -> None:
        command = os.environ.get(LOAD_IMAGE, "")
        for name in names:
            subprocess.run([*shlex.split(command), name], check=True, timeout=2 * TIMEOUT_S)

    @contextmanager
    def own_namespace(self, level: str = "privileged") -> Iterator[str]:
        """One of a new name, while the block lasts, with pods up to a level of PodSecurity."""
        name = f"prefixlb-test-{uuid.uuid4().hex[:8]}"
        security = "pod-security.kubernetes.io"
        labels = {f"{security}/{what}": level for what in ("enforce", "warn")}
        metadata = {"name": name, "labels": labels}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        try:
            yield name
        finally:
            self.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false")

    def wait_for(
        self, what: str, holds: Callable[[], object], *, timeout_s: float = TIMEOUT_S
    ) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline_s, f"not within {timeout_s:.0f} s: {what}"
            time.sleep(0.5)


class ApiProxy:
    """The apiserver by a `kubectl proxy` of our own, which can be cut and restored."""

    def __init__(self, account: str = "") -> None:
        """`account`: a user to be, instead of whom KUBECONFIG names."""
        self._port = free_port()
        self._who = [f"--as={account}"] if account else []
        self._process: subprocess.Popen[str] | None = None
        self.url = f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> "ApiProxy":
        self.restore()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def restore(self) -> None:
        command = ["kubectl", "proxy", f"--port={self._port}", *self._who]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        assert "Starting to serve" in self._process.stdout.readline()

    def cut(self) -> None:
        """Every connection, and there are no new ones."""
        if self._process:
            with self._process:
                self._process.kill()
            self._process = None

    def client(self) -> AsyncClient:
        config = KubeConfig.from_one(cluster=ClusterAddress(server=self.url), user=User())
        return AsyncClient(config)


def _list(objects: tuple[Object, ...]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
