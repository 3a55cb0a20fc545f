//! Forwarding of requests to other instances of the function on the node, which have got their slots' leases for them (contracts §7).
//!
//! A forwarded request has the headers `Weir-Target`, the UID of the pod that is to serve it, and `Weir-Hops: 1`. A pod with another UID refuses it
//! with 421 before anything of its body is read.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Request;
use http::header::{HeaderMap, HeaderValue};
use policy::Time;
use proxy::buffered::Buffered;
use proxy::client_body::ClientBody;
use proxy::client_tls::{ClientTls, TrustStore};
use proxy::deadline::{Deadlines, RequestDeadline};
use proxy::forward;
use proxy::handover;
use proxy::headers;
use proxy::tls::TlsError;
use proxy::upstream::{Settings, Upstream};

use crate::config::Config;
use crate::lease::Sibling;

/// Name of siblings in error messages.
pub(crate) const PEER: &str = "the sibling";
/// Time limit for a connection to a sibling: plain, and with TLS, of which the handshake takes several round trips and some computation.
const DIAL_MAX: Duration = Duration::from_millis(20);
const DIAL_TLS_MAX: Duration = Duration::from_millis(100);
/// Largest number of siblings to which connections are kept.
const SIBLINGS_MAX: usize = 16;

/// Connections to the siblings.
#[derive(Debug)]
pub(crate) struct Siblings {
    namespace: HeaderValue,
    idle_max: usize,
    tls: Option<ClientTls>,
    buffered: Arc<Buffered>,
    /// The most recently used last.
    upstreams: Mutex<VecDeque<Arc<Upstream>>>,
}

/// How a request came to this pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Hop {
    /// From a client, or an activator.
    #[default]
    First,
    /// From a sibling.
    Forwarded,
    /// From a sibling that took this pod for another.
    Misdirected,
}

/// Returns the trust in siblings' certificates where `has_tls`, or `None` without a certificate authority, where nothing can be forwarded.
///
/// # Errors
/// Returns an error if the authority's file is not usable.
pub(crate) fn trust(config: &Config, has_tls: bool) -> Result<Option<Arc<TrustStore>>, TlsError> {
    let authority = config.certificates.join("ca.crt");
    if !has_tls || !authority.exists() {
        return Ok(None);
    }
    let trust = TrustStore::read(vec![authority])?;
    // Without a client for it nothing is forwarded, rather than without TLS.
    Ok(client_of(config, &trust).is_some().then_some(trust))
}

/// Returns the client for siblings' certificates.
fn client_of(config: &Config, trust: &Arc<TrustStore>) -> Option<ClientTls> {
    ClientTls::for_pods(Arc::clone(trust), &config.namespace).ok()
}

/// Returns the address at which siblings reach this pod; `None` if nothing can be forwarded.
pub(crate) fn address(config: &Config, has_tls: bool, is_trusting: bool) -> Option<SocketAddr> {
    let ip: IpAddr = config.pod_ip.parse().ok()?;
    match (has_tls, is_trusting) {
        (false, _) => Some(SocketAddr::new(ip, config.serving_port)),
        (true, true) => Some(SocketAddr::new(ip, config.tls_port)),
        (true, false) => None,
    }
}

impl Siblings {
    /// Creates the connections of a pod, of which there are none yet.
    pub(crate) fn new(
        config: &Config,
        trust: Option<&Arc<TrustStore>>,
        buffered: &Arc<Buffered>,
    ) -> Self {
        let tls = trust.and_then(|trust| client_of(config, trust));
        Self {
            namespace: HeaderValue::try_from(&config.namespace)
                .unwrap_or_else(|_invalid| HeaderValue::from_static("")),
            idle_max: config.idle_connections(),
            tls,
            buffered: Arc::clone(buffered),
            upstreams: Mutex::default(),
        }
    }

    /// Returns the connections to a sibling.
    pub(crate) fn upstream(&self, address: SocketAddr) -> Arc<Upstream> {
        let mut upstreams = self
            .upstreams
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let known = upstreams.iter().position(|own| own.address() == address);
        let upstream = known.and_then(|at| upstreams.remove(at));
        let upstream = upstream.unwrap_or_else(|| {
            let settings = Settings {
                address,
                peer: PEER,
                idle_max: self.idle_max,
                dial_attempts: 1,
                dial_max: Some(match self.tls {
                    None => DIAL_MAX,
                    Some(_) => DIAL_TLS_MAX,
                }),
                resends: true,
                tls: self.tls.clone(),
            };
            Upstream::new(settings, Arc::clone(&self.buffered))
        });
        upstreams.push_back(Arc::clone(&upstream));
        if upstreams.len() > SIBLINGS_MAX {
            upstreams.pop_front();
        }
        upstream
    }

    /// Closes connections which have been idle for long.
    pub(crate) fn sweep(&self) {
        let upstreams = self
            .upstreams
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for upstream in &*upstreams {
            upstream.sweep();
        }
    }

    /// Returns the head with which a request is forwarded to a sibling, after `held` from its arrival.
    pub(crate) fn head(
        &self,
        request: &Request<ClientBody>,
        client: IpAddr,
        sibling: &Sibling,
        deadlines: &Deadlines,
        (budget, arrival, now): (&RequestDeadline, Time, Time),
    ) -> Request<()> {
        let mut message = Request::new(());
        *message.method_mut() = request.method().clone();
        *message.uri_mut() = request.uri().clone();
        *message.version_mut() = request.version();
        let mut head = request.headers().clone();
        headers::add_forwarded(&mut head);
        let original = headers::take_knative(&mut head).or_else(|| forward::host_of(request));
        headers::remove_hop_by_hop(&mut head);
        headers::append_forwarded_for(&mut head, client);
        deadlines.rewrite_for_hop(&mut head, budget, arrival, now);
        if let Some(host) = original {
            head.insert(headers::ORIGINAL_HOST, host);
        }
        head.insert(handover::HOPS, HeaderValue::from_static("1"));
        if let Ok(uid) = HeaderValue::try_from(&sibling.uid) {
            head.insert(handover::TARGET, uid);
        }
        if let Ok(revision) = HeaderValue::try_from(&sibling.revision) {
            head.insert(headers::SERVING_REVISION, revision);
            head.insert(headers::SERVING_NAMESPACE, self.namespace.clone());
        }
        *message.headers_mut() = head;
        message
    }
}

/// Returns how a request came to the pod. `is_own` returns whether a UID is that of the pod.
pub(crate) fn hop_of(headers: &HeaderMap, is_own: impl Fn(&[u8]) -> bool) -> Hop {
    match headers.get(handover::TARGET) {
        None => Hop::First,
        Some(target) if !is_own(target.as_bytes()) => Hop::Misdirected,
        Some(_) if has_hopped(headers) => Hop::Forwarded,
        Some(_) => Hop::First,
    }
}

/// Returns whether a request states that it has been forwarded, so that it is not forwarded again.
pub(crate) fn has_hopped(headers: &HeaderMap) -> bool {
    headers.contains_key(handover::HOPS)
}
