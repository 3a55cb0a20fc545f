//! The token scheduler of one MPS slot: which processes may launch kernels on a GPU with shared SMs (M4.5, M4.7–M4.9,
//! M4.17).
//!
//! A *token* is the right of one process to launch until an [`Action::Close`] is carried out. From the grant until
//! [`Tokens::closed`], [`Tokens::remove_process`], or an [`Action::Revoke`], however late that is, the process occupies
//! its SMs: the SMs of processes with a token or with unfinished work never exceed the limit (invariant 2). SMs are
//! counted per process, so a pod with two processes counts twice. [`Rule`] names the rules that do not count SMs.
//!
//! Quotas are wall time in which at least one kernel of the *pod* runs, as its processes report it ([`Usage::used`]).
//! SM-seconds are reported and never charged. Deadlines are not considered (C6).
//!
//! A close takes effect late, because work in flight runs to its end. So usage is estimated while it is unknown (a
//! holder is assumed to run without a break), and settled when it is reported. A pod is charged for what ran, and for
//! tokens that it held without using them while other processes waited (`held.rs`).
//!
//! The use of the slot ([`Tokens::report`]) is reported before [`Tokens::wake`] and [`Tokens::closed`] of the same time. Messages
//! about pods and processes that do not exist (any more) are ignored, since they may be late. A clock that is set back counts
//! as one that stands still.
//!
//! Not supported: leases for gangs of processes that wait for each other inside a kernel (collectives). Half a gang
//! with a token would burn its quota waiting for the other half; the caller refuses processes with a communicator of
//! several ranks on MPS slots.
//!
//! # Examples
//!
//! ```
//! use policy::Time;
//! use policy::tokens::{Action, PodId, ProcessId, Quota, SM_WHOLE, Settings, Share, Tokens};
//!
//! let (pod, process) = (PodId(0), ProcessId(0));
//! let quota = Quota::new(Share::from_percent(50), Share::WHOLE).unwrap();
//! let mut tokens = Tokens::new(Settings::default()).unwrap();
//! let mut actions = Vec::new();
//! tokens.add_pod(Time(0), pod, quota).unwrap();
//! tokens.add_process(Time(0), process, pod, SM_WHOLE, false, &mut actions).unwrap();
//!
//! tokens.ask(Time(0), process, &mut actions);
//! assert!(matches!(actions[..], [Action::Grant { process: ProcessId(0), .. }]));
//! assert!(tokens.occupies(process));
//! tokens.closed(Time(1_000), process, &mut actions);
//! assert!(!tokens.occupies(process));
//! ```

mod account;
mod action;
mod bucket;
mod held;
mod limit;
mod orders;
mod plain;
mod quota;
mod settings;
mod table;
mod usage;
mod weir;
mod window;

pub use account::Account;
pub use action::{Action, CloseReason, GrantReason, Refusal, RevokeReason};
pub use quota::{Quota, QuotaError, SHARE_WHOLE, Share};
pub use settings::{HORIZON_MAX, Rule, SM_WHOLE, Settings, SettingsError};
pub use usage::{Activity, ProcessUsage, Usage};

use crate::{Span, Time};
use table::{Phase, Pod, Process, Table};

/// Exclusive upper bound of ids, which are indices into tables.
pub const IDS_MAX: u32 = 1 << 16;

/// Shortest delay to the next wake-up that [`Rule::Weir`] requests, so that rounding cannot make the caller spin.
const WAKE_STEP: Span = Span(20_000);

/// Id of a pod of the slot: a small integer, reused once the pod and all its processes are gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PodId(pub u32);

/// Id of a process of the slot: a small integer, reused once the process is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ProcessId(pub u32);

/// Token scheduler; see the [module](self).
#[derive(Debug, Clone)]
pub struct Tokens {
    settings: Settings,
    /// Latest `now` passed in.
    now: Time,
    table: Table,
    pods_added: u64,
    next_wake: Time,
    /// Time until which processes count as competing.
    contended_until: Time,
    /// Whether the caller reports what holders have in flight, so that tokens can be revoked.
    reports_use: bool,
    /// Time at which some waiting process is probed again.
    retries_at: Time,
    weir: weir::State,
    window: window::State,
    bucket: bucket::State,
}

impl Tokens {
    /// Creates the scheduler of a slot without pods.
    ///
    /// # Errors
    /// Returns the error of [`Settings::validate`].
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        settings.validate()?;
        Ok(Self {
            settings,
            now: Time::ZERO,
            table: Table::default(),
            pods_added: 0,
            next_wake: Time::NEVER,
            contended_until: Time::ZERO,
            reports_use: false,
            retries_at: Time::NEVER,
            weir: weir::State::new(&settings),
            window: window::State::default(),
            bucket: bucket::State::default(),
        })
    }

    /// Returns the settings of this scheduler.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Adds a pod to the slot.
    ///
    /// # Errors
    /// Returns [`Refusal::IdTooLarge`] or [`Refusal::PodTaken`].
    pub fn add_pod(&mut self, now: Time, id: PodId, quota: Quota) -> Result<(), Refusal> {
        self.advance(now);
        if id.0 >= IDS_MAX {
            return Err(Refusal::IdTooLarge { id: id.0 });
        }
        if self.table.pod(id).is_some() {
            return Err(Refusal::PodTaken { pod: id });
        }
        let mut pod = Pod::new(self.now, quota, self.pods_added, &self.settings);
        self.pods_added += 1;
        // A pod is owed nothing for the time before it was added.
        self.weir.advance(self.now, &self.settings);
        self.weir.add_pod(&mut pod);
        self.table.insert_pod(id, pod);
        Ok(())
    }

    /// Changes the quota of a pod. What the pod owes or is owed stays the same in GPU time.
    ///
    /// # Errors
    /// Returns [`Refusal::NoSuchPod`].
    pub fn set_quota(
        &mut self,
        now: Time,
        id: PodId,
        quota: Quota,
        actions: &mut Vec<Action>,
    ) -> Result<(), Refusal> {
        self.advance(now);
        let now = self.now;
        let Some(pod) = self.table.pod_mut(id).filter(|pod| !pod.leaving) else {
            return Err(Refusal::NoSuchPod { pod: id });
        };
        self.weir.change_quota(pod, quota);
        pod.limit.set_share(now, quota.limit(), &self.settings);
        pod.quota = quota;
        pod.settle_resume(now);
        self.decide(actions);
        Ok(())
    }

    /// Removes a pod. Its waiting processes are forgotten. Its holders are closed, and occupy their SMs until they are
    /// closed or removed.
    pub fn remove_pod(&mut self, now: Time, id: PodId, actions: &mut Vec<Action>) {
        self.advance(now);
        let Some(pod) = self.table.pod_mut(id) else {
            return;
        };
        pod.leaving = true;
        self.close_all(id, CloseReason::Removed, actions);
        for at in (0..self.table.waiting.len()).rev() {
            let process = self.table.waiting[at];
            if self.table.listed(process).0.pod == id {
                self.table.enter(self.now, process, Phase::Idle);
            }
        }
        // A process that neither waits nor holds has no further message to send.
        let idle = |table: &Table| {
            table
                .processes_of(id)
                .find(|(_, process)| process.phase == Phase::Idle)
                .map(|(process, _)| process)
        };
        while let Some(process) = idle(&self.table) {
            self.table.remove_process(self.now, process);
        }
        self.table.drop_if_gone(id);
        self.decide(actions);
    }

    /// Adds a process of a pod, which may run on `sm` hundredths of a percent of the SMs, after the driver's rounding.
    /// `open` means that its gate is already open, as after a restart of this scheduler: the process counts as a
    /// holder, and is closed if other processes have the SMs.
    ///
    /// # Errors
    /// Returns [`Refusal::IdTooLarge`], [`Refusal::NoSuchPod`], [`Refusal::ProcessTaken`], or
    /// [`Refusal::SmOutOfRange`].
    pub fn add_process(
        &mut self,
        now: Time,
        id: ProcessId,
        pod: PodId,
        sm: u32,
        open: bool,
        actions: &mut Vec<Action>,
    ) -> Result<(), Refusal> {
        self.advance(now);
        if id.0 >= IDS_MAX {
            return Err(Refusal::IdTooLarge { id: id.0 });
        }
        if self.table.pod(pod).is_none_or(|pod| pod.leaving) {
            return Err(Refusal::NoSuchPod { pod });
        }
        if self.table.process(id).is_some() {
            return Err(Refusal::ProcessTaken { process: id });
        }
        let limit = self.settings.sm_limit;
        if sm == 0 || sm > limit {
            return Err(Refusal::SmOutOfRange { sm, limit });
        }
        self.table.insert_process(
            id,
            Process {
                pod,
                sm,
                phase: Phase::Idle,
                asks_again: false,
                since: self.now,
                until: self.now,
                active: false,
                contended: false,
                unfinished: None,
                held: held::TokenUse::default(),
                presence: held::Presence::default(),
                overtaken_since: None,
                pass: 0,
            },
        );
        if open {
            self.adopt(id, actions);
            self.decide(actions);
        }
        Ok(())
    }

    /// Requests a token for a process that is parked at its gate. From a holder it means that it uses its token; from a
    /// process that is being closed, that it waits again once it is closed.
    pub fn ask(&mut self, now: Time, id: ProcessId, actions: &mut Vec<Action>) {
        self.advance(now);
        let Some(process) = self.table.process_mut(id) else {
            return;
        };
        match process.phase {
            Phase::Idle => {
                self.wait(id);
                self.decide(actions);
            }
            Phase::Waiting => {}
            Phase::Holding => {
                process.active = true;
                self.decide(actions);
            }
            Phase::Closing => process.asks_again = true,
        }
    }

    /// Records `delta` more of wall time in which at least one kernel of the pod ran. Everything before the last report
    /// by [`Tokens::unfinished`] is settled with it, so that report comes first.
    fn used(&mut self, now: Time, id: PodId, delta: Span) {
        self.advance(now);
        let now = self.now;
        let Some(pod) = self.table.pod(id) else {
            return;
        };
        let (holders, unsettled) = (pod.holders, pod.unsettled_since);
        let mut settled_to = now;
        let mut sms = 0;
        if holders > 0 {
            for &process in &self.table.holding {
                let process = self.table.listed(process).0;
                if process.pod == id {
                    sms += u64::from(process.sm);
                    settled_to = settled_to.min(process.unfinished.unwrap_or(now).max(unsettled));
                }
            }
        }
        let sm_limit = u64::from(self.settings.sm_limit);
        self.weir.advance(now, &self.settings);
        let Some(pod) = self.table.pod_mut(id) else {
            return;
        };
        pod.settle(now, settled_to, delta);
        let account = &mut pod.account;
        account.used = sum(account.used, delta);
        let sm_time = u128::from(delta.0) * u128::from(sms.min(sm_limit)) / u128::from(SM_WHOLE);
        account.sm_time = sum(account.sm_time, Span(quota::narrow(sm_time)));
        let delta = pod.history.unpaid(now, delta);
        pod.account.charged = sum(pod.account.charged, delta);
        pod.limit.charge(now, delta);
        match self.settings.rule {
            Rule::Weir => self.weir.charge(pod, delta),
            Rule::Paper | Rule::TimeOnly => pod.window.charge(delta),
            Rule::ReactiveBucket => pod.bucket.charge(now, delta),
            Rule::Exclusive | Rule::Racing => {}
        }
        if pod.demand > pod.holders {
            pod.settle_resume(now);
        }
    }

    /// Records that a kernel or graph of the process has been in flight since `since`, and that its time is not in
    /// [`Tokens::used`] yet; `None` means that nothing is in flight.
    fn unfinished(&mut self, now: Time, id: ProcessId, since: Option<Time>) {
        self.advance(now);
        let now = self.now;
        if let Some(process) = self.table.process_mut(id)
            && process.phase.occupies()
        {
            process.unfinished = since.map(|since| since.min(now));
            let pod = process.pod;
            if let (Some(since), Some(pod)) = (since, self.table.pod_mut(pod)) {
                pod.unsettled_since = pod.unsettled_since.min(since);
            }
        }
    }

    /// Records that a holder has launched since the last report, so its token is in use and worth renewing.
    /// Recorded before [`Tokens::idle`].
    fn active(&mut self, now: Time, id: ProcessId) {
        self.advance(now);
        self.launched(id);
        let renewal = self.settings.slice_max;
        if let Some(process) = self.table.process_mut(id)
            && process.phase == Phase::Holding
            && !process.active
        {
            process.active = true;
            let renewal = renewal_at(process.until, renewal);
            self.next_wake = self.next_wake.min(renewal.max(self.now.after(WAKE_STEP)));
        }
    }

    /// Records that the gate of a process is shut and nothing is in flight, either after a close or because the process
    /// had nothing to do. Withdraws the request of a waiting process.
    pub fn closed(&mut self, now: Time, id: ProcessId, actions: &mut Vec<Action>) {
        self.advance(now);
        let Some(process) = self.table.process(id) else {
            return;
        };
        let (phase, pod, asks_again) = (process.phase, process.pod, process.asks_again);
        let (sm, contended) = (process.sm, process.contended);
        if phase == Phase::Idle {
            return;
        }
        self.charge_idle();
        if phase == Phase::Holding && contended {
            self.weir.pay_hand_over(sm, &self.settings);
        }
        self.table.enter(self.now, id, Phase::Idle);
        if self.table.pod(pod).is_some_and(|pod| pod.leaving) {
            self.table.remove_process(self.now, id);
        } else if asks_again {
            self.wait(id);
        }
        self.decide(actions);
    }

    /// Removes a dead process: its SMs are free at once.
    pub fn remove_process(&mut self, now: Time, id: ProcessId, actions: &mut Vec<Action>) {
        self.advance(now);
        if let Some(process) = self.table.process(id) {
            if process.phase.occupies() {
                self.charge_unreported(id);
            }
            self.table.remove_process(self.now, id);
            self.decide(actions);
        }
    }

    /// Stops a pod, which closes it and gives it no more tokens, or lets it have tokens again: without a lease there
    /// are no tokens (contracts §6).
    pub fn hard_stop(&mut self, now: Time, id: PodId, stopped: bool, actions: &mut Vec<Action>) {
        self.advance(now);
        let Some(pod) = self.table.pod_mut(id) else {
            return;
        };
        pod.stopped = stopped;
        if stopped {
            self.close_all(id, CloseReason::Stopped, actions);
        }
        self.decide(actions);
    }

    /// Stops all pods, or lets them have tokens again, as [`Tokens::hard_stop`] does one: no pod gets what another one loses.
    pub fn hard_stop_all(&mut self, now: Time, stopped: bool, actions: &mut Vec<Action>) {
        self.advance(now);
        for pod in self.table.pods_mut() {
            pod.stopped = stopped;
        }
        if stopped {
            for at in 0..self.table.holding.len() {
                let id = self.table.holding[at];
                self.close(id, CloseReason::Stopped, actions);
            }
        }
        self.decide(actions);
    }

    /// Advances the time to `now`, and appends the decisions that have become due.
    pub fn wake(&mut self, now: Time, actions: &mut Vec<Action>) {
        self.advance(now);
        self.decide(actions);
    }

    /// Returns how much work each process of a pod may have in flight from now on.
    ///
    /// A process with the SMs to itself may fill them for long. If other processes have waited within the last window,
    /// the next one will come soon and would have to wait until all of that work has run: a pod that pauses for some
    /// milliseconds between its requests would never get its quota. A pod with a limit is closed at that limit, and
    /// what is in flight runs beyond it.
    #[must_use]
    pub fn in_flight(&self, now: Time, id: PodId) -> Span {
        let keeps_limits = self.settings.rule.keeps_limits();
        let is_free = |pod: &Pod| !keeps_limits || pod.quota.limit().is_whole();
        if now >= self.contended_until && self.table.pod(id).is_some_and(is_free) {
            self.settings.in_flight_alone
        } else {
            self.settings.in_flight
        }
    }

    /// Returns when [`Tokens::wake`] next has something to do, unless an event comes before.
    #[must_use]
    pub fn next_wake(&self) -> Option<Time> {
        (self.next_wake != Time::NEVER).then_some(self.next_wake)
    }
}

/// Returns when a token is renewed, which is when half a renewal is left of it.
const fn renewal_at(until: Time, renewal: Span) -> Time {
    until.before(Span(renewal.0 / 2))
}

fn narrow_span(wide: u128) -> Span {
    Span(quota::narrow(wide))
}

const fn sum(one: Span, other: Span) -> Span {
    Span(one.0.saturating_add(other.0))
}
