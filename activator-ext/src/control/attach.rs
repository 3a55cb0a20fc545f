//! Attaches revisions and detaches them. `policy::attach` decides on the next step, first by the caches, and before
//! each write once more by the API's current objects.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions,
};
use kube::runtime::controller::{Action, Config, ReconcileRequest, applier};
use kube::runtime::events::{Event, EventType, Recorder};
use kube::runtime::reflector::ObjectRef;
use kube::{Client, Resource as _, ResourceExt as _};
use policy::Time;
use policy::attach::{Attachment, Step};
use proxy::clock::Clock;
use serde_json::json;

use super::cluster::{Cluster, Concern, autoscaler_kind, revision_kind};
use super::facts::{Facts, Obstacle, RevisionObjects, Surroundings};
use super::lease::Candidate;
use super::live::Feed;
use super::metrics::Metrics;
use super::names::{ALL, DETACHED, MANAGER, MESH_MODE, SERVICE_NAME, SKIP_MIRROR, detached_key};
use super::pods::DataPods;
use crate::source::kubernetes::{CONFIG_NETWORK, revision};
use crate::view::RevisionName;

/// Largest number of steps of one revision in a row. More are needed only while other writers change the same objects.
const STEPS_MAX: usize = 16;
/// Number of revisions that are reconciled at a time.
const CONCURRENCY: u16 = 16;
/// Delay before a revision is reconciled again after an error.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Period at which each revision is reconciled even if no change of it is observed.
const LOOK_PERIOD: Duration = Duration::from_secs(3_600);

/// The reason why a revision could not be reconciled. It is retried after [`RETRY_AFTER`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("its Endpoints or slices are changed concurrently")]
    Contended,
    #[error("another process leads now")]
    NotLeading,
}

/// The state kept of a revision between reconciliations.
#[derive(Debug, Clone, Default)]
struct Memory {
    attachment: Attachment,
    /// Status reported last: whether the revision is attached, and the obstacle to attaching it.
    reported: Option<(bool, Option<Obstacle>)>,
    /// Whether the problems of the revision's annotations have been reported.
    is_reviewed: bool,
}

/// Reconciles revisions.
pub(crate) struct Attacher {
    pub(crate) writer: Writer,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) pods: DataPods,
    pub(crate) candidate: Arc<Candidate>,
    pub(crate) recorder: Recorder,
    pub(crate) metrics: Metrics,
    pub(crate) clock: Clock,
    /// Recent events, for the live page.
    pub(crate) feed: Feed,
    memory: Mutex<HashMap<RevisionName, Memory>>,
}

impl std::fmt::Debug for Attacher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attacher").finish_non_exhaustive()
    }
}

/// Reads and writes the objects of a revision.
#[derive(Clone)]
pub(crate) struct Writer {
    client: Client,
}

impl Attacher {
    pub(crate) fn new(
        client: Client,
        cluster: Arc<Cluster>,
        candidate: Arc<Candidate>,
        recorder: Recorder,
        metrics: Metrics,
        clock: Clock,
    ) -> Self {
        Self {
            writer: Writer::new(client),
            cluster,
            pods: DataPods::default(),
            candidate,
            recorder,
            metrics,
            clock,
            feed: Feed::default(),
            memory: Mutex::default(),
        }
    }

    /// Reconciles every revision with an observed change, until the process ends.
    pub(crate) async fn run(
        self: Arc<Self>,
        concerns: impl Stream<Item = Concern> + Send + 'static,
    ) {
        let attacher = Arc::clone(&self);
        let requests = concerns.flat_map(move |concern| stream::iter(attacher.requests(&concern)));
        let requests = requests.map(Ok::<_, Infallible>);
        let work = applier(
            |revision, attacher: Arc<Self>| {
                Box::pin(async move { attacher.reconcile(&revision).await })
            },
            |revision, error, attacher: Arc<Self>| attacher.failed(&revision, error),
            Arc::clone(&self),
            self.cluster.revisions.clone(),
            Box::pin(requests),
            Config::default().concurrency(CONCURRENCY),
        );
        // Outcomes have been logged and counted already.
        work.for_each(|_| std::future::ready(())).await;
    }

    fn requests(&self, concern: &Concern) -> Vec<ReconcileRequest<DynamicObject>> {
        let kind = revision_kind();
        let named = |namespace: &str, name: &str| {
            ObjectRef::new_with(name, kind.clone())
                .within(namespace)
                .into()
        };
        match concern {
            Concern::Revision(namespace, name) => {
                let request = named(namespace, name);
                let request: ReconcileRequest<DynamicObject> = request;
                if self.cluster.revisions.get(&request.obj_ref).is_none() {
                    let name = RevisionName {
                        namespace: namespace.clone(),
                        name: name.clone(),
                    };
                    self.forget(&name);
                    return Vec::new();
                }
                vec![request]
            }
            Concern::All => {
                let all = self.cluster.revisions.state();
                let known: std::collections::HashSet<_> =
                    all.iter().map(|it| name_of(it)).collect();
                let gone: Vec<_> = {
                    let memory = self.lock();
                    memory
                        .keys()
                        .filter(|name| !known.contains(name))
                        .cloned()
                        .collect()
                };
                gone.iter().for_each(|name| self.forget(name));
                known
                    .iter()
                    .map(|name| named(&name.namespace, &name.name))
                    .collect()
            }
        }
    }

    /// Returns whether this process may take steps: it leads, or Weir is being removed from the cluster. In the second
    /// case the Lease is deleted with its namespace, so that no process can hold it; only detaching remains, which
    /// several processes may do at a time.
    fn may_write(&self) -> bool {
        self.candidate.leads() || self.cluster.is_leaving()
    }

    fn forget(&self, name: &RevisionName) {
        if self.lock().remove(name).is_some() {
            self.metrics.forget(name);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RevisionName, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a revision is attached, and the obstacle to attaching it, as reported last; `None` if the
    /// revision has not been reconciled yet.
    pub(crate) fn reported_status(&self, name: &RevisionName) -> Option<(bool, Option<Obstacle>)> {
        self.lock().get(name)?.reported
    }

    fn failed(&self, revision: &DynamicObject, error: &AttachError) -> Action {
        self.metrics.reconciles("failed");
        tracing::warn!(%error, revision = %name_of(revision), "cannot be attached or detached yet");
        Action::requeue(RETRY_AFTER)
    }

    async fn reconcile(&self, object: &DynamicObject) -> Result<Action, AttachError> {
        if !self.may_write() {
            return Err(AttachError::NotLeading);
        }
        let mut look = self.cached(object);
        let mut is_fresh = false;
        for _ in 0..STEPS_MAX {
            // A revision that cannot be parsed is treated as missing.
            let Some(facts) = self.facts(object, &look) else {
                return Ok(Action::await_change());
            };
            let now = self.clock.now();
            let step = self.decide(object, &facts, now);
            match step {
                Step::Rest(until) => {
                    self.report(object, &facts).await;
                    self.metrics.reconciles("done");
                    return Ok(Action::requeue(until.map_or(LOOK_PERIOD, |until| {
                        Duration::from_nanos(until.since(now).0).max(Duration::from_millis(1))
                    })));
                }
                step if is_fresh => {
                    if !self.may_write() {
                        return Err(AttachError::NotLeading);
                    }
                    match self.writer.take(step, object, &look, &facts).await {
                        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                        other => other?,
                    }
                }
                _ => {}
            }
            look = self.writer.look(object).await?;
            look.autoscaler = self.autoscaler(object);
            is_fresh = true;
        }
        Err(AttachError::Contended)
    }

    fn decide(&self, object: &DynamicObject, facts: &Facts, now: Time) -> Step {
        let mut memory = self.lock();
        let memory = memory.entry(name_of(object)).or_default();
        // The state at the first reconciliation is no change.
        let found = (facts.is_attached(), None);
        memory.reported.get_or_insert(found);
        memory.attachment.next(now, &facts.view())
    }

    /// Returns the cached objects of a revision.
    fn cached(&self, object: &DynamicObject) -> RevisionObjects {
        let RevisionName { namespace, name } = name_of(object);
        let service = self
            .cluster
            .services
            .get(&ObjectRef::new(&name).within(&namespace));
        let endpoints = self
            .cluster
            .endpoints
            .get(&ObjectRef::new(&name).within(&namespace));
        let is_its = |slice: &EndpointSlice| {
            slice.labels().get(SERVICE_NAME) == Some(&name)
                && slice.namespace().as_deref() == Some(&namespace)
        };
        let slices = self.cluster.slices.state_filter(is_its);
        RevisionObjects {
            autoscaler: self.autoscaler(object),
            service: service.as_deref().cloned(),
            endpoints: endpoints.as_deref().cloned(),
            slices: slices
                .iter()
                .map(|slice| EndpointSlice::clone(slice))
                .collect(),
        }
    }

    fn autoscaler(&self, object: &DynamicObject) -> Option<Arc<DynamicObject>> {
        let RevisionName { namespace, name } = name_of(object);
        let its = ObjectRef::new_with(&name, autoscaler_kind()).within(&namespace);
        self.cluster.autoscalers.get(&its)
    }

    fn facts(&self, object: &DynamicObject, look: &RevisionObjects) -> Option<Facts> {
        let revision = revision(object)?;
        let network = self.cluster.network.state();
        let network = network.iter().find(|map| map.name_any() == CONFIG_NETWORK);
        let mesh = network.and_then(|map| map.data.as_ref()?.get(MESH_MODE));
        let pods = self.pods.good(&self.cluster.pods);
        let around = Surroundings {
            is_leaving: self.cluster.is_leaving(),
            is_mesh: mesh.is_some_and(|mode| mode.eq_ignore_ascii_case("enabled")),
            is_detached: self.is_detached(&revision.name),
            pods: &pods,
        };
        let is_deleted = object.metadata.deletion_timestamp.is_some();
        Some(Facts::of(&revision, is_deleted, look, around))
    }

    /// Returns whether a revision is detached by hand, by the ConfigMap `weir-detached`.
    fn is_detached(&self, name: &RevisionName) -> bool {
        let maps = self.cluster.detached.state();
        let map = maps.iter().find(|map| map.name_any() == DETACHED);
        let key = detached_key(&name.namespace, &name.name);
        map.is_some_and(|map| {
            let keys = map.data.iter().flatten().map(|(key, _)| key);
            keys.into_iter().any(|own| own == ALL || *own == key)
        })
    }

    /// Exports a revision's status as metrics, and publishes an event for each change of it.
    async fn report(&self, object: &DynamicObject, facts: &Facts) {
        let name = name_of(object);
        let opted_in = facts.obstacle != Some(Obstacle::NotOptedIn);
        let is_attached = facts.is_attached();
        let obstacle = match facts.obstacle {
            None if !is_attached => Some(Obstacle::NoOwner),
            other => other,
        };
        if opted_in {
            let label = revision(object).map(|it| it.label().to_owned());
            self.metrics
                .attached(&name, &label.unwrap_or_default(), is_attached);
        } else {
            self.metrics.forget(&name);
        }
        let (before, is_reviewed) = {
            let mut memory = self.lock();
            let memory = memory.entry(name).or_default();
            let is_reviewed = std::mem::replace(&mut memory.is_reviewed, true);
            (
                memory.reported.replace((is_attached, obstacle)),
                is_reviewed,
            )
        };
        // A revision's annotations are immutable.
        if !is_reviewed && let Some(revision) = revision(object) {
            for problem in &revision.settings.problems {
                self.publish(
                    object,
                    "AnnotationIgnored",
                    problem.clone(),
                    EventType::Warning,
                )
                .await;
            }
        }
        if before == Some((is_attached, obstacle)) {
            return;
        }
        let was_attached = before.is_some_and(|(was_attached, _)| was_attached);
        let event = match obstacle {
            _ if is_attached && was_attached => None,
            _ if is_attached => {
                let names = facts.owner_names.join(", ");
                let note = format!("requests come to activator-ext, to {names}");
                Some(("Attached", note, EventType::Normal))
            }
            Some(obstacle) if was_attached => {
                let note = format!("requests go Knative's way: {}", obstacle.text());
                Some(("Detached", note, obstacle.kind()))
            }
            Some(obstacle) if obstacle.kind() == EventType::Warning => {
                let note = format!("cannot be attached: {}", obstacle.text());
                Some((obstacle.reason(), note, EventType::Warning))
            }
            _ => None,
        };
        if let Some((reason, note, type_)) = event {
            self.publish(object, reason, note, type_).await;
        }
    }

    /// Publishes an event of a revision.
    pub(crate) async fn publish(
        &self,
        object: &DynamicObject,
        reason: &str,
        note: String,
        type_: EventType,
    ) {
        tracing::info!(revision = %name_of(object), reason, "{note}");
        self.feed.push(reason, name_of(object).to_string(), &note);
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note),
            action: "Route".to_owned(),
            secondary: None,
        };
        let of = object.object_ref(&revision_kind());
        if let Err(error) = self.recorder.publish(&event, &of).await {
            tracing::info!(%error, "cannot write an event");
        }
    }
}

impl Writer {
    pub(crate) const fn new(client: Client) -> Self {
        Self { client }
    }

    /// Reads a revision's objects from the API, except its PodAutoscaler.
    pub(crate) async fn look(
        &self,
        object: &DynamicObject,
    ) -> Result<RevisionObjects, kube::Error> {
        let RevisionName { namespace, name } = name_of(object);
        let slices = ListParams::default().labels(&format!("{SERVICE_NAME}={name}"));
        let (services, endpoints, all) = (
            self.services(&namespace),
            self.endpoints(&namespace),
            self.slices(&namespace),
        );
        let (service, endpoints, slices) = tokio::try_join!(
            services.get_opt(&name),
            endpoints.get_opt(&name),
            all.list(&slices),
        )?;
        Ok(RevisionObjects {
            autoscaler: None,
            service,
            endpoints,
            slices: slices.items,
        })
    }

    fn services(&self, namespace: &str) -> Api<Service> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn endpoints(&self, namespace: &str) -> Api<Endpoints> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn slices(&self, namespace: &str) -> Api<EndpointSlice> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Takes a step. Fails with a conflict (409) or not found (404) if an object was changed or deleted since the look.
    pub(crate) async fn take(
        &self,
        step: Step,
        object: &DynamicObject,
        look: &RevisionObjects,
        facts: &Facts,
    ) -> Result<(), kube::Error> {
        let RevisionName { namespace, name } = name_of(object);
        let own: Vec<_> = look.kept_by(MANAGER).collect();
        match step {
            Step::Rest(_) => {}
            Step::Write => {
                for new in &facts.desired {
                    let old = own
                        .iter()
                        .find(|old| old.metadata.name == new.metadata.name);
                    self.put(&namespace, old.copied(), new.clone()).await?;
                }
                let is_left = |old: &&EndpointSlice| {
                    let mut desired = facts.desired.iter();
                    !desired.any(|new| new.metadata.name == old.metadata.name)
                };
                for old in own.iter().copied().filter(is_left) {
                    self.delete(&namespace, old).await?;
                }
            }
            Step::SetLabel | Step::ClearLabel => {
                let value = (step == Step::SetLabel).then_some("true");
                let endpoints = look.endpoints.as_ref();
                let version = endpoints.and_then(|it| it.metadata.resource_version.as_deref());
                let patch = json!({"metadata": {"resourceVersion": version, "labels": {SKIP_MIRROR: value}}});
                let parameters = PatchParams::default();
                let api = self.endpoints(&namespace);
                api.patch(&name, &parameters, &Patch::Merge(patch)).await?;
            }
            Step::DeleteSlice => {
                for old in own {
                    self.delete(&namespace, old).await?;
                }
            }
        }
        tracing::debug!(%namespace, name, ?step, "taken");
        Ok(())
    }

    async fn put(
        &self,
        namespace: &str,
        old: Option<&EndpointSlice>,
        mut new: EndpointSlice,
    ) -> Result<(), kube::Error> {
        let api = self.slices(namespace);
        let parameters = PostParams::default();
        match old {
            // The address type of a slice is immutable.
            Some(old) if old.address_type == new.address_type => {
                new.metadata
                    .resource_version
                    .clone_from(&old.metadata.resource_version);
                api.replace(&old.name_any(), &parameters, &new).await?;
            }
            Some(old) => {
                self.delete(namespace, old).await?;
                api.create(&parameters, &new).await?;
            }
            None => drop(api.create(&parameters, &new).await?),
        }
        Ok(())
    }

    async fn delete(&self, namespace: &str, slice: &EndpointSlice) -> Result<(), kube::Error> {
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                resource_version: slice.metadata.resource_version.clone(),
                uid: slice.metadata.uid.clone(),
            }),
            ..DeleteParams::default()
        };
        let api = self.slices(namespace);
        api.delete(&slice.name_any(), &parameters).await.map(drop)
    }
}

pub(crate) fn name_of(object: &DynamicObject) -> RevisionName {
    RevisionName {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
    }
}
