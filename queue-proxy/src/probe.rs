//! Classification and answers of probes on the serving port.

use http::header::USER_AGENT;
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use proxy::body::ProxyBody;
use proxy::headers::{KUBELET_PROBE, NETWORK_HASH, NETWORK_PROBE};
use proxy::relay::UpstreamSlot;
use proxy::respond;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::drain::Drain;
use crate::readiness::Prober;

/// Value of `K-Network-Probe` that addresses the queue-proxy, and body of its answer if the user container is ready.
const QUEUE: &str = "queue";

/// Kind of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A health check by the kubelet, the activator or the autoscaler, with the value of `K-Network-Probe`.
    Health(Option<HeaderValue>),
    /// A check of the network path, with the hash to be echoed.
    Network(Option<HeaderValue>),
}

/// Returns whether metrics and the request log count a request as a probe. This includes probes that are forwarded to the
/// user container.
#[must_use]
pub(crate) fn is_probe(headers: &HeaderMap) -> bool {
    headers.contains_key(NETWORK_PROBE)
        || headers.contains_key(KUBELET_PROBE)
        || headers
            .get(USER_AGENT)
            .is_some_and(|agent| agent.as_bytes().starts_with(b"kube-probe/"))
}

/// Returns the kind of probe that the queue-proxy itself answers, or `None` for another request. The first matching rule
/// wins; method and path are ignored.
#[must_use]
pub(crate) fn classify(headers: &HeaderMap) -> Option<Kind> {
    let is_health_check = headers.get(USER_AGENT).is_some_and(|agent| {
        let agent = agent.as_bytes();
        agent.starts_with(b"kube-probe/")
            || agent.starts_with(b"Knative-Activator-Probe")
            || agent.starts_with(b"Knative-Autoscaling-Probe")
    });
    let probe = headers.get(NETWORK_PROBE);
    if is_health_check {
        return Some(Kind::Health(probe.cloned()));
    }
    (probe? == "probe").then(|| {
        Kind::Network(
            headers
                .get(NETWORK_HASH)
                .filter(|hash| !hash.is_empty())
                .cloned(),
        )
    })
}

/// Answers a probe: 503 while draining, else according to its kind. `away`: address of the user container if its model is in host memory, where a
/// check of its own might wait for the model and so must not run.
pub(crate) async fn answer<P: UpstreamSlot>(
    kind: Kind,
    drain: &Drain,
    prober: &Arc<Prober>,
    away: Option<SocketAddr>,
) -> Response<ProxyBody<P>> {
    if drain.is_draining() {
        return respond::error(StatusCode::SERVICE_UNAVAILABLE, "shutting down");
    }
    match kind {
        Kind::Health(Some(value)) if value == QUEUE => {
            let is_ready = match away {
                Some(target) => prober.is_listening(target).await,
                None => prober.is_ready().await,
            };
            if is_ready {
                respond::text(StatusCode::OK, QUEUE)
            } else {
                respond::empty(StatusCode::SERVICE_UNAVAILABLE)
            }
        }
        Kind::Health(value) => {
            let value = value.as_ref().map_or_else(Default::default, |value| {
                String::from_utf8_lossy(value.as_bytes()).into_owned()
            });
            respond::error(
                StatusCode::BAD_REQUEST,
                &format!("unexpected probe header value: {value}"),
            )
        }
        Kind::Network(Some(hash)) => {
            let mut response = respond::empty(StatusCode::OK);
            response.headers_mut().insert(NETWORK_HASH, hash);
            response
        }
        Kind::Network(None) => respond::error(
            StatusCode::BAD_REQUEST,
            "a probe request must contain a non-empty \"K-Network-Hash\" header",
        ),
    }
}
