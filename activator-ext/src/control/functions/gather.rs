//! The state of functions: from the caches, from pods of role `data`, and from agents.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use futures_util::{StreamExt as _, stream};
use kube::api::DynamicObject;
use kube::{ResourceExt as _, runtime::reflector::ObjectRef};
use live::answers::DataAnswer;
use policy::window::Counts;
use serde::Deserialize;
use serde_json::{Value, json};

use super::status::Variant;
use super::{Existing, Functions, Memory, Name};
use crate::control::cluster::autoscaler_kind;
use crate::control::nodes::agents;
use crate::control::query::{AGENT, CONCURRENCY, DATA};
use crate::source::kubernetes::revision;
use crate::view::Revision;

/// The label that indicates whether a Route names a revision.
const ROUTING_STATE: &str = "serving.knative.dev/routingState";
/// The labels with the names and uids of a revision's Knative Service and Configuration.
const OWNERS: [(&str, &str, &str); 2] = [
    (
        "Service",
        "serving.knative.dev/service",
        "serving.knative.dev/serviceUID",
    ),
    (
        "Configuration",
        "serving.knative.dev/configuration",
        "serving.knative.dev/configurationUID",
    ),
];
/// The label with the generation of a revision's Configuration.
const GENERATION: &str = "serving.knative.dev/configurationGeneration";

/// The state of all functions at one time.
#[derive(Default)]
pub(super) struct Gathered {
    pub(super) functions: BTreeMap<Name, FunctionState>,
    /// Whether there are pods of role `data`, and none has answered.
    pub(super) is_unanswered: bool,
    /// Number of agents that have not answered; 1 if the agents could not be listed.
    pub(super) silent_agents: usize,
    /// Variants that no Route names though their functions have other variants.
    pub(super) unrouted: BTreeMap<Name, Arc<DynamicObject>>,
}

/// The state of one function.
#[derive(Default)]
pub(super) struct FunctionState {
    pub(super) variants: Vec<Variant>,
    /// Number of ejected instances: they temporarily get no requests.
    pub(super) ejected: u64,
    /// Owner references to the variants' Knative Services or Configurations.
    pub(super) owners: Vec<Value>,
}

/// The counts of one revision by one pod of role `data`.
pub(super) struct RevisionCounts {
    pub(super) function: Name,
    pub(super) pod: String,
    pub(super) revision: String,
    pub(super) counts: Counts,
}

/// An agent's answer to `/v1/instances`.
#[derive(Debug, Deserialize)]
struct AgentAnswer {
    instances: Vec<AgentInstance>,
    refused: Vec<AgentRefused>,
}

#[derive(Debug, Deserialize)]
struct AgentInstance {
    namespace: Option<String>,
    revision: Option<String>,
    slot: Option<String>,
    slot_lost: Option<String>,
}

#[derive(Debug, Deserialize)]
struct AgentRefused {
    namespace: Option<String>,
    revision: Option<String>,
    pod: Option<String>,
    text: String,
}

impl Functions {
    /// Queries role `data` and agents, and combines their answers with the caches.
    pub(super) async fn gather(&self, memory: &mut Memory) -> Gathered {
        let mut gathered = self.variants();
        let pods = self.attacher.pods.good(&self.cluster.pods);
        let answers = stream::iter(&pods)
            .filter_map(|pod| async move { Some((&pod.name, pod.address()?)) })
            .map(|(name, ip)| async move {
                (
                    name,
                    DATA.query::<DataAnswer>(&self.identity, ip, "/v1/functions")
                        .await,
                )
            })
            .buffer_unordered(CONCURRENCY)
            .collect::<Vec<_>>()
            .await;
        let names: HashMap<Name, Name> = gathered
            .functions
            .iter()
            .flat_map(|(function, found)| {
                let of = |it: &Variant| (function.0.clone(), it.revision.clone());
                found
                    .variants
                    .iter()
                    .map(move |it| (of(it), function.clone()))
            })
            .collect();
        // By revision: each address, and whether all pods of role `data` that know the instance send requests to it.
        let mut instances: HashMap<Name, BTreeMap<String, bool>> = HashMap::new();
        gathered.is_unanswered =
            !pods.is_empty() && answers.iter().all(|(_, answer)| answer.is_err());
        let mut counted = Vec::new();
        for (pod, answer) in answers {
            match answer {
                Ok(answer) => {
                    for function in answer.functions {
                        for variant in function.variants {
                            let own = (function.namespace.clone(), variant.revision.clone());
                            let Some(name) = names.get(&own) else {
                                continue;
                            };
                            counted.push(RevisionCounts {
                                function: name.clone(),
                                pod: pod.clone(),
                                revision: variant.revision,
                                counts: Counts {
                                    judged: variant.judged,
                                    in_time: variant.in_time,
                                },
                            });
                        }
                        for instance in function.instances {
                            let own = (function.namespace.clone(), instance.revision);
                            let known = instances.entry(own).or_default();
                            *known.entry(instance.address).or_insert(true) &= !instance.ejected;
                        }
                    }
                }
                Err(error) => {
                    tracing::info!(
                        pod,
                        error,
                        "a pod of role `data` does not report the state of functions"
                    );
                }
            }
        }
        memory.observe(self.clock.now(), &counted, self.existing());
        memory
            .windows
            .retain(|name, _| gathered.functions.contains_key(name));
        for ((namespace, _), found) in &mut gathered.functions {
            for variant in &mut found.variants {
                let own = (namespace.clone(), variant.revision.clone());
                let known = instances.get(&own).into_iter().flatten();
                for (_, is_ready) in known {
                    variant.ready += u64::from(*is_ready);
                    found.ejected += u64::from(!*is_ready);
                }
            }
        }
        let all = gathered.functions.values().flat_map(|it| &it.variants);
        if all.into_iter().any(|variant| variant.uses_gpu) {
            self.place(&mut gathered).await;
        }
        gathered
    }

    fn existing(&self) -> Existing {
        let pods = self.cluster.pods.state();
        let revisions = self.cluster.revisions.state();
        let revisions = revisions.iter().filter_map(|object| revision(object));
        let opted_in = revisions.filter(|it| it.settings.opted_in());
        Existing {
            pods: pods.iter().map(|pod| pod.name_any()).collect(),
            revisions: opted_in
                .map(|it| (it.name.namespace, it.name.name))
                .collect(),
        }
    }

    /// Returns the variants of all functions that have opted in, by the caches.
    fn variants(&self) -> Gathered {
        let mut gathered = Gathered::default();
        let objects = self.cluster.revisions.state();
        let mut newest: HashMap<Name, (u64, bool)> = HashMap::new();
        let mut known = Vec::new();
        for object in &objects {
            if object.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let Some(revision) = revision(object).filter(|it| it.settings.opted_in()) else {
                continue;
            };
            let label = |key| object.labels().get(key).map(String::as_str);
            let is_active = label(ROUTING_STATE).is_none_or(|state| state == "active");
            let generation = label(GENERATION)
                .and_then(|it| it.parse().ok())
                .unwrap_or(0);
            let own = configuration_of(&revision);
            // The newest generation, and whether any generation is active.
            let newest = newest.entry(own).or_insert((generation, false));
            newest.0 = newest.0.max(generation);
            newest.1 |= is_active;
            known.push((object, revision, is_active, generation));
        }
        for (object, revision, is_active, generation) in known {
            let (last, any_active) = newest[&configuration_of(&revision)];
            let is_newest = generation == last;
            // A revision without a Route is a variant only if its Configuration has no other.
            if !(is_active || is_newest && !any_active) {
                continue;
            }
            let name = (revision.name.namespace.clone(), revision.label().to_owned());
            let found = gathered.functions.entry(name).or_default();
            if !is_active && revision.settings.function.is_some() {
                let own = (revision.name.namespace.clone(), revision.name.name.clone());
                gathered.unrouted.insert(own, Arc::clone(object));
            }
            found.owners.extend(owner(object));
            found.variants.push(self.variant(object, &revision));
        }
        for found in gathered.functions.values_mut() {
            found.variants.sort_by(|a, b| a.revision.cmp(&b.revision));
            found
                .owners
                .sort_by_key(|owner| (owner["kind"].to_string(), owner["name"].to_string()));
            found.owners.dedup();
        }
        // A function with one variant needs no event.
        let functions = &gathered.functions;
        gathered.unrouted.retain(|(namespace, name), _| {
            functions.iter().any(|(function, found)| {
                function.0 == *namespace
                    && found.variants.len() > 1
                    && found.variants.iter().any(|it| it.revision == *name)
            })
        });
        gathered
    }

    fn variant(&self, object: &DynamicObject, revision: &Revision) -> Variant {
        let of = ObjectRef::new_with(&revision.name.name, autoscaler_kind())
            .within(&revision.name.namespace);
        let autoscaler = self.cluster.autoscalers.get(&of);
        let desired = autoscaler.and_then(|it| it.data["status"]["desiredScale"].as_u64());
        let settings = &revision.settings;
        let owner = if revision.service.is_empty() {
            &revision.configuration
        } else {
            &revision.service
        };
        Variant {
            owner: owner.clone(),
            revision: revision.name.name.clone(),
            version: settings.version.clone(),
            is_pipeline: settings.variant == annotations::Variant::Pipeline,
            uses_gpu: settings.uses_gpu(),
            objective: settings.slo,
            not_ready: not_ready(object),
            attached: self.attacher.reported_status(&revision.name),
            wanted: desired.unwrap_or(0),
            ..Variant::default()
        }
    }

    /// Queries agents for the slots of instances, and for refused instances.
    async fn place(&self, gathered: &mut Gathered) {
        let Ok(agents) = agents(&self.client, &self.agent_namespace).await else {
            gathered.silent_agents = 1;
            return;
        };
        let answers = stream::iter(&agents)
            .map(|(node, ip): &(String, IpAddr)| async move {
                (
                    node,
                    AGENT
                        .query::<AgentAnswer>(&self.identity, *ip, "/v1/instances")
                        .await,
                )
            })
            .buffer_unordered(CONCURRENCY)
            .collect::<Vec<_>>()
            .await;
        let mut slots: HashMap<Name, Vec<String>> = HashMap::new();
        let mut refused: HashMap<Name, Vec<String>> = HashMap::new();
        for (node, answer) in answers {
            let Ok(answer) = answer else {
                gathered.silent_agents += 1;
                continue;
            };
            for instance in answer.instances {
                let own = instance.namespace.zip(instance.revision);
                if let (Some(own), Some(slot), None) = (own, instance.slot, instance.slot_lost) {
                    slots.entry(own).or_default().push(format!("{node}/{slot}"));
                }
            }
            for own in answer.refused {
                if let Some(name) = own.namespace.zip(own.revision) {
                    let pod = own.pod.unwrap_or_default();
                    let text = format!("{pod} on {node}: {}", own.text);
                    refused.entry(name).or_default().push(text);
                }
            }
        }
        for ((namespace, _), found) in &mut gathered.functions {
            for variant in found.variants.iter_mut().filter(|it| it.uses_gpu) {
                let own = (namespace.clone(), variant.revision.clone());
                variant.slots = slots.remove(&own).unwrap_or_default();
                variant.slots.sort();
                variant.refused = refused.remove(&own).unwrap_or_default();
                variant.refused.sort();
            }
        }
    }
}

/// Returns the namespace and name of a revision's Configuration, or of the revision itself if it has none.
fn configuration_of(revision: &Revision) -> Name {
    let own = if revision.configuration.is_empty() {
        &revision.name.name
    } else {
        &revision.configuration
    };
    (revision.name.namespace.clone(), own.clone())
}

/// Returns the reference to a revision's Knative Service, or to its Configuration if it has no Service.
fn owner(object: &DynamicObject) -> Option<Value> {
    let label = |key: &str| object.labels().get(key).filter(|value| !value.is_empty());
    OWNERS.iter().find_map(|(kind, name, uid)| {
        let (name, uid) = (label(name)?, label(uid)?);
        Some(
            json!({"apiVersion": "serving.knative.dev/v1", "kind": kind, "name": name, "uid": uid}),
        )
    })
}

/// Returns the reason and message of a revision's condition Ready if it is not True.
fn not_ready(object: &DynamicObject) -> Option<(String, String)> {
    let conditions = object.data["status"]["conditions"].as_array()?;
    let ready = conditions.iter().find(|it| it["type"] == "Ready")?;
    if ready["status"] == "True" {
        return None;
    }
    let part = |key: &str| ready[key].as_str().unwrap_or_default().to_owned();
    Some((part("reason"), part("message")))
}
