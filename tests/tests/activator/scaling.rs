use std::net::SocketAddr;

use peers::autoscaler::{Autoscaler, Stat};
use peers::revision::Revision;
use tests::eventually;
use tests::proxy::fresh_address;

use crate::{Pod, activator, get};

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
async fn reports_are_kept_while_there_is_no_autoscaler() {
    let place = SocketAddr::new(fresh_address(), 8080);
    let activator = activator()
        .revision(&Revision::new("f-00001"))
        .arguments(&["--autoscaler", &format!("ws://{place}/")])
        .start()
        .await;
    let mut client = activator.connect().await;
    client.send(get("f-00001", "/0")).await;
    let waits = |value| value == 1.0;
    activator.has("weir_function_waiting", &[], waits).await;
    // Two attempts later nobody could send it for the first time.
    let name = "weir_autoscaler_reports_total";
    let failed = activator.metrics().await.value(name, &["failed"]);
    let is_later = |value| value >= failed.unwrap_or(0.0) + 2.0;
    activator.has(name, &["failed"], is_later).await;
    let autoscaler = Autoscaler::at(place).await;
    let came = || {
        let received = autoscaler.received().into_iter();
        let stats = received.filter_map(|report| report.stat);
        stats.map(|stat| stat.request_count).sum::<f64>()
    };
    eventually("the request that came before is reported", || came() == 1.0).await;
}

#[tokio::test]
async fn an_autoscaler_that_hangs_is_given_up_and_requests_are_served_meanwhile() {
    let place = SocketAddr::new(fresh_address(), 8080);
    let hangs = tokio::net::TcpListener::bind(place).await.unwrap();
    let pod = Pod::start().await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![pod.address()];
    let activator = activator()
        .revision(&revision)
        .arguments(&["--autoscaler", &format!("ws://{place}/")])
        .start()
        .await;
    activator.has_instances(1).await;
    // It takes the connection, and says nothing: not even to the handshake.
    let (_connection, _) = hangs.accept().await.unwrap();
    let mut client = activator.connect().await;
    assert_eq!(client.request(get("f-00001", "/0")).await.status(), 200);
    let (_another, _) = hangs.accept().await.unwrap();
    let log = activator.stderr();
    assert!(
        log.contains("did not answer the handshake within 3s"),
        "{log}"
    );
    // One that ends, and one that listens in its place.
    drop(hangs);
    let autoscaler = Autoscaler::at(place).await;
    assert_eq!(client.request(get("f-00001", "/0")).await.status(), 200);
    eventually("a report", || !autoscaler.received().is_empty()).await;
}
