//! The accounts of a scheduler, for metrics.

use super::{PodId, ProcessId, Tokens, sum};
use crate::Span;

/// Resources that a pod has had so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Account {
    /// Wall time in which a kernel of the pod ran.
    pub used: Span,
    /// That time × the SMs that the pod's holders occupied when it was reported, in time of the whole GPU. The
    /// processes of a pod count as if they ran at the same time.
    pub sm_time: Span,
    /// Time for which the pod's processes waited for tokens, summed over all of them, without those that still wait.
    pub waited: Span,
    /// Number of tokens granted.
    pub grants: u64,
    /// Number of tokens taken away; tokens that were given back do not count.
    pub closes: u64,
    /// Number of tokens revoked because they were not used or their holder did not respond.
    pub revoked: u64,
    /// Time for which the pod held a token without anything in flight while others waited, as far as it was charged.
    pub held_idle: Span,
    /// Time charged against the pod's quota: kernel time, [`Account::held_idle`], and what was in flight at the end of a process or at
    /// the revocation of its token, as far as is known. What a process whose token was revoked reports of the latter within a window is not charged again.
    pub charged: Span,
    /// Part of [`Account::used`] that was charged to the pod's request. Rules without accounts leave it at zero.
    pub guaranteed: Span,
    /// Part of [`Account::used`] that came out of time owed to no pod.
    pub surplus: Span,
}

impl Account {
    pub(super) fn add_waited(&mut self, waited: Span) {
        self.waited = sum(self.waited, waited);
    }
}

impl Tokens {
    /// Returns what a pod has had, or `None` if there is no such pod.
    #[must_use]
    pub fn account(&self, id: PodId) -> Option<&Account> {
        self.table.pod(id).map(|pod| &pod.account)
    }

    /// Returns the kernel time that a pod has had beyond its limit and has not yet paid back by waiting.
    #[must_use]
    pub fn debt(&self, id: PodId) -> Span {
        let pod = self.table.pod(id);
        pod.map_or(Span::ZERO, |pod| pod.limit.debt(self.now))
    }

    /// Returns the occupied SMs in hundredths of a percent. Exceeds the limit only under rules that do not count SMs,
    /// and by gates that were found open.
    #[must_use]
    pub const fn occupied(&self) -> u64 {
        self.table.occupied
    }

    /// Returns the number of waiting processes.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.table.waiting.len()
    }

    /// Returns whether a process has a token or has not finished closing.
    #[must_use]
    pub fn occupies(&self, id: ProcessId) -> bool {
        self.table
            .process(id)
            .is_some_and(|process| process.phase.occupies())
    }
}
