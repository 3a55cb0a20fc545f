use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use prost::Message as _;
use tests::app::App;
use tests::client::Client;
use tests::collector::Collector;
use tests::eventually;
use tests::proxy::{Builder, Proxy};
use tokio::net::TcpStream;

use crate::proxy;

const DURATIONS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
];
const SIZES: [f64; 15] = [
    0.0, 5.0, 10.0, 25.0, 50.0, 75.0, 100.0, 250.0, 500.0, 750.0, 1000.0, 2500.0, 5000.0, 7500.0,
    10000.0,
];
const INVOCATIONS: &str = "kn_serving_invocation_duration_seconds";

fn measured(app: &App) -> Builder {
    proxy(app.port).concurrency(2).set(
        "OBSERVABILITY_CONFIG",
        r#"{"requestMetrics":{"protocol":"prometheus"}}"#,
    )
}

/// Waits until a counter has a value: requests are counted after the response was sent.
async fn counted(proxy: &Proxy, series: &str, labels: &[&str], count: f64) {
    let mut last = None;
    for _ in 0..500 {
        last = proxy.metrics().await.value(series, labels);
        if last == Some(count) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{series} {labels:?} is {last:?}, not {count}");
}

#[tokio::test]
async fn item_124_metrics_have_knatives_names_units_and_buckets() {
    let app = App::saying("hello").await;
    let proxy = measured(&app).start().await;
    let mut client = proxy.connect().await;
    let body = "POST / HTTP/1.1\r\nHost: a.example:1234\r\nContent-Length: 3\r\n\r\nabc";
    client.send(body).await;
    assert_eq!(client.response().await.text(), "hello");
    counted(&proxy, &format!("{INVOCATIONS}_count"), &[], 1.0).await;
    let metrics = proxy.metrics().await;
    for (name, bounds) in [
        ("http_server_request_duration_seconds", &DURATIONS[..]),
        ("http_server_request_body_size_bytes", &SIZES[..]),
        ("http_server_response_body_size_bytes", &SIZES[..]),
        ("http_client_request_duration_seconds", &DURATIONS[..]),
        ("http_client_request_body_size_bytes", &SIZES[..]),
        (INVOCATIONS, &DURATIONS[..]),
    ] {
        assert_eq!(metrics.bounds(name), bounds, "{name}");
        assert!(
            metrics.text().contains(&format!("# TYPE {name} histogram")),
            "{name}"
        );
    }
    assert!(
        metrics
            .text()
            .contains("# TYPE kn_serving_queue_depth gauge")
    );
    let server = [
        r#"http_request_method="POST""#,
        r#"http_response_status_code="200""#,
        r#"kn_route_tag="kn:disabled""#,
        r#"network_protocol_name="http""#,
        r#"network_protocol_version="1.1""#,
        r#"server_address="a.example""#,
        r#"server_port="1234""#,
        r#"url_scheme="http""#,
    ];
    let value = |name: &str, labels: &[&str]| metrics.value(name, labels);
    assert_eq!(
        value("http_server_request_duration_seconds_count", &server),
        Some(1.0)
    );
    assert_eq!(
        value("http_server_request_body_size_bytes_sum", &server),
        Some(3.0)
    );
    assert_eq!(
        value("http_server_response_body_size_bytes_sum", &server),
        Some(5.0)
    );
    let port = format!("server_port=\"{}\"", app.port);
    let client = [
        r#"server_address="127.0.0.1""#,
        &port,
        r#"http_response_status_code="200""#,
    ];
    assert_eq!(
        value("http_client_request_body_size_bytes_sum", &client),
        Some(3.0)
    );
    let scope = [r#"otel_scope_name="knative.dev/serving/pkg/queue""#];
    assert!(value("kn_serving_queue_depth", &scope).is_some());
}

#[tokio::test]
async fn the_queue_depth_is_current() {
    let app = App::delaying().await;
    let proxy = measured(&app).start().await;
    proxy.connect().await.get("/").await;
    counted(&proxy, "kn_serving_queue_depth", &[], 0.0).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = proxy.connect().await;
        client.send("GET /5000 HTTP/1.1\r\nHost: t\r\n\r\n").await;
        clients.push(client);
    }
    counted(&proxy, "kn_serving_queue_depth", &[], 3.0).await;
    drop(clients);
    counted(&proxy, "kn_serving_queue_depth", &[], 0.0).await;
}

#[tokio::test]
async fn item_124_without_a_protocol_there_is_no_port() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port)
        .set(
            "OBSERVABILITY_CONFIG",
            r#"{"requestMetrics":{"protocol":"none"}}"#,
        )
        .start()
        .await;
    assert!(TcpStream::connect(proxy.at(9091)).await.is_err());
}

#[tokio::test]
async fn an_unknown_protocol_ends_the_process_with_the_allowed_ones() {
    for config in [
        r#"{"requestMetrics":{"protocol":"opencensus"}}"#,
        r#"{"tracing":{"protocol":"zipkin","endpoint":"http://x"}}"#,
    ] {
        let builder = proxy(1).set("OBSERVABILITY_CONFIG", config);
        let (status, stderr) = builder.run_to_end(tests::PATIENCE).await;
        assert_eq!(status.code(), Some(1));
        assert!(
            stderr.contains("OBSERVABILITY_CONFIG") && stderr.contains("grpc"),
            "{stderr}"
        );
    }
}

#[tokio::test]
async fn item_125_invocations_are_counted_and_probes_are_not() {
    let app = App::saying("hello").await;
    let proxy = measured(&app).start().await;
    let count = format!("{INVOCATIONS}_count");
    let ok = [r#"http_response_status_code="200""#];
    for n in [1.0, 2.0, 3.0] {
        proxy.connect().await.get("/").await;
        counted(&proxy, &count, &ok, n).await;
    }
    for lines in [
        "User-Agent: kube-probe/1.30\r\nK-Network-Probe: queue\r\n",
        "K-Network-Probe: probe\r\nK-Network-Hash: x\r\n",
        "K-Network-Probe: queue\r\n",
        "K-Kubelet-Probe: queue\r\n",
    ] {
        proxy.connect().await.get_with("/", lines).await;
    }
    proxy.connect().await.get("/").await;
    counted(&proxy, &count, &ok, 4.0).await;
    assert_eq!(proxy.metrics().await.value(&count, &[]), Some(4.0));
}

#[tokio::test]
async fn item_126_the_route_tag_follows_the_headers() {
    let app = App::saying("hello").await;
    let proxy = measured(&app).start().await;
    let tag = "Knative-Serving-Tag: blue\r\n";
    let default = "Knative-Serving-Default-Route: true\r\n";
    for (lines, label) in [
        (String::new(), "kn:disabled"),
        (default.to_owned(), "kn:default"),
        (format!("{tag}{default}"), "kn:undefined"),
        (
            format!("{tag}Knative-Serving-Default-Route: false\r\n"),
            "blue",
        ),
    ] {
        proxy.connect().await.get_with("/", &lines).await;
        let label = format!("kn_route_tag=\"{label}\"");
        counted(
            &proxy,
            "http_server_request_duration_seconds_count",
            &[&label],
            1.0,
        )
        .await;
    }
}

#[tokio::test]
async fn item_127_the_target_identifies_the_pod_of_the_metrics() {
    let app = App::saying("hello").await;
    let proxy = measured(&app).set("POD_NAME", "pod-7").start().await;
    let labels = [
        r#"service_name="service""#,
        r#"service_instance_id="pod-7""#,
        r#"container_name="queue-proxy""#,
        r#"k8s_namespace_name="default""#,
        r#"k8s_pod_name="pod-7""#,
        r#"kn_service_name="service""#,
        r#"kn_configuration_name="configuration""#,
        r#"kn_revision_name="revision-00001""#,
    ];
    let metrics = proxy.metrics().await;
    assert_eq!(
        metrics.value("target_info", &labels),
        Some(1.0),
        "{}",
        metrics.text()
    );
}

fn names(messages: &[bytes::Bytes]) -> Vec<String> {
    let mut names: Vec<_> = messages
        .iter()
        .map(|message| ExportMetricsServiceRequest::decode(message.clone()).unwrap())
        .flat_map(|request| request.resource_metrics)
        .flat_map(|resource| resource.scope_metrics)
        .flat_map(|scope| scope.metrics)
        .map(|metric| metric.name)
        .collect();
    names.sort();
    names.dedup();
    names
}

const EXPORTED: [&str; 7] = [
    "http.client.request.body.size",
    "http.client.request.duration",
    "http.server.request.body.size",
    "http.server.request.duration",
    "http.server.response.body.size",
    "kn.serving.invocation.duration",
    "kn.serving.queue.depth",
];

#[tokio::test]
async fn item_128_otlp_goes_to_the_endpoint_at_the_interval_and_at_the_end() {
    let app = App::saying("hello").await;
    let collector = Collector::http().await;
    let config = format!(
        r#"{{"requestMetrics":{{"protocol":"http/protobuf","endpoint":"http://127.0.0.1:{}/v1/metrics","exportInterval":200000000}}}}"#,
        collector.port
    );
    let mut proxy = proxy(app.port)
        .concurrency(1)
        .set("OBSERVABILITY_CONFIG", config)
        .start()
        .await;
    proxy.connect().await.get("/").await;
    let received = || collector.received("/v1/metrics");
    eventually("all instruments", || {
        let received = names(&received());
        EXPORTED
            .iter()
            .all(|name| received.iter().any(|known| known == name))
    })
    .await;
    let count = received().len();
    eventually("another export", || received().len() > count).await;
    proxy.terminate();
    assert_eq!(proxy.exit_code(tests::PATIENCE).await, Some(0));
}

#[tokio::test]
async fn item_128_the_rest_is_exported_at_the_end_and_over_grpc_too() {
    for grpc in [false, true] {
        let app = App::saying("hello").await;
        let (collector, protocol, path) = if grpc {
            let path = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
            (Collector::grpc().await, "grpc", path)
        } else {
            (Collector::http().await, "http/protobuf", "/custom/path")
        };
        let suffix = if grpc { "" } else { path };
        // The default interval is a minute: an earlier export is that at the end.
        let config = format!(
            r#"{{"requestMetrics":{{"protocol":"{protocol}","endpoint":"http://127.0.0.1:{}{suffix}"}}}}"#,
            collector.port
        );
        let mut proxy = proxy(app.port)
            .concurrency(1)
            .set("OBSERVABILITY_CONFIG", config)
            .start()
            .await;
        proxy.connect().await.get("/").await;
        proxy.terminate();
        assert_eq!(proxy.exit_code(tests::PATIENCE).await, Some(0));
        let exported = names(&collector.received(path));
        for name in EXPORTED {
            assert!(
                exported.iter().any(|known| known == name),
                "{protocol}: {exported:?}"
            );
        }
    }
}

#[tokio::test]
async fn without_system_roots_plain_collectors_still_work() {
    let app = App::saying("hello").await;
    let collector = Collector::http().await;
    let proxy = proxy(app.port)
        .set(
            "OBSERVABILITY_CONFIG",
            format!(
                r#"{{"requestMetrics":{{"protocol":"http/protobuf","endpoint":"http://127.0.0.1:{}/v1/metrics","exportInterval":200000000}}}}"#,
                collector.port
            ),
        )
        .set("SSL_CERT_FILE", "/nonexistent")
        .set("SSL_CERT_DIR", "/nonexistent")
        .start()
        .await;
    proxy.connect().await.get("/").await;
    eventually("an export", || {
        !collector.received("/v1/metrics").is_empty()
    })
    .await;
}

#[tokio::test]
async fn opentelemetry_variables_take_precedence() {
    let app = App::saying("hello").await;
    let (configured, named) = (Collector::http().await, Collector::http().await);
    let config = format!(
        r#"{{"requestMetrics":{{"protocol":"http/protobuf","endpoint":"http://127.0.0.1:{}/v1/metrics","exportInterval":3600000000000}}}}"#,
        configured.port
    );
    let proxy = proxy(app.port)
        .set("OBSERVABILITY_CONFIG", config)
        .set("OTEL_METRIC_EXPORT_INTERVAL", "100")
        .set(
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            format!("http://127.0.0.1:{}", named.port),
        )
        .start()
        .await;
    proxy.connect().await.get("/").await;
    eventually("an export", || !named.received("/v1/metrics").is_empty()).await;
    assert!(configured.received("/v1/metrics").is_empty());
}

#[tokio::test]
async fn the_number_of_client_supplied_hosts_and_tags_is_bounded() {
    let app = App::saying("hello").await;
    let proxy = measured(&app).start().await;
    let mut client = proxy.connect().await;
    for n in 0..200 {
        let request =
            format!("GET / HTTP/1.1\r\nHost: h{n}.example\r\nKnative-Serving-Tag: t{n}\r\n\r\n");
        client.send(request).await;
        assert_eq!(client.response().await.status(), 200);
    }
    // Nor do long ones, ports, or tags that pose as Knative's.
    let long = "h".repeat(100_000);
    for (host, tag) in [
        (long.as_str(), "t"),
        ("h1.example:1", &long),
        ("h", "kn:made-up"),
    ] {
        let request =
            format!("GET / HTTP/1.1\r\nHost: {host}\r\nKnative-Serving-Tag: {tag}\r\n\r\n");
        client.send(request).await;
        assert_eq!(client.response().await.status(), 200);
    }
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n").await;
    assert_eq!(client.response().await.status(), 200);
    counted(&proxy, &format!("{INVOCATIONS}_count"), &[], 204.0).await;
    let own = [r#"kn_route_tag="kn:disabled""#];
    counted(
        &proxy,
        "http_server_request_duration_seconds_count",
        &own,
        1.0,
    )
    .await;
    let metrics = proxy.metrics().await;
    let series = metrics.series("http_server_request_duration_seconds_count", &[]);
    assert!(series.len() <= 34, "{}", series.len());
    let other = [r#"server_address="_OTHER""#, r#"kn_route_tag="_OTHER""#];
    let others = metrics.value("http_server_request_duration_seconds_count", &other);
    assert_eq!(others, Some(171.0));
    assert!(metrics.text().len() < 2 << 20, "{}", metrics.text().len());
}

#[tokio::test]
async fn the_hold_time_of_earlier_hops_counts() {
    let app = App::saying("here").await;
    let proxy = proxy(app.port)
        .concurrency(1)
        .set("WEIR_SLO", "20s")
        .start()
        .await;
    for held_us in [20_000_000, 1_000_000] {
        let line = format!("Weir-Held-Us: {held_us}\r\n");
        proxy.connect().await.get_with("/", &line).await;
        assert_eq!(app.log.last().header("weir-held-us"), None);
    }
    let answered = ["outcome=\"answered\""];
    counted(&proxy, "weir_requests_total", &answered, 2.0).await;
    counted(&proxy, "weir_requests_in_time_total", &[], 1.0).await;
}

#[tokio::test]
async fn weirs_metrics_count_requests_by_outcome() {
    let app = App::delaying().await;
    let proxy = proxy(app.port)
        .concurrency(1)
        .set("WEIR_SLO", "300ms")
        .set("WEIR_SLO_PERCENTILE", "95")
        .set("WEIR_FUNCTION", "resnet")
        .set("WEIR_QUEUE_DEPTH", "1")
        .set("REVISION_TIMEOUT_SECONDS", "2")
        .start()
        .await;
    proxy.connect().await.get("/0").await;
    proxy.connect().await.get("/500").await;
    let outcome = |name: &str| format!("outcome=\"{name}\"");
    counted(&proxy, "weir_requests_total", &[&outcome("answered")], 2.0).await;
    let metrics = proxy.metrics().await;
    let labels = [
        r#"namespace="default""#,
        r#"function="resnet""#,
        r#"revision="revision-00001""#,
        r#"variant="monolith""#,
    ];
    assert_eq!(
        metrics.value("weir_requests_in_time_total", &labels),
        Some(1.0)
    );
    assert_eq!(
        metrics.value("weir_slo_objective_seconds", &labels),
        Some(0.3)
    );
    assert_eq!(
        metrics.value("weir_slo_objective_ratio", &labels),
        Some(0.95)
    );
    for histogram in [
        "weir_queue_wait_seconds",
        "weir_execution_seconds",
        "weir_response_seconds",
    ] {
        assert_eq!(
            metrics.value(&format!("{histogram}_count"), &labels),
            Some(2.0)
        );
    }
    assert_eq!(
        metrics.value("weir_dispatches_total", &[r#"reason="free""#]),
        Some(2.0)
    );
    // One runs, one waits and is never dispatched, one is refused; the first times out.
    let mut running = proxy.connect().await;
    running.send("GET /5000 HTTP/1.1\r\nHost: t\r\n\r\n").await;
    eventually("it runs", || app.log.live() == 1).await;
    let mut waiting = proxy.connect().await;
    waiting
        .send("GET /0 HTTP/1.1\r\nHost: t\r\nWeir-Budget-Ms: 1900\r\n\r\n")
        .await;
    counted(&proxy, "weir_requests_waiting", &[], 1.0).await;
    counted(&proxy, "weir_requests_running", &[], 1.0).await;
    let mut refused = proxy.connect().await;
    refused
        .send("GET /0 HTTP/1.1\r\nHost: t\r\nWeir-Budget-Ms: x\r\n\r\n")
        .await;
    assert_eq!(refused.response().await.status(), 503);
    counted(&proxy, "weir_requests_total", &[&outcome("refused")], 1.0).await;
    counted(&proxy, "weir_unusable_deadline_headers_total", &[], 1.0).await;
    drop(waiting);
    counted(&proxy, "weir_requests_total", &[&outcome("cancelled")], 1.0).await;
    assert_eq!(running.response().await.status(), 504);
    counted(&proxy, "weir_requests_total", &[&outcome("timeout")], 1.0).await;
    assert_eq!(
        proxy.metrics().await.value("kn_serving_queue_depth", &[]),
        None
    );
}

#[tokio::test]
async fn a_roll_out_continues_the_series_of_its_function() {
    let app = App::saying("hello").await;
    for (service, configuration, function) in [
        ("resnet", "resnet-configuration", "resnet"),
        ("", "resnet-configuration", "resnet-configuration"),
    ] {
        for revision in ["resnet-00001", "resnet-00002"] {
            let proxy = proxy(app.port)
                .set("SERVING_SERVICE", service)
                .set("SERVING_CONFIGURATION", configuration)
                .set("SERVING_REVISION", revision)
                .concurrency(1)
                .set("WEIR_SLO", "20s")
                .start()
                .await;
            proxy.connect().await.get("/").await;
            let labels = [
                format!("function=\"{function}\""),
                format!("revision=\"{revision}\""),
            ];
            let labels = labels.each_ref().map(String::as_str);
            counted(&proxy, "weir_requests_in_time_total", &labels, 1.0).await;
        }
    }
}

#[tokio::test]
async fn without_options_weirs_metrics_are_not_exported() {
    let app = App::saying("hello").await;
    let proxy = measured(&app).start().await;
    proxy.connect().await.get("/").await;
    assert!(!proxy.metrics().await.text().contains("weir_"));
}

#[tokio::test]
async fn profiles_are_served_if_enabled() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port)
        .set(
            "OBSERVABILITY_CONFIG",
            r#"{"runtime":{"profiling":"enabled"}}"#,
        )
        .start()
        .await;
    let get = async |path: &'static str| Client::connect(proxy.at(8008)).await.get(path).await;
    assert!(get("/debug/pprof/").await.text().contains("profile"));
    assert_eq!(get("/elsewhere").await.status(), 404);
    assert_eq!(get("/debug/pprof/profile?seconds=0").await.status(), 400);
    let work = async {
        for _ in 0..200 {
            proxy.connect().await.get("/").await;
        }
    };
    // The first of both is served, and the other refused.
    let path = "/debug/pprof/profile?seconds=2";
    let (one, two, ()) = tokio::join!(get(path), get(path), work);
    let (profile, other) = if one.status() == 200 {
        (one, two)
    } else {
        (two, one)
    };
    assert_eq!(other.status(), 409);
    assert_eq!(profile.status(), 200);
    assert!(profile.text().contains("nanoseconds"));
}

#[tokio::test]
async fn shed_requests_count_in_the_stat() {
    let app = App::delaying().await;
    let proxy = proxy(app.port)
        .concurrency(1)
        .set("WEIR_SLO", "1s")
        .set("WEIR_LATE", "shed")
        .start()
        .await;
    // The estimate is learned: half a second each.
    for _ in 0..3 {
        proxy.connect().await.get("/500").await;
    }
    eventually("nothing runs", || app.log.live() == 0).await;
    let mut running = proxy.connect().await;
    running.send("GET /900 HTTP/1.1\r\nHost: t\r\n\r\n").await;
    eventually("it runs", || app.log.live() == 1).await;
    // Ten that cannot be in time: all but one are shed at once, each as half a second of demand.
    let mut clients = Vec::new();
    for _ in 0..10 {
        let mut client = proxy.connect().await;
        client
            .send("GET /500 HTTP/1.1\r\nHost: t\r\nWeir-Budget-Ms: 100\r\n\r\n")
            .await;
        clients.push(client);
    }
    let mut most = 0.0_f64;
    for _ in 0..15 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        most = most.max(proxy.stat().await.average_concurrent_requests);
    }
    assert!((3.5..=8.0).contains(&most), "{most}");
    let shed = [r#"outcome="shed""#];
    let shed = proxy.metrics().await.value("weir_requests_total", &shed);
    assert!(shed >= Some(9.0), "{shed:?}");
}

#[tokio::test]
async fn a_revision_behind_the_activator_is_reported_once_with_the_annotation_to_set() {
    const SERIES: &str = "weir_requests_through_activator_total";
    let app = App::saying("hello").await;
    let opted_in = |slo| proxy(app.port).concurrency(1).set("WEIR_SLO", slo);
    let reports = |proxy: &Proxy| {
        let log = proxy.stdout() + &proxy.stderr();
        let lines = log.lines().filter(|line| {
            line.contains("autoscaling.knative.dev/target-burst-capacity") && line.contains("WARN")
        });
        lines.count()
    };
    let behind = opted_in("1s").start().await;
    let beside = opted_in("1s").start().await;
    let off = proxy(app.port).concurrency(1).start().await;
    let ours = opted_in("1s").start().await;
    let knatives = "K-Proxy-Request: activator\r\n";
    // Weir's activator reports how long it held each request: its queue is in order of deadline.
    let weirs = "K-Proxy-Request: activator\r\nWeir-Held-Us: 70\r\n";
    for (proxy, every, through) in [
        (&behind, 1, knatives),
        (&beside, 2, knatives),
        (&off, 1, knatives),
        (&ours, 1, weirs),
    ] {
        let mut client = proxy.connect().await;
        for n in 0..500 {
            let lines = if n % every == 0 {
                through
            } else {
                "K-Proxy-Request: other\r\n"
            };
            assert_eq!(client.get_with("/", lines).await.status(), 200);
        }
    }
    eventually("the revision is reported", || reports(&behind) == 1).await;
    counted(&behind, SERIES, &[], 500.0).await;
    counted(&beside, SERIES, &[], 250.0).await;
    counted(&ours, SERIES, &[], 0.0).await;
    assert_eq!((reports(&beside), reports(&off), reports(&ours)), (0, 0, 0));
    // Probes are no requests.
    let probe = "K-Proxy-Request: activator\r\nK-Network-Probe: queue\r\nUser-Agent: Knative-Activator-Probe\r\n";
    behind.connect().await.get_with("/", probe).await;
    counted(&behind, SERIES, &[], 500.0).await;
    assert_eq!(reports(&behind), 1);
}
