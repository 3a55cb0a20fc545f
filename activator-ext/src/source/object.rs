//! Kubernetes' objects as far as they are looked at, and the view they make.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use annotations::LenientSettings;
use annotations::values::{dns_label, dns_subdomain};
use serde::{Deserialize, Deserializer};

use crate::view::{Pod, Revision, RevisionName, View};

/// The kinds that are looked at.
pub(super) const REVISION: &str = "Revision";
pub(super) const SLICE: &str = "EndpointSlice";
/// The label by which a slice names its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Knative's labels of a revision.
const SERVICE: &str = "serving.knative.dev/service";
const CONFIGURATION: &str = "serving.knative.dev/configuration";
/// The Service of a revision's pods has the revision's name and this.
const PRIVATE: &str = "-private";
const REVISION_LABEL: &str = "serving.knative.dev/revision";
/// Says whether a Service is the public or the private one of a revision.
pub(super) const SERVICE_TYPE: &str = "networking.internal.knative.dev/serviceType";
pub(super) const PRIVATE_TYPE: &str = "Private";
/// Knative's request timeout where a revision names none.
const TIMEOUT_DEFAULT_SECS: u64 = 300;
/// No timeout is longer than ten years: more cannot be added to a clock.
const TIMEOUT_MAX_SECS: u64 = 10 * 365 * 86_400;
/// The names of a private Service's port for requests.
const PORTS: [&str; 2] = ["http", "http2"];

/// An object lacks something, or has what is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {why}")]
pub(crate) struct ObjectError {
    /// Which: kind, namespace and name.
    object: String,
    /// What is wrong with it.
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

/// What is looked at of a Revision's.
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

/// What it runs is not looked at.
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

/// Returns the default for null: the API writes what is empty that way, too.
fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Returns what these objects, each with its place, say together. Kinds that are not known are not looked at.
///
/// # Errors
/// The first object that lacks something, or has what is not allowed.
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
    /// Makes sure that the object can be used.
    ///
    /// # Errors
    /// It lacks something, or has what is not allowed.
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

    /// Returns the revision that this is, without pods.
    ///
    /// # Errors
    /// It lacks something, or has what is not allowed.
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

    /// The revision of whose pods it is; `None`: it is none of a private Service.
    fn slice_of(&self) -> Option<RevisionName> {
        let labels = &self.metadata.labels;
        let service = labels.get(SERVICE_NAME)?;
        let is_private = labels
            .get(SERVICE_TYPE)
            .is_some_and(|own| own == PRIVATE_TYPE);
        // A long name is shortened in the Service's: Knative's label has it whole. By hand there may be none.
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
                // Kubernetes: unknown is to be taken for ready.
                let is_ready = endpoint.conditions.ready.unwrap_or(true);
                pods.push((SocketAddr::new(ip, port), Pod { is_ready }));
            }
        }
        Ok(pods)
    }
}
