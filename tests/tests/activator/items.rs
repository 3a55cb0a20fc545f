//! The contract's items of an activator, for Weir's and Knative's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use peers::kpa::Kpa;
use peers::revision::Revision;
use tests::client::Client;
use tests::{PATIENCE, eventually};
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use crate::subject::{REVISION, Subject};
use crate::{Pod, get};

/// Item 139: a hundred requests from zero are all answered.
async fn from_zero(subject: &Subject) {
    let mut pending = JoinSet::new();
    for _ in 0..100 {
        let mut client = Client::connect(subject.address()).await;
        pending.spawn(async move { client.request(get(REVISION, "/5")).await.status() });
    }
    let pods = [
        subject.pod().await,
        subject.pod().await,
        subject.pod().await,
    ];
    let mut revision = Revision::new(REVISION);
    revision.pods = pods.iter().map(Pod::address).collect();
    subject.set_revision(&revision);
    let statuses = pending.join_all().await;
    assert_eq!(statuses, [200; 100]);
    if let Subject::Own(own, _) = subject {
        let starts = own
            .metrics()
            .await
            .value("weir_cold_start_seconds_count", &[]);
        assert_eq!(starts, Some(100.0));
    }
}

/// Clients that send one request after the other until stopped.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    clients: JoinSet<Vec<u16>>,
}

impl Load {
    fn start(subject: &Subject, clients: usize) -> Self {
        let mut load = Self {
            stop: Arc::default(),
            answered: Arc::default(),
            clients: JoinSet::new(),
        };
        for _ in 0..clients {
            let (stop, answered) = (Arc::clone(&load.stop), Arc::clone(&load.answered));
            let address = subject.address();
            load.clients.spawn(async move {
                let mut failed = Vec::new();
                let mut client = Client::connect(address).await;
                while !stop.load(Ordering::Relaxed) {
                    let status = client.request(get(REVISION, "/10")).await.status();
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

    /// Waits until this many more requests are answered.
    async fn answers_more(&self, requests: usize) {
        let from = self.answered.load(Ordering::Relaxed);
        let answered = || self.answered.load(Ordering::Relaxed) >= from + requests;
        eventually("requests are answered", answered).await;
    }

    /// Stops the clients and returns the statuses other than 200.
    async fn end(self) -> Vec<u16> {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.join_all().await.concat()
    }
}

/// Item 140: no request fails while pods are added and removed.
async fn pods_come_and_go(subject: &Subject) {
    let mut pods = vec![subject.pod().await];
    let mut revision = Revision::new(REVISION);
    revision.pods = vec![pods[0].address()];
    subject.set_revision(&revision);
    let load = Load::start(subject, 8);
    load.answers_more(30).await;
    for count in 2..=5 {
        pods.push(subject.pod().await);
        revision.pods = pods.iter().map(Pod::address).collect();
        subject.set_revision(&revision);
        subject.has_instances(count).await;
        load.answers_more(30).await;
    }
    for count in (1..=4).rev() {
        // As Kubernetes does: removed from the slice, SIGTERM, and the queue-proxy drains.
        let pod = pods.pop().unwrap();
        revision.pods = pods.iter().map(Pod::address).collect();
        subject.set_revision(&revision);
        pod.proxy.terminate();
        subject.has_instances(count).await;
        load.answers_more(30).await;
    }
    assert!(load.end().await.is_empty());
}

/// Item 141: deletion of a pod fails no request.
async fn a_pod_is_deleted(subject: &Subject) {
    let [stays, goes] = [subject.pod().await, subject.pod().await];
    let mut revision = Revision::new(REVISION);
    revision.pods = vec![stays.address(), goes.address()];
    subject.set_revision(&revision);
    subject.has_instances(2).await;
    let load = Load::start(subject, 4);
    load.answers_more(30).await;
    goes.proxy.terminate();
    // The slice is updated later.
    load.answers_more(30).await;
    revision.pods = vec![stays.address()];
    subject.set_revision(&revision);
    subject.has_instances(1).await;
    load.answers_more(30).await;
    assert!(load.end().await.is_empty());
}

/// Item 142: the application sees the external host and two hops.
async fn two_hops(subject: &Subject) {
    let pod = subject.pod().await;
    let mut revision = Revision::new(REVISION);
    revision.pods = vec![pod.address()];
    subject.set_revision(&revision);
    let mut client = Client::connect(subject.address()).await;
    assert_eq!(client.request(get(REVISION, "/0")).await.status(), 200);
    let seen = pod.app.log.last();
    assert_eq!(seen.target(), "/0");
    assert_eq!(seen.header("host"), Some("service.default.example.com"));
    let hops = seen.header("x-forwarded-for").unwrap();
    assert_eq!(hops.split(", ").count(), 2, "{hops}");
    assert_eq!(seen.header("k-original-host"), None);
    assert_eq!(seen.header("knative-serving-revision"), None);
}

/// Item 143: an idle client does not keep a revision from scaling to zero.
async fn an_idle_client(subject: &Subject) {
    let pod = subject.pod().await;
    let mut revision = Revision::new(REVISION);
    revision.pods = vec![pod.address()];
    subject.set_revision(&revision);
    subject.has_instances(1).await;
    let mut client = Client::connect(subject.address()).await;
    assert_eq!(client.request(get(REVISION, "/300")).await.status(), 200);
    // The client stays connected, and the autoscaler decides by windows of 3 and 1 s. A second without a report counts as zero.
    let mut kpa = Kpa::new(0.7, 3, 1);
    let mut seconds = interval(Duration::from_secs(1));
    let mut seen = 0;
    let mut was_wanted = false;
    let decisions = async {
        loop {
            seconds.tick().await;
            let received = subject.autoscaler().received();
            let stats = received[seen..]
                .iter()
                .filter_map(|report| report.stat.as_ref());
            kpa.record(stats.map(|stat| stat.average_concurrent_requests).sum());
            seen = received.len();
            match kpa.decide(1) {
                Some(0) if was_wanted => return,
                desired => was_wanted |= desired > Some(0),
            }
        }
    };
    let decided = timeout(PATIENCE, decisions).await;
    assert!(
        decided.is_ok(),
        "the desired number of pods must be one, then zero"
    );
    assert_eq!(client.request(get(REVISION, "/0")).await.status(), 200);
}

/// Defines a test for Weir's activator, and one for Knative's if it is given.
macro_rules! item {
    ($name:ident, $check:ident) => {
        mod $name {
            #[tokio::test]
            async fn ours() {
                super::$check(&super::Subject::own().await).await;
            }

            #[tokio::test]
            async fn knatives() {
                if let Some(subject) = super::Subject::knative().await {
                    super::$check(&subject).await;
                }
            }
        }
    };
}

item!(
    item_139_a_hundred_requests_from_zero_are_all_answered,
    from_zero
);
item!(
    item_140_nothing_fails_while_pods_come_and_go,
    pods_come_and_go
);
item!(
    item_141_a_pod_that_is_deleted_fails_no_request,
    a_pod_is_deleted
);
item!(
    item_142_the_application_sees_the_external_host_and_two_hops,
    two_hops
);
item!(
    item_143_an_idle_client_keeps_no_revision_from_zero,
    an_idle_client
);
