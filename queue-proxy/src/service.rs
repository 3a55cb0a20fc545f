//! A request's way through the proxy, layer by layer, outermost first: checks, probes, drain, timeouts,
//! forwarding headers, stat, gate, user container.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderValue, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::response;
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::{Body as _, Incoming};
use hyper::ext::on_informational;
use hyper::upgrade::OnUpgrade;
use policy::Time;
use policy::class;
use policy::gate::{Order, RefuseReason, Settings};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::activator::ActivatorShare;
use crate::admission::{Admission, Claim, Permit, Refused};
use crate::body::ProxyBody;
use crate::buffered::Buffered;
use crate::client_body::{ClientBody, ReadAhead};
use crate::clock::Clock;
use crate::config::Config;
use crate::connection::{Client, Handler};
use crate::deadline::{Deadlines, Told};
use crate::drain::Drain;
use crate::exchange::{Exchange, Observer};
use crate::headers::{self, BadLength};
use crate::limits::HEAD_LINES_MAX;
use crate::metrics::{Outcome, Totals};
use crate::probe;
use crate::readiness::Prober;
use crate::relay::{BodyError, InFlight, Relay, SERVER_TIMING, Source, timing};
use crate::respond;
use crate::stat::Stat;
use crate::timeouts::{Expired, Timeouts};
use crate::tunnel::Tunnel;
use crate::upstream::{Upstream, UpstreamError};

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
    buffered: Arc<Buffered>,
    read_ahead: Arc<ReadAhead>,
    observer: Arc<Observer>,
    /// `K-Kubelet-Probe` headers that were not believed.
    disbelieved: AtomicU64,
    activator: ActivatorShare,
}

impl Proxy {
    /// The gate of a pod, where places at the user container are limited.
    #[must_use]
    pub(crate) fn gate(config: &Config, clock: Clock) -> Option<Arc<Admission>> {
        let order = if config.options.slo.is_some() {
            Order::Deadline
        } else {
            Order::Arrival
        };
        config.concurrency().map(|concurrency| {
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
        })
    }

    /// The proxy of a pod.
    #[must_use]
    pub(crate) fn new(
        config: Config,
        clock: Clock,
        admission: Option<Arc<Admission>>,
        stat: Arc<Stat>,
        drain: Arc<Drain>,
        observer: Arc<Observer>,
    ) -> Arc<Self> {
        let buffered = Buffered::new(config.options.limits.buffered_bytes);
        let read_ahead = ReadAhead::new(&buffered);
        Arc::new(Self {
            clock,
            admission,
            deadlines: Deadlines::new(
                config.options.slo,
                config.options.trust_budget,
                config.request_timeout,
            ),
            upstream: Upstream::new(
                config.user_port,
                config.idle_connections(),
                Arc::clone(&buffered),
            ),
            buffered,
            stat,
            drain,
            prober: Prober::new(config.readiness.clone(), config.http2_auto_detection),
            tunnels: TaskTracker::new(),
            read_ahead,
            observer,
            disbelieved: AtomicU64::new(0),
            activator: ActivatorShare::default(),
            config,
        })
    }

    /// Tunnels that are open.
    #[must_use]
    pub(crate) const fn tunnels(&self) -> &TaskTracker {
        &self.tunnels
    }

    /// Weir's own metrics; none on a revision that has not opted in.
    pub(crate) fn weir_metrics(
        &self,
        certificate_failures: u64,
    ) -> Vec<prometheus::proto::MetricFamily> {
        let Some(weir) = &self.observer.weir else {
            return Vec::new();
        };
        weir.gather(
            self.admission.as_ref(),
            &Totals {
                unusable_headers: self.deadlines.unusable(),
                retries: self.upstream.retries(),
                through_activator: self.activator.through(),
                disbelieved_probes: self.disbelieved.load(Ordering::Relaxed),
                certificate_failures,
                dropped_lines: crate::lines::stdout().dropped(),
            },
        )
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

    /// A request has come: what is noted of it before anything is done for it.
    fn begin(&self, client: &Client, request: &mut Request<Incoming>) -> Arrived {
        let arrival = Instant::now();
        // hyper may have read on behind a body that was malformed.
        let is_doubtful = client.http1.as_ref().is_some_and(|own| own.is_malformed());
        let serving = client.begin(request.headers());
        let malformed = if is_doubtful {
            Some(respond::bad_request("the body before it cannot be read"))
        } else {
            refuse_malformed(request, self.config.options.limits.head_lines)
        };
        let exchange = match malformed {
            Some(_) => None,
            None => self.observer.begin(
                request,
                client,
                arrival,
                || probe::is_probe(request.headers()),
                self.admission.is_some(),
            ),
        };
        Arrived {
            arrival,
            malformed: malformed.map(Box::new),
            in_flight: InFlight {
                serving,
                exchange,
                ..InFlight::default()
            },
        }
    }

    async fn serve(
        &self,
        client: &Client,
        request: &mut Request<ClientBody>,
        arrived: &mut Arrived,
    ) -> Response<ProxyBody> {
        if let Some(answer) = arrived.malformed.take() {
            discard(request);
            return *answer;
        }
        let exchange = arrived.in_flight.exchange.clone();
        let head_only = request.method() == Method::HEAD;
        let mut response = self.answer(client, request, arrived).await;
        if let Some(exchange) = exchange {
            exchange.answer(response.status().as_u16());
            response.body_mut().observe(exchange, head_only);
        }
        response
    }

    /// Layers 3 to 11: probes and drain, timeouts, and what is in them.
    async fn answer(
        &self,
        client: &Client,
        request: &mut Request<ClientBody>,
        arrived: &mut Arrived,
    ) -> Response<ProxyBody> {
        if let Some(kind) = probe::classify(request.headers()) {
            discard(request);
            return Box::pin(probe::answer(kind, &self.drain, &self.prober)).await;
        }
        self.drain.note_request();
        let timeouts = Timeouts::new(&self.config, arrived.arrival);
        let grpc = respond::is_grpc(request.headers());
        // Interim responses are watched only where they matter: it costs an allocation.
        let informed = timeouts.watch_interim().then(Arc::<AtomicBool>::default);
        let exchange = arrived.in_flight.exchange.clone();
        let in_flight = &mut arrived.in_flight;
        let mut response = {
            let forward = self.forward(client, request, in_flight, &timeouts, informed.as_ref());
            match timeouts.run(informed.as_ref(), pin!(forward)).await {
                Ok(response) => response,
                Err(Expired) => {
                    note(exchange.as_ref(), Outcome::Timeout);
                    return respond::timeout(grpc);
                }
            }
        };
        if response.extensions_mut().remove::<Untyped>().is_none() {
            return response;
        }
        match response.body_mut().first_bytes().await {
            Ok(bytes) => {
                let kind = HeaderValue::from_static(crate::sniff::content_type(&bytes));
                response.headers_mut().insert(CONTENT_TYPE, kind);
                response
            }
            Err(BodyError::Timeout) => {
                note(exchange.as_ref(), Outcome::Timeout);
                respond::timeout(grpc)
            }
            Err(BodyError::Upstream(error)) => {
                note(exchange.as_ref(), Outcome::Failed);
                respond::bad_gateway(&UpstreamError::Unreadable(error), grpc)
            }
            Err(BodyError::TooManyTrailers) => {
                note(exchange.as_ref(), Outcome::Failed);
                respond::bad_gateway(&UpstreamError::TooManyHeaders, grpc)
            }
        }
    }

    /// Layers 8 to 11: forwarding headers, stat, gate, user container.
    async fn forward(
        &self,
        client: &Client,
        request: &mut Request<ClientBody>,
        in_flight: &mut InFlight,
        timeouts: &Timeouts,
        informed: Option<&Arc<AtomicBool>>,
    ) -> Response<ProxyBody> {
        let asked = Asked::of(client, request);
        let exchange = in_flight.exchange.clone();
        if asked.upgrade.is_some() && !request.body().is_empty() {
            note(exchange.as_ref(), Outcome::Malformed);
            discard(request);
            return respond::bad_request("an upgrade has no body");
        }
        request.body_mut().observe(exchange.clone());

        let arrival = self.clock.time(timeouts.arrival);
        let told = self.deadlines_of(request.headers(), arrival);
        if !self.is_kubelet(client, request.headers()) {
            let proxied = request.headers().get(headers::PROXY_REQUEST);
            let proxied = proxied.is_some_and(|value| value == "activator");
            if self.config.options.opted_in() {
                self.activator.note(proxied);
            }
            in_flight.counted = Some(self.stat.arrive(timeouts.arrival, proxied));
            match self.admit(client, request, arrival, &told).await {
                Ok(permit) => in_flight.permit = permit,
                Err(refused) => {
                    self.note_refused(&refused, exchange.as_ref());
                    return respond::refused(refused, asked.grpc);
                }
            }
        }
        let begun = Instant::now();
        if self.rewrite(request, client, &told, arrival).is_err() {
            note(exchange.as_ref(), Outcome::Malformed);
            return respond::error(StatusCode::URI_TOO_LONG, "the escaped target is too long");
        }
        if let Some((protocol, _)) = &asked.upgrade {
            let headers = request.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(UPGRADE, protocol.clone());
        }
        if let Some(exchange) = &exchange {
            let method = request.method().clone();
            exchange.dispatch(begun, &method, request.headers_mut());
        }
        let refresh = |headers: &mut HeaderMap| {
            if self.config.options.opted_in() {
                let now = self.clock.now();
                self.deadlines.rewrite(headers, &told, arrival, now);
            }
        };
        match self.send(request, &asked, informed, refresh).await {
            Ok((mut response, source)) => {
                if let Some(exchange) = &exchange {
                    exchange.app_answered(response.status().as_u16());
                }
                self.add_server_timing(response.headers_mut(), timeouts.arrival, begun);
                let begun = self.config.options.opted_in().then_some(begun);
                let in_flight = std::mem::take(in_flight);
                let (mut answer, incoming) = response.into_parts();
                let switched = match prepare(&mut answer) {
                    Ok(switched) => switched,
                    Err(error) => {
                        note(in_flight.exchange.as_ref(), Outcome::Failed);
                        return respond::bad_gateway(&error, asked.grpc);
                    }
                };
                if answer.status == StatusCode::SWITCHING_PROTOCOLS {
                    let timeouts = timeouts.clone();
                    let switch =
                        self.switch(client, asked, answer, switched, source, in_flight, timeouts);
                    return Box::pin(switch).await;
                }
                let answer = (answer, incoming);
                self.relay(client, &asked, answer, source, in_flight, timeouts, begun)
            }
            Err(UpstreamError::ClientBody) => {
                note(exchange.as_ref(), Outcome::Malformed);
                respond::bad_request("the body cannot be read")
            }
            Err(error) => {
                note(exchange.as_ref(), Outcome::Failed);
                tracing::debug!(%error, "no answer from the user container");
                respond::bad_gateway(&error, asked.grpc)
            }
        }
    }

    /// A request gets no place. On revisions that have opted in, one that was shed counts in the stat for as
    /// long as it would have run, so that shedding does not hide demand from the autoscaler.
    fn note_refused(&self, refused: &Refused, exchange: Option<&Arc<Exchange>>) {
        if refused.reason == RefuseReason::Late {
            note(exchange, Outcome::Shed);
            self.stat.add_shed(refused.execution);
        } else {
            note(exchange, Outcome::Refused);
        }
    }

    /// Waits for a place at the user container, where places are limited.
    async fn admit(
        &self,
        client: &Client,
        request: &mut Request<ClientBody>,
        arrival: Time,
        told: &Told,
    ) -> Result<Option<Permit>, Refused> {
        let Some(admission) = &self.admission else {
            return Ok(None);
        };
        let length = if request.body().is_empty() {
            Some(0)
        } else {
            headers::content_length(request.headers())
        };
        let class = class::of(told.deadline.objective, length);
        let claim = Claim {
            arrival,
            deadline: told.deadline,
            class,
        };
        let mut acquire = pin!(Arc::clone(admission).acquire(claim));
        // Reading would tell a client that waits for it to go on.
        let reads = client.http1.is_some() && !headers::expects_continue(request.headers());
        let acquired = poll_fn(|cx| {
            let acquired = acquire.as_mut().poll(cx);
            if acquired.is_pending() && reads {
                request.body_mut().read_ahead(&self.read_ahead, cx);
            }
            acquired
        });
        acquired.await.map(Some)
    }

    /// Sends a request in the protocol in which it came; returns at the head of the answer. `refresh` brings its
    /// headers up to date before it is sent a second time.
    async fn send(
        &self,
        request: &mut Request<ClientBody>,
        asked: &Asked,
        informed: Option<&Arc<AtomicBool>>,
        refresh: impl Fn(&mut HeaderMap),
    ) -> Result<(Response<Incoming>, Source), UpstreamError> {
        if asked.http2 {
            let sent = self.upstream.send_http2(std::mem::take(request), refresh);
            let (response, stream) = Box::pin(sent).await?;
            return Ok((response, Source::Http2(stream)));
        }
        let waits = headers::expects_continue(request.headers()) && !request.body().is_empty();
        let hold = waits.then(|| request.body_mut().hold());
        if hold.is_some() || informed.is_some() {
            let (hold, informed) = (hold.clone(), informed.cloned());
            on_informational(request, move |interim| {
                if let Some(informed) = &informed {
                    informed.store(true, Ordering::Relaxed);
                }
                if let Some(hold) = hold.as_ref().filter(|_| interim.status() == 100) {
                    hold.release();
                }
            });
        }
        let sent = self.upstream.send(request, refresh).await;
        if let Some(hold) = hold {
            hold.answered();
        }
        let (response, connection) = sent?;
        Ok((
            response,
            Source::Http1(connection, Arc::clone(&self.upstream)),
        ))
    }

    /// Passes the user container's answer on: a head, then a body. `begun`: when the request was dispatched, if
    /// the client is to hear how long it took.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is handed on to what comes next"
    )]
    fn relay(
        &self,
        client: &Client,
        asked: &Asked,
        (mut answer, incoming): (response::Parts, Incoming),
        source: Source,
        in_flight: InFlight,
        timeouts: &Timeouts,
        begun: Option<Instant>,
    ) -> Response<ProxyBody> {
        let length = headers::content_length(&answer.headers).filter(|_| !asked.head_only);
        if length.is_some() {
            answer.headers.remove(TRAILER);
        }
        // A failure says nothing of how long the work takes.
        let learn = !answer.status.is_server_error();
        if incoming.is_end_stream() {
            // It stays a head alone: gRPC's errors are such, and a trailer would hide the status in the head.
            in_flight.finish(source, learn);
            return Response::from_parts(answer, ProxyBody::empty());
        }
        let mut relay = Relay::new(
            incoming,
            source,
            in_flight,
            timeouts.clone(),
            learn,
            &self.buffered,
        );
        relay.remaining = length;
        relay.mid_stream_timeout = self.config.options.mid_stream_timeout;
        relay.http1.clone_from(&client.http1);
        relay.server_timing_since = begun.filter(|_| asked.http2 && !asked.head_only);
        if length.is_some_and(|length| length > 0) && is_untyped(&answer.headers) {
            answer.extensions.insert(Untyped);
        }
        Response::from_parts(answer, ProxyBody::relay(relay))
    }

    /// Opens a tunnel, if the user container switched to the protocol that the client asked for.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is handed on to what comes next"
    )]
    async fn switch(
        &self,
        client: &Client,
        asked: Asked,
        mut answer: response::Parts,
        switched: Option<HeaderValue>,
        source: Source,
        mut in_flight: InFlight,
        timeouts: Timeouts,
    ) -> Response<ProxyBody> {
        let agreed = asked
            .upgrade
            .zip(switched)
            .filter(|((protocol, _), given)| {
                protocol.as_bytes().eq_ignore_ascii_case(given.as_bytes())
            });
        let (Source::Http1(connection, _), Some(((_, client_side), protocol))) = (source, agreed)
        else {
            note(in_flight.exchange.as_ref(), Outcome::Failed);
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
        let (app, early) = connection.into_tunnel().await;
        answer
            .headers
            .insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        answer.headers.insert(UPGRADE, protocol);
        let tunnel = Tunnel {
            client: client_side,
            app,
            early,
            in_flight,
            timeouts,
        };
        self.tunnels.spawn(tunnel.run());
        Response::from_parts(answer, ProxyBody::empty())
    }

    /// The kubelet's own request, not to be counted or held back. Anybody can send the header, so only the
    /// node's address is believed.
    fn is_kubelet(&self, client: &Client, headers: &HeaderMap) -> bool {
        if !headers.contains_key(headers::KUBELET_PROBE) {
            return false;
        }
        let is_node = self
            .config
            .host_ip
            .is_some_and(|node| !node.is_loopback() && node == client.peer.ip());
        if !is_node {
            self.disbelieved.fetch_add(1, Ordering::Relaxed);
        }
        is_node
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
        request: &mut Request<ClientBody>,
        client: &Client,
        told: &Told,
        arrival: Time,
    ) -> Result<(), http::Error> {
        let headers = request.headers_mut();
        // Made here and not before: a request that waits has not grown by it.
        headers::add_forwarded(headers);
        let original_host = headers::take_knative(headers);
        headers::remove_hop_by_hop(headers);
        headers::append_forwarded_for(headers, client.peer.ip());
        if self.config.options.opted_in() {
            self.deadlines
                .rewrite(headers, told, arrival, self.clock.now());
        }
        if request.version() == Version::HTTP_2 {
            let host = request.headers_mut().remove(HOST);
            let host = host.filter(|_| request.uri().authority().is_none());
            let host = original_host.or(host);
            *request.uri_mut() = absolute(request.uri(), host.as_ref())?;
            return Ok(());
        }
        *request.version_mut() = Version::HTTP_11;
        let host = original_host.or_else(|| {
            let authority = request.uri().authority()?;
            let host = authority.as_str().rsplit('@').next()?;
            HeaderValue::from_str(host).ok()
        });
        if let Some(host) = host {
            request.headers_mut().insert(HOST, host);
        } else if !request.headers().contains_key(HOST) {
            // HTTP/1.0 may come without; HTTP/1.1 may not.
            let host = self.upstream.host().clone();
            request.headers_mut().insert(HOST, host);
        }
        if !headers::is_origin_form(request.uri()) {
            *request.uri_mut() = Uri::try_from(headers::origin_form(request.uri()))?;
        }
        let is_empty = request.body().is_empty();
        let headers = request.headers_mut();
        if !is_empty && !headers.contains_key(CONTENT_LENGTH) {
            // hyper sends no body with a GET unless told so.
            headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        } else {
            headers.remove(TRAILER);
        }
        Ok(())
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
    fn handle(
        self: Arc<Self>,
        client: Client,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Response<ProxyBody>> + Send {
        // Not within the future: hyper drops it before it has run if the client leaves with its request, and
        // the request has come all the same.
        let mut arrived = self.begin(&client, &mut request);
        let mut request =
            request.map(|body| ClientBody::new(body, client.http1.clone(), &self.buffered));
        // Held here and lent to all steps: handed through by value, it would have room in each one's future.
        async move { self.serve(&client, &mut request, &mut arrived).await }
    }
}

/// What is known of a request when it has come.
#[derive(Debug)]
struct Arrived {
    arrival: Instant,
    /// It is not served: this is the answer.
    malformed: Option<Box<Response<ProxyBody>>>,
    in_flight: InFlight,
}

fn note(exchange: Option<&Arc<Exchange>>, outcome: Outcome) {
    if let Some(exchange) = exchange {
        exchange.note(outcome);
    }
}

/// The mark on a response whose type is to be found in its first bytes.
#[derive(Debug, Clone, Copy)]
struct Untyped;

/// What has to be known of a request when its answer comes.
#[derive(Debug)]
struct Asked {
    http2: bool,
    grpc: bool,
    /// HEAD: the answer has no body whatever its head says.
    head_only: bool,
    /// The protocol it wants to switch to, and the client's side of the tunnel then.
    upgrade: Option<(HeaderValue, OnUpgrade)>,
}

impl Asked {
    fn of(client: &Client, request: &mut Request<ClientBody>) -> Self {
        let protocol = client
            .http1
            .as_ref()
            .and_then(|_| headers::upgrade_protocol(request.headers()));
        Self {
            http2: request.version() == Version::HTTP_2,
            grpc: respond::is_grpc(request.headers()),
            head_only: request.method() == Method::HEAD,
            upgrade: protocol.map(|protocol| (protocol, hyper::upgrade::on(request))),
        }
    }
}

/// A request is answered without its body.
fn discard(request: &mut Request<ClientBody>) {
    drop(std::mem::take(request));
}

/// Makes the head of the user container's answer that of the proxy's: what concerns their connection alone is
/// taken away. Returns the protocol it says to switch to.
///
/// # Errors
/// It cannot be passed on.
fn prepare(answer: &mut response::Parts) -> Result<Option<HeaderValue>, UpstreamError> {
    answer.extensions = http::Extensions::new();
    answer.version = Version::HTTP_11;
    if answer.headers.len() > HEAD_LINES_MAX {
        return Err(UpstreamError::TooManyHeaders);
    }
    let switched = headers::upgrade_protocol(&answer.headers);
    if answer.headers.contains_key(TRANSFER_ENCODING) {
        if headers::has_strange_coding(&answer.headers) {
            return Err(UpstreamError::StrangeCoding);
        }
        // RFC 9112 6.3: the length is of no account then.
        answer.headers.remove(CONTENT_LENGTH);
    }
    if answer.status == StatusCode::NO_CONTENT {
        // RFC 9110 8.6: it has none.
        answer.headers.remove(CONTENT_LENGTH);
    }
    headers::normalize_content_length(&mut answer.headers)
        .map_err(|BadLength| UpstreamError::BadLength)?;
    headers::remove_hop_by_hop(&mut answer.headers);
    if let Some(reason) = headers::reason_phrase(answer.status) {
        answer.extensions.insert(reason);
    }
    Ok(switched)
}

/// Neither a type nor an encoding is stated.
fn is_untyped(headers: &HeaderMap) -> bool {
    !headers.contains_key(CONTENT_TYPE) && !headers.contains_key(CONTENT_ENCODING)
}

/// What hyper lets pass and Go's server does not, answered as there.
fn refuse_malformed(
    request: &mut Request<Incoming>,
    head_lines: usize,
) -> Option<Response<ProxyBody>> {
    if request.version() == Version::HTTP_2 {
        return refuse_malformed_http2(request, head_lines);
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    let first = hosts.next();
    if hosts.next().is_some() {
        return Some(respond::bad_request("too many Host headers"));
    }
    if first.is_none() && request.version() == Version::HTTP_11 {
        return Some(respond::bad_request("missing required Host header"));
    }
    if first.is_some_and(|host| !host.is_empty() && !headers::is_host(host)) {
        return Some(respond::bad_request("malformed Host header"));
    }
    if headers::has_strange_coding(request.headers()) {
        return Some(respond::unsupported_coding());
    }
    if request.method() == Method::CONNECT {
        return Some(respond::connect());
    }
    let has_host_only = request.uri().scheme().is_none() && request.uri().authority().is_some();
    if has_host_only {
        return Some(respond::bad_request(""));
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

/// The same over HTTP/2, whose framing hyper checks.
fn refuse_malformed_http2(
    request: &Request<Incoming>,
    head_lines: usize,
) -> Option<Response<ProxyBody>> {
    if request.headers().len() > head_lines {
        return Some(respond::too_many_headers());
    }
    if request.method() == Method::CONNECT {
        return Some(respond::connect());
    }
    let has_bad_length = request.headers().contains_key(CONTENT_LENGTH)
        && headers::content_length(request.headers()).is_none();
    if has_bad_length || !headers::has_valid_escapes(request.uri().path()) {
        return Some(respond::bad_request(""));
    }
    None
}

/// An HTTP/2 request names its scheme and authority in its target.
fn absolute(uri: &Uri, host: Option<&HeaderValue>) -> Result<Uri, http::Error> {
    let mut parts = uri.clone().into_parts();
    let authority = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    parts.authority = authority
        .or(parts.authority)
        .or_else(|| Some(Authority::from_static("localhost")));
    parts.scheme = Some(Scheme::HTTP);
    parts.path_and_query = Some(headers::origin_form(uri).try_into()?);
    Ok(Uri::from_parts(parts)?)
}
