//! What a router answers.

use super::bindings::BindingId;
use super::instance::InstanceId;
pub use crate::gate::RefuseReason;
use crate::queue::Ticket;
use crate::{RequestId, Time};

/// Why a request goes to an instance now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteReason {
    /// A place was free when it came, or places are not limited.
    Free,
    /// Of those that wait and can make it, its latest start was first.
    Turn,
    /// None that waits can make it there, and it came first.
    LateTurn,
    /// It has waited many times its objective ([`AGEING_PERIOD`](crate::gate::AGEING_PERIOD)).
    Ageing,
    /// The rule binds at arrival.
    Arrival,
}

impl RouteReason {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Free,
        Self::Turn,
        Self::LateTurn,
        Self::Ageing,
        Self::Arrival,
    ];

    /// Returns the value of the label `reason`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Turn => "turn",
            Self::LateTurn => "late-turn",
            Self::Ageing => "ageing",
            Self::Arrival => "arrival",
        }
    }
}

/// Why an instance gets no requests for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EjectReason {
    /// It accepted no connection, several times in a row.
    Connect,
    /// It missed a probe.
    Probe,
}

impl EjectReason {
    /// All of them.
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

/// What becomes of an arriving request at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It goes to an instance now.
    Bound {
        /// By which the router knows it there.
        binding: BindingId,
        /// Where.
        instance: InstanceId,
        /// Why.
        reason: RouteReason,
    },
    /// It waits; an [`Action`] will name this ticket.
    Waits(Ticket),
    /// It gets no place.
    Refused(RefuseReason),
}

/// What becomes of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A request that waited goes to an instance now.
    Bind {
        /// The ticket it waited with.
        ticket: Ticket,
        /// The request.
        id: RequestId,
        /// By which the router knows it there.
        binding: BindingId,
        /// Where.
        instance: InstanceId,
        /// Why.
        reason: RouteReason,
    },
    /// A request that waited loses its place.
    Refuse {
        /// The ticket it waited with.
        ticket: Ticket,
        /// The request.
        id: RequestId,
        /// Why.
        reason: RefuseReason,
    },
    /// An instance gets no more requests.
    Eject {
        /// Which.
        instance: InstanceId,
        /// Why.
        reason: EjectReason,
        /// Until then at least, unless it answers a probe.
        until: Time,
    },
    /// An instance gets requests again.
    Return {
        /// Which.
        instance: InstanceId,
    },
}
