//! A request's way through the proxy, layer by layer, outermost first: checks, probes, drain, timeouts,
//! forwarding headers, stat, gate, user container.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Poll;

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderValue, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::{Body as _, Incoming};
use hyper::ext::on_informational;
use policy::Time;
use policy::gate::{Order, Settings};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::admission::{Admission, Claim};
use crate::body::{
    ClientBody, InFlight, ProxyBody, ReadAhead, Relay, SERVER_TIMING, Source, timing,
};
use crate::class;
use crate::clock::Clock;
use crate::config::Config;
use crate::connection::{Client, Handler};
use crate::deadline::{Deadlines, Told};
use crate::drain::Drain;
use crate::headers;
use crate::probe;
use crate::readiness::Prober;
use crate::respond;
use crate::stat::Stat;
use crate::timeouts::Timeouts;
use crate::tunnel::Tunnel;
use crate::upstream::{Connection, Upstream, UpstreamError};

/// The main listener's handler.
#[derive(Debug)]
pub(crate) struct Proxy {
    config: Config,
    clock: Clock,
    /// `None`: the user container takes any number of requests.
    admission: Option<Arc<Admission>>,
    deadlines: Deadlines,
    upstream: Arc<Upstream>,
    stat: Arc<Stat>,
    drain: Arc<Drain>,
    prober: Arc<Prober>,
    tunnels: TaskTracker,
    read_ahead: Arc<ReadAhead>,
}

impl Proxy {
    /// The proxy of a pod.
    #[must_use]
    pub(crate) fn new(config: Config, stat: Arc<Stat>, drain: Arc<Drain>) -> Arc<Self> {
        let clock = Clock::start();
        let order = if config.options.slo.is_some() {
            Order::Deadline
        } else {
            Order::Arrival
        };
        let admission = config.concurrency().map(|concurrency| {
            let late = config.options.late.0;
            Admission::new(
                Settings {
                    concurrency,
                    depth: config.queue_depth(),
                    order,
                    late,
                },
                clock,
            )
        });
        Arc::new(Self {
            clock,
            admission,
            deadlines: Deadlines::new(config.options.slo, config.request_timeout),
            upstream: Upstream::new(config.user_port, config.idle_connections()),
            stat,
            drain,
            prober: Prober::new(config.readiness.clone(), config.http2_auto_detection),
            tunnels: TaskTracker::new(),
            read_ahead: Arc::default(),
            config,
        })
    }

    /// Tunnels that are open.
    #[must_use]
    pub(crate) const fn tunnels(&self) -> &TaskTracker {
        &self.tunnels
    }

    /// Deadline headers that could not be used.
    #[must_use]
    pub(crate) fn unusable_headers(&self) -> u64 {
        self.deadlines.unusable()
    }

    /// The gate, if there is one.
    #[must_use]
    pub(crate) const fn admission(&self) -> Option<&Arc<Admission>> {
        self.admission.as_ref()
    }

    /// Connections to the user container.
    #[must_use]
    pub(crate) const fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }

    async fn serve(&self, client: Client, mut request: Request<Incoming>) -> Response<ProxyBody> {
        let arrival = Instant::now();
        let serving = client.http1.as_ref().map(|connection| connection.begin());
        if let Some(answer) = refuse_malformed(&mut request) {
            discard(request.into_body(), &client);
            return answer;
        }
        if let Some(kind) = probe::classify(request.headers()) {
            discard(request.into_body(), &client);
            return probe::answer(kind, &self.drain, &self.prober).await;
        }
        self.drain.note_request();
        let timeouts = Timeouts::new(&self.config, arrival);
        let grpc = respond::is_grpc(request.headers());
        // Interim responses are watched only where they matter: it costs an allocation.
        let informed = timeouts.watch_interim().then(Arc::<AtomicBool>::default);
        let in_flight = InFlight {
            serving,
            ..InFlight::default()
        };
        let forward = self.forward(
            &client,
            request,
            in_flight,
            timeouts.clone(),
            informed.clone(),
        );
        timeouts
            .run(informed.as_ref(), forward)
            .await
            .unwrap_or_else(|_| respond::timeout(grpc))
    }

    async fn forward(
        &self,
        client: &Client,
        mut request: Request<Incoming>,
        mut in_flight: InFlight,
        timeouts: Timeouts,
        informed: Option<Arc<AtomicBool>>,
    ) -> Response<ProxyBody> {
        let protocol = client
            .http1
            .as_ref()
            .and_then(|_| headers::upgrade_protocol(request.headers()));
        let on_upgrade = protocol.is_some().then(|| hyper::upgrade::on(&mut request));
        let (mut parts, incoming) = request.into_parts();
        let mut body = ClientBody::new(incoming, client.http1.clone());
        let grpc = respond::is_grpc(&parts.headers);
        let head_only = parts.method == Method::HEAD;
        let http2 = parts.version == Version::HTTP_2;

        headers::add_forwarded(&mut parts.headers);
        let counted = !self.is_kubelet(client, &parts.headers);
        if counted {
            let proxied = parts
                .headers
                .get(headers::PROXY_REQUEST)
                .is_some_and(|v| v == "activator");
            in_flight.counted = Some(self.stat.arrive(timeouts.arrival, proxied));
        }
        let arrival = self.clock.time(timeouts.arrival);
        let told = self.deadlines_of(&parts.headers, arrival);
        if counted && let Some(admission) = &self.admission {
            let length = if body.is_empty() {
                Some(0)
            } else {
                headers::content_length(&parts.headers)
            };
            let claim = Claim {
                arrival,
                deadline: told.deadline,
                class: class::of(told.deadline.objective, length),
            };
            let mut acquire = pin!(Arc::clone(admission).acquire(claim));
            // Reading would tell a client that waits for it to go on.
            let reads = client.http1.is_some() && !headers::expects_continue(&parts.headers);
            let acquired = poll_fn(|cx| {
                let acquired = acquire.as_mut().poll(cx);
                if acquired.is_pending() && reads {
                    body.read_ahead(&self.read_ahead, cx);
                }
                acquired
            });
            match acquired.await {
                Ok(permit) => in_flight.permit = Some(permit),
                Err(refused) => return respond::refused(refused, grpc),
            }
        }
        let begun = Instant::now();

        self.rewrite(&mut parts, client, &told, arrival, &body);
        if let Some(protocol) = &protocol {
            parts
                .headers
                .insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            parts.headers.insert(UPGRADE, protocol.clone());
        }
        let hold = (headers::expects_continue(&parts.headers) && !http2 && !body.is_empty())
            .then(|| body.hold());
        let mut request = Request::from_parts(parts, body);
        if hold.is_some() || informed.is_some() {
            let hold = hold.clone();
            on_informational(&mut request, move |interim| {
                if let Some(informed) = &informed {
                    informed.store(true, std::sync::atomic::Ordering::Relaxed);
                }
                if let Some(hold) = hold.as_ref().filter(|_| interim.status() == 100) {
                    hold.release();
                }
            });
        }
        let sent = if http2 {
            self.upstream
                .send_http2(request)
                .await
                .map(|(response, stream)| (response, Source::Http2(stream)))
        } else {
            self.upstream
                .send(request)
                .await
                .map(|(response, connection)| {
                    (
                        response,
                        Source::Http1(connection, Arc::clone(&self.upstream)),
                    )
                })
        };
        if let Some(hold) = hold {
            hold.answered();
        }
        let (response, source) = match sent {
            Ok(sent) => sent,
            Err(error) => {
                tracing::debug!(%error, "no answer from the user container");
                return respond::bad_gateway(&error, grpc);
            }
        };
        let (mut answer, incoming) = response.into_parts();
        answer.extensions = http::Extensions::new();
        answer.version = Version::HTTP_11;
        let switched = if answer.status == StatusCode::SWITCHING_PROTOCOLS {
            headers::upgrade_protocol(&answer.headers)
        } else {
            None
        };
        headers::remove_hop_by_hop(&mut answer.headers);
        if let Some(reason) = headers::reason_phrase(answer.status) {
            answer.extensions.insert(reason);
        }
        self.add_server_timing(&mut answer.headers, timeouts.arrival, begun);

        if answer.status == StatusCode::SWITCHING_PROTOCOLS {
            let agreed = protocol
                .zip(switched)
                .filter(|(asked, given)| asked.as_bytes().eq_ignore_ascii_case(given.as_bytes()));
            let (Some(client_side), Source::Http1(connection, _), Some((_, given))) =
                (on_upgrade, source, agreed)
            else {
                return respond::error(
                    StatusCode::BAD_GATEWAY,
                    "the user container switched to a protocol that was not asked for",
                );
            };
            // The client's connection is a tunnel's from here on: its end of input is the tunnel's.
            in_flight.serving = None;
            if let Some(connection) = &client.http1 {
                connection.note_upgraded();
            }
            let upgrade = open_tunnel(
                &mut answer.headers,
                given,
                connection,
                client_side,
                in_flight,
                timeouts,
            )
            .await;
            self.tunnels.spawn(upgrade.run());
            return Response::from_parts(answer, ProxyBody::empty());
        }

        let length = headers::content_length(&answer.headers).filter(|_| !head_only);
        if length.is_some() {
            answer.headers.remove(TRAILER);
        }
        let mut relay = Relay::new(incoming, source, in_flight, timeouts);
        relay.remaining = length;
        relay.mid_stream_timeout = self.config.options.mid_stream_timeout;
        relay.http1.clone_from(&client.http1);
        relay.server_timing_since =
            (http2 && self.config.options.opted_in() && !head_only).then_some(begun);
        if length.is_some_and(|length| length > 0)
            && is_untyped(&answer.headers)
            && !relay.incoming.is_end_stream()
        {
            match relay.first_bytes().await {
                Ok(bytes) => {
                    let kind = HeaderValue::from_static(crate::sniff::content_type(&bytes));
                    answer.headers.insert(CONTENT_TYPE, kind);
                }
                Err(error) => {
                    return respond::bad_gateway(&UpstreamError::Unreadable(error), grpc);
                }
            }
        }
        let mut relay = Some(relay);
        let body = poll_fn(|cx| {
            Poll::Ready(
                relay
                    .take()
                    .map_or_else(ProxyBody::empty, |relay| relay.into_body(cx)),
            )
        })
        .await;
        Response::from_parts(answer, body)
    }

    /// The kubelet's own request, not to be counted or held back. Anybody can send the header, so only the
    /// node's address is believed.
    fn is_kubelet(&self, client: &Client, headers: &HeaderMap) -> bool {
        headers.contains_key(headers::KUBELET_PROBE)
            && self
                .config
                .host_ip
                .is_some_and(|node| !node.is_loopback() && node == client.peer)
    }

    fn deadlines_of(&self, headers: &HeaderMap, arrival: Time) -> Told {
        if self.config.options.opted_in() {
            self.deadlines.read(headers, arrival)
        } else {
            // No option, no reading: requests have the revision's timeout and nothing else.
            self.deadlines.read(&HeaderMap::new(), arrival)
        }
    }

    fn rewrite(
        &self,
        parts: &mut Parts,
        client: &Client,
        told: &Told,
        arrival: Time,
        body: &ClientBody,
    ) {
        let original_host = headers::take_knative(&mut parts.headers);
        headers::remove_hop_by_hop(&mut parts.headers);
        headers::append_forwarded_for(&mut parts.headers, client.peer);
        if self.config.options.opted_in() {
            self.deadlines
                .rewrite(&mut parts.headers, told, arrival, self.clock.now());
        }
        if parts.version == Version::HTTP_2 {
            let host = original_host.or_else(|| parts.headers.remove(HOST));
            parts.headers.remove(HOST);
            parts.uri = absolute(&parts.uri, host.as_ref());
            return;
        }
        parts.version = Version::HTTP_11;
        let host = original_host.or_else(|| {
            let authority = parts.uri.authority()?;
            HeaderValue::from_str(authority.as_str()).ok()
        });
        if let Some(host) = host {
            parts.headers.insert(HOST, host);
        }
        if parts.method != Method::CONNECT
            && let Ok(target) = Uri::try_from(headers::origin_form(&parts.uri))
        {
            parts.uri = target;
        }
        let unsized_body = !body.is_empty() && !parts.headers.contains_key(CONTENT_LENGTH);
        if unsized_body {
            // hyper sends no body with a GET unless told so.
            parts
                .headers
                .insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        } else {
            parts.headers.remove(TRAILER);
        }
    }

    fn add_server_timing(&self, headers: &mut HeaderMap, arrival: Instant, begun: Instant) {
        if self.config.options.opted_in() {
            let waited = begun.saturating_duration_since(arrival);
            if let Some(value) = timing("queue", waited) {
                headers.append(SERVER_TIMING, value);
            }
            headers.append(SERVER_TIMING, HeaderValue::from_static("load;dur=0"));
        }
    }
}

impl Handler for Proxy {
    async fn handle(
        self: Arc<Self>,
        client: Client,
        request: Request<Incoming>,
    ) -> Response<ProxyBody> {
        self.serve(client, request).await
    }
}

/// Completes the 101's headers and joins the two sides.
async fn open_tunnel(
    headers: &mut HeaderMap,
    protocol: HeaderValue,
    connection: Box<Connection>,
    client: hyper::upgrade::OnUpgrade,
    in_flight: InFlight,
    timeouts: Timeouts,
) -> Tunnel {
    let (app, early): (_, Bytes) = connection.into_tunnel().await;
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, protocol);
    Tunnel {
        client,
        app,
        early,
        in_flight,
        timeouts,
    }
}

/// The body of a request that is answered without it.
fn discard(body: Incoming, client: &Client) {
    drop(ClientBody::new(body, client.http1.clone()));
}

/// Neither a type nor an encoding is stated.
fn is_untyped(headers: &HeaderMap) -> bool {
    !headers.contains_key(CONTENT_TYPE) && !headers.contains_key(CONTENT_ENCODING)
}

/// What hyper lets pass and Go's server does not, answered as there.
fn refuse_malformed(request: &mut Request<Incoming>) -> Option<Response<ProxyBody>> {
    if request.version() == Version::HTTP_2 {
        return (!headers::has_valid_escapes(request.uri().path()))
            .then(|| respond::bad_request(""));
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    let first = hosts.next();
    if hosts.next().is_some() {
        return Some(respond::bad_request("too many Host headers"));
    }
    if first.is_none() && request.version() == Version::HTTP_11 {
        return Some(respond::bad_request("missing required Host header"));
    }
    if first.is_some_and(|host| !host.as_bytes().iter().all(|&b| is_host_byte(b))) {
        return Some(respond::bad_request("malformed Host header"));
    }
    if request.method() == Method::CONNECT {
        return Some(respond::error(
            StatusCode::METHOD_NOT_ALLOWED,
            "CONNECT is not supported",
        ));
    }
    if request.method() == Method::OPTIONS && request.uri().path() == "*" {
        let mut answer = respond::empty(StatusCode::OK);
        answer
            .headers_mut()
            .insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        return Some(answer);
    }
    if !headers::has_valid_escapes(request.uri().path()) {
        return Some(respond::bad_request(""));
    }
    if request.headers().contains_key(EXPECT) {
        if request.version() < Version::HTTP_11 {
            request.headers_mut().remove(EXPECT);
        } else if !headers::expects_continue(request.headers()) {
            return Some(respond::expectation_failed());
        }
    }
    None
}

/// RFC 3986 3.2.2 and what Go lets pass.
const fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'$'
                | b'%'
                | b'&'
                | b'('
                | b')'
                | b'*'
                | b'+'
                | b','
                | b'-'
                | b'.'
                | b':'
                | b';'
                | b'='
                | b'['
                | b'\''
                | b']'
                | b'_'
                | b'~'
        )
}

/// An HTTP/2 request names its scheme and authority in its target.
fn absolute(uri: &Uri, host: Option<&HeaderValue>) -> Uri {
    let mut parts = uri.clone().into_parts();
    let authority = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    parts.authority = authority
        .or(parts.authority)
        .or_else(|| Some(Authority::from_static("localhost")));
    parts.scheme = Some(Scheme::HTTP);
    if let Ok(target) = http::uri::PathAndQuery::try_from(headers::origin_form(uri)) {
        parts.path_and_query = Some(target);
    }
    Uri::from_parts(parts).unwrap_or_else(|_| uri.clone())
}
