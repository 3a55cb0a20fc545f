//! The Kubernetes API, read only: Revisions, and the EndpointSlices of their private Services, of all namespaces.
//!
//! Both are listed and then watched. Until both lists are there, there is no view; from then on every change makes a new
//! one. While the API cannot be reached the last view holds. An object that cannot be used is logged, and stays as it was.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt as _};
use tokio::sync::mpsc;

use super::SourceFailures;
use super::object::{self, Object};
use crate::view::View;

/// The slices of private Services, whose labels are copied from the Service.
const PRIVATE: &str = "networking.internal.knative.dev/serviceType=Private";
/// Changes that come within this time make one view.
const SETTLE: Duration = Duration::from_millis(5);

/// Objects of a kind, by namespace and name.
#[derive(Debug)]
struct Objects {
    kind: &'static str,
    current: BTreeMap<(String, String), Object>,
    /// A list that is not complete yet.
    listed: Option<BTreeMap<(String, String), Object>>,
    is_complete: bool,
}

/// Returns a client for the cluster that the process runs in, or for the one that `KUBECONFIG` names.
///
/// # Errors
/// Why there is none, in one sentence.
pub(crate) async fn client() -> Result<Client, String> {
    let mut config = kube::Config::infer().await.map_err(|error| {
        format!("no Kubernetes API is known, in the cluster or by KUBECONFIG: {error}")
    })?;
    // Watches try again themselves, and count it.
    config.default_retry = false;
    Client::try_from(config).map_err(|error| format!("the Kubernetes API cannot be used: {error}"))
}

/// Sends a view after every change, until nobody takes them.
pub(crate) async fn follow(client: Client, views: mpsc::Sender<View>, failed: &SourceFailures) {
    let revisions = watch(&client, "serving.knative.dev", object::REVISION, None);
    let slices = watch(&client, "discovery.k8s.io", object::SLICE, Some(PRIVATE));
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
                    tracing::warn!(%error, failures, "the Kubernetes API cannot be watched; the last view holds");
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
            // Each was checked when it came.
            Err(((), error)) => tracing::error!(%error, "the last view holds"),
        }
    }
}

fn watch(
    client: &Client,
    group: &str,
    kind: &str,
    labels: Option<&str>,
) -> impl Stream<Item = watcher::Result<Event<DynamicObject>>> + Send + use<> {
    let kind = GroupVersionKind::gvk(group, "v1", kind);
    let api = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    let config = watcher::Config::default();
    let config = match labels {
        Some(labels) => config.labels(labels),
        None => config,
    };
    watcher(api, config).default_backoff()
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

    /// Returns whether there may be another view now.
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

    /// What is looked at of an object; `None`: it cannot be used.
    fn usable(&self, object: &DynamicObject, failed: &SourceFailures) -> Option<Object> {
        let (namespace, name) = name_of(object);
        let read = serde_json::to_value(object).and_then(|mut value| {
            // In lists the API leaves it out of its own kinds.
            value["kind"] = self.kind.into();
            serde_json::from_value::<Object>(value)
        });
        let problem = match read {
            Ok(read) => match read.check() {
                Ok(()) => return Some(read),
                Err(error) => error.to_string(),
            },
            Err(error) => format!("{} {namespace}/{name}: {error}", self.kind),
        };
        failed.unusable.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(problem, "an object cannot be used; it stays as it was");
        None
    }
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
    async fn a_view_comes_whatever_is_dropped_and_delayed_before() {
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
        // Two lists were dropped, and two were not.
        assert!(faults.calls.load(Ordering::Relaxed) >= 4);
        task.abort();
    }
}
