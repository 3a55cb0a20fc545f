//! The API server in memory answers as a real one does.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use peers::api::{ApiServer, Fault, Resource};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/a/endpointslices";

fn slices() -> Resource {
    Resource::new("discovery.k8s.io/v1", "endpointslices")
}

fn named(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "a"}, "endpoints": []})
}

/// Returns the status and the body, or its first line of JSON.
async fn call(api: &ApiServer, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let mut stream = TcpStream::connect(api.address).await.unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    // Of a watch, which is answered in chunks, the first line.
    let text = body.lines().find(|line| line.starts_with('{'));
    let value = text.and_then(|text| serde_json::from_str(text).ok());
    (status, value.unwrap_or(Value::Null))
}

#[tokio::test]
async fn an_object_is_created_once_and_updated_only_with_its_last_version() {
    let api = ApiServer::start().await;
    let (status, created) = call(&api, "POST", SLICES, &named("x")).await;
    assert_eq!(
        (status, &created["metadata"]["resourceVersion"]),
        (201, &json!("1"))
    );
    assert_eq!(call(&api, "POST", SLICES, &named("x")).await.0, 409);
    assert_eq!(call(&api, "POST", SLICES, &json!({})).await.0, 422);
    let path = format!("{SLICES}/x");
    let patch = json!({"metadata": {"labels": {"b": "c"}}, "endpoints": null});
    let (status, patched) = call(&api, "PATCH", &path, &patch).await;
    assert_eq!(status, 200);
    assert_eq!(patched["metadata"]["labels"]["b"], "c");
    assert!(patched.get("endpoints").is_none());
    assert_eq!(call(&api, "PUT", &path, &created).await.0, 409);
    assert_eq!(call(&api, "PUT", &path, &patched).await.0, 200);
    assert_eq!(call(&api, "DELETE", &path, &Value::Null).await.0, 200);
    assert_eq!(call(&api, "GET", &path, &Value::Null).await.0, 404);
}

#[tokio::test]
async fn lists_come_in_pages() {
    let api = ApiServer::start().await;
    for name in ["x", "y", "z"] {
        api.apply(&slices(), named(name));
    }
    let (mut names, mut after) = (Vec::new(), String::new());
    loop {
        let path = format!("{SLICES}?limit=2&continue={}", after.replace('\n', "%0A"));
        let (status, page) = call(&api, "GET", &path, &Value::Null).await;
        assert_eq!(status, 200);
        let items = page["items"].as_array().unwrap();
        names.extend(items.iter().map(|item| item["metadata"]["name"].clone()));
        match page["metadata"]["continue"].as_str() {
            Some(next) => next.clone_into(&mut after),
            None => break,
        }
    }
    assert_eq!(names, ["x", "y", "z"]);
}

#[tokio::test]
async fn a_watch_from_a_dropped_version_gets_410_and_a_streaming_list_422() {
    let api = ApiServer::start().await;
    api.apply(&slices(), named("x"));
    api.apply(&slices(), named("y"));
    api.compact();
    let path = format!("{SLICES}?watch=1&resourceVersion=1");
    let (status, line) = call(&api, "GET", &path, &Value::Null).await;
    assert_eq!((status, &line["object"]["code"]), (200, &json!(410)));
    let path = format!("{SLICES}?watch=1&sendInitialEvents=true");
    assert_eq!(call(&api, "GET", &path, &Value::Null).await.0, 422);
}

#[tokio::test]
async fn tokens_and_users_are_reviewed() {
    let api = ApiServer::start().await;
    api.allow_token("person", "ada", None);
    api.allow_token("pod", "system:serviceaccount:a:b", Some("weir.dev"));
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    for (spec, user) in [
        (json!({"token": "person"}), Some("ada")),
        (json!({"token": "person", "audiences": ["weir.dev"]}), None),
        (json!({"token": "pod"}), None),
        (
            json!({"token": "pod", "audiences": ["weir.dev"]}),
            Some("system:serviceaccount:a:b"),
        ),
        (json!({"token": "other"}), None),
    ] {
        let (status, review) = call(&api, "POST", path, &json!({"spec": spec})).await;
        assert_eq!(status, 201);
        assert_eq!(
            review["status"]["authenticated"],
            user.is_some(),
            "{review}"
        );
        assert_eq!(review["status"]["user"]["username"].as_str(), user);
    }
    api.allow_user("ada");
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    for (user, is_allowed) in [("ada", true), ("eve", false)] {
        let review = json!({"spec": {"user": user}});
        let (status, review) = call(&api, "POST", path, &review).await;
        assert_eq!(
            (status, &review["status"]["allowed"]),
            (201, &is_allowed.into())
        );
    }
}

#[tokio::test]
async fn deletion_checks_preconditions_and_finalizers() {
    let api = ApiServer::start().await;
    let path = format!("{SLICES}/x");
    let mut kept = named("x");
    kept["metadata"]["finalizers"] = json!(["a.dev/kept"]);
    let (_, created) = call(&api, "POST", SLICES, &kept).await;
    let other = json!({"preconditions": {"uid": "another"}});
    assert_eq!(call(&api, "DELETE", &path, &other).await.0, 409);
    let its = json!({"preconditions": {"uid": created["metadata"]["uid"]}});
    let (status, marked) = call(&api, "DELETE", &path, &its).await;
    assert_eq!(status, 200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    assert!(api.get(&slices(), "a", "x").is_some());
    let free = json!({"metadata": {"finalizers": []}});
    assert_eq!(call(&api, "PATCH", &path, &free).await.0, 200);
    assert!(api.get(&slices(), "a", "x").is_none());
}

#[tokio::test]
async fn writes_suffer_the_injected_faults() {
    let api = ApiServer::start().await;
    let mut faults = vec![Fault::None, Fault::Conflict];
    api.set_faults(move |line| {
        assert_eq!(line, format!("POST {SLICES}"));
        faults.pop().unwrap_or(Fault::None)
    });
    assert_eq!(call(&api, "POST", SLICES, &named("x")).await.0, 409);
    assert!(api.get(&slices(), "a", "x").is_none());
    assert_eq!(call(&api, "POST", SLICES, &named("x")).await.0, 201);
    for (name, fault) in [("y", Fault::CutBefore), ("z", Fault::CutAfter)] {
        api.set_faults(move |_| fault);
        let mut stream = TcpStream::connect(api.address).await.unwrap();
        let body = named(name).to_string();
        let head = format!(
            "POST {SLICES} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert!(answer.is_empty());
        let is_there = api.get(&slices(), "a", name).is_some();
        assert_eq!(is_there, fault == Fault::CutAfter);
    }
}
