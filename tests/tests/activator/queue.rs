use peers::revision::Revision;
use tests::activator::Activator;
use tests::app::{App, ok};
use tests::client::Client;
use tests::eventually;

use crate::{activator, at, get};

/// Starts a stand-in for a pod that holds each request until the test sends a message to release one.
async fn holding() -> (App, tokio::sync::mpsc::Sender<()>) {
    let (sender, receiver) = tokio::sync::mpsc::channel::<()>(100);
    let receiver = std::sync::Arc::new(tokio::sync::Mutex::new(receiver));
    let app = App::serving(move |request| {
        let receiver = std::sync::Arc::clone(&receiver);
        async move {
            if request.header("k-network-probe").is_none() {
                receiver.lock().await.recv().await;
            }
            ok("queue")
        }
    })
    .await;
    (app, sender)
}

async fn send(activator: &Activator, target: &str, budget_ms: u64) -> Client {
    let mut client = activator.connect().await;
    let head = get("f-00001", target);
    let line = format!("\r\nWeir-Budget-Ms: {budget_ms}\r\n\r\n");
    client.send(head.replace("\r\n\r\n", &line)).await;
    client.is_read().await;
    client
}

fn paths(app: &App) -> Vec<String> {
    let served = app.log.served().into_iter();
    served.map(|request| request.target().to_owned()).collect()
}

async fn one_pod(revision: Revision) -> (Activator, App, tokio::sync::mpsc::Sender<()>) {
    let (app, go) = holding().await;
    let mut revision = revision;
    revision.pods = vec![at(&app)];
    let activator = activator().revision(&revision).start().await;
    activator.has_instances(1).await;
    (activator, app, go)
}

#[tokio::test]
async fn the_most_urgent_request_goes_to_the_pod_with_a_free_place() {
    let (activator, app, go) = one_pod(Revision::new("f-00001")).await;
    let mut clients = vec![send(&activator, "/first", 60_000).await];
    eventually("the first is at the pod", || paths(&app) == ["/first"]).await;
    for (target, budget_ms) in [("/b", 50_000), ("/c", 20_000), ("/a", 90_000)] {
        clients.push(send(&activator, target, budget_ms).await);
    }
    assert_eq!(paths(&app), ["/first"]);
    for _ in 0..4 {
        go.send(()).await.unwrap();
    }
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 200);
    }
    // Objectives above the revision's 10 s are the clients' own, and order requests all the same.
    assert_eq!(paths(&app), ["/first", "/c", "/b", "/a"]);
    let metrics = activator.metrics().await;
    let value = |name: &str, label: &str| metrics.value(name, &[label]).unwrap();
    assert_eq!(value("weir_route_decisions_total", "reason=\"free\""), 1.0);
    assert_eq!(value("weir_route_decisions_total", "reason=\"turn\""), 3.0);
    assert_eq!(
        value("weir_function_requests_total", "outcome=\"answered\""),
        4.0
    );
    assert_eq!(
        value(
            "weir_function_requests_in_time_total",
            "revision=\"f-00001\""
        ),
        4.0
    );
}

#[tokio::test]
async fn a_client_that_disconnects_while_waiting_frees_its_place() {
    let (activator, app, go) = one_pod(Revision::new("f-00001")).await;
    let mut first = send(&activator, "/first", 60_000).await;
    eventually("the first is at the pod", || paths(&app).len() == 1).await;
    let leaves = send(&activator, "/leaves", 20_000).await;
    let mut stays = send(&activator, "/stays", 50_000).await;
    drop(leaves);
    let is_one = |value| value == 1.0;
    activator.has("weir_function_waiting", &[], is_one).await;
    go.send(()).await.unwrap();
    go.send(()).await.unwrap();
    assert_eq!(first.response().await.status(), 200);
    assert_eq!(stays.response().await.status(), 200);
    assert_eq!(paths(&app), ["/first", "/stays"]);
}

#[tokio::test]
async fn late_requests_are_shed_if_the_revision_requires_it() {
    let revision = Revision::new("f-00001").annotate("weir.dev/late", "shed");
    let (activator, app, go) = one_pod(revision).await;
    let mut first = send(&activator, "/first", 60_000).await;
    eventually("the first is at the pod", || paths(&app).len() == 1).await;
    let mut kept = send(&activator, "/kept", 200).await;
    let mut shed = send(&activator, "/shed", 250).await;
    let answer = shed.response().await;
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.header("x-envoy-ratelimited"), Some("1"));
    assert!(answer.header("retry-after").is_some());
    go.send(()).await.unwrap();
    go.send(()).await.unwrap();
    assert_eq!(first.response().await.status(), 200);
    assert_eq!(kept.response().await.status(), 200);
    let metrics = activator.metrics().await;
    let outcome = |outcome: &str| {
        let label = format!("outcome=\"{outcome}\"");
        metrics.value("weir_function_requests_total", &[&label])
    };
    assert_eq!(
        (outcome("shed"), outcome("answered")),
        (Some(1.0), Some(2.0))
    );
}

#[tokio::test]
async fn beyond_the_bound_a_request_is_refused() {
    let revision = Revision::new("f-00001").annotate("weir.dev/queue-depth", "1");
    let (app, go) = holding().await;
    let mut revision = revision;
    revision.pods = vec![at(&app)];
    let activator = activator()
        .revision(&revision)
        .arguments(&["--waiting", "2"])
        .start()
        .await;
    activator.has_instances(1).await;
    let mut clients = vec![send(&activator, "/0", 60_000).await];
    eventually("the first is at the pod", || paths(&app).len() == 1).await;
    for n in 1..=2 {
        clients.push(send(&activator, &format!("/{n}"), 60_000).await);
    }
    let mut refused = send(&activator, "/refused", 60_000).await;
    let answer = refused.response().await;
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.text(), "pending request queue full\n");
    for client in &mut clients {
        go.send(()).await.unwrap();
        assert_eq!(client.response().await.status(), 200);
    }
}

#[tokio::test]
async fn without_a_limit_nothing_waits() {
    let (app, go) = holding().await;
    let mut revision = Revision::new("f-00001").annotate("weir.dev/queue-depth", "5");
    revision
        .annotations
        .retain(|(key, _)| key != "weir.dev/slo");
    revision.concurrency = 0;
    revision.pods = vec![at(&app)];
    let activator = activator().revision(&revision).start().await;
    activator.has_instances(1).await;
    let mut clients = Vec::new();
    for n in 0..30 {
        clients.push(send(&activator, &format!("/{n}"), 60_000).await);
    }
    eventually("all are at the pod", || paths(&app).len() == 30).await;
    for _ in 0..30 {
        go.send(()).await.unwrap();
    }
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 200);
    }
}

#[tokio::test]
async fn waiting_requests_survive_changed_settings_of_their_function() {
    let (app, go) = holding().await;
    let revision = Revision::new("f-00001").annotate("weir.dev/function", "f");
    let activator = activator().revision(&revision).start().await;
    let mut waits = send(&activator, "/waits", 60_000).await;
    let is_one = |value| value == 1.0;
    activator.has("weir_function_waiting", &[], is_one).await;
    // The next revision of the function has another queue depth, and so has the function.
    let mut next = Revision::new("f-00002")
        .annotate("weir.dev/function", "f")
        .annotate("weir.dev/queue-depth", "7");
    next.pods = vec![at(&app)];
    activator.set_revision(&next);
    activator.has_instances(1).await;
    go.send(()).await.unwrap();
    assert_eq!(waits.response().await.status(), 200);
    assert_eq!(paths(&app), ["/waits"]);
}

#[tokio::test]
async fn requests_waiting_for_a_deleted_revision_are_answered() {
    let activator = activator()
        .revision(&Revision::new("f-00001"))
        .start()
        .await;
    let mut waits = send(&activator, "/waits", 60_000).await;
    let is_one = |value| value == 1.0;
    activator.has("weir_function_waiting", &[], is_one).await;
    activator.set_manifest("f-00001", "");
    let answer = waits.response().await;
    assert_eq!(answer.status(), 404);
    assert!(answer.text().starts_with("Error getting active endpoint: "));
}
