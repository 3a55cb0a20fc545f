//! Decisions of a router, with their reasons.

use super::bindings::BindingId;
use super::instance::InstanceId;
pub use crate::gate::RefuseReason;
use crate::queue::Ticket;
use crate::{RequestId, Time};

/// Reason why a request is bound to an instance now: the values of the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteReason {
    /// A place was free on arrival, or places are not limited.
    Free,
    /// Among the waiting requests that can meet their deadline, this one had the earliest latest start.
    Turn,
    /// No waiting request can meet its deadline there, and this one arrived first.
    LateTurn,
    /// The request has waited many times its objective ([`AGING_PERIOD`](crate::gate::AGING_PERIOD)).
    Aging,
    /// The rule binds requests on arrival.
    Arrival,
}

impl RouteReason {
    /// All reasons, each at the index of its discriminant.
    pub const ALL: [Self; 5] = [
        Self::Free,
        Self::Turn,
        Self::LateTurn,
        Self::Aging,
        Self::Arrival,
    ];

    /// Returns the value of the label `reason`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Turn => "turn",
            Self::LateTurn => "late-turn",
            Self::Aging => "ageing",
            Self::Arrival => "arrival",
        }
    }
}

/// Reason why an instance gets no requests for a while: the values of the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EjectReason {
    /// The instance accepted no connection, several times in a row.
    Connect,
    /// The instance missed a probe.
    Probe,
}

impl EjectReason {
    /// All reasons, each at the index of its discriminant.
    pub const ALL: [Self; 2] = [Self::Connect, Self::Probe];

    /// Returns the value of the label `reason`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Probe => "probe",
        }
    }
}

/// Immediate outcome for an arriving request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The request is bound to an instance now.
    Bound {
        /// Handle of the request at the instance.
        binding: BindingId,
        /// Instance to which the request is sent.
        instance: InstanceId,
        /// Reason for binding it now.
        reason: RouteReason,
    },
    /// The request waits; a later [`Action`] names this ticket.
    Waits(Ticket),
    /// The request is refused.
    Refused(RefuseReason),
}

/// Decision about other requests, or about an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A request that waited is bound to an instance now.
    Bind {
        /// Ticket with which the request waited.
        ticket: Ticket,
        /// Id of the request.
        id: RequestId,
        /// Handle of the request at the instance.
        binding: BindingId,
        /// Instance to which the request is sent.
        instance: InstanceId,
        /// Reason for binding it now.
        reason: RouteReason,
    },
    /// A request that waited loses its place.
    Refuse {
        /// Ticket with which the request waited.
        ticket: Ticket,
        /// Id of the request.
        id: RequestId,
        /// Reason why the request is refused.
        reason: RefuseReason,
    },
    /// An instance gets no more requests for a while.
    Eject {
        /// Id of the instance.
        instance: InstanceId,
        /// Reason for the ejection.
        reason: EjectReason,
        /// Earliest end of the ejection, unless the instance answers a probe before.
        until: Time,
    },
    /// An instance gets requests again.
    Return {
        /// Id of the instance.
        instance: InstanceId,
    },
}
