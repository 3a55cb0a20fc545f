//! Checks of Weir's own programs: whether they run, with which images, with which rights, and whether they are reached.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, ListParams, ObjectMeta, PostParams};
use serde_json::json;

use super::Subject;
use super::finding::Finding;
use crate::control::names::CONTROL;
use crate::control::nodes::{advertised_twice, capacity};
use crate::source::kubernetes::resource;

/// Rights which role `control` must have: verb, group, resource and subresource. Its other rights are granted along
/// with these.
const CONTROL_RIGHTS: [(&str, &str, &str, &str); 8] = [
    ("list", "serving.knative.dev", "revisions", ""),
    (
        "list",
        "autoscaling.internal.knative.dev",
        "podautoscalers",
        "",
    ),
    ("patch", "", "endpoints", ""),
    ("create", "discovery.k8s.io", "endpointslices", ""),
    ("delete", "discovery.k8s.io", "endpointslices", ""),
    ("create", "events.k8s.io", "events", ""),
    ("patch", "weir.dev", "gpufunctions", "status"),
    ("patch", "", "nodes", "status"),
];
/// Rights which role `data` must have, in the same form.
const DATA_RIGHTS: [(&str, &str, &str, &str); 4] = [
    ("watch", "serving.knative.dev", "revisions", ""),
    ("watch", "discovery.k8s.io", "endpointslices", ""),
    ("create", "authentication.k8s.io", "tokenreviews", ""),
    ("create", "authorization.k8s.io", "subjectaccessreviews", ""),
];
/// Age of a Lease's last renewal, in seconds, from which it counts as expired unless clocks differ.
const LEASE_SECONDS: i64 = 30;
/// Time within which the holder of a Lease renews it.
const RENEWAL_MAX: Duration = Duration::from_secs(5);
/// The Deployment of role `data`.
pub(super) const DATA: &str = "weir-activator";
/// The label with the name of a pod's program.
const NAME: &str = "app.kubernetes.io/name";
/// The port of the agents' metrics.
const METRICS_PORT: u16 = 9471;
/// The resource that a node with an agent offers.
const SEATS: &str = "weir.dev/seats";

impl Subject {
    /// Checks Weir's programs; returns `None` if there are none.
    pub(super) async fn programs(&self) -> Result<Option<Vec<Finding>>, kube::Error> {
        let arguments = &self.arguments;
        let (own, knatives) = (&arguments.weir_namespace, &arguments.system_namespace);
        let mut findings = Vec::new();
        let mut is_there = false;
        for (role, namespace, deployment) in [("control", own, CONTROL), ("data", knatives, DATA)] {
            let kind = resource("apps", "Deployment");
            let deployments: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), namespace, &kind);
            let found = deployments.get_opt(deployment).await?;
            is_there |= found.is_some();
            let wanted = found.map(|it| it.data["spec"]["replicas"].as_u64().unwrap_or(1));
            findings.push(self.program(role, namespace, deployment, wanted).await?);
        }
        if !is_there {
            return Ok(None);
        }
        findings.push(self.lease().await?);
        for (role, namespace, account, rights) in [
            ("control", own, CONTROL, &CONTROL_RIGHTS[..]),
            ("data", knatives, DATA, &DATA_RIGHTS),
        ] {
            findings.push(self.rights(role, namespace, account, rights).await);
        }
        findings.push(self.webhook().await);
        findings.extend(self.agents().await?);
        findings.push(self.scraped().await?);
        Ok(Some(findings))
    }

    pub(super) async fn pods(&self, namespace: &str, name: &str) -> Result<Vec<Pod>, kube::Error> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let labelled = ListParams::default().labels(&format!("{NAME}={name}"));
        Ok(pods.list(&labelled).await?.items)
    }

    /// Checks the pods of a Deployment or DaemonSet, of which `wanted` should be ready; `None`: the object does not
    /// exist.
    async fn program(
        &self,
        role: &str,
        namespace: &str,
        name: &str,
        wanted: Option<u64>,
    ) -> Result<Finding, kube::Error> {
        let remedy = format!("kubectl -n {namespace} describe pods -l {NAME}={name}");
        let Some(wanted) = wanted else {
            let text = format!("there is no {name} in {namespace}");
            return Ok(Finding::wrong(role, text, "apply the manifests again"));
        };
        let pods = self.pods(namespace, name).await?;
        let mut images = BTreeSet::new();
        let (mut ready, mut waits) = (0, None);
        // Pods that are being deleted, and evicted pods, are replaced.
        for pod in pods.iter().filter(|pod| !has_ended(pod)) {
            let status = pod.status.as_ref();
            ready += u64::from(is_ready(pod));
            let containers = status.and_then(|it| it.container_statuses.as_ref());
            for container in containers.into_iter().flatten() {
                images.insert(digest(&container.image_id, &container.image).to_owned());
                let waiting = container.state.as_ref().and_then(|it| it.waiting.as_ref());
                waits = waits.or_else(|| waiting.and_then(|it| it.reason.clone()));
            }
        }
        let images = images.into_iter().collect::<Vec<_>>().join(", ");
        Ok(if ready == 0 || ready < wanted {
            let why = waits.map_or_else(String::new, |why| format!(": {why}"));
            Finding::wrong(
                role,
                format!("{ready} of {wanted} pods are ready{why}"),
                remedy,
            )
        } else {
            Finding::good(
                role,
                format!("{ready} of {wanted} pods are ready, {images}"),
            )
        })
    }

    async fn lease(&self) -> Result<Finding, kube::Error> {
        let namespace = &self.arguments.weir_namespace;
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
        let look = async || {
            let spec = leases.get_opt(CONTROL).await?.and_then(|lease| lease.spec);
            let spec = spec.unwrap_or_default();
            let holder = spec.holder_identity.filter(|it| !it.is_empty());
            Ok::<_, kube::Error>(holder.zip(spec.renew_time))
        };
        let first = look().await?;
        if let Some((holder, renewed)) = first {
            let age = Timestamp::now().as_second() - renewed.0.as_second();
            if age.abs() < LEASE_SECONDS {
                return Ok(Finding::good("leader", holder));
            }
            // The local clock may differ from the leader's.
            tokio::time::sleep(RENEWAL_MAX).await;
            if look().await?.is_some_and(|(_, again)| again != renewed) {
                return Ok(Finding::good("leader", holder));
            }
        }
        Ok(Finding::wrong(
            "leader",
            "no process of role control holds the Lease",
            format!("kubectl -n {namespace} logs -l {NAME}={CONTROL}"),
        ))
    }

    async fn rights(
        &self,
        role: &str,
        namespace: &str,
        account: &str,
        rights: &[(&str, &str, &str, &str)],
    ) -> Finding {
        let name = format!("rights of {role}");
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        for (verb, group, resource, subresource) in rights {
            let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
            let review = SubjectAccessReview {
                metadata: ObjectMeta::default(),
                spec: SubjectAccessReviewSpec {
                    user: Some(format!("system:serviceaccount:{namespace}:{account}")),
                    resource_attributes: Some(ResourceAttributes {
                        verb: some(verb),
                        group: some(group),
                        resource: some(resource),
                        subresource: some(subresource),
                        ..ResourceAttributes::default()
                    }),
                    ..SubjectAccessReviewSpec::default()
                },
                status: None,
            };
            match reviews.create(&PostParams::default(), &review).await {
                Ok(review) if review.status.as_ref().is_some_and(|it| it.allowed) => {}
                Ok(_) => {
                    let of = if subresource.is_empty() { "" } else { "/" };
                    return Finding::wrong(
                        name,
                        format!("{account} may not {verb} {resource}{of}{subresource}"),
                        "apply the manifests again",
                    );
                }
                Err(error) => {
                    let text = format!("cannot be reviewed: {error}");
                    return Finding::open(name, text, "check as a cluster administrator");
                }
            }
        }
        Finding::good(name, "as the manifests give them")
    }

    /// Checks whether admission reaches role `control`, by the dry run of a Service with an invalid annotation.
    async fn webhook(&self) -> Finding {
        let namespace = self.arguments.namespace.as_deref().unwrap_or("default");
        let kind = resource("serving.knative.dev", "Service");
        let services: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &kind);
        let wrong = json!({
            "apiVersion": "serving.knative.dev/v1",
            "kind": "Service",
            "metadata": {"generateName": "weir-check-"},
            "spec": {"template": {
                "metadata": {"annotations": {"weir.dev/slo": "never"}},
                "spec": {"containers": [{"image": "weir.dev/check"}]},
            }},
        });
        let trial = PostParams {
            dry_run: true,
            field_manager: None,
        };
        let object = match serde_json::from_value(wrong) {
            Ok(object) => object,
            Err(error) => return Finding::open("webhook", error.to_string(), ""),
        };
        match services.create(&trial, &object).await {
            Err(kube::Error::Api(status)) if status.message.contains("weir.dev/slo") => {
                Finding::good("webhook", "invalid annotations are refused")
            }
            Err(error) => Finding::open(
                "webhook",
                format!("cannot be tried out: {error}"),
                format!("check as a user with the right to create Knative Services in {namespace}"),
            ),
            Ok(_) => Finding::wrong(
                "webhook",
                "an invalid annotation was not refused, so pods with a GPU do not start",
                format!(
                    "kubectl -n {} logs -l {NAME}={CONTROL}; kubectl get validatingwebhookconfiguration weir -o yaml",
                    self.arguments.weir_namespace
                ),
            ),
        }
    }

    async fn agents(&self) -> Result<Vec<Finding>, kube::Error> {
        let namespace = &self.arguments.agent_namespace;
        let kind = resource("apps", "DaemonSet");
        let sets: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &kind);
        let wanted = |set: DynamicObject| {
            let wanted = set.data["status"]["desiredNumberScheduled"].as_u64();
            wanted.unwrap_or(1)
        };
        let Some(agents) = sets.get_opt("weir-agent").await?.map(wanted) else {
            return Ok(vec![Finding::open(
                "agents",
                "there are none, so no function gets a GPU",
                "apply an overlay with the component agent, if functions are to have GPUs",
            )]);
        };
        let pods = self.pods(namespace, "weir-agent").await?;
        if pods.is_empty() {
            return Ok(vec![Finding::wrong(
                "agents",
                "no node has one",
                "kubectl label node NODE weir.dev/gpus=enabled",
            )]);
        }
        let mut findings = vec![
            self.program("agents", namespace, "weir-agent", Some(agents))
                .await?,
        ];
        if let Some(daemons) = sets.get_opt("weir-mps").await?.map(wanted) {
            findings.push(
                self.program("MPS daemons", namespace, "weir-mps", Some(daemons))
                    .await?,
            );
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        for pod in &pods {
            let Some(node) = pod.spec.as_ref().and_then(|it| it.node_name.clone()) else {
                continue;
            };
            let found = nodes.get_opt(&node).await?;
            let name = format!("node {node}");
            let (labels, capacity) = match &found {
                Some(node) => (node.labels().clone(), capacity(node)),
                None => Default::default(),
            };
            if let Some(advertised) = advertised_twice(&labels, &capacity) {
                findings.push(Finding::wrong(
                    name,
                    format!("NVIDIA's device plugin advertises its GPUs as well ({advertised}), so it has no seats"),
                    "take the node from the plugin, or split its GPUs and label it weir.dev/gpus=split (docs/install.md)",
                ));
                continue;
            }
            let seats = capacity.get(SEATS).map(String::as_str);
            findings.push(match seats {
                None | Some("0") => Finding::wrong(
                    name,
                    "its agent has not answered for a minute, so it has no seats",
                    format!("kubectl -n {namespace} logs {}", pod.name_any()),
                ),
                Some(seats) => Finding::good(name, format!("{seats} seats")),
            });
            findings.push(self.mps(namespace, &pod.name_any(), &node).await);
        }
        Ok(findings)
    }

    /// Checks the state of MPS on the slots of a node, by its agent's metrics.
    async fn mps(&self, namespace: &str, pod: &str, node: &str) -> Finding {
        let name = format!("MPS of {node}");
        let path =
            format!("/api/v1/namespaces/{namespace}/pods/{pod}:{METRICS_PORT}/proxy/metrics");
        let page = match http::Request::get(path).body(Vec::new()) {
            Ok(request) => self.client.request_text(request).await,
            Err(error) => return Finding::open(name, error.to_string(), ""),
        };
        let page = match page {
            Ok(page) => page,
            Err(error) => {
                let text = format!("its metrics cannot be read: {error}");
                return Finding::open(
                    name,
                    text,
                    "check as a user with the right to get pods/proxy",
                );
            }
        };
        let states: Vec<_> = page.lines().filter_map(mps_state).collect();
        let wrong = states
            .iter()
            .find(|(_, state)| matches!(*state, "down" | "unable"));
        match wrong {
            Some((slot, state)) => Finding::wrong(
                name,
                format!("{state} on slot {slot}"),
                format!("kubectl -n {namespace} logs {pod}"),
            ),
            None if states.is_empty() => Finding::good(name, "no slot is shared by MPS"),
            None => Finding::good(name, format!("{} slots are shared by it", states.len())),
        }
    }

    /// Checks whether Prometheus scrapes Weir's metrics.
    async fn scraped(&self) -> Result<Finding, kube::Error> {
        let kind = resource("monitoring.coreos.com", "PodMonitor");
        let monitors: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind);
        let labelled = ListParams::default().labels("app.kubernetes.io/part-of=weir");
        let count = match monitors.list(&labelled).await {
            Ok(monitors) => monitors.items.len(),
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => 0,
            Err(error) => return Err(error),
        };
        Ok(if count > 0 {
            Finding::good("metrics", format!("{count} PodMonitors"))
        } else {
            Finding::open(
                "metrics",
                "there are no PodMonitors of Weir",
                "add the component monitoring, or configure Prometheus to use the annotation prometheus.io/port",
            )
        })
    }
}

/// Returns whether Kubernetes considers a pod ready.
pub(super) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|it| it.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|it| it.type_ == "Ready" && it.status == "True")
}

/// Returns whether a pod is being deleted, or has ended.
fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
    pod.metadata.deletion_timestamp.is_some() || matches!(phase, Some("Failed" | "Succeeded"))
}

/// Returns the slot and the current state of MPS by a line of metrics.
fn mps_state(line: &str) -> Option<(&str, &str)> {
    let labels = line.strip_prefix("weir_gpu_slot_mps_state{")?;
    let labels = labels.strip_suffix("} 1")?;
    let label = |name: &str| {
        let mut pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
        pairs.find_map(|(key, value)| (key == name).then(|| value.trim_matches('"')))
    };
    Some((label("slot")?, label("state")?))
}

/// Returns the digest of an image if it is known, else its name or id.
fn digest<'a>(id: &'a str, image: &'a str) -> &'a str {
    if id.is_empty() {
        return image;
    }
    id.rsplit_once('@').map_or(id, |(_, digest)| digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_state_of_mps_has_the_value_1() {
        let line = |state: &str, value: u8| {
            format!("weir_gpu_slot_mps_state{{gpu=\"GPU-1\",slot=\"0\",state=\"{state}\"}} {value}")
        };
        assert_eq!(mps_state(&line("up", 1)), Some(("0", "up")));
        assert_eq!(mps_state(&line("down", 0)), None);
        assert_eq!(mps_state("weir_gpu_slot_mps_clients{slot=\"0\"} 1"), None);
    }

    #[test]
    fn an_image_is_named_by_its_digest_if_that_is_known() {
        assert_eq!(digest("registry/x@sha256:ab", "registry/x:1"), "sha256:ab");
        assert_eq!(digest("sha256:ab", "registry/x:1"), "sha256:ab");
        assert_eq!(digest("", "registry/x:1"), "registry/x:1");
    }
}
