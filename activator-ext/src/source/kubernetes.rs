//! The Kubernetes API, read only: Revisions and the EndpointSlices of their private Services in all namespaces, and the
//! trust bundles of Knative's namespace.
//!
//! Revisions and slices are listed and then watched. There is no view until both lists are complete; from then on every
//! change makes a new one. While the API cannot be reached the last view stays in use. An invalid object is logged, and
//! its last valid version stays in use.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt as _};
use proxy::client_tls::TrustStore;
use tokio::sync::mpsc;

use super::SourceFailures;
use super::object::{self, Object};
use crate::view::{Revision, View};

/// The label of ConfigMaps with certificate authorities that Knative's programs trust.
const TRUST_BUNDLES: &str = "networking.knative.dev/trust-bundle=true";
/// Name of the ConfigMap with Knative's network settings.
pub(crate) const CONFIG_NETWORK: &str = "config-network";
/// Longest time for reading the network settings at the start.
const SETTINGS_MAX: Duration = Duration::from_secs(5);
/// Longest time for a connection to the API.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Period in seconds after which a watch is started anew, so that a silently broken connection is noticed.
const WATCH_SECONDS: u32 = 60;
/// Longest silence of a watch; bookmarks arrive once a minute.
const SILENCE_MAX: Duration = Duration::from_secs(90);
/// Changes within this time are combined into one view.
const SETTLE: Duration = Duration::from_millis(5);

/// Objects of a kind, by namespace and name.
#[derive(Debug)]
struct Objects {
    kind: &'static str,
    current: BTreeMap<(String, String), Object>,
    /// Objects of a list that is not complete yet.
    listed: Option<BTreeMap<(String, String), Object>>,
    is_complete: bool,
}

/// Returns a client for the cluster in which the process runs, or for the cluster named by `KUBECONFIG`.
///
/// # Errors
///
/// Fails with the reason in one sentence.
pub(crate) async fn client() -> Result<Client, String> {
    let config = config().await?;
    Client::try_from(config).map_err(|error| format!("the Kubernetes API cannot be used: {error}"))
}

/// Returns the configuration which [`client`] uses.
///
/// # Errors
///
/// Fails with the reason in one sentence.
pub(crate) async fn config() -> Result<kube::Config, String> {
    let mut config = kube::Config::infer().await.map_err(|error| {
        format!("no Kubernetes API is known, in the cluster or by KUBECONFIG: {error}")
    })?;
    // Watches retry themselves, and count their failures.
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_MAX);
    config.read_timeout = Some(SILENCE_MAX);
    Ok(config)
}

/// Returns whether requests go to pods by TLS, by Knative's network settings.
///
/// # Errors
///
/// Fails if they cannot be read.
pub(crate) async fn internal_tls(client: &Client, namespace: &str) -> Result<bool, kube::Error> {
    let api: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), namespace, &resource("", "ConfigMap"));
    let one = ListParams::default().fields(&format!("metadata.name={CONFIG_NETWORK}"));
    let found = tokio::time::timeout(SETTINGS_MAX, api.list(&one)).await;
    let found = found.map_err(|_| kube::Error::Service("timed out".into()))??;
    Ok(found.items.iter().any(has_internal_tls))
}

/// Waits until [`internal_tls`] by Knative's network settings differs from `current`.
pub(crate) async fn internal_tls_changed(client: Client, namespace: &str, current: bool) {
    let api: Api<DynamicObject> =
        Api::namespaced_with(client, namespace, &resource("", "ConfigMap"));
    let one = watch_config(None).fields(&format!("metadata.name={CONFIG_NETWORK}"));
    let mut events = pin!(watcher(api, one).default_backoff());
    while let Some(event) = events.next().await {
        // Missing settings are ignored: they are being replaced.
        if let Ok(Event::Apply(map) | Event::InitApply(map)) = event
            && has_internal_tls(&map) != current
        {
            return;
        }
    }
}

fn has_internal_tls(map: &DynamicObject) -> bool {
    let value = |key: &str| map.data["data"][key].as_str().unwrap_or_default();
    match value("system-internal-tls") {
        // The key's name before Knative 1.12.
        "" => value("internal-encryption").eq_ignore_ascii_case("true"),
        value => value.eq_ignore_ascii_case("enabled"),
    }
}

/// Sets the trust bundles of `trust` from the labelled ConfigMaps of a namespace whenever they change; never returns.
pub(crate) async fn follow_bundles(client: Client, namespace: &str, trust: &TrustStore) {
    let api: Api<DynamicObject> =
        Api::namespaced_with(client, namespace, &resource("", "ConfigMap"));
    let events = watcher(api, watch_config(Some(TRUST_BUNDLES))).default_backoff();
    let mut events = pin!(events);
    let mut bundles: BTreeMap<String, DynamicObject> = BTreeMap::new();
    let mut listed: BTreeMap<String, DynamicObject> = BTreeMap::new();
    let mut failures = 0_u64;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(map)) => drop(listed.insert(map.name_any(), map)),
            Ok(Event::InitDone) => {
                failures = 0;
                bundles = std::mem::take(&mut listed);
            }
            Ok(Event::Apply(map)) => drop(bundles.insert(map.name_any(), map)),
            Ok(Event::Delete(map)) => drop(bundles.remove(&map.name_any())),
            Err(error) => {
                failures += 1;
                if failures.is_power_of_two() {
                    tracing::warn!(%error, failures, "cannot watch trust bundles; the last ones stay in use");
                }
                continue;
            }
        }
        if listed.is_empty() {
            trust.set_bundles(bundles.iter().flat_map(authorities).collect());
        }
    }
}

/// Returns the contents of a ConfigMap, each with a path that names it.
fn authorities((name, map): (&String, &DynamicObject)) -> Vec<(PathBuf, Vec<u8>)> {
    let data = map.data.get("data").and_then(serde_json::Value::as_object);
    let each = data.into_iter().flatten().filter_map(|(key, text)| {
        let path = Path::new("configmaps").join(name).join(key);
        Some((path, text.as_str()?.as_bytes().to_owned()))
    });
    each.collect()
}

/// Sends a view after every change, until the receiver is dropped.
pub(crate) async fn follow(client: Client, views: mpsc::Sender<View>, failed: &SourceFailures) {
    let revisions = watch(&client, "serving.knative.dev", object::REVISION, None);
    let private = format!("{}={}", object::SERVICE_TYPE, object::PRIVATE_TYPE);
    let slices = watch(&client, "discovery.k8s.io", object::SLICE, Some(&private));
    let events = stream::select(
        revisions.map(|event| (0, event)),
        slices.map(|event| (1, event)),
    );
    let mut events = pin!(events);
    let mut objects = [object::REVISION, object::SLICE].map(Objects::of);
    let mut failures = 0_u64;
    while let Some(first) = events.next().await {
        let mut note = |(kind, event): (usize, watcher::Result<Event<DynamicObject>>)| match event {
            Ok(event) => {
                if matches!(event, Event::InitDone) {
                    failures = 0;
                }
                objects[kind].take(event, failed)
            }
            Err(error) => {
                failed.unreachable.fetch_add(1, Ordering::Relaxed);
                failures += 1;
                if failures.is_power_of_two() {
                    tracing::warn!(%error, failures, "cannot watch the Kubernetes API; the last view stays in use");
                }
                false
            }
        };
        if !note(first) {
            continue;
        }
        let mut settled = pin!(tokio::time::sleep(SETTLE));
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(event) => drop(note(event)),
                    None => return,
                },
                () = &mut settled => break,
            }
        }
        if !objects.iter().all(|objects| objects.is_complete) {
            continue;
        }
        let all = objects.iter().flat_map(|objects| objects.current.values());
        match object::view(all.map(|object| ((), object))) {
            Ok(view) => {
                if views.send(view).await.is_err() {
                    return;
                }
            }
            // Each object was checked when it was received.
            Err(((), error)) => tracing::error!(%error, "the last view stays in use"),
        }
    }
}

fn watch(
    client: &Client,
    group: &str,
    kind: &str,
    labels: Option<&str>,
) -> impl Stream<Item = watcher::Result<Event<DynamicObject>>> + Send + use<> {
    let api = Api::all_with(client.clone(), &resource(group, kind));
    watcher(api, watch_config(labels)).default_backoff()
}

/// Returns a kind of version `v1`.
pub(crate) fn resource(group: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind))
}

/// Returns the configuration of a watch of all objects, or of those with these labels.
pub(crate) fn watch_config(labels: Option<&str>) -> watcher::Config {
    let config = watcher::Config::default().timeout(WATCH_SECONDS);
    match labels {
        Some(labels) => config.labels(labels),
        None => config,
    }
}

impl Objects {
    const fn of(kind: &'static str) -> Self {
        Self {
            kind,
            current: BTreeMap::new(),
            listed: None,
            is_complete: false,
        }
    }

    /// Applies an event. Returns whether the view may have changed.
    fn take(&mut self, event: Event<DynamicObject>, failed: &SourceFailures) -> bool {
        match event {
            Event::Init => {
                self.listed = Some(BTreeMap::new());
                false
            }
            Event::InitApply(object) => {
                let name = name_of(&object);
                let known = self.current.get(&name);
                let usable = self.usable(&object, failed).or_else(|| known.cloned());
                if let (Some(listed), Some(object)) = (&mut self.listed, usable) {
                    listed.insert(name, object);
                }
                false
            }
            Event::InitDone => {
                self.current = self.listed.take().unwrap_or_default();
                self.is_complete = true;
                true
            }
            Event::Apply(object) => self.usable(&object, failed).is_some_and(|usable| {
                self.current.insert(name_of(&object), usable);
                self.is_complete
            }),
            Event::Delete(object) => {
                self.current.remove(&name_of(&object));
                self.is_complete
            }
        }
    }

    /// Returns the relevant parts of an object; `None` if the object is invalid, which is logged and counted.
    fn usable(&self, object: &DynamicObject, failed: &SourceFailures) -> Option<Object> {
        let (namespace, name) = name_of(object);
        let problem = match read(object, self.kind) {
            Ok(read) => match read.check() {
                Ok(()) => return Some(read),
                Err(error) => error.to_string(),
            },
            Err(error) => format!("{} {namespace}/{name}: {error}", self.kind),
        };
        failed.unusable.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            problem,
            "invalid object; its last valid version stays in use"
        );
        None
    }
}

/// Returns the revision described by a Revision object; `None` if the object is invalid.
pub(crate) fn revision(object: &DynamicObject) -> Option<Revision> {
    read(object, object::REVISION).ok()?.revision().ok()
}

fn read(object: &DynamicObject, kind: &str) -> serde_json::Result<Object> {
    let mut value = serde_json::to_value(object)?;
    // The API omits the kind of its built-in types in lists.
    value["kind"] = kind.into();
    serde_json::from_value(value)
}

fn name_of(object: &DynamicObject) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    use std::task::{Context, Poll};

    use futures_util::future::BoxFuture;
    use kube::client::ClientBuilder;
    use peers::api::{ApiServer, Resource};
    use serde_json::json;
    use tower::{Layer, Service};

    use super::*;

    /// Counts calls, drops the first ones, and delays the others.
    #[derive(Debug, Clone)]
    struct Faults {
        calls: Arc<AtomicU32>,
        dropped: u32,
        delay: Duration,
    }

    #[derive(Debug, Clone)]
    struct Faulty<S>(Faults, S);

    impl<S> Layer<S> for Faults {
        type Service = Faulty<S>;

        fn layer(&self, inner: S) -> Faulty<S> {
            Faulty(self.clone(), inner)
        }
    }

    impl<S, R> Service<R> for Faulty<S>
    where
        S: Service<R, Error = tower::BoxError>,
        S::Future: Send + 'static,
    {
        type Response = S::Response;
        type Error = tower::BoxError;
        type Future = BoxFuture<'static, Result<S::Response, tower::BoxError>>;

        fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            self.1.poll_ready(cx)
        }

        fn call(&mut self, request: R) -> Self::Future {
            let Faults {
                calls,
                dropped,
                delay,
            } = self.0.clone();
            if calls.fetch_add(1, Ordering::Relaxed) < dropped {
                return Box::pin(async { Err("dropped".into()) });
            }
            let answer = self.1.call(request);
            Box::pin(async move {
                tokio::time::sleep(delay).await;
                answer.await
            })
        }
    }

    #[tokio::test]
    async fn a_view_arrives_after_dropped_and_delayed_lists() {
        let api = ApiServer::start().await;
        let revisions = Resource::new("serving.knative.dev/v1", "revisions");
        let revision =
            json!({"kind": "Revision", "metadata": {"namespace": "a", "name": "f"}, "spec": {}});
        api.apply(&revisions, revision);
        let config = kube::Config::new(format!("http://{}", api.address).parse().unwrap());
        let faults = Faults {
            calls: Arc::default(),
            dropped: 2,
            delay: Duration::from_millis(30),
        };
        let client = ClientBuilder::try_from(config).unwrap();
        let client = client.with_layer(&faults).build();
        let (sender, mut views) = mpsc::channel(1);
        let failed = Arc::<SourceFailures>::default();
        let counts = Arc::clone(&failed);
        let task = tokio::spawn(async move { follow(client, sender, &counts).await });
        let view = views.recv().await.unwrap();
        assert_eq!(view.revisions.len(), 1);
        assert_eq!(failed.unreachable.load(Ordering::Relaxed), 2);
        // Two lists were dropped, and two succeeded.
        assert!(faults.calls.load(Ordering::Relaxed) >= 4);
        task.abort();
    }
}
