use peers::revision::Revision;
use rustix::process::{Pid, Signal, kill_process};
use tests::activator::Activator;
use tests::app::App;
use tests::eventually;

use crate::{Pod, activator, at, echoing, get};

/// Waits until so many instances are ejected.
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
async fn an_instance_that_is_stopped_is_out_until_it_goes_on_and_nothing_is_sent_twice() {
    let pods = [Pod::start().await, Pod::start().await];
    let mut revision = Revision::new("f-00001");
    revision.pods = pods.iter().map(Pod::address).collect();
    let activator = activator().revision(&revision).start().await;
    activator.has_instances(2).await;
    signal(&pods[0], Signal::STOP);
    // One of them is at the stopped pod, and stays there.
    let mut clients = Vec::new();
    for n in 0..2 {
        let mut client = activator.connect().await;
        client.send(get("f-00001", &format!("/{n}/0"))).await;
        clients.push(client);
    }
    becomes(&activator, 1.0).await;
    for n in 2..12 {
        let mut client = activator.connect().await;
        let answer = client.request(get("f-00001", &format!("/{n}/0"))).await;
        assert_eq!(answer.status(), 200);
    }
    signal(&pods[0], Signal::CONT);
    becomes(&activator, 0.0).await;
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 200);
    }
    let mut targets: Vec<String> = Vec::new();
    for pod in &pods {
        let requests = pod.app.seen.requests();
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
    assert_eq!(stays.app.seen.count(), 20);
    becomes(&activator, 1.0).await;
}

#[tokio::test]
async fn a_pod_that_dies_with_a_request_is_502_and_nothing_is_sent_again() {
    let dies = App::raw(|mut connection| async move {
        while let Some(request) = connection.request().await {
            if request.header("k-network-probe").is_none() {
                return;
            }
            connection.write(tests::app::ok("queue")).await;
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
    let served = dies.seen.requests();
    let served = served
        .iter()
        .filter(|it| it.header("k-network-probe").is_none());
    assert_eq!(served.count(), 1);
}

#[tokio::test]
async fn a_pod_that_is_not_ready_gets_nothing_until_it_says_so() {
    let (sender, receiver) = tokio::sync::watch::channel(false);
    let app = App::serving(move |request| {
        let is_ready = *receiver.borrow();
        async move {
            match (request.header("k-network-probe"), is_ready) {
                (Some(_), false) => b"HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n".to_vec(),
                _ => tests::app::ok("queue"),
            }
        }
    })
    .await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![at(&app)];
    let activator = activator().revision(&revision).start().await;
    let mut client = activator.connect().await;
    client.send(get("f-00001", "/")).await;
    eventually("it is probed again and again", || app.seen.count() > 3).await;
    let requests = app.seen.requests();
    assert!(
        requests
            .iter()
            .all(|it| it.header("k-network-probe") == Some("queue"))
    );
    sender.send_replace(true);
    assert_eq!(client.response().await.status(), 200);
}

#[tokio::test]
async fn a_manifest_that_cannot_be_read_leaves_all_as_it_was() {
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
