//! Operations that are common to all rules: waiting, granting, renewing, closing.

use super::table::Phase;
use super::{Action, CloseReason, GrantReason, PodId, ProcessId, Rule, Tokens, WAKE_STEP};
use crate::Time;

impl Tokens {
    pub(super) fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    pub(super) fn decide(&mut self, actions: &mut Vec<Action>) {
        self.charge_idle();
        self.retry_probes();
        self.take_back(actions);
        let wake = match self.settings.rule {
            Rule::Weir => self.decide_weir(actions),
            Rule::Paper | Rule::TimeOnly => self.decide_window(actions),
            Rule::ReactiveBucket => self.decide_bucket(actions),
            Rule::Exclusive => self.decide_exclusive(actions),
            Rule::Racing => self.decide_racing(actions),
        };
        let looks_at = self.next_take_back().min(self.retries_at);
        self.next_wake = if looks_at == Time::NEVER {
            wake
        } else {
            wake.min(looks_at.max(self.now.after(WAKE_STEP)))
        };
    }

    pub(super) fn wait(&mut self, id: ProcessId) {
        let now = self.now;
        self.table.listed_mut(id).0.presence.begin_wait();
        self.weir.demand_begins(now, self.table.listed_mut(id).1);
        self.table.enter(now, id, Phase::Waiting);
        self.settle_limit(id);
    }

    /// Computes from when the limit allows a waiting process to run.
    pub(super) fn settle_limit(&mut self, id: ProcessId) {
        let now = self.now;
        self.table.listed_mut(id).1.settle_resume(now);
    }

    /// Adopts a process with a gate that is already open.
    pub(super) fn adopt(&mut self, id: ProcessId, actions: &mut Vec<Action>) {
        let (now, sm_limit) = (self.now, u64::from(self.settings.sm_limit));
        self.weir.demand_begins(now, self.table.listed_mut(id).1);
        self.table.enter(now, id, Phase::Holding);
        let (process, pod) = self.table.listed_mut(id);
        process.active = true;
        process.until = now;
        if pod.stopped {
            self.close(id, CloseReason::Stopped, actions);
        } else if self.settings.rule.counts_sms() && self.table.occupied > sm_limit {
            self.close(id, CloseReason::Adopted, actions);
        }
    }

    pub(super) fn grant(
        &mut self,
        id: ProcessId,
        until: Time,
        reason: GrantReason,
        actions: &mut Vec<Action>,
    ) {
        self.table.enter(self.now, id, Phase::Holding);
        let (now, settings) = (self.now, self.settings);
        let (process, pod) = self.table.listed_mut(id);
        process.active = true;
        process.until = until;
        process.held.granted(now, &settings);
        process.presence.granted();
        pod.account.grants += 1;
        actions.push(Action::Grant {
            process: id,
            until,
            reason,
        });
    }

    /// Renews a token if that makes it longer.
    pub(super) fn extend(&mut self, id: ProcessId, until: Time, actions: &mut Vec<Action>) {
        let process = self.table.listed_mut(id).0;
        if process.phase == Phase::Holding && until > process.until {
            process.until = until;
            process.active = false;
            actions.push(Action::Extend { process: id, until });
        }
    }

    pub(super) fn close(&mut self, id: ProcessId, reason: CloseReason, actions: &mut Vec<Action>) {
        if self.table.listed(id).0.phase != Phase::Holding {
            return;
        }
        self.table.enter(self.now, id, Phase::Closing);
        self.table.listed_mut(id).1.account.closes += 1;
        actions.push(Action::Close {
            process: id,
            reason,
        });
    }

    pub(super) fn close_all(&mut self, pod: PodId, reason: CloseReason, actions: &mut Vec<Action>) {
        for at in 0..self.table.holding.len() {
            let id = self.table.holding[at];
            if self.table.listed(id).0.pod == pod {
                self.close(id, reason, actions);
            }
        }
    }

    pub(super) fn report_contention(&mut self, contended: bool, actions: &mut Vec<Action>) {
        if contended {
            self.contended_until = self.now.after(self.settings.window);
        }
        let now = self.now;
        for at in 0..self.table.holding.len() {
            let id = self.table.holding[at];
            let process = self.table.listed_mut(id).0;
            process.held.contend(now, contended);
            if process.phase == Phase::Holding && process.contended != contended {
                process.contended = contended;
                actions.push(Action::Contended {
                    process: id,
                    contended,
                });
            }
        }
    }
}
