//! Attacks, and misbehaving user containers. After each attack the proxy has not panicked, serves as before, counts no request
//! that has ended, and has released its memory.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod app;
mod floods;
mod limits;
mod memory;
mod readers;
mod slow;
mod smuggling;
mod trust;

use std::net::SocketAddr;
use std::time::Duration;

use peers::revision::Revision;
use tests::activator::Activator;
use tests::app::{App, ok};
use tests::client::Client;
use tests::eventually;
use tests::message::Message;
use tests::procfs::{files_and_threads, resident_bytes};
use tests::proxy::{Builder, Proxy};

/// Growth of a process allowed after an attack, in bytes, if that exceeds a fifth: allocators and tables keep some memory.
const GROWTH_MAX: usize = 6 << 20;

/// Host, and so revision, of all raw requests in these tests.
const REVISION: &str = "t";

fn proxy(user_port: u16) -> Builder {
    Builder::new(env!("CARGO_BIN_EXE_queue-proxy-under-test"), user_port)
}

/// Program under attack. Both use the same library for their listeners; the code behind it differs.
enum Target {
    QueueProxy(Box<Proxy>),
    /// activator-ext in front of one pod. A request without a revision is routed to the same pod.
    Activator(Box<Activator>),
}

impl Target {
    /// Starts activator-ext in front of a pod with this concurrency.
    async fn activator(app: &App, concurrency: u32) -> Self {
        let mut revision = Revision::new(REVISION);
        revision.concurrency = concurrency;
        revision.pods = vec![SocketAddr::from(([127, 0, 0, 1], app.port))];
        let activator =
            tests::activator::Builder::new(env!("CARGO_BIN_EXE_activator-ext-under-test"))
                .arguments(&["--pass-to", &format!("127.0.0.1:{}", app.port)])
                .revision(&revision)
                .start()
                .await;
        activator.has_instances(1).await;
        Self::Activator(Box::new(activator))
    }

    fn address(&self) -> SocketAddr {
        match self {
            Self::QueueProxy(proxy) => proxy.address(),
            Self::Activator(activator) => activator.address(),
        }
    }

    async fn connect(&self) -> Client {
        Client::connect(self.address()).await
    }

    fn pid(&self) -> u32 {
        match self {
            Self::QueueProxy(proxy) => proxy.pid(),
            Self::Activator(activator) => activator.pid(),
        }
    }

    fn resident_bytes(&self) -> usize {
        resident_bytes(self.pid()).unwrap()
    }

    /// Returns the number of open files.
    fn files(&self) -> usize {
        files_and_threads(self.pid()).unwrap().0
    }

    fn stderr(&self) -> String {
        match self {
            Self::QueueProxy(proxy) => proxy.stderr(),
            Self::Activator(activator) => activator.stderr(),
        }
    }

    /// Returns the number of requests that the program reports.
    async fn carried(&self) -> f64 {
        match self {
            Self::QueueProxy(proxy) => proxy.stat().await.average_concurrent_requests,
            Self::Activator(activator) => {
                let mut client = Client::connect(SocketAddr::new(activator.ip, 9475)).await;
                let described = client.get("/v1/functions").await.text();
                let described: serde_json::Value = serde_json::from_str(&described).unwrap();
                let function = &described["functions"][0];
                let instances = function["instances"].as_array().unwrap();
                let requests = instances.iter().map(|it| it["requests"].as_f64().unwrap());
                requests.sum::<f64>() + function["waiting"].as_f64().unwrap()
            }
        }
    }
}

/// A program under attack, with its memory before.
struct Watched {
    proxy: Target,
    app: App,
    before: usize,
}

impl Watched {
    /// Starts a queue-proxy with the settings of `change` in front of an app that says hello.
    async fn start(change: impl FnOnce(Builder) -> Builder) -> Self {
        let app = saying_hello().await;
        let proxy = change(proxy(app.port)).start().await;
        Self::of(Target::QueueProxy(Box::new(proxy)), app).await
    }

    /// Starts a queue-proxy and an activator-ext, with this concurrency at the app.
    async fn each(concurrency: u32) -> [Self; 2] {
        let queue_proxy = Self::start(|builder| builder.concurrency(concurrency)).await;
        let app = saying_hello().await;
        // An unlimited revision would have no queue in activator-ext.
        let places = if concurrency == 0 { 1_000 } else { concurrency };
        let activator = Target::activator(&app, places).await;
        [queue_proxy, Self::of(activator, app).await]
    }

    async fn of(proxy: Target, app: App) -> Self {
        // The first request makes allocations which stay.
        assert_eq!(proxy.connect().await.get("/").await.text(), "hello");
        Self {
            before: proxy.resident_bytes(),
            proxy,
            app,
        }
    }

    /// Returns the requests that reached the app, without an activator's probes.
    fn requests(&self) -> Vec<Message> {
        self.app.log.served()
    }

    /// Asserts that the program serves, and has released its memory, after the attack.
    async fn end_well(self) {
        self.serves().await;
        let limit = self.before + GROWTH_MAX.max(self.before / 5);
        eventually("the memory is released", || {
            self.proxy.resident_bytes() <= limit
        })
        .await;
        drop(self.app);
    }

    /// Asserts that the program serves, has not panicked, and counts no request that has ended.
    async fn serves(&self) {
        assert_eq!(self.proxy.connect().await.get("/").await.text(), "hello");
        let log = self.proxy.stderr();
        assert!(!log.contains("panicked"), "{log}");
        for _ in 0..60 {
            if self.proxy.carried().await == 0.0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let carried = self.proxy.carried().await;
        panic!("requests that have ended are counted: {carried}");
    }
}

/// Starts an app that says hello, and answers an activator's probes as a pod does.
async fn saying_hello() -> App {
    App::serving(|request| async move {
        let is_probe = request.header("k-network-probe").is_some();
        ok(if is_probe { "queue" } else { "hello" })
    })
    .await
}
