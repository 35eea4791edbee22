//! TLS towards clients and towards replicas. What it goes by is exchanged while connections run: those that stand
//! keep what they began with.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use super::strangers::Reason;

/// What HTTP/2 is called in a handshake (RFC 9113, 3.2).
const H2: &[u8] = b"h2";

/// A certificate with those that lead to its authority, and its key, in PEM.
#[derive(Clone, Copy)]
pub struct Identity<'a> {
    /// The certificate comes first.
    pub cert: &'a [u8],
    /// Without a password.
    pub key: &'a [u8],
}

#[derive(Debug, Default)]
pub(crate) struct Tls {
    clients: RwLock<Option<Arc<ServerConfig>>>,
    replicas: RwLock<Option<ToReplicas>>,
}

/// How replicas are dialled.
#[derive(Clone, Debug)]
pub(crate) struct ToReplicas {
    config: Arc<ClientConfig>,
    /// Of every replica's certificate; else each has that of its address.
    name: Option<ServerName<'static>>,
}

impl Tls {
    /// From now on clients are served over TLS alone, and only those whose certificate one of `client_ca` signed, if
    /// that is given.
    pub fn set_clients(
        &self,
        identity: Identity<'_>,
        client_ca: Option<&[u8]>,
    ) -> Result<(), String> {
        let provider = provider();
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(told)?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let roots = Arc::new(authorities(pem)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                builder.with_client_cert_verifier(verifier.build().map_err(told)?)
            }
        };
        let (chain, key) = identity.read()?;
        let mut config = builder.with_single_cert(chain, key).map_err(told)?;
        config.alpn_protocols = vec![H2.to_vec()];
        let mut clients = self.clients.write();
        **clients.as_mut().unwrap_or_else(|error| error.get_mut()) = Some(Arc::new(config));
        Ok(())
    }

    /// From now on replicas are dialled over TLS, and must have a certificate that one of `ca` signed.
    pub fn set_replicas(
        &self,
        ca: &[u8],
        identity: Option<Identity<'_>>,
        name: Option<&str>,
    ) -> Result<(), String> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(told)?
            .with_root_certificates(authorities(ca)?);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let (chain, key) = identity.read()?;
                builder.with_client_auth_cert(chain, key).map_err(told)?
            }
        };
        config.alpn_protocols = vec![H2.to_vec()];
        let name = name.map(server_name).transpose()?;
        let config = Arc::new(config);
        let mut replicas = self.replicas.write();
        **replicas.as_mut().unwrap_or_else(|error| error.get_mut()) =
            Some(ToReplicas { config, name });
        Ok(())
    }

    /// None: clients are served without TLS.
    pub fn clients(&self) -> Option<Arc<ServerConfig>> {
        let clients = self.clients.read().unwrap_or_else(PoisonError::into_inner);
        clients.clone()
    }

    /// None: replicas are dialled without TLS.
    pub fn replicas(&self) -> Option<ToReplicas> {
        let replicas = self.replicas.read().unwrap_or_else(PoisonError::into_inner);
        replicas.clone()
    }
}

impl Identity<'_> {
    fn read(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
        let key = PrivateKeyDer::from_pem_slice(self.key).map_err(told)?;
        Ok((certificates(self.cert)?, key))
    }
}

impl ToReplicas {
    /// The certificate must be of `address`, host:port, or of the name that all have.
    pub async fn connect(
        self,
        address: &str,
        socket: TcpStream,
    ) -> Result<client::TlsStream<TcpStream>, String> {
        let name = match self.name {
            Some(name) => name,
            None => server_name(address.rsplit_once(':').map_or(address, |(host, _)| host))?,
        };
        let connecting = TlsConnector::from(self.config).connect(name, socket);
        connecting.await.map_err(|error| format!("no TLS: {error}"))
    }
}

/// A client's side of the handshake. One that is turned away is to hear of it on the socket that comes back; there is
/// no reason where nothing came, such as of a probe.
pub(crate) async fn greet(
    config: Arc<ServerConfig>,
    socket: TcpStream,
) -> Result<server::TlsStream<TcpStream>, (Option<Reason>, TcpStream)> {
    if !matches!(socket.peek(&mut [0]).await, Ok(1)) {
        return Err((None, socket));
    }
    let greeted = TlsAcceptor::from(config)
        .accept(socket)
        .into_fallible()
        .await
        .map_err(|(error, socket)| (Some(why(&error)), socket))?;
    // Who names no protocol may mean any, and be made to send here what is meant for another server.
    if greeted.get_ref().1.alpn_protocol() == Some(H2) {
        Ok(greeted)
    } else {
        Err((Some(Reason::NoHttp2), greeted.into_inner().0))
    }
}

fn why(error: &io::Error) -> Reason {
    let source = error.get_ref();
    match source.and_then(|source| source.downcast_ref::<rustls::Error>()) {
        None | Some(rustls::Error::AlertReceived(_)) => Reason::Left,
        Some(rustls::Error::NoCertificatesPresented) => Reason::NoCertificate,
        Some(rustls::Error::InvalidCertificate(_)) => Reason::BadCertificate,
        Some(rustls::Error::NoApplicationProtocol) => Reason::NoHttp2,
        Some(rustls::Error::InvalidMessage(_)) => Reason::NotTls,
        Some(_) => Reason::BrokenTls,
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn authorities(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate).map_err(told)?;
    }
    Ok(roots)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err("no certificate in PEM".to_owned()),
        certificates => certificates.map_err(told),
    }
}

/// A host's name or address.
fn server_name(host: &str) -> Result<ServerName<'static>, String> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(ServerName::from(address));
    }
    ServerName::try_from(host.to_owned()).map_err(|_| format!("{host:?} is no name of a server"))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn told(error: impl ToString) -> String {
    error.to_string()
}
