//! TLS on the serving port: certificates, which are reloaded when they change, and the settings for protocol versions,
//! cipher suites and key exchange.
//!
//! The kubelet replaces mounted secrets by switching a symbolic link, so the files' contents are compared once
//! a minute. An unusable pair is logged and counted, and the previous one stays in use.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, SupportedKxGroup, aws_lc_rs, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, DigitallySignedStruct, HandshakeKind, ProtocolVersion, ServerConfig,
    ServerConnection, SignatureScheme, SupportedCipherSuite, SupportedProtocolVersion,
};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::socket::Socket;

/// Directory in which Knative mounts the serving certificate.
pub const CERTIFICATES_DEFAULT: &str = "/var/lib/knative/certs";
/// File names of certificate and key.
const FILES: [&str; 2] = ["tls.crt", "tls.key"];
/// Interval at which the files are checked for changes. Fixed by Knative.
const RELOAD_PERIOD: Duration = Duration::from_secs(60);

/// Largest number of encrypted bytes buffered for a client that does not read.
const SEND_BYTES_MAX: usize = 32 * 1024;

/// TLS settings of the environment, as unparsed values: they only matter if there is a certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Value of `QUEUE_PROXY_TLS_MIN_VERSION`: `1.2`, `1.3`, or empty for 1.3.
    pub min_version: String,
    /// Value of `QUEUE_PROXY_TLS_MAX_VERSION`: `1.2`, `1.3`, or empty for 1.3.
    pub max_version: String,
    /// Value of `QUEUE_PROXY_TLS_CIPHER_SUITES`: IANA's names separated by commas, or empty for the default.
    pub cipher_suites: String,
    /// Value of `QUEUE_PROXY_TLS_CURVE_PREFERENCES`: Go's names separated by commas, or empty for the default.
    pub curve_preferences: String,
}

/// Negotiated parameters of a TLS connection, with the numbers of the protocol.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Negotiated {
    /// Protocol version: 0x0303 for TLS 1.2, 0x0304 for TLS 1.3.
    pub version: u16,
    /// Whether an earlier session was resumed.
    pub resumed: bool,
    /// IANA's number of the cipher suite.
    pub cipher_suite: u16,
    /// IANA's number of the key exchange group; 0 without a key exchange.
    pub curve: u16,
    /// Protocol negotiated by ALPN; empty if the client offered none.
    pub protocol: String,
    /// Server name requested by the client; empty if it sent none.
    pub server_name: String,
    /// Whether the client had to repeat its hello.
    pub hello_retry: bool,
}

impl Negotiated {
    /// Returns the parameters of a connection whose handshake is complete.
    pub fn of(connection: &ServerConnection) -> Self {
        let kind = connection.handshake_kind();
        let suite = connection.negotiated_cipher_suite();
        let group = connection.negotiated_key_exchange_group();
        let protocol = connection.alpn_protocol().unwrap_or_default();
        Self {
            version: connection.protocol_version().map_or(0, u16::from),
            resumed: kind == Some(HandshakeKind::Resumed),
            cipher_suite: suite.map_or(0, |suite| u16::from(suite.suite())),
            curve: group.map_or(0, |group| u16::from(group.name())),
            protocol: String::from_utf8_lossy(protocol).into_owned(),
            server_name: connection.server_name().unwrap_or_default().to_owned(),
            hello_retry: kind == Some(HandshakeKind::FullWithHelloRetryRequest),
        }
    }
}

/// An unusable TLS setting or file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Environment variable with an invalid value.
    #[error("{name}={value:?}: {why}")]
    Setting {
        /// Name of the variable.
        name: &'static str,
        /// Rejected value of the variable.
        value: String,
        /// Description of the error, with the allowed values.
        why: String,
    },
    /// Certificate, key or authority file that cannot be read or parsed.
    #[error("{path}: {why}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Description of the error.
        why: String,
    },
    /// Settings that are valid one by one but conflict with each other.
    #[error("conflicting TLS settings: {0}")]
    Contradiction(rustls::Error),
}

/// TLS acceptor, which uses the newest usable certificate.
#[derive(Debug)]
pub struct Tls {
    config: Arc<ServerConfig>,
    certificate: Arc<Certificate>,
}

/// Certificate and key files, with the key that is in use.
#[derive(Debug)]
struct Certificate {
    files: [PathBuf; 2],
    current: ArcSwap<LoadedKey>,
    failures: AtomicU64,
}

/// A parsed key, with the file contents that it was parsed from.
#[derive(Debug)]
struct LoadedKey {
    contents: [Vec<u8>; 2],
    key: Arc<CertifiedKey>,
}

impl Tls {
    /// Creates an acceptor with the certificate and key in `folder`. Returns `None` if one of the two files is missing, in
    /// which case TLS is not served.
    ///
    /// # Errors
    /// Returns an error if a setting is invalid or if the pair is unusable.
    pub fn read(folder: &Path, settings: &Settings) -> Result<Option<Arc<Self>>, TlsError> {
        let files = FILES.map(|name| folder.join(name));
        if !files.iter().all(|file| file.exists()) {
            return Ok(None);
        }
        let contents = read(&files)?;
        Self::new(files, contents, settings).map(Some)
    }

    /// Creates an acceptor with a certificate and a key in PEM format that do not come from files; errors name them
    /// `tls.crt` and `tls.key`.
    ///
    /// # Errors
    /// Returns an error if a setting is invalid or if the pair is unusable.
    pub fn from_pem(contents: [Vec<u8>; 2], settings: &Settings) -> Result<Arc<Self>, TlsError> {
        Self::new(FILES.map(PathBuf::from), contents, settings)
    }

    fn new(
        files: [PathBuf; 2],
        contents: [Vec<u8>; 2],
        settings: &Settings,
    ) -> Result<Arc<Self>, TlsError> {
        let provider = settings.provider()?;
        let loaded = make_key(&files, contents, &provider)?;
        let certificate = Arc::new(Certificate {
            current: ArcSwap::from_pointee(loaded),
            files,
            failures: AtomicU64::new(0),
        });
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&settings.versions()?)
            .map_err(TlsError::Contradiction)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&certificate) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(Self {
            config: Arc::new(config),
            certificate,
        }))
    }

    /// Performs the handshake with a client.
    ///
    /// # Errors
    /// Returns an error if there is no common version or cipher suite, or if the connection fails.
    pub async fn accept(&self, socket: Socket) -> io::Result<TlsStream<Socket>> {
        let mut stream = TlsAcceptor::from(Arc::clone(&self.config))
            .accept(socket)
            .await?;
        stream.get_mut().1.set_buffer_limit(Some(SEND_BYTES_MAX));
        Ok(stream)
    }

    /// Returns the number of failed reloads since the start.
    pub fn reload_failures(&self) -> u64 {
        self.certificate.failures.load(Ordering::Relaxed)
    }

    /// Reloads changed files once per minute. Never returns.
    pub async fn run_reload(self: Arc<Self>) {
        let mut tick =
            tokio::time::interval_at(tokio::time::Instant::now() + RELOAD_PERIOD, RELOAD_PERIOD);
        loop {
            tick.tick().await;
            let tls = Arc::clone(&self);
            // Reading files may block. The join fails only if the process is shutting down.
            let _reloaded = tokio::task::spawn_blocking(move || tls.reload()).await;
        }
    }

    fn reload(&self) {
        match read(&self.certificate.files) {
            Ok(contents) if contents == self.certificate.current.load().contents => {}
            Ok(contents) => {
                if self.replace(contents) {
                    tracing::info!(
                        "Certificate and/or key have changed on disk and were reloaded."
                    );
                }
            }
            Err(error) => self.note_failure(&error),
        }
    }

    /// Replaces the certificate and key, in PEM format, for later handshakes. If they are unusable, logs and counts the
    /// failure, keeps the previous ones, and returns `false`.
    pub fn replace(&self, contents: [Vec<u8>; 2]) -> bool {
        let provider = self.config.crypto_provider();
        match make_key(&self.certificate.files, contents, provider) {
            Ok(loaded) => {
                self.certificate.current.store(Arc::new(loaded));
                true
            }
            Err(error) => {
                self.note_failure(&error);
                false
            }
        }
    }

    fn note_failure(&self, error: &TlsError) {
        self.certificate.failures.fetch_add(1, Ordering::Relaxed);
        tracing::error!(%error, "cannot load the new certificate; the previous one stays in use");
    }
}

/// Performs a handshake with the user container without verifying its certificate: it is on this host, and the
/// kubelet does not verify certificates in its probes either.
///
/// # Errors
/// Returns an error if the handshake fails.
pub async fn connect_unverified(
    socket: TcpStream,
) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Unverified(provider)))
        .with_no_client_auth();
    let name = ServerName::from(std::net::IpAddr::from([127, 0, 0, 1]));
    TlsConnector::from(Arc::new(config))
        .connect(name, socket)
        .await
}

/// Certificate verifier that accepts any certificate, if the server proves possession of its key.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.load().key))
    }
}

fn read(files: &[PathBuf; 2]) -> Result<[Vec<u8>; 2], TlsError> {
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|error| TlsError::File {
            path: path.clone(),
            why: error.to_string(),
        })
    };
    Ok([read(&files[0])?, read(&files[1])?])
}

fn make_key(
    files: &[PathBuf; 2],
    contents: [Vec<u8>; 2],
    provider: &CryptoProvider,
) -> Result<LoadedKey, TlsError> {
    let wrong = |file: usize, why: String| TlsError::File {
        path: files[file].clone(),
        why,
    };
    let chain = CertificateDer::pem_slice_iter(&contents[0])
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| wrong(0, error.to_string()))?;
    if chain.is_empty() {
        return Err(wrong(0, "contains no certificate".to_owned()));
    }
    let key =
        PrivateKeyDer::from_pem_slice(&contents[1]).map_err(|error| wrong(1, error.to_string()))?;
    let key = CertifiedKey::from_der(chain, key, provider)
        .map_err(|error| wrong(1, error.to_string()))?;
    Ok(LoadedKey {
        contents,
        key: Arc::new(key),
    })
}

impl Settings {
    fn versions(&self) -> Result<Vec<&'static SupportedProtocolVersion>, TlsError> {
        let number = |name, value: &str, default| match value {
            "" => Ok(default),
            "1.2" => Ok(2),
            "1.3" => Ok(3),
            _ => Err(TlsError::Setting {
                name,
                value: value.to_owned(),
                why: "allowed: 1.2, 1.3".to_owned(),
            }),
        };
        let min = number("QUEUE_PROXY_TLS_MIN_VERSION", &self.min_version, 3)?;
        let max = number("QUEUE_PROXY_TLS_MAX_VERSION", &self.max_version, 3)?;
        if min > max {
            return Err(TlsError::Setting {
                name: "QUEUE_PROXY_TLS_MAX_VERSION",
                value: self.max_version.clone(),
                why: "must not be below QUEUE_PROXY_TLS_MIN_VERSION, which defaults to 1.3"
                    .to_owned(),
            });
        }
        let all = [(2, &rustls::version::TLS12), (3, &rustls::version::TLS13)];
        Ok(all
            .into_iter()
            .filter(|(number, _)| (min..=max).contains(number))
            .map(|(_, version)| version)
            .collect())
    }

    fn provider(&self) -> Result<CryptoProvider, TlsError> {
        let mut provider = aws_lc_rs::default_provider();
        let suites = chosen(
            "QUEUE_PROXY_TLS_CIPHER_SUITES",
            &self.cipher_suites,
            aws_lc_rs::ALL_CIPHER_SUITES,
            suite_name,
            &LEGACY_SUITES,
        )?;
        if !suites.is_empty() {
            // The setting selects suites of TLS 1.2 only; those of TLS 1.3 are always enabled.
            let is_13 =
                |suite: &SupportedCipherSuite| suite.version().version == ProtocolVersion::TLSv1_3;
            provider.cipher_suites = aws_lc_rs::ALL_CIPHER_SUITES
                .iter()
                .copied()
                .filter(is_13)
                .chain(suites.into_iter().filter(|suite| !is_13(suite)))
                .collect();
        }
        let groups = chosen(
            "QUEUE_PROXY_TLS_CURVE_PREFERENCES",
            &self.curve_preferences,
            aws_lc_rs::ALL_KX_GROUPS,
            |group| curve_name(*group),
            &["CurveP521"],
        )?;
        if !groups.is_empty() {
            provider.kx_groups = groups;
        }
        Ok(provider)
    }
}

/// Suites that Go knows and rustls does not support, since they are insecure or considered weak.
const LEGACY_SUITES: [&str; 16] = [
    "TLS_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
];

/// Returns the items named by a comma-separated list, in its order. Names in `legacy` are omitted, with a warning.
fn chosen<T: Copy>(
    name: &'static str,
    list: &str,
    all: &[T],
    name_of: impl Fn(&T) -> String,
    legacy: &[&str],
) -> Result<Vec<T>, TlsError> {
    let mut found = Vec::new();
    let mut is_given = false;
    let wrong = |why: String| TlsError::Setting {
        name,
        value: list.to_owned(),
        why,
    };
    let allowed = || all.iter().map(&name_of).collect::<Vec<_>>().join(", ");
    for wanted in list.split(',').map(str::trim).filter(|it| !it.is_empty()) {
        is_given = true;
        if let Some(item) = all.iter().find(|item| name_of(item) == wanted) {
            found.push(*item);
        } else if legacy.contains(&wanted) {
            tracing::warn!(variable = name, wanted, "unsupported value, ignored");
        } else {
            return Err(wrong(format!("{wanted:?}: allowed: {}", allowed())));
        }
    }
    if is_given && found.is_empty() {
        return Err(wrong(format!(
            "none of the values is supported; supported: {}",
            allowed()
        )));
    }
    Ok(found)
}

/// Returns IANA's name of a cipher suite.
fn suite_name(suite: &SupportedCipherSuite) -> String {
    let name = suite.suite().as_str().unwrap_or_default();
    name.replacen("TLS13_", "TLS_", 1)
}

/// Returns Go's name of a key exchange group.
fn curve_name(group: &dyn SupportedKxGroup) -> String {
    match group.name() {
        rustls::NamedGroup::secp256r1 => "CurveP256".to_owned(),
        rustls::NamedGroup::secp384r1 => "CurveP384".to_owned(),
        rustls::NamedGroup::secp256r1MLKEM768 => "SecP256r1MLKEM768".to_owned(),
        other => other.as_str().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(cipher_suites: &str, curve_preferences: &str) -> Settings {
        Settings {
            cipher_suites: cipher_suites.to_owned(),
            curve_preferences: curve_preferences.to_owned(),
            ..Settings::default()
        }
    }

    #[test]
    fn versions_are_between_the_lowest_and_the_highest() {
        let versions = |min: &str, max: &str| {
            let settings = Settings {
                min_version: min.to_owned(),
                max_version: max.to_owned(),
                ..Settings::default()
            };
            settings.versions().map(|versions| versions.len())
        };
        assert_eq!(versions("", "").unwrap(), 1);
        assert_eq!(versions("1.2", "").unwrap(), 2);
        assert_eq!(versions("1.2", "1.2").unwrap(), 1);
        assert!(versions("1.3", "1.2").is_err());
        assert!(
            versions("1.1", "")
                .unwrap_err()
                .to_string()
                .contains("allowed: 1.2, 1.3")
        );
    }

    #[test]
    fn suites_and_curves_are_selected_by_name() {
        let provider = settings(
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_RSA_WITH_RC4_128_SHA",
            "CurveP256,X25519",
        )
        .provider()
        .unwrap();
        let names: Vec<_> = provider.cipher_suites.iter().map(suite_name).collect();
        assert_eq!(names.len(), 4);
        assert!(names.contains(&"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256".to_owned()));
        let groups: Vec<_> = provider
            .kx_groups
            .iter()
            .map(|group| curve_name(*group))
            .collect();
        assert_eq!(groups, ["CurveP256", "X25519"]);
    }

    #[test]
    fn unknown_names_are_refused_with_the_list_of_known_ones() {
        let refused = settings("TLS_NONSENSE", "")
            .provider()
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains("QUEUE_PROXY_TLS_CIPHER_SUITES"),
            "{refused}"
        );
        assert!(refused.contains("TLS_AES_128_GCM_SHA256"), "{refused}");
        let refused = settings("", "P-256").provider().unwrap_err().to_string();
        assert!(refused.contains("CurveP256"), "{refused}");
        assert!(settings("TLS_RSA_WITH_RC4_128_SHA", "").provider().is_err());
    }
}
