//! Readiness checks of the user containers, run when the pod is probed.
//!
//! Probes that arrive while a check runs share its result, which is not cached afterwards. A probe that is cancelled does
//! not end the check.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_TYPE, HOST, HeaderName, LOCATION, TE, USER_AGENT,
};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

/// Interval between attempts in aggressive mode, which a period of 0 selects. Fixed by Knative.
const AGGRESSIVE_PERIOD: Duration = Duration::from_millis(50);
/// Time limit of one attempt in aggressive mode. Fixed by Knative.
const AGGRESSIVE_TIMEOUT: Duration = Duration::from_millis(100);
/// Time after which the check fails in aggressive mode. Fixed by Knative.
const AGGRESSIVE_GIVE_UP: Duration = Duration::from_secs(10);
/// Largest number of redirects to follow, as in Kubernetes.
const REDIRECTS_MAX: u32 = 10;
/// Largest body of a health answer that is read, in bytes.
const BODY_BYTES_MAX: usize = 10 * 1024;

/// A readiness probe, parsed from Kubernetes' `Probe` as Knative passes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Probe {
    check: Check,
    /// Interval between probes; zero selects the aggressive mode.
    period: Duration,
    timeout: Duration,
    success_threshold: u32,
}

/// The check of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Check {
    Http {
        port: u16,
        path: String,
        headers: Vec<(HeaderName, HeaderValue)>,
        secure: bool,
    },
    Tcp {
        port: u16,
    },
    Grpc {
        port: u16,
        service: String,
    },
    /// A probe without a check, which always passes.
    Always,
    /// A command, which only the kubelet can run.
    Exec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawProbe {
    http_get: Option<RawHttpGet>,
    tcp_socket: Option<RawTcpSocket>,
    grpc: Option<RawGrpc>,
    exec: Option<serde_json::Value>,
    period_seconds: i64,
    timeout_seconds: i64,
    success_threshold: i64,
}

impl Default for RawProbe {
    fn default() -> Self {
        Self {
            http_get: None,
            tcp_socket: None,
            grpc: None,
            exec: None,
            period_seconds: 0,
            timeout_seconds: 1,
            success_threshold: 1,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawHttpGet {
    #[serde(default)]
    path: String,
    port: u16,
    #[serde(default)]
    scheme: String,
    #[serde(default)]
    http_headers: Vec<RawHeader>,
}

#[derive(Deserialize)]
struct RawHeader {
    name: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
struct RawTcpSocket {
    port: u16,
}

#[derive(Deserialize)]
struct RawGrpc {
    port: u16,
    #[serde(default)]
    service: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(Box<RawProbe>),
    Many(Vec<Option<RawProbe>>),
}

impl Probe {
    /// Parses `SERVING_READINESS_PROBE`: one probe or an array of them. An empty text or `null` yields no probes.
    ///
    /// # Errors
    /// Returns a message with the position of a syntax error, or with the required form.
    pub(crate) fn parse_list(json: &str) -> Result<Vec<Self>, String> {
        if json.trim().is_empty() {
            return Ok(Vec::new());
        }
        // Errors of the untagged form below have no position, those of this first pass do.
        serde_json::from_str::<serde_json::Value>(json).map_err(|error| error.to_string())?;
        let raw: Option<OneOrMany> = serde_json::from_str(json).map_err(|_| {
            "allowed: a Kubernetes Probe object or an array of them, with ports as numbers"
                .to_owned()
        })?;
        match raw {
            None => Ok(Vec::new()),
            Some(OneOrMany::One(probe)) => Ok(vec![Self::from_raw(*probe)]),
            Some(OneOrMany::Many(probes)) => {
                Ok(probes.into_iter().flatten().map(Self::from_raw).collect())
            }
        }
    }

    fn from_raw(raw: RawProbe) -> Self {
        let check = if let Some(get) = raw.http_get {
            Check::Http {
                port: get.port,
                path: if get.path.starts_with('/') {
                    get.path
                } else {
                    format!("/{}", get.path)
                },
                headers: get.http_headers.iter().filter_map(probe_header).collect(),
                secure: get.scheme.eq_ignore_ascii_case("https"),
            }
        } else if let Some(tcp) = raw.tcp_socket {
            Check::Tcp { port: tcp.port }
        } else if let Some(grpc) = raw.grpc {
            Check::Grpc {
                port: grpc.port,
                service: grpc.service.unwrap_or_default(),
            }
        } else if raw.exec.is_some() {
            Check::Exec
        } else {
            Check::Always
        };
        let seconds = |n: i64| Duration::from_secs(u64::try_from(n).unwrap_or(0));
        Self {
            check,
            period: seconds(raw.period_seconds),
            timeout: seconds(raw.timeout_seconds).max(Duration::from_secs(1)),
            success_threshold: u32::try_from(raw.success_threshold).unwrap_or(1).max(1),
        }
    }
}

/// Parses a header of an HTTP probe. Returns `None` for an invalid one, and for `Host` and `User-Agent`, which cannot be
/// overridden, as under Knative.
fn probe_header(raw: &RawHeader) -> Option<(HeaderName, HeaderValue)> {
    let name = HeaderName::from_bytes(raw.name.as_bytes()).ok()?;
    let value = HeaderValue::from_str(&raw.value).ok()?;
    (name != HOST && name != USER_AGENT).then_some((name, value))
}

/// Longest time until a user container accepts a connection while its model is in host memory.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// Runner of the checks, of which one runs at a time for all concurrent probes.
#[derive(Debug)]
pub(crate) struct Prober {
    probes: Vec<(Probe, AtomicU32)>,
    http2_first: bool,
    running: Mutex<Option<watch::Receiver<Option<bool>>>>,
    /// Outcome of the last checks.
    was_ready: AtomicBool,
}

impl Prober {
    /// Creates a prober that passes if all of `probes` pass. `http2_first` lets HTTP probes try HTTP/2 first.
    #[must_use]
    pub(crate) fn new(probes: Vec<Probe>, http2_first: bool) -> Arc<Self> {
        Arc::new(Self {
            probes: probes
                .into_iter()
                .map(|probe| (probe, AtomicU32::new(0)))
                .collect(),
            http2_first,
            running: Mutex::new(None),
            was_ready: AtomicBool::new(false),
        })
    }

    /// Returns whether all user containers are ready now, by running the checks or joining a running one.
    pub(crate) async fn is_ready(self: &Arc<Self>) -> bool {
        if self.probes.is_empty() {
            return true;
        }
        let mut result = {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            match &*running {
                Some(result) => result.clone(),
                None => {
                    let (sender, result) = watch::channel(None);
                    *running = Some(result.clone());
                    let prober = Arc::clone(self);
                    tokio::spawn(async move {
                        // Dropped before the result is sent, and also on a panic, so that the next probe begins a new check.
                        let running = RunningCheck(Arc::clone(&prober));
                        let ready = prober.check_all().await;
                        prober.was_ready.store(ready, Ordering::Relaxed);
                        drop(running);
                        sender.send_replace(Some(ready));
                    });
                    result
                }
            }
        };
        // An error means that the check panicked, which counts as not ready.
        result
            .wait_for(Option::is_some)
            .await
            .is_ok_and(|ready| *ready == Some(true))
    }

    /// Returns whether the user containers were ready when that was last checked, and this one still accepts a connection.
    pub(crate) async fn is_listening(&self, target: SocketAddr) -> bool {
        let was_ready = self.probes.is_empty() || self.was_ready.load(Ordering::Relaxed);
        let connected = tokio::time::timeout(CONNECT_MAX, TcpStream::connect(target));
        was_ready && matches!(connected.await, Ok(Ok(_)))
    }

    async fn check_all(self: &Arc<Self>) -> bool {
        if let [(probe, successes)] = &self.probes[..] {
            return probe.check(successes, self.http2_first).await;
        }
        let mut checks = tokio::task::JoinSet::new();
        for at in 0..self.probes.len() {
            let prober = Arc::clone(self);
            checks.spawn(async move {
                let (probe, successes) = &prober.probes[at];
                probe.check(successes, prober.http2_first).await
            });
        }
        while let Some(outcome) = checks.join_next().await {
            if !outcome.unwrap_or(false) {
                return false;
            }
        }
        true
    }
}

/// Guard of a running check.
struct RunningCheck(Arc<Prober>);

impl Drop for RunningCheck {
    fn drop(&mut self) {
        *self
            .0
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Probe {
    /// Runs the check, with a single attempt or in aggressive mode. `successes` is kept for the lifetime of the process:
    /// once the threshold has been reached, one success is enough.
    async fn check(&self, successes: &AtomicU32, http2_first: bool) -> bool {
        if !self.period.is_zero() {
            return match self.attempt(self.timeout, http2_first).await {
                Ok(()) => true,
                Err(why) => {
                    tracing::info!(%why, "readiness check failed");
                    false
                }
            };
        }
        let mut failures = 0_u32;
        let mut tick = tokio::time::interval(AGGRESSIVE_PERIOD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ready = tokio::time::timeout(AGGRESSIVE_GIVE_UP, async {
            loop {
                tick.tick().await;
                match self.attempt(AGGRESSIVE_TIMEOUT, http2_first).await {
                    Ok(()) => {
                        let row = successes.load(Ordering::Relaxed).saturating_add(1);
                        successes.store(row, Ordering::Relaxed);
                        if row >= self.success_threshold {
                            return;
                        }
                    }
                    Err(why) => {
                        successes.store(0, Ordering::Relaxed);
                        if failures == 0 {
                            tracing::info!(%why, "readiness check failed, retrying");
                        }
                        failures += 1;
                    }
                }
            }
        })
        .await
        .is_ok();
        if !ready {
            tracing::warn!(failures, "the user container did not become ready in 10 s");
        }
        ready
    }

    async fn attempt(&self, limit: Duration, http2_first: bool) -> Result<(), String> {
        tokio::time::timeout(limit, self.check.run(http2_first))
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
    }
}

impl Check {
    async fn run(&self, http2_first: bool) -> Result<(), String> {
        match self {
            Self::Always => Ok(()),
            Self::Exec => {
                Err("exec probes are not supported here; the kubelet runs them".to_owned())
            }
            Self::Tcp { port } => connect(*port).await.map(drop),
            Self::Http {
                port,
                path,
                headers,
                secure,
            } => {
                let status = if http2_first
                    && !secure
                    && let Ok(status) = get_http2(*port, path).await
                {
                    status
                } else {
                    get(*port, *secure, path, headers).await?
                };
                if (200..400).contains(&status.as_u16()) {
                    Ok(())
                } else {
                    Err(format!("HTTP probe failed with status {status}"))
                }
            }
            Self::Grpc { port, service } => grpc_health(*port, service).await,
        }
    }
}

async fn connect(port: u16) -> Result<TcpStream, String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpStream::connect(address)
        .await
        .map_err(|error| format!("dial tcp {address}: {error}"))
}

/// Sends a GET and follows redirects that stay on this host. Returns the last status.
async fn get(
    port: u16,
    secure: bool,
    path: &str,
    headers: &[(HeaderName, HeaderValue)],
) -> Result<StatusCode, String> {
    let mut target = path.to_owned();
    for _ in 0..=REDIRECTS_MAX {
        let response = get_once(port, secure, &target, headers).await?;
        let location = response
            .headers()
            .get(LOCATION)
            .and_then(|value| value.to_str().ok());
        match location.filter(|_| response.status().is_redirection()) {
            Some(location) => match same_host(location, &target, port) {
                Some(next) => target = next,
                None => return Ok(response.status()),
            },
            None => return Ok(response.status()),
        }
    }
    Err(format!("stopped after {REDIRECTS_MAX} redirects"))
}

/// Returns the target of a redirect from `target` if it stays on this host (RFC 3986 5.2), else `None`.
fn same_host(location: &str, target: &str, port: u16) -> Option<String> {
    if !location.contains("//") && !location.starts_with('/') {
        let path = target.split('?').next().unwrap_or("/");
        let folder = &path[..=path.rfind('/')?];
        return Some(format!("{folder}{location}"));
    }
    let uri: Uri = location.parse().ok()?;
    let here = format!("127.0.0.1:{port}");
    if uri
        .authority()
        .is_some_and(|authority| authority.as_str() != here)
    {
        return None;
    }
    uri.path_and_query()
        .map(|target| target.as_str().to_owned())
}

async fn get_once(
    port: u16,
    secure: bool,
    target: &str,
    headers: &[(HeaderName, HeaderValue)],
) -> Result<Response<Incoming>, String> {
    let socket = connect(port).await?;
    if secure {
        let stream = proxy::tls::connect_unverified(socket)
            .await
            .map_err(|error| format!("TLS with 127.0.0.1:{port}: {error}"))?;
        exchange_http1(stream, port, target, headers).await
    } else {
        exchange_http1(socket, port, target, headers).await
    }
}

async fn exchange_http1(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    port: u16,
    target: &str,
    headers: &[(HeaderName, HeaderValue)],
) -> Result<Response<Incoming>, String> {
    let (mut sender, driver) = http1::Builder::new()
        .title_case_headers(true)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let mut request = Request::get(target)
        .header(HOST, format!("127.0.0.1:{port}"))
        .header(USER_AGENT, "kube-probe//")
        .header(ACCEPT_ENCODING, "gzip")
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    for (name, value) in headers {
        request.headers_mut().insert(name, value.clone());
    }
    let exchange = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| error.to_string())?;
        Ok(response)
    };
    while_driven(exchange, driver).await
}

/// Runs an exchange while driving its connection. The connection may end before the exchange has been polled for the
/// answer.
async fn while_driven<T>(exchange: impl Future<Output = T>, driver: impl Future) -> T {
    let mut exchange = pin!(exchange);
    tokio::select! {
        biased;
        output = &mut exchange => return output,
        _over = driver => {}
    }
    exchange.await
}

async fn get_http2(port: u16, path: &str) -> Result<StatusCode, String> {
    let request = Request::get(format!("http://127.0.0.1:{port}{path}"))
        .header(USER_AGENT, "kube-probe//")
        .body(Full::new(Bytes::new()))
        .map_err(|error| error.to_string())?;
    exchange_http2(port, request)
        .await
        .map(|response| response.status())
}

async fn exchange_http2(
    port: u16,
    request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>, String> {
    let socket = connect(port).await?;
    let (mut sender, driver) = http2::handshake(TokioExecutor::new(), TokioIo::new(socket))
        .await
        .map_err(|error| error.to_string())?;
    let exchange = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| error.to_string())?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, BODY_BYTES_MAX)
            .collect()
            .await
            .map_err(|error| error.to_string())?
            .to_bytes();
        Ok(Response::from_parts(parts, body))
    };
    while_driven(exchange, driver).await
}

/// Calls `grpc.health.v1.Health/Check`, which passes only on `SERVING`.
async fn grpc_health(port: u16, service: &str) -> Result<(), String> {
    // HealthCheckRequest: the service's name is field 1.
    let mut message = BytesMut::new();
    if !service.is_empty() {
        message.put_u8(0x0A);
        prost::encoding::encode_varint(service.len() as u64, &mut message);
        message.put_slice(service.as_bytes());
    }
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).map_err(|_| "the service name is too long")?);
    framed.extend_from_slice(&message);
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!(
            "http://127.0.0.1:{port}/grpc.health.v1.Health/Check"
        ))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(USER_AGENT, "kube-probe/")
        .body(Full::new(framed.freeze()))
        .map_err(|error| error.to_string())?;
    let response = exchange_http2(port, request).await?;
    // HealthCheckResponse: status is field 1, SERVING is 1. The message follows a gRPC frame header of five bytes.
    match response.body().get(5..) {
        Some([0x08, 0x01, ..]) => Ok(()),
        _ => Err("gRPC probe: the service is not SERVING".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_parsed_with_kubernetes_names() {
        let probes = Probe::parse_list(
            r#"{"httpGet":{"path":"health","port":8080,"scheme":"HTTP","httpHeaders":[{"name":"X-A","value":"b"},{"name":"Host","value":"c"}]},
                "periodSeconds":5,"timeoutSeconds":2,"successThreshold":3,"failureThreshold":9}"#,
        )
        .unwrap();
        assert_eq!(
            probes,
            [Probe {
                check: Check::Http {
                    port: 8080,
                    path: "/health".to_owned(),
                    headers: vec![(
                        HeaderName::from_static("x-a"),
                        HeaderValue::from_static("b")
                    )],
                    secure: false,
                },
                period: Duration::from_secs(5),
                timeout: Duration::from_secs(2),
                success_threshold: 3,
            }]
        );
    }

    #[test]
    fn redirects_are_followed_on_this_host_only() {
        let next = |location| same_host(location, "/a/health?x=1", 80);
        assert_eq!(next("/ready?y=2").as_deref(), Some("/ready?y=2"));
        assert_eq!(next("http://127.0.0.1:80/ready").as_deref(), Some("/ready"));
        assert_eq!(next("ready").as_deref(), Some("/a/ready"));
        assert_eq!(next("http://elsewhere/ready"), None);
    }

    #[test]
    fn empty_text_null_and_arrays_are_accepted() {
        assert_eq!(Probe::parse_list(""), Ok(Vec::new()));
        assert_eq!(Probe::parse_list("null"), Ok(Vec::new()));
        let probes = Probe::parse_list(
            r#"[null,{"tcpSocket":{"port":1}},{"grpc":{"port":2,"service":"s"}}]"#,
        );
        let checks: Vec<_> = probes
            .unwrap()
            .into_iter()
            .map(|probe| probe.check)
            .collect();
        assert_eq!(
            checks,
            [
                Check::Tcp { port: 1 },
                Check::Grpc {
                    port: 2,
                    service: "s".to_owned()
                }
            ]
        );
    }

    #[test]
    fn invalid_probes_are_refused() {
        assert!(Probe::parse_list("{").unwrap_err().contains("line 1"));
        assert!(Probe::parse_list("3").is_err());
        assert!(Probe::parse_list(r#"{"httpGet":{"port":"http"}}"#).is_err());
    }
}
