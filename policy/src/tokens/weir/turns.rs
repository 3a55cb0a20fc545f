//! The end of a holder's turn in favour of another process.

use super::super::table::{Phase, Pod};
use super::super::{Action, CloseReason, ProcessId, SHARE_WHOLE, Share, Tokens, narrow_span, sum};
use crate::{Span, Time};

/// Number of waiting processes that do not fit for which closing a holder is tried.
const CLOSE_TRIES: usize = 4;

impl Tokens {
    /// Closes holders with a turn that is over in favour of a waiting process that does not fit, or requests a wake-up
    /// for the time when that will be so.
    pub(super) fn make_room(
        &mut self,
        head: ProcessId,
        actions: &mut Vec<Action>,
        wake: &mut Time,
    ) {
        self.weir.pass += 1;
        let pass = self.weir.pass;
        let mut next = Some(head);
        for _ in 0..CLOSE_TRIES {
            let Some(waiter) = next else {
                return;
            };
            self.table.listed_mut(waiter).0.pass = pass;
            if self.make_room_for(waiter, waiter == head, actions, wake) {
                return;
            }
            // The SMs of a single holder are needed by the first waiting process, so none are freed for another.
            if self.table.holding.len() <= 1 {
                return;
            }
            let ready = self.table.waiting.iter().filter(|&&id| {
                let (process, pod) = self.table.listed(id);
                process.pass != pass
                    && !pod.stopped
                    && pod.resumes_at <= self.now
                    && !self.is_absent(id)
            });
            next = ready.map(|&id| self.place(id)).min().map(|(.., id)| id);
        }
    }

    /// Returns whether holders were closed, or are closing, so that the process will fit.
    fn make_room_for(
        &mut self,
        waiter: ProcessId,
        first: bool,
        actions: &mut Vec<Action>,
        wake: &mut Time,
    ) -> bool {
        let (now, sm_limit) = (self.now, u64::from(self.settings.sm_limit));
        let process = self.table.listed(waiter).0;
        let needed = u64::from(process.sm);
        let overdue_at = process
            .overtaken_since
            .map(|since| since.after(self.settings.overtaking_max));
        let overdue = overdue_at.is_some_and(|at| at <= now);
        let mut coming = sm_limit.saturating_sub(self.table.occupied);
        let mut closable = 0;
        for &id in &self.table.holding {
            let holder = self.table.listed(id).0;
            if holder.phase == Phase::Closing {
                coming += u64::from(holder.sm);
            } else {
                let over_in = self.turn_over_in(id, waiter);
                if over_in == Span::ZERO {
                    closable += u64::from(holder.sm);
                } else {
                    *wake = (*wake).min(now.after(over_in));
                }
            }
        }
        if coming >= needed {
            return true;
        }
        if coming + closable < needed && !(first && overdue) {
            if let Some(at) = overdue_at.filter(|&at| first && closable > 0 && at > now) {
                *wake = (*wake).min(at);
            }
            return false;
        }
        if self.probe_first(waiter, actions) {
            return false;
        }
        while coming < needed {
            // The holder that is furthest ahead is closed first.
            let most = self
                .table
                .holding
                .iter()
                .filter(|&&id| {
                    self.table.listed(id).0.phase == Phase::Holding
                        && self.turn_over_in(id, waiter) == Span::ZERO
                })
                .map(|&id| self.served(id))
                .max();
            let Some((.., id)) = most else {
                return false;
            };
            let sm = self.table.listed(id).0.sm;
            let affordable_in = self.weir.hand_over_affordable_in(sm, &self.settings);
            if affordable_in > Span::ZERO {
                *wake = (*wake).min(now.after(affordable_in));
                return false;
            }
            self.weir.pay_hand_over(sm, &self.settings);
            self.close(id, CloseReason::Turn, actions);
            coming += u64::from(sm);
        }
        true
    }

    /// Returns how well a holder is served: holders with surplus rank above all others.
    fn served(&self, id: ProcessId) -> (bool, u64, ProcessId) {
        let pod = self.table.listed(id).1;
        if self.has_surplus(pod) {
            (true, pod.fair.surplus.0, id)
        } else {
            (false, pod.fair.expected.0, id)
        }
    }

    /// Returns whether current usage of the pod counts as surplus.
    fn has_surplus(&self, pod: &Pod) -> bool {
        pod.quota.request().is_none() || self.weir.is_ahead(pod.fair.expected)
    }

    /// Returns the time until a holder's turn is over in favour of a waiting process; zero means now. This is an
    /// estimate, which is recomputed at that time.
    fn turn_over_in(&self, holder: ProcessId, waiter: ProcessId) -> Span {
        let state = &self.weir;
        let (holding, holder_pod) = self.table.listed(holder);
        let (waiting, waiter_pod) = self.table.listed(waiter);
        let held = self.now.since(holding.since);
        let at_least = self.settings.slice_min.less(held);
        if holding.pod == waiting.pod {
            return state.surplus_turn.less(held).max(at_least);
        }
        let request = holder_pod.quota.request();
        let owed = self.is_owed(waiter_pod);
        let surplus = self.has_surplus(holder_pod);
        let waiter_turn = waiter_pod.fair.expected.after(state.half_cycle);
        if owed {
            // The holder's clock gets ahead of that of the waiting process or, if the holder has surplus, virtual time
            // does.
            let by_time = waiter_turn.since(state.virtual_now);
            let by_clock = request.of(waiter_turn.since(holder_pod.fair.expected));
            let over_in = match (request.is_none(), surplus) {
                (true, _) => by_time,
                (false, true) => by_clock.min(by_time),
                (false, false) => by_clock,
            };
            return over_in.max(at_least);
        }
        if !surplus {
            // The holder has to get ahead of virtual time, which advances as well, before it competes for surplus.
            let ahead = state.ahead_max().since(holder_pod.fair.expected);
            let until_owed = waiter_turn.since(state.virtual_now);
            let gains = Share::from_parts_per_million(SHARE_WHOLE - request.parts_per_million())
                .unwrap_or(Share::NONE);
            // A clock gains 1/request − 1 per unit of its own time.
            let own = narrow_span(
                u128::from(ahead.0) * u128::from(request.parts_per_million())
                    / u128::from(gains.parts_per_million().max(1)),
            );
            let own = if waiter_pod.quota.request().is_none() {
                own
            } else {
                own.min(until_owed)
            };
            return own.max(at_least).max(Span(1));
        }
        let unsettled = holder_pod.unsettled(self.now);
        let had = sum(holder_pod.fair.surplus, unsettled);
        sum(waiter_pod.fair.surplus, state.surplus_turn)
            .less(had)
            .max(at_least)
    }
}
