//! TLS between Weir's own programs: each has a certificate of the cluster's authority, and asks the other for one (design 4.3).
//!
//! Role `control` makes authority and certificates; a program finds its own in a folder, as `tls.crt`, `tls.key` and `ca.crt`, which
//! the kubelet replaces when they are renewed. Without them there are no connections: neither end goes on in the clear.
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

/// The files are looked at this often.
const RELOAD_PERIOD: Duration = Duration::from_secs(10);
/// A handshake takes no longer.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// The names of the files: certificate, key, authorities.
const FILES: [&str; 3] = ["tls.crt", "tls.key", "ca.crt"];

/// Returns the name for which the certificate of a program of Weir is valid, wherever it runs: `agent`, `activator`, `control`.
#[must_use]
pub fn name_of(program: &str) -> String {
    format!("{program}.weir.dev")
}

/// Certificate, key or authorities that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {why}")]
pub struct IdentityError {
    /// Which of `tls.crt`, `tls.key` and `ca.crt`.
    pub name: &'static str,
    /// What is wrong with it.
    pub why: String,
}

/// A certificate with its key, and the authorities that are trusted, all as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem {
    /// The certificate.
    pub certificate: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
    /// The authorities of the other programs' certificates.
    pub authorities: Vec<u8>,
}

impl std::fmt::Debug for Pem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pem")
    }
}

/// What a program is among Weir's programs.
#[derive(Debug, Default)]
pub struct Identity {
    current: watch::Sender<Option<Arc<Current>>>,
}

#[derive(Debug)]
struct Current {
    pem: Pem,
    server: Arc<ServerConfig>,
    /// As `server`, for clients without a certificate as well.
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
        Ok(_) => "there is no certificate in it".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(IdentityError { name, why })
}

impl Identity {
    /// Takes another certificate, key and authorities, for the handshakes to come. Returns whether they are others than before.
    ///
    /// # Errors
    /// They cannot be used; those before them stay.
    pub fn set(&self, pem: Pem) -> Result<bool, IdentityError> {
        if self.current().is_some_and(|current| current.pem == pem) {
            return Ok(false);
        }
        let current = Current::new(pem)?;
        self.current.send_replace(Some(Arc::new(current)));
        Ok(true)
    }

    /// Whether there is a certificate.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.current.borrow().is_some()
    }

    fn current(&self) -> Option<Arc<Current>> {
        self.current.borrow().clone()
    }

    /// Returns the certificate, once there is one: a connection may come before the files are first read.
    async fn present(&self) -> io::Result<Arc<Current>> {
        let mut changes = self.current.subscribe();
        let current = changes.wait_for(Option::is_some).await;
        current.ok().and_then(|it| it.clone()).ok_or_else(unknown)
    }

    /// Keeps to the files of a folder, for ever. What is missing may come later.
    pub async fn follow(self: Arc<Self>, folder: PathBuf) {
        let mut tick = tokio::time::interval(RELOAD_PERIOD);
        let mut said = None;
        loop {
            tick.tick().await;
            let (own, folder) = (Arc::clone(&self), folder.clone());
            // Files may be slow; if the thread is gone, so is the process.
            let read = tokio::task::spawn_blocking(move || own.read(&folder));
            let problem = match read.await {
                Ok(Ok(is_new)) => {
                    if is_new {
                        tracing::info!("the certificate for Weir's own programs was read");
                    }
                    None
                }
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => return,
            };
            if let Some(problem) = problem.as_ref().filter(|_| problem != said) {
                tracing::warn!(
                    problem,
                    "the certificate for Weir's own programs cannot be used"
                );
            }
            said = problem;
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

    /// Shakes hands as a server.
    ///
    /// # Errors
    /// There is no certificate within 10 s, or the client has none of the same authority, or shows none in that time.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        in_time(async {
            let acceptor = TlsAcceptor::from(Arc::clone(&self.present().await?.server));
            acceptor.accept(stream).await
        })
        .await
    }

    /// Shakes hands as a server, also with a client that has no certificate. [`is_program`] says whether it has one.
    ///
    /// # Errors
    /// There is no certificate within 10 s, or the client has one of another authority, or sends nothing in that time.
    pub async fn accept_any(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        in_time(async {
            let acceptor = TlsAcceptor::from(Arc::clone(&self.present().await?.open_server));
            acceptor.accept(stream).await
        })
        .await
    }

    /// Shakes hands as a client of the program whose certificate is for `name`.
    ///
    /// # Errors
    /// There is no certificate yet, or the server has another one, or none in time.
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

/// Returns whether the client at the other end has shown a certificate that is valid for `name` (see [`name_of`]).
#[must_use]
pub fn is_program(stream: &TlsStream<TcpStream>, name: &str) -> bool {
    let shown = stream.get_ref().1.peer_certificates();
    let Some(certificate) = shown.and_then(<[_]>::first) else {
        return false;
    };
    // The handshake has checked who issued it, and that it has not expired.
    let certificate = ParsedCertificate::try_from(certificate);
    let name = ServerName::try_from(name);
    match (certificate, name) {
        (Ok(certificate), Ok(name)) => verify_server_name(&certificate, &name).is_ok(),
        _ => false,
    }
}

/// Connections whose handshake is under way. Beyond a number of them the oldest is closed, so that silent connections exclude no
/// other client: a handshake takes milliseconds.
#[derive(Debug)]
pub struct PendingHandshakes {
    most: usize,
    waiting: VecDeque<oneshot::Sender<()>>,
}

impl PendingHandshakes {
    /// So many at a time, at least 1.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            waiting: VecDeque::new(),
        }
    }

    /// Takes another. Returns what ends, with an error, when the connection is to give way; it is dropped once the client is known.
    pub fn begin(&mut self) -> oneshot::Receiver<()> {
        self.waiting.retain(|own| !own.is_closed());
        if self.waiting.len() >= self.most {
            // Dropped, it ends what it was taken for.
            let _oldest = self.waiting.pop_front();
        }
        let (sender, receiver) = oneshot::channel();
        self.waiting.push_back(sender);
        receiver
    }
}

fn unknown() -> io::Error {
    io::Error::other("there is no certificate for Weir's own programs yet")
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

    /// A client without a certificate.
    #[test]
    fn of_too_many_handshakes_the_oldest_is_displaced_and_those_that_are_over_do_not_count() {
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

    /// Whether a byte comes through from one to the other.
    async fn speak(server: &Identity, client: &Identity, name: &str) -> bool {
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
    async fn programs_of_one_authority_speak_and_others_do_not() {
        let (own, other) = (Authority::new(), Authority::new());
        let server = identity(own.pem("agent.weir.dev"));
        let client = identity(own.pem("control.weir.dev"));
        let stranger = identity(other.pem("control.weir.dev"));
        assert!(speak(&server, &client, "agent.weir.dev").await);
        assert!(!speak(&server, &client, "activator.weir.dev").await);
        assert!(!speak(&server, &stranger, "agent.weir.dev").await);
        // One that takes the server for what it is has no certificate that the server takes.
        let mut mixed = other.pem("control.weir.dev");
        mixed.authorities = own.pem.clone().into();
        assert!(!speak(&server, &identity(mixed), "agent.weir.dev").await);
        assert!(!speak(&server, &Identity::default(), "agent.weir.dev").await);
    }

    #[tokio::test]
    async fn a_connection_that_comes_before_the_certificate_waits_for_it() {
        let authority = Authority::new();
        let server = Identity::default();
        let client = identity(authority.pem("control.weir.dev"));
        let set = async {
            // The other two are polled first: the connection is there, and nothing to answer it with.
            tokio::task::yield_now().await;
            server.set(authority.pem("agent.weir.dev")).unwrap()
        };
        let (spoke, is_new) = tokio::join!(speak(&server, &client, "agent.weir.dev"), set);
        assert!(spoke && is_new);
    }

    #[tokio::test]
    async fn a_server_for_others_as_well_knows_which_of_them_is_a_program() {
        let (own, other) = (Authority::new(), Authority::new());
        let server = identity(own.pem(&name_of("activator")));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut nobody = (*identity(own.pem("x")).current().unwrap().client).clone();
        nobody.client_auth_cert_resolver = Arc::new(NoClientAuth);
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
                None => Arc::new(nobody.clone()),
            };
            let connector = TlsConnector::from(connector);
            let accept = async { server.accept_any(listener.accept().await.unwrap().0).await };
            let (accepted, _connected) = tokio::join!(accept, connector.connect(name, stream));
            assert_eq!(
                is_program(&accepted.unwrap(), &name_of("control")),
                expected
            );
        }
        // A certificate of another authority is refused, where none would not be.
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
    async fn while_authorities_are_exchanged_both_are_trusted() {
        let (old, new) = (Authority::new(), Authority::new());
        let server = identity(old.pem("agent.weir.dev"));
        let mut renewed = new.pem("control.weir.dev");
        renewed.authorities = format!("{}{}", old.pem, new.pem).into();
        let client = identity(renewed);
        assert!(!speak(&server, &client, "agent.weir.dev").await);
        let mut both = old.pem("agent.weir.dev");
        both.authorities = format!("{}{}", old.pem, new.pem).into();
        assert!(server.set(both).unwrap());
        assert!(speak(&server, &client, "agent.weir.dev").await);
    }

    #[test]
    fn files_that_cannot_be_used_are_named_and_change_nothing() {
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
        assert_eq!(error.to_string(), "ca.crt: there is no certificate in it");
        assert!(identity.is_known());
    }
}
