"""Why client and server do not agree on TLS, in words: gRPC says only that they do not."""

import socket
import ssl

from proto.credentials import Credentials

TIMEOUT_S = 2.0

ALERT_WAIT_S = 0.5
"""A server says only after the handshake that it does not take the client's certificate."""

EXPIRED, OTHER_NAME, OTHER_ADDRESS = 10, 62, 64
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED, _HOSTNAME_MISMATCH and _IP_ADDRESS_MISMATCH."""


def why_no_tls(address: str, credentials: Credentials) -> str | None:
    """What stands between both; None if nothing of TLS does. The files of `credentials` are good.

    `address`: host:port where somebody listens.
    """
    if credentials.tls_ca is None:
        return _why_not_in_clear(address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(credentials.tls_ca)
    if credentials.tls_cert is not None:
        context.load_cert_chain(credentials.tls_cert, credentials.tls_key)
    try:
        _shake_hands(address, context, credentials.tls_server_name)
    except ssl.SSLCertVerificationError as error:
        return f"{address} is not trusted: {_distrust(error, credentials)}"
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):
            return f"{address} does not speak TLS: leave out --tls-ca"
        if credentials.tls_cert is None:
            return f"{address} wants a certificate of the client: see --tls-cert and --tls-key"
        return f"{address} does not take the certificate in {credentials.tls_cert}: {error.reason}"
    except OSError:
        return f"{address} does not speak TLS: leave out --tls-ca"
    return None


def _why_not_in_clear(address: str) -> str | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        _shake_hands(address, context, "")
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):
            return None
    except OSError:
        return None
    return f"{address} wants TLS: name its authority with --tls-ca"


def _shake_hands(address: str, context: ssl.SSLContext, server_name: str) -> None:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, int(port)), TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname=server_name or host) as wrapped,
    ):
        wrapped.settimeout(ALERT_WAIT_S)
        try:
            wrapped.recv(1)
        except TimeoutError:
            return


def _distrust(error: ssl.SSLCertVerificationError, credentials: Credentials) -> str:
    if error.verify_code == EXPIRED:
        return "its certificate has expired"
    if error.verify_code in (OTHER_NAME, OTHER_ADDRESS):
        return (
            f"its certificate is another name's ({error.verify_message}); "
            "--tls-server-name says which to expect"
        )
    return f"no authority in {credentials.tls_ca} vouches for it ({error.verify_message})"
