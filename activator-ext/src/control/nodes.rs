//! Resources which nodes offer to the scheduler: `node.status.capacity` is kept current by the agents' answers on
//! `/v1/slots` (contracts §10). A kubelet that starts sets unknown resources to zero; they are written again.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::runtime::reflector::{Store, store::Writer};
use kube::runtime::watcher::watcher;
use kube::runtime::{WatchStreamExt as _, reflector};
use kube::{Client, ResourceExt as _};
use mutual_tls::Identity;
use policy::Time;
use policy::capacity::{Amounts, offered};
use proxy::clock::Clock;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::cluster::Cluster;
use super::lease::Candidate;
use super::query::{AGENT, CONCURRENCY};
use crate::source::kubernetes::watch_config;

/// Period at which agents are queried.
const QUERY_PERIOD: Duration = Duration::from_secs(10);
/// The label selector of the agents' pods.
const AGENTS: &str = "app.kubernetes.io/name=weir-agent";
/// The prefix of the resources maintained here.
const PREFIX: &str = "weir.dev/";

/// The names of the resources.
const SEATS: &str = "weir.dev/seats";
const HOST_MEMORY: &str = "weir.dev/host-memory-mib";
const PLAN: &str = "weir.dev/plan-permille";

/// The label which marks a node's GPUs as Weir's.
const GPUS: &str = "weir.dev/gpus";
/// The value of [`GPUS`] for a node of which some GPUs are Weir's, and NVIDIA's device plugin is configured for the
/// others.
const SPLIT: &str = "split";
/// Prefixes of the resources which NVIDIA's device plugin advertises: whole GPUs, and slices of them.
const NVIDIAS: [&str; 2] = ["nvidia.com/gpu", "nvidia.com/mig-"];

/// Number of bytes of a MiB.
const MIB: u64 = 1 << 20;

/// The used part of an agent's answer.
#[derive(Debug, Clone, Deserialize)]
struct Answer {
    slots: Vec<Slot>,
    host_memory_bytes: Option<u64>,
}

#[derive(Debug, Clone, Deserialize)]
struct Slot {
    /// The reason why the slot is lost, if it is.
    lost: Option<Value>,
    seats: u64,
    plan_permille: Option<u64>,
}

impl Answer {
    fn amounts(&self, node: &Node) -> Amounts {
        let usable = self.slots.iter().filter(|slot| slot.lost.is_none());
        let (seats, plan) = usable.fold((0_u64, 0_u64), |(seats, plan), slot| {
            let own = slot.plan_permille.unwrap_or(0);
            (seats.saturating_add(slot.seats), plan.saturating_add(own))
        });
        // Without a budget set on the agent it is half of the node's memory.
        let half = || bytes_of(capacity(node).get("memory")) / 2;
        Amounts {
            seats,
            host_memory_mib: self.host_memory_bytes.unwrap_or_else(half) / MIB,
            plan_permille: plan,
        }
    }
}

/// Returns the capacity of a node, with amounts in the API's notation.
pub(crate) fn capacity(node: &Node) -> BTreeMap<String, String> {
    let capacity = node.status.as_ref().and_then(|it| it.capacity.clone());
    let all = capacity.into_iter().flatten();
    all.map(|(name, Quantity(amount))| (name, amount)).collect()
}

fn bytes_of(quantity: Option<&String>) -> u64 {
    quantity
        .and_then(|text| annotations::values::quantity(text).ok())
        .unwrap_or(0)
}

/// Returns the resource which NVIDIA's device plugin advertises on a node whose GPUs are all Weir's: they would be
/// allocated twice.
pub(crate) fn advertised_twice(
    labels: &BTreeMap<String, String>,
    capacity: &BTreeMap<String, String>,
) -> Option<String> {
    if labels.get(GPUS).is_some_and(|value| value == SPLIT) {
        return None;
    }
    let advertised = capacity.iter().find(|(name, amount)| {
        NVIDIAS.iter().any(|own| name.starts_with(own))
            && annotations::values::quantity(amount).is_ok_and(|amount| amount > 0)
    });
    advertised.map(|(name, amount)| format!("{name}: {amount}"))
}

/// Maintains the capacity of nodes.
pub(crate) struct Nodes {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) identity: Arc<Identity>,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) clock: Clock,
}

impl Nodes {
    /// Waits until this process leads, and then maintains capacities; never returns.
    pub(crate) async fn run(&self, candidate: &Candidate) {
        candidate.elected().await;
        let (nodes, writer) = (
            Api::<Node>::all(self.client.clone()),
            Writer::<Node>::default(),
        );
        let store = writer.as_reader();
        let watched = watcher(nodes.clone(), watch_config(None)).default_backoff();
        let watched = watched.modify(|node| {
            // The other parts of a node are many times as large.
            node.metadata.managed_fields = None;
            node.metadata.annotations = None;
            node.spec = None;
            let amounts = node.status.take().and_then(|status| status.capacity);
            node.status.get_or_insert_default().capacity = amounts;
        });
        let changed = Notify::new();
        let seen = reflector(writer, watched).for_each(|_| {
            changed.notify_one();
            std::future::ready(())
        });
        let mut follow = pin!(seen);
        let mut keep = pin!(self.keep(&nodes, &store, &changed, candidate));
        tokio::select! {
            () = &mut follow => {}
            () = &mut keep => {}
        }
    }

    async fn keep(
        &self,
        nodes: &Api<Node>,
        store: &Store<Node>,
        changed: &Notify,
        candidate: &Candidate,
    ) {
        let since = self.clock.now();
        let mut heard: HashMap<String, (Time, Answer)> = HashMap::new();
        let mut failures: HashMap<String, String> = HashMap::new();
        let mut tick = tokio::time::interval(QUERY_PERIOD);
        loop {
            tokio::select! {
                _tick = tick.tick() => {
                    // If agents cannot be listed, the earlier answers stay in use.
                    if let Ok(pods) = agents(&self.client, &self.namespace).await {
                        self.query_all(&pods, &mut heard, &mut failures).await;
                    }
                }
                // A kubelet may have reset the written amounts to zero.
                () = changed.notified() => {}
            }
            let all = store.state();
            let is_there = |name: &String| all.iter().any(|node| node.name_any() == *name);
            heard.retain(|name, _| is_there(name));
            failures.retain(|name, _| is_there(name));
            for node in &all {
                if !candidate.leads() || self.cluster.is_leaving() {
                    break;
                }
                self.settle(nodes, node, since, heard.get(&node.name_any()))
                    .await;
            }
        }
    }

    /// Queries all agents, and stores each answer, or the reason for its absence.
    async fn query_all(
        &self,
        agents: &[(String, IpAddr)],
        heard: &mut HashMap<String, (Time, Answer)>,
        failures: &mut HashMap<String, String>,
    ) {
        let answers =
            stream::iter(agents)
                .map(|(node, ip)| async move {
                    (node, AGENT.query(&self.identity, *ip, "/v1/slots").await)
                })
                .buffer_unordered(CONCURRENCY)
                .collect::<Vec<_>>()
                .await;
        for (node, answer) in answers {
            match answer {
                Ok(answer) => {
                    failures.remove(node);
                    heard.insert(node.clone(), (self.clock.now(), answer));
                }
                Err(error) => {
                    let error = error.to_string();
                    if failures.get(node) != Some(&error) {
                        tracing::warn!(node, error, "an agent does not answer");
                        failures.insert(node.clone(), error);
                    }
                }
            }
        }
    }

    /// Writes a node's capacity if it differs from what the node offers.
    async fn settle(
        &self,
        nodes: &Api<Node>,
        node: &Node,
        since: Time,
        heard: Option<&(Time, Answer)>,
    ) {
        let current = capacity(node);
        if heard.is_none() && !current.keys().any(|name| name.starts_with(PREFIX)) {
            return;
        }
        let heard = heard.map(|(at, answer)| {
            let amounts = match advertised_twice(node.labels(), &current) {
                Some(_) => Amounts::default(),
                None => answer.amounts(node),
            };
            (*at, amounts)
        });
        let Some(amounts) = offered(self.clock.now(), since, heard) else {
            return;
        };
        let wanted = [
            (SEATS, amounts.seats),
            (HOST_MEMORY, amounts.host_memory_mib),
            (PLAN, amounts.plan_permille),
        ];
        let is_same = wanted.iter().all(|(name, amount)| {
            // The API may return 2000 as 2k.
            current
                .get(*name)
                .is_some_and(|it| annotations::values::quantity(it) == Ok(*amount))
        });
        if is_same {
            return;
        }
        let wanted: BTreeMap<_, _> = wanted
            .iter()
            .map(|(name, amount)| (*name, amount.to_string()))
            .collect();
        let name = node.name_any();
        let patch = Patch::Merge(json!({"status": {"capacity": wanted}}));
        match nodes
            .patch_status(&name, &PatchParams::default(), &patch)
            .await
        {
            Ok(_) => match advertised_twice(node.labels(), &current) {
                Some(advertised) => tracing::warn!(
                    node = name,
                    advertised,
                    "NVIDIA's device plugin advertises the node's GPUs as well, so its capacity of weir.dev/ resources is zero"
                ),
                None => tracing::info!(node = name, ?amounts, "wrote the capacity of a node"),
            },
            Err(error) => {
                tracing::warn!(node = name, %error, "cannot write the capacity of a node");
            }
        }
    }
}

/// Returns the agents' nodes and addresses.
///
/// # Errors
///
/// Fails with the API's errors, except 403 and 404: where the component agent is not installed, there is neither a
/// right nor a namespace.
pub(crate) async fn agents(
    client: &Client,
    namespace: &str,
) -> Result<Vec<(String, IpAddr)>, kube::Error> {
    let agents: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let labelled = ListParams::default().labels(AGENTS).match_any();
    match agents.list(&labelled).await {
        Ok(pods) => Ok(pods.items.iter().filter_map(place).collect()),
        // Without the component agent the right to list its pods does not exist either.
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => Ok(Vec::new()),
        Err(error) => {
            tracing::info!(%error, "the agents' pods cannot be listed");
            Err(error)
        }
    }
}

/// Returns the node of an agent's pod, and the agent's address.
fn place(pod: &Pod) -> Option<(String, IpAddr)> {
    let node = pod.spec.as_ref()?.node_name.clone()?;
    let ip = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
    Some((node, ip))
}

/// Removes the resources maintained here from all nodes, when Weir is removed from the cluster.
///
/// # Errors
///
/// Fails with the API's errors, except 404.
pub(crate) async fn forget(client: &Client) -> Result<(), kube::Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    for node in nodes.list(&ListParams::default()).await?.items {
        let own = capacity(&node).into_keys();
        let own: BTreeMap<_, _> = own
            .filter(|name| name.starts_with(PREFIX))
            .map(|name| (name, Value::Null))
            .collect();
        if own.is_empty() {
            continue;
        }
        let patch = Patch::Merge(json!({"status": {"capacity": own}}));
        let name = node.name_any();
        match nodes
            .patch_status(&name, &PatchParams::default(), &patch)
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            other => drop(other?),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_advertised_twice_unless_the_node_is_labelled_as_split() {
        let map = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            pairs
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect::<BTreeMap<_, _>>()
        };
        let (enabled, split) = (map(&[(GPUS, "enabled")]), map(&[(GPUS, SPLIT)]));
        for (capacity, expected) in [
            (map(&[("cpu", "8"), (SEATS, "4")]), None),
            (map(&[("nvidia.com/gpu", "0")]), None),
            (map(&[("nvidia.com/gpu", "2")]), Some("nvidia.com/gpu: 2")),
            (
                map(&[("nvidia.com/gpu.shared", "8")]),
                Some("nvidia.com/gpu.shared: 8"),
            ),
            (
                map(&[("nvidia.com/mig-1g.10gb", "7")]),
                Some("nvidia.com/mig-1g.10gb: 7"),
            ),
        ] {
            assert_eq!(advertised_twice(&enabled, &capacity).as_deref(), expected);
            assert_eq!(advertised_twice(&split, &capacity), None);
        }
    }

    #[test]
    fn an_answers_usable_slots_are_added_up() {
        let answer: Answer = serde_json::from_value(json!({
            "driver": null, "host_memory_bytes": null,
            "slots": [
                {"slot": "0", "lost": null, "seats": 8, "plan_permille": 900},
                {"slot": "1", "lost": null, "seats": 4, "plan_permille": null},
                {"slot": "2", "lost": "no such device", "seats": 8, "plan_permille": 900},
            ],
        }))
        .unwrap();
        let node = serde_json::from_value(json!({
            "metadata": {"name": "n"}, "status": {"capacity": {"memory": "4Gi"}},
        }))
        .unwrap();
        let expected = Amounts {
            seats: 12,
            host_memory_mib: 2_048,
            plan_permille: 900,
        };
        assert_eq!(answer.amounts(&node), expected);
    }
}
