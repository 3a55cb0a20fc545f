//! TLS towards upstreams: trusted certificate authorities, which are reloaded when they change, and verification of the
//! names in an upstream's certificate.
//!
//! The authorities are read from files, or from all certificate files of directories. Without any authority no upstream
//! is trusted, and every handshake fails.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::socket::Socket;
use crate::tls::TlsError;

/// Interval at which the files are checked for changes, as for the serving certificate.
const RELOAD_PERIOD: Duration = Duration::from_secs(60);

/// The trusted certificate authorities.
#[derive(Debug)]
pub struct TrustStore {
    places: Vec<PathBuf>,
    provider: Arc<CryptoProvider>,
    /// PEM bundles that were set in addition to the files, by a path that names their origin.
    bundles: Mutex<BTreeMap<PathBuf, Vec<u8>>>,
    current: ArcSwap<TrustedRoots>,
    failures: AtomicU64,
}

#[derive(Debug)]
struct TrustedRoots {
    contents: BTreeMap<PathBuf, Vec<u8>>,
    /// `None` without any authority.
    verifier: Option<Arc<WebPkiServerVerifier>>,
}

impl TrustStore {
    /// Reads the authorities in these files, and in the files `*.crt` and `*.pem` of these directories. Missing paths are
    /// skipped; they may appear later.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or has no valid certificate.
    pub fn read(places: Vec<PathBuf>) -> Result<Arc<Self>, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let contents = read(&places)?;
        Ok(Arc::new(Self {
            current: ArcSwap::from_pointee(trust(contents, &provider)?),
            places,
            bundles: Mutex::default(),
            provider,
            failures: AtomicU64::new(0),
        }))
    }

    /// Returns the number of failed reloads since the start.
    pub fn reload_failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Reloads changed files once per minute. Never returns.
    pub async fn run_reload(self: Arc<Self>) {
        let begin = tokio::time::Instant::now() + RELOAD_PERIOD;
        let mut tick = tokio::time::interval_at(begin, RELOAD_PERIOD);
        loop {
            tick.tick().await;
            let store = Arc::clone(&self);
            // Reading files may block. The join fails only if the process is shutting down.
            let _reloaded = tokio::task::spawn_blocking(move || store.reload()).await;
        }
    }

    /// Replaces the bundles that are trusted in addition to the files; each is keyed by a path that names its origin. An
    /// unusable bundle is counted as a failure, and its previous version stays trusted.
    pub fn set_bundles(&self, bundles: BTreeMap<PathBuf, Vec<u8>>) {
        let mut current = self.bundles.lock().unwrap_or_else(PoisonError::into_inner);
        let mut usable = BTreeMap::new();
        for (path, text) in bundles {
            let alone = BTreeMap::from([(path.clone(), text.clone())]);
            match trust(alone, &self.provider) {
                Ok(_) => drop(usable.insert(path, text)),
                Err(error) => {
                    self.note_failure(&error);
                    if let Some(before) = current.remove(&path) {
                        usable.insert(path, before);
                    }
                }
            }
        }
        *current = usable;
        drop(current);
        self.reload();
    }

    fn reload(&self) {
        let given = self.bundles.lock().unwrap_or_else(PoisonError::into_inner);
        let given = given.clone();
        let contents = read(&self.places).map(|mut contents| {
            contents.extend(given);
            contents
        });
        let fresh = match contents {
            Ok(contents) if contents == self.current.load().contents => return,
            Ok(contents) => trust(contents, &self.provider),
            Err(error) => Err(error),
        };
        match fresh {
            Ok(trusted) => {
                self.current.store(Arc::new(trusted));
                tracing::info!("reloaded the trusted certificate authorities");
            }
            Err(error) => self.note_failure(&error),
        }
    }

    fn note_failure(&self, error: &TlsError) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        tracing::error!(%error, "cannot load the new certificate authorities; the previous ones stay trusted");
    }
}

/// Reads all certificate files, and returns their contents by path.
fn read(places: &[PathBuf]) -> Result<BTreeMap<PathBuf, Vec<u8>>, TlsError> {
    let mut contents = BTreeMap::new();
    for place in places {
        let wrong = |path: &Path, error: &io::Error| TlsError::File {
            path: path.to_owned(),
            why: error.to_string(),
        };
        let files = match std::fs::read_dir(place) {
            Ok(entries) => {
                let mut files = Vec::new();
                for entry in entries {
                    let path = entry.map_err(|error| wrong(place, &error))?.path();
                    let extension = path.extension().and_then(|extension| extension.to_str());
                    if matches!(extension, Some("crt" | "pem")) {
                        files.push(path);
                    }
                }
                files
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => vec![place.clone()],
            Err(error) => return Err(wrong(place, &error)),
        };
        for file in files {
            let text = std::fs::read(&file).map_err(|error| wrong(&file, &error))?;
            contents.insert(file, text);
        }
    }
    Ok(contents)
}

fn trust(
    contents: BTreeMap<PathBuf, Vec<u8>>,
    provider: &Arc<CryptoProvider>,
) -> Result<TrustedRoots, TlsError> {
    let mut roots = RootCertStore::empty();
    for (path, text) in &contents {
        let wrong = |why: String| TlsError::File {
            path: path.clone(),
            why,
        };
        let mut count = 0;
        for certificate in CertificateDer::pem_slice_iter(text) {
            let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
            roots
                .add(certificate)
                .map_err(|error| wrong(error.to_string()))?;
            count += 1;
        }
        if count == 0 {
            return Err(wrong("contains no certificate".to_owned()));
        }
    }
    let verifier = if roots.is_empty() {
        None
    } else {
        let builder =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
        let verifier = builder.build().map_err(|error| TlsError::File {
            path: contents.keys().next().cloned().unwrap_or_default(),
            why: error.to_string(),
        })?;
        Some(verifier)
    };
    Ok(TrustedRoots { contents, verifier })
}

/// Name in the certificates of all queue-proxies. Fixed by Knative.
const DATA_PLANE: &str = "data-plane.knative.dev";

/// TLS client for upstreams with certificates that are valid for two names.
#[derive(Debug, Clone)]
pub struct ClientTls {
    name: ServerName<'static>,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

impl ClientTls {
    /// Creates a TLS 1.3 client that requests `name`, and accepts a certificate that a trusted authority has issued for
    /// both `name` and `also`.
    ///
    /// # Errors
    /// Returns an error if one of the two is not a DNS name.
    ///
    /// # Panics
    /// Panics if the crypto provider does not support TLS 1.3.
    pub fn new(
        trust: Arc<TrustStore>,
        name: &'static str,
        also: String,
    ) -> Result<Self, InvalidDnsNameError> {
        let name = ServerName::try_from(name)?;
        let provider = Arc::clone(&trust.provider);
        let verifier = Arc::new(BothNames {
            trust,
            also: ServerName::try_from(also)?,
        });
        let config = |protocol: &[u8]| {
            let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .expect("aws-lc has TLS 1.3")
                .dangerous()
                .with_custom_certificate_verifier(
                    Arc::clone(&verifier) as Arc<dyn ServerCertVerifier>
                )
                .with_no_client_auth();
            config.alpn_protocols = vec![protocol.to_vec()];
            Arc::new(config)
        };
        Ok(Self {
            name,
            http1: config(b"http/1.1"),
            http2: config(b"h2"),
        })
    }

    /// Creates a client for the queue-proxies of a namespace, as [`ClientTls::new`] does.
    ///
    /// # Errors
    /// Returns an error if the namespace cannot be part of a DNS name.
    pub fn for_pods(trust: Arc<TrustStore>, namespace: &str) -> Result<Self, InvalidDnsNameError> {
        Self::new(trust, DATA_PLANE, format!("kn-user-{namespace}"))
    }

    /// Performs the handshake, with ALPN for HTTP/2 or HTTP/1.
    ///
    /// # Errors
    /// Returns an error if the upstream's certificate is not trusted or lacks one of the names, or if the upstream does
    /// not support TLS 1.3.
    pub async fn connect(&self, socket: Socket, is_http2: bool) -> io::Result<TlsStream<Socket>> {
        let config = if is_http2 { &self.http2 } else { &self.http1 };
        let connector = TlsConnector::from(Arc::clone(config));
        connector.connect(self.name.clone(), socket).await
    }
}

/// Certificate verifier that requires a second name besides that of the connection.
#[derive(Debug)]
struct BothNames {
    trust: Arc<TrustStore>,
    also: ServerName<'static>,
}

impl BothNames {
    fn verifier(&self) -> Result<Arc<WebPkiServerVerifier>, rustls::Error> {
        let current = self.trust.current.load();
        let verifier = current.verifier.clone();
        verifier.ok_or(rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer,
        ))
    }
}

impl ServerCertVerifier for BothNames {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verifier = self.verifier()?;
        verifier.verify_server_cert(certificate, intermediates, name, ocsp, now)?;
        verifier.verify_server_cert(certificate, intermediates, &self.also, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier()?
            .verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier()?
            .verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.trust.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
    use rustls::ServerConfig;
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::TlsAcceptor;

    use super::*;

    const NAME: &str = "data-plane.knative.dev";

    fn certificate() -> CertifiedKey<KeyPair> {
        let names = vec![NAME.to_owned(), "kn-user-a".to_owned()];
        generate_simple_self_signed(names).unwrap()
    }

    /// Returns whether the handshake succeeds with a server that has this certificate.
    async fn handshake_succeeds(tls: &ClientTls, own: &CertifiedKey<KeyPair>) -> bool {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let key = own.signing_key.serialize_der().try_into().unwrap();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = async {
            let (socket, _) = listener.accept().await.unwrap();
            TlsAcceptor::from(Arc::new(config)).accept(socket).await
        };
        let client = async {
            let socket = TcpStream::connect(address).await.unwrap();
            tls.connect(Socket::of(socket).0, false).await.is_ok()
        };
        tokio::join!(client, server).0
    }

    #[tokio::test]
    async fn authorities_are_reloaded_and_an_invalid_file_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.crt");
        let missing = folder.path().join("bundles");
        let store = TrustStore::read(vec![file.clone(), missing]).unwrap();
        let tls = ClientTls::new(Arc::clone(&store), NAME, "kn-user-a".to_owned()).unwrap();
        let (old, new) = (certificate(), certificate());
        assert!(
            !handshake_succeeds(&tls, &old).await,
            "nothing is trusted yet"
        );
        std::fs::write(&file, old.cert.pem()).unwrap();
        store.reload();
        assert!(handshake_succeeds(&tls, &old).await);
        assert!(!handshake_succeeds(&tls, &new).await);
        std::fs::write(&file, "-----BEGIN CERTIFICATE-----").unwrap();
        store.reload();
        assert!(handshake_succeeds(&tls, &old).await);
        assert_eq!(store.reload_failures(), 1);
        std::fs::write(&file, new.cert.pem() + &old.cert.pem()).unwrap();
        store.reload();
        assert!(handshake_succeeds(&tls, &old).await && handshake_succeeds(&tls, &new).await);
    }

    #[test]
    fn refuses_a_name_that_is_not_a_dns_name() {
        let store = TrustStore::read(Vec::new()).unwrap();
        assert!(ClientTls::new(store, NAME, "kn-user-a b".to_owned()).is_err());
    }
}
