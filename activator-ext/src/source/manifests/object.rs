//! Kubernetes' objects as far as they are looked at, and the view they make.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use annotations::LenientSettings;
use serde::Deserialize;

use super::ManifestError;
use crate::view::{Pod, Revision, RevisionName, View};

/// The label by which a slice names its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Knative's labels of a revision.
const SERVICE: &str = "serving.knative.dev/service";
const CONFIGURATION: &str = "serving.knative.dev/configuration";
/// The Service of a revision's pods has the revision's name and this.
const PRIVATE: &str = "-private";
/// Knative's request timeout where a revision names none.
const TIMEOUT_DEFAULT_SECS: u64 = 300;
/// No timeout is longer than ten years: more cannot be added to a clock.
const TIMEOUT_MAX_SECS: u64 = 10 * 365 * 86_400;
/// The names of a private Service's port for requests.
const PORTS: [&str; 2] = ["http", "http2"];

/// An object of any kind.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Object {
    kind: String,
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    ports: Vec<Port>,
    #[serde(default)]
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    namespace: String,
    name: String,
    labels: BTreeMap<String, String>,
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
    addresses: Vec<String>,
    conditions: Conditions,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Conditions {
    ready: Option<bool>,
    terminating: Option<bool>,
}

/// Returns what these objects, each of its file, say together. Kinds that are not known are not looked at.
///
/// # Errors
/// The first object that lacks something, or has what is not allowed.
pub(super) fn view<'a>(
    objects: impl Iterator<Item = (&'a Path, &'a Object)>,
) -> Result<View, ManifestError> {
    let mut revisions = BTreeMap::new();
    let mut slices = Vec::new();
    for (path, object) in objects {
        match object.kind.as_str() {
            "Revision" => {
                let revision = object.revision(path)?;
                revisions.insert(revision.name.clone(), revision);
            }
            "EndpointSlice" => slices.push((path, object)),
            _ => {}
        }
    }
    for (path, slice) in slices {
        let service = slice.metadata.labels.get(SERVICE_NAME);
        let Some(name) = service.and_then(|service| service.strip_suffix(PRIVATE)) else {
            continue;
        };
        let name = RevisionName {
            namespace: slice.metadata.namespace.clone(),
            name: name.to_owned(),
        };
        if let Some(revision) = revisions.get_mut(&name) {
            slice.add_pods(path, revision)?;
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
    fn wrong(&self, path: &Path, why: String) -> ManifestError {
        let Metadata {
            namespace, name, ..
        } = &self.metadata;
        ManifestError::Object {
            path: path.to_owned(),
            object: format!("{} {namespace}/{name}", self.kind),
            why,
        }
    }

    fn revision(&self, path: &Path) -> Result<Revision, ManifestError> {
        let Metadata {
            namespace,
            name,
            labels,
            annotations,
        } = &self.metadata;
        for (key, value) in [("namespace", namespace), ("name", name)] {
            if value.is_empty() {
                return Err(self.wrong(path, format!("metadata.{key} is missing")));
            }
        }
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

    fn add_pods(&self, path: &Path, revision: &mut Revision) -> Result<(), ManifestError> {
        let port = self.ports.iter().find(|port| PORTS.contains(&&*port.name));
        let port = port.map(|port| port.port).filter(|&port| port > 0);
        for (at, endpoint) in self.endpoints.iter().enumerate() {
            if endpoint.conditions.terminating == Some(true) {
                continue;
            }
            for (number, text) in endpoint.addresses.iter().enumerate() {
                let ip: IpAddr = text.parse().map_err(|_| {
                    let place = format!("endpoints[{at}].addresses[{number}] is {text:?}");
                    self.wrong(path, format!("{place}: an IP address is needed"))
                })?;
                let Some(port) = port else {
                    let names = PORTS.join(" or ");
                    let why = format!("ports: there are endpoints and no port named {names}");
                    return Err(self.wrong(path, why));
                };
                // Kubernetes: unknown is to be taken for ready.
                let is_ready = endpoint.conditions.ready.unwrap_or(true);
                revision
                    .pods
                    .insert(SocketAddr::new(ip, port), Pod { is_ready });
            }
        }
        Ok(())
    }
}
