//! Setup of the checks: a namespace, functions in it, and Weir from its manifests.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::load::Target;
use crate::options::Options;
use crate::{gpu, kubectl};

/// Namespace of the checks' functions.
pub(crate) const NAMESPACE: &str = "weir-check";
/// Longest wait for a condition.
pub(crate) const SOON: Duration = Duration::from_secs(120);
/// Label selector of EndpointSlices written by Weir.
pub(crate) const WRITTEN_BY_WEIR: &str =
    "endpointslice.kubernetes.io/managed-by=activator-ext.weir.dev";

/// A function of the checks.
#[derive(Debug, Clone)]
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    /// Service time of a request.
    pub(crate) takes: Duration,
    /// `containerConcurrency` of the function, the number of concurrent requests at a pod.
    pub(crate) concurrency: u32,
    /// Size of the weights of a function that computes on a GPU, as model-server reads it; `None` for one that computes on none.
    pub(crate) weights: Option<&'a str>,
    /// Annotations of the function's template, by key.
    pub(crate) annotations: &'a [(&'a str, &'a str)],
    /// `spec.traffic` of the function's Service; `None` for all to the newest revision.
    pub(crate) traffic: Option<Value>,
}

/// Annotation which opts a revision in.
pub(crate) const OPTED_IN: [(&str, &str); 1] = [("weir.dev/slo", "2s")];
/// Programs with images named in the manifests.
const PROGRAMS: [&str; 4] = ["activator-ext", "queue-proxy", "gpu-sidecar", "weir"];

impl Function<'_> {
    /// Returns the Knative Service as JSON.
    pub(crate) fn manifest(&self, options: &Options) -> Value {
        let own = self
            .annotations
            .iter()
            .map(|&(key, value)| (key, json!(value)));
        let mut annotations: BTreeMap<_, _> = own.collect();
        annotations
            .entry("autoscaling.knative.dev/window")
            .or_insert_with(|| json!("10s"));
        let environment = if let Some(weights) = self.weights {
            gpu::environment(self.takes, self.concurrency, weights)
        } else {
            let concurrency = self.concurrency.clamp(1, 128).to_string();
            vec![
                json!({"name": "MODEL_DEVICE", "value": "cpu"}),
                json!({"name": "MODEL_FIXED_US", "value": self.takes.as_micros().to_string()}),
                json!({"name": "MODEL_CONCURRENCY", "value": concurrency}),
            ]
        };
        let container = json!({
            "image": options.image("model-server"),
            "imagePullPolicy": "IfNotPresent",
            "env": environment,
            "readinessProbe": {"httpGet": {"path": "/ready"}},
            "resources": {"requests": {"cpu": "20m", "memory": "32Mi"}},
        });
        let mut service = json!({
            "apiVersion": "serving.knative.dev/v1",
            "kind": "Service",
            "metadata": {"namespace": NAMESPACE, "name": self.name},
            "spec": {"template": {
                "metadata": {"annotations": annotations},
                "spec": {"containerConcurrency": self.concurrency, "containers": [container]},
            }},
        });
        if let Some(traffic) = &self.traffic {
            service["spec"]["traffic"] = traffic.clone();
        }
        service
    }

    /// Creates or updates the Service, and waits until it is ready.
    pub(crate) async fn apply(&self, options: &Options) -> anyhow::Result<()> {
        let manifest = self.manifest(options).to_string();
        kubectl::run_with(&["apply", "-f", "-"], &manifest)?;
        let what = format!("Service {} is ready", self.name);
        kubectl::until(&what, SOON, || Ok(is_ready(&service(self.name)?))).await?;
        Ok(())
    }

    /// Returns the destination of requests to the function.
    pub(crate) fn target(&self, options: &Options) -> anyhow::Result<Target> {
        let service = service(self.name)?;
        let url = service["status"]["url"].as_str().unwrap_or_default();
        let host = url.split("//").nth(1).context("the Service has no URL")?;
        Ok(Target {
            gateway: options.gateway,
            host: host.to_owned(),
        })
    }

    /// Returns the name of the function's newest ready revision.
    pub(crate) fn revision(&self) -> anyhow::Result<String> {
        let service = service(self.name)?;
        let name = service["status"]["latestReadyRevisionName"].as_str();
        Ok(name.context("no revision is ready")?.to_owned())
    }
}

fn service(name: &str) -> anyhow::Result<Value> {
    let found = kubectl::get(&["ksvc", "-n", NAMESPACE, name])?;
    found.with_context(|| format!("Service {name} is missing"))
}

/// Returns whether a Knative Service is ready in its current generation.
pub(crate) fn is_ready(service: &Value) -> bool {
    let mut conditions = service["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    let is_seen = service["status"]["observedGeneration"] == service["metadata"]["generation"];
    is_seen && conditions.any(|it| it["type"] == "Ready" && it["status"] == "True")
}

/// Creates the namespace of the checks, after one of an earlier run has been deleted.
pub(crate) async fn create_namespace() -> anyhow::Result<()> {
    let is_leaving = || -> anyhow::Result<bool> {
        let found = kubectl::get(&["namespace", NAMESPACE])?;
        Ok(found.is_some_and(|it| it["status"]["phase"] == "Terminating"))
    };
    let what = format!("the old namespace {NAMESPACE} has gone");
    kubectl::until(&what, Duration::from_secs(600), || Ok(!is_leaving()?)).await?;
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    kubectl::run_with(&["apply", "-f", "-"], &namespace.to_string()).map(drop)
}

/// Weir's manifests with the options' images, in a temporary folder.
#[derive(Debug)]
pub(crate) struct Overlay(TempDir);

impl Overlay {
    /// Copies the manifests and writes an overlay with these images.
    pub(crate) fn new(options: &Options, images: &str) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let manifests: PathBuf =
            fs::canonicalize("manifests").context("run this program in the repository's root")?;
        let overlay = manifests.join("overlays").join(&options.overlay);
        ensure!(overlay.is_dir(), "{} is not a folder", overlay.display());
        // Kustomize names resources outside of the folder by relative paths only.
        copy(&manifests, &folder.path().join("manifests"))?;
        let mut text = format!(
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [manifests/overlays/{}]\n\
             configurations: [manifests/overlays/kourier/images.yaml]\nimages:\n",
            options.overlay
        );
        for program in PROGRAMS {
            let image = options.image_of(images, program);
            let (name, tag) = image.rsplit_once(':').context("an image with a tag")?;
            text += &format!(
                "- {{ name: ghcr.io/weir/{program}, newName: {name}, newTag: {tag:?} }}\n"
            );
        }
        fs::write(folder.path().join("kustomization.yaml"), text)?;
        Ok(Self(folder))
    }

    /// Replaces a text of one of the copied manifests, which has it.
    pub(crate) fn replace(&self, file: &str, text: &str, by: &str) -> anyhow::Result<()> {
        let path = self.0.path().join("manifests").join(file);
        let old = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        ensure!(old.contains(text), "{file} does not contain {text:?}");
        Ok(fs::write(&path, old.replacen(text, by, 1))?)
    }

    /// Runs `kubectl apply -k` or `kubectl delete -k`.
    pub(crate) fn run(&self, verb: &str) -> anyhow::Result<()> {
        let folder = self.0.path().display().to_string();
        kubectl::run(&[verb, "-k", &folder]).map(drop)
    }
}

fn copy(from: &std::path::Path, to: &std::path::Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &place)?;
        } else {
            fs::copy(entry.path(), place)?;
        }
    }
    Ok(())
}

/// Returns the addresses of pods that own a revision; empty if it is Knative's alone.
pub(crate) fn owners(revision: &str) -> anyhow::Result<Vec<String>> {
    let labels = format!("{WRITTEN_BY_WEIR},kubernetes.io/service-name={revision}");
    let slices = kubectl::list(&["endpointslices", "-n", NAMESPACE, "-l", &labels])?;
    let endpoints = kubectl::get(&["endpoints", "-n", NAMESPACE, revision])?.unwrap_or_default();
    let is_skipped =
        endpoints["metadata"]["labels"]["endpointslice.kubernetes.io/skip-mirror"] == "true";
    if !is_skipped {
        return Ok(Vec::new());
    }
    let endpoints = slices
        .iter()
        .flat_map(|it| it["endpoints"].as_array().into_iter().flatten());
    let addresses = endpoints.filter_map(|it| it["addresses"][0].as_str());
    Ok(addresses.map(str::to_owned).collect())
}

/// Waits until a revision is attached; returns the time taken.
pub(crate) async fn attached(revision: &str) -> anyhow::Result<Duration> {
    let what = format!("{revision} is attached");
    kubectl::until(&what, SOON, || Ok(!owners(revision)?.is_empty())).await
}

/// Waits until a revision is detached and no object of Weir's is left of it; returns the time taken.
pub(crate) async fn detached(revision: &str) -> anyhow::Result<Duration> {
    let what = format!("{revision} is detached");
    let slice = format!("{revision}-weir");
    kubectl::until(&what, SOON, || {
        let left = kubectl::get(&["endpointslice", "-n", NAMESPACE, &slice])?;
        Ok(left.is_none() && owners(revision)?.is_empty())
    })
    .await
}

/// Returns Knative's objects by kind, namespace and name, without fields that change by themselves.
pub(crate) fn snapshot() -> anyhow::Result<BTreeMap<String, Value>> {
    let system = [
        "deployments",
        "configmaps",
        "services",
        "serviceaccounts",
        "roles",
        "rolebindings",
    ];
    let all = [
        "crds",
        "clusterroles",
        "clusterrolebindings",
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
        "validatingadmissionpolicies",
        "priorityclasses",
        "namespaces",
    ];
    let mut found = BTreeMap::new();
    let mut take = |items: Vec<Value>| {
        for mut item in items {
            let metadata = &mut item["metadata"];
            for key in [
                "resourceVersion",
                "managedFields",
                "generation",
                "creationTimestamp",
            ] {
                metadata[key].take();
            }
            item["status"].take();
            // Aggregated by Kubernetes from other roles, which include Weir's once installed.
            if !item["aggregationRule"].is_null() {
                item["rules"].take();
            }
            // The commands that switch TLS are not Weir's and restart Knative's programs.
            for pointer in [
                "/metadata/annotations/deployment.kubernetes.io~1revision",
                "/spec/template/metadata/annotations/kubectl.kubernetes.io~1restartedAt",
            ] {
                item.pointer_mut(pointer).map(Value::take);
            }
            let annotations = "/spec/template/metadata/annotations";
            if let Some(Value::Object(own)) = item.pointer_mut(annotations) {
                own.retain(|_, value| !value.is_null());
                if own.is_empty()
                    && let Some(Value::Object(metadata)) =
                        item.pointer_mut("/spec/template/metadata")
                {
                    metadata.remove("annotations");
                }
            }
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let metadata = &item["metadata"];
            let name = format!(
                "{} {}/{}",
                text(&item["kind"]),
                text(&metadata["namespace"]),
                text(&metadata["name"])
            );
            found.insert(name, item);
        }
    };
    for kind in system {
        take(kubectl::list(&[kind, "-n", "knative-serving"])?);
    }
    for kind in all {
        take(kubectl::list(&[kind])?);
    }
    found.retain(|name, _| !name.ends_with(&format!("/{NAMESPACE}")));
    Ok(found)
}

/// Returns the texts of events about a Service's objects of a kind. Events about objects of an earlier run with the same names
/// are excluded.
pub(crate) fn messages(kind: &str, service: &str) -> anyhow::Result<Vec<String>> {
    let label = format!("serving.knative.dev/service={service}");
    let mut found = Vec::new();
    for object in kubectl::list(&[kind, "-n", NAMESPACE, "-l", &label])? {
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        let about = format!("involvedObject.uid={uid}");
        let events = kubectl::list(&["events", "-n", NAMESPACE, "--field-selector", &about])?;
        let texts = events.iter().filter_map(|event| event["message"].as_str());
        found.extend(texts.map(str::to_owned));
    }
    Ok(found)
}

/// Returns all remains of Weir, of any kind: objects with its label, labels on Endpoints, resources of nodes; without the
/// functions of the checks and events.
pub(crate) fn left_behind() -> anyhow::Result<Vec<String>> {
    let kinds = kubectl::run(&["api-resources", "--verbs=list", "-o", "name"])?;
    let text = |object: &Value, pointer: &str| {
        let value = object.pointer(pointer).and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    };
    let name = |object: &Value| {
        format!(
            "{} {}/{}",
            text(object, "/kind"),
            text(object, "/metadata/namespace"),
            text(object, "/metadata/name")
        )
    };
    let mut found = Vec::new();
    for kind in kinds.lines().filter(|kind| !kind.starts_with("events")) {
        // Some kinds of aggregated APIs cannot be listed; Weir has none of them.
        let labelled = kubectl::list(&[kind, "-A", "-l", "app.kubernetes.io/part-of=weir"]);
        found.extend(labelled.unwrap_or_default().iter().map(name));
    }
    // The API server's own objects have the label, too.
    let skipped = "networking.internal.knative.dev/serviceType=Public,endpointslice.kubernetes.io/skip-mirror";
    let endpoints = kubectl::list(&["endpoints", "-A", "-l", skipped])?;
    found.extend(endpoints.iter().map(name));
    for node in kubectl::list(&["nodes"])? {
        let capacity = node["status"]["capacity"].as_object();
        let own = capacity.into_iter().flatten();
        let own = own.filter(|(resource, _)| resource.starts_with("weir.dev/"));
        found.extend(own.map(|(resource, _)| format!("{resource} of {}", name(&node))));
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Returns the names of objects in which two snapshots differ.
pub(crate) fn differences(
    before: &BTreeMap<String, Value>,
    after: &BTreeMap<String, Value>,
) -> Vec<String> {
    let names: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let differ = |name: &&&String| before.get(**name) != after.get(**name);
    names
        .iter()
        .filter(differ)
        .map(|name| (*name).clone())
        .collect()
}
