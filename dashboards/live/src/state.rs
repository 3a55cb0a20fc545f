//! The state shown by the page. Names and texts come from users: show them as text, never as markup.

use serde::{Deserialize, Serialize};

/// The state of a cluster at one time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Time of gathering in milliseconds since 1970, UTC.
    pub unix_ms: u64,
    /// Functions, the worst attainment first, then by name.
    pub functions: Vec<FunctionState>,
    /// Slots by node and name.
    pub slots: Vec<SlotState>,
    /// Events, the latest first.
    pub events: Vec<EventState>,
    /// Notices about missing information, for operators.
    pub notices: Vec<String>,
    /// Numbers of omitted functions and slots.
    pub left_out: LeftOut,
}

/// The state of a function.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FunctionState {
    /// Namespace of the function.
    pub namespace: String,
    /// Name of the function.
    pub name: String,
    /// Status of the function.
    pub state: FunctionStatus,
    /// Shortest latency objective of the function's revisions, in ms; `None`: no objective.
    pub objective_ms: Option<u64>,
    /// Percentage of requests that have to meet the objective.
    pub percentile: Option<f64>,
    /// Number of requests judged in the last five minutes.
    pub judged: u64,
    /// Number of judged requests that were in time.
    pub in_time: u64,
    /// Number of waiting requests.
    pub waiting: u64,
    /// Number of waiting requests by the time to their latest start: late, below 0.1 s, 1 s, 10 s, others.
    pub by_slack: [u64; 5],
    /// Number of requests at instances.
    pub running: u64,
    /// Number of instances that get requests.
    pub ready: u64,
    /// Number of ejected instances, which temporarily get no requests.
    pub ejected: u64,
}

/// The status of a function: the first in this order that applies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FunctionStatus {
    /// Waiting requests cannot meet their objective any more.
    Late,
    /// Requests wait and there is no instance.
    ColdStart,
    /// Some instances of the function are ejected.
    Ejected,
    /// Requests of the function bypass role `data`.
    Detached,
    /// The function has instances that get requests.
    Serving,
    /// There is no instance, and no request.
    #[default]
    Idle,
}

/// The state of a slot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotState {
    /// Name of the slot's node.
    pub node: String,
    /// Name of the slot on its node.
    pub slot: String,
    /// Product name of the GPU.
    pub product: String,
    /// Kind of the slot: `mps`, `mig` or another.
    pub kind: String,
    /// Reason why the slot is lost; `None` if it is not.
    pub lost: Option<String>,
    /// Number of pods that hold a token.
    pub holders: u64,
    /// Number of pods that wait for a token.
    pub waiters: u64,
    /// Percentage of time in which a kernel ran, for each cell of five seconds of the last five minutes, the oldest
    /// first; `None`: the slot was not present.
    pub busy: Vec<Option<u8>>,
}

/// An event of an agent or of role `control`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventState {
    /// Time of the event in milliseconds since 1970, UTC.
    pub unix_ms: u64,
    /// Kind of the event, for example `pod-added`.
    pub kind: String,
    /// Object concerned: a node and slot, a pod, or a revision.
    pub about: String,
    /// Description for an operator.
    pub text: String,
}

/// Numbers of entries omitted from a state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Number of omitted functions, which need no attention.
    pub functions: usize,
    /// Number of omitted slots.
    pub slots: usize,
}
