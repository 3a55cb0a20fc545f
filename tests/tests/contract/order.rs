//! Deadline features of revisions with an objective (contracts §1, §2).

use std::time::{Duration, Instant};

use tests::app::App;
use tests::client::Client;
use tests::client2::{Client2, empty};
use tests::eventually;
use tests::proxy::Proxy;

use crate::proxy;

async fn send(proxy: &Proxy, target: &str, lines: &str) -> Client {
    let mut client = proxy.connect().await;
    client
        .send(format!("GET {target} HTTP/1.1\r\nHost: t\r\n{lines}\r\n"))
        .await;
    client
}

/// Holds the only place for `ms`, queues requests with these names and header lines, and returns the names in order of dispatch.
async fn order_of(proxy: &Proxy, app: &App, ms: u64, waiting: &[(&str, &str)]) -> Vec<String> {
    let before = app.log.count();
    let mut clients = vec![send(proxy, &format!("/holder/{ms}"), "").await];
    eventually("the place is held", || app.log.count() == before + 1).await;
    for (name, lines) in waiting {
        let client = send(proxy, &format!("/{name}/0"), lines).await;
        client.is_read().await;
        clients.push(client);
    }
    for client in &mut clients {
        client.response().await;
    }
    let requests = app.log.requests();
    requests[before + 1..]
        .iter()
        .map(|request| request.target().split('/').nth(1).unwrap_or("").to_owned())
        .collect()
}

#[tokio::test]
async fn requests_start_by_their_budgets() {
    let app = App::delaying().await;
    let proxy = proxy(app.port)
        .concurrency(1)
        .set("WEIR_SLO", "20s")
        .start()
        .await;
    let order = order_of(
        &proxy,
        &app,
        3_000,
        &[
            ("nineteen", "Weir-Budget-Ms: 19000\r\n"),
            ("slo", ""),
            ("thirteen", "Weir-Budget-Ms: 13000\r\n"),
            ("fifteen", "Grpc-Timeout: 15S\r\n"),
            ("limited", "X-Envoy-Expected-Rq-Timeout-Ms: 14000\r\n"),
        ],
    )
    .await;
    assert_eq!(order, ["thirteen", "limited", "fifteen", "nineteen", "slo"]);
}

#[tokio::test]
async fn the_owner_decides_which_claims_order_requests() {
    let stated = [
        ("twelve", "Weir-Budget-Ms: 120000\r\n"),
        ("slo", ""),
        ("five", "Grpc-Timeout: 50S\r\n"),
        ("three", "Weir-Budget-Ms: 30000\r\n"),
        ("limited", "X-Envoy-Expected-Rq-Timeout-Ms: 40000\r\n"),
    ];
    let word = |trust: &'static str| async move {
        let app = App::delaying().await;
        let proxy = proxy(app.port)
            .concurrency(1)
            .set("WEIR_SLO", "200s")
            .set("WEIR_TRUST_BUDGET", trust)
            .start()
            .await;
        let order = order_of(&proxy, &app, 5_000, &stated).await;
        let seen = app.log.requests();
        let three = seen.iter().find(|it| it.target() == "/three/0").unwrap();
        let left: u64 = three.header("weir-budget-ms").unwrap().parse().unwrap();
        (order.join(" "), left)
    };
    let (order, left) = word("all").await;
    assert_eq!(order, "three limited five twelve slo");
    assert!(left <= 30_000, "{left}");
    // Half of 200 s: the last three claim less, and keep their order of arrival.
    let (order, left) = word("floor").await;
    assert_eq!(order, "five three limited twelve slo");
    assert!((50_000..=100_000).contains(&left), "{left}");
    let (order, left) = word("none").await;
    assert_eq!(order, "twelve slo five three limited");
    assert!((150_000..=200_000).contains(&left), "{left}");
}

#[tokio::test]
async fn without_an_objective_requests_start_in_order_of_arrival() {
    let app = App::delaying().await;
    let lines = [
        ("a", "Weir-Budget-Ms: 9000\r\n"),
        ("b", "Weir-Budget-Ms: 3000\r\n"),
        ("c", "Grpc-Timeout: 1S\r\n"),
    ];
    let plain = proxy(app.port).concurrency(1).start().await;
    assert_eq!(order_of(&plain, &app, 2_000, &lines).await, ["a", "b", "c"]);
    let disabled = proxy(app.port)
        .concurrency(1)
        .set("WEIR_SLO", "20s")
        .set("WEIR_DISABLED", "true")
        .start()
        .await;
    assert_eq!(
        order_of(&disabled, &app, 2_000, &lines).await,
        ["a", "b", "c"]
    );
    let opted_in = proxy(app.port)
        .concurrency(1)
        .set("WEIR_QUEUE_DEPTH", "5")
        .start()
        .await;
    assert_eq!(
        order_of(&opted_in, &app, 2_000, &lines).await,
        ["a", "b", "c"]
    );
}

#[tokio::test]
async fn late_requests_are_served_after_all_others_in_order_of_arrival() {
    let app = App::delaying().await;
    let proxy = proxy(app.port)
        .concurrency(1)
        .set("WEIR_SLO", "20s")
        .start()
        .await;
    let order = order_of(
        &proxy,
        &app,
        3_000,
        &[
            ("late-one", "Weir-Budget-Ms: 200\r\n"),
            ("late-two", "Weir-Budget-Ms: 100\r\n"),
            ("relaxed", ""),
            ("urgent", "Weir-Budget-Ms: 15000\r\n"),
        ],
    )
    .await;
    assert_eq!(order, ["urgent", "relaxed", "late-one", "late-two"]);
}

#[tokio::test]
async fn a_new_request_at_a_full_queue_displaces_the_last_late_one() {
    let app = App::delaying().await;
    let proxy = proxy(app.port)
        .concurrency(1)
        .set("WEIR_SLO", "20s")
        .set("WEIR_QUEUE_DEPTH", "2")
        .start()
        .await;
    let mut holder = send(&proxy, "/holder/3000", "").await;
    eventually("the place is held", || app.log.count() == 1).await;
    let mut first = send(&proxy, "/first/0", "Weir-Budget-Ms: 50\r\n").await;
    first.is_read().await;
    let mut second = send(&proxy, "/second/0", "Weir-Budget-Ms: 50\r\n").await;
    second.is_read().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut newcomer = send(&proxy, "/newcomer/0", "").await;
    let displaced = second.response().await;
    assert_eq!(
        (displaced.status(), displaced.text().as_str()),
        (503, "pending request queue full\n")
    );
    let mut another = send(&proxy, "/another/0", "").await;
    assert_eq!(first.response().await.status(), 503);
    // No late request is left to make room.
    assert_eq!(
        send(&proxy, "/refused/0", "")
            .await
            .response()
            .await
            .status(),
        503
    );
    for client in [&mut holder, &mut newcomer, &mut another] {
        assert_eq!(client.response().await.status(), 200);
    }
}

#[tokio::test]
async fn late_requests_are_shed_at_once_except_for_one_a_second() {
    let app = App::delaying().await;
    let proxy = proxy(app.port)
        .concurrency(1)
        .set("WEIR_SLO", "20s")
        .set("WEIR_LATE", "shed")
        .start()
        .await;
    let mut holder = send(&proxy, "/holder/3000", "").await;
    eventually("the place is held", || app.log.count() == 1).await;
    let mut kept = send(&proxy, "/kept/0", "Weir-Budget-Ms: 100\r\n").await;
    kept.is_read().await;
    let begin = Instant::now();
    let shed = send(&proxy, "/shed/0", "Weir-Budget-Ms: 200\r\n")
        .await
        .response()
        .await;
    let elapsed = begin.elapsed();
    assert!(elapsed > Duration::from_millis(195), "{elapsed:?}");
    assert_eq!(
        app.log.live(),
        1,
        "the request is shed while the place is held"
    );
    assert_eq!(
        (shed.status(), shed.header("x-envoy-ratelimited")),
        (503, Some("1"))
    );
    assert!(shed.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
    assert_eq!(holder.response().await.status(), 200);
    assert_eq!(kept.response().await.status(), 200);
    assert!(
        app.log
            .requests()
            .iter()
            .all(|request| request.target() != "/shed/0")
    );
    // With a free place and an empty queue nothing is shed, however late.
    let response = send(&proxy, "/alone/0", "Weir-Budget-Ms: 1\r\n")
        .await
        .response()
        .await;
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn a_shed_grpc_call_is_marked_as_not_retryable() {
    let app = tests::app2::App2::serving(|_| async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        http::Response::new(empty())
    })
    .await;
    let proxy = proxy(app.port)
        .concurrency(1)
        .set("WEIR_SLO", "20s")
        .set("WEIR_LATE", "shed")
        .start()
        .await;
    let client = Client2::connect(proxy.address()).await;
    let call = |budget: &str| {
        let mut client = client.clone();
        let request = client
            .builder("POST", "/svc/Call")
            .header("content-type", "application/grpc")
            .header("grpc-timeout", budget)
            .body(empty())
            .unwrap();
        tokio::spawn(async move { client.send(request).await.unwrap() })
    };
    let _holder = call("10S");
    eventually("the place is held", || app.live() == 1).await;
    let _kept = call("50m");
    tokio::time::sleep(Duration::from_millis(100)).await;
    let shed = call("100m").await.unwrap();
    assert_eq!(shed.status(), 503);
    assert_eq!(shed.headers()["grpc-status"], "8");
    assert_eq!(shed.headers()["grpc-retry-pushback-ms"], "-1");
}

#[tokio::test]
async fn the_budget_is_forwarded_less_the_hold_time_and_no_other_header_of_weir() {
    let app = App::delaying().await;
    let proxy = proxy(app.port)
        .concurrency(1)
        .set("WEIR_SLO", "20s")
        .start()
        .await;
    let mut holder = send(&proxy, "/holder/400", "").await;
    eventually("the place is held", || app.log.count() == 1).await;
    let lines = "Weir-Budget-Ms: 5000\r\nWeir-Hops: 7\r\nWeir-Other: x\r\nGrpc-Timeout: 9S\r\n";
    let mut waiting = send(&proxy, "/waiting/0", lines).await;
    assert_eq!(holder.response().await.status(), 200);
    let answer = waiting.response().await;
    let seen = app.log.last();
    let budget: u64 = seen.header("weir-budget-ms").unwrap().parse().unwrap();
    // It was held for 400 ms, minus the time between both arrivals.
    assert!((1..4_700).contains(&budget), "{budget}");
    assert_eq!(
        (seen.header("weir-hops"), seen.header("weir-other")),
        (None, None)
    );
    let timeout: u64 = seen
        .header("grpc-timeout")
        .unwrap()
        .trim_end_matches('u')
        .parse()
        .unwrap();
    assert!((4_000_000..8_700_000).contains(&timeout), "{timeout}");
    let timing: Vec<_> = answer.values("server-timing").collect();
    let queued: f64 = timing[0]
        .strip_prefix("queue;dur=")
        .unwrap()
        .parse()
        .unwrap();
    assert!((300.0..5_000.0).contains(&queued), "{timing:?}");
    let held = 5_000 - budget;
    assert!((held as f64 - queued).abs() < 50.0, "{budget} {timing:?}");
    assert_eq!(timing[1], "load;dur=0");
    // The first request, too, gets the remaining objective as its budget.
    let budget = app.log.requests()[0]
        .header("weir-budget-ms")
        .unwrap()
        .parse::<u64>()
        .unwrap();
    assert!((10_000..=20_000).contains(&budget), "{budget}");
}

#[tokio::test]
async fn an_unusable_grpc_timeout_is_counted_and_not_forwarded() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port)
        .concurrency(1)
        .set("WEIR_SLO", "20s")
        .start()
        .await;
    for (n, bad) in (1..).zip(["0S", "-1S", "100000000H"]) {
        let line = format!("Grpc-Timeout: {bad}\r\n");
        let answer = proxy.connect().await.get_with("/", &line).await;
        assert_eq!(answer.status(), 200, "{bad}");
        assert_eq!(app.log.last().header("grpc-timeout"), None, "{bad}");
        let counted = proxy
            .metrics()
            .await
            .value("weir_unusable_deadline_headers_total", &[]);
        assert_eq!(counted, Some(f64::from(n)), "{bad}");
    }
}

#[tokio::test]
async fn http2_answers_end_with_the_execution_time() {
    let app = tests::app2::App2::serving(|_| async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        http::Response::new(tests::client2::full("hello"))
    })
    .await;
    let proxy = proxy(app.port)
        .concurrency(1)
        .set("WEIR_SLO", "20s")
        .start()
        .await;
    let mut client = Client2::connect(proxy.address()).await;
    let request = client.builder("GET", "/").body(empty()).unwrap();
    let (head, body, trailers) = tests::client2::whole(client.send(request).await.unwrap())
        .await
        .unwrap();
    assert_eq!(body, "hello");
    assert!(head.headers.contains_key("server-timing"));
    let trailers = trailers.unwrap();
    let exec = trailers["server-timing"]
        .to_str()
        .unwrap()
        .strip_prefix("exec;dur=")
        .unwrap();
    assert!(exec.parse::<f64>().unwrap() >= 50.0, "{exec}");
}

#[tokio::test]
async fn a_trailers_only_grpc_error_stays_one() {
    let app = tests::app2::App2::serving(|_| async {
        let mut response = http::Response::new(empty());
        response
            .headers_mut()
            .insert("grpc-status", http::HeaderValue::from_static("5"));
        response
    })
    .await;
    let proxy = proxy(app.port)
        .concurrency(1)
        .set("WEIR_SLO", "20s")
        .start()
        .await;
    let mut client = Client2::connect(proxy.address()).await;
    let request = client.builder("POST", "/svc/Call").body(empty()).unwrap();
    let response = client.send(request).await.unwrap();
    assert!(hyper::body::Body::is_end_stream(response.body()));
    assert_eq!(response.headers()["grpc-status"], "5");
}

#[tokio::test]
async fn without_options_weirs_headers_pass_unchanged() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port).concurrency(1).start().await;
    let response = proxy
        .connect()
        .await
        .get_with(
            "/",
            "Weir-Budget-Ms: 7\r\nWeir-X: y\r\nGrpc-Timeout: 1S\r\n",
        )
        .await;
    let seen = app.log.last();
    assert_eq!(
        (seen.header("weir-budget-ms"), seen.header("weir-x")),
        (Some("7"), Some("y"))
    );
    assert_eq!(seen.header("grpc-timeout"), Some("1S"));
    assert_eq!(response.values("server-timing").count(), 0);
}

#[tokio::test]
async fn options_come_from_podinfo_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("annotations");
    std::fs::write(
        &path,
        "other=\"x\"\nweir.dev/queue-depth=\"1\"\nweir.dev/slo=\"20s\"\nweir.dev/late=\"maybe\"\n",
    )
    .unwrap();
    let app = App::delaying().await;
    let proxy = proxy(app.port)
        .concurrency(1)
        .set("WEIR_PODINFO", path.display())
        .start()
        .await;
    assert!(
        proxy.stderr().contains("weir.dev/late"),
        "{}",
        proxy.stderr()
    );
    let mut holder = send(&proxy, "/holder/5000", "").await;
    eventually("the place is held", || app.log.count() == 1).await;
    let mut waiting = send(&proxy, "/waiting/0", "").await;
    waiting.is_read().await;
    assert_eq!(
        send(&proxy, "/refused/0", "")
            .await
            .response()
            .await
            .status(),
        503
    );
    assert_eq!(holder.response().await.status(), 200);
    assert_eq!(waiting.response().await.status(), 200);
}

#[tokio::test]
async fn an_objective_without_a_concurrency_limit_is_refused_with_its_reason() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port).set("WEIR_SLO", "1s").start().await;
    assert!(
        proxy
            .stderr()
            .contains("slo needs containerConcurrency of at least 1"),
        "{}",
        proxy.stderr()
    );
    assert_eq!(proxy.connect().await.get("/").await.status(), 200);
}
