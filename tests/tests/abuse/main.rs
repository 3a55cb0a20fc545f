//! What attackers and broken user containers do. After each attack the proxy has not panicked, serves as before,
//! counts nothing that is not there, and has given its memory back.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod app;
mod floods;
mod limits;
mod memory;
mod readers;
mod slow;
mod smuggling;
mod trust;

use std::time::Duration;

use tests::app::App;
use tests::eventually;
use tests::proxy::{Builder, Proxy};

/// What a process may have grown by when all is over: one fifth, or what allocators and tables keep.
const GROWTH_MAX: usize = 6 << 20;

fn proxy(user_port: u16) -> Builder {
    Builder::new(env!("CARGO_BIN_EXE_queue-proxy-under-test"), user_port)
}

/// A proxy before an attack.
struct Watched {
    proxy: Proxy,
    app: App,
    before: usize,
}

impl Watched {
    /// A proxy in front of an app that says hello, set as `change` says.
    async fn start(change: impl FnOnce(Builder) -> Builder) -> Self {
        let app = App::saying("hello").await;
        let proxy = change(proxy(app.port)).start().await;
        // Whatever is made at the first request is there.
        assert_eq!(proxy.connect().await.get("/").await.text(), "hello");
        Self {
            before: proxy.resident_bytes(),
            proxy,
            app,
        }
    }

    /// The attack is over.
    async fn end_well(self) {
        self.serves().await;
        let limit = self.before + GROWTH_MAX.max(self.before / 5);
        eventually("the memory is given back", || {
            self.proxy.resident_bytes() <= limit
        })
        .await;
        drop(self.app);
    }

    /// It serves, has not panicked, and counts nothing that is not there.
    async fn serves(&self) {
        assert_eq!(self.proxy.connect().await.get("/").await.text(), "hello");
        let log = self.proxy.stderr();
        assert!(!log.contains("panicked"), "{log}");
        for _ in 0..60 {
            if self.proxy.stat().await.average_concurrent_requests == 0.0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!(
            "requests that are over are counted: {:?}",
            self.proxy.stat().await
        );
    }
}
