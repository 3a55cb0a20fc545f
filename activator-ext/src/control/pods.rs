//! The pods of role `data`: which are ready, and which answer probes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::runtime::reflector::Store;
use policy::attach::{Health, Owner};
use tokio::time::timeout;

use super::hash;
use crate::probe;

/// Period at which each pod is probed.
pub(crate) const PROBE_PERIOD: Duration = Duration::from_secs(1);
/// Longest time for the answer to a probe.
const PROBE_WITHIN: Duration = Duration::from_millis(800);
/// The port that is probed, on which pods accept requests.
const PORT: u16 = 8012;

/// A pod of role `data` that Kubernetes considers ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DataPod {
    pub(crate) name: String,
    pub(crate) owner: Owner,
    ips: Vec<IpAddr>,
}

/// Results of probes, by the pods' names.
#[derive(Debug, Default)]
pub(crate) struct DataPods {
    health: Mutex<BTreeMap<String, Health>>,
}

impl DataPod {
    /// Returns the pod if it is ready, is not being deleted and has an address.
    fn of(pod: &Pod) -> Option<Self> {
        let status = pod.status.as_ref()?;
        let mut conditions = status.conditions.iter().flatten();
        let is_ready = conditions.any(|it| it.type_ == "Ready" && it.status == "True");
        if !is_ready || pod.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let ips = status.pod_ips.iter().flatten().map(|ip| &ip.ip);
        let mut ips: Vec<_> = ips.filter_map(|ip| ip.parse().ok()).collect();
        let only = status.pod_ip.as_ref().and_then(|ip| ip.parse().ok());
        if let Some(ip) = only.filter(|ip| !ips.contains(ip)) {
            ips.insert(0, ip);
        }
        let name = pod.name_any();
        Some(Self {
            owner: Owner(hash(&name)),
            name,
            ips,
        })
        .filter(|pod| !pod.ips.is_empty())
    }

    /// Returns the first address of the pod.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.ips.first().copied()
    }

    /// Returns the addresses of the pod of a family, `IPv4` or `IPv6`.
    pub(crate) fn addresses(&self, family: &str) -> impl Iterator<Item = IpAddr> {
        let is_v6 = family == "IPv6";
        self.ips
            .iter()
            .copied()
            .filter(move |ip| ip.is_ipv6() == is_v6)
    }
}

impl DataPods {
    /// Probes every ready pod. Returns whether the set of pods considered to answer has changed.
    pub(crate) async fn probe(&self, pods: &Store<Pod>) -> bool {
        let ready = ready(pods);
        let answers = ready.iter().map(async |pod| {
            let address = SocketAddr::new(*pod.ips.first()?, PORT);
            let answer = timeout(PROBE_WITHIN, probe::takes_requests(address)).await;
            Some((pod.name.clone(), answer.unwrap_or(false)))
        });
        let answers = join_all(answers).await;
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        let before: Vec<_> = good(&health);
        health.retain(|name, _| ready.iter().any(|pod| pod.name == *name));
        for (name, is_answered) in answers.into_iter().flatten() {
            health.entry(name).or_default().probed(is_answered);
        }
        good(&health) != before
    }

    /// Returns the pods that are ready and answer probes, by name.
    pub(crate) fn good(&self, pods: &Store<Pod>) -> Vec<DataPod> {
        let health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        let is_good = |pod: &DataPod| health.get(&pod.name).is_some_and(|it| it.is_good());
        let mut pods = ready(pods);
        pods.retain(is_good);
        pods.sort_by(|a, b| a.name.cmp(&b.name));
        pods
    }
}

/// Returns the pods that Kubernetes considers ready.
pub(crate) fn ready(pods: &Store<Pod>) -> Vec<DataPod> {
    let all = pods.state();
    all.iter().filter_map(|pod| DataPod::of(pod)).collect()
}

fn good(health: &BTreeMap<String, Health>) -> Vec<String> {
    let good = health.iter().filter(|(_, health)| health.is_good());
    good.map(|(name, _)| name.clone()).collect()
}
