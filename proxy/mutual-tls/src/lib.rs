//! Mutual TLS between Weir's own programs: each has a certificate of the cluster's authority, and requires one of its peer
//! (contracts §3).
//!
//! Role `control` issues the authority and the certificates. A program reads its own from a directory, as `tls.crt`,
//! `tls.key` and `ca.crt`, which the kubelet replaces when they are renewed. Without them all connections fail; there is
//! no fallback to plain text.
//!
//! Deliberately absent: issue and renewal of certificates. Start reading in [`Identity`].
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientCertVerifierBuilder, ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Interval at which the files are checked for changes.
const RELOAD_PERIOD: Duration = Duration::from_secs(10);
/// Time limit of a handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// File names of certificate, key and authorities.
const FILES: [&str; 3] = ["tls.crt", "tls.key", "ca.crt"];

/// Returns the DNS name in the certificate of one of Weir's programs (`agent`, `activator` or `control`), which does not
/// depend on where it runs.
#[must_use]
pub fn name_of(program: &str) -> String {
    format!("{program}.weir.dev")
}

/// Error for an unusable certificate, key or authority.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {why}")]
pub struct IdentityError {
    /// Name of the file: `tls.crt`, `tls.key` or `ca.crt`.
    pub name: &'static str,
    /// Description of the error.
    pub why: String,
}

/// A certificate with its key and the trusted authorities, all in PEM format.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem {
    /// Certificate of this program, with its chain.
    pub certificate: Vec<u8>,
    /// Private key of the certificate.
    pub key: Vec<u8>,
    /// Authorities that are trusted to issue the certificates of the other programs.
    pub authorities: Vec<u8>,
}

impl std::fmt::Debug for Pem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pem")
    }
}

/// Identity of a program towards Weir's other programs, which is empty until a certificate is set.
#[derive(Debug, Default)]
pub struct Identity {
    current: watch::Sender<Option<Arc<Current>>>,
}

#[derive(Debug)]
struct Current {
    pem: Pem,
    server: Arc<ServerConfig>,
    /// Like `server`, but also accepts clients without a certificate.
    open_server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Current {
    fn new(pem: Pem) -> Result<Self, IdentityError> {
        let wrong = |name: &'static str| {
            move |why: &dyn std::fmt::Display| IdentityError {
                name,
                why: why.to_string(),
            }
        };
        let chain = certificates(&pem.certificate, FILES[0])?;
        let key = PrivateKeyDer::from_pem_slice(&pem.key).map_err(|why| wrong(FILES[1])(&why))?;
        let mut roots = RootCertStore::empty();
        for authority in certificates(&pem.authorities, FILES[2])? {
            roots.add(authority).map_err(|why| wrong(FILES[2])(&why))?;
        }
        let (roots, provider) = (Arc::new(roots), Arc::new(aws_lc_rs::default_provider()));
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let server = |clients: ClientCertVerifierBuilder| {
            let clients = clients.build().map_err(|why| wrong(FILES[2])(&why))?;
            let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .map_err(|why| wrong(FILES[0])(&why))?
                .with_client_cert_verifier(clients)
                .with_single_cert(chain.clone(), key.clone_key())
                .map_err(|why| wrong(FILES[1])(&why))?;
            Ok::<_, IdentityError>(Arc::new(server))
        };
        let open_server = server(clients.clone().allow_unauthenticated())?;
        let server = server(clients)?;
        let servers =
            WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
        let servers = servers.map_err(|why| wrong(FILES[2])(&why))?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|why| wrong(FILES[0])(&why))?
            .with_webpki_verifier(servers)
            .with_client_auth_cert(chain, key)
            .map_err(|why| wrong(FILES[1])(&why))?;
        Ok(Self {
            pem,
            server,
            open_server,
            client: Arc::new(client),
        })
    }
}

fn certificates(
    pem: &[u8],
    name: &'static str,
) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let why = match all {
        Ok(all) if !all.is_empty() => return Ok(all),
        Ok(_) => "contains no certificate".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(IdentityError { name, why })
}

impl Identity {
    /// Replaces the certificate, key and authorities for later handshakes. Returns whether they differ from the previous
    /// ones.
    ///
    /// # Errors
    /// Returns an error if one of them is unusable; the previous ones stay in use then.
    pub fn set(&self, pem: Pem) -> Result<bool, IdentityError> {
        if self.current().is_some_and(|current| current.pem == pem) {
            return Ok(false);
        }
        let current = Current::new(pem)?;
        self.current.send_replace(Some(Arc::new(current)));
        Ok(true)
    }

    /// Returns whether a certificate has been set.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.current.borrow().is_some()
    }

    fn current(&self) -> Option<Arc<Current>> {
        self.current.borrow().clone()
    }

    /// Waits for the certificate and returns it, since a connection may arrive before the files are first read.
    async fn present(&self) -> io::Result<Arc<Current>> {
        let mut changes = self.current.subscribe();
        let current = changes.wait_for(Option::is_some).await;
        current.ok().and_then(|it| it.clone()).ok_or_else(unknown)
    }

    /// Loads the files of a directory, and reloads them when they change, checked every 10 s. Missing files may appear
    /// later; errors are logged once. Never returns, except at shutdown.
    pub async fn follow(self: Arc<Self>, folder: PathBuf) {
        let mut tick = tokio::time::interval(RELOAD_PERIOD);
        let mut reported = None;
        loop {
            tick.tick().await;
            let (own, folder) = (Arc::clone(&self), folder.clone());
            // Reading files may block. The join fails only if the process is shutting down.
            let read = tokio::task::spawn_blocking(move || own.read(&folder));
            let problem = match read.await {
                Ok(Ok(is_new)) => {
                    if is_new {
                        tracing::info!(
                            "loaded the certificate for connections between Weir's programs"
                        );
                    }
                    None
                }
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => return,
            };
            if let Some(problem) = problem.as_ref().filter(|_| problem != reported) {
                tracing::warn!(
                    problem,
                    "cannot load the certificate for connections between Weir's programs"
                );
            }
            reported = problem;
        }
    }

    fn read(&self, folder: &Path) -> Result<bool, IdentityError> {
        let [certificate, key, authorities] = FILES.map(|name| {
            std::fs::read(folder.join(name)).map_err(|error| IdentityError {
                name,
                why: format!("{}: {error}", folder.join(name).display()),
            })
        });
        self.set(Pem {
            certificate: certificate?,
            key: key?,
            authorities: authorities?,
        })
    }

    /// Performs the handshake as a server that requires a client certificate.
    ///
    /// # Errors
    /// Returns an error if this program has no certificate within 10 s, if the client does not present one of a trusted
    /// authority, or if the handshake takes longer than that time.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        in_time(async {
            let acceptor = TlsAcceptor::from(Arc::clone(&self.present().await?.server));
            acceptor.accept(stream).await
        })
        .await
    }

    /// Performs the handshake as a server that also accepts clients without a certificate, which [`is_program`]
    /// distinguishes.
    ///
    /// # Errors
    /// Returns an error if this program has no certificate within 10 s, if the client presents one of another authority,
    /// or if the handshake takes longer than that time.
    pub async fn accept_any(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        in_time(async {
            let acceptor = TlsAcceptor::from(Arc::clone(&self.present().await?.open_server));
            acceptor.accept(stream).await
        })
        .await
    }

    /// Performs the handshake as a client of the program with a certificate for `name`.
    ///
    /// # Errors
    /// Returns an error if this program has no certificate yet, if the server does not present a trusted one for `name`,
    /// or if the handshake takes longer than 10 s.
    pub async fn connect(
        &self,
        stream: TcpStream,
        name: &str,
    ) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let current = self.current().ok_or_else(unknown)?;
        let connector = TlsConnector::from(Arc::clone(&current.client));
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        in_time(connector.connect(name, stream)).await
    }
}

/// Returns whether the client has presented a certificate that is valid for `name` (see [`name_of`]).
#[must_use]
pub fn is_program(stream: &TlsStream<TcpStream>, name: &str) -> bool {
    let shown = stream.get_ref().1.peer_certificates();
    let Some(certificate) = shown.and_then(<[_]>::first) else {
        return false;
    };
    // The handshake has already verified the issuer and the validity period.
    let certificate = ParsedCertificate::try_from(certificate);
    let name = ServerName::try_from(name);
    match (certificate, name) {
        (Ok(certificate), Ok(name)) => verify_server_name(&certificate, &name).is_ok(),
        _ => false,
    }
}

/// Bounded set of connections with a handshake in progress. If the bound is exceeded, the oldest is cancelled, so that
/// silent connections do not exclude other clients: a handshake takes milliseconds.
#[derive(Debug)]
pub struct PendingHandshakes {
    most: usize,
    waiting: VecDeque<oneshot::Sender<()>>,
}

impl PendingHandshakes {
    /// Creates a set of at most `most` handshakes; 0 counts as 1.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            waiting: VecDeque::new(),
        }
    }

    /// Adds a handshake. The returned receiver completes with an error when the handshake is cancelled; the caller drops
    /// it once the handshake is complete.
    pub fn begin(&mut self) -> oneshot::Receiver<()> {
        self.waiting.retain(|own| !own.is_closed());
        if self.waiting.len() >= self.most {
            // Dropping the sender cancels the handshake.
            let _oldest = self.waiting.pop_front();
        }
        let (sender, receiver) = oneshot::channel();
        self.waiting.push_back(sender);
        receiver
    }
}

fn unknown() -> io::Error {
    io::Error::other("no certificate for connections between Weir's programs yet")
}

async fn in_time<T>(handshake: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let shaken = tokio::time::timeout(HANDSHAKE_MAX, handshake).await;
    shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use rustls::SignatureScheme;
    use rustls::client::ResolvesClientCert;
    use rustls::sign::CertifiedKey;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    #[test]
    fn beyond_the_bound_the_oldest_handshake_is_cancelled_and_completed_ones_do_not_count() {
        let mut handshakes = PendingHandshakes::new(2);
        let mut first = handshakes.begin();
        let second = handshakes.begin();
        drop(second);
        let mut third = handshakes.begin();
        assert_eq!(first.try_recv(), Err(TryRecvError::Empty));
        let mut fourth = handshakes.begin();
        assert_eq!(first.try_recv(), Err(TryRecvError::Closed));
        assert_eq!(third.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(fourth.try_recv(), Err(TryRecvError::Empty));
    }

    /// A resolver of a client without a certificate.
    #[derive(Debug)]
    struct NoClientAuth;

    impl ResolvesClientCert for NoClientAuth {
        fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
            None
        }

        fn has_certs(&self) -> bool {
            false
        }
    }

    struct Authority {
        issuer: Issuer<'static, KeyPair>,
        pem: String,
    }

    impl Authority {
        fn new() -> Self {
            let key = KeyPair::generate().unwrap();
            let mut parameters = CertificateParams::default();
            parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let pem = parameters.self_signed(&key).unwrap().pem();
            Self {
                issuer: Issuer::new(parameters, key),
                pem,
            }
        }

        fn pem(&self, name: &str) -> Pem {
            let key = KeyPair::generate().unwrap();
            let parameters = CertificateParams::new([name.to_owned()]).unwrap();
            let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
            Pem {
                certificate: certificate.pem().into(),
                key: key.serialize_pem().into(),
                authorities: self.pem.clone().into(),
            }
        }
    }

    fn identity(pem: Pem) -> Identity {
        let identity = Identity::default();
        assert!(identity.set(pem).unwrap());
        identity
    }

    /// Returns whether a byte can be sent from the server to the client.
    async fn can_connect(server: &Identity, client: &Identity, name: &str) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serve = async {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = server.accept(stream).await?;
            stream.write_all(b"x").await?;
            stream.shutdown().await
        };
        let ask = async {
            let stream = TcpStream::connect(address).await.unwrap();
            let mut stream = client.connect(stream, name).await?;
            stream.read_u8().await
        };
        let (served, asked) = tokio::join!(serve, ask);
        served.is_ok() && asked.is_ok_and(|byte| byte == b'x')
    }

    #[tokio::test]
    async fn only_programs_of_the_same_authority_can_connect() {
        let (own, other) = (Authority::new(), Authority::new());
        let server = identity(own.pem("agent.weir.dev"));
        let client = identity(own.pem("control.weir.dev"));
        let stranger = identity(other.pem("control.weir.dev"));
        assert!(can_connect(&server, &client, "agent.weir.dev").await);
        assert!(!can_connect(&server, &client, "activator.weir.dev").await);
        assert!(!can_connect(&server, &stranger, "agent.weir.dev").await);
        // This client trusts the server, but its certificate is not trusted by the server.
        let mut mixed = other.pem("control.weir.dev");
        mixed.authorities = own.pem.clone().into();
        assert!(!can_connect(&server, &identity(mixed), "agent.weir.dev").await);
        assert!(!can_connect(&server, &Identity::default(), "agent.weir.dev").await);
    }

    #[tokio::test]
    async fn an_early_connection_waits_for_the_certificate() {
        let authority = Authority::new();
        let server = Identity::default();
        let client = identity(authority.pem("control.weir.dev"));
        let set = async {
            // The client and the server are polled first, while there is no certificate.
            tokio::task::yield_now().await;
            server.set(authority.pem("agent.weir.dev")).unwrap()
        };
        let (connected, is_new) =
            tokio::join!(can_connect(&server, &client, "agent.weir.dev"), set);
        assert!(connected && is_new);
    }

    #[tokio::test]
    async fn an_open_server_distinguishes_programs_from_other_clients() {
        let (own, other) = (Authority::new(), Authority::new());
        let server = identity(own.pem(&name_of("activator")));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut anonymous = (*identity(own.pem("x")).current().unwrap().client).clone();
        anonymous.client_auth_cert_resolver = Arc::new(NoClientAuth);
        let clients = [
            Some(identity(own.pem(&name_of("control")))),
            Some(identity(own.pem(&name_of("agent")))),
            None,
        ];
        for (client, expected) in clients.iter().zip([true, false, false]) {
            let stream = TcpStream::connect(address).await.unwrap();
            let name = ServerName::try_from(name_of("activator")).unwrap();
            let connector = match client {
                Some(client) => Arc::clone(&client.current().unwrap().client),
                None => Arc::new(anonymous.clone()),
            };
            let connector = TlsConnector::from(connector);
            let accept = async { server.accept_any(listener.accept().await.unwrap().0).await };
            let (accepted, _connected) = tokio::join!(accept, connector.connect(name, stream));
            assert_eq!(
                is_program(&accepted.unwrap(), &name_of("control")),
                expected
            );
        }
        // A certificate of another authority is refused although a client without one is accepted.
        let stranger = {
            let mut pem = other.pem(&name_of("control"));
            pem.authorities = own.pem.clone().into();
            identity(pem)
        };
        let stream = TcpStream::connect(address).await.unwrap();
        let accept = async { server.accept_any(listener.accept().await.unwrap().0).await };
        let name = name_of("activator");
        let (accepted, _connected) = tokio::join!(accept, stranger.connect(stream, &name));
        assert!(accepted.is_err());
    }

    #[tokio::test]
    async fn both_authorities_are_trusted_during_a_rotation() {
        let (old, new) = (Authority::new(), Authority::new());
        let server = identity(old.pem("agent.weir.dev"));
        let mut renewed = new.pem("control.weir.dev");
        renewed.authorities = format!("{}{}", old.pem, new.pem).into();
        let client = identity(renewed);
        assert!(!can_connect(&server, &client, "agent.weir.dev").await);
        let mut both = old.pem("agent.weir.dev");
        both.authorities = format!("{}{}", old.pem, new.pem).into();
        assert!(server.set(both).unwrap());
        assert!(can_connect(&server, &client, "agent.weir.dev").await);
    }

    #[test]
    fn unusable_files_are_reported_and_change_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let pem = Authority::new().pem("agent.weir.dev");
        let identity = Identity::default();
        let error = identity.read(folder.path()).unwrap_err();
        assert!(error.to_string().starts_with("tls.crt: "), "{error}");
        for (name, text) in FILES
            .iter()
            .zip([&pem.certificate, &pem.key, &pem.authorities])
        {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        assert!(identity.read(folder.path()).unwrap());
        assert!(!identity.read(folder.path()).unwrap());
        std::fs::write(folder.path().join("ca.crt"), "nothing").unwrap();
        let error = identity.read(folder.path()).unwrap_err();
        assert_eq!(error.to_string(), "ca.crt: contains no certificate");
        assert!(identity.is_known());
    }
}
