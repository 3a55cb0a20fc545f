use std::net::SocketAddr;

use peers::autoscaler::{Autoscaler, Stat};
use peers::revision::Revision;
use tests::eventually;
use tests::proxy::fresh_address;

use crate::{Pod, activator, get};

#[tokio::test]
async fn the_first_request_is_reported_at_once_and_all_each_second() {
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
    let mut client = activator.connect().await;
    client.send(get("f-00001", "/0")).await;
    let is_reported =
        |stat: &Stat| (stat.average_concurrent_requests, stat.request_count) == (1.0, 1.0);
    eventually("the first request is reported at once", || {
        stats().iter().any(is_reported)
    })
    .await;
    assert_eq!(stats()[0].pod_name, "weir-activator-0");
    let full = |stat: &Stat| {
        stat.request_count == 0.0 && (stat.average_concurrent_requests - 1.0).abs() < 0.02
    };
    eventually("the request is carried for a whole window", || {
        stats().iter().any(full)
    })
    .await;
    let pod = Pod::start().await;
    revision.pods = vec![pod.address()];
    activator.set_revision(&revision);
    assert_eq!(client.response().await.status(), 200);
    let last = || stats().last().unwrap().average_concurrent_requests;
    eventually("nothing is carried", || last() == 0.0).await;
    // Each request was reported once, at once or with its window.
    let reported: f64 = stats().iter().map(|stat| stat.request_count).sum();
    assert_eq!(reported, 1.0);
}

#[tokio::test]
async fn reconnects_after_a_close_with_1012() {
    let autoscaler = Autoscaler::start().await;
    let activator = activator()
        .revision(&Revision::new("f-00001"))
        .arguments(&["--autoscaler", &autoscaler.url()])
        .start()
        .await;
    let mut client = activator.connect().await;
    client.send(get("f-00001", "/0")).await;
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
async fn reports_are_kept_while_the_autoscaler_is_unreachable() {
    let address = SocketAddr::new(fresh_address(), 8080);
    let activator = activator()
        .revision(&Revision::new("f-00001"))
        .arguments(&["--autoscaler", &format!("ws://{address}/")])
        .start()
        .await;
    let mut client = activator.connect().await;
    client.send(get("f-00001", "/0")).await;
    let waits = |value| value == 1.0;
    activator.has("weir_function_waiting", &[], waits).await;
    // After two further attempts the report cannot have been sent by a first one.
    let name = "weir_autoscaler_reports_total";
    let failed = activator.metrics().await.value(name, &["failed"]);
    let is_later = |value| value >= failed.unwrap_or(0.0) + 2.0;
    activator.has(name, &["failed"], is_later).await;
    let autoscaler = Autoscaler::at(address).await;
    let came = || {
        let received = autoscaler.received().into_iter();
        let stats = received.filter_map(|report| report.stat);
        stats.map(|stat| stat.request_count).sum::<f64>()
    };
    eventually("the request that came before is reported", || came() == 1.0).await;
}

#[tokio::test]
async fn a_hanging_autoscaler_is_abandoned_while_requests_are_served() {
    let address = SocketAddr::new(fresh_address(), 8080);
    let hangs = tokio::net::TcpListener::bind(address).await.unwrap();
    let pod = Pod::start().await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![pod.address()];
    let activator = activator()
        .revision(&revision)
        .arguments(&["--autoscaler", &format!("ws://{address}/")])
        .start()
        .await;
    activator.has_instances(1).await;
    // It accepts the connection, but does not answer the handshake.
    let (_connection, _) = hangs.accept().await.unwrap();
    let mut client = activator.connect().await;
    assert_eq!(client.request(get("f-00001", "/0")).await.status(), 200);
    let (_another, _) = hangs.accept().await.unwrap();
    let log = activator.stderr();
    assert!(
        log.contains("did not answer the handshake within 3s"),
        "{log}"
    );
    // The hanging autoscaler is replaced by a working one.
    drop(hangs);
    let autoscaler = Autoscaler::at(address).await;
    assert_eq!(client.request(get("f-00001", "/0")).await.status(), 200);
    eventually("a report", || !autoscaler.received().is_empty()).await;
}
