//! Reports to the autoscaler, compared with the observations of clients.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use peers::autoscaler::Autoscaler;
use peers::revision::Revision;
use tests::app::{App, ok};
use tests::client::Client;
use tests::eventually;
use tokio::task::JoinSet;

use crate::{activator, at, get};

/// Execution time of each request at a pod.
const EXECUTION: Duration = Duration::from_millis(900);
/// Number of clients that disconnect while they wait.
const LEAVING: u32 = 4;
/// A budget that is never used up, in ms.
const AMPLE_MS: u64 = 60_000;

/// Starts a stand-in for a pod which answers after [`EXECUTION`].
async fn computing() -> App {
    App::serving(|request| async move {
        if request.header("k-network-probe").is_none() {
            tokio::time::sleep(EXECUTION).await;
        }
        ok("queue")
    })
    .await
}

async fn send(address: SocketAddr, revision: &str, budget_ms: u64) -> Client {
    let mut client = Client::connect(address).await;
    let line = format!("\r\nWeir-Budget-Ms: {budget_ms}\r\n\r\n");
    client
        .send(get(revision, "/").replace("\r\n\r\n", &line))
        .await;
    client
}

/// Sends a request; returns its latency and status.
async fn request(address: SocketAddr, revision: &'static str, budget_ms: u64) -> (Duration, u16) {
    let begin = Instant::now();
    let mut client = send(address, revision, budget_ms).await;
    let status = client.response().await.status();
    (begin.elapsed(), status)
}

#[tokio::test]
async fn reports_deviate_by_at_most_a_hundredth_from_the_carried_requests() {
    let autoscaler = Autoscaler::start().await;
    let [one, two] = ["f-00001", "f-00002"].map(|name| {
        Revision::new(name)
            .annotate("weir.dev/function", "f")
            .annotate("weir.dev/late", "shed")
    });
    let pods = [computing().await, computing().await];
    let (other, dies) = (computing().await, computing().await);
    let (mut one, mut two) = (one, two);
    one.pods = pods.iter().map(at).collect();
    two.pods = vec![at(&other), at(&dies)];
    let activator = activator()
        .revision(&one)
        .revision(&two)
        .arguments(&["--autoscaler", &autoscaler.url()])
        .start()
        .await;
    activator.has_instances(4).await;
    let address = activator.address();
    let mut carried = Duration::ZERO;
    // Execution times are learned.
    for _ in 0..5 {
        carried += request(address, "f-00001", AMPLE_MS).await.0;
    }
    // The pod which has been idle longest is chosen next, and accepts no connection.
    drop(dies);
    let mut pending = JoinSet::new();
    for _ in 0..20 {
        pending.spawn(request(address, "f-00001", AMPLE_MS));
    }
    for _ in 0..2 {
        pending.spawn(request(address, "f-00002", AMPLE_MS));
    }
    let waiting = |at_least| move |value| value >= at_least;
    activator
        .has("weir_function_waiting", &[], waiting(15.0))
        .await;
    // These clients disconnect while they wait, …
    let begin = Instant::now();
    let (mut leaving, mut late) = (Vec::new(), JoinSet::new());
    for _ in 0..LEAVING {
        leaving.push(send(address, "f-00001", AMPLE_MS).await);
    }
    // … and these would be late. One a second is served all the same, so that estimates recover.
    for _ in 0..6 {
        late.spawn(request(address, "f-00001", 300));
    }
    tokio::time::sleep(Duration::from_millis(1_200).saturating_sub(begin.elapsed())).await;
    drop(leaving);
    carried += begin.elapsed() * LEAVING;
    for (took, status) in pending.join_all().await {
        assert_eq!(status, 200);
        carried += took;
    }
    let mut shed = 0;
    for (took, status) in late.join_all().await {
        carried += took;
        if status == 503 {
            carried += EXECUTION;
            shed += 1;
        }
    }
    assert!(shed >= 1);
    eventually("the last report of each revision is of nothing", || {
        let received = autoscaler.received();
        ["f-00001", "f-00002"].iter().all(|name| {
            let last = received.iter().rfind(|report| report.name == *name);
            let stat = last.and_then(|report| report.stat.as_ref());
            stat.is_some_and(|stat| stat.average_concurrent_requests == 0.0)
        })
    })
    .await;
    // That pod had requests of another revision, and some connections failed.
    assert!(other.log.served().len() > 2);
    let ejections = activator
        .metrics()
        .await
        .value("weir_ejections_total", &[])
        .unwrap();
    assert!(ejections >= 1.0);
    let stats = autoscaler
        .received()
        .into_iter()
        .filter_map(|report| report.stat);
    let reported: f64 = stats.map(|stat| stat.average_concurrent_requests).sum();
    let ratio = reported / carried.as_secs_f64();
    assert!(
        (ratio - 1.0).abs() < 0.01,
        "{reported:.3} s of requests were reported, {carried:?} carried"
    );
}
