"""Who may connect, and how the router shows itself: certificates and tokens, and their changes."""

import logging
from collections.abc import Callable
from pathlib import Path

from proto.errors import InvalidFile
from proto.exposure import is_loopback
from proto.tls_files import Tls, TlsFiles
from proto.token_file import parse_tokens
from proto.watched_files import Contents, WatchedFiles
from radix_rs import Plane
from router.metrics import Metrics
from router.replica_channel import Dialer
from router.settings import RouterSettings
from router.ui.gate import Gate

log = logging.getLogger(__name__)

OTHERS_MAY_READ = 0o004


class Access:
    """Brings what the files hold into the data plane, and to the dialer of Python's connections."""

    def __init__(
        self,
        settings: RouterSettings,
        *,
        plane: Plane,
        dialer: Dialer,
        metrics: Metrics,
        gate: Gate | None,
    ) -> None:
        """All files are in use afterwards. Raises InvalidFile."""
        self._plane = plane
        self._dialer = dialer
        self._metrics = metrics
        self._server_name = settings.replica_tls_server_name or None
        self.watched: list[WatchedFiles] = []
        """To be followed."""
        self._watch_tls("tls", settings.client_tls_files, self._use_towards_clients)
        self._watch_tls("replica-tls", settings.replica_tls_files, self._use_towards_replicas)
        self._watch_tokens("auth-token", settings.auth_token_file, plane.set_caller_tokens)
        self._watch_tokens("admin-token", settings.admin_token_file, plane.set_admin_tokens)
        if gate is not None:
            self._watch_tokens("ui-token", settings.ui_token_file, gate.use_tokens)
        _warn_of_exposure(settings)

    def _watch_tls(self, name: str, files: TlsFiles, use: Callable[[Tls], None]) -> None:
        def take(contents: Contents) -> None:
            tls = files.parse(contents)
            try:
                use(tls)
            except ValueError as error:
                shown = ", ".join(map(str, files.paths))
                raise InvalidFile(f"TLS cannot use {shown}: {error}") from error
            if tls.expires_s is not None:
                self._metrics.certificate_expiry.labels(name).set(tls.expires_s)

        if files.paths:
            self._watch(name, files.paths, take)

    def _watch_tokens(
        self, name: str, path: Path | None, use: Callable[[list[bytes]], None]
    ) -> None:
        if path is None:
            return
        self._watch(name, (path,), lambda contents: use(parse_tokens(path, contents[0])))
        if path.stat().st_mode & OTHERS_MAY_READ:
            log.warning("every user of this machine may read the tokens file=%s", path)

    def _watch(self, name: str, paths: tuple[Path, ...], use: Callable[[Contents], None]) -> None:
        refused = self._metrics.refused_files.labels(name)
        self.watched.append(WatchedFiles(name, paths, use, refused=refused.inc))

    def _use_towards_clients(self, tls: Tls) -> None:
        if tls.identity:
            cert, key = tls.identity
            self._plane.set_client_tls(cert=cert, key=key, client_ca=tls.ca)

    def _use_towards_replicas(self, tls: Tls) -> None:
        if tls.ca:
            name = self._server_name
            self._plane.set_replica_tls(ca=tls.ca, identity=tls.identity, server_name=name)
            self._dialer.use(tls)


def _warn_of_exposure(settings: RouterSettings) -> None:
    """A router is reached by itself alone unless told otherwise; told so, it is to be guarded."""
    if settings.ui_token_file and not is_loopback(settings.metrics_host):
        log.warning(
            "tokens of the status page cross the network in clear, unless a tunnel or a proxy that "
            "speaks TLS leads there host=%s",
            settings.metrics_host,
        )
    if is_loopback(settings.host):
        return
    knows_callers = settings.auth_token_file or settings.tls_client_ca
    if not knows_callers:
        log.warning(
            "whoever reaches this address may use the router: --auth-token-file or "
            "--tls-client-ca would change that host=%s",
            settings.host,
        )
    if not settings.tls_cert:
        told = "prompts, answers and tokens" if settings.auth_token_file else "prompts and answers"
        log.warning(
            "%s cross the network in clear: --tls-cert would change that host=%s",
            *(told, settings.host),
        )
