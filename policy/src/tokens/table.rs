//! State of each pod and process that is common to all rules.

use super::held::{Presence, TokenHistory, TokenUse};
use super::limit::{Limit, Recent};
use super::{Account, PodId, ProcessId, Quota};
use crate::{Span, Time};

/// Phase of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The gate is shut, and the process does not want a token.
    Idle,
    /// The gate is shut, and the process is parked at it.
    Waiting,
    /// The gate is open.
    Holding,
    /// The process was ordered to shut its gate; its SMs are still occupied.
    Closing,
}

impl Phase {
    /// Returns whether the SMs of the process are occupied.
    pub(super) const fn occupies(self) -> bool {
        matches!(self, Self::Holding | Self::Closing)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) pod: PodId,
    pub(super) sm: u32,
    pub(super) phase: Phase,
    /// Whether the process requested a token while it was being closed: it waits again once it is closed.
    pub(super) asks_again: bool,
    /// Start of waiting or holding.
    pub(super) since: Time,
    pub(super) until: Time,
    /// Whether the process launched since its token was last renewed.
    pub(super) active: bool,
    pub(super) contended: bool,
    pub(super) unfinished: Option<Time>,
    /// Use that the process makes of its token.
    pub(super) held: TokenUse,
    pub(super) presence: Presence,
    /// Time since which others have been let past it.
    pub(super) overtaken_since: Option<Time>,
    /// Number of the last pass over the waiting processes that examined it.
    pub(super) pass: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Pod {
    pub(super) quota: Quota,
    /// Number of existing processes.
    pub(super) processes: u32,
    /// Number of processes that wait or hold.
    pub(super) demand: u32,
    /// Time since which `demand` has been zero.
    pub(super) idle_since: Time,
    pub(super) holders: u32,
    pub(super) stopped: bool,
    /// Whether the pod was removed, but some process of it is not closed yet.
    pub(super) leaving: bool,
    /// Sequence number of the pod's addition.
    pub(super) added: u64,
    /// Time since which the pod's usage is not known yet, while it holds a token.
    pub(super) unsettled_since: Time,
    /// What was reported beside the work in flight.
    pub(super) beside: Beside,
    pub(super) limit: Limit,
    /// Time from which the limit lets the pod run; valid while it waits.
    pub(super) limit_resumes_at: Time,
    /// Time from which the pod may run: `limit_resumes_at`, but not before it has credit for tokens that it may not use.
    pub(super) resumes_at: Time,
    pub(super) account: Account,
    pub(super) history: TokenHistory,
    pub(super) fair: super::weir::FairShare,
    pub(super) window: super::window::WindowUsage,
    pub(super) bucket: super::bucket::Bucket,
}

/// Work of a pod that was reported while other work of it was in flight that was not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beside {
    /// Time since which that other work has been in flight.
    pub(super) since: Time,
    /// Time since then in which reported work ran.
    pub(super) reported: Span,
}

impl Pod {
    pub(super) fn new(now: Time, quota: Quota, added: u64, settings: &super::Settings) -> Self {
        Self {
            quota,
            processes: 0,
            demand: 0,
            idle_since: now,
            holders: 0,
            stopped: false,
            leaving: false,
            added,
            unsettled_since: now,
            beside: Beside::default(),
            limit: Limit::new(now, quota.limit(), settings),
            limit_resumes_at: Time::ZERO,
            resumes_at: Time::ZERO,
            account: Account::default(),
            history: TokenHistory::new(now, settings),
            fair: super::weir::FairShare::default(),
            window: super::window::WindowUsage::default(),
            bucket: super::bucket::Bucket::new(Recent::new(now, settings.window)),
        }
    }

    /// Notes that the use until `now` was reported, `delta` since the last report, but for work that has been in flight since `to`.
    pub(super) fn settle(&mut self, now: Time, to: Time, delta: Span) {
        // As much of it as fits into the time before was of that time.
        let of_beside = delta.less(to.since(self.unsettled_since));
        let reported = if self.beside.since == to {
            self.beside.reported.0.saturating_add(of_beside.0)
        } else {
            of_beside.0
        };
        self.beside = Beside {
            since: to,
            reported: Span(reported).min(now.since(to)),
        };
        self.unsettled_since = to;
    }

    /// Returns the time in which the pod may have used what it has not reported, for work in flight since `since` which likely ended at `likely`,
    /// at `now` at the latest.
    pub(super) fn unreported(&self, since: Time, likely: Time, now: Time) -> Span {
        let since = since.max(self.unsettled_since);
        let reported = if self.beside.since == since {
            self.beside.reported
        } else {
            Span::ZERO
        };
        likely.since(since).min(now.since(since).less(reported))
    }

    /// Returns the time that the pod may have used already without having reported it.
    pub(super) fn unsettled(&self, now: Time) -> Span {
        if self.holders > 0 {
            now.since(self.unsettled_since)
        } else {
            Span::ZERO
        }
    }
}

/// Processes and pods of a slot by id, with lists of the waiting and of the holding processes.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pods: Vec<Option<Box<Pod>>>,
    processes: Vec<Option<Process>>,
    pub(super) waiting: Vec<ProcessId>,
    pub(super) holding: Vec<ProcessId>,
    /// SMs of the holding processes, in hundredths of a percent.
    pub(super) occupied: u64,
}

impl Table {
    pub(super) fn pod(&self, id: PodId) -> Option<&Pod> {
        self.pods.get(id.0 as usize)?.as_deref()
    }

    pub(super) fn pod_mut(&mut self, id: PodId) -> Option<&mut Pod> {
        self.pods.get_mut(id.0 as usize)?.as_deref_mut()
    }

    pub(super) fn process(&self, id: ProcessId) -> Option<&Process> {
        self.processes.get(id.0 as usize)?.as_ref()
    }

    pub(super) fn process_mut(&mut self, id: ProcessId) -> Option<&mut Process> {
        self.processes.get_mut(id.0 as usize)?.as_mut()
    }

    /// Returns the process with this id and its pod. The process must be in `waiting` or `holding`.
    pub(super) fn listed(&self, id: ProcessId) -> (&Process, &Pod) {
        let process = self.process(id).expect("listed processes exist");
        let pod = self.pod(process.pod).expect("a process has a pod");
        (process, pod)
    }

    /// Returns the process with this id and its pod for changes, as [`Table::listed`].
    pub(super) fn listed_mut(&mut self, id: ProcessId) -> (&mut Process, &mut Pod) {
        let process = self.processes[id.0 as usize]
            .as_mut()
            .expect("listed processes exist");
        let pod = self.pods[process.pod.0 as usize]
            .as_deref_mut()
            .expect("a process has a pod");
        (process, pod)
    }

    pub(super) fn insert_pod(&mut self, id: PodId, pod: Pod) {
        let at = id.0 as usize;
        if self.pods.len() <= at {
            self.pods.resize_with(at + 1, || None);
        }
        self.pods[at] = Some(Box::new(pod));
    }

    pub(super) fn insert_process(&mut self, id: ProcessId, process: Process) {
        let at = id.0 as usize;
        if self.processes.len() <= at {
            self.processes.resize_with(at + 1, || None);
            // Reserves room in the lists as well, so that nothing is allocated later.
            self.waiting
                .reserve(self.processes.len() - self.waiting.len());
            self.holding
                .reserve(self.processes.len() - self.holding.len());
        }
        if let Some(pod) = self.pod_mut(process.pod) {
            pod.processes += 1;
        }
        self.processes[at] = Some(process);
    }

    /// Moves a process to another phase and keeps the lists and sums consistent.
    pub(super) fn enter(&mut self, now: Time, id: ProcessId, phase: Phase) {
        let (process, pod) = self.listed_mut(id);
        let before = std::mem::replace(&mut process.phase, phase);
        let sm = u64::from(process.sm);
        if before == Phase::Waiting && phase != Phase::Waiting {
            pod.account.add_waited(now.since(process.since));
        }
        if phase != Phase::Closing {
            process.since = now;
            process.asks_again = false;
        }
        if phase == Phase::Closing {
            process.held.closes(now);
        }
        if !phase.occupies() {
            process.contended = false;
            process.unfinished = None;
            process.held = TokenUse::default();
        }
        if phase != Phase::Waiting {
            process.overtaken_since = None;
        }
        pod.demand -= u32::from(before != Phase::Idle);
        pod.demand += u32::from(phase != Phase::Idle);
        if pod.demand == 0 {
            pod.idle_since = now;
        }
        pod.holders -= u32::from(before.occupies());
        pod.holders += u32::from(phase.occupies());
        if phase.occupies() && !before.occupies() && pod.holders == 1 {
            pod.unsettled_since = now;
        }
        if before.occupies() && pod.holders == 0 {
            super::weir::State::settle_expected(pod);
        }
        if before.occupies() && !phase.occupies() {
            self.occupied -= sm;
        }
        if phase.occupies() && !before.occupies() {
            self.occupied += sm;
        }
        let list = |phase: Phase| match phase {
            Phase::Idle => 0,
            Phase::Waiting => 1,
            Phase::Holding | Phase::Closing => 2,
        };
        if list(before) != list(phase) {
            match list(before) {
                1 => take(&mut self.waiting, id),
                2 => take(&mut self.holding, id),
                _ => {}
            }
            match list(phase) {
                1 => self.waiting.push(id),
                2 => self.holding.push(id),
                _ => {}
            }
        }
    }

    /// Forgets a process, and its pod if that was removed before and this was its last process.
    pub(super) fn remove_process(&mut self, now: Time, id: ProcessId) {
        self.enter(now, id, Phase::Idle);
        let pod_id = self.listed(id).0.pod;
        self.processes[id.0 as usize] = None;
        if let Some(pod) = self.pod_mut(pod_id) {
            pod.processes -= 1;
        }
        self.drop_if_gone(pod_id);
    }

    /// Forgets a pod that was removed and has no processes left.
    pub(super) fn drop_if_gone(&mut self, id: PodId) {
        if self
            .pod(id)
            .is_some_and(|pod| pod.leaving && pod.processes == 0)
        {
            self.pods[id.0 as usize] = None;
        }
    }

    /// Iterates over the processes of a pod, in order of their ids.
    pub(super) fn processes_of(&self, pod: PodId) -> impl Iterator<Item = (ProcessId, &Process)> {
        (0_u32..)
            .map(ProcessId)
            .zip(&self.processes)
            .filter_map(move |(id, process)| Some((id, process.as_ref()?)))
            .filter(move |(_, process)| process.pod == pod)
    }

    /// Iterates over all pods, in order of their ids.
    pub(super) fn pods_mut(&mut self) -> impl Iterator<Item = &mut Pod> {
        self.pods.iter_mut().filter_map(Option::as_deref_mut)
    }

    /// Iterates over all pods with their ids, in order of the ids.
    pub(super) fn pods(&self) -> impl Iterator<Item = (PodId, &Pod)> {
        (0_u32..)
            .map(PodId)
            .zip(&self.pods)
            .filter_map(|(id, pod)| Some((id, pod.as_deref()?)))
    }
}

fn take(list: &mut Vec<ProcessId>, id: ProcessId) {
    if let Some(at) = list.iter().position(|&other| other == id) {
        list.swap_remove(at);
    }
}
