//! Requests of browsers, below `/live/`.
//!
//! A state is gathered once a second while the page is open, and otherwise every 15 s, so that the last five minutes
//! are known.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, HeaderValue,
    LOCATION, ORIGIN, REFERRER_POLICY, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS,
};
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::state::State;

/// Largest number of streams at a time.
pub const READERS_MAX: usize = 16;
/// Period of states while there are readers.
const PERIOD: Duration = Duration::from_secs(1);
/// Period of states without readers.
const IDLE_PERIOD: Duration = Duration::from_secs(15);
/// Time for which a client of `/live/state` counts as a reader.
const INTEREST: Duration = Duration::from_secs(5);
/// Longest wait for a new state; after it the last one is returned.
const FRESH_MAX: Duration = Duration::from_secs(5);
/// Longest time for a reader to accept an event before its stream is closed.
pub const EVENT_MAX: Duration = Duration::from_secs(10);
/// Content-Security-Policy: own files only, no framing, and no form targets.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);
const HTML: &str = "text/html; charset=utf-8";
/// The page's files: path, type, contents.
pub const FILES: [(&str, &str, &str); 3] = [
    ("/live/", HTML, include_str!("../page/index.html")),
    (
        "/live/live.css",
        "text/css; charset=utf-8",
        include_str!("../page/live.css"),
    ),
    (
        "/live/live.js",
        "text/javascript; charset=utf-8",
        include_str!("../page/live.js"),
    ),
];

/// The live page: its latest state and its readers.
#[derive(Debug)]
pub struct Page {
    /// Host names for authenticated clients, besides `localhost` and addresses.
    names: Vec<String>,
    latest: watch::Sender<Option<Snapshot>>,
    readers: Arc<Semaphore>,
    /// Time of the last query of a state.
    asked: watch::Sender<Option<Instant>>,
    wanted: Notify,
}

/// A source of states.
pub trait Source: Send {
    /// Returns the current state.
    fn gather(&mut self) -> impl Future<Output = State> + Send;
}

/// A state in its serialized forms.
#[derive(Debug, Clone)]
struct Snapshot {
    json: Bytes,
    event: Bytes,
    /// Time at which the gathering of this state started.
    begun: Instant,
}

/// A body: bytes, or events until the reader disconnects.
#[derive(Debug)]
pub struct PageBody(Inner);

#[derive(Debug)]
enum Inner {
    Full(Option<Bytes>),
    Events(mpsc::Receiver<Bytes>),
}

impl Page {
    /// Returns a page without a state yet. `names` are its host names, besides `localhost` and addresses, for clients
    /// that have authenticated by token or certificate: another site's DNS name may resolve to loopback, where clients
    /// need not authenticate.
    #[must_use]
    pub fn new(names: Vec<String>) -> Arc<Self> {
        Arc::new(Self {
            names,
            latest: watch::Sender::new(None),
            readers: Arc::new(Semaphore::new(READERS_MAX)),
            asked: watch::Sender::new(None),
            wanted: Notify::new(),
        })
    }

    /// Gathers states as often as needed; never returns.
    pub async fn run(&self, mut source: impl Source) {
        loop {
            let begun = Instant::now();
            let state = source.gather().await;
            // Serialization cannot fail: a state consists of numbers and texts.
            let json = Bytes::from(serde_json::to_vec(&state).unwrap_or_default());
            let event = [&b"data: "[..], &json, b"\n\n"].concat().into();
            self.latest
                .send_replace(Some(Snapshot { json, event, begun }));
            if self.is_read() {
                tokio::time::sleep_until(begun + PERIOD).await;
                continue;
            }
            // The next reader wakes this up.
            let _wanted = timeout_at(begun + IDLE_PERIOD, self.wanted.notified()).await;
        }
    }

    fn is_read(&self) -> bool {
        let is_asked = self
            .asked
            .borrow()
            .is_some_and(|at| at.elapsed() < INTEREST);
        is_asked || self.readers.available_permits() < READERS_MAX
    }

    /// Returns the answer to a request. Only GET of the page's own paths from pages of the same origin is allowed.
    /// `is_known`: the client has authenticated by token or certificate.
    pub async fn respond<B>(&self, request: &Request<B>, is_known: bool) -> Response<PageBody> {
        let names: &[String] = if is_known { &self.names } else { &[] };
        if let Err(refusal) = check(request, names) {
            return refusal;
        }
        let path = request.uri().path();
        if let Some((_, kind, text)) = FILES.iter().find(|(own, ..)| *own == path) {
            let text = Bytes::from_static(text.as_bytes());
            return answer(StatusCode::OK, kind, Inner::Full(Some(text)));
        }
        match path {
            "/live" => {
                let mut moved = refuse(StatusCode::PERMANENT_REDIRECT, "/live/");
                let there = HeaderValue::from_static("/live/");
                moved.headers_mut().insert(LOCATION, there);
                moved
            }
            "/live/state" => match self.fresh().await {
                Some(json) => answer(StatusCode::OK, "application/json", Inner::Full(Some(json))),
                None => refuse(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "no state is available yet; try again",
                ),
            },
            "/live/stream" => match Arc::clone(&self.readers).try_acquire_owned() {
                Ok(place) => self.stream(place),
                Err(_) => {
                    let text = format!("the limit of {READERS_MAX} readers is reached");
                    let mut full = refuse(StatusCode::SERVICE_UNAVAILABLE, &text);
                    full.headers_mut()
                        .insert(RETRY_AFTER, HeaderValue::from_static("5"));
                    full
                }
            },
            _ => refuse(
                StatusCode::NOT_FOUND,
                "not found; available: /live/, /live/state and /live/stream",
            ),
        }
    }

    /// Returns a state that is at most about one period old, or the last state if no new one is ready within
    /// [`FRESH_MAX`].
    async fn fresh(&self) -> Option<Bytes> {
        let now = Instant::now();
        self.asked.send_replace(Some(now));
        self.wanted.notify_one();
        let mut latest = self.latest.subscribe();
        let is_fresh =
            |it: &Option<Snapshot>| it.as_ref().is_some_and(|it| it.begun + PERIOD >= now);
        let _late = timeout(FRESH_MAX, latest.wait_for(is_fresh)).await;
        self.latest.borrow().as_ref().map(|it| it.json.clone())
    }

    fn stream(&self, place: OwnedSemaphorePermit) -> Response<PageBody> {
        self.wanted.notify_one();
        let (sender, events) = mpsc::channel(1);
        let latest = self.latest.subscribe();
        tokio::spawn(follow(latest, sender, place));
        answer(StatusCode::OK, "text/event-stream", Inner::Events(events))
    }
}

/// Checks whether a request is allowed. `names` are host names of the page besides `localhost` and addresses.
///
/// # Errors
///
/// Fails with the answer to a refused request: another method than GET, a host name that is not the page's (another
/// site's name may resolve to it), or a page of another origin. Another site may link to the page, but neither read it
/// nor trigger an action.
#[expect(clippy::result_large_err, reason = "the error is the answer itself")]
pub fn check<B>(request: &Request<B>, names: &[String]) -> Result<(), Response<PageBody>> {
    if request.method() != Method::GET {
        let mut answer = refuse(StatusCode::METHOD_NOT_ALLOWED, "allowed: GET");
        let allowed = HeaderValue::from_static("GET");
        answer.headers_mut().insert(ALLOW, allowed);
        return Err(answer);
    }
    let headers = request.headers();
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(HOST).unwrap_or_default();
    let authority = request.uri().host();
    if !is_own(host, names) || authority.is_some_and(|authority| !is_own(authority, names)) {
        let why = format!("this page is not served at the host {host:?}");
        return Err(refuse(StatusCode::MISDIRECTED_REQUEST, &why));
    }
    let is_same = |origin: &str| {
        let plain = origin.strip_prefix("http://");
        plain.or_else(|| origin.strip_prefix("https://")) == Some(host)
    };
    let is_foreign = headers.contains_key(ORIGIN) && !text(ORIGIN).is_some_and(is_same);
    let fetch = |name: &'static str| text(HeaderName::from_static(name));
    let is_elsewhere = matches!(fetch("sec-fetch-site"), Some("cross-site" | "same-site"));
    let is_link = matches!(request.uri().path(), "/live" | "/live/")
        && fetch("sec-fetch-mode") == Some("navigate")
        && matches!(fetch("sec-fetch-dest"), None | Some("document"));
    if is_foreign || is_elsewhere && !is_link {
        let why = "requests from other origins are refused";
        return Err(refuse(StatusCode::FORBIDDEN, why));
    }
    Ok(())
}

fn is_own(authority: &str, names: &[String]) -> bool {
    let host = host_of(authority);
    // A literal address cannot be another site's name.
    let is_address = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let is_named = |name: &String| name.eq_ignore_ascii_case(host);
    is_address || host.eq_ignore_ascii_case("localhost") || names.iter().any(is_named)
}

/// Sends each new state until the reader disconnects or does not accept it within [`EVENT_MAX`]. A slow reader misses
/// intermediate states.
async fn follow(
    mut latest: watch::Receiver<Option<Snapshot>>,
    sender: mpsc::Sender<Bytes>,
    _place: OwnedSemaphorePermit,
) {
    latest.mark_changed();
    // Time in ms after which browsers reconnect.
    let mut event = Bytes::from_static(b"retry: 2000\n\n");
    loop {
        if sender.send_timeout(event, EVENT_MAX).await.is_err() {
            return;
        }
        event = loop {
            tokio::select! {
                changed = latest.changed() => if changed.is_err() { return },
                () = sender.closed() => return,
            }
            if let Some(snapshot) = &*latest.borrow_and_update() {
                break snapshot.event.clone();
            }
        };
    }
}

/// Returns a host without its port.
fn host_of(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

fn answer(status: StatusCode, kind: &'static str, body: Inner) -> Response<PageBody> {
    let mut answer = Response::new(PageBody(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    for (name, value) in [
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// Returns an answer with one line of text.
#[must_use]
pub fn refuse(status: StatusCode, text: &str) -> Response<PageBody> {
    let text = Bytes::from(format!("{text}\n"));
    answer(status, "text/plain; charset=utf-8", Inner::Full(Some(text)))
}

impl Body for PageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = match &mut self.0 {
            Inner::Full(bytes) => Poll::Ready(bytes.take()),
            Inner::Events(events) => events.poll_recv(context),
        };
        bytes.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, Inner::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Full(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Inner::Events(_) => SizeHint::default(),
        }
    }
}
