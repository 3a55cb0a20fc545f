//! Caches of the cluster's objects on which attaching depends, kept current by watches, and the revisions that a change
//! concerns.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Endpoints, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DynamicObject};
use kube::runtime::reflector::{Store, store::Writer};
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt as _, reflector as reflect};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::config::ControlConfig;
use super::names::{
    DETACHED, FINALIZER, MANAGED_BY, MANAGER, MIRRORING, PART_OF, PUBLIC, SERVICE_NAME,
    SERVICE_TYPE, WEIR,
};
use crate::source::kubernetes::{CONFIG_NETWORK, resource, watch_config};

/// Largest number of unhandled changes; beyond it the watches pause.
const CONCERNS_MAX: usize = 256;

/// The scope of a change.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Concern {
    /// The revision of this namespace and name.
    Revision(String, String),
    /// Any number of revisions: all are reconciled.
    All,
}

/// The caches of Kubernetes objects.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) revisions: Store<DynamicObject>,
    pub(crate) autoscalers: Store<DynamicObject>,
    /// Public Services of revisions.
    pub(crate) services: Store<Service>,
    /// Endpoints of public Services.
    pub(crate) endpoints: Store<Endpoints>,
    /// EndpointSlices: mirrored copies of Endpoints, and Weir's own.
    pub(crate) slices: Store<EndpointSlice>,
    /// Pods of role `data`.
    pub(crate) pods: Store<Pod>,
    /// The ConfigMap `weir-detached` of Weir's namespace: revisions that are detached by hand.
    pub(crate) detached: Store<ConfigMap>,
    /// The ConfigMap `config-network` of Knative's namespace.
    pub(crate) network: Store<ConfigMap>,
    /// RuntimeClasses of the cluster.
    runtime_classes: Store<DynamicObject>,
    /// Objects of Weir whose deletion means that Weir is being removed from the cluster.
    pub(crate) own: [Store<DynamicObject>; 3],
    /// The Namespace object of Weir's namespace.
    pub(crate) namespace: Store<DynamicObject>,
    failures: Arc<AtomicU64>,
}

/// The shared parts of all watches.
#[derive(Clone)]
struct Watches {
    concerns: mpsc::Sender<Concern>,
    failures: Arc<AtomicU64>,
}

/// Returns the kind of Revisions.
pub(crate) fn revision_kind() -> kube::api::ApiResource {
    resource("serving.knative.dev", "Revision")
}

impl Cluster {
    /// Starts the watches. Returns the caches, and the channel to which every change is sent.
    pub(crate) fn follow(
        client: &Client,
        config: &ControlConfig,
    ) -> (Self, mpsc::Receiver<Concern>) {
        let (concerns, receiver) = mpsc::channel(CONCERNS_MAX);
        let watches = Watches {
            concerns,
            failures: Arc::default(),
        };
        let all = |kind: kube::api::ApiResource, labels: Option<&str>| {
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
            (api, watch_config(labels), kind)
        };
        let by_name =
            |object: &DynamicObject| revision_of(object.namespace(), Some(object.name_any()));
        let public = format!("{SERVICE_TYPE}={PUBLIC}");
        let kept = format!("{MANAGED_BY} in ({MIRRORING},{MANAGER})");
        let named = |namespace: &str, name: &str| {
            let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
            let one = watch_config(None).fields(&format!("metadata.name={name}"));
            (api, one, ())
        };
        let namespaced = |kind: kube::api::ApiResource, labels: &str| {
            let api: Api<DynamicObject> =
                Api::namespaced_with(client.clone(), &config.namespace, &kind);
            (api, watch_config(Some(labels)), kind)
        };
        let weirs = format!("{PART_OF}={WEIR}");
        let rbac = "rbac.authorization.k8s.io";
        let namespace = {
            let (api, watch, kind) = all(resource("", "Namespace"), None);
            let one = format!("metadata.name={}", config.namespace);
            (api, watch.fields(&one), kind)
        };
        let pods: Api<Pod> = Api::namespaced(client.clone(), &config.system_namespace);
        let cluster = Self {
            revisions: watches.keep(all(revision_kind(), None), by_name),
            autoscalers: watches.keep(all(autoscaler_kind(), None), by_name),
            services: watches.keep(typed(client, &public), |service: &Service| {
                revision_of(service.namespace(), Some(service.name_any()))
            }),
            endpoints: watches.keep(typed(client, &public), |endpoints: &Endpoints| {
                revision_of(endpoints.namespace(), Some(endpoints.name_any()))
            }),
            slices: watches.keep(typed(client, &kept), |slice: &EndpointSlice| {
                let service = slice.labels().get(SERVICE_NAME).cloned();
                revision_of(slice.namespace(), service)
            }),
            pods: watches.keep(
                (pods, watch_config(Some(&config.data_selector)), ()),
                |_: &Pod| Concern::All,
            ),
            detached: watches.keep(named(&config.namespace, DETACHED), |_| Concern::All),
            network: watches.keep(named(&config.system_namespace, CONFIG_NETWORK), |_| {
                Concern::All
            }),
            runtime_classes: watches
                .keep(all(resource("node.k8s.io", "RuntimeClass"), None), |_| {
                    Concern::All
                }),
            own: [
                namespaced(resource("apps", "Deployment"), &weirs),
                all(resource(rbac, "ClusterRole"), Some(&weirs)),
                all(resource(rbac, "ClusterRoleBinding"), Some(&weirs)),
            ]
            .map(|watch| watches.keep(watch, |_| Concern::All)),
            namespace: watches.keep(namespace, |_| Concern::All),
            failures: Arc::clone(&watches.failures),
        };
        (cluster, receiver)
    }

    /// Waits until the cache of every watched kind of object has its first complete list.
    pub(crate) async fn wait_for_caches(&self) {
        // A wait fails only if the watch's task has ended, which it does with the process.
        let _filled = tokio::join!(
            self.revisions.wait_until_ready(),
            self.autoscalers.wait_until_ready(),
            self.services.wait_until_ready(),
            self.endpoints.wait_until_ready(),
            self.slices.wait_until_ready(),
            self.pods.wait_until_ready(),
            self.detached.wait_until_ready(),
            self.network.wait_until_ready(),
            self.runtime_classes.wait_until_ready(),
        );
        for own in self.own.iter().chain([&self.namespace]) {
            let _filled = own.wait_until_ready().await;
        }
    }

    /// Returns whether there is a RuntimeClass of this name.
    pub(crate) fn has_runtime_class(&self, name: &str) -> bool {
        let classes = self.runtime_classes.state();
        classes.iter().any(|class| class.name_any() == name)
    }

    /// Returns the number of failures of watches since the start.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Returns whether Weir is being removed from the cluster: one of its objects with the finalizer, or its namespace,
    /// is being deleted.
    pub(crate) fn is_leaving(&self) -> bool {
        let own = self.own.iter().flat_map(Store::state);
        let kept = own.filter(|object| object.finalizers().iter().any(|own| own == FINALIZER));
        let all = kept.chain(self.namespace.state());
        all.into_iter()
            .any(|object| object.metadata.deletion_timestamp.is_some())
    }
}

/// Returns the kind of PodAutoscalers.
pub(crate) fn autoscaler_kind() -> kube::api::ApiResource {
    kube::api::ApiResource {
        version: "v1alpha1".to_owned(),
        api_version: "autoscaling.internal.knative.dev/v1alpha1".to_owned(),
        ..resource("autoscaling.internal.knative.dev", "PodAutoscaler")
    }
}

fn revision_of(namespace: Option<String>, name: Option<String>) -> Concern {
    namespace
        .zip(name)
        .map_or(Concern::All, |(namespace, name)| {
            Concern::Revision(namespace, name)
        })
}

fn typed<K>(client: &Client, labels: &str) -> (Api<K>, watcher::Config, ())
where
    K: Resource<DynamicType = ()>,
{
    (Api::all(client.clone()), watch_config(Some(labels)), ())
}

impl Watches {
    /// Returns a cache that is kept current by a task of its own.
    fn keep<K>(
        &self,
        (api, config, kind): (Api<K>, watcher::Config, K::DynamicType),
        concern: impl Fn(&K) -> Concern + Send + 'static,
    ) -> Store<K>
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        K::DynamicType: Eq + Hash + Clone + Debug + Send + Sync,
    {
        let writer = Writer::new(kind.clone());
        let store = writer.as_reader();
        let events = reflect(
            writer,
            watcher(api, config).default_backoff().modify(|object| {
                // They are often longer than the rest of the object.
                object.managed_fields_mut().clear();
            }),
        );
        let watches = self.clone();
        let kind = K::kind(&kind).into_owned();
        tokio::spawn(async move {
            let mut events = Box::pin(events);
            let mut failures = 0_u64;
            while let Some(event) = events.next().await {
                let concern = match event {
                    Ok(Event::Apply(object) | Event::Delete(object)) => concern(&object),
                    // Objects deleted during the interruption are not named.
                    Ok(Event::InitDone) => {
                        failures = 0;
                        Concern::All
                    }
                    Ok(Event::Init | Event::InitApply(_)) => continue,
                    Err(error) => {
                        watches.failures.fetch_add(1, Ordering::Relaxed);
                        failures += 1;
                        if failures.is_power_of_two() {
                            tracing::warn!(%error, kind, failures, "cannot watch the Kubernetes API; the cached objects stay in use");
                        }
                        continue;
                    }
                };
                if watches.concerns.send(concern).await.is_err() {
                    return;
                }
            }
        });
        store
    }
}
