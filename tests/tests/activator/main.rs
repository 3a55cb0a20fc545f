//! activator-ext, role `data`: Knative's requirements on an activator (numbers are the contract's items), and Weir's additions.
//!
//! Every test has an activator of its own at an address of its own. Pods are real queue-proxies in front of a user container, or
//! stand-ins where the test inspects the requests at a pod.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod catalogue;
mod faults;
mod forwarding;
mod health;
mod items;
mod kubernetes;
mod queue;
mod scaling;
mod smuggling;
mod statistics;
mod streams;
mod subject;
mod telemetry;
mod tls;
mod usage;

use std::net::{IpAddr, SocketAddr};

use tests::activator::Builder;
use tests::app::{App, ok};
use tests::proxy;

const OWN: &str = env!("CARGO_BIN_EXE_activator-ext-under-test");
const QUEUE_PROXY: &str = env!("CARGO_BIN_EXE_queue-proxy-under-test");

/// Returns a builder of an activator.
fn activator() -> Builder {
    Builder::new(OWN)
}

/// A pod: a user container that answers after as many milliseconds as the path states, and a queue-proxy with a concurrency of 1.
struct Pod {
    app: App,
    proxy: proxy::Proxy,
}

impl Pod {
    async fn start() -> Self {
        Self::with(App::delaying().await).await
    }

    async fn with(app: App) -> Self {
        Self::build(app, None).await
    }

    /// Starts a pod at this address, if one is given.
    async fn build(app: App, ip: Option<IpAddr>) -> Self {
        let probe = format!(
            r#"{{"tcpSocket":{{"port":{}}},"successThreshold":1}}"#,
            app.port
        );
        let mut proxy = proxy::Builder::new(QUEUE_PROXY, app.port);
        if let Some(ip) = ip {
            proxy = proxy.bind(ip);
        }
        let proxy = proxy
            .concurrency(1)
            .set("WEIR_SLO", "10s")
            .set("SERVING_READINESS_PROBE", probe)
            .start()
            .await;
        Self { app, proxy }
    }

    fn address(&self) -> SocketAddr {
        self.proxy.address()
    }
}

/// Starts a stand-in for a pod's queue-proxy, which is ready and answers with the value of the header named by the path's last
/// segment.
async fn echoing() -> App {
    App::serving(|request| async move {
        if request.header("k-network-probe").is_some() {
            return ok("queue");
        }
        let name = request.target().rsplit('/').next().unwrap_or("").to_owned();
        ok(request.header(&name).unwrap_or("none"))
    })
    .await
}

fn at(app: &App) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], app.port))
}

/// Returns the head of a request for a revision, as an ingress sends it.
fn get(revision: &str, target: &str) -> String {
    format!(
        "GET {target} HTTP/1.1\r\nHost: service.default.example.com\r\nKnative-Serving-Namespace: \
         default\r\nKnative-Serving-Revision: {revision}\r\n\r\n"
    )
}
