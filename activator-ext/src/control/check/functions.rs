//! Checks of revisions that have opted in: whether they are attached, with their options, and in time.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Endpoints, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};

use super::Subject;
use super::finding::Finding;
use super::programs::{DATA, is_ready};
use crate::control::cluster::revision_kind;
use crate::control::functions::kind;
use crate::control::names::{CONTROL, MANAGED_BY, MANAGER, SERVICE_NAME, SKIP_MIRROR};
use crate::source::kubernetes::{resource, revision};
use crate::view::Revision;

/// The name of the queue-proxy's container in a revision's pod.
const QUEUE_PROXY: &str = "queue-proxy";

impl Subject {
    fn api(&self, kind: &ApiResource) -> Api<DynamicObject> {
        match &self.arguments.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, kind),
            None => Api::all_with(self.client.clone(), kind),
        }
    }

    /// Checks each opted-in revision that a Route names, and each GpuFunction.
    pub(super) async fn functions(&self) -> Result<Vec<Finding>, kube::Error> {
        let mut findings = Vec::new();
        let revisions = self
            .api(&revision_kind())
            .list(&ListParams::default())
            .await?;
        let image = self.queue_proxy_image().await.ok().flatten();
        let owners = self.owners().await.ok();
        for object in &revisions.items {
            let state = object.labels().get("serving.knative.dev/routingState");
            let Some(revision) = revision(object).filter(|it| it.settings.opted_in()) else {
                continue;
            };
            if state.is_some_and(|state| state != "active") {
                continue;
            }
            let finding = self
                .revision(&revision, image.as_deref(), owners.as_ref())
                .await;
            let name = format!("revision {}", revision.name);
            findings.push(finding.unwrap_or_else(|error| Finding::unknown(name, &error)));
        }
        if findings.is_empty() {
            findings.push(Finding::open(
                "revisions",
                "none has opted in",
                "kubectl patch ksvc NAME --type=merge -p '{\"spec\":{\"template\":{\"metadata\":{\"annotations\":{\"weir.dev/slo\":\"200ms\"}}}}}'",
            ));
        }
        let functions = match self.api(&kind()).list(&ListParams::default()).await {
            Ok(functions) => functions.items,
            Err(kube::Error::Api(status)) if status.code == 404 => {
                findings.push(Finding::wrong(
                    "functions",
                    "the cluster does not know GpuFunctions",
                    "apply the manifests again",
                ));
                Vec::new()
            }
            Err(error) => {
                findings.push(Finding::unknown("functions", &error));
                Vec::new()
            }
        };
        findings.extend(functions.iter().map(function));
        Ok(findings)
    }

    /// Returns the addresses of the ready pods of role `data`.
    async fn owners(&self) -> Result<BTreeSet<String>, kube::Error> {
        let pods = self.pods(&self.arguments.system_namespace, DATA).await?;
        let ready = pods.iter().filter(|pod| is_ready(pod));
        let addresses = ready.filter_map(|pod| pod.status.as_ref()?.pod_ips.as_ref());
        Ok(addresses.flatten().map(|it| it.ip.clone()).collect())
    }

    /// Returns the queue-proxy image for pods of opted-in revisions; `None` if they keep Knative's.
    async fn queue_proxy_image(&self) -> Result<Option<String>, kube::Error> {
        let namespace = &self.arguments.weir_namespace;
        let deployments: Api<DynamicObject> = Api::namespaced_with(
            self.client.clone(),
            namespace,
            &resource("apps", "Deployment"),
        );
        let deployment = deployments.get_opt(CONTROL).await?;
        let environment = deployment.and_then(|it| {
            let own = it.data.pointer("/spec/template/spec/containers/0/env")?;
            own.as_array().cloned()
        });
        let image = environment.into_iter().flatten().find_map(|variable| {
            let is_it = variable["name"] == "QUEUE_PROXY_IMAGE";
            is_it.then(|| variable["value"].as_str().map(str::to_owned))?
        });
        Ok(image.filter(|image| !image.is_empty()))
    }

    async fn revision(
        &self,
        revision: &Revision,
        image: Option<&str>,
        owners: Option<&BTreeSet<String>>,
    ) -> Result<Finding, kube::Error> {
        let own = &revision.name;
        let name = format!("revision {own}");
        let (namespace, describe) = (
            &own.namespace,
            format!(
                "kubectl -n {} describe revision {}",
                own.namespace, own.name
            ),
        );
        if let Some(problem) = revision.settings.problems.first() {
            return Ok(Finding::wrong(name, problem, "correct the annotation"));
        }
        let endpoints: Api<Endpoints> = Api::namespaced(self.client.clone(), namespace);
        let endpoints = endpoints.get_opt(&own.name).await?;
        let has_label =
            endpoints.is_some_and(|it| it.labels().get(SKIP_MIRROR).is_some_and(|it| it == "true"));
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), namespace);
        let ours = format!("{MANAGED_BY}={MANAGER},{SERVICE_NAME}={}", own.name);
        let slices = slices.list(&ListParams::default().labels(&ours)).await?;
        if !has_label {
            let text = "it is not attached: its requests go Knative's way";
            return Ok(Finding::wrong(name, text, describe));
        }
        let back = format!(
            "kubectl -n {namespace} label endpoints {} {SKIP_MIRROR}- (Knative serves it then), and {describe}",
            own.name
        );
        let addresses = slices.items.iter().flat_map(|slice| &slice.endpoints);
        let addresses: Vec<_> = addresses.flat_map(|it| &it.addresses).collect();
        if addresses.is_empty() {
            let text = format!(
                "no pod gets its requests: its Endpoints have the label {SKIP_MIRROR}, and no slice of Weir's names a pod"
            );
            return Ok(Finding::wrong(name, text, back));
        }
        // A user of one namespace may not list the pods of role `data`.
        if let Some(owners) = owners
            && !addresses.iter().any(|it| owners.contains(*it))
        {
            let text = format!(
                "its requests go to {}, which is no ready pod of weir-activator",
                addresses[0]
            );
            return Ok(Finding::wrong(name, text, back));
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let its = format!("serving.knative.dev/revision={}", own.name);
        let pods = pods.list(&ListParams::default().labels(&its)).await?.items;
        let options = revision.settings.slo.is_some();
        for pod in &pods {
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            let Some(proxy) = containers.into_iter().find(|it| it.name == QUEUE_PROXY) else {
                continue;
            };
            let pod = pod.name_any();
            let restart = format!("kubectl -n {namespace} delete pod {pod}");
            let has = proxy.image.as_deref();
            if let Some(image) = image.filter(|image| has != Some(image)) {
                let text = format!(
                    "{pod} has queue-proxy {}, not {image}: the pod is older than the opt-in or the upgrade, or the webhook did not answer",
                    has.unwrap_or_default()
                );
                return Ok(Finding::open(name, text, restart));
            }
            let environment = proxy.env.iter().flatten();
            let mut environment = environment.map(|variable| variable.name.as_str());
            if image.is_some() && options && !environment.any(|name| name == "WEIR_SLO") {
                let text = format!("{pod} does not have the revision's options");
                return Ok(Finding::wrong(name, text, restart));
            }
        }
        let count = pods.len();
        Ok(Finding::good(
            name,
            format!("attached, {count} pods with its options"),
        ))
    }
}

/// Returns the finding about a GpuFunction by its status.
fn function(object: &DynamicObject) -> Finding {
    let namespace = object.namespace().unwrap_or_default();
    let name = format!("function {namespace}/{}", object.name_any());
    let status = &object.data["status"];
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let ready = conditions.into_iter().find(|it| it["type"] == "Ready");
    let Some(ready) = ready else {
        let text = "role control has not written its status yet";
        return Finding::open(name, text, "check again in 15 s");
    };
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    let message = text(&ready["message"]).unwrap_or_default();
    if ready["status"] != "True" {
        let remedy = format!(
            "kubectl -n {namespace} get gpufn {} -o yaml",
            object.name_any()
        );
        return Finding::wrong(name, message, remedy);
    }
    let objective = text(&status["objective"]);
    Finding::good(
        name,
        match (objective, text(&status["inTime"]["hour"])) {
            (None, _) => "it serves, without an objective".to_owned(),
            (Some(objective), None) => {
                format!("no request in the last hour; objective {objective}")
            }
            (Some(objective), Some(ratio)) => {
                format!("{ratio} of the last hour's requests within {objective}")
            }
        },
    )
}
