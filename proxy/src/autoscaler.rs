//! Messages to Knative's autoscaler (`pkg/autoscaler/metrics/stat.proto` of knative-serving).

/// Statistics of one pod's requests over one window. Zero fields are not encoded.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatMessage {
    /// Name of the pod, by which the autoscaler distinguishes reports.
    #[prost(string, tag = "1")]
    pub pod_name: String,
    /// Mean number of requests in the proxy over the window.
    #[prost(double, tag = "2")]
    pub average_concurrent_requests: f64,
    /// Part of the mean for requests that came through the activator.
    #[prost(double, tag = "3")]
    pub average_proxied_concurrent_requests: f64,
    /// Arrivals per second over the window.
    #[prost(double, tag = "4")]
    pub request_count: f64,
    /// Part of the arrivals per second that came through the activator.
    #[prost(double, tag = "5")]
    pub proxied_request_count: f64,
    /// Time since the process started, in seconds.
    #[prost(double, tag = "6")]
    pub process_uptime: f64,
}

/// Statistics of one revision over one window, as reported by an activator.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WireStatMessage {
    /// Namespace of the revision.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// Name of the revision.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Statistics of the window.
    #[prost(message, optional, tag = "3")]
    pub stat: Option<StatMessage>,
}

/// One WebSocket frame of an activator's report.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WireStatMessages {
    /// Statistics of one window for each revision.
    #[prost(message, repeated, tag = "1")]
    pub messages: Vec<WireStatMessage>,
}
