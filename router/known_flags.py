"""Flags by the names that users of other routers know: of sglang-router, smg and vllm-router.

Those that mean the same under the same name are settings as they are (--port, --policy,
--cache-threshold, --queue-size ...). deploy/README.md says what is there instead of the others.
"""

from collections.abc import Sequence

OURS = {
    "--max-concurrent-requests": "--max-inflight",
    "--queue-timeout-secs": "--queue-timeout-s",
    "--prometheus-host": "--metrics-host",
    "--prometheus-port": "--metrics-port",
    "--retry-max-retries": "--retries",
    "--cb-failure-threshold": "--breaker-failures",
    "--cb-window-duration-secs": "--breaker-window-s",
    "--cb-timeout-duration-secs": "--breaker-open-s",
}
"""Each means what ours does, in the same unit."""


def translated(arguments: Sequence[str]) -> list[str]:
    """The same command line with our names. What follows a flag, or stands after its =, stays."""
    parts = (argument.partition("=") for argument in arguments)
    return [OURS.get(flag, flag) + equals + value for flag, equals, value in parts]
