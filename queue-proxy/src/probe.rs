//! Probes on the serving port: who asks what, and what is answered.

use http::header::USER_AGENT;
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use proxy::body::ProxyBody;
use proxy::headers::{KUBELET_PROBE, NETWORK_HASH, NETWORK_PROBE};
use proxy::relay::Place;
use proxy::respond;
use std::sync::Arc;

use crate::drain::Drain;
use crate::readiness::Prober;

/// The value by which probes address the queue-proxy, and its answer when the user container is ready.
const QUEUE: &str = "queue";

/// A request that is a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A health check by the kubelet, the activator or the autoscaler; the value of `K-Network-Probe`.
    Health(Option<HeaderValue>),
    /// A check of the network path; the hash to be echoed.
    Network(Option<HeaderValue>),
}

/// Whether metrics and the request log take a request for a probe: more do than are answered here.
#[must_use]
pub(crate) fn is_probe(headers: &HeaderMap) -> bool {
    headers.contains_key(NETWORK_PROBE)
        || headers.contains_key(KUBELET_PROBE)
        || headers
            .get(USER_AGENT)
            .is_some_and(|agent| agent.as_bytes().starts_with(b"kube-probe/"))
}

/// What kind of probe a request is, if any; the first rule that fits wins, method and path do not matter.
#[must_use]
pub(crate) fn classify(headers: &HeaderMap) -> Option<Kind> {
    let asks_health = headers.get(USER_AGENT).is_some_and(|agent| {
        let agent = agent.as_bytes();
        agent.starts_with(b"kube-probe/")
            || agent.starts_with(b"Knative-Activator-Probe")
            || agent.starts_with(b"Knative-Autoscaling-Probe")
    });
    let probe = headers.get(NETWORK_PROBE);
    if asks_health {
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

/// Answers a probe.
pub(crate) async fn answer<P: Place>(
    kind: Kind,
    drain: &Drain,
    prober: &Arc<Prober>,
) -> Response<ProxyBody<P>> {
    if drain.is_draining() {
        return respond::error(StatusCode::SERVICE_UNAVAILABLE, "shutting down");
    }
    match kind {
        Kind::Health(Some(value)) if value == QUEUE => {
            if prober.is_ready().await {
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
