use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use peers::revision::Revision;
use rustix::process::{Pid, Signal, kill_process};
use tests::activator::Activator;
use tests::app::{App, ok};
use tests::eventually;

use crate::{Pod, activator, at, echoing, get};

/// Longest time until a stopped instance is ejected, and until a continued one is back.
const OUT_WITHIN: Duration = Duration::from_secs(5);

/// Waits until this many instances are ejected.
async fn becomes(activator: &Activator, wanted: f64) {
    let labels = ["state=\"ejected\""];
    let is_wanted = |value| value == wanted;
    activator.has("weir_instances", &labels, is_wanted).await;
}

fn signal(pod: &Pod, signal: Signal) {
    let pid = i32::try_from(pod.proxy.pid()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[tokio::test]
async fn a_stopped_instance_is_ejected_until_it_continues_and_nothing_is_sent_twice() {
    let pods = [Pod::start().await, Pod::start().await];
    let mut revision = Revision::new("f-00001");
    revision.pods = pods.iter().map(Pod::address).collect();
    let activator = activator().revision(&revision).start().await;
    activator.has_instances(2).await;
    signal(&pods[0], Signal::STOP);
    // One of these requests is at the stopped pod, and stays there.
    let mut clients = Vec::new();
    for n in 0..2 {
        let mut client = activator.connect().await;
        client.send(get("f-00001", &format!("/{n}/0"))).await;
        clients.push(client);
    }
    let sent = Instant::now();
    becomes(&activator, 1.0).await;
    // 0.8 s, and delays of a busy machine.
    assert!(sent.elapsed() < OUT_WITHIN, "{:?}", sent.elapsed());
    for n in 2..12 {
        let mut client = activator.connect().await;
        let answer = client.request(get("f-00001", &format!("/{n}/0"))).await;
        assert_eq!(answer.status(), 200);
    }
    signal(&pods[0], Signal::CONT);
    let continued = Instant::now();
    becomes(&activator, 0.0).await;
    assert!(
        continued.elapsed() < OUT_WITHIN,
        "{:?}",
        continued.elapsed()
    );
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 200);
    }
    let mut targets: Vec<String> = Vec::new();
    for pod in &pods {
        let requests = pod.app.log.requests();
        targets.extend(requests.iter().map(|request| request.target().to_owned()));
    }
    targets.sort();
    let before = targets.len();
    targets.dedup();
    assert_eq!((before, targets.len()), (12, 12));
}

#[tokio::test]
async fn a_request_that_finds_no_connection_goes_to_another_pod() {
    let pods = [Pod::start().await, Pod::start().await];
    let mut revision = Revision::new("f-00001");
    revision.pods = pods.iter().map(Pod::address).collect();
    let activator = activator().revision(&revision).start().await;
    activator.has_instances(2).await;
    let [gone, stays] = pods;
    drop(gone);
    for _ in 0..20 {
        let mut client = activator.connect().await;
        let body = "POST /0 HTTP/1.1\r\nHost: t\r\nKnative-Serving-Namespace: default\r\nKnative-Serving-Revision: \
                    f-00001\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(client.request(body).await.status(), 200);
    }
    assert_eq!(stays.app.log.count(), 20);
    becomes(&activator, 1.0).await;
}

#[tokio::test]
async fn a_pod_that_dies_with_a_request_is_502_and_nothing_is_sent_again() {
    let dies = App::raw(|mut connection| async move {
        while let Some(request) = connection.request().await {
            if request.header("k-network-probe").is_none() {
                return;
            }
            connection.write(ok("queue")).await;
        }
    })
    .await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![at(&dies)];
    let activator = activator().revision(&revision).start().await;
    activator.has_instances(1).await;
    let mut client = activator.connect().await;
    let answer = client.request(get("f-00001", "/")).await;
    assert_eq!(answer.status(), 502);
    assert!(answer.text().contains("the pod"), "{}", answer.text());
    assert_eq!(dies.log.served().len(), 1);
}

#[tokio::test]
async fn an_application_that_fails_probes_while_it_computes_is_not_ejected() {
    let is_busy = Arc::<AtomicBool>::default();
    let busy = Arc::clone(&is_busy);
    let computes = App::serving(move |request| {
        let busy = Arc::clone(&busy);
        async move {
            match request.header("k-network-probe") {
                // The queue-proxy passes the probe to the application.
                Some("queue") => {
                    while busy.load(Ordering::Relaxed) {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
                Some(_) => {
                    return b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec();
                }
                None => {
                    busy.store(true, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_secs(2)).await;
                    busy.store(false, Ordering::Relaxed);
                }
            }
            ok("queue")
        }
    })
    .await;
    let other = Pod::start().await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![at(&computes), other.address()];
    let activator = activator().revision(&revision).start().await;
    activator.has_instances(2).await;
    let mut clients = [activator.connect().await, activator.connect().await];
    for client in &mut clients {
        client.send(get("f-00001", "/2000")).await;
    }
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 200);
    }
    let metrics = activator.metrics().await;
    let ejections = metrics.value("weir_ejections_total", &[]).unwrap_or(0.0);
    assert_eq!(ejections, 0.0, "{}", activator.stderr());
}

#[tokio::test]
async fn a_pod_whose_application_is_dead_gets_no_more_requests() {
    let is_dead = Arc::<AtomicBool>::default();
    let dead = Arc::clone(&is_dead);
    let dies = App::serving(move |request| {
        let is_dead = dead.load(Ordering::Relaxed);
        async move {
            let is_probe = request.header("k-network-probe").is_some();
            match (is_dead, is_probe) {
                (false, _) => ok("queue"),
                (true, true) => b"HTTP/1.1 503 \r\nContent-Length: 0\r\n\r\n".to_vec(),
                (true, false) => b"HTTP/1.1 502 \r\nContent-Length: 0\r\n\r\n".to_vec(),
            }
        }
    })
    .await;
    let stays = Pod::start().await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![at(&dies), stays.address()];
    let activator = activator().revision(&revision).start().await;
    activator.has_instances(2).await;
    is_dead.store(true, Ordering::Relaxed);
    let mut client = activator.connect().await;
    // Until the failing pod is chosen.
    while client.request(get("f-00001", "/0")).await.status() == 200 {}
    becomes(&activator, 1.0).await;
    for _ in 0..10 {
        assert_eq!(client.request(get("f-00001", "/0")).await.status(), 200);
    }
    is_dead.store(false, Ordering::Relaxed);
    becomes(&activator, 0.0).await;
}

#[tokio::test]
async fn a_pod_that_kubernetes_considers_unready_is_ejected_where_that_counts() {
    let pods = [Pod::start().await, Pod::start().await];
    let mut revision = Revision::new("f-00001");
    revision.has_startup_probe = true;
    revision.pods = pods.iter().map(Pod::address).collect();
    let activator = activator().revision(&revision).start().await;
    activator.has_instances(2).await;
    revision.not_ready = vec![revision.pods[0]];
    activator.set_revision(&revision);
    activator.has_instances(1).await;
    revision.not_ready.clear();
    activator.set_revision(&revision);
    activator.has_instances(2).await;
}

#[tokio::test]
async fn an_unready_pod_gets_no_request_until_it_is_ready() {
    let (sender, receiver) = tokio::sync::watch::channel(false);
    let app = App::serving(move |request| {
        let is_ready = *receiver.borrow();
        async move {
            match (request.header("k-network-probe"), is_ready) {
                (Some(_), false) => b"HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n".to_vec(),
                _ => ok("queue"),
            }
        }
    })
    .await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![at(&app)];
    let activator = activator().revision(&revision).start().await;
    let mut client = activator.connect().await;
    client.send(get("f-00001", "/")).await;
    eventually("the pod is probed repeatedly", || app.log.count() > 3).await;
    let requests = app.log.requests();
    assert!(
        requests
            .iter()
            .all(|it| it.header("k-network-probe") == Some("queue"))
    );
    sender.send_replace(true);
    assert_eq!(client.response().await.status(), 200);
}

#[tokio::test]
async fn an_unreadable_manifest_changes_nothing() {
    let app = echoing().await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![at(&app)];
    let activator = activator().revision(&revision).start().await;
    activator.has_instances(1).await;
    activator.set_manifest("g", "kind: Revision\nmetadata:\n  name: [\n");
    eventually("it is reported", || {
        activator.stderr().contains("g.yaml: line ")
    })
    .await;
    let mut client = activator.connect().await;
    assert_eq!(client.request(get("f-00001", "/")).await.status(), 200);
    activator.set_manifest("g", "");
    let other = echoing().await;
    revision.pods.push(at(&other));
    activator.set_revision(&revision);
    activator.has_instances(2).await;
}
