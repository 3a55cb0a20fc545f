//! The page's answers to requests of browsers.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use live::page::{EVENT_MAX, FILES, Page, PageBody, READERS_MAX, Source};
use live::state::State;
use tokio::time::{Instant, timeout};

const OWN: &str = "control.weir.dev";

/// A source of numbered states.
struct Numbers(Arc<AtomicU64>);

impl Source for Numbers {
    async fn gather(&mut self) -> State {
        State {
            unix_ms: self.0.fetch_add(1, Ordering::Relaxed),
            ..State::default()
        }
    }
}

fn page() -> (Arc<Page>, Arc<AtomicU64>) {
    let page = Page::new(vec![OWN.to_owned()]);
    let (running, gathered) = (Arc::clone(&page), Arc::<AtomicU64>::default());
    let counted = Arc::clone(&gathered);
    tokio::spawn(async move { running.run(Numbers(counted)).await });
    (page, gathered)
}

async fn ask(
    page: &Page,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
) -> Response<PageBody> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    page.respond(&request.body(()).unwrap(), true).await
}

async fn get(page: &Page, path: &str) -> Response<PageBody> {
    ask(page, Method::GET, path, &[("host", "127.0.0.1:9475")]).await
}

/// Returns the next event's state; `None` if the stream has ended.
async fn event(stream: &mut Response<PageBody>) -> Option<State> {
    loop {
        let frame = stream.body_mut().frame().await?;
        let bytes = frame.unwrap().into_data().unwrap();
        if let Some(json) = bytes.strip_prefix(b"data: ") {
            return Some(serde_json::from_slice(json).unwrap());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_page_is_small_and_names_only_its_own_files() {
    let (page, _) = page();
    let mut sum = 0;
    for (path, kind, text) in FILES {
        let answer = get(&page, path).await;
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["content-type"], kind);
        let policy = answer.headers()["content-security-policy"]
            .to_str()
            .unwrap();
        assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"));
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), text);
        sum += text.len();
        assert!(
            !text.contains("//") || !text.contains("src=\"http"),
            "{path}"
        );
        assert!(
            !text.contains("innerHTML") && !text.contains("style=\""),
            "{path}"
        );
    }
    assert!(sum <= 60 * 1_024, "{sum}");
}

#[tokio::test(start_paused = true)]
async fn only_get_of_own_paths_from_own_pages_is_answered() {
    let (page, _) = page();
    let own = ("host", "localhost:8080");
    for method in [
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::OPTIONS,
    ] {
        for path in ["/live/", "/live/state", "/live/stream", "/nowhere"] {
            let answer = ask(&page, method.clone(), path, &[own]).await;
            assert_eq!(
                answer.status(),
                StatusCode::METHOD_NOT_ALLOWED,
                "{method} {path}"
            );
            assert_eq!(answer.headers()["allow"], "GET");
        }
    }
    for (headers, status) in [
        (&[own][..], 200),
        (&[("host", "[::1]:8080")], 200),
        (&[("host", "10.1.2.3:9475")], 200),
        (&[("host", "Control.weir.dev")], 200),
        // A name of another site that resolves to this server.
        (&[("host", "rebound.example:8080")], 421),
        (&[("host", "localhost.example")], 421),
        (&[("host", "127.0.0.1.example")], 421),
        (&[], 421),
        (&[own, ("origin", "http://localhost:8080")], 200),
        (&[own, ("origin", "https://localhost:8080")], 200),
        (&[own, ("origin", "http://localhost:8081")], 403),
        (&[own, ("origin", "http://evil.example")], 403),
        (&[own, ("origin", "null")], 403),
        (&[own, ("sec-fetch-site", "same-origin")], 200),
        (
            &[
                own,
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "no-cors"),
            ],
            403,
        ),
    ] {
        for path in ["/live/", "/live/state", "/live/stream"] {
            let answer = ask(&page, Method::GET, path, headers).await;
            assert_eq!(answer.status().as_u16(), status, "{path} {headers:?}");
        }
    }
    // A link to the page, by which another site neither reads nor triggers anything.
    let link = |dest| {
        [
            own,
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", dest),
        ]
    };
    for (path, dest, status) in [
        ("/live/", "document", 200),
        ("/live/", "iframe", 403),
        ("/live/state", "document", 403),
        ("/live/stream", "document", 403),
    ] {
        let answer = ask(&page, Method::GET, path, &link(dest)).await;
        assert_eq!(answer.status().as_u16(), status, "{path} {dest}");
    }
    // Names are for authenticated clients.
    let request = Request::get("/live/state").header("host", OWN);
    let answer = page.respond(&request.body(()).unwrap(), false).await;
    assert_eq!(answer.status(), StatusCode::MISDIRECTED_REQUEST);
    assert_eq!(
        get(&page, "/live/other").await.status(),
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        get(&page, "/v1/functions").await.status(),
        StatusCode::NOT_FOUND
    );
    let moved = get(&page, "/live").await;
    assert_eq!(
        (
            moved.status().as_u16(),
            &moved.headers()["location"].to_str().unwrap()
        ),
        (308, &"/live/")
    );
}

#[tokio::test(start_paused = true)]
async fn a_reader_gets_a_state_every_second_and_fewer_are_gathered_without_readers() {
    let (page, gathered) = page();
    tokio::time::sleep(Duration::from_secs(150)).await;
    let idle = gathered.load(Ordering::Relaxed);
    assert!((10..=11).contains(&idle), "{idle}");
    let mut stream = get(&page, "/live/stream").await;
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    // The last state, and at once a new one.
    event(&mut stream).await.unwrap();
    let begin = Instant::now();
    let mut last = 0;
    for _ in 0..20 {
        last = event(&mut stream).await.unwrap().unix_ms;
    }
    let took = begin.elapsed();
    assert!(
        (Duration::from_secs(18)..=Duration::from_secs(21)).contains(&took),
        "{took:?}"
    );
    assert_eq!(last + 1, gathered.load(Ordering::Relaxed));
    drop(stream);
    tokio::time::sleep(Duration::from_secs(150)).await;
    assert!(gathered.load(Ordering::Relaxed) <= last + 13);
    // A single query gets a new state as well.
    let before = gathered.load(Ordering::Relaxed);
    let answer = get(&page, "/live/state").await;
    let state = answer.into_body().collect().await.unwrap().to_bytes();
    let state: State = serde_json::from_slice(&state).unwrap();
    assert_eq!(state.unix_ms, before);
}

#[tokio::test(start_paused = true)]
async fn sixteen_readers_are_served_and_a_stalled_one_is_replaced() {
    let (page, _) = page();
    let mut streams = Vec::new();
    for _ in 0..READERS_MAX {
        let mut stream = get(&page, "/live/stream").await;
        assert_eq!(stream.status(), StatusCode::OK);
        event(&mut stream).await.unwrap();
        streams.push(stream);
    }
    let refused = get(&page, "/live/stream").await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key("retry-after"));
    // One reader leaves: another is accepted.
    streams.pop();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut last = get(&page, "/live/stream").await;
    assert_eq!(last.status(), StatusCode::OK);
    // The other readers accept nothing and are closed; the active one stays.
    let end = Instant::now() + EVENT_MAX + Duration::from_secs(3);
    while Instant::now() < end {
        event(&mut last).await.unwrap();
    }
    assert_eq!(get(&page, "/live/stream").await.status(), StatusCode::OK);
    let slow = async { while event(&mut streams[0]).await.is_some() {} };
    timeout(Duration::from_millis(100), slow).await.unwrap();
    event(&mut last).await.unwrap();
}
