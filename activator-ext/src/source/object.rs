//! The relevant parts of Kubernetes objects, and the view which they make.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use annotations::LenientSettings;
use annotations::values::{dns_label, dns_subdomain};
use serde::{Deserialize, Deserializer};

use crate::view::{Pod, Revision, RevisionName, View};

/// The kinds of objects that are read.
pub(super) const REVISION: &str = "Revision";
pub(super) const SLICE: &str = "EndpointSlice";
/// The label of a slice with its Service's name.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Knative's labels of a revision.
const SERVICE: &str = "serving.knative.dev/service";
const CONFIGURATION: &str = "serving.knative.dev/configuration";
/// Suffix of the private Service's name, after the revision's name.
const PRIVATE: &str = "-private";
const REVISION_LABEL: &str = "serving.knative.dev/revision";
/// The label that distinguishes the public and private Services of a revision.
pub(super) const SERVICE_TYPE: &str = "networking.internal.knative.dev/serviceType";
pub(super) const PRIVATE_TYPE: &str = "Private";
/// Knative's request timeout of a revision without one, in seconds.
const TIMEOUT_DEFAULT_SECS: u64 = 300;
/// Longest timeout in seconds, ten years: a clock cannot add more.
const TIMEOUT_MAX_SECS: u64 = 10 * 365 * 86_400;
/// Names of a private Service's port for requests.
const PORTS: [&str; 2] = ["http", "http2"];

/// An object lacks a field, or has an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {why}")]
pub(crate) struct ObjectError {
    /// Kind, namespace and name of the object.
    object: String,
    /// The invalid field, and the reason.
    why: String,
}

/// An object of any kind.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Object {
    kind: String,
    #[serde(default, deserialize_with = "null_is_default")]
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    spec: Spec,
    #[serde(default, deserialize_with = "null_is_default")]
    ports: Vec<Port>,
    #[serde(default, deserialize_with = "null_is_default")]
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    namespace: String,
    name: String,
    #[serde(deserialize_with = "null_is_default")]
    labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_is_default")]
    annotations: BTreeMap<String, String>,
}

/// The relevant fields of a Revision's spec.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    container_concurrency: u32,
    timeout_seconds: Option<u64>,
    response_start_timeout_seconds: u64,
    idle_timeout_seconds: u64,
    #[serde(deserialize_with = "null_is_default")]
    containers: Vec<Container>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    startup_probe: Option<Probe>,
    readiness_probe: Option<Probe>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Probe {
    exec: Option<Exec>,
}

/// The contents of the probe are not read.
#[derive(Debug, Clone, Default, Deserialize)]
struct Exec {}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Port {
    name: String,
    port: u16,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Endpoint {
    #[serde(deserialize_with = "null_is_default")]
    addresses: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    conditions: Conditions,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Conditions {
    ready: Option<bool>,
    terminating: Option<bool>,
}

/// Returns the default for null, by which the API represents empty values in some fields.
fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Returns the view made of these objects, each with its origin. Objects of other kinds are ignored.
///
/// # Errors
///
/// Fails with the first object that lacks a field or has an invalid value.
pub(super) fn view<'a, P>(
    objects: impl Iterator<Item = (P, &'a Object)>,
) -> Result<View, (P, ObjectError)> {
    let mut revisions = BTreeMap::new();
    let mut slices = Vec::new();
    for (place, object) in objects {
        match object.kind.as_str() {
            REVISION => match object.revision() {
                Ok(revision) => drop(revisions.insert(revision.name.clone(), revision)),
                Err(error) => return Err((place, error)),
            },
            SLICE => slices.push((place, object)),
            _ => {}
        }
    }
    for (place, slice) in slices {
        let Some(name) = slice.slice_of() else {
            continue;
        };
        if let Some(revision) = revisions.get_mut(&name) {
            match slice.pods() {
                Ok(pods) => revision.pods.extend(pods),
                Err(error) => return Err((place, error)),
            }
        }
    }
    Ok(View {
        revisions: revisions
            .into_iter()
            .map(|(name, revision)| (name, Arc::new(revision)))
            .collect(),
    })
}

impl Object {
    /// Checks whether the object can be used.
    ///
    /// # Errors
    ///
    /// Fails if it lacks a field or has an invalid value.
    #[cfg(feature = "kubernetes")]
    pub(super) fn check(&self) -> Result<(), ObjectError> {
        match self.kind.as_str() {
            REVISION => self.revision().map(drop),
            SLICE => self.pods().map(drop),
            _ => Ok(()),
        }
    }

    fn wrong(&self, why: String) -> ObjectError {
        let Metadata {
            namespace, name, ..
        } = &self.metadata;
        ObjectError {
            object: format!("{} {namespace}/{name}", self.kind),
            why,
        }
    }

    /// Returns the revision described by this object, without pods.
    ///
    /// # Errors
    ///
    /// Fails if the object lacks a field or has an invalid value.
    pub(super) fn revision(&self) -> Result<Revision, ObjectError> {
        let Metadata {
            namespace,
            name,
            labels,
            annotations,
        } = &self.metadata;
        for (key, value) in [("namespace", namespace), ("name", name)] {
            if value.is_empty() {
                return Err(self.wrong(format!("metadata.{key} is missing")));
            }
        }
        dns_label(namespace).map_err(|why| self.wrong(format!("metadata.namespace: {why}")))?;
        dns_subdomain(name).map_err(|why| self.wrong(format!("metadata.name: {why}")))?;
        let label = |key| labels.get(key).cloned().unwrap_or_default();
        let spec = &self.spec;
        let container_concurrency = Some(spec.container_concurrency).filter(|&limit| limit > 0);
        let mut settings = LenientSettings::default();
        for (key, value) in annotations {
            settings.set_annotation(key, value, "");
        }
        settings.resolve(container_concurrency);
        let seconds = |seconds: u64| Duration::from_secs(seconds.min(TIMEOUT_MAX_SECS));
        let unless_zero = |time: Duration| Some(time).filter(|time| !time.is_zero());
        Ok(Revision {
            name: RevisionName {
                namespace: namespace.clone(),
                name: name.clone(),
            },
            service: label(SERVICE),
            configuration: label(CONFIGURATION),
            settings,
            container_concurrency,
            timeout: seconds(spec.timeout_seconds.unwrap_or(TIMEOUT_DEFAULT_SECS)),
            response_start_timeout: unless_zero(seconds(spec.response_start_timeout_seconds)),
            idle_timeout: unless_zero(seconds(spec.idle_timeout_seconds)),
            needs_readiness: spec.containers.iter().any(|container| {
                let readiness = container.readiness_probe.as_ref();
                container.startup_probe.is_some()
                    || readiness.is_some_and(|probe| probe.exec.is_some())
            }),
            pods: BTreeMap::new(),
        })
    }

    /// Returns the revision whose pods a slice lists; `None` if the slice is not that of a private Service.
    fn slice_of(&self) -> Option<RevisionName> {
        let labels = &self.metadata.labels;
        let service = labels.get(SERVICE_NAME)?;
        let is_private = labels
            .get(SERVICE_TYPE)
            .is_some_and(|own| own == PRIVATE_TYPE);
        // The Service's name may be shortened: Knative's label has the revision's full name. Slices written by hand may
        // have no label.
        let name = match labels.get(REVISION_LABEL).filter(|_| is_private) {
            Some(name) => name,
            None => service.strip_suffix(PRIVATE)?,
        };
        Some(RevisionName {
            namespace: self.metadata.namespace.clone(),
            name: name.to_owned(),
        })
    }

    fn pods(&self) -> Result<Vec<(SocketAddr, Pod)>, ObjectError> {
        let port = self.ports.iter().find(|port| PORTS.contains(&&*port.name));
        let port = port.map(|port| port.port).filter(|&port| port > 0);
        let mut pods = Vec::new();
        for (at, endpoint) in self.endpoints.iter().enumerate() {
            if endpoint.conditions.terminating == Some(true) {
                continue;
            }
            for (number, text) in endpoint.addresses.iter().enumerate() {
                let ip: IpAddr = text.parse().map_err(|_| {
                    let place = format!("endpoints[{at}].addresses[{number}] is {text:?}");
                    self.wrong(format!("{place}: an IP address is needed"))
                })?;
                let Some(port) = port else {
                    let names = PORTS.join(" or ");
                    let why = format!("ports: there are endpoints and no port named {names}");
                    return Err(self.wrong(why));
                };
                // Kubernetes: an unknown condition counts as ready.
                let is_ready = endpoint.conditions.ready.unwrap_or(true);
                pods.push((SocketAddr::new(ip, port), Pod { is_ready }));
            }
        }
        Ok(pods)
    }
}
