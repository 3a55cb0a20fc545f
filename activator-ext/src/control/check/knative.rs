//! Checks of Weir's requirements: Kubernetes, Knative, and Endpoints that are mirrored to slices.

use k8s_openapi::api::core::v1::{ConfigMap, Endpoints};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, ListParams};

use super::Subject;
use super::finding::Finding;
use crate::control::names::{
    MANAGED_BY, MANAGER, MESH_MODE, MIRRORING, PUBLIC, SERVICE_NAME, SERVICE_TYPE, SKIP_MIRROR,
};
use crate::source::kubernetes::{CONFIG_NETWORK, resource};

/// Oldest minor version of Kubernetes that supports all that the manifests use: policies in CEL and match conditions of
/// webhooks.
const MINOR_MIN: u32 = 30;
/// Knative's programs on which Weir depends.
const PROGRAMS: [&str; 3] = ["activator", "autoscaler", "controller"];
/// The label with a program's release.
const VERSION: &str = "app.kubernetes.io/version";

impl Subject {
    /// Checks Knative's programs, the cluster's network and the mirroring of Endpoints.
    pub(super) async fn knative(&self) -> Vec<Finding> {
        let mut findings = match self.release().await {
            Ok(findings) => findings,
            Err(error) => vec![Finding::unknown("knative", &error)],
        };
        for (name, finding) in [
            ("network", self.mesh().await),
            ("endpoints", self.mirroring().await),
        ] {
            findings.push(finding.unwrap_or_else(|error| Finding::unknown(name, &error)));
        }
        findings
    }

    /// Checks whether the cluster's version is supported.
    pub(super) async fn kubernetes(&self) -> Result<Finding, kube::Error> {
        let version = self.client.apiserver_version().await?;
        let digits = |text: &str| text.trim_end_matches('+').parse::<u32>().unwrap_or(0);
        let own = (digits(&version.major), digits(&version.minor));
        Ok(if own >= (1, MINOR_MIN) {
            Finding::good("kubernetes", version.git_version)
        } else {
            Finding::wrong(
                "kubernetes",
                format!("{}; 1.{MINOR_MIN} or newer is needed", version.git_version),
                "upgrade the cluster",
            )
        })
    }

    async fn release(&self) -> Result<Vec<Finding>, kube::Error> {
        let namespace = &self.arguments.system_namespace;
        let kind = resource("apps", "Deployment");
        let deployments: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &kind);
        let mut findings = Vec::new();
        for name in PROGRAMS {
            let own = format!("knative {name}");
            findings.push(match deployments.get_opt(name).await? {
                None => Finding::wrong(
                    own,
                    format!("there is no Deployment {name} in {namespace}"),
                    "install Knative Serving, or name its namespace by --system-namespace",
                ),
                Some(deployment) => {
                    let version = deployment.labels().get(VERSION);
                    let version = version.map_or("of an unknown release", String::as_str);
                    let ready = deployment.data["status"]["readyReplicas"].as_u64();
                    match ready.unwrap_or(0) {
                        0 => Finding::wrong(
                            own,
                            format!("{version}, and no pod of it is ready"),
                            format!("kubectl -n {namespace} describe deployment {name}"),
                        ),
                        ready => Finding::good(own, format!("{version}, {ready} ready")),
                    }
                }
            });
        }
        Ok(findings)
    }

    async fn mesh(&self) -> Result<Finding, kube::Error> {
        let namespace = &self.arguments.system_namespace;
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let network = maps.get_opt(CONFIG_NETWORK).await?;
        let mode = network
            .as_ref()
            .and_then(|map| map.data.as_ref()?.get(MESH_MODE));
        Ok(
            if mode.is_some_and(|mode| mode.eq_ignore_ascii_case("enabled")) {
                Finding::wrong(
                    "network",
                    format!(
                        "{CONFIG_NETWORK} has {MESH_MODE}: enabled, so pods cannot be addressed"
                    ),
                    format!("set {MESH_MODE} to auto or disabled, if the mesh allows it"),
                )
            } else {
                Finding::good("network", "pods can be addressed")
            },
        )
    }

    /// Checks whether the Endpoints of public Services are mirrored to slices: otherwise Weir could not leave the path
    /// again.
    async fn mirroring(&self) -> Result<Finding, kube::Error> {
        let public = ListParams::default().labels(&format!("{SERVICE_TYPE}={PUBLIC}"));
        let endpoints: Api<Endpoints> = Api::all(self.client.clone());
        let endpoints = endpoints.list(&public.limit(500)).await?.items;
        let kept = format!("{MANAGED_BY} in ({MIRRORING},{MANAGER})");
        let slices: Api<EndpointSlice> = Api::all(self.client.clone());
        let slices = slices.list(&ListParams::default().labels(&kept)).await?;
        let has_slice = |of: &&Endpoints| {
            slices.items.iter().any(|slice| {
                slice.namespace() == of.namespace()
                    && slice.labels().get(SERVICE_NAME) == Some(&of.name_any())
            })
        };
        let is_skipped =
            |it: &&Endpoints| it.labels().get(SKIP_MIRROR).is_some_and(|it| it == "true");
        // Requests of this Service reach no pod: it has neither a mirrored slice nor one of Weir's.
        if let Some(it) = endpoints.iter().find(|it| is_skipped(it) && !has_slice(it)) {
            let (namespace, name) = (it.namespace().unwrap_or_default(), it.name_any());
            return Ok(Finding::wrong(
                "endpoints",
                format!(
                    "no pod gets the requests of {namespace}/{name}: its Endpoints have the label {SKIP_MIRROR}, and there is no slice of Weir's"
                ),
                format!("kubectl -n {namespace} label endpoints {name} {SKIP_MIRROR}-"),
            ));
        }
        let filled: Vec<_> = endpoints
            .iter()
            .filter(|it| it.subsets.as_ref().is_some_and(|it| !it.is_empty()))
            .collect();
        let copied = filled.iter().filter(|it| has_slice(it)).count();
        Ok(
            match (filled.len(), filled.iter().find(|it| !has_slice(it))) {
                (0, _) => Finding::open(
                    "endpoints",
                    "no revision has addresses yet, so it cannot be seen whether they are copied to EndpointSlices",
                    "create a Knative Service and check again",
                ),
                (all, Some(not)) => Finding::wrong(
                    "endpoints",
                    format!(
                        "those of {copied} of {all} revisions are copied to EndpointSlices, those of {}/{} are not",
                        not.namespace().unwrap_or_default(),
                        not.name_any()
                    ),
                    "the endpointslice-mirroring controller of kube-controller-manager must run",
                ),
                (all, None) => Finding::good(
                    "endpoints",
                    format!("those of {all} revisions are copied to EndpointSlices"),
                ),
            },
        )
    }
}
