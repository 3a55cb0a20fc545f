//! Requests of browsers, below `/live/`.
//!
//! A state is gathered once a second while the page is read, and else every 15 s, so that the last five minutes are known.

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

/// Streams at a time.
pub const READERS_MAX: usize = 16;
/// From one state to the next while there are readers.
const PERIOD: Duration = Duration::from_secs(1);
/// The same without readers.
const IDLE_PERIOD: Duration = Duration::from_secs(15);
/// A client of `/live/state` counts as a reader for so long.
const INTEREST: Duration = Duration::from_secs(5);
/// A state is gathered within this time, or what there is is shown.
const FRESH_MAX: Duration = Duration::from_secs(5);
/// A reader takes an event within this time, or is let go.
pub const EVENT_MAX: Duration = Duration::from_secs(10);
/// Own files only, and no others; nothing is framed, and forms go nowhere.
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

/// See the [module](self).
#[derive(Debug)]
pub struct Page {
    /// Hosts for clients that have shown a token or a certificate, besides `localhost` and addresses.
    names: Vec<String>,
    latest: watch::Sender<Option<Snapshot>>,
    readers: Arc<Semaphore>,
    /// When a state was last asked for.
    asked: watch::Sender<Option<Instant>>,
    wanted: Notify,
}

/// Where states come from.
pub trait Source: Send {
    /// Returns how everything stands now.
    fn gather(&mut self) -> impl Future<Output = State> + Send;
}

/// A state as it is sent.
#[derive(Debug, Clone)]
struct Snapshot {
    json: Bytes,
    event: Bytes,
    /// When it began to be gathered.
    begun: Instant,
}

/// A body: bytes, or events until the reader is gone.
#[derive(Debug)]
pub struct PageBody(Inner);

#[derive(Debug)]
enum Inner {
    Full(Option<Bytes>),
    Events(mpsc::Receiver<Bytes>),
}

impl Page {
    /// A page with nothing to show yet. `names` are its hosts besides `localhost` and addresses, for clients that have shown a token or a certificate: a
    /// name may be made to lead to the loopback, where none is asked for.
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

    /// Gathers states for ever, as often as they are wanted.
    pub async fn run(&self, mut source: impl Source) {
        loop {
            let begun = Instant::now();
            let state = source.gather().await;
            // A state is numbers and texts.
            let json = Bytes::from(serde_json::to_vec(&state).unwrap_or_default());
            let event = [&b"data: "[..], &json, b"\n\n"].concat().into();
            self.latest
                .send_replace(Some(Snapshot { json, event, begun }));
            if self.is_read() {
                tokio::time::sleep_until(begun + PERIOD).await;
                continue;
            }
            // Woken by the next reader.
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

    /// Answers a request. GET of own paths only, from pages of the same origin. `is_known`: the client has shown a token or a
    /// certificate.
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
                    "nothing is known yet; ask again",
                ),
            },
            "/live/stream" => match Arc::clone(&self.readers).try_acquire_owned() {
                Ok(place) => self.stream(place),
                Err(_) => {
                    let text = format!("{READERS_MAX} readers are there, and no more are taken");
                    let mut full = refuse(StatusCode::SERVICE_UNAVAILABLE, &text);
                    full.headers_mut()
                        .insert(RETRY_AFTER, HeaderValue::from_static("5"));
                    full
                }
            },
            _ => refuse(
                StatusCode::NOT_FOUND,
                "there are /live/, /live/state and /live/stream",
            ),
        }
    }

    /// Returns a state that is about as old as a period at most; an older one if none comes in time.
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

/// Returns why a request is refused, if it is. `names` are hosts besides `localhost` and addresses.
///
/// # Errors
/// The answer to one that is: another method than GET, a host that the page is not at (another site's name may lead here), a page of
/// another origin. Another site may link to the page, but neither read nor start anything.
#[expect(clippy::result_large_err, reason = "an answer is what it is")]
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
        let why = format!("this page is not at the host {host:?}");
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
        let why = "requests of other pages are refused";
        return Err(refuse(StatusCode::FORBIDDEN, why));
    }
    Ok(())
}

fn is_own(authority: &str, names: &[String]) -> bool {
    let host = host_of(authority);
    // An address cannot be another site's name.
    let is_address = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let is_named = |name: &String| name.eq_ignore_ascii_case(host);
    is_address || host.eq_ignore_ascii_case("localhost") || names.iter().any(is_named)
}

/// Sends the latest state whenever there is one, until the reader is gone or takes nothing. One that is slow misses those in between.
async fn follow(
    mut latest: watch::Receiver<Option<Snapshot>>,
    sender: mpsc::Sender<Bytes>,
    _place: OwnedSemaphorePermit,
) {
    latest.mark_changed();
    // Browsers come again after so many ms.
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

/// Returns an answer with a line of text.
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
