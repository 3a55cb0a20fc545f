//! `weir live`: serves a cluster's live page on this machine's loopback. A browser cannot send a token, so this program adds it.

use std::convert::Infallible;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ::live::page::{check, refuse};
use ::live::server::{bound_silence, listen, serve};
use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use clap::Args;
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, HOST, HeaderValue, SET_COOKIE, TRANSFER_ENCODING,
};
use http::uri::Scheme;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Default port of role `control`, which serves the page.
const PORT: u16 = 9475;
/// Longest wait for the head of a server's answer.
const HEAD_MAX: Duration = Duration::from_secs(10);
/// Largest token file, in bytes.
const TOKEN_BYTES_MAX: u64 = 64 * 1024;
/// Largest part of a refusal's body that is shown, in bytes.
const REFUSAL_BYTES_MAX: usize = 4 * 1024;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;

/// Arguments of `weir live`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// URL of activator-ext's role `control`: `https://HOST[:PORT]`, by default port 9475. Its certificate must be that of
    /// `control.weir.dev`, whatever the host's name.
    #[arg(long, value_name = "URL")]
    server: Uri,
    /// A file with the token of a user with permission to `get gpufunctions.weir.dev` in all namespaces: `kubectl create token
    /// NAME`. It is read for each request, so it may be renewed meanwhile.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// The certificate authorities of Weir, as PEM: `ca.crt` of the `ConfigMap` `weir-ca` in `weir-system`.
    #[arg(long, value_name = "FILE")]
    ca: PathBuf,
    /// Address of the page: on loopback, since no token is required there.
    #[arg(long, value_name = "IP:PORT", default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)))]
    bind: SocketAddr,
}

/// Client of a cluster's live page.
#[derive(Debug)]
struct Remote {
    host: String,
    port: u16,
    token_file: PathBuf,
    tls: Arc<ClientConfig>,
}

/// Runs `weir live` until interrupted. Returns exit code 1 if the server is unreachable or refuses.
///
/// # Errors
/// Every error is a usage error: exit code 2.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let remote = Arc::new(Remote::new(arguments)?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let listener = listen(arguments.bind)
            .await
            .with_context(|| format!("--bind {}", arguments.bind))?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for signals")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for signals")?;
        if let Err(error) = remote.first_state().await {
            // A failed write to stderr cannot be reported.
            let _written = writeln!(std::io::stderr(), "weir: {}: {error:#}", arguments.server);
            return Ok(ExitCode::FAILURE);
        }
        let mut output = std::io::stdout().lock();
        writeln!(output, "http://{}/live/", listener.local_addr()?)?;
        output.flush()?;
        drop(output);
        let respond = move |request| {
            let remote = Arc::clone(&remote);
            async move { remote.respond(request).await }
        };
        tokio::select! {
            () = serve(listener, respond) => {}
            _signal = interrupt.recv() => {}
            _signal = terminate.recv() => {}
        }
        Ok(ExitCode::SUCCESS)
    })
}

impl Remote {
    fn new(arguments: &Arguments) -> anyhow::Result<Self> {
        let server = &arguments.server;
        let is_plain = matches!(server.path(), "" | "/") && server.query().is_none();
        let authority = server.authority().filter(|own| !own.as_str().contains('@'));
        let (Some(authority), true, true) =
            (authority, server.scheme() == Some(&Scheme::HTTPS), is_plain)
        else {
            bail!(
                "--server {server}: allowed: https://HOST[:PORT], without a path: the token is sent there"
            );
        };
        let name = arguments.ca.display();
        let pem = std::fs::read(&arguments.ca).with_context(|| format!("--ca {name}"))?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.with_context(|| format!("--ca {name}: not PEM"))?;
            roots
                .add(certificate)
                .with_context(|| format!("--ca {name}: not the certificate of an authority"))?;
        }
        ensure!(!roots.is_empty(), "--ca {name}: contains no certificate");
        let provider = Arc::new(aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("no version of TLS")?
            .with_root_certificates(roots)
            .with_no_client_auth();
        token(&arguments.token_file)?;
        Ok(Self {
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(PORT),
            token_file: arguments.token_file.clone(),
            tls: Arc::new(tls),
        })
    }

    /// Requests a state to verify that the server accepts this user.
    async fn first_state(&self) -> anyhow::Result<()> {
        let answer = self.ask("/live/state").await?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let body = Limited::new(answer.into_body(), REFUSAL_BYTES_MAX)
            .collect()
            .await;
        let text = body.map(|body| body.to_bytes()).unwrap_or_default();
        bail!("{status}: {}", String::from_utf8_lossy(&text).trim());
    }

    async fn respond(&self, request: Request<Incoming>) -> Response<AnswerBody> {
        // No token is required here, so a request with another site's name is refused.
        if let Err(refusal) = check(&request, &[]) {
            return refusal.map(never);
        }
        let path = request.uri().path();
        if path != "/live" && !path.starts_with("/live/") {
            return refuse(StatusCode::NOT_FOUND, "not found; the page is at /live/").map(never);
        }
        match self.ask(path).await {
            Ok(answer) => {
                let (mut head, body) = answer.into_parts();
                for name in [CONNECTION, TRANSFER_ENCODING, SET_COOKIE] {
                    head.headers.remove(name);
                }
                Response::from_parts(head, body.map_err(BoxError::from).boxed_unsync())
            }
            Err(error) => {
                let text = format!("the cluster's page cannot be reached: {error:#}");
                let mut answer = refuse(StatusCode::BAD_GATEWAY, &text).map(never);
                let unkept = HeaderValue::from_static("no-store");
                answer.headers_mut().insert(CACHE_CONTROL, unkept);
                answer
            }
        }
    }

    async fn ask(&self, path: &str) -> anyhow::Result<Response<Incoming>> {
        let token = token(&self.token_file)?;
        let name = mutual_tls::name_of("control");
        let asked = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            bound_silence(&stream);
            let server = ServerName::try_from(name.clone()).context("invalid server name")?;
            let stream = TlsConnector::from(Arc::clone(&self.tls))
                .connect(server, stream)
                .await?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            // The task ends with the body of the answer.
            tokio::spawn(connection);
            let request = Request::get(path)
                .header(HOST, &name)
                .header(AUTHORIZATION, token)
                .body(Empty::<Bytes>::new())?;
            Ok::<_, anyhow::Error>(sender.send_request(request).await?)
        };
        timeout(HEAD_MAX, asked)
            .await
            .with_context(|| format!("no answer within {HEAD_MAX:?}"))?
    }
}

/// Returns the `Authorization` header from a token file.
fn token(file: &Path) -> anyhow::Result<HeaderValue> {
    let name = file.display();
    let size = std::fs::metadata(file)
        .with_context(|| format!("--token-file {name}"))?
        .len();
    ensure!(
        size <= TOKEN_BYTES_MAX,
        "--token-file {name}: longer than {TOKEN_BYTES_MAX} bytes"
    );
    let text = std::fs::read_to_string(file).with_context(|| format!("--token-file {name}"))?;
    let text = text.trim();
    ensure!(!text.is_empty(), "--token-file {name}: is empty");
    let mut value = HeaderValue::try_from(format!("Bearer {text}"))
        .ok()
        .filter(|_| !text.contains(char::is_whitespace))
        .with_context(|| format!("--token-file {name}: not a token"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Converts a body which cannot fail to the body of an answer.
fn never(body: ::live::page::PageBody) -> AnswerBody {
    body.map_err(|error: Infallible| match error {})
        .boxed_unsync()
}
