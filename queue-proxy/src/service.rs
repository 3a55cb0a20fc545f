//! Request handler of the queue-proxy. The layers, outermost first: checks, probes, drain, timeouts, forwarding headers,
//! stat, gate, user container.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_TYPE, EXPECT, HeaderValue, UPGRADE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use policy::class;
use policy::gate::{self, RefuseReason};
use policy::{Span, Time};
use proxy::body::ProxyBody;
use proxy::buffered::Buffered;
use proxy::client_body::{ClientBody, ReadAhead};
use proxy::client_tls::TrustStore;
use proxy::clock::Clock;
use proxy::connection::{Client, Handler};
use proxy::deadline::{Deadlines, HELD_US, RequestDeadline};
use proxy::exchange::{Exchange, Observer};
use proxy::forward::{self, AnswerContext, RequestKind, Untyped, discard, note, trace_of};
use proxy::handover::{self, HTTP2_BODY_BYTES_MAX, HandoverError};
use proxy::headers;
use proxy::lease_wait::LeaseWait;
use proxy::malformed;
use proxy::outage::{LineLimit, Outage};
use proxy::outcome::Outcome;
use proxy::relay::{BodyError, InFlight, UpstreamSlot};
use proxy::respond;
use proxy::server_timing::{self, SERVER_TIMING};
use proxy::settings;
use proxy::timeouts::{Expired, Timeouts};
use proxy::upstream::{DIAL_ATTEMPTS, Settings, Upstream, UpstreamError};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::activator::ActivatorShare;
use crate::admission::{Admission, Admitted, Claim, Forwarding, Permit, Refusal};
use crate::config::Config;
use crate::drain::Drain;
use crate::lease::trace_context;
use crate::metrics::{Totals, WeirMetrics};
use crate::probe;
use crate::readiness::Prober;
use crate::sibling::{self, Hop, Siblings};
use crate::stat::{CountGuard, Stat};

/// Name of the upstream in error messages.
const PEER: &str = "the user container";

/// Interval at which idle connections to siblings are looked at.
const SWEEP_PERIOD: Duration = Duration::from_secs(10);
/// Number of times that a request may be back from a sibling before it is forwarded no more.
const RETURNS_MAX: u32 = 2;

/// Why a request was not started which waited for the lease of the pod's slot for as long as it may.
const NO_LEASE: &str = "the pod had no turn on its GPU";

/// Resources that a request holds until its answer has ended.
#[derive(Debug, Default)]
pub(crate) struct RequestSlot {
    /// Slot at the user container; `None` without a concurrency limit.
    permit: Option<Permit>,
    /// Guard that counts the request in the stat; `None` for the kubelet's requests.
    counted: Option<CountGuard>,
    /// Count of the request among those that are forwarded to siblings; `None` unless it is.
    forwarding: Option<Forwarding>,
}

impl UpstreamSlot for RequestSlot {
    fn complete(&mut self) {
        if let Some(permit) = &mut self.permit {
            permit.complete();
        }
    }
}

/// Handler of the serving ports.
#[derive(Debug)]
pub(crate) struct Proxy {
    config: Config,
    clock: Clock,
    /// Admission control; `None` without a concurrency limit.
    admission: Option<Arc<Admission>>,
    deadlines: Deadlines,
    upstream: Arc<Upstream>,
    siblings: Siblings,
    stat: Arc<Stat>,
    drain: Arc<Drain>,
    prober: Arc<Prober>,
    tunnels: TaskTracker,
    buffered: Arc<Buffered>,
    read_ahead: Arc<ReadAhead>,
    /// Largest number of header lines in a request head.
    head_lines: usize,
    observer: Arc<Observer>,
    /// Weir's own metrics; `None` if the revision has not opted in.
    weir: Option<Arc<WeirMetrics>>,
    /// Number of `K-Kubelet-Probe` headers from untrusted peers.
    disbelieved: AtomicU64,
    activator: ActivatorShare,
    lines: Lines,
}

/// What the handler has in common with other parts of the process.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) stat: Arc<Stat>,
    pub(crate) drain: Arc<Drain>,
    pub(crate) observer: Arc<Observer>,
    /// Weir's own metrics; `None` if the revision has not opted in.
    pub(crate) weir: Option<Arc<WeirMetrics>>,
    /// Authorities of siblings' certificates; `None`: their connections have no TLS.
    pub(crate) trust: Option<Arc<TrustStore>>,
}

/// Lines in the process's log about states that an operator asks about.
#[derive(Debug, Default)]
struct Lines {
    /// The user container: no connection, no answer.
    user_container: Outage,
    /// Requests refused because the queue was full.
    queue_full: LineLimit,
    /// Late requests refused.
    shed: LineLimit,
    /// Requests refused as malformed, or for a limit on their heads.
    malformed: LineLimit,
}

impl Proxy {
    /// Creates the admission control of a pod, or returns `None` without a concurrency limit.
    #[must_use]
    pub(crate) fn gate(config: &Config, clock: Clock) -> Option<Arc<Admission>> {
        config.concurrency().map(|concurrency| {
            Admission::new(
                gate::Settings {
                    concurrency,
                    depth: config.queue_depth(),
                    order: settings::order(&config.options),
                    late: settings::late(&config.options),
                },
                clock,
            )
        })
    }

    /// Creates the handler of a pod.
    #[must_use]
    pub(crate) fn new(
        config: Config,
        clock: Clock,
        admission: Option<Arc<Admission>>,
        shared: Shared,
    ) -> Arc<Self> {
        let Shared {
            stat,
            drain,
            observer,
            weir,
            trust,
        } = shared;
        let buffered = Buffered::new(settings::limits(&config.options).buffered_bytes);
        let read_ahead = ReadAhead::new(&buffered);
        Arc::new(Self {
            clock,
            admission,
            deadlines: Deadlines::new(
                config.options.slo,
                settings::trust(&config.options),
                config.request_timeout,
            ),
            upstream: Upstream::new(
                Settings {
                    address: config.target,
                    peer: PEER,
                    idle_max: config.idle_connections(),
                    dial_attempts: DIAL_ATTEMPTS,
                    dial_max: None,
                    resends: true,
                    tls: None,
                },
                Arc::clone(&buffered),
            ),
            siblings: Siblings::new(&config, trust.as_ref(), &buffered),
            buffered,
            stat,
            drain,
            prober: Prober::new(config.readiness.clone(), config.http2_auto_detection),
            tunnels: TaskTracker::new(),
            read_ahead,
            head_lines: settings::limits(&config.options).head_lines,
            observer,
            weir,
            disbelieved: AtomicU64::new(0),
            activator: ActivatorShare::default(),
            lines: Lines::default(),
            config,
        })
    }

    /// Returns the tracker of the open tunnels.
    #[must_use]
    pub(crate) const fn tunnels(&self) -> &TaskTracker {
        &self.tunnels
    }

    /// Returns Weir's own metrics, or none if the revision has not opted in.
    pub(crate) fn weir_metrics(
        &self,
        certificate_failures: u64,
    ) -> Vec<prometheus::proto::MetricFamily> {
        let Some(weir) = &self.weir else {
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
                dropped_lines: proxy::lines::stdout().dropped(),
            },
        )
    }

    /// Returns the admission control, or `None` without a concurrency limit.
    #[must_use]
    pub(crate) const fn admission(&self) -> Option<&Arc<Admission>> {
        self.admission.as_ref()
    }

    /// Closes connections to siblings which have been idle for long. Never returns.
    pub(crate) async fn sweep_siblings(self: Arc<Self>) {
        let mut tick = tokio::time::interval(SWEEP_PERIOD);
        loop {
            tick.tick().await;
            self.siblings.sweep();
        }
    }

    /// Returns the upstream with the connections to the user container.
    #[must_use]
    pub(crate) const fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }

    /// Returns whether the process runs in a pod. Outside of a pod requests with the headers of probes are forwarded like
    /// any other.
    const fn is_in_pod(&self) -> bool {
        self.config.standalone_metrics.is_none()
    }

    /// Begins a request: checks it, marks its connection as serving, and begins its observation.
    fn begin(&self, client: &Client, request: &mut Request<Incoming>) -> RequestState {
        let arrival = Instant::now();
        let malformed = malformed::refuse(client, request, self.head_lines);
        let serving = client.begin(request.headers());
        let exchange = match malformed {
            Some(_) => None,
            None => self.observer.begin(
                request,
                client,
                arrival,
                || self.is_in_pod() && probe::is_probe(request.headers()),
                self.admission.is_some(),
            ),
        };
        RequestState {
            arrival,
            malformed: malformed.map(Box::new),
            hop: Hop::First,
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
        arrived: &mut RequestState,
    ) -> Response<ProxyBody<RequestSlot>> {
        if let Some(answer) = arrived.malformed.take() {
            if let Some(refused) = self.lines.malformed.record(arrived.arrival) {
                let status = answer.status().as_u16();
                tracing::warn!(status, refused, "malformed requests are refused");
            }
            discard(request);
            return *answer;
        }
        if self.config.options.opted_in() {
            let admission = self.admission.as_ref();
            let is_own = |uid: &[u8]| admission.is_some_and(|admission| admission.is_own(uid));
            arrived.hop = sibling::hop_of(request.headers(), is_own);
            if arrived.hop == Hop::Misdirected {
                note(arrived.in_flight.exchange.as_ref(), Outcome::Forwarded);
                discard(request);
                let status = StatusCode::MISDIRECTED_REQUEST;
                return respond::error(status, "the request is for another pod");
            }
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

    /// Answers a well-formed request: handles probes, then forwards other requests within their time limits.
    async fn answer(
        &self,
        client: &Client,
        request: &mut Request<ClientBody>,
        arrived: &mut RequestState,
    ) -> Response<ProxyBody<RequestSlot>> {
        if self.is_in_pod()
            && let Some(kind) = probe::classify(request.headers())
        {
            discard(request);
            let admission = self.admission.as_ref();
            let is_away = admission.is_some_and(|admission| admission.is_model_away());
            let away = is_away.then_some(self.config.target);
            return Box::pin(probe::answer(kind, &self.drain, &self.prober, away)).await;
        }
        self.drain.note_request();
        let timeouts = Timeouts::new(self.config.time_limits(), arrived.arrival);
        let grpc = respond::is_grpc(request.headers());
        // Watching interim responses costs an allocation, so it is done only if a limit depends on them.
        let informed = timeouts.watch_interim().then(Arc::<AtomicBool>::default);
        let exchange = arrived.in_flight.exchange.clone();
        let hop = arrived.hop;
        let in_flight = &mut arrived.in_flight;
        let answered = {
            let forward = self.forward(
                client,
                request,
                hop,
                in_flight,
                &timeouts,
                informed.as_ref(),
            );
            timeouts.run(informed.as_ref(), pin!(forward)).await
        };
        let mut response = match answered {
            Ok(response) => response,
            Err(Expired) => {
                note(exchange.as_ref(), Outcome::Timeout);
                let slot = &in_flight.slot;
                let waits = slot.permit.is_none() && slot.counted.is_some();
                let admission = self.admission.as_ref().filter(|_| waits);
                if let Some(admission) = admission.filter(|admission| admission.lacks_lease()) {
                    let wait = admission.lease_wait(self.clock.time(arrived.arrival));
                    if let Some((exchange, wait)) = exchange.as_ref().zip(wait) {
                        exchange.note_lease(wait);
                    }
                    return respond::unavailable(NO_LEASE, Span::from_secs(1), grpc);
                }
                return respond::timeout(timeouts.text(), grpc);
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
                respond::timeout(timeouts.text(), grpc)
            }
            Err(BodyError::Upstream(error)) => {
                note(exchange.as_ref(), Outcome::Failed);
                respond::bad_gateway(&UpstreamError::Unreadable { peer: PEER, error }, grpc)
            }
            Err(BodyError::TooManyTrailers) => {
                note(exchange.as_ref(), Outcome::Failed);
                respond::bad_gateway(&UpstreamError::TooManyHeaders { peer: PEER }, grpc)
            }
        }
    }

    /// Forwards a request: counts it, waits for admission, rewrites its head and sends it to the user container.
    async fn forward(
        &self,
        client: &Client,
        request: &mut Request<ClientBody>,
        hop: Hop,
        in_flight: &mut InFlight<RequestSlot>,
        timeouts: &Timeouts,
        informed: Option<&Arc<AtomicBool>>,
    ) -> Response<ProxyBody<RequestSlot>> {
        let kind = RequestKind::of(client, request);
        let exchange = in_flight.exchange.clone();
        if kind.upgrade.is_some() && !request.body().is_empty() {
            note(exchange.as_ref(), Outcome::Malformed);
            discard(request);
            return respond::bad_request("an upgrade request must not have a body");
        }
        request.body_mut().observe(exchange.clone());

        let arrival = self.clock.time(timeouts.arrival);
        let budget = self.deadlines_of(request.headers(), arrival);
        if let Some(exchange) = exchange.as_ref().filter(|_| budget.held > Span::ZERO) {
            exchange.note_held(Duration::from_nanos(budget.held.0));
        }
        if !self.is_kubelet(client, request.headers()) {
            let proxied = request.headers().get(headers::PROXY_REQUEST);
            let proxied = proxied.is_some_and(|value| value == "activator");
            if self.config.options.opted_in() {
                // Weir's own activator orders requests by deadline, and states in this header how long it held each.
                let is_ours = request.headers().contains_key(HELD_US);
                self.activator.note(proxied && !is_ours);
            }
            in_flight.slot.counted = Some(self.stat.arrive(timeouts.arrival, proxied));
            let mut claim = self.claim(request, &kind, arrival, &budget, exchange.as_ref());
            let mut returns = 0;
            loop {
                match self.admit(client, request, &kind, claim).await {
                    Ok(None) => break,
                    Ok(Some(Admitted::Start(permit))) => {
                        if let Some((exchange, margin)) = exchange.as_ref().zip(permit.margin) {
                            exchange.note_margin(margin);
                        }
                        if let Some((exchange, wait)) = exchange.as_ref().zip(permit.lease_wait) {
                            exchange.note_lease(wait);
                        }
                        in_flight.slot.permit = Some(permit);
                        break;
                    }
                    Ok(Some(Admitted::Forward(forwarding))) => {
                        claim.back = Some(forwarding.key);
                        // From here on it is the sibling's.
                        in_flight.slot.counted = None;
                        in_flight.slot.forwarding = Some(forwarding);
                        let sent = self.forward_to_sibling(
                            client, request, &kind, in_flight, timeouts, informed, &budget,
                        );
                        let sent = Box::pin(sent).await;
                        if let Some(answer) = sent {
                            return answer;
                        }
                        returns += 1;
                        claim.may_move = returns < RETURNS_MAX;
                        let counted = self.stat.arrive(Instant::now(), proxied);
                        in_flight.slot.counted = Some(counted);
                    }
                    Err(refused) => {
                        if hop == Hop::Forwarded {
                            // It waits where it came from, and counts there.
                            note(exchange.as_ref(), Outcome::Forwarded);
                        }
                        self.note_refused(&refused, exchange.as_ref());
                        return match refused.reason {
                            RefuseReason::Full | RefuseReason::Displaced => {
                                respond::queue_full(kind.grpc)
                            }
                            RefuseReason::Late => respond::late(refused.retry_after, kind.grpc),
                        };
                    }
                }
            }
        }
        let begun = Instant::now();
        if self
            .rewrite(request, client, hop, &budget, arrival)
            .is_err()
        {
            note(exchange.as_ref(), Outcome::Malformed);
            return respond::error(StatusCode::URI_TOO_LONG, "the escaped target is too long");
        }
        if let Some((protocol, _)) = &kind.upgrade {
            let headers = request.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(UPGRADE, protocol.clone());
        }
        if let Some(exchange) = &exchange {
            let method = request.method().clone();
            exchange.dispatch(
                begun,
                self.upstream.address(),
                &method,
                request.headers_mut(),
            );
        }
        let refresh = |headers: &mut HeaderMap| {
            if self.config.options.opted_in() {
                let now = self.clock.now();
                self.deadlines.rewrite(headers, &budget, arrival, now);
            }
        };
        match forward::send(&self.upstream, request, &kind, informed, refresh).await {
            Ok((mut response, source)) => {
                if let Some(outage) = self.lines.user_container.recover(Instant::now) {
                    let (failures, seconds) = (outage.failures, outage.lasted.as_secs_f64());
                    tracing::info!(failures, seconds, "the user container answers again");
                }
                if let Some(exchange) = &exchange {
                    exchange.upstream_answered(response.status().as_u16());
                }
                // The status of gRPC comes last.
                if (response.status().is_server_error() || kind.grpc)
                    && let Some(permit) = &mut in_flight.slot.permit
                {
                    permit.note_failure();
                }
                let permit = in_flight.slot.permit.as_ref();
                let lease_wait = permit.and_then(|permit| permit.lease_wait);
                let waited = begun.saturating_duration_since(timeouts.arrival);
                self.add_server_timing(response.headers_mut(), waited, lease_wait);
                let begun = self.config.options.opted_in().then_some(begun);
                let mut in_flight = std::mem::take(in_flight);
                let (mut answer, incoming) = response.into_parts();
                let switched = match forward::prepare(&mut answer, PEER) {
                    Ok(switched) => switched,
                    Err(error) => {
                        note(in_flight.exchange.as_ref(), Outcome::Failed);
                        return respond::bad_gateway(&error, kind.grpc);
                    }
                };
                let context = AnswerContext {
                    client,
                    peer: PEER,
                    timeouts,
                    buffered: &self.buffered,
                    mid_stream_timeout: self.config.options.mid_stream_timeout,
                    tunnels: &self.tunnels,
                };
                if answer.status == StatusCode::SWITCHING_PROTOCOLS {
                    if let Some(permit) = &mut in_flight.slot.permit {
                        permit.upgrade();
                    }
                    let switch = context.switch(kind, (answer, switched), source, in_flight);
                    return Box::pin(switch).await;
                }
                context.relay(&kind, (answer, incoming), source, in_flight, begun)
            }
            Err(UpstreamError::ClientBody) => {
                note(exchange.as_ref(), Outcome::Malformed);
                respond::bad_request("the body cannot be read")
            }
            Err(error) => {
                note(exchange.as_ref(), Outcome::Failed);
                let (trace_id, span_id) = trace_of(exchange.as_ref());
                tracing::debug!(%error, trace_id, span_id, "no answer from the user container");
                if let Some(outage) = self.lines.user_container.fail(Instant::now()) {
                    let (failures, seconds) = (outage.failures, outage.lasted.as_secs_f64());
                    tracing::warn!(%error, failures, seconds, "the user container does not answer");
                }
                respond::bad_gateway(&error, kind.grpc)
            }
        }
    }

    /// Notes that a request was refused. A request that was shed, which only happens on revisions that have opted in,
    /// counts in the stat for its estimated execution time, so that shedding does not hide demand from the autoscaler.
    fn note_refused(&self, refused: &Refusal, exchange: Option<&Arc<Exchange>>) {
        if refused.reason == RefuseReason::Late {
            note(exchange, Outcome::Shed);
            self.stat.add_shed(refused.execution);
            if let Some(shed) = self.lines.shed.record(Instant::now()) {
                tracing::info!(shed, "late requests are shed");
            }
        } else {
            note(exchange, Outcome::Refused);
            if let Some(refused) = self.lines.queue_full.record(Instant::now()) {
                let depth = self.config.queue_depth();
                tracing::warn!(refused, depth, "the queue is full: requests are refused");
            }
        }
    }

    /// Forwards a request to the sibling that has the lease for it. Returns the answer, or `None` if the sibling has not accepted the request, which
    /// is as it was.
    #[expect(clippy::too_many_arguments, reason = "the state of one request")]
    async fn forward_to_sibling(
        &self,
        client: &Client,
        request: &mut Request<ClientBody>,
        kind: &RequestKind,
        in_flight: &mut InFlight<RequestSlot>,
        timeouts: &Timeouts,
        informed: Option<&Arc<AtomicBool>>,
        budget: &RequestDeadline,
    ) -> Option<Response<ProxyBody<RequestSlot>>> {
        let exchange = in_flight.exchange.clone();
        let forwarding = in_flight.slot.forwarding.as_mut()?;
        let sibling = &forwarding.sibling;
        let upstream = self.siblings.upstream(sibling.address);
        let times = (budget, self.clock.time(timeouts.arrival), self.clock.now());
        let peer = client.peer.ip();
        let mut message = self
            .siblings
            .head(request, peer, sibling, &self.deadlines, times);
        if let Some(exchange) = &exchange {
            let method = message.method().clone();
            let headers = message.headers_mut();
            let now = Instant::now();
            exchange.forward(now);
            exchange.dispatch(now, upstream.address(), &method, headers);
        }
        let read_ahead = &self.read_ahead;
        let sent = handover::send(&upstream, request, message, kind, informed, read_ahead).await;
        match sent {
            Ok((response, source)) => {
                if let Some(exchange) = &exchange {
                    exchange.upstream_answered(response.status().as_u16());
                }
                note(exchange.as_ref(), Outcome::Forwarded);
                let (mut answer, incoming) = response.into_parts();
                if let Err(error) = forward::prepare(&mut answer, sibling::PEER) {
                    return Some(respond::bad_gateway(&error, kind.grpc));
                }
                let context = AnswerContext {
                    client,
                    peer: sibling::PEER,
                    timeouts,
                    buffered: &self.buffered,
                    mid_stream_timeout: self.config.options.mid_stream_timeout,
                    tunnels: &self.tunnels,
                };
                let in_flight = std::mem::take(in_flight);
                let mut response = context.relay(kind, (answer, incoming), source, in_flight, None);
                // The sibling has set the content type.
                response.extensions_mut().remove::<Untyped>();
                Some(response)
            }
            Err(HandoverError::Started(error)) => {
                note(exchange.as_ref(), Outcome::Failed);
                let (trace_id, span_id) = trace_of(exchange.as_ref());
                tracing::debug!(%error, trace_id, span_id, "no answer from the sibling");
                Some(respond::bad_gateway(&error, kind.grpc))
            }
            Err(error) => {
                let is_refused = !matches!(error, HandoverError::Incomplete);
                if is_refused {
                    let (trace_id, span_id) = trace_of(exchange.as_ref());
                    let address = sibling.address;
                    tracing::debug!(%error, %address, trace_id, span_id, "a request is back from a sibling");
                }
                forwarding.note_returned(is_refused);
                in_flight.slot.forwarding = None;
                if let Some(exchange) = &exchange {
                    exchange.wait_again(Instant::now());
                }
                None
            }
        }
    }

    /// Returns what a request claims for its admission.
    fn claim(
        &self,
        request: &Request<ClientBody>,
        kind: &RequestKind,
        arrival: Time,
        budget: &RequestDeadline,
        exchange: Option<&Arc<Exchange>>,
    ) -> Claim {
        let headers = request.headers();
        let tag = headers.get(headers::SERVING_TAG);
        let is_tagged = tag.is_some_and(|tag| !tag.is_empty());
        let trace = exchange.and_then(|exchange| exchange.trace());
        Claim {
            arrival,
            deadline: budget.deadline,
            class: class::of(budget.deadline.objective, forward::body_length(request)),
            may_move: kind.upgrade.is_none() && !is_tagged && !sibling::has_hopped(headers),
            trace: trace_context(trace),
            back: None,
        }
    }

    /// Waits for a slot at the user container, or for a sibling's. Returns `None` at once without a concurrency limit.
    async fn admit(
        &self,
        client: &Client,
        request: &mut Request<ClientBody>,
        kind: &RequestKind,
        mut claim: Claim,
    ) -> Result<Option<Admitted>, Refusal> {
        let Some(admission) = &self.admission else {
            return Ok(None);
        };
        if kind.http2 && claim.may_move && admission.takes_turns() {
            claim.may_move = false;
            // A sibling that refuses it may have read of the body, so that it is forwarded only with a copy of all of it. hyper sends
            // `100 Continue` as soon as the body is polled, which is too early for a client that expects it.
            let mut is_read = !headers::expects_continue(request.headers());
            let mut acquire = Arc::clone(admission).acquire(claim);
            let acquired = poll_fn(|cx| {
                let acquired = Pin::new(&mut acquire).poll(cx);
                let (body, account) = (request.body_mut(), &self.read_ahead);
                if acquired.is_pending()
                    && is_read
                    && body.is_whole(account, HTTP2_BODY_BYTES_MAX, cx)
                {
                    is_read = false;
                    acquire.allow_move();
                }
                acquired
            });
            return acquired.await.map(Some);
        }
        let acquire = pin!(Arc::clone(admission).acquire(claim));
        let acquired = forward::read_ahead_while(acquire, client, request, &self.read_ahead);
        acquired.await.map(Some)
    }

    /// Returns whether a request comes from the kubelet, so that it is neither counted nor queued. Any client can send the
    /// header, so it is only trusted from the node's address.
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

    fn deadlines_of(&self, headers: &HeaderMap, arrival: Time) -> RequestDeadline {
        if self.config.options.opted_in() {
            self.deadlines.read(headers, arrival)
        } else {
            // Without opting in the headers are ignored, and the revision's timeout is the only deadline.
            self.deadlines.read(&HeaderMap::new(), arrival)
        }
    }

    fn rewrite(
        &self,
        request: &mut Request<ClientBody>,
        client: &Client,
        hop: Hop,
        budget: &RequestDeadline,
        arrival: Time,
    ) -> Result<(), http::Error> {
        let headers = request.headers_mut();
        if hop == Hop::First {
            // Added after the wait, so that a waiting request does not use memory for it.
            headers::add_forwarded(headers);
        }
        let original_host = headers::take_knative(headers);
        headers::remove_hop_by_hop(headers);
        if hop == Hop::First {
            headers::append_forwarded_for(headers, client.peer.ip());
        } else {
            // The sibling's way to learn that the request starts, whether its client asks for it or not.
            headers.remove(EXPECT);
        }
        if self.config.options.opted_in() {
            self.deadlines
                .rewrite(headers, budget, arrival, self.clock.now());
        }
        forward::to_upstream_form(request, original_host, self.upstream.host())
    }

    /// Adds the parts of the time `waited` until the dispatch.
    fn add_server_timing(
        &self,
        headers: &mut HeaderMap,
        waited: Duration,
        lease_wait: Option<LeaseWait>,
    ) {
        if !self.config.options.opted_in() {
            return;
        }
        let (lease, load) = lease_wait
            .as_ref()
            .map(LeaseWait::parts)
            .unwrap_or_default();
        let queue = waited.saturating_sub(lease + load);
        let mut add = |name, span| {
            if let Some(value) = server_timing::entry(name, span) {
                headers.append(SERVER_TIMING, value);
            }
        };
        add(server_timing::QUEUE, queue);
        if lease_wait.is_none() {
            // Stated, too, so that the application's entries of these names are not believed.
            for none in ["load;dur=0", "lease;dur=0"] {
                headers.append(SERVER_TIMING, HeaderValue::from_static(none));
            }
            return;
        }
        add(server_timing::LOAD, load);
        add(server_timing::LEASE, lease);
    }
}

impl Handler for Proxy {
    type Slot = RequestSlot;

    fn handle(
        self: Arc<Self>,
        client: Client,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Response<ProxyBody<RequestSlot>>> + Send {
        // Not within the future, which hyper drops before it is polled if the client leaves right after its request: the
        // request must be counted all the same.
        let mut arrived = self.begin(&client, &mut request);
        let mut request =
            request.map(|body| ClientBody::new(body, client.http1.clone(), &self.buffered));
        // Owned here and borrowed by all steps: passing it by value would reserve memory for it in the future of each.
        async move { self.serve(&client, &mut request, &mut arrived).await }
    }
}

/// State of a request at its arrival.
#[derive(Debug)]
struct RequestState {
    arrival: Instant,
    /// Answer to a malformed request; `None` if the request is to be served.
    malformed: Option<Box<Response<ProxyBody<RequestSlot>>>>,
    hop: Hop,
    in_flight: InFlight<RequestSlot>,
}
