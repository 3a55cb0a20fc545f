//! Certificates of a test, and a client that trusts them.

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Server name by which activators verify a queue-proxy.
pub const NAME: &str = "data-plane.knative.dev";

/// A self-signed certificate with its key.
pub struct Certificate {
    made: CertifiedKey<KeyPair>,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificate")
    }
}

impl Certificate {
    /// Creates a certificate with the names of a queue-proxy.
    ///
    /// # Panics
    /// If none can be created.
    #[must_use]
    pub fn new() -> Self {
        Self::of(&[NAME, "kn-user-default"])
    }

    /// Creates a certificate with these names.
    ///
    /// # Panics
    /// If none can be created.
    #[must_use]
    pub fn of(names: &[&str]) -> Self {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        Self {
            made: generate_simple_self_signed(names).expect("a certificate"),
        }
    }

    /// Returns the certificate as PEM, for clients that trust it.
    #[must_use]
    pub fn pem(&self) -> String {
        self.made.cert.pem()
    }

    /// Writes `tls.crt` and `tls.key`, each atomically, as the kubelet does.
    ///
    /// # Panics
    /// If the folder cannot be written.
    pub fn write(&self, folder: &Path) {
        for (name, text) in [
            ("tls.crt", self.pem()),
            ("tls.key", self.made.signing_key.serialize_pem()),
        ] {
            let new = folder.join(format!("{name}.new"));
            fs::write(&new, text).expect("the folder can be written");
            fs::rename(&new, folder.join(name)).expect("the folder can be written");
        }
    }

    /// Performs a handshake as a client that trusts only this certificate and offers these application protocols.
    ///
    /// # Errors
    /// The server has another certificate, or supports none of the versions.
    ///
    /// # Panics
    /// If the connection is refused.
    pub async fn connect(
        &self,
        address: SocketAddr,
        versions: &[&'static SupportedProtocolVersion],
        protocols: &[&[u8]],
    ) -> io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.made.cert.der().clone()).expect("a root");
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let socket = TcpStream::connect(address)
            .await
            .expect("a listening server");
        let name = ServerName::try_from(NAME).expect("a name");
        TlsConnector::from(Arc::new(config))
            .connect(name, socket)
            .await
    }

    /// Returns an acceptor of connections for a server with this certificate.
    ///
    /// # Panics
    /// If the key is unusable.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let key = self
            .made
            .signing_key
            .serialize_der()
            .try_into()
            .expect("a key");
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![self.made.cert.der().clone()], key)
            .expect("a pair");
        TlsAcceptor::from(Arc::new(config))
    }
}

impl Default for Certificate {
    fn default() -> Self {
        Self::new()
    }
}
