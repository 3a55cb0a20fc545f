//! Connections of the API server, and the handlers of its paths.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::selector::Selector;
use super::store::{Change, StoreError, Written, merge};
use super::{Bearer, Fault, Resource, Shared, lock};

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Period of a watch's bookmarks, if it wants them.
const BOOKMARK_PERIOD: Duration = Duration::from_millis(200);
/// Largest number of lines queued for a slow watcher.
const LINES_MAX: usize = 1_024;
/// Kinds with a plural which is not the lower-case name with an s.
const KINDS: [(&str, &str); 12] = [
    ("configmaps", "ConfigMap"),
    ("endpoints", "Endpoints"),
    ("endpointslices", "EndpointSlice"),
    ("podautoscalers", "PodAutoscaler"),
    ("serverlessservices", "ServerlessService"),
    ("gpufunctions", "GpuFunction"),
    ("networkpolicies", "NetworkPolicy"),
    ("clusterdomainclaims", "ClusterDomainClaim"),
    ("clusterroles", "ClusterRole"),
    ("clusterrolebindings", "ClusterRoleBinding"),
    ("serviceaccounts", "ServiceAccount"),
    ("horizontalpodautoscalers", "HorizontalPodAutoscaler"),
];

pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        let service = service_fn(move |request| {
            let shared = Arc::clone(&shared);
            async move { answer(shared, request).await }
        });
        connections.spawn(async move {
            let server = hyper::server::conn::http1::Builder::new();
            // Clients may disconnect at any time.
            let _ended = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// Target of a request's path.
#[derive(Debug)]
struct Target {
    resource: Resource,
    namespace: String,
    name: Option<String>,
}

impl Target {
    fn parse(path: &str) -> Option<Self> {
        let mut parts = path.trim_matches('/').split('/');
        let api_version = match parts.next()? {
            "api" => parts.next()?.to_owned(),
            "apis" => format!("{}/{}", parts.next()?, parts.next()?),
            _ => return None,
        };
        let mut plural = parts.next()?;
        let mut namespace = String::new();
        if plural == "namespaces"
            && let Some(named) = parts.next()
        {
            match parts.next() {
                Some(inner) => {
                    namespace = named.to_owned();
                    plural = inner;
                }
                None => {
                    return Some(Self {
                        resource: Resource::new(&api_version, plural),
                        namespace,
                        name: Some(named.to_owned()),
                    });
                }
            }
        }
        Some(Self {
            resource: Resource::new(&api_version, plural),
            namespace,
            // A subresource, as `status`, is treated as part of the whole object.
            name: parts.next().map(str::to_owned),
        })
    }
}

fn kind_of(plural: &str) -> String {
    let known = KINDS.iter().find(|(own, _)| *own == plural);
    known.map_or_else(
        || {
            let mut singular = plural.trim_end_matches('s').to_owned();
            if let Some(first) = singular.get_mut(0..1) {
                first.make_ascii_uppercase();
            }
            singular
        },
        |(_, kind)| (*kind).to_owned(),
    )
}

fn reply(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Full::from(value.to_string()).boxed_unsync());
    *response.status_mut() = status;
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

fn status_of(code: StatusCode, reason: &str, message: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "code": code.as_u16(), "reason": reason, "message": message,
    })
}

fn failure(code: StatusCode, reason: &str, message: &str) -> Response<Body> {
    reply(code, &status_of(code, reason, message))
}

/// Answers a request, or closes the connection if [`Fault`] requires it.
async fn answer(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<Body>, &'static str> {
    let is_write = !matches!(*request.method(), Method::GET | Method::HEAD);
    let is_review = request.uri().path().ends_with("reviews");
    let line = format!("{} {}", request.method(), request.uri().path());
    let fault = match &mut *lock(&shared.faults) {
        Some(faults) if is_write && !is_review => faults(&line),
        _ => Fault::None,
    };
    match fault {
        Fault::None => Ok(undisturbed(shared, request).await),
        Fault::Conflict => {
            let text =
                "the object has been modified; please apply your changes to the latest version";
            Ok(failure(StatusCode::CONFLICT, "Conflict", text))
        }
        Fault::CutBefore => Err("cut off before the write"),
        Fault::CutAfter => {
            undisturbed(shared, request).await;
            Err("cut off after the write")
        }
    }
}

async fn undisturbed(shared: Arc<Shared>, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let (is_failing, is_unreadable) = {
        let mut state = lock(&shared.state);
        let target = head
            .uri
            .path_and_query()
            .map_or("", |target| target.as_str());
        state.requests.push(format!("{} {target}", head.method));
        let is_read = matches!(head.method, Method::GET | Method::HEAD);
        let is_unreadable = is_read && state.unreadable.as_deref() == Some(&*path);
        (state.is_failing, is_unreadable)
    };
    if is_failing {
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        return failure(
            unavailable,
            "ServiceUnavailable",
            "the server is set to fail",
        );
    }
    if is_unreadable {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        return failure(status, "InternalError", "the path is set to be unreadable");
    }
    let Ok(body) = body.collect().await else {
        return failure(StatusCode::BAD_REQUEST, "BadRequest", "unreadable body");
    };
    let body = body.to_bytes();
    let object = serde_json::from_slice::<Value>(&body).unwrap_or(Value::Null);
    if path == "/version" {
        let version = json!({"major": "1", "minor": "33", "gitVersion": "v1.33.0", "platform": "linux/amd64"});
        return reply(StatusCode::OK, &version);
    }
    let Some(target) = Target::parse(&path) else {
        return failure(StatusCode::NOT_FOUND, "NotFound", "no such path");
    };
    let reviewed = match &*target.resource.plural {
        "tokenreviews" => Some(review_token(&shared, object.clone())),
        "subjectaccessreviews" => Some(review_access(&shared, object.clone())),
        _ => None,
    };
    if let Some(review) = reviewed.filter(|_| head.method == Method::POST) {
        return reply(StatusCode::CREATED, &review);
    }
    let query = query(head.uri.query().unwrap_or_default());
    if query.get("dryRun").is_some_and(|it| it == "All") {
        return reply(StatusCode::CREATED, &object);
    }
    let read = match head.method {
        Method::GET if target.name.is_none() => return list_or_watch(&shared, &target, &query),
        Method::GET => {
            let name = target.name.as_deref().unwrap_or_default();
            let found = lock(&shared.store).get(&target.resource, &target.namespace, name);
            return found.map_or_else(not_found, |found| reply(StatusCode::OK, &found));
        }
        Method::POST => write(&shared, &target, object, Verb::Create),
        Method::PUT => write(&shared, &target, object, Verb::Update),
        Method::PATCH if is_apply(&head.headers) => write(&shared, &target, object, Verb::Apply),
        Method::PATCH => write(&shared, &target, object, Verb::Patch),
        Method::DELETE => write(&shared, &target, object, Verb::Delete),
        _ => {
            return failure(
                StatusCode::METHOD_NOT_ALLOWED,
                "MethodNotAllowed",
                "no such verb",
            );
        }
    };
    match read {
        Ok((code, written)) => {
            shared.publish(&written);
            reply(code, &written.object)
        }
        Err(StoreError::NotFound) => not_found(),
        Err(StoreError::Conflict) => {
            let text = "the object is there already, or has been modified";
            failure(StatusCode::CONFLICT, "Conflict", text)
        }
        Err(StoreError::Invalid) => {
            let text = "the patch cannot be applied";
            failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", text)
        }
        Err(StoreError::NoName) => {
            let text = "metadata.name is missing";
            failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", text)
        }
    }
}

fn not_found() -> Response<Body> {
    failure(StatusCode::NOT_FOUND, "NotFound", "there is no such object")
}

fn review_token(shared: &Shared, mut review: Value) -> Value {
    let spec = &review["spec"];
    let token = spec["token"].as_str().unwrap_or_default();
    let bearer = lock(&shared.state).tokens.get(token).cloned();
    let is_for = |bearer: &Bearer| match (&bearer.audience, spec["audiences"].as_array()) {
        (Some(own), Some(asked)) => asked.iter().any(|asked| asked == own),
        (None, None) => true,
        _ => false,
    };
    review["status"] = match bearer.filter(is_for) {
        Some(Bearer { user, audience }) => {
            let audiences = Vec::from_iter(audience);
            json!({"authenticated": true, "user": {"username": user}, "audiences": audiences})
        }
        None => json!({"authenticated": false}),
    };
    review
}

fn review_access(shared: &Shared, mut review: Value) -> Value {
    let user = review["spec"]["user"].as_str().unwrap_or_default();
    let is_allowed = lock(&shared.state).users.contains(user);
    review["status"] = json!({"allowed": is_allowed});
    review
}

#[derive(Debug, Clone, Copy)]
enum Verb {
    Create,
    Update,
    Patch,
    Apply,
    Delete,
}

fn is_apply(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind == "application/apply-patch+yaml")
}

fn write(
    shared: &Shared,
    target: &Target,
    mut object: Value,
    verb: Verb,
) -> Result<(StatusCode, Written), StoreError> {
    let mut store = lock(&shared.store);
    let resource = &target.resource;
    let name = target.name.as_deref().unwrap_or_default();
    let preconditions = object["preconditions"].clone();
    if object.is_object() {
        for (key, value) in [("namespace", &*target.namespace), ("name", name)] {
            if !value.is_empty() {
                object["metadata"][key] = json!(value);
            }
        }
    }
    let written = match verb {
        Verb::Create => return Ok((StatusCode::CREATED, store.create(resource, object)?)),
        Verb::Update => store.update(resource, object)?,
        Verb::Patch => {
            let known = store.get(resource, &target.namespace, name);
            let mut patched = known.ok_or(StoreError::NotFound)?;
            // A list is a JSON patch (RFC 6902).
            if object.is_array() {
                let operations: json_patch::Patch =
                    serde_json::from_value(object).map_err(|_| StoreError::Invalid)?;
                json_patch::patch(&mut patched, &operations).map_err(|_| StoreError::Invalid)?;
            } else {
                merge(&mut patched, &object);
            }
            store.update(resource, patched)?
        }
        Verb::Apply => {
            let Some(mut applied) = store.get(resource, &target.namespace, name) else {
                return Ok((StatusCode::CREATED, store.create(resource, object)?));
            };
            // There is a single field manager: fields missing from an apply are removed.
            if !object["status"].is_null() {
                applied["status"] = Value::Null;
            }
            merge(&mut applied, &object);
            store.update(resource, applied)?
        }
        Verb::Delete => {
            let place = (&*target.namespace, name);
            store.delete_if(resource, place, &preconditions)?
        }
    };
    Ok((StatusCode::OK, written))
}

fn query(text: &str) -> BTreeMap<String, String> {
    let decoded = |text: &str| {
        let text = text.replace('+', " ");
        percent_decode_str(&text).decode_utf8_lossy().into_owned()
    };
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs
        .map(|(key, value)| (decoded(key), decoded(value)))
        .collect()
}

/// Objects of a list or a watch.
#[derive(Debug, Clone)]
struct Scope {
    resource: Resource,
    namespace: String,
    labels: Selector,
    fields: Selector,
}

impl Scope {
    fn holds(&self, object: &Value) -> bool {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        (self.namespace.is_empty() || self.namespace == namespace)
            && self.labels.fits_labels(object)
            && self.fields.fits_fields(object)
    }
}

fn list_or_watch(
    shared: &Arc<Shared>,
    target: &Target,
    query: &BTreeMap<String, String>,
) -> Response<Body> {
    let text = |key: &str| query.get(key).map_or("", String::as_str);
    let is_set = |key: &str| matches!(text(key), "1" | "true");
    if query.contains_key("sendInitialEvents") {
        let why =
            "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
        return failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", why);
    }
    let selectors = Selector::parse(text("labelSelector"))
        .and_then(|labels| Ok((labels, Selector::parse(text("fieldSelector"))?)));
    let (labels, fields) = match selectors {
        Ok(both) => both,
        Err(part) => {
            let why = format!("unable to parse requirement: {part}");
            return failure(StatusCode::BAD_REQUEST, "BadRequest", &why);
        }
    };
    let scope = Scope {
        resource: target.resource.clone(),
        namespace: target.namespace.clone(),
        labels,
        fields,
    };
    if is_set("watch") {
        let from = match text("resourceVersion") {
            "" | "0" => None,
            version => match version.parse() {
                Ok(version) => Some(version),
                Err(_) => return failure(StatusCode::BAD_REQUEST, "BadRequest", "resourceVersion"),
            },
        };
        let seconds = text("timeoutSeconds").parse().unwrap_or(300);
        let (lines, receiver) = mpsc::channel(LINES_MAX);
        let watch = Watch {
            shared: Arc::clone(shared),
            scope,
            lines,
            wants_bookmarks: is_set("allowWatchBookmarks"),
        };
        tokio::spawn(watch.run(from, Duration::from_secs(seconds)));
        let frames = futures_util::stream::unfold(receiver, |mut receiver| async {
            let line: Bytes = receiver.recv().await?;
            Some((Ok::<_, Infallible>(Frame::data(line)), receiver))
        });
        let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
        let json = http::HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        return response;
    }
    let limit = text("limit").parse().unwrap_or(usize::MAX);
    list(shared, &scope, limit.max(1), text("continue"))
}

/// Returns a page of a list. `after` has the namespace and name of the last object before it, separated by a line end.
fn list(shared: &Shared, scope: &Scope, limit: usize, after: &str) -> Response<Body> {
    let store = lock(&shared.store);
    let after = after.split_once('\n');
    let mut items = Vec::new();
    let mut last = None;
    let mut next = None;
    for ((namespace, name), object) in store.list(&scope.resource, &scope.namespace) {
        let is_behind = after.is_none_or(|after| (namespace.as_str(), name.as_str()) > after);
        if !is_behind || !scope.holds(object) {
            continue;
        }
        if items.len() == limit {
            next.clone_from(&last);
            break;
        }
        let mut item = object.clone();
        // A real server omits kind and version in lists of its own kinds.
        if is_built_in(&scope.resource)
            && let Some(item) = item.as_object_mut()
        {
            item.remove("apiVersion");
            item.remove("kind");
        }
        items.push(item);
        last = Some(format!("{namespace}\n{name}"));
    }
    let kind = format!("{}List", kind_of(&scope.resource.plural));
    let mut metadata = json!({"resourceVersion": store.version().to_string()});
    if let Some(next) = next {
        metadata["continue"] = json!(next);
    }
    let list = json!({
        "apiVersion": scope.resource.api_version, "kind": kind, "metadata": metadata, "items": items,
    });
    reply(StatusCode::OK, &list)
}

fn is_built_in(resource: &Resource) -> bool {
    let group = resource
        .api_version
        .split_once('/')
        .map_or("", |(group, _)| group);
    !group.contains('.') || group.ends_with(".k8s.io")
}

struct Watch {
    shared: Arc<Shared>,
    scope: Scope,
    lines: mpsc::Sender<Bytes>,
    wants_bookmarks: bool,
}

impl Watch {
    /// Delivers changes until the watcher disconnects, or the watch is ended.
    async fn run(self, from: Option<u64>, limit: Duration) {
        let mut delivered = self.shared.delivered.subscribe();
        let mut epoch = self.shared.epoch.subscribe();
        epoch.mark_unchanged();
        let end = Instant::now() + limit;
        let mut seen = match from {
            Some(from) => from,
            None => match self.all().await {
                Some(version) => version,
                None => return,
            },
        };
        loop {
            let up_to = (*delivered.borrow_and_update()).max(seen);
            let changes = lock(&self.shared.store).changes(&self.scope.resource, seen, up_to);
            let Some(changes) = changes else {
                let gone = status_of(StatusCode::GONE, "Expired", "too old resource version");
                self.send("ERROR", &gone).await;
                return;
            };
            for change in &changes {
                if !self.deliver(change).await {
                    return;
                }
            }
            seen = up_to;
            tokio::select! {
                changed = delivered.changed() => if changed.is_err() { return; },
                _ended = epoch.changed() => return,
                () = self.lines.closed() => return,
                () = tokio::time::sleep_until(end) => return,
                () = tokio::time::sleep(BOOKMARK_PERIOD), if self.wants_bookmarks => {
                    let bookmark = json!({
                        "apiVersion": self.scope.resource.api_version,
                        "kind": kind_of(&self.scope.resource.plural),
                        "metadata": {"resourceVersion": seen.to_string()},
                    });
                    if !self.send("BOOKMARK", &bookmark).await {
                        return;
                    }
                }
            }
        }
    }

    /// Sends all objects as added; returns their version.
    async fn all(&self) -> Option<u64> {
        let (objects, version) = {
            let store = lock(&self.shared.store);
            let all = store.list(&self.scope.resource, &self.scope.namespace);
            let own = all.filter(|(_, object)| self.scope.holds(object));
            let objects: Vec<_> = own.map(|(_, object)| object.clone()).collect();
            (objects, store.version())
        };
        for object in &objects {
            if !self.send("ADDED", object).await {
                return None;
            }
        }
        Some(version)
    }

    /// Delivers a change; an object that enters or leaves the scope is added or deleted for the watcher.
    async fn deliver(&self, change: &Change) -> bool {
        let was = change
            .before
            .as_ref()
            .is_some_and(|before| self.scope.holds(before));
        let is = change.kind != "DELETED" && self.scope.holds(&change.object);
        let kind = match (was, is) {
            (false, false) => return true,
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
        };
        self.send(kind, &change.object).await
    }

    async fn send(&self, kind: &str, object: &Value) -> bool {
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        self.lines.send(line.into()).await.is_ok()
    }
}
