use std::time::Duration;

use tests::app::App;
use tests::client2::Client2;
use tests::eventually;
use tests::proxy::{Builder, Proxy, is_own};

use crate::proxy;

fn logging(app: &App, more: &str) -> Builder {
    proxy(app.port).set(
        "OBSERVABILITY_CONFIG",
        format!(r#"{{"enableRequestLog":true{more}}}"#),
    )
}

/// Returns the request-log lines of the default template, once there are `count`.
async fn lines(proxy: &Proxy, count: usize) -> Vec<serde_json::Value> {
    eventually("lines of the request log", || {
        proxy.json_lines("httpRequest").len() >= count
    })
    .await;
    proxy.json_lines("httpRequest")
}

#[tokio::test]
async fn item_130_each_request_is_one_line_of_the_default_template() {
    let app = App::saying("hello").await;
    let proxy = logging(&app, "").start().await;
    let mut client = proxy.connect().await;
    client
        .send(
            "POST /x?y=\"1\" HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\nUser-Agent: me\r\n\
             Referer: http://r/\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\nabc"
                .replace('"', "%22"),
        )
        .await;
    client.response().await;
    let line = lines(&proxy, 1).await.remove(0);
    let request = &line["httpRequest"];
    for (key, value) in [
        ("requestMethod", "POST"),
        ("requestUrl", "/x?y=%221%22"),
        ("requestSize", "3"),
        ("responseSize", "5"),
        ("userAgent", "me"),
        ("serverIp", "10.0.0.7"),
        ("referer", "http://r/"),
        ("protocol", "HTTP/1.1"),
    ] {
        assert_eq!(request[key], value, "{key}");
    }
    assert_eq!(request["status"], 200);
    assert_eq!(line["traceId"], "0af7651916cd43dd8448eb211c80319c");
    let latency = request["latency"].as_str().unwrap();
    let seconds: f64 = latency.strip_suffix('s').unwrap().parse().unwrap();
    assert!(seconds > 0.0 && seconds < 5.0, "{latency}");
    let peer = request["remoteIp"].as_str().unwrap();
    assert!(peer.parse::<std::net::SocketAddr>().is_ok(), "{peer}");
}

#[tokio::test]
async fn item_130_requests_over_http2_and_those_answered_by_the_proxy_are_logged_too() {
    let app = App::saying("hello").await;
    let proxy = logging(&app, "").start().await;
    // The user container speaks HTTP/1 only.
    Client2::connect(proxy.address()).await.get("/two").await;
    let line = lines(&proxy, 1).await.remove(0);
    assert_eq!(line["httpRequest"]["protocol"], "HTTP/2.0");
    assert_eq!(line["httpRequest"]["requestUrl"], "/two");
    assert_eq!(line["httpRequest"]["status"], 502);
}

#[tokio::test]
async fn item_130_a_forged_trace_header_forges_no_line() {
    let app = App::saying("hello").await;
    let proxy = logging(&app, "").start().await;
    let forged = "X-B3-TraceId: \",\"httpRequest\":{\"status\":500},\"x\":\"\r\n";
    proxy.connect().await.get_with("/", forged).await;
    let line = lines(&proxy, 1).await.remove(0);
    assert_eq!(line["httpRequest"]["status"], 200);
    assert_eq!(line["traceId"], "");
}

#[tokio::test]
async fn a_stalled_reader_of_stdout_delays_no_request() {
    let app = App::saying("hello").await;
    let shipped = r#"{"level":"debug","outputPaths":["stdout"]}"#;
    let (proxy, pipe) = logging(&app, "")
        .set("SERVING_LOGGING_CONFIG", shipped)
        .start_with_pipe()
        .await;
    let long = "y".repeat(10_000);
    let mut client = proxy.connect().await;
    for _ in 0..2_000 {
        assert_eq!(
            client
                .get_with("/", &format!("User-Agent: {long}\r\n"))
                .await
                .status(),
            200
        );
    }
    // Twenty megabytes of lines are not buffered.
    assert!(
        proxy.resident_bytes() < 64 << 20,
        "{}",
        proxy.resident_bytes()
    );
    drop(pipe);
}

#[tokio::test]
async fn item_131_probes_are_logged_only_if_enabled() {
    const PROBE: &str = "User-Agent: kube-probe/1.30\r\nK-Network-Probe: queue\r\n";
    let app = App::saying("hello").await;
    for (more, count) in [("", 1), (r#","enableProbeRequestLog":true"#, 2)] {
        let proxy = logging(&app, more).start().await;
        proxy.connect().await.get_with("/", PROBE).await;
        proxy.connect().await.get("/").await;
        let lines = lines(&proxy, count).await;
        assert_eq!(lines.len(), count);
        let agents: Vec<_> = lines
            .iter()
            .map(|line| line["httpRequest"]["userAgent"].as_str().unwrap())
            .collect();
        assert_eq!(agents.contains(&"kube-probe/1.30"), count == 2);
    }
}

#[tokio::test]
async fn item_132_an_unreadable_template_ends_the_log_and_nothing_else() {
    let app = App::saying("hello").await;
    let proxy = logging(&app, r#","requestLogTemplate":"a\n{{.Request""#)
        .start()
        .await;
    assert_eq!(proxy.connect().await.get("/").await.text(), "hello");
    let log = proxy.stderr();
    assert!(!log.is_empty());
    assert!(log.contains("request-log-template") || !is_own(), "{log}");
    assert_eq!(proxy.stdout(), "");
}

#[tokio::test]
async fn item_132_a_failing_template_is_reported_with_the_known_fields() {
    let app = App::saying("hello").await;
    let proxy = logging(
        &app,
        r#","requestLogTemplate":"{{.Request.Cookie \"absent\"}}""#,
    )
    .start()
    .await;
    proxy.connect().await.get("/x").await;
    eventually("a line", || proxy.stdout().ends_with('\n')).await;
    let line = proxy.stdout();
    let start = "Invalid request log template: method: GET, response code: 200, latency: ";
    assert!(
        line.starts_with(start) && line.trim_end().ends_with(", url: /x"),
        "{line}"
    );
}

#[tokio::test]
async fn a_failing_template_field_is_logged_once() {
    let app = App::saying("hello").await;
    let template = r#"{{.Request.Cookie \"absent\"}}"#;
    let proxy = logging(&app, &format!(r#","requestLogTemplate":"{template}""#))
        .set(
            "SERVING_LOGGING_CONFIG",
            r#"{"level":"info","outputPaths":["stderr"]}"#,
        )
        .start()
        .await;
    for _ in 0..3 {
        proxy.connect().await.get("/x").await;
    }
    eventually("three lines", || proxy.stdout().matches('\n').count() == 3).await;
    let log = proxy.stderr();
    let warnings: Vec<_> = log
        .lines()
        .filter(|line| line.contains("request-log-template"))
        .collect();
    assert_eq!(warnings.len(), 1, "{log}");
    assert!(warnings[0].contains(".Request.Cookie"), "{log}");
    assert!(warnings[0].to_lowercase().contains("warn"), "{log}");
}

#[tokio::test]
async fn an_unknown_field_is_refused_at_the_start_with_its_position() {
    let app = App::saying("hello").await;
    let proxy = logging(&app, r#","requestLogTemplate":"a\n{{.Request.Nope}}""#)
        .start()
        .await;
    let log = proxy.stderr();
    assert!(
        log.contains("line 2, column 12: Nope: .Request has no such field"),
        "{log}"
    );
    assert_eq!(proxy.connect().await.get("/").await.text(), "hello");
    assert_eq!(proxy.stdout(), "");
}

/// Templates, a request, and the output of Knative's own queue-proxy.
const WRITTEN: [(&str, &str, &str); 9] = [
    ("TLS: {{.Request.TLS}}", "", "TLS: <nil>"),
    ("{{if .Request.TLS}}yes{{else}}no{{end}}", "", "no"),
    (
        "{{.Request.Form}} {{.Request.FormValue \"x\"}} {{.Request.PostFormValue \"x\"}}",
        "",
        "map[] 1 ",
    ),
    (
        "{{.Request.Form.Get \"x\"}}.{{.Request.Form}}",
        "",
        ".map[]",
    ),
    (
        "{{.Request.Cookies}} {{.Request.Cookie \"b\"}}",
        "Cookie: a=1; b=\"two\"; c\r\n",
        "[a=1 b=\"two\" c=] b=\"two\"",
    ),
    (
        "{{.Request.URL.Query}} {{.Request.URL.Query.Get \"x\"}} {{.Request.URL.Path}}",
        "",
        "map[x:[1 3] y:[2]] 1 /a b",
    ),
    (
        "[{{.Request.Pattern}}] {{.Request.Trailer}} {{.Request.Close}} {{.Request.Body}}",
        "",
        "[] map[] false {}",
    ),
    ("{{.Request.Close}}", "Connection: close\r\n", "true"),
    (
        "{{.Request.Header}} {{.Response.Code}} {{.Revision}}",
        "X-B: z\r\n",
        "map[X-B:[z]] 200 {revision-00001 default service configuration \
         revision-00001-deployment-5d8f-x2v7q 10.0.0.7}",
    ),
];

#[tokio::test]
async fn fields_of_a_request_are_written_as_go_writes_them() {
    let app = App::saying("hello").await;
    for (template, lines, written) in WRITTEN {
        let template = serde_json::Value::from(template);
        let proxy = logging(&app, &format!(r#","requestLogTemplate":{template}"#))
            .start()
            .await;
        let target = "/a%20b?x=1&y=2&x=3";
        proxy.connect().await.get_with(target, lines).await;
        eventually("a line", || proxy.stdout().ends_with('\n')).await;
        assert_eq!(proxy.stdout(), format!("{written}\n"), "{template}");
    }
}

#[tokio::test]
async fn announced_trailers_of_a_request_are_in_its_line() {
    let app = App::saying("hello").await;
    let template = r#","requestLogTemplate":"{{.Request.Trailer}} {{.Request.Header}}""#;
    let proxy = logging(&app, template).start().await;
    let mut client = proxy.connect().await;
    client
        .send(
            "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\nTrailer: X-T, Y-U\r\n\r\n\
             3\r\nabc\r\n0\r\nX-T: y\r\n\r\n",
        )
        .await;
    assert_eq!(client.response().await.status(), 200);
    eventually("a line", || proxy.stdout().ends_with('\n')).await;
    assert_eq!(proxy.stdout(), "map[X-T:[y] Y-U:[]] map[]\n");
}

#[tokio::test]
async fn keys_of_its_configuration_are_case_insensitive() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port)
        .set(
            "OBSERVABILITY_CONFIG",
            r#"{"EnableRequestLog":true,"REQUESTLOGTEMPLATE":"{{.Request.Method}}"}"#,
        )
        .start()
        .await;
    proxy.connect().await.get("/").await;
    eventually("a line", || proxy.stdout() == "GET\n").await;
}

#[tokio::test]
async fn a_malformed_template_is_refused_with_its_position() {
    let app = App::saying("hello").await;
    let proxy = logging(&app, r#","requestLogTemplate":"a\n{{range .X}}{{end}}""#)
        .start()
        .await;
    let log = proxy.stderr();
    assert!(
        log.contains("line 2, column 3: range is not supported"),
        "{log}"
    );
}

#[tokio::test]
async fn item_133_a_request_cancelled_by_its_client_is_no_success() {
    let app = App::silent().await;
    let proxy = logging(&app, "").concurrency(1).start().await;
    let mut running = proxy.connect().await;
    running
        .send("GET /running HTTP/1.1\r\nHost: t\r\n\r\n")
        .await;
    eventually("it runs", || app.log.live() == 1).await;
    let mut waiting = proxy.connect().await;
    waiting
        .send("GET /waiting HTTP/1.1\r\nHost: t\r\n\r\n")
        .await;
    drop(waiting);
    drop(running);
    for line in lines(&proxy, 2).await {
        assert_eq!(line["httpRequest"]["status"], 499, "{line}");
    }
}

#[tokio::test]
async fn item_133_a_request_of_a_disconnected_client_is_logged_too() {
    let app = App::silent().await;
    let proxy = logging(&app, "").start().await;
    for _ in 0..50 {
        let mut client = proxy.connect().await;
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n").await;
    }
    for line in lines(&proxy, 50).await {
        assert_eq!(line["httpRequest"]["status"], 499, "{line}");
    }
}

#[tokio::test]
async fn an_incomplete_response_is_logged_as_500() {
    let app = App::raw(|mut connection| async move {
        connection.request().await;
        connection
            .write("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
            .await;
    })
    .await;
    let proxy = logging(&app, "").start().await;
    let mut client = proxy.connect().await;
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n").await;
    assert!(client.try_response().await.is_err());
    let line = lines(&proxy, 1).await.remove(0);
    assert_eq!(line["httpRequest"]["status"], 500, "{line}");
}

#[tokio::test]
async fn a_tunnel_is_logged_when_it_ends() {
    let app = App::raw(|mut connection| async move {
        connection.request_head().await;
        connection
            .write(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n",
            )
            .await;
        connection.closed().await;
    })
    .await;
    let proxy = logging(&app, "").start().await;
    let mut client = proxy.connect().await;
    client
        .send("GET /tunnel HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
        .await;
    assert_eq!(client.head().await.status(), 101);
    assert_eq!(proxy.stdout(), "");
    let open = Duration::from_millis(300);
    tokio::time::sleep(open).await;
    drop(client);
    let line = lines(&proxy, 1).await.remove(0);
    assert_eq!(line["httpRequest"]["status"], 101);
    // In seconds, with their unit.
    let latency = line["httpRequest"]["latency"].as_str().unwrap();
    let seconds: f64 = latency.trim_end_matches('s').parse().unwrap();
    assert!(seconds >= open.as_secs_f64(), "{line}");
}

#[tokio::test]
async fn the_process_log_has_the_configured_keys_of_zap() {
    let app = App::saying("hello").await;
    let shipped = r#"{"level":"info","outputPaths":["stdout"],"encoding":"json","encoderConfig":
        {"timeKey":"timestamp","levelKey":"severity","nameKey":"logger","callerKey":"caller",
        "messageKey":"message","levelEncoder":"","timeEncoder":"iso8601"}}"#;
    let proxy = proxy(app.port)
        .set("SERVING_LOGGING_CONFIG", shipped)
        .start()
        .await;
    eventually("a line", || !proxy.json_lines("severity").is_empty()).await;
    let line = proxy.json_lines("severity").remove(0);
    assert_eq!(line["severity"], "info");
    assert_eq!(line["logger"], "queueproxy");
    assert_eq!(line["knative.dev/key"], "default/revision-00001");
    assert_eq!(
        line["knative.dev/pod"],
        "revision-00001-deployment-5d8f-x2v7q"
    );
    for key in ["timestamp", "caller", "message", "commit"] {
        assert!(
            line[key].as_str().is_some_and(|text| !text.is_empty()),
            "{key}"
        );
    }
    assert_eq!(proxy.stderr(), "");
}
