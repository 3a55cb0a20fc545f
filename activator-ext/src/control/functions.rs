//! GpuFunctions (`gpufunctions.weir.dev/v1alpha1`): the status of each function, for users and for GitOps. Role
//! `control` creates, updates and deletes them; they are owned by their variants' Knative Services, and have no spec.

mod gather;
mod status;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::runtime::events::EventType;
use kube::runtime::reflector::{ObjectRef, Store, store::Writer};
use kube::runtime::watcher::watcher;
use kube::runtime::{WatchStreamExt as _, reflector};
use kube::{Client, ResourceExt as _};
use mutual_tls::Identity;
use policy::window::Window;
use proxy::clock::Clock;
use serde_json::{Value, json};

use self::gather::Gathered;
use self::status::Function;
use super::attach::Attacher;
use super::cluster::Cluster;
use super::hash;
use super::lease::Candidate;
use super::names::CONTROL;
use crate::source::kubernetes::watch_config;

/// Longest delay before the first update, during which revisions are attached.
const FIRST_MAX: Duration = Duration::from_secs(2);
/// The label with the creator of an object.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// A namespace and a name, of a function or a revision.
type Name = (String, String);

/// Maintains GpuFunctions.
pub(crate) struct Functions {
    pub(crate) client: Client,
    pub(crate) agent_namespace: String,
    /// Period at which the state of functions is gathered, and written where it has changed.
    pub(crate) period: Duration,
    pub(crate) identity: Arc<Identity>,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) attacher: Arc<Attacher>,
    pub(crate) clock: Clock,
}

/// Pods of role `data`, whether or not they answer, and opted-in revisions by namespace and name.
#[derive(Debug, Clone, Default)]
struct Existing {
    pods: HashSet<String>,
    revisions: HashSet<Name>,
}

/// The state kept from one update to the next.
#[derive(Default)]
struct Memory {
    windows: HashMap<Name, Window>,
    /// The pods and revisions that existed at the first update, as far as they still exist.
    first: Option<Existing>,
    /// Revisions without a Route for which an event has been published.
    unrouted: BTreeSet<Name>,
    /// Number of failed writes in a row.
    failures: u64,
}

/// Returns the kind of GpuFunctions.
pub(crate) fn kind() -> ApiResource {
    ApiResource {
        group: "weir.dev".to_owned(),
        version: "v1alpha1".to_owned(),
        api_version: "weir.dev/v1alpha1".to_owned(),
        kind: "GpuFunction".to_owned(),
        plural: "gpufunctions".to_owned(),
    }
}

impl Functions {
    /// Waits until this process leads, and then maintains GpuFunctions; never returns.
    pub(crate) async fn run(&self, candidate: &Candidate) {
        candidate.elected().await;
        let objects: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind());
        let writer = Writer::new(kind());
        let store = writer.as_reader();
        let watched = watcher(objects, watch_config(None)).default_backoff();
        let watched = watched.modify(|object| object.managed_fields_mut().clear());
        let mut failures = 0_u64;
        let follow = reflector(writer, watched).for_each(|event| {
            match event {
                Ok(_) => failures = 0,
                Err(error) => {
                    failures += 1;
                    // The definition of GpuFunctions is not installed yet, or has been deleted.
                    if failures.is_power_of_two() {
                        tracing::info!(%error, failures, "cannot watch GpuFunctions");
                    }
                }
            }
            std::future::ready(())
        });
        let (mut follow, mut keep) = (pin!(follow), pin!(self.keep(&store, candidate)));
        tokio::select! {
            () = &mut follow => {}
            () = &mut keep => {}
        }
    }

    async fn keep(&self, store: &Store<DynamicObject>, candidate: &Candidate) {
        self.cluster.wait_for_caches().await;
        // It fails only if the watch has ended, which it does with the process.
        let _filled = store.wait_until_ready().await;
        let mut memory = Memory::default();
        let start = tokio::time::Instant::now() + self.period.min(FIRST_MAX);
        let mut tick = tokio::time::interval_at(start, self.period);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let gathered = self.gather(&mut memory).await;
            self.report_unrouted(&gathered, &mut memory).await;
            if gathered.is_unanswered {
                // The status last written stays, as there is no newer information.
                tracing::warn!("no pod of role `data` reports the state of functions");
                continue;
            }
            for (name, found) in &gathered.functions {
                if !candidate.leads() || self.cluster.is_leaving() {
                    break;
                }
                let old = store.get(&object_ref(name));
                let function = Function {
                    variants: found.variants.clone(),
                    ejected: found.ejected,
                    silent_agents: gathered.silent_agents,
                    requests: memory.windows.get(name),
                };
                let written = self
                    .write(name, &found.owners, old.as_deref(), &function)
                    .await;
                memory.note(written);
            }
            for object in store.state() {
                if !candidate.leads() || self.cluster.is_leaving() {
                    break;
                }
                let name = (object.namespace().unwrap_or_default(), object.name_any());
                if is_own(&object) && !gathered.functions.contains_key(&name) {
                    let deleted = self.delete(&name, &object).await;
                    memory.note(deleted);
                }
            }
        }
    }

    fn objects(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &kind())
    }

    /// Creates or updates a function's object and status where they differ from what they should be.
    async fn write(
        &self,
        name: &Name,
        owners: &[Value],
        old: Option<&DynamicObject>,
        function: &Function<'_>,
    ) -> Result<(), kube::Error> {
        let (namespace, own) = name;
        let objects = self.objects(namespace);
        let parameters = PatchParams::apply(CONTROL).force();
        let head = |metadata: Value| json!({"apiVersion": "weir.dev/v1alpha1", "kind": "GpuFunction", "metadata": metadata});
        let made = if old.is_some_and(|old| is_own(old) && owners_of(old) == owners) {
            None
        } else {
            let object = Patch::Apply(head(json!({
                "name": own,
                "namespace": namespace,
                "labels": {MANAGED_BY: CONTROL},
                "ownerReferences": owners,
            })));
            Some(objects.patch(own, &parameters, &object).await?)
        };
        let generation = made.as_ref().or(old).and_then(|it| it.metadata.generation);
        let before = old.map_or(&Value::Null, |old| &old.data["status"]);
        // Conditions have a resolution of one second.
        let clock = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let status = function.status(self.clock.now(), &clock, generation.unwrap_or(1), before);
        if made.is_none() && *before == status {
            return Ok(());
        }
        let mut object = head(json!({"name": own, "namespace": namespace}));
        object["status"] = status;
        objects
            .patch_status(own, &parameters, &Patch::Apply(object))
            .await
            .map(drop)
    }

    async fn delete(&self, name: &Name, object: &DynamicObject) -> Result<(), kube::Error> {
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: object.metadata.uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match self.objects(&name.0).delete(&name.1, &parameters).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Publishes one event for each variant that no Route names: it gets no requests, and Knative does not start it.
    async fn report_unrouted(&self, gathered: &Gathered, memory: &mut Memory) {
        memory
            .unrouted
            .retain(|name| gathered.unrouted.contains_key(name));
        for (name, object) in &gathered.unrouted {
            if !memory.unrouted.insert(name.clone()) {
                continue;
            }
            let note = "its function has other variants, but no Route names this one, so Knative does not start it: give it a Knative Service of its own, or a tag";
            self.attacher
                .publish(object, "NoRoute", note.to_owned(), EventType::Warning)
                .await;
        }
    }
}

impl Memory {
    fn note(&mut self, written: Result<(), kube::Error>) {
        match written {
            Ok(()) => self.failures = 0,
            Err(error) => {
                self.failures += 1;
                if self.failures.is_power_of_two() {
                    let failures = self.failures;
                    tracing::warn!(%error, failures, "cannot write a GpuFunction; it is retried");
                }
            }
        }
    }

    /// Records the counts of pods of role `data`. Counts of a pod and a revision which both existed at the first update
    /// may date from any time before: their increase counts from the first answer on. All other counts began after the
    /// first update.
    fn observe(
        &mut self,
        now: policy::Time,
        counted: &[gather::RevisionCounts],
        existing: Existing,
    ) {
        let first = self.first.get_or_insert_with(|| existing.clone());
        for gather::RevisionCounts {
            function,
            pod,
            revision,
            counts,
        } in counted
        {
            let own = (function.0.clone(), revision.clone());
            let is_new = !first.pods.contains(pod) || !first.revisions.contains(&own);
            let window = self.windows.entry(function.clone()).or_default();
            window.observe(now, source(pod, revision), *counts, is_new);
        }
        // A pod or revision that has the name again is another one.
        first.pods.retain(|pod| existing.pods.contains(pod));
        first
            .revisions
            .retain(|revision| existing.revisions.contains(revision));
        // The counts of a pod that temporarily does not answer, or of a revision that temporarily is no variant,
        // continue afterwards.
        let mut kept: HashMap<&str, HashSet<u64>> = HashMap::new();
        for (namespace, revision) in &existing.revisions {
            let sources = existing.pods.iter().map(|pod| source(pod, revision));
            kept.entry(namespace).or_default().extend(sources);
        }
        for ((namespace, _), window) in &mut self.windows {
            let kept = kept.get(namespace.as_str());
            window.retain(|source| kept.is_some_and(|kept| kept.contains(&source)));
        }
    }
}

/// Returns the key in a window for the counts of a revision by a pod.
fn source(pod: &str, revision: &str) -> u64 {
    hash(&format!("{pod}/{revision}"))
}

fn object_ref(name: &Name) -> ObjectRef<DynamicObject> {
    ObjectRef::new_with(&name.1, kind()).within(&name.0)
}

fn is_own(object: &DynamicObject) -> bool {
    object
        .labels()
        .get(MANAGED_BY)
        .is_some_and(|by| by == CONTROL)
}

/// Returns the owner references of an object, in the form in which they are written.
fn owners_of(object: &DynamicObject) -> Vec<Value> {
    let owners = object.owner_references().iter();
    owners
        .map(|owner| {
            json!({
                "apiVersion": owner.api_version,
                "kind": owner.kind,
                "name": owner.name,
                "uid": owner.uid,
            })
        })
        .collect()
}
