//! Answers of Weir's programs to queries about their state. Unknown keys are ignored; keys missing in an earlier
//! release get their defaults.

use serde::Deserialize;

/// The answer of role `data` to `/v1/functions`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct DataAnswer {
    /// All functions that have opted in.
    pub functions: Vec<DataFunction>,
}

/// The state of a function in a pod of role `data`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct DataFunction {
    /// Namespace of the function.
    pub namespace: String,
    /// Name of the function, the label of its metrics.
    #[serde(default)]
    pub function: String,
    /// Number of waiting requests.
    #[serde(default)]
    pub waiting: u64,
    /// Number of waiting requests by the time to their latest start: late, below 0.1 s, 1 s, 10 s, others.
    #[serde(default)]
    pub waiting_by_slack: Vec<u64>,
    /// Revisions of the function.
    pub variants: Vec<DataVariant>,
    /// Pods of the function.
    pub instances: Vec<DataInstance>,
}

/// The state of a revision.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct DataVariant {
    /// Name of the revision.
    pub revision: String,
    /// Latency objective in ms; `None`: no objective.
    #[serde(default)]
    pub objective_ms: Option<u64>,
    /// Percentage of requests that have to meet the objective.
    #[serde(default)]
    pub percentile: Option<f64>,
    /// Number of requests judged since the pod started.
    pub judged: u64,
    /// Number of judged requests that were in time.
    pub in_time: u64,
}

/// The state of an instance of a function.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct DataInstance {
    /// IP address and port of the instance.
    pub address: String,
    /// Name of the instance's revision.
    pub revision: String,
    /// Number of requests at the instance.
    #[serde(default)]
    pub requests: u64,
    /// Whether the instance is ejected: it temporarily gets no requests.
    #[serde(default)]
    pub ejected: bool,
}

/// The answer of an agent to `/v1/slots`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct SlotsAnswer {
    /// Slots of the agent's node.
    pub slots: Vec<AgentSlot>,
}

/// The state of a slot in its agent.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct AgentSlot {
    /// Name of the slot on its node.
    pub slot: String,
    /// Product name of the GPU.
    #[serde(default)]
    pub product: String,
    /// Kind of the slot: `mps`, `mig` or another.
    #[serde(default)]
    pub kind: String,
    /// Reason why the slot is lost; `None` if it is not.
    #[serde(default)]
    pub lost: Option<String>,
    /// Numbers of pods of the slot with and without a token; `None` if the slot has never been present.
    #[serde(default)]
    pub tokens: Option<AgentTokens>,
    /// Use of the slot in the last five minutes.
    #[serde(default)]
    pub recent: AgentRecent,
}

/// Numbers of pods with and without tokens of a slot.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct AgentTokens {
    /// Number of pods that hold a token.
    pub holders: u64,
    /// Number of pods that wait for a token.
    pub waiters: u64,
}

/// The recent use of a slot.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct AgentRecent {
    /// Percentage of time in which a kernel ran, for each cell of five seconds, the oldest first; `None`: the slot was
    /// not present.
    pub busy_percent: Vec<Option<u8>>,
}

/// A line of an agent's answer to `/v1/events?after=N`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct AgentEvent {
    /// Number of the event, which increases by one with each event.
    pub sequence: u64,
    /// Time of the event in milliseconds since 1970, UTC.
    pub unix_ms: u64,
    /// Kind of the event, for example `pod-added`.
    pub kind: String,
    /// Slot concerned by the event, if any.
    #[serde(default)]
    pub slot: Option<String>,
    /// Pod concerned by the event, if any.
    #[serde(default)]
    pub pod: Option<String>,
    /// Description for an operator.
    pub text: String,
}

/// Parses JSON lines of events.
///
/// # Errors
///
/// Fails at a line that is no event.
pub fn agent_events(lines: &[u8]) -> Result<Vec<AgentEvent>, serde_json::Error> {
    serde_json::Deserializer::from_slice(lines)
        .into_iter()
        .collect()
}
