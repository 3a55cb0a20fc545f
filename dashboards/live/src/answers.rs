//! What Weir's programs answer when they are asked how they stand. Keys that are not named here are ignored; those that an earlier
//! release does not have are defaults.

use serde::Deserialize;

/// Role `data` on `/v1/functions`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct DataAnswer {
    /// All functions that have opted in.
    pub functions: Vec<DataFunction>,
}

/// A function as a pod of role `data` knows it.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct DataFunction {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    #[serde(default)]
    pub function: String,
    /// Requests that wait.
    #[serde(default)]
    pub waiting: u64,
    /// The same by the time to their latest start times: late, below 0.1 s, 1 s, 10 s, others.
    #[serde(default)]
    pub waiting_by_slack: Vec<u64>,
    /// Its revisions.
    pub variants: Vec<DataVariant>,
    /// Its pods.
    pub instances: Vec<DataInstance>,
}

/// A revision of a function.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct DataVariant {
    /// Its name.
    pub revision: String,
    /// Its objective, in ms.
    #[serde(default)]
    pub objective_ms: Option<u64>,
    /// The part of requests that is to be within it, in percent.
    #[serde(default)]
    pub percentile: Option<f64>,
    /// Requests judged since the pod began.
    pub judged: u64,
    /// Those of them that were in time.
    pub in_time: u64,
}

/// An instance of a function.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct DataInstance {
    /// Its address and port.
    pub address: String,
    /// The revision that it is of.
    pub revision: String,
    /// Requests at it.
    #[serde(default)]
    pub requests: u64,
    /// It gets no requests for a while.
    #[serde(default)]
    pub ejected: bool,
}

/// An agent on `/v1/slots`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct SlotsAnswer {
    /// Its node's slots.
    pub slots: Vec<AgentSlot>,
}

/// A slot as its agent knows it.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct AgentSlot {
    /// Its name on the node.
    pub slot: String,
    /// The GPU's product name.
    #[serde(default)]
    pub product: String,
    /// `mps`, `mig` or another kind.
    #[serde(default)]
    pub kind: String,
    /// Why it is not there.
    #[serde(default)]
    pub lost: Option<String>,
    /// Its tokens; `None`: it was not there yet.
    #[serde(default)]
    pub tokens: Option<AgentTokens>,
    /// The last five minutes.
    #[serde(default)]
    pub recent: AgentRecent,
}

/// Tokens of a slot.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct AgentTokens {
    /// Pods that hold one.
    pub holders: u64,
    /// Pods that wait for one.
    pub waiters: u64,
}

/// How busy a slot was.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct AgentRecent {
    /// For each cell of five seconds, the oldest first, the time in which a kernel ran, in percent; `None`: the slot was not there.
    pub busy_percent: Vec<Option<u8>>,
}

/// A line of an agent's `/v1/events?after=N`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct AgentEvent {
    /// Counted up with each.
    pub sequence: u64,
    /// Milliseconds since 1970, UTC.
    pub unix_ms: u64,
    /// What kind of thing happened.
    pub kind: String,
    /// The slot that it is about.
    #[serde(default)]
    pub slot: Option<String>,
    /// The pod that it is about.
    #[serde(default)]
    pub pod: Option<String>,
    /// For people.
    pub text: String,
}

/// Reads JSON lines.
///
/// # Errors
/// A line that is no event.
pub fn agent_events(lines: &[u8]) -> Result<Vec<AgentEvent>, serde_json::Error> {
    serde_json::Deserializer::from_slice(lines)
        .into_iter()
        .collect()
}
