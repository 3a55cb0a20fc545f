//! What the token scheduler orders, and why.

use std::fmt;

use super::{PodId, ProcessId};
use crate::Time;

/// An order to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The process may launch until a [`Action::Close`] has been carried out.
    Grant {
        /// Who.
        process: ProcessId,
        /// When the gate shuts by itself if nothing is heard any more. A backstop: a close comes as an
        /// action, a renewal comes before this time.
        until: Time,
        /// Why it, why now.
        reason: GrantReason,
    },
    /// The token of a holder is renewed.
    Extend {
        /// Who.
        process: ProcessId,
        /// The new backstop, later than the one before.
        until: Time,
    },
    /// The gate is to be shut; its SMs stay occupied until [`super::Tokens::closed`] or
    /// [`super::Tokens::remove_process`].
    Close {
        /// Who.
        process: ProcessId,
        /// Why.
        reason: CloseReason,
    },
    /// Whether somebody who could run waits for SMs that this holder has. It should then give its token
    /// back as soon as it has been idle for about a hand-over. False at every grant.
    Contended {
        /// Who.
        process: ProcessId,
        /// Whether it should.
        contended: bool,
    },
    /// The process, which holds a token or waits for one, is to be asked for a sign of life, which is reported with
    /// [`super::Tokens::responds`]; or it is found to be stopped ([`super::Tokens::stopped`]).
    Probe {
        /// The process.
        process: ProcessId,
    },
    /// The gate is to be shut at once, and the token counts as given back: nothing of the process is in flight, as far as can be
    /// known without it. A late word that its gate is shut is to be ignored.
    Revoke {
        /// The process.
        process: ProcessId,
        /// Why it loses its token.
        reason: RevokeReason,
    },
}

/// Why a token is revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevokeReason {
    /// Others wait, and nothing of the process was in flight.
    Idle,
    /// Others wait, its work should have ended, and it gives no sign of life.
    Unresponsive,
}

/// Why a process gets a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantReason {
    /// Its pod has had less than its request.
    Guarantee,
    /// Its pod has had its request, and there is time left that nobody is owed.
    Surplus,
    /// One before it in the order does not fit, and may still be overtaken.
    Backfill,
    /// The rule holds nobody back at this point.
    Unconditional,
}

/// Why a process loses its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// It is another's turn.
    Turn,
    /// Its pod has used what its limit allows.
    Limit,
    /// Its pod was stopped.
    Stopped,
    /// Its pod was removed.
    Removed,
    /// It was found with an open gate, and others have the SMs.
    Adopted,
}

/// Why a pod or process is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Ids are indices: they have to be below [`super::IDS_MAX`].
    IdTooLarge {
        /// The id.
        id: u32,
    },
    /// A pod of this id is there, or still has processes.
    PodTaken {
        /// Which.
        pod: PodId,
    },
    /// There is no such pod.
    NoSuchPod {
        /// Which.
        pod: PodId,
    },
    /// A process of this id is there.
    ProcessTaken {
        /// Which.
        process: ProcessId,
    },
    /// A process needs at least one part of the SMs, and must fit on the slot alone.
    SmOutOfRange {
        /// What it needs, in hundredths of a percent.
        sm: u32,
        /// What there is.
        limit: u32,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IdTooLarge { id } => {
                write!(f, "id {id} is not below {}", super::IDS_MAX)
            }
            Self::PodTaken { pod } => write!(f, "pod {} is there already", pod.0),
            Self::NoSuchPod { pod } => write!(f, "there is no pod {}", pod.0),
            Self::ProcessTaken { process } => {
                write!(f, "process {} is there already", process.0)
            }
            Self::SmOutOfRange { sm, limit } => write!(
                f,
                "a process has between 1 and {limit} hundredths of a percent of the SMs, not {sm}"
            ),
        }
    }
}

impl std::error::Error for Refusal {}
