//! What the page shows. Names and texts are of users: a page shows them as text, never as markup.

use serde::{Deserialize, Serialize};

/// Everything at a time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// When it was gathered, in milliseconds since 1970, UTC.
    pub unix_ms: u64,
    /// The worst attainment first, by name where that is the same.
    pub functions: Vec<FunctionState>,
    /// By node and name.
    pub slots: Vec<SlotState>,
    /// The latest first.
    pub events: Vec<EventState>,
    /// What is not known, and why, for people.
    pub notices: Vec<String>,
    /// How many of each there is no room for.
    pub left_out: LeftOut,
}

/// A function.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FunctionState {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// How it stands.
    pub state: Standing,
    /// Its objective, in ms; of several revisions the shortest.
    pub objective_ms: Option<u64>,
    /// The part of requests that is to be within it, in percent.
    pub percentile: Option<f64>,
    /// Requests judged in the last five minutes.
    pub judged: u64,
    /// Those of them that were in time.
    pub in_time: u64,
    /// Requests that wait.
    pub waiting: u64,
    /// The same by the time to their latest start times: late, below 0.1 s, 1 s, 10 s, others.
    pub by_slack: [u64; 5],
    /// Requests at instances.
    pub running: u64,
    /// Instances that get requests.
    pub ready: u64,
    /// Instances that get none for a while.
    pub ejected: u64,
}

/// How a function stands: the first that holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// Requests wait which cannot meet their objective any more.
    Late,
    /// Requests wait and there is no instance.
    ColdStart,
    /// Instances are ejected.
    Ejected,
    /// Requests go Knative's way.
    Detached,
    /// It serves.
    Serving,
    /// There is no instance, and no request.
    #[default]
    Idle,
}

/// A slot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotState {
    /// Its node.
    pub node: String,
    /// Its name on the node.
    pub slot: String,
    /// The GPU's product name.
    pub product: String,
    /// `mps`, `mig` or another kind.
    pub kind: String,
    /// Why it is not there.
    pub lost: Option<String>,
    /// Pods that hold a token.
    pub holders: u64,
    /// Pods that wait for one.
    pub waiters: u64,
    /// The last five minutes in cells of five seconds, the oldest first: the time in which a kernel ran, in percent.
    pub busy: Vec<Option<u8>>,
}

/// Something that happened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventState {
    /// Milliseconds since 1970, UTC.
    pub unix_ms: u64,
    /// What kind of thing.
    pub kind: String,
    /// What it is about: a node and slot, a pod, a revision.
    pub about: String,
    /// For people.
    pub text: String,
}

/// How many there is no room for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Functions that need no attention.
    pub functions: usize,
    /// Slots.
    pub slots: usize,
}
