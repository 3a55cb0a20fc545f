//! Facts about a revision: the obstacle to attaching it, the pods that own it, and its desired slices.

use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt as _;
use kube::api::{DynamicObject, ObjectMeta};
use kube::runtime::events::EventType;
use policy::attach::{Owner, View, owners};

use super::hash;
use super::names::{MANAGED_BY, MANAGER, MIRRORING, PART_OF, SERVICE_NAME, SKIP_MIRROR, WEIR};
use super::pods::DataPod;
use crate::view::Revision;

/// The ports of a public Service, by name, and the port on which role `data` listens for each.
const PORTS: [(&str, i32); 3] = [("http", 8012), ("http2", 8013), ("https", 8112)];

/// The reason why a revision is not attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Obstacle {
    /// The revision has no annotation of Weir.
    NotOptedIn,
    /// The revision is being deleted.
    Deleted,
    /// Weir is being removed from the cluster.
    Leaving,
    /// The revision is detached by hand, by the ConfigMap `weir-detached`.
    ByHand,
    /// The network is a mesh in which pods cannot be addressed.
    Mesh,
    /// Knative has not initialized the revision's scale yet.
    NotInitialized,
    /// The revision has no public Service.
    NoService,
    /// Kubernetes does not copy the revision's Endpoints to slices, so that Weir could not leave the path again.
    EndpointsNotMirrored,
    /// No pod of role `data` is ready and answers probes.
    NoOwner,
}

impl Obstacle {
    /// Returns the reason in conditions and events.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::NotOptedIn => "NotOptedIn",
            Self::Deleted => "Deleted",
            Self::Leaving => "Leaving",
            Self::ByHand => "DetachedByHand",
            Self::Mesh => "MeshEnabled",
            Self::NotInitialized => "NotInitialized",
            Self::NoService => "NoService",
            Self::EndpointsNotMirrored => "EndpointsNotMirrored",
            Self::NoOwner => "NoDataPodReady",
        }
    }

    /// Returns the text for conditions and events.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::NotOptedIn => "it has no weir.dev/ annotation",
            Self::Deleted => "it is being deleted",
            Self::Leaving => "Weir is being removed from the cluster",
            Self::ByHand => "the ConfigMap weir-detached names it",
            Self::Mesh => {
                "config-network has mesh-compatibility-mode: enabled, so pods cannot be addressed"
            }
            Self::NotInitialized => "Knative has not brought it up yet",
            Self::NoService => "it has no public Service",
            Self::EndpointsNotMirrored => {
                "Kubernetes does not copy the Endpoints of its public Service to EndpointSlices"
            }
            Self::NoOwner => "no pod of weir-activator is ready and answers",
        }
    }

    /// Returns the type of events about this obstacle: a warning where the operator should act.
    pub(crate) const fn kind(self) -> EventType {
        match self {
            Self::Mesh | Self::EndpointsNotMirrored | Self::NoOwner => EventType::Warning,
            _ => EventType::Normal,
        }
    }
}

/// The objects of a revision at one time.
#[derive(Debug, Default)]
pub(crate) struct RevisionObjects {
    pub(crate) autoscaler: Option<std::sync::Arc<DynamicObject>>,
    pub(crate) service: Option<Service>,
    pub(crate) endpoints: Option<Endpoints>,
    /// EndpointSlices of the revision's public Service.
    pub(crate) slices: Vec<EndpointSlice>,
}

impl RevisionObjects {
    /// Returns the slices that are managed by `manager`.
    pub(crate) fn kept_by(&self, manager: &'static str) -> impl Iterator<Item = &EndpointSlice> {
        let is_its = move |slice: &&EndpointSlice| {
            slice
                .labels()
                .get(MANAGED_BY)
                .is_some_and(|by| by == manager)
        };
        self.slices.iter().filter(is_its)
    }
}

/// The facts which are common to all revisions, or set from outside.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) is_leaving: bool,
    /// Whether the cluster's network is a mesh in which pods cannot be addressed.
    pub(crate) is_mesh: bool,
    /// Whether the revision is detached by hand.
    pub(crate) is_detached: bool,
    /// The pods of role `data` that are ready and answer probes.
    pub(crate) pods: &'a [DataPod],
}

/// The facts derived from a revision's objects.
#[derive(Debug)]
pub(crate) struct Facts {
    /// The obstacle to attaching the revision; `None` if it can be attached.
    pub(crate) obstacle: Option<Obstacle>,
    owners: Vec<Owner>,
    /// The slices that should exist, which name the owners.
    pub(crate) desired: Vec<EndpointSlice>,
    slice: Option<Vec<Owner>>,
    has_label: bool,
    is_copied: bool,
    /// Names of the pods that own the revision.
    pub(crate) owner_names: Vec<String>,
}

impl Facts {
    /// Derives the facts about a revision.
    pub(crate) fn of(
        revision: &Revision,
        is_deleted: bool,
        look: &RevisionObjects,
        around: Surroundings<'_>,
    ) -> Self {
        let has_label = look.endpoints.as_ref().is_some_and(|endpoints| {
            endpoints
                .labels()
                .get(SKIP_MIRROR)
                .is_some_and(|value| value == "true")
        });
        let is_copied = look.kept_by(MIRRORING).next().is_some();
        let function = hash(&revision.function().to_string());
        let mut pods: Vec<_> = around.pods.iter().collect();
        let mut desired = Vec::new();
        if let Some(service) = &look.service {
            // A pod without an address of the Service's families cannot own it.
            pods.retain(|pod| {
                families(service).any(|family| pod.addresses(family).next().is_some())
            });
        }
        let candidates: Vec<_> = pods.iter().map(|pod| pod.owner).collect();
        let mut chosen = Vec::new();
        owners(function, &candidates, 1, &mut chosen);
        pods.retain(|pod| chosen.contains(&pod.owner));
        if let Some(service) = &look.service {
            desired.extend(families(service).filter_map(|family| slice(service, family, &pods)));
        }
        let own: Vec<_> = look.kept_by(MANAGER).collect();
        let slice = if own.is_empty() {
            None
        } else if own.len() == desired.len()
            && desired
                .iter()
                .all(|new| own.iter().any(|old| is_same(old, new)))
        {
            Some(chosen.clone())
        } else {
            Some(Vec::new())
        };
        let obstacle = if !revision.settings.opted_in() {
            Some(Obstacle::NotOptedIn)
        } else if is_deleted {
            Some(Obstacle::Deleted)
        } else if around.is_leaving {
            Some(Obstacle::Leaving)
        } else if around.is_detached {
            Some(Obstacle::ByHand)
        } else if around.is_mesh {
            Some(Obstacle::Mesh)
        } else if !is_initialized(look.autoscaler.as_deref()) {
            Some(Obstacle::NotInitialized)
        } else if look.service.is_none() {
            Some(Obstacle::NoService)
        } else if !has_label && slice.is_none() && !is_copied {
            Some(Obstacle::EndpointsNotMirrored)
        } else {
            None
        };
        // A revision that was never attached may have the label for another reason.
        let has_label = has_label && (slice.is_some() || revision.settings.opted_in());
        Self {
            obstacle,
            owner_names: pods.iter().map(|pod| pod.name.clone()).collect(),
            owners: chosen,
            desired,
            slice,
            has_label,
            is_copied,
        }
    }

    /// Returns whether the revision's requests come to activator-ext.
    pub(crate) fn is_attached(&self) -> bool {
        self.has_label && self.slice.is_some()
    }

    /// Returns the input of `policy::attach`.
    pub(crate) fn view(&self) -> View<'_> {
        View {
            is_wanted: self.obstacle.is_none(),
            owners: &self.owners,
            slice: self.slice.as_deref(),
            has_label: self.has_label,
            is_copied: self.is_copied,
        }
    }
}

/// Returns the address families of a Service, `IPv4` and `IPv6`; without any `IPv4`.
fn families(service: &Service) -> impl Iterator<Item = &str> {
    let spec = service.spec.as_ref();
    let named = spec.and_then(|spec| spec.ip_families.as_ref());
    let default = if named.is_none_or(Vec::is_empty) {
        &["IPv4"][..]
    } else {
        &[]
    };
    named
        .into_iter()
        .flatten()
        .map(String::as_str)
        .chain(default.iter().copied())
}

fn is_initialized(autoscaler: Option<&DynamicObject>) -> bool {
    let conditions = autoscaler.and_then(|it| it.data.pointer("/status/conditions"));
    let conditions = conditions.and_then(serde_json::Value::as_array);
    conditions.into_iter().flatten().any(|condition| {
        condition["type"] == "ScaleTargetInitialized" && condition["status"] == "True"
    })
}

/// Returns the slice of one address family that names these pods; `None` if no pod has such an address.
fn slice(service: &Service, family: &str, pods: &[&DataPod]) -> Option<EndpointSlice> {
    let addresses = pods.iter().flat_map(|pod| pod.addresses(family));
    let endpoints: Vec<_> = addresses
        .map(|address| Endpoint {
            addresses: vec![address.to_string()],
            conditions: Some(EndpointConditions {
                ready: Some(true),
                serving: Some(true),
                terminating: Some(false),
            }),
            ..Endpoint::default()
        })
        .collect();
    if endpoints.is_empty() {
        return None;
    }
    let name = service.name_any();
    let spec = service.spec.as_ref();
    let ports = spec
        .and_then(|spec| spec.ports.as_ref())
        .into_iter()
        .flatten();
    let ports = ports.filter_map(|port| {
        let own = PORTS
            .iter()
            .find(|(name, _)| port.name.as_deref() == Some(name))?;
        Some(EndpointPort {
            name: Some(own.0.to_owned()),
            port: Some(own.1),
            protocol: Some("TCP".to_owned()),
            app_protocol: port.app_protocol.clone(),
        })
    });
    let labels = [
        (SERVICE_NAME, &*name),
        (MANAGED_BY, MANAGER),
        (PART_OF, WEIR),
    ];
    Some(EndpointSlice {
        address_type: family.to_owned(),
        endpoints,
        metadata: ObjectMeta {
            namespace: service.namespace(),
            name: Some(slice_name(&name, family)),
            labels: Some(
                labels
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into(),
            ),
            // The slice is deleted with its Service.
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Service".to_owned(),
                name: name.clone(),
                uid: service.uid().unwrap_or_default(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        ports: Some(ports.collect()),
    })
}

/// Returns the name of a revision's slice (contracts §5).
pub(crate) fn slice_name(service: &str, family: &str) -> String {
    if family == "IPv6" {
        format!("{service}-weir-ipv6")
    } else {
        format!("{service}-weir")
    }
}

/// Returns whether an existing slice equals the desired one.
fn is_same(old: &EndpointSlice, new: &EndpointSlice) -> bool {
    let (of_old, of_new) = (&old.metadata, &new.metadata);
    let labels = of_new.labels.iter().flatten();
    of_old.name == of_new.name
        && old.address_type == new.address_type
        && old.endpoints == new.endpoints
        && old.ports == new.ports
        && labels
            .into_iter()
            .all(|(key, value)| old.labels().get(key) == Some(value))
        && of_old.owner_references == of_new.owner_references
}
