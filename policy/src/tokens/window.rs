//! The multi-token scheduler as the paper prints it (M4.7), and the same without space sharing (M4.17).
//!
//! There are windows of [`Settings::window`], and tokens of [`Settings::paper_token`] that are cut at the window's end
//! and at what the limit leaves. Pods with something left of their limit are ordered by what they miss of their
//! request, then by their SMs. Tokens are granted from the head of that order until the first process that does not
//! fit. At the start of a window, usage beyond the limit is carried over, and all other usage is forgotten.
//!
//! When a token ends, its holder joins the waiting processes again if it has launched. Its gate stays open if the order
//! selects it again, since closing and opening it would only waste time.

use super::table::Phase;
use super::{Action, CloseReason, GrantReason, ProcessId, Rule, Settings, Tokens, sum};
use crate::{Span, Time};

/// Usage of a pod in this window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WindowUsage {
    used: Span,
}

/// State of the current window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    start: Option<Time>,
    /// Number of passes over the queue, which marks the processes that were examined.
    pass: u64,
}

impl WindowUsage {
    pub(super) fn charge(&mut self, delta: Span) {
        self.used = sum(self.used, delta);
    }
}

/// Order of processes: most missed first, then most SMs, then the smallest id.
type WindowOrder = (std::cmp::Reverse<i128>, std::cmp::Reverse<u32>, ProcessId);

impl Tokens {
    pub(super) fn decide_window(&mut self, actions: &mut Vec<Action>) -> Time {
        let end = self.advance_window();
        let now = self.now;
        let mut ready = false;
        let mut wake = end;
        let mut running = 0;
        for at in 0..self.table.holding.len() {
            let id = self.table.holding[at];
            let (process, _) = self.table.listed(id);
            let until = process.until;
            if process.phase == Phase::Closing {
                running += self.sms(id);
            } else if until > now && self.left(id) > Span::ZERO {
                running += self.sms(id);
                wake = wake.min(until).min(now.after(self.left(id)));
            } else {
                ready = true;
            }
        }
        ready |= !self.table.waiting.is_empty();
        if ready {
            wake = wake.min(self.grant_in_order(running, end, actions));
        }
        if self.table.waiting.is_empty() && self.table.holding.is_empty() {
            return Time::NEVER;
        }
        wake.max(now.after(Span(1)))
    }

    /// Advances to the window that contains `now`, and returns its end.
    fn advance_window(&mut self) -> Time {
        let length = self.settings.window;
        let start = *self.window.start.get_or_insert(self.now);
        let passed = self.now.since(start).0 / length.0;
        if passed > 0 {
            for pod in self.table.pods_mut() {
                let allowed = pod.quota.limit().of(length);
                let forgiven = Span(allowed.0.saturating_mul(passed));
                pod.window.used = pod.window.used.less(forgiven);
            }
        }
        let start = start.after(Span(passed.saturating_mul(length.0)));
        self.window.start = Some(start);
        start.after(length)
    }

    /// Returns the SMs that a process counts as.
    fn sms(&self, id: ProcessId) -> u64 {
        u64::from(match self.settings.rule {
            Rule::TimeOnly => self.settings.sm_limit,
            _ => self.table.listed(id).0.sm,
        })
    }

    /// Returns what the limit of the process's pod leaves of this window.
    fn left(&self, id: ProcessId) -> Span {
        let Settings { window, .. } = self.settings;
        let pod = self.table.listed(id).1;
        pod.quota
            .limit()
            .of(window)
            .less(pod.window.used)
            .less(pod.unsettled(self.now))
    }

    fn place_in_window(&self, id: ProcessId) -> WindowOrder {
        let pod = self.table.listed(id).1;
        let request = i128::from(pod.quota.request().of(self.settings.window).0);
        let used = i128::from(sum(pod.window.used, pod.unsettled(self.now)).0);
        let sm = u32::try_from(self.sms(id)).unwrap_or(u32::MAX);
        (std::cmp::Reverse(request - used), std::cmp::Reverse(sm), id)
    }

    /// Returns the first process in order that has not been examined: a waiting one, or a holder with a token that has
    /// ended.
    fn first(&self) -> Option<ProcessId> {
        let now = self.now;
        let waiting = self.table.waiting.iter().filter(|&&id| {
            let (process, pod) = self.table.listed(id);
            process.pass != self.window.pass && !pod.stopped && self.left(id) > Span::ZERO
        });
        let ended = self.table.holding.iter().filter(|&&id| {
            let process = self.table.listed(id).0;
            let ended = process.until <= now && process.phase == Phase::Holding;
            process.pass != self.window.pass && ended && self.left(id) > Span::ZERO
        });
        waiting
            .chain(ended)
            .map(|&id| self.place_in_window(id))
            .min()
            .map(|(.., id)| id)
    }

    /// Grants tokens beside the processes that occupy `running`, and returns when the first of these tokens ends.
    fn grant_in_order(&mut self, mut running: u64, end: Time, actions: &mut Vec<Action>) -> Time {
        let (now, sm_limit) = (self.now, u64::from(self.settings.sm_limit));
        let mut wake = Time::NEVER;
        self.window.pass += 1;
        let pass = self.window.pass;
        while let Some(id) = self.first() {
            let sms = self.sms(id);
            self.table.listed_mut(id).0.pass = pass;
            if running + sms > sm_limit {
                break;
            }
            running += sms;
            let length = self.settings.paper_token.min(self.left(id));
            let until = now.after(length).min(end);
            let process = self.table.listed(id).0;
            if process.phase == Phase::Holding {
                if process.active {
                    self.extend(id, until, actions);
                    wake = wake.min(until);
                } else {
                    running -= sms;
                    self.close(id, CloseReason::Turn, actions);
                }
                continue;
            }
            // Its SMs may still be occupied by a process that is closed below.
            let free = match self.settings.rule {
                Rule::TimeOnly => self.table.holding.is_empty(),
                _ => self.table.occupied + sms <= sm_limit,
            };
            if free {
                let reason = self.reason(id);
                self.grant(id, until, reason, actions);
                wake = wake.min(until);
            }
        }
        for at in 0..self.table.holding.len() {
            let id = self.table.holding[at];
            if self.left(id) == Span::ZERO {
                self.close(id, CloseReason::Limit, actions);
            } else if self.table.listed(id).0.until <= now {
                self.close(id, CloseReason::Turn, actions);
            }
        }
        wake
    }

    fn reason(&self, id: ProcessId) -> GrantReason {
        let (std::cmp::Reverse(missed), ..) = self.place_in_window(id);
        if missed > 0 {
            GrantReason::Guarantee
        } else {
            GrantReason::Surplus
        }
    }
}
