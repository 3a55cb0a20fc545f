//! The rules without accounts: one pod per GPU, and racing (M4.17).

use super::{Action, GrantReason, Tokens};
use crate::Time;

impl Tokens {
    /// Gives the GPU to the oldest pod that is not stopped, once no other has it. Its processes share it as they like, as on a device assigned to
    /// them as a whole: neither SMs nor time are counted among them.
    pub(super) fn decide_exclusive(&mut self, actions: &mut Vec<Action>) -> Time {
        let owner = self
            .table
            .pods()
            .filter(|(_, pod)| !pod.stopped)
            .min_by_key(|(_, pod)| pod.added)
            .map(|(id, _)| id);
        let is_taken = self
            .table
            .pods()
            .any(|(id, pod)| pod.holders > 0 && Some(id) != owner);
        if !is_taken {
            self.grant_all(|pod| Some(pod) == owner, actions);
        }
        let others_wait = self.table.waiting.iter().any(|&id| {
            let (process, pod) = self.table.listed(id);
            Some(process.pod) != owner && !pod.stopped
        });
        self.report_contention(others_wait, actions);
        Time::NEVER
    }

    pub(super) fn decide_racing(&mut self, actions: &mut Vec<Action>) -> Time {
        self.grant_all(|_| true, actions);
        Time::NEVER
    }

    /// Grants an unlimited token to every waiting process that is not stopped and belongs to a pod for which `may`
    /// returns true, in order of waiting.
    fn grant_all(&mut self, may: impl Fn(super::PodId) -> bool, actions: &mut Vec<Action>) {
        loop {
            let next = self
                .table
                .waiting
                .iter()
                .map(|&id| (id, self.table.listed(id)))
                .filter(|(_, (process, pod))| !pod.stopped && may(process.pod))
                .map(|(id, (process, _))| (process.since, id))
                .min();
            let Some((_, id)) = next else {
                return;
            };
            self.grant(id, Time::NEVER, GrantReason::Unconditional, actions);
        }
    }
}
