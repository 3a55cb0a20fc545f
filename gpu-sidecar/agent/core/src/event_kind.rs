//! Kinds of entries in the event log.

use serde::Serialize;

/// Kind of an event; its kebab-case name is in the JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the names are self-explanatory")]
pub enum EventKind {
    AgentStarted,
    AgentStopping,
    SlotAdded,
    SlotLost,
    SlotBack,
    NvmlUnavailable,
    DeviceError,
    MpsUp,
    MpsDown,
    MpsUnable,
    MpsClientsFailed,
    PodAdded,
    PodChanged,
    PodRemoved,
    PodRefused,
    ProcessConnected,
    ProcessGone,
    ProcessRefused,
    ProcessReport,
    ProcessKilled,
    ProcessFaulted,
    MemoryDisagrees,
    Evicted,
    Restored,
    EvictRefused,
    RestoreFailed,
}
