//! What a scheduler tells of itself, for metrics.

use super::{PodId, ProcessId, Tokens, sum};
use crate::Span;

/// What a pod has had so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Account {
    /// Wall time in which a kernel of it ran.
    pub used: Span,
    /// That time × the SMs that its holders occupied when it was told, in time of the whole GPU. The
    /// processes of a pod count as if they ran at the same time.
    pub sm_time: Span,
    /// Time its processes waited for tokens, over all of them, without those that still wait.
    pub waited: Span,
    /// Tokens given.
    pub grants: u64,
    /// Tokens taken away; those that were given back do not count.
    pub closes: u64,
    /// Tokens revoked because they were not used or their holder gave no sign of life.
    pub revoked: u64,
    /// Time in which it held a token without anything in flight while others waited, as far as it was charged.
    pub held_idle: Span,
    /// Of [`Account::used`]: what was set against its request. Rules without accounts leave it at zero.
    pub guaranteed: Span,
    /// Of [`Account::used`]: what came out of time that nobody was owed.
    pub surplus: Span,
}

impl Account {
    pub(super) fn add_waited(&mut self, waited: Span) {
        self.waited = sum(self.waited, waited);
    }
}

impl Tokens {
    /// What a pod has had; `None` if there is no such pod.
    #[must_use]
    pub fn account(&self, id: PodId) -> Option<&Account> {
        self.table.pod(id).map(|pod| &pod.account)
    }

    /// Kernel time that a pod has had beyond its limit and has not yet paid back by waiting.
    #[must_use]
    pub fn debt(&self, id: PodId) -> Span {
        let pod = self.table.pod(id);
        pod.map_or(Span::ZERO, |pod| pod.limit.debt(self.now))
    }

    /// SMs that are occupied, in hundredths of a percent; more than the limit only by rules that do not
    /// count them, and by gates that were found open.
    #[must_use]
    pub const fn occupied(&self) -> u64 {
        self.table.occupied
    }

    /// Processes that wait.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.table.waiting.len()
    }

    /// Whether a process has a token or has not finished closing.
    #[must_use]
    pub fn occupies(&self, id: ProcessId) -> bool {
        self.table
            .process(id)
            .is_some_and(|process| process.phase.occupies())
    }
}
