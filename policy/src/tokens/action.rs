//! Orders of the token scheduler, with their reasons.

use std::fmt;

use super::{PodId, ProcessId};
use crate::Time;

/// Order to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Allow the process to launch until an [`Action::Close`] has been carried out.
    Grant {
        /// Id of the process.
        process: ProcessId,
        /// Time at which the gate shuts by itself if no other order arrives. This is a backstop: a close comes as an
        /// action, and a renewal comes before this time.
        until: Time,
        /// Reason why this process gets a token now.
        reason: GrantReason,
    },
    /// Renew the token of a holder.
    Extend {
        /// Id of the process.
        process: ProcessId,
        /// New backstop, later than the one before.
        until: Time,
    },
    /// Shut the gate. The process occupies its SMs until [`super::Tokens::closed`] or
    /// [`super::Tokens::remove_process`].
    Close {
        /// Id of the process.
        process: ProcessId,
        /// Reason for closing the process.
        reason: CloseReason,
    },
    /// Notify a holder whether a process that could run waits for its SMs. A contended holder should give its token
    /// back as soon as it has been idle for about a hand-over. False at every grant.
    Contended {
        /// Id of the process.
        process: ProcessId,
        /// Whether the SMs are contended.
        contended: bool,
    },
    /// Probe the process, which holds a token or waits for one, for a sign of life. An answer is reported by
    /// [`super::Tokens::responds`], a process found to be stopped by [`super::Tokens::stopped`], and a probe that could not be sent by
    /// [`super::Tokens::unreached`].
    Probe {
        /// Id of the process.
        process: ProcessId,
    },
    /// Shut the gate at once. The token counts as given back: nothing of the process is in flight, as far as can be
    /// known without it. A late report that its gate is shut must be ignored.
    Revoke {
        /// Id of the process.
        process: ProcessId,
        /// Reason for revoking the token.
        reason: RevokeReason,
    },
}

/// Reason why a token is revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevokeReason {
    /// Other processes wait, and nothing of this one was in flight.
    Idle,
    /// Other processes wait, and this one does not respond although its work should have ended.
    Unresponsive,
}

/// Reason why a process gets a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantReason {
    /// The pod has had less than its request.
    Guarantee,
    /// The pod has had its request, and there is time left that is owed to no pod.
    Surplus,
    /// An earlier process in the order does not fit, and may still be overtaken.
    Backfill,
    /// The rule holds no process back at this point.
    Unconditional,
}

/// Reason why a process loses its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The turn of the process is over, and another one waits.
    Turn,
    /// The pod has used what its limit allows.
    Limit,
    /// The pod was stopped.
    Stopped,
    /// The pod was removed.
    Removed,
    /// The process was found with an open gate, and other processes have the SMs.
    Adopted,
}

/// Reason why a pod or process is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The id is not below [`super::IDS_MAX`]; ids are indices into tables.
    IdTooLarge {
        /// Value of the id.
        id: u32,
    },
    /// A pod of this id exists, or still has processes.
    PodTaken {
        /// Id of the pod.
        pod: PodId,
    },
    /// No pod of this id exists.
    NoSuchPod {
        /// Id of the pod.
        pod: PodId,
    },
    /// A process of this id exists.
    ProcessTaken {
        /// Id of the process.
        process: ProcessId,
    },
    /// The SMs of a process are zero, or more than the slot allows.
    SmOutOfRange {
        /// Requested SMs, in hundredths of a percent.
        sm: u32,
        /// Largest number of SMs, in hundredths of a percent.
        limit: u32,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IdTooLarge { id } => {
                write!(f, "id {id} must be below {}", super::IDS_MAX)
            }
            Self::PodTaken { pod } => write!(f, "pod {} already exists", pod.0),
            Self::NoSuchPod { pod } => write!(f, "pod {} does not exist", pod.0),
            Self::ProcessTaken { process } => {
                write!(f, "process {} already exists", process.0)
            }
            Self::SmOutOfRange { sm, limit } => write!(
                f,
                "sm must be between 1 and {limit} hundredths of a percent, not {sm}"
            ),
        }
    }
}

impl std::error::Error for Refusal {}
