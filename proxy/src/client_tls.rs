//! TLS towards upstreams: whom to trust, read again when it changes, and the names that a certificate must have.
//!
//! The certificate authorities are those of every file in some folders, or of one file. Where there is none, nothing is
//! trusted, and no connection comes about.

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

/// The files are looked at this often, as those of the serving certificate.
const RELOAD_PERIOD: Duration = Duration::from_secs(60);

/// Certificate authorities that are trusted.
#[derive(Debug)]
pub struct TrustStore {
    places: Vec<PathBuf>,
    provider: Arc<CryptoProvider>,
    /// What was given besides, by a path that says where it is from.
    bundles: Mutex<BTreeMap<PathBuf, Vec<u8>>>,
    current: ArcSwap<Trusted>,
    failures: AtomicU64,
}

#[derive(Debug)]
struct Trusted {
    contents: BTreeMap<PathBuf, Vec<u8>>,
    /// `None`: there is no authority.
    verifier: Option<Arc<WebPkiServerVerifier>>,
}

impl TrustStore {
    /// Returns the authorities in these files, and in the files `*.crt` and `*.pem` of these folders. What is not there may
    /// come later.
    ///
    /// # Errors
    /// A file that cannot be used.
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

    /// Changed files that could not be used, since the start.
    pub fn reload_failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Looks for new files, for ever.
    pub async fn run_reload(self: Arc<Self>) {
        let begin = tokio::time::Instant::now() + RELOAD_PERIOD;
        let mut tick = tokio::time::interval_at(begin, RELOAD_PERIOD);
        loop {
            tick.tick().await;
            let store = Arc::clone(&self);
            // Files may be slow; if the thread is gone, so is the process.
            let _reloaded = tokio::task::spawn_blocking(move || store.reload()).await;
        }
    }

    /// Trusts these as well, each by a path that says where it is from, and no more those that were given before. One that cannot
    /// be used is left as it was.
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
                tracing::info!("the trusted authorities have changed and were reloaded");
            }
            Err(error) => self.note_failure(&error),
        }
    }

    fn note_failure(&self, error: &TlsError) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        tracing::error!(%error, "the new authorities cannot be used; those before them stay");
    }
}

/// What is in the places, by file.
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
) -> Result<Trusted, TlsError> {
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
            return Err(wrong("there is no certificate in it".to_owned()));
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
    Ok(Trusted { contents, verifier })
}

/// Shakes hands with upstreams whose certificates have all of some names.
#[derive(Debug, Clone)]
pub struct ClientTls {
    name: ServerName<'static>,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

impl ClientTls {
    /// TLS 1.3 that asks for `name`, and takes a certificate that a trusted authority has given to `name` and to `also`.
    ///
    /// # Errors
    /// One of the two is no name of DNS.
    ///
    /// # Panics
    /// If the cryptography has no TLS 1.3.
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

    /// Shakes hands, for HTTP/2 or HTTP/1.
    ///
    /// # Errors
    /// The upstream's certificate is not trusted, has other names, or it speaks no TLS 1.3.
    pub async fn connect(&self, socket: Socket, is_http2: bool) -> io::Result<TlsStream<Socket>> {
        let config = if is_http2 { &self.http2 } else { &self.http1 };
        let connector = TlsConnector::from(Arc::clone(config));
        connector.connect(self.name.clone(), socket).await
    }
}

/// Asks for a second name besides that of the connection.
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

    /// Whether hands are shaken with a server that has this certificate.
    async fn shakes_hands(tls: &ClientTls, own: &CertifiedKey<KeyPair>) -> bool {
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
    async fn authorities_are_read_again_and_a_bad_one_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.crt");
        let missing = folder.path().join("bundles");
        let store = TrustStore::read(vec![file.clone(), missing]).unwrap();
        let tls = ClientTls::new(Arc::clone(&store), NAME, "kn-user-a".to_owned()).unwrap();
        let (old, new) = (certificate(), certificate());
        assert!(!shakes_hands(&tls, &old).await, "nothing is trusted yet");
        std::fs::write(&file, old.cert.pem()).unwrap();
        store.reload();
        assert!(shakes_hands(&tls, &old).await);
        assert!(!shakes_hands(&tls, &new).await);
        std::fs::write(&file, "-----BEGIN CERTIFICATE-----").unwrap();
        store.reload();
        assert!(shakes_hands(&tls, &old).await);
        assert_eq!(store.reload_failures(), 1);
        std::fs::write(&file, new.cert.pem() + &old.cert.pem()).unwrap();
        store.reload();
        assert!(shakes_hands(&tls, &old).await && shakes_hands(&tls, &new).await);
    }

    #[test]
    fn a_name_that_is_none_of_dns_is_refused() {
        let store = TrustStore::read(Vec::new()).unwrap();
        assert!(ClientTls::new(store, NAME, "kn-user-a b".to_owned()).is_err());
    }
}
