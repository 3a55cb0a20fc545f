//! The path of a request through role `data`: probes, look-up, timeouts, the function's queue,
//! an instance.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use annotations::MidStreamTimeout;
use http::header::{CONNECTION, HOST, HeaderName, HeaderValue, UPGRADE, USER_AGENT};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use policy::routing::{Completion, RefuseReason};
use policy::{Span, Time, class};
use proxy::body::ProxyBody;
use proxy::buffered::Buffered;
use proxy::client_body::{ClientBody, ReadAhead};
use proxy::clock::Clock;
use proxy::connection::{Client, Handler};
use proxy::deadline::RequestDeadline;
use proxy::exchange::Exchange;
use proxy::forward::{self, AnswerContext, RequestKind, discard, note, trace_of};
use proxy::headers::{self, KUBELET_PROBE, NETWORK_HASH, NETWORK_PROBE};
use proxy::malformed;
use proxy::outcome::Outcome;
use proxy::relay::{InFlight, UpstreamSlot};
use proxy::respond;
use proxy::server_timing::{self, SERVER_TIMING};
use proxy::timeouts::{Expired, TimeLimits, Timeouts};
use proxy::traces::TraceIds;
use proxy::upstream::UpstreamError;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::function::{AcquireError, Claim, InstanceSlot, Refusal};
use crate::metrics::{Metrics, PassReason};
use crate::pass::{self, PassThrough};
use crate::registry::{LiveRevision, Lookup, PEER, Registry};
use crate::reporter::Reporter;
use crate::stat::CountGuard;
use crate::view::RevisionName;

/// The header value by which the autoscaler counts a request once.
const ACTIVATOR: HeaderValue = HeaderValue::from_static("activator");
/// Largest number of instances tried for a request whose connection fails.
const TRIES_MAX: u32 = 10;

/// The handler of the ports for requests.
#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) registry: Arc<Registry>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) pass: PassThrough,
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) clock: Clock,
    pub(crate) buffered: Arc<Buffered>,
    pub(crate) read_ahead: Arc<ReadAhead>,
    pub(crate) tunnels: TaskTracker,
    /// Whether all requests are passed to Knative's own activator.
    pub(crate) is_disabled: bool,
    pub(crate) is_stopping: AtomicBool,
    /// Time of the last request.
    pub(crate) last_request: watch::Sender<Instant>,
    pub(crate) head_lines: usize,
}

/// What a request holds until its answer has ended.
#[derive(Debug, Default)]
pub(crate) struct RequestSlot {
    /// Place of the request at an instance, once it has one.
    bound: Option<InstanceSlot>,
    /// Count of the request among those that the autoscaler is sent.
    counted: Option<CountGuard>,
}

impl UpstreamSlot for RequestSlot {
    fn complete(&mut self) {
        if let Some(bound) = &mut self.bound {
            bound.complete();
        }
    }
}

/// A request whose head has been received.
#[derive(Debug)]
struct ReceivedRequest {
    arrival: Instant,
    /// The answer to a malformed request, which is not served.
    malformed: Option<Box<Response<ProxyBody<RequestSlot>>>>,
    in_flight: InFlight<RequestSlot>,
}

impl Handler for Data {
    type Slot = RequestSlot;

    fn handle(
        self: Arc<Self>,
        client: Client,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Response<ProxyBody<RequestSlot>>> + Send {
        // Not within the future: hyper drops it without a poll if the client leaves with its request.
        let mut received = self.begin(&client, &mut request);
        let mut request =
            request.map(|body| ClientBody::new(body, client.http1.clone(), &self.buffered));
        // Placed here and lent to all steps: handed through by value, it would have room in each one's future.
        async move { self.serve(&client, &mut request, &mut received).await }
    }
}

impl Data {
    fn begin(&self, client: &Client, request: &mut Request<Incoming>) -> ReceivedRequest {
        let malformed = malformed::refuse(client, request, self.head_lines);
        let serving = client.begin(request.headers());
        ReceivedRequest {
            arrival: Instant::now(),
            malformed: malformed.map(Box::new),
            in_flight: InFlight {
                serving,
                ..InFlight::default()
            },
        }
    }

    async fn serve(
        &self,
        client: &Client,
        request: &mut Request<ClientBody>,
        received: &mut ReceivedRequest,
    ) -> Response<ProxyBody<RequestSlot>> {
        if let Some(answer) = received.malformed.take() {
            discard(request);
            return *answer;
        }
        if let Some(answer) = self.answer_probe(request.headers_mut()) {
            discard(request);
            return answer;
        }
        self.last_request.send_replace(received.arrival);
        let served = match self.look_up(request) {
            Ok(served) => served,
            Err((reason, name)) => {
                self.metrics.pass(reason);
                return self
                    .pass_through(client, request, received, (reason, &name))
                    .await;
            }
        };
        let exchange = served.observer.begin(
            request,
            client,
            received.arrival,
            || false,
            served.revision.concurrency().is_some(),
        );
        received.in_flight.exchange.clone_from(&exchange);
        let head_only = request.method() == Method::HEAD;
        let mut response = self.answer(&served, client, request, received).await;
        if let Some(exchange) = exchange {
            exchange.answer(response.status().as_u16());
            response.body_mut().observe(exchange, head_only);
        }
        response
    }

    /// Answers probes of the kubelet, the ingress and the autoscaler: items 1 to 3 of 5.2.
    fn answer_probe(&self, headers: &mut HeaderMap) -> Option<Response<ProxyBody<RequestSlot>>> {
        let is_kubelet = headers.contains_key(KUBELET_PROBE)
            || headers
                .get(USER_AGENT)
                .is_some_and(|agent| agent.as_bytes().starts_with(b"kube-probe/"));
        if is_kubelet {
            let why = if self.is_stopping.load(Ordering::Relaxed) {
                "shutting down"
            } else if !self.is_disabled && !self.registry.is_complete() {
                "the view of the cluster is not complete yet"
            } else {
                return Some(respond::empty(StatusCode::OK));
            };
            return Some(respond::error(StatusCode::INTERNAL_SERVER_ERROR, why));
        }
        let Some(probe) = headers.get(NETWORK_PROBE).filter(|probe| !probe.is_empty()) else {
            headers.remove(NETWORK_HASH);
            return None;
        };
        if probe == "probe" {
            let mut answer = respond::empty(StatusCode::OK);
            if let Some(hash) = headers.remove(NETWORK_HASH) {
                answer.headers_mut().insert(NETWORK_HASH, hash);
            }
            return Some(answer);
        }
        if probe == "activator" {
            return Some(respond::text(StatusCode::OK, "activator"));
        }
        let value = String::from_utf8_lossy(probe.as_bytes());
        Some(respond::error(
            StatusCode::BAD_REQUEST,
            &format!("unexpected probe header value: {value:?}"),
        ))
    }

    /// Returns the revision to which a request is addressed: item 5.
    fn look_up(
        &self,
        request: &Request<ClientBody>,
    ) -> Result<Arc<LiveRevision>, (PassReason, String)> {
        if self.is_disabled {
            return Err((PassReason::Disabled, String::new()));
        }
        if !self.registry.is_complete() {
            return Err((PassReason::ViewIncomplete, String::new()));
        }
        let Some((namespace, name)) = revision_of(request) else {
            return Err((PassReason::UnknownRevision, String::new()));
        };
        match self.registry.find(namespace, name) {
            Lookup::Served(served) => {
                let tag = request.headers().get(headers::SERVING_TAG);
                let is_tagged = tag.is_some_and(|tag| !tag.is_empty());
                if is_tagged && self.registry.has_other_variants(&served) {
                    return Err((PassReason::Tagged, name.to_owned()));
                }
                Ok(served)
            }
            Lookup::NotOptedIn => Err((PassReason::NotOptedIn, name.to_owned())),
            Lookup::Unknown => Err((PassReason::UnknownRevision, name.to_owned())),
        }
    }

    async fn answer(
        &self,
        served: &Arc<LiveRevision>,
        client: &Client,
        request: &mut Request<ClientBody>,
        received: &mut ReceivedRequest,
    ) -> Response<ProxyBody<RequestSlot>> {
        let timeouts = Timeouts::new(served.limits, received.arrival);
        let grpc = respond::is_grpc(request.headers());
        let informed = timeouts.watch_interim().then(Arc::<AtomicBool>::default);
        let exchange = received.in_flight.exchange.clone();
        let in_flight = &mut received.in_flight;
        let forward = self.forward(
            served,
            client,
            request,
            in_flight,
            &timeouts,
            informed.as_ref(),
        );
        match timeouts.run(informed.as_ref(), pin!(forward)).await {
            Ok(response) => response,
            Err(Expired) => {
                note(exchange.as_ref(), Outcome::Timeout);
                respond::timeout(timeouts.text(), grpc)
            }
        }
    }

    async fn forward(
        &self,
        served: &Arc<LiveRevision>,
        client: &Client,
        request: &mut Request<ClientBody>,
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
        let budget = served.deadlines.read(request.headers(), arrival);
        if let Some(exchange) = exchange.as_ref().filter(|_| budget.held > Span::ZERO) {
            exchange.note_held(Duration::from_nanos(budget.held.0));
        }
        let times = RequestTiming { budget, arrival };
        let is_cold = served.function.ready() == 0;
        if let Some(exchange) = exchange.as_ref().filter(|_| is_cold) {
            exchange.note_cold_start();
        }
        let (counted, is_first) = served.stat.arrive(timeouts.arrival, is_cold);
        in_flight.slot.counted = Some(counted);
        if is_first {
            self.reporter.report_first(&served.revision.name);
        }
        let mut served = Arc::clone(served);
        let mut is_again = false;
        let mut tries = 1;
        loop {
            let acquired = self
                .acquire(&served, client, request, &times, is_again)
                .await;
            let bound = match acquired {
                Ok(bound) => bound,
                Err(AcquireError::Refused(refusal)) => {
                    return self.refuse(&served, &refusal, exchange.as_ref(), kind.grpc);
                }
                Err(AcquireError::Closed) => {
                    let RevisionName { namespace, name } = &served.revision.name;
                    let Lookup::Served(current) = self.registry.find(namespace, name) else {
                        note(exchange.as_ref(), Outcome::Refused);
                        return not_found(name);
                    };
                    if let Some(counted) = &mut in_flight.slot.counted {
                        current.stat.take_over(counted);
                    }
                    served = current;
                    continue;
                }
            };
            let begun = Instant::now();
            let held = Span::from(begun.saturating_duration_since(timeouts.arrival));
            if !is_again {
                served.metrics.hold(held, is_cold);
            }
            let of = &bound.instance.revision;
            if *of != served.revision.name
                && let Lookup::Served(of) = self.registry.find(&of.namespace, &of.name)
                && let Some(counted) = &mut in_flight.slot.counted
            {
                of.stat.take_over(counted);
            }
            let instance = Arc::clone(&bound.instance);
            in_flight.slot.bound = Some(bound);
            if !is_again {
                self.rewrite(&served, client, request, &times);
                if let Some((protocol, _)) = &kind.upgrade {
                    let headers = request.headers_mut();
                    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
                    headers.insert(UPGRADE, protocol.clone());
                }
            } else {
                self.stamp(&served, request.headers_mut(), &times);
            }
            let host = instance.upstream.host();
            if forward::to_upstream_form(request, Some(host.clone()), host).is_err() {
                note(exchange.as_ref(), Outcome::Malformed);
                return respond::error(StatusCode::URI_TOO_LONG, "the escaped target is too long");
            }
            if let Some(exchange) = &exchange {
                let method = request.method().clone();
                let address = instance.upstream.address();
                exchange.dispatch(begun, address, &method, request.headers_mut());
            }
            let refresh = |headers: &mut HeaderMap| self.stamp(&served, headers, &times);
            let sent = forward::send(&instance.upstream, request, &kind, informed, refresh).await;
            let error = match sent {
                Ok((mut response, source)) => {
                    instance.hear(self.clock.now());
                    if is_failure_of_pod(&response) {
                        instance.suspect();
                    }
                    if let Some(bound) = &mut in_flight.slot.bound {
                        bound.answered();
                    }
                    if let Some(exchange) = &exchange {
                        exchange.upstream_answered(response.status().as_u16());
                        if is_shed_by_pod(&response) {
                            exchange.note(Outcome::Shed);
                        }
                        let part = |name| server_timing::read(response.headers(), name);
                        exchange.note_upstream_parts(
                            part(server_timing::QUEUE).unwrap_or_default(),
                            part(server_timing::LEASE).unwrap_or_default(),
                            part(server_timing::LOAD).unwrap_or_default(),
                        );
                    }
                    let waited = begun.saturating_duration_since(timeouts.arrival);
                    if let Some(value) = server_timing::entry("hold", waited) {
                        response.headers_mut().append(SERVER_TIMING, value);
                    }
                    let in_flight = std::mem::take(in_flight);
                    let context = AnswerContext {
                        client,
                        peer: PEER,
                        timeouts,
                        buffered: &self.buffered,
                        mid_stream_timeout: served.mid_stream_timeout,
                        tunnels: &self.tunnels,
                    };
                    return pass_on(context, kind, response, source, in_flight).await;
                }
                Err(error) => error,
            };
            let Some(bound) = &mut in_flight.slot.bound else {
                return respond::bad_gateway(&error, kind.grpc);
            };
            match &error {
                // No byte of the request was written.
                UpstreamError::Dial { .. } if tries < TRIES_MAX => {
                    bound.completion = Completion::NotConnected;
                    in_flight.slot.bound = None;
                    is_again = true;
                    tries += 1;
                    if let Some(exchange) = &exchange {
                        exchange.wait_again(Instant::now());
                    }
                    let (trace_id, span_id) = trace_of(exchange.as_ref());
                    tracing::debug!(%error, trace_id, span_id, "cannot connect to the pod; retrying at another instance");
                    continue;
                }
                UpstreamError::Dial { .. } => bound.completion = Completion::NotConnected,
                UpstreamError::ClientBody => {
                    note(exchange.as_ref(), Outcome::Malformed);
                    return respond::bad_request("the body cannot be read");
                }
                _ => bound.completion = Completion::Broken,
            }
            note(exchange.as_ref(), Outcome::Failed);
            let (trace_id, span_id) = trace_of(exchange.as_ref());
            tracing::debug!(%error, instance = %instance.address, trace_id, span_id, "no answer from the pod");
            return respond::bad_gateway(&error, kind.grpc);
        }
    }

    /// Waits until the function of `served` assigns the request a place at an instance, and meanwhile reads ahead in its body.
    /// Fails if the function refuses the request or is closed.
    async fn acquire(
        &self,
        served: &LiveRevision,
        client: &Client,
        request: &mut Request<ClientBody>,
        times: &RequestTiming,
        is_again: bool,
    ) -> Result<InstanceSlot, AcquireError> {
        let claim = Claim {
            arrival: times.arrival,
            deadline: times.budget.deadline,
            class: class::of(
                times.budget.deadline.objective,
                forward::body_length(request),
            ),
            is_again,
        };
        let acquire = pin!(Arc::clone(&served.function).acquire(claim));
        forward::read_ahead_while(acquire, client, request, &self.read_ahead).await
    }

    fn refuse(
        &self,
        served: &LiveRevision,
        refused: &Refusal,
        exchange: Option<&Arc<Exchange>>,
        grpc: bool,
    ) -> Response<ProxyBody<RequestSlot>> {
        match refused.reason {
            RefuseReason::Full | RefuseReason::Displaced => {
                note(exchange, Outcome::Refused);
                respond::queue_full(grpc)
            }
            RefuseReason::Late => {
                note(exchange, Outcome::Shed);
                served.stat.add_shed(refused.execution);
                respond::late(refused.retry_after, grpc)
            }
        }
    }

    /// Sets the headers which a pod's queue-proxy expects from an activator: item 12.
    fn rewrite(
        &self,
        served: &LiveRevision,
        client: &Client,
        request: &mut Request<ClientBody>,
        times: &RequestTiming,
    ) {
        let host = forward::host_of(request);
        let headers = request.headers_mut();
        let original = headers::take_knative(headers).or(host);
        headers::remove_hop_by_hop(headers);
        headers::append_forwarded_for(headers, client.peer.ip());
        if let Some(host) = original {
            headers.insert(headers::ORIGINAL_HOST, host);
        }
        headers.insert(headers::PROXY_REQUEST, ACTIVATOR);
        self.stamp(served, headers, times);
    }

    /// Sets the headers with the remaining budget and the time for which the request was held.
    fn stamp(&self, served: &LiveRevision, headers: &mut HeaderMap, times: &RequestTiming) {
        let now = self.clock.now();
        served
            .deadlines
            .rewrite_for_hop(headers, &times.budget, times.arrival, now);
    }

    /// Passes a request that this program cannot decide on to Knative's own activator, unchanged.
    async fn pass_through(
        &self,
        client: &Client,
        request: &mut Request<ClientBody>,
        received: &mut ReceivedRequest,
        (reason, name): (PassReason, &str),
    ) -> Response<ProxyBody<RequestSlot>> {
        let Some(upstream) = self.pass.upstream().await else {
            discard(request);
            if reason == PassReason::UnknownRevision {
                return not_found(name);
            }
            let text = format!(
                "{}; no other activator can be reached (--pass-to)",
                reason.text()
            );
            return respond::error(StatusCode::SERVICE_UNAVAILABLE, &text);
        };
        let kind = RequestKind::of(client, request);
        headers::remove_hop_by_hop(request.headers_mut());
        if let Some((protocol, _)) = &kind.upgrade {
            let headers = request.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(UPGRADE, protocol.clone());
        }
        if forward::to_upstream_form(request, None, upstream.host()).is_err() {
            return respond::error(StatusCode::URI_TOO_LONG, "the escaped target is too long");
        }
        let timeouts = Timeouts::new(PASS_LIMITS, received.arrival);
        match forward::send(&upstream, request, &kind, None, |_| {}).await {
            Ok((response, source)) => {
                let context = AnswerContext {
                    client,
                    peer: pass::PEER,
                    timeouts: &timeouts,
                    buffered: &self.buffered,
                    mid_stream_timeout: MidStreamTimeout::Abort,
                    tunnels: &self.tunnels,
                };
                let in_flight = std::mem::take(&mut received.in_flight);
                pass_on(context, kind, response, source, in_flight).await
            }
            Err(UpstreamError::ClientBody) => respond::bad_request("the body cannot be read"),
            Err(error) => {
                self.pass.failed();
                let (trace_id, span_id) =
                    TraceIds::of(request.headers()).map(TraceIds::texts).unzip();
                tracing::debug!(%error, trace_id, span_id, "no answer from Knative's activator");
                respond::bad_gateway(&error, kind.grpc)
            }
        }
    }
}

/// The deadline of a request by its headers, and its arrival.
#[derive(Debug)]
struct RequestTiming {
    budget: RequestDeadline,
    arrival: Time,
}

/// Time limits of passed requests. Knative's activator has limits of its own.
const PASS_LIMITS: TimeLimits = TimeLimits {
    request: Duration::from_secs(86_400),
    response_start: None,
    idle: None,
    text: "activator request timeout",
};

/// Relays an answer of any kind to the client.
async fn pass_on(
    context: AnswerContext<'_>,
    kind: RequestKind,
    response: Response<Incoming>,
    source: proxy::relay::Source,
    in_flight: InFlight<RequestSlot>,
) -> Response<ProxyBody<RequestSlot>> {
    let (mut answer, incoming) = response.into_parts();
    let switched = match forward::prepare(&mut answer, context.peer) {
        Ok(switched) => switched,
        Err(error) => {
            note(in_flight.exchange.as_ref(), Outcome::Failed);
            return respond::bad_gateway(&error, kind.grpc);
        }
    };
    if answer.status == StatusCode::SWITCHING_PROTOCOLS {
        // Knative's activator has no such limit on tunnels.
        let timeouts = context.timeouts.without_response_start();
        let context = AnswerContext {
            timeouts: &timeouts,
            ..context
        };
        let switch = context.switch(kind, (answer, switched), source, in_flight);
        return Box::pin(switch).await;
    }
    let mut response = context.relay(&kind, (answer, incoming), source, in_flight, None);
    // The pod's queue-proxy has set the content type.
    response.extensions_mut().remove::<forward::Untyped>();
    response
}

/// Returns whether a pod's queue-proxy has shed a request before its application received it.
fn is_shed_by_pod(response: &Response<Incoming>) -> bool {
    response.status() == StatusCode::SERVICE_UNAVAILABLE
        && response.headers().contains_key(respond::ENVOY_RATELIMITED)
        && server_timing::read(response.headers(), server_timing::QUEUE).is_none()
}

/// Returns whether a pod reports that its application does not answer. Refusals for lateness have a header and do not
/// count.
fn is_failure_of_pod(response: &Response<Incoming>) -> bool {
    match response.status() {
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => true,
        StatusCode::SERVICE_UNAVAILABLE => {
            !response.headers().contains_key(respond::ENVOY_RATELIMITED)
        }
        _ => false,
    }
}

/// Returns the answer for an unknown revision.
fn not_found(name: &str) -> Response<ProxyBody<RequestSlot>> {
    let text = format!("Error getting active endpoint: revision {name:?} not found");
    respond::error(StatusCode::NOT_FOUND, &text)
}

/// Returns namespace and name of the revision: by Knative's headers, or by a host
/// `<revision>.<namespace>.svc.<domain>`.
fn revision_of(request: &Request<ClientBody>) -> Option<(&str, &str)> {
    let text = |name: &HeaderName| request.headers().get(name)?.to_str().ok();
    let named = text(&headers::SERVING_NAMESPACE).zip(text(&headers::SERVING_REVISION));
    let (namespace, name) = match named.filter(|(a, b)| !a.is_empty() && !b.is_empty()) {
        Some(named) => named,
        None => {
            let host = request.uri().authority().map(|authority| authority.host());
            let host = host.or_else(|| text(&HOST)?.split(':').next())?;
            let mut labels = host.split('.');
            let (name, namespace) = (labels.next()?, labels.next()?);
            if labels.next() != Some("svc") {
                return None;
            }
            (namespace, name)
        }
    };
    Some((namespace, name))
}
