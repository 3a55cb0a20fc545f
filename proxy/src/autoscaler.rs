//! What Knative's autoscaler reads (`pkg/autoscaler/metrics/stat.proto` of knative-serving).

/// One window of a pod's requests. Zero fields are left out.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatMessage {
    /// The pod: the key by which the autoscaler tells reports apart.
    #[prost(string, tag = "1")]
    pub pod_name: String,
    /// Mean number of requests in the proxy over the window.
    #[prost(double, tag = "2")]
    pub average_concurrent_requests: f64,
    /// The part of it that came through the activator.
    #[prost(double, tag = "3")]
    pub average_proxied_concurrent_requests: f64,
    /// Arrivals per second.
    #[prost(double, tag = "4")]
    pub request_count: f64,
    /// The part of them that came through the activator.
    #[prost(double, tag = "5")]
    pub proxied_request_count: f64,
    /// Seconds since the process began.
    #[prost(double, tag = "6")]
    pub process_uptime: f64,
}

/// A revision's window, as an activator reports it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WireStatMessage {
    /// The revision's namespace.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The window.
    #[prost(message, optional, tag = "3")]
    pub stat: Option<StatMessage>,
}

/// One frame of an activator's report.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WireStatMessages {
    /// A window for each revision.
    #[prost(message, repeated, tag = "1")]
    pub messages: Vec<WireStatMessage>,
}
