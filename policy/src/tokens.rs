//! The token scheduler of one mps slot: which processes may launch kernels on a GPU whose SMs are shared
//! (M4.5, M4.7–M4.9, M4.17).
//!
//! A *token* is the right of one process to launch until an [`Action::Close`] is carried out. From the
//! grant until [`Tokens::closed`], [`Tokens::remove_process`] or an [`Action::Revoke`] the process occupies its
//! SMs, however late that is: the SMs of processes with a token or with unfinished work never exceed the limit (invariant 2).
//! It counts per process, so a pod with two processes counts twice. Rules that do not count SMs are named in
//! [`Rule`].
//!
//! Quotas are wall time in which at least one kernel of the *pod* runs, as its processes report it
//! ([`Tokens::used`]); SM-seconds are reported, never charged. Deadlines do not enter (C6).
//!
//! A close takes effect late: what is in flight runs to its end. So usage is estimated while it is not
//! known (a holder is taken to run without a break), and settled when it is reported. A pod is charged for what
//! ran, and for tokens that it held without using them while others waited (`held.rs`).
//!
//! Order of calls: usage, then [`Tokens::active`], [`Tokens::idle`] and [`Tokens::busy`], before [`Tokens::wake`] and
//! [`Tokens::closed`]. Messages about pods and processes
//! that are not there (any more) are ignored, since they may be late. A clock that steps back stands still.
//!
//! Not supported: leases for gangs of processes that wait for each other inside a kernel (collectives). Half
//! a gang with a token would burn its quota waiting for the other half; the caller refuses processes with
//! a communicator of several ranks on mps slots.

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
mod weir;
mod window;

pub use account::Account;
pub use action::{Action, CloseReason, GrantReason, Refusal, RevokeReason};
pub use quota::{Quota, QuotaError, SHARE_WHOLE, Share};
pub use settings::{HORIZON_MAX, Rule, SM_WHOLE, Settings, SettingsError};

use crate::{Span, Time};
use table::{Phase, Pod, Process, Table};

/// Ids are indices into tables and have to stay below this.
pub const IDS_MAX: u32 = 1 << 16;

/// [`Rule::Weir`] asks for no wake earlier than this after now, so that rounding cannot make the caller spin.
const WAKE_STEP: Span = Span(20_000);

/// A pod of the slot: a small integer, free again when the pod and all its processes are gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PodId(pub u32);

/// A process of the slot: a small integer, free again when the process is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ProcessId(pub u32);

/// See the [module](self).
#[derive(Debug, Clone)]
pub struct Tokens {
    settings: Settings,
    /// The latest `now` seen.
    now: Time,
    table: Table,
    pods_added: u64,
    next_wake: Time,
    /// Until when processes count as competing.
    contended_until: Time,
    /// The caller reports what holders have in flight, so that tokens can be taken back.
    reports_use: bool,
    weir: weir::State,
    window: window::State,
    bucket: bucket::State,
}

impl Tokens {
    /// A slot without pods.
    ///
    /// # Errors
    /// What [`Settings::validate`] finds.
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
            weir: weir::State::new(&settings),
            window: window::State::default(),
            bucket: bucket::State::default(),
        })
    }

    /// Its settings.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A pod has come to the slot.
    ///
    /// # Errors
    /// [`Refusal::IdTooLarge`], [`Refusal::PodTaken`].
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
        // Time before a pod came is nothing it is owed.
        self.weir.go_on(self.now, &self.settings);
        self.weir.pod_comes(&mut pod);
        self.table.insert_pod(id, pod);
        Ok(())
    }

    /// Another quota from now on. What the pod owes or is owed stays the same in time of the GPU.
    ///
    /// # Errors
    /// [`Refusal::NoSuchPod`].
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
        self.weir.quota_changes(pod, quota);
        pod.limit.set_share(now, quota.limit(), &self.settings);
        pod.quota = quota;
        pod.settle_resume(now);
        self.decide(actions);
        Ok(())
    }

    /// A pod leaves. Processes of it that wait are forgotten; those that hold are closed, and occupy their
    /// SMs until they are or are removed.
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
        // What neither waits nor holds has no further message to send.
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

    /// A process of a pod has come, which may run on `sm` hundredths of a percent of the SMs, counted after
    /// the driver's rounding. `open`: its gate is open already, as when this scheduler was restarted; it
    /// counts as holder, and is closed when others have the SMs.
    ///
    /// # Errors
    /// [`Refusal::IdTooLarge`], [`Refusal::NoSuchPod`], [`Refusal::ProcessTaken`],
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
                held: held::Use::default(),
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

    /// A process is parked at its gate and wants a token. From a holder it means [`Tokens::active`]; from
    /// one that was told to close, that it waits as soon as it has.
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

    /// `delta` more of wall time is known in which at least one kernel of the pod ran.
    /// All before what [`Tokens::unfinished`] was last told is settled with it, so that is told first.
    pub fn used(&mut self, now: Time, id: PodId, delta: Span) {
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
        self.weir.go_on(now, &self.settings);
        let Some(pod) = self.table.pod_mut(id) else {
            return;
        };
        pod.unsettled_since = settled_to;
        let account = &mut pod.account;
        account.used = sum(account.used, delta);
        let sm_time = u128::from(delta.0) * u128::from(sms.min(sm_limit)) / u128::from(SM_WHOLE);
        account.sm_time = sum(account.sm_time, Span(quota::narrow(sm_time)));
        let delta = pod.habit.unpaid(now, delta);
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

    /// A kernel or graph of the process is in flight since then, and its time is not in [`Tokens::used`]
    /// yet; `None`: nothing is.
    pub fn unfinished(&mut self, now: Time, id: ProcessId, since: Option<Time>) {
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

    /// A holder has launched since this was last reported: its token is used, and worth renewing. Reported before
    /// [`Tokens::idle`].
    pub fn active(&mut self, now: Time, id: ProcessId) {
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

    /// The gate of a process is shut and nothing is in flight: after a close, or because it had nothing to
    /// do. From one that waits it takes the question back.
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

    /// A process is dead: its SMs are free at once.
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

    /// Closes a pod and gives it no more tokens, or lets it have them again: without a lease there are no
    /// tokens (design 4.6).
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

    /// Lets time pass.
    pub fn wake(&mut self, now: Time, actions: &mut Vec<Action>) {
        self.advance(now);
        self.decide(actions);
    }

    /// Work that each process of a pod may have in flight from now on.
    ///
    /// Whoever has the SMs to itself may fill them for long. Where others have waited within the last window, the next comes
    /// soon, and would wait until all of that has run: a pod that pauses for some milliseconds between its requests would never
    /// get its quota. A pod that has a limit is closed at it, and what is in flight runs beyond.
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

    /// When [`Tokens::wake`] next has something to do, if nothing happens before.
    #[must_use]
    pub fn next_wake(&self) -> Option<Time> {
        (self.next_wake != Time::NEVER).then_some(self.next_wake)
    }
}

/// A token is renewed when half a renewal is left of it.
const fn renewal_at(until: Time, renewal: Span) -> Time {
    until.before(Span(renewal.0 / 2))
}

fn narrow_span(wide: u128) -> Span {
    Span(quota::narrow(wide))
}

const fn sum(one: Span, other: Span) -> Span {
    Span(one.0.saturating_add(other.0))
}
