//! Connections that claim smaller budgets than they have, for each setting of `weir.dev/trust-budget`, and the waiting time of a
//! late request. Their cost for other connections is computed in `policy/tests/trust_model.rs`.
#![expect(clippy::print_stdout, reason = "figures for runs with --nocapture")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tests::app::{App, ok};
use tests::client::Client;
use tests::eventually;
use tests::proxy::Proxy;
use tokio::task::JoinSet;

use crate::proxy;

const OBJECTIVE: Duration = Duration::from_millis(200);
const CLAIM: &str = "Weir-Budget-Ms: 100\r\n";
const LIARS: usize = 8;
/// Number of dispatches of which the policy gives one to an aged late request.
const AGING_PERIOD: usize = 20;
/// Multiple of the objective after which the policy regards a waiting late request as aged.
const AGING_OBJECTIVES: u32 = 10;
/// Number of late requests of the test itself.
const LATE: usize = 3;

/// Connections that send their next request as soon as the last is answered, until dropped.
struct Greedy {
    stopped: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    tasks: JoinSet<()>,
}

impl Greedy {
    fn start(proxy: &Proxy) -> Self {
        let stopped = Arc::<AtomicBool>::default();
        let answered = Arc::<AtomicUsize>::default();
        let mut tasks = JoinSet::new();
        for _ in 0..LIARS {
            let (stopped, answered) = (Arc::clone(&stopped), Arc::clone(&answered));
            let address = proxy.address();
            tasks.spawn(async move {
                let mut client = Client::connect(address).await;
                while !stopped.load(Ordering::Relaxed) {
                    client.get_with("/greedy/1", CLAIM).await;
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        Self {
            stopped,
            answered,
            tasks,
        }
    }

    async fn are_at_work(&self) {
        let begin = self.answered.load(Ordering::Relaxed);
        eventually("the eight are being served", || {
            self.answered.load(Ordering::Relaxed) > begin + 2 * LIARS
        })
        .await;
    }

    async fn stop(mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

/// Starts a proxy with a deep queue; returns also the time at which each request reached the application, by its target.
async fn start(trust: &str) -> (Proxy, App, Arc<Mutex<Vec<(String, Instant)>>>) {
    let starts = Arc::<Mutex<Vec<(String, Instant)>>>::default();
    let app = App::serving({
        let starts = Arc::clone(&starts);
        move |request| {
            let target = request.target().to_owned();
            let delay = target.rsplit('/').next().unwrap().parse().unwrap();
            starts.lock().unwrap().push((target, Instant::now()));
            async move {
                tokio::time::sleep(Duration::from_millis(delay)).await;
                ok("done")
            }
        }
    })
    .await;
    let proxy = proxy(app.port)
        .concurrency(1)
        .set("WEIR_SLO", format!("{}ms", OBJECTIVE.as_millis()))
        .set("WEIR_QUEUE_DEPTH", 1_000)
        .set("WEIR_TRUST_BUDGET", trust)
        .start()
        .await;
    (proxy, app, starts)
}

async fn false_claims_are_bounded(trust: &str) {
    let (proxy, app, starts) = start(trust).await;
    // Requests with this body take longer than the objective, as the proxy learns from three of them, so they are late on
    // arrival.
    let body = "x".repeat(4096);
    for _ in 0..3 {
        let answer = proxy.connect().await.post("/late/300", &body).await;
        assert_eq!(answer.status(), 200);
    }
    let greedy = Greedy::start(&proxy);
    greedy.are_at_work().await;
    starts.lock().unwrap().clear();
    let mut late = Vec::new();
    for n in 0..LATE {
        let mut client = proxy.connect().await;
        let length = body.len();
        let head =
            format!("POST /late-{n}/300 HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n");
        client.send(head + &body).await;
        late.push(client);
    }
    let mut waits = Vec::new();
    for client in &mut late {
        let answer = client.response().await;
        assert_eq!(answer.status(), 200);
        let queued = answer.values("server-timing").next().unwrap();
        let millis: f64 = queued.strip_prefix("queue;dur=").unwrap().parse().unwrap();
        waits.push(Duration::from_secs_f64(millis / 1e3));
    }
    greedy.stop().await;
    let starts = starts.lock().unwrap().clone();
    for (n, wait) in waits.iter().enumerate() {
        let target = format!("/late-{n}/300");
        let at = starts.iter().position(|(it, _)| *it == target).unwrap();
        let aged = starts[at].1 + OBJECTIVE * AGING_OBJECTIVES - *wait;
        let others = starts[..at]
            .iter()
            .filter(|(_, start)| *start > aged)
            .count();
        // Late requests of this test and of the eight connections may have arrived before it. The application's clock is read
        // slightly after the dispatch: one more period for that.
        let bound = AGING_PERIOD * (LATE + LIARS + 1);
        assert!(
            others <= bound,
            "{trust}: {others} requests started before late request {n} after it had waited {:?}, {bound} may; it waited {wait:?}",
            OBJECTIVE * AGING_OBJECTIVES
        );
        println!(
            "{trust}: late request {n} waited {wait:.1?}, {others} dispatches of it past ten objectives"
        );
    }
    let metrics = proxy.metrics().await;
    let ageing = metrics.value("weir_dispatches_total", &["reason=\"ageing\""]);
    println!(
        "{trust}: dispatches by aging: {}",
        ageing.unwrap_or_default()
    );
    let log = proxy.stderr();
    assert!(!log.contains("panicked"), "{log}");
    eventually("all have left", || app.log.live() == 0).await;
}

#[tokio::test]
async fn a_late_request_starts_by_aging_if_all_claims_are_trusted() {
    false_claims_are_bounded("all").await;
}

#[tokio::test]
async fn a_late_request_starts_by_aging_if_claims_have_a_floor() {
    false_claims_are_bounded("floor").await;
}

#[tokio::test]
async fn a_late_request_starts_by_aging_if_no_claim_is_trusted() {
    false_claims_are_bounded("none").await;
}
