//! Requests that go to another instance of their function, which has got its slot's lease for them (contracts §7), and those that come from one.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agent;
mod spent;

use std::time::{Duration, Instant};

use agent::{Agent, SIBLING};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use protocol::queue::FromQueue;
use tests::app::{App, chunk, ok};
use tests::app2::{App2, Body};
use tests::client2::{Client2, full};
use tests::message::Message;
use tests::proxy::{Builder, Proxy};
use tests::tls::Certificate;
use tests::{PATIENCE, eventually};
use tokio::sync::mpsc;

/// Path of Weir's own queue-proxy.
const OWN: &str = env!("CARGO_BIN_EXE_queue-proxy-under-test");
/// UID of the pod under test.
const UID: &str = "00000000-0000-4000-8000-000000000001";

/// Returns a builder of a queue-proxy that needs leases of an agent.
fn builder(agent: &Agent, app: u16) -> Builder {
    let builder = Builder::new(OWN, app).concurrency(1);
    let ip = builder.ip();
    builder
        .set("WEIR_SLO", "10s")
        .set("SERVING_POD_IP", ip)
        .set("WEIR_QUEUE_SOCKET", agent.socket().display())
}

/// Starts a queue-proxy without the lease of its slot.
async fn without_lease(app: u16) -> (Proxy, Agent) {
    let mut agent = Agent::new();
    let proxy = builder(&agent, app).start().await;
    agent.welcome(UID).await;
    (proxy, agent)
}

/// Sends a request, and returns its answer later.
fn request(proxy: &Proxy, text: &str) -> tokio::task::JoinHandle<Message> {
    let (address, text) = (proxy.address(), text.to_owned());
    tokio::spawn(async move {
        let mut client = tests::client::Client::connect(address).await;
        client.request(text).await
    })
}

const GET: &str = "GET /path?query HTTP/1.1\r\nHost: client.example\r\nX-Own: kept\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n";
const POST: &str = "POST /path HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello";

#[tokio::test]
async fn a_head_is_answered_by_the_instance_that_the_agent_names() {
    let (app, sibling) = (App::saying("home").await, App::saying("sibling").await);
    let (proxy, mut agent) = without_lease(app.port).await;
    let text = GET.replace("X-Own", "K-Proxy-Request: activator\r\nX-Own");
    let answer = request(&proxy, &text);
    agent.forwards_to(sibling.port).await;
    let answer = answer.await.unwrap();
    assert_eq!((answer.status(), &*answer.text()), (200, "sibling"));
    assert_eq!(app.log.count(), 0);
    let sent = sibling.log.last();
    assert_eq!(sent.start, "GET /path?query HTTP/1.1");
    for (name, value) in [
        ("weir-target", SIBLING),
        ("weir-hops", "1"),
        ("k-original-host", "client.example"),
        ("knative-serving-revision", "revision-00002"),
        ("knative-serving-namespace", "default"),
        ("k-proxy-request", "activator"),
        ("x-own", "kept"),
        ("x-forwarded-for", "1.2.3.4, 127.0.0.1"),
    ] {
        assert_eq!(sent.header(name), Some(value), "{name} of {sent:?}");
    }
    assert_eq!(sent.header("expect"), None);
    let number = |name| sent.header(name).unwrap().parse::<u64>().unwrap();
    assert!((1..10_000).contains(&number("weir-budget-ms")), "{sent:?}");
    assert!(number("weir-held-us") < 10_000_000);
    let metrics = proxy.metrics().await;
    let of = |outcome| metrics.value("weir_requests_total", &[outcome]);
    assert_eq!(of("outcome=\"forwarded\""), Some(1.0));
    assert_eq!(of("outcome=\"answered\""), Some(0.0));
    let judged = metrics.value("weir_requests_in_time_total", &[]);
    assert_eq!(judged, Some(0.0), "it counts where it ran");
    let running = metrics.value("weir_requests_running", &[]);
    assert_eq!(running, Some(0.0));
}

#[tokio::test]
async fn nothing_of_a_body_is_sent_before_the_sibling_asks_for_it() {
    let (app, sibling) = (
        App::silent().await,
        App::raw(|mut connection| async move {
            let mut head = connection.request_head().await.unwrap();
            assert_eq!(head.header("expect"), Some("100-continue"));
            connection.write("HTTP/1.1 100 Continue\r\n\r\n").await;
            connection.body(&mut head).await.unwrap();
            connection.write(ok(&head.text())).await;
        })
        .await,
    );
    let (proxy, mut agent) = without_lease(app.port).await;
    let answer = request(&proxy, POST);
    agent.forwards_to(sibling.port).await;
    assert_eq!(answer.await.unwrap().text(), "hello");
    // One that never asks for it gets nothing behind the head until its connection is closed.
    let (sender, mut behind) = mpsc::channel(1);
    let refusing = App::raw(move |mut connection| {
        let sender = sender.clone();
        async move {
            connection.request_head().await.unwrap();
            let refusal = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
            connection.write(refusal).await;
            sender.send(connection.read().await).await.unwrap();
        }
    })
    .await;
    let _waits = request(&proxy, POST);
    agent.forwards_to(refusing.port).await;
    let behind = tokio::time::timeout(PATIENCE, behind.recv()).await;
    assert_eq!(behind.unwrap().unwrap(), b"");
}

/// Checks that a request is served at home after a sibling that behaves like `sibling`.
async fn returns_from(sibling: App, text: &str, body: &str) {
    let app = App::serving(|request| async move { ok(&format!("home {}", request.text())) }).await;
    let (proxy, mut agent) = without_lease(app.port).await;
    let answer = request(&proxy, text);
    let seq = agent.forwards_to(sibling.port).await;
    assert!(agent.returned(seq).await, "the sibling has refused");
    let (again, _) = agent.head().await;
    assert!(again > seq, "it waits as before");
    agent.lease();
    let answer = answer.await.unwrap();
    assert_eq!(
        (answer.status(), answer.text()),
        (200, format!("home {body}"))
    );
    assert_eq!(app.log.count(), 1);
    let metrics = proxy.metrics().await;
    let of = |outcome| metrics.value("weir_requests_total", &[outcome]);
    assert_eq!(of("outcome=\"answered\""), Some(1.0));
    assert_eq!(of("outcome=\"forwarded\""), Some(0.0));
}

fn answering(
    status: &'static str,
) -> impl Fn(Message) -> std::future::Ready<Vec<u8>> + Send + Sync {
    move |_| std::future::ready(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").into())
}

#[tokio::test]
async fn a_request_that_the_sibling_refuses_is_served_at_home() {
    for status in ["421 Misdirected Request", "503 Service Unavailable"] {
        returns_from(App::serving(answering(status)).await, GET, "").await;
        let refusing = App::raw(move |mut connection| async move {
            connection.request_head().await.unwrap();
            let text = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
            connection.write(text).await;
            connection.closed().await;
        });
        returns_from(refusing.await, POST, "hello").await;
    }
}

#[tokio::test]
async fn a_request_whose_sibling_dies_before_it_starts_is_served_at_home() {
    let dying = App::raw(|mut connection| async move {
        connection.request_head().await.unwrap();
    });
    returns_from(dying.await, POST, "hello").await;
}

#[tokio::test]
async fn a_request_whose_sibling_cannot_be_reached_is_served_at_home_soon() {
    // A port that nothing listens on, and an address that answers nothing.
    let app = App::saying("home").await;
    let (proxy, mut agent) = without_lease(app.port).await;
    let answer = request(&proxy, GET);
    let seq = agent.forwards_to(1).await;
    assert!(agent.returned(seq).await);
    let (seq, _) = agent.head().await;
    let begin = Instant::now();
    agent.send(&protocol::queue::ToQueue::Sibling {
        seq,
        uid: SIBLING.to_owned(),
        address: "192.0.2.1".to_owned(),
        port: 8012,
        revision: "r".to_owned(),
    });
    assert!(agent.returned(seq).await);
    assert!(
        begin.elapsed() < Duration::from_secs(2),
        "not the kernel's limit"
    );
    let (_, may_move) = agent.head().await;
    assert!(!may_move, "it has been back twice");
    agent.lease();
    assert_eq!(answer.await.unwrap().text(), "home");
}

#[tokio::test]
async fn an_answer_of_the_siblings_user_container_is_passed_on_whatever_its_status() {
    let app = App::silent().await;
    let container =
        "HTTP/1.1 503 Busy\r\nServer-Timing: queue;dur=1\r\nContent-Length: 4\r\n\r\nbusy";
    let sibling = App::serving(move |_| async move { container.into() }).await;
    let (proxy, mut agent) = without_lease(app.port).await;
    let answer = request(&proxy, GET);
    agent.forwards_to(sibling.port).await;
    let answer = answer.await.unwrap();
    assert_eq!((answer.status(), &*answer.text()), (503, "busy"));
}

#[tokio::test]
async fn after_the_sibling_has_started_a_request_nothing_is_tried_again() {
    let app = App::saying("home").await;
    let dying = App::raw(|mut connection| async move {
        let mut head = connection.request_head().await.unwrap();
        connection.write("HTTP/1.1 100 Continue\r\n\r\n").await;
        connection.body(&mut head).await.unwrap();
    })
    .await;
    let (proxy, mut agent) = without_lease(app.port).await;
    let answer = request(&proxy, POST);
    agent.forwards_to(dying.port).await;
    assert_eq!(answer.await.unwrap().status(), 502);
    agent.lease();
    assert_eq!(app.log.count(), 0);
}

#[tokio::test]
async fn a_request_that_must_not_be_forwarded_is_stated_so() {
    let app = App::saying("home").await;
    for line in [
        "Connection: Upgrade\r\nUpgrade: websocket",
        "Knative-Serving-Tag: blue",
        "Weir-Hops: 1",
    ] {
        let (proxy, mut agent) = without_lease(app.port).await;
        let answer = request(
            &proxy,
            &format!("GET / HTTP/1.1\r\nHost: t\r\n{line}\r\n\r\n"),
        );
        let (seq, may_move) = agent.head().await;
        assert!(!may_move, "{line}");
        // An agent that does not care gets it back.
        agent.names(seq, app.port);
        assert!(!agent.returned(seq).await);
        agent.lease();
        assert_eq!(answer.await.unwrap().text(), "home");
    }
}

#[tokio::test]
async fn a_name_for_another_head_changes_nothing() {
    let (app, sibling) = (App::saying("home").await, App::saying("sibling").await);
    let (proxy, mut agent) = without_lease(app.port).await;
    agent.names(7, sibling.port);
    assert!(!agent.returned(7).await);
    let answer = request(&proxy, GET);
    let (seq, _) = agent.head().await;
    agent.names(seq + 1, sibling.port);
    assert!(!agent.returned(seq + 1).await);
    assert!(agent.hears_nothing().await);
    agent.lease();
    assert_eq!(answer.await.unwrap().text(), "home");
    assert_eq!(sibling.log.count(), 0);
}

#[tokio::test]
async fn at_most_as_many_requests_are_forwarded_as_the_pod_may_run() {
    let (app, sibling) = (App::saying("home").await, App::silent().await);
    let (proxy, mut agent) = without_lease(app.port).await;
    let _first = request(&proxy, GET);
    agent.forwards_to(sibling.port).await;
    eventually("it is there", || sibling.log.count() == 1).await;
    let second = request(&proxy, GET);
    let (_, may_move) = agent.head().await;
    assert!(!may_move);
    agent.lease();
    assert_eq!(second.await.unwrap().text(), "home");
}

#[tokio::test]
async fn nothing_is_forwarded_during_a_drain() {
    let app = App::saying("home").await;
    let (proxy, mut agent) = without_lease(app.port).await;
    proxy.terminate();
    proxy.drains().await;
    let answer = request(&proxy, GET);
    let (_, may_move) = agent.head().await;
    assert!(!may_move);
    agent.lease();
    assert_eq!(answer.await.unwrap().text(), "home");
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_request_at_the_sibling() {
    let (app, sibling) = (App::silent().await, App::silent().await);
    let (proxy, mut agent) = without_lease(app.port).await;
    let mut client = proxy.connect().await;
    client.send(GET).await;
    agent.forwards_to(sibling.port).await;
    eventually("it is there", || sibling.log.live() == 1).await;
    drop(client);
    eventually("it has ended", || sibling.log.live() == 0).await;
    // The next one may be forwarded again.
    let _next = request(&proxy, GET);
    assert!(agent.head().await.1);
}

#[tokio::test]
async fn a_request_for_another_pod_is_refused_before_its_body_is_read() {
    let app = App::saying("home").await;
    let (proxy, agent) = without_lease(app.port).await;
    agent.lease();
    for (uid, expected) in [(SIBLING, 421), ("", 421), (UID, 200)] {
        let mut client = proxy.connect().await;
        let length = if expected == 200 { 0 } else { 5 };
        client
            .send(format!(
                "POST / HTTP/1.1\r\nHost: t\r\nWeir-Target: {uid}\r\nWeir-Hops: 1\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
            ))
            .await;
        assert_eq!(client.head().await.status(), expected, "{uid}");
    }
}

#[tokio::test]
async fn a_forwarded_request_reaches_the_user_container_as_its_client_sent_it() {
    let app = App::saying("home").await;
    let (proxy, agent) = without_lease(app.port).await;
    agent.lease();
    let mut client = proxy.connect().await;
    client
        .send(format!(
            "POST / HTTP/1.1\r\nHost: {}\r\nK-Original-Host: client.example\r\nWeir-Target: {UID}\r\nWeir-Hops: 1\r\nExpect: 100-continue\r\nX-Forwarded-For: 1.2.3.4\r\nContent-Length: 5\r\n\r\n",
            proxy.address()
        ))
        .await;
    assert_eq!(client.head().await.status(), 100, "it starts");
    client.send("hello").await;
    assert_eq!(client.response().await.status(), 200);
    let got = app.log.last();
    assert_eq!(got.text(), "hello");
    assert_eq!(got.header("host"), Some("client.example"));
    assert_eq!(got.header("x-forwarded-for"), Some("1.2.3.4"));
    for name in [
        "weir-target",
        "weir-hops",
        "weir-held-us",
        "expect",
        "k-original-host",
    ] {
        assert_eq!(got.header(name), None, "{name}");
    }
}

#[tokio::test]
async fn a_request_with_a_body_waits_for_the_lease_without_being_asked_for_it() {
    let app = App::saying("home").await;
    let (proxy, mut agent) = without_lease(app.port).await;
    let mut client = proxy.connect().await;
    client
        .send(format!(
            "POST / HTTP/1.1\r\nHost: t\r\nWeir-Target: {UID}\r\nWeir-Hops: 1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
        ))
        .await;
    let (_, may_move) = agent.head().await;
    assert!(!may_move, "it has been forwarded once");
    let asked = client.rest_within(Duration::from_millis(100)).await;
    assert_eq!(asked, b"", "the other pod may still take it back");
    agent.lease();
    assert_eq!(client.head().await.status(), 100);
}

#[tokio::test]
async fn a_streamed_answer_of_a_sibling_is_passed_on_as_it_comes() {
    let app = App::silent().await;
    let sibling = App::raw(|mut connection| async move {
        connection.request().await.unwrap();
        connection
            .write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            .await;
        for part in ["one", "two"] {
            connection.write(chunk(part)).await;
        }
        connection.closed().await;
    })
    .await;
    let (proxy, mut agent) = without_lease(app.port).await;
    let mut client = proxy.connect().await;
    client.send(GET).await;
    agent.forwards_to(sibling.port).await;
    assert_eq!(client.head().await.status(), 200);
    assert_eq!(client.chunk().await.unwrap(), b"one");
    assert_eq!(client.chunk().await.unwrap(), b"two");
}

/// Returns a body of parts that come one by one, until their sender is dropped.
fn in_parts(parts: mpsc::Receiver<Bytes>) -> Body {
    let frames = futures_util::stream::unfold(parts, |mut parts| async {
        let part = parts.recv().await?;
        Some((Ok(Frame::data(part)), parts))
    });
    StreamBody::new(frames).boxed()
}

#[tokio::test]
async fn a_call_whose_message_is_not_there_stays_and_is_answered_at_home() {
    let app = App2::serving(|request| async move {
        let received = request.into_body().collect().await.unwrap().to_bytes();
        Response::new(full(received))
    })
    .await;
    let (proxy, mut agent) = without_lease(app.port).await;
    let mut client = Client2::connect(proxy.address()).await;
    let (sender, parts) = mpsc::channel(2);
    let call = client.builder("POST", "/svc/Stream");
    let call = call.body(in_parts(parts)).unwrap();
    let call = tokio::spawn(async move {
        let response = client.send(call).await.unwrap();
        response.into_body().collect().await.unwrap().to_bytes()
    });
    sender.send(Bytes::from_static(b"one ")).await.unwrap();
    let (_, may_move) = agent.head().await;
    assert!(!may_move);
    agent.lease();
    sender.send(Bytes::from_static(b"two")).await.unwrap();
    drop(sender);
    assert_eq!(call.await.unwrap(), "one two");
}

#[tokio::test]
async fn grpc_calls_are_forwarded_with_their_trailers_once_their_message_is_there() {
    let app = App::silent().await;
    let sibling = App2::serving(|request| async move {
        assert_eq!(request.headers()["weir-target"], SIBLING);
        let received = request.into_body().collect().await.unwrap().to_bytes();
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        let frames = [Frame::data(received), Frame::trailers(trailers)];
        let frames = futures_util::stream::iter(frames.map(Ok));
        let body: Body = StreamBody::new(frames).boxed();
        Response::new(body)
    })
    .await;
    let (proxy, mut agent) = without_lease(app.port).await;
    let mut client = Client2::connect(proxy.address()).await;
    let message = Bytes::from_static(b"\0\0\0\0\x05hello");
    let (sender, parts) = mpsc::channel(2);
    let call = client
        .builder("POST", "/svc/Unary")
        .header("content-type", "application/grpc")
        .body(in_parts(parts))
        .unwrap();
    let call = tokio::spawn(async move {
        let response = client.send(call).await.unwrap();
        response.into_body().collect().await.unwrap()
    });
    let (_, may_move) = agent.head().await;
    assert!(!may_move, "its message is not there");
    sender.send(message.slice(..7)).await.unwrap();
    sender.send(message.slice(7..)).await.unwrap();
    drop(sender);
    let (seq, may_move) = agent.head().await;
    assert!(may_move);
    agent.names(seq, sibling.port);
    let answer = call.await.unwrap();
    assert_eq!(answer.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(answer.to_bytes(), message);
}

#[tokio::test]
async fn with_internal_tls_requests_are_forwarded_via_tls_or_not_at_all() {
    let certificate = Certificate::of(&["data-plane.knative.dev", "kn-user-default"]);
    let home = App::saying("home").await;
    let away = App::saying("away").await;
    let mut agents = [Agent::new(), Agent::new()];
    let mut proxies = Vec::new();
    for (agent, app) in agents.iter_mut().zip([&home, &away]) {
        let builder = builder(agent, app.port);
        let folder = builder.certificates();
        certificate.write(&folder);
        std::fs::write(folder.join("ca.crt"), certificate.pem()).unwrap();
        let proxy = builder.start().await;
        proxies.push((proxy, String::new(), 0));
    }
    for (agent, proxy) in agents.iter_mut().zip(&mut proxies) {
        let (address, port) = agent.welcome(SIBLING).await;
        (proxy.1, proxy.2) = (address, port);
    }
    assert_eq!(proxies[1].2, 8112);
    agents[1].lease();
    loop {
        let mut answer = request(&proxies[0].0, POST);
        let (seq, may_move) = agents[0].head().await;
        assert!(may_move);
        agents[0].send(&protocol::queue::ToQueue::Sibling {
            seq,
            uid: SIBLING.to_owned(),
            address: proxies[1].1.clone(),
            port: proxies[1].2,
            revision: "r".to_owned(),
        });
        tokio::select! {
            answer = &mut answer => {
                assert_eq!(answer.unwrap().text(), "away");
                break;
            }
            // On a busy machine the connection may take longer than it may.
            is_refused = agents[0].returned(seq) => assert!(is_refused),
        }
        answer.abort();
        while !matches!(agents[0].next().await, FromQueue::Head { waiting: 0, .. }) {}
    }
    // Without an authority no certificate is trusted.
    let mut agent = Agent::new();
    let builder = builder(&agent, home.port);
    certificate.write(&builder.certificates());
    let proxy = builder.start().await;
    assert_eq!(agent.welcome(UID).await, (String::new(), 0));
    let _waits = request(&proxy, GET);
    assert!(!agent.head().await.1);
}
