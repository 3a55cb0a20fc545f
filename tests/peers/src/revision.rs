//! A revision and its pods as Kubernetes objects.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::api::Resource;

/// A revision in namespace `default`.
#[derive(Debug, Clone)]
pub struct Revision {
    /// Name of the revision.
    pub name: String,
    /// Value of `spec.containerConcurrency`.
    pub concurrency: u32,
    /// Value of `spec.timeoutSeconds`.
    pub timeout_secs: u64,
    /// Value of `spec.responseStartTimeoutSeconds`; 0 for no such limit.
    pub response_start_timeout_secs: u64,
    /// Contents of `metadata.annotations`.
    pub annotations: Vec<(String, String)>,
    /// Addresses of the queue-proxies of the revision's pods.
    pub pods: Vec<SocketAddr>,
    /// Those of the pods which Kubernetes does not consider ready.
    pub not_ready: Vec<SocketAddr>,
    /// Whether the revision's container has a startup probe, so that only Kubernetes knows when a pod is ready.
    pub has_startup_probe: bool,
}

impl Revision {
    /// Returns a revision with a concurrency of 1, an objective of 10 s, and no pods.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            concurrency: 1,
            timeout_secs: 300,
            response_start_timeout_secs: 0,
            annotations: vec![("weir.dev/slo".to_owned(), "10s".to_owned())],
            pods: Vec::new(),
            not_ready: Vec::new(),
            has_startup_probe: false,
        }
    }

    /// Sets an annotation, and replaces an earlier value.
    #[must_use]
    pub fn annotate(mut self, key: &str, value: &str) -> Self {
        self.annotations.retain(|(known, _)| known != key);
        self.annotations.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Returns the objects that describe it: the revision, the objects which Knative's own activator reads in place of slices,
    /// and a slice for each pod, as Kubernetes has one for each set of ports.
    #[must_use]
    pub fn objects(&self) -> Vec<(Resource, Value)> {
        let revisions = Resource::new("serving.knative.dev/v1", "revisions");
        let slices = Resource::new("discovery.k8s.io/v1", "endpointslices");
        let annotations = self
            .annotations
            .iter()
            .map(|(key, value)| (key.clone(), json!(value)));
        let mut annotations: serde_json::Map<_, _> = annotations.collect();
        annotations.insert("other.dev/key".to_owned(), json!("x"));
        let mut container = json!({});
        if self.has_startup_probe {
            container["startupProbe"] = json!({"tcpSocket": {"port": 0}});
        }
        let revision = json!({
            "apiVersion": revisions.api_version,
            "kind": "Revision",
            "metadata": {
                "namespace": "default",
                "name": self.name,
                "labels": {"serving.knative.dev/service": "service"},
                "annotations": annotations,
            },
            "spec": {
                "containerConcurrency": self.concurrency,
                "timeoutSeconds": self.timeout_secs,
                "responseStartTimeoutSeconds": self.response_start_timeout_secs,
                "containers": [container],
            },
        });
        let service = self.private_name();
        let pods = self.pods.iter().enumerate().map(|(number, pod)| {
            let slice = json!({
                "apiVersion": slices.api_version,
                "kind": "EndpointSlice",
                "metadata": {
                    "namespace": "default",
                    "name": format!("{service}-{number}"),
                    "labels": {
                        "kubernetes.io/service-name": service,
                        "networking.internal.knative.dev/serviceType": "Private",
                        "serving.knative.dev/revision": self.name,
                    },
                },
                "addressType": "IPv4",
                "ports": [{"name": "http", "port": pod.port()}],
                "endpoints": [{"addresses": [pod.ip()], "conditions": {"ready": !self.not_ready.contains(pod)}}],
            });
            (slices.clone(), slice)
        });
        std::iter::once((revisions, revision))
            .chain(self.private_service())
            .chain(pods)
            .collect()
    }

    /// Returns the name of the revision's private Service: a long one is shortened, as Knative does (with a hash in place of the
    /// omitted part).
    fn private_name(&self) -> String {
        let kept: String = self.name.chars().take(55).collect();
        format!("{kept}-private")
    }

    /// Returns the Service `<revision>-private`, at an address without a listener, and its Endpoints.
    fn private_service(&self) -> [(Resource, Value); 2] {
        let metadata = json!({
            "namespace": "default",
            "name": self.private_name(),
            "labels": {
                "networking.internal.knative.dev/serviceType": "Private",
                "serving.knative.dev/revision": self.name,
                "serving.knative.dev/revisionUID": self.name,
            },
        });
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"clusterIP": "198.51.100.1", "ports": [{"name": "http", "port": 80}]},
        });
        let subsets = self.pods.iter().map(|pod| {
            json!({
                "addresses": [{"ip": pod.ip()}],
                "ports": [{"name": "http", "port": pod.port()}],
            })
        });
        let endpoints = json!({
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": metadata,
            "subsets": subsets.collect::<Vec<_>>(),
        });
        [
            (Resource::new("v1", "services"), service),
            (Resource::new("v1", "endpoints"), endpoints),
        ]
    }

    /// Returns the objects as a manifest.
    #[must_use]
    pub fn manifest(&self) -> String {
        let objects = self.objects().into_iter();
        // JSON is valid YAML.
        let documents: Vec<_> = objects.map(|(_, object)| object.to_string()).collect();
        documents.join("\n---\n")
    }
}
