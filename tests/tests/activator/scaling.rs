use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use peers::autoscaler::{Autoscaler, Stat};
use peers::kpa::Kpa;
use tests::activator::{Activator, Revision};
use tests::client::Client;
use tests::eventually;
use tokio::task::JoinSet;

use crate::{Pod, activator, get};

#[tokio::test]
async fn item_139_a_hundred_requests_from_zero_are_all_answered() {
    let mut revision = Revision::new("f-00001");
    let activator = activator().revision(&revision).start().await;
    let mut pending = JoinSet::new();
    for _ in 0..100 {
        let mut client = activator.connect().await;
        pending.spawn(async move { client.request(get("f-00001", "/5")).await.status() });
    }
    let pods = [Pod::start().await, Pod::start().await, Pod::start().await];
    revision.pods = pods.iter().map(Pod::address).collect();
    activator.set_revision(&revision);
    let statuses = pending.join_all().await;
    assert_eq!(statuses, [200; 100]);
    for pod in &pods {
        assert!(pod.app.seen.live_max() <= 1);
    }
    let metrics = activator.metrics().await;
    assert_eq!(
        metrics.value("weir_cold_start_seconds_count", &[]),
        Some(100.0)
    );
}

/// Clients that send one request after the other until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    clients: JoinSet<Vec<u16>>,
}

impl Load {
    fn start(activator: &Activator, clients: usize) -> Self {
        let mut load = Self {
            stop: Arc::default(),
            answered: Arc::default(),
            clients: JoinSet::new(),
        };
        for _ in 0..clients {
            let (stop, answered) = (Arc::clone(&load.stop), Arc::clone(&load.answered));
            let address = activator.address();
            load.clients.spawn(async move {
                let mut failed = Vec::new();
                let mut client = Client::connect(address).await;
                while !stop.load(Ordering::Relaxed) {
                    let status = client.request(get("f-00001", "/10")).await.status();
                    answered.fetch_add(1, Ordering::Relaxed);
                    if status != 200 {
                        failed.push(status);
                    }
                }
                failed
            });
        }
        load
    }

    /// Waits until so many more are answered.
    async fn goes_on(&self, requests: usize) {
        let from = self.answered.load(Ordering::Relaxed);
        let answered = || self.answered.load(Ordering::Relaxed) >= from + requests;
        eventually("requests are answered", answered).await;
    }

    /// The statuses that were not 200.
    async fn end(self) -> Vec<u16> {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.join_all().await.concat()
    }
}

#[tokio::test]
async fn item_140_nothing_fails_while_pods_come_and_go() {
    let mut pods = vec![Pod::start().await];
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![pods[0].address()];
    let activator = activator().revision(&revision).start().await;
    let load = Load::start(&activator, 8);
    load.goes_on(30).await;
    for count in 2..=5 {
        pods.push(Pod::start().await);
        revision.pods = pods.iter().map(Pod::address).collect();
        activator.set_revision(&revision);
        activator.has_instances(count).await;
        load.goes_on(30).await;
    }
    for count in (1..=4).rev() {
        // As Kubernetes does it: off the slice, SIGTERM, and a queue-proxy that drains.
        let pod = pods.pop().unwrap();
        revision.pods = pods.iter().map(Pod::address).collect();
        activator.set_revision(&revision);
        pod.proxy.terminate();
        activator.has_instances(count).await;
        load.goes_on(30).await;
    }
    assert!(load.end().await.is_empty());
}

#[tokio::test]
async fn item_141_a_pod_that_is_deleted_fails_no_request() {
    let pods = [Pod::start().await, Pod::start().await];
    let mut revision = Revision::new("f-00001");
    revision.pods = pods.iter().map(Pod::address).collect();
    let activator = activator().revision(&revision).start().await;
    activator.has_instances(2).await;
    let load = Load::start(&activator, 4);
    load.goes_on(30).await;
    let [stays, goes] = pods;
    goes.proxy.terminate();
    // The slice says so later.
    load.goes_on(30).await;
    revision.pods = vec![stays.address()];
    activator.set_revision(&revision);
    activator.has_instances(1).await;
    load.goes_on(30).await;
    assert!(load.end().await.is_empty());
}

#[tokio::test]
async fn item_143_an_idle_client_keeps_no_revision_from_zero() {
    let autoscaler = Autoscaler::start().await;
    let pod = Pod::start().await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![pod.address()];
    let activator = activator()
        .revision(&revision)
        .arguments(&["--autoscaler", &autoscaler.url()])
        .start()
        .await;
    activator.has_instances(1).await;
    let mut client = activator.connect().await;
    assert_eq!(client.request(get("f-00001", "/300")).await.status(), 200);
    // It stays connected, and the autoscaler decides by windows of 3 and 1 s.
    let desired = || {
        let mut kpa = Kpa::new(0.7, 3, 1);
        let received = autoscaler.received().into_iter();
        let mut desired = Vec::new();
        for stat in received.filter_map(|report| report.stat) {
            kpa.record(stat.average_concurrent_requests);
            desired.extend(kpa.decide(1));
        }
        desired
    };
    eventually("a pod is wanted, and then none", || {
        let desired = desired();
        desired.contains(&1) && desired.last() == Some(&0)
    })
    .await;
    assert_eq!(client.request(get("f-00001", "/0")).await.status(), 200);
}

#[tokio::test]
async fn the_autoscaler_hears_of_the_first_request_at_once_and_of_all_each_second() {
    let autoscaler = Autoscaler::start().await;
    let mut revision = Revision::new("f-00001");
    let activator = activator()
        .revision(&revision)
        .arguments(&["--autoscaler", &autoscaler.url()])
        .start()
        .await;
    let stats = || {
        let received = autoscaler.received();
        let own = received
            .into_iter()
            .filter(|it| it.name == "f-00001" && it.namespace == "default");
        own.map(|it| it.stat.unwrap()).collect::<Vec<_>>()
    };
    eventually("a window without requests", || !stats().is_empty()).await;
    assert!(
        stats()
            .iter()
            .all(|stat| stat.average_concurrent_requests == 0.0)
    );
    let mut client = activator.connect().await;
    client.send(get("f-00001", "/0")).await;
    let is_told =
        |stat: &Stat| (stat.average_concurrent_requests, stat.request_count) == (1.0, 1.0);
    eventually("the first request is told at once", || {
        stats().iter().any(is_told)
    })
    .await;
    assert_eq!(stats()[0].pod_name, "weir-activator-0");
    let full = |stat: &Stat| {
        stat.request_count == 0.0 && (stat.average_concurrent_requests - 1.0).abs() < 0.02
    };
    eventually("it is carried for a whole window", || {
        stats().iter().any(full)
    })
    .await;
    let pod = Pod::start().await;
    revision.pods = vec![pod.address()];
    activator.set_revision(&revision);
    assert_eq!(client.response().await.status(), 200);
    let last = || stats().last().unwrap().average_concurrent_requests;
    eventually("nothing is carried", || last() == 0.0).await;
    // Each request was told once, at once or with its window.
    let told: f64 = stats().iter().map(|stat| stat.request_count).sum();
    assert_eq!(told, 1.0);
}

#[tokio::test]
async fn an_autoscaler_that_closes_with_1012_is_connected_again() {
    let autoscaler = Autoscaler::start().await;
    let activator = activator()
        .revision(&Revision::new("f-00001"))
        .arguments(&["--autoscaler", &autoscaler.url()])
        .start()
        .await;
    eventually("a report", || !autoscaler.received().is_empty()).await;
    autoscaler.close();
    eventually("another connection", || autoscaler.connections() == 2).await;
    let before = autoscaler.received().len();
    eventually("another report", || autoscaler.received().len() > before).await;
    let metrics = activator.metrics().await;
    let lost = metrics.value("weir_autoscaler_reports_total", &["outcome=\"dropped\""]);
    assert_eq!(lost, Some(0.0));
    drop(activator);
}

#[tokio::test]
async fn reports_are_kept_while_there_is_no_autoscaler() {
    let free = Autoscaler::start().await.address;
    let activator = activator()
        .revision(&Revision::new("f-00001"))
        .arguments(&["--autoscaler", &format!("ws://{free}/")])
        .start()
        .await;
    // Back-off reaches a second and more: a report has been made by then.
    let failed = ["outcome=\"failed\""];
    let is_long = |value| value >= 8.0;
    let name = "weir_autoscaler_reports_total";
    activator.has(name, &failed, is_long).await;
    let autoscaler = Autoscaler::at(free).await;
    // Those of before, in one go, and no one that is of no use any more.
    eventually("two reports or more", || autoscaler.received().len() >= 2).await;
    drop(activator);
}
