//! One process of a pod: its connection, and the validation of what it publishes.
//!
//! A process is believed about itself alone, and only within what is possible: no kernel time before its pages were created, and
//! no more than has passed since.

use policy::faults::{self, Fault, Watch, Work};
use policy::tokens::{Activity, ProcessId, ProcessUsage};
use policy::{Span, Time};
use protocol::page::{FIXED_CONTEXT, Residency};
use protocol::union::Union;

use crate::event::{Peer, ProcessRecord};
use crate::facts::Facts;
use crate::figures::{PodCounters, ProcessFigures, ProcessMemory};
use crate::gate::Gate;
use crate::pods::PodKey;
use crate::residency::{ProcessMoves, Windows};

/// Maximum number of reports recorded per process; more of them add no information.
const REPORTS_MAX: u32 = 32;

/// Progress of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Greeting {
    /// The process has not sent `Hello`.
    Expected,
    /// The process has sent `Hello` and waits for the answer.
    Received,
    /// The process was sent `Welcome`.
    Welcomed,
    /// The process has pages.
    Attached,
}

/// Values of `Hello` which hold until the process has pages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resumed {
    /// Whether the process was connected before.
    pub(crate) is_again: bool,
    /// Whether the gate of the process was open, or it computed.
    pub(crate) is_open: bool,
    /// Kernel time so far, in nanoseconds.
    pub(crate) busy_ns: u64,
    /// Device memory that the process holds, in bytes.
    pub(crate) bytes_used: u64,
    /// Version of the protocol.
    pub(crate) version: u8,
    /// Location of its memory.
    pub(crate) residency: Residency,
    /// Host memory which it was given before.
    pub(crate) windows: Windows,
}

impl Resumed {
    /// Returns the values of a process which has not greeted.
    pub(crate) const fn new() -> Self {
        Self {
            is_again: false,
            is_open: false,
            busy_ns: 0,
            bytes_used: 0,
            version: 1,
            residency: Residency::None,
            windows: Windows::NONE,
        }
    }
}

/// A connection of a process, from its acceptance until the process is forgotten.
#[derive(Debug)]
pub(crate) struct Process {
    id: ProcessId,
    pod: PodKey,
    peer: Peer,
    program: String,
    greeting: Greeting,
    resumed: Resumed,
    device: Option<Device>,
    /// Time at which the connection ended, in nanoseconds.
    lost_at: Option<u64>,
    is_killed: bool,
    watch: Watch,
    /// Whether it was examined since its work progressed last.
    is_examined: bool,
    /// Whether another connection of the same process is known, which was before this one.
    has_other_connection: bool,
    /// Whether the pages could be sent, as far as is known.
    has_page: bool,
    reports: u32,
    /// Number of its claims that the slot can never hold.
    refused_claims: u32,
}

/// State of a process with pages.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) gate: Gate,
    /// Share of the SMs after the driver's rounding, in hundredths of a percent.
    pub(crate) sm_hundredths: u32,
    /// Whether the process is a client of an MPS server.
    is_mps: bool,
    /// Time at which the pages were created, in nanoseconds.
    created_at: u64,
    /// What the process may still state of the time before.
    before: Unstated,
    /// Device memory of the pod's other processes as in the page, in bytes.
    memory_of_others: u64,
    moves: ProcessMoves,
    facts: Facts,
    /// Device memory which the driver has last listed, and what the process counted then without its context, in bytes.
    listed: Option<(u64, u64)>,
    observed: Observed,
}

/// Time of a process with pages of which it has stated no kernel time yet: it may state it after the next pages were created, since the
/// end of a long queue of kernels is noticed at once.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Unstated {
    /// Time at which its first pages were created, in nanoseconds; `None` before them.
    pub(crate) since: Option<u64>,
    /// Length of that time, in nanoseconds.
    pub(crate) ns: u64,
}

impl Unstated {
    /// Returns what two connections of a process together may still state.
    pub(crate) fn or(self, other: Self) -> Self {
        let since = [self.since, other.since].into_iter().flatten().min();
        Self {
            since,
            ns: self.ns.max(other.ns),
        }
    }
}

/// What is known of a process's work from all its facts so far.
#[derive(Debug, Default)]
struct Observed {
    /// Kernel time since the pages were created, in nanoseconds.
    busy_ns: u64,
    /// Kernel time of the process before these pages, in nanoseconds.
    busy_before_ns: u64,
    /// Kernel time without a matching stretch so far, in nanoseconds.
    unmatched_ns: u64,
    /// End of the last known stretch of kernel time, in nanoseconds.
    busy_until: u64,
    /// Number of launches at the last facts.
    launches: u64,
    /// Number of stretches of kernel time so far, and the longest one in nanoseconds.
    stretches: u64,
    longest_ns: u64,
    /// Whether the process has launched since the last report to the scheduler.
    is_active: bool,
    /// Time at which nothing was first observed in flight, in nanoseconds; 0: something was in flight at the last observation.
    idle_at: u64,
    /// Time at which a launch without further information was first observed, in nanoseconds; 0: there is none.
    under_way_at: u64,
    counted: Counted,
}

/// Facts which were counted for the pod already.
#[derive(Debug, Default)]
struct Counted {
    launches: u64,
    unknown_symbols: u64,
    ungated_ns: u64,
    refused_allocations: u64,
    bound_exceeded: u64,
}

/// Kernel time in the facts of one process since the previous ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Settlement {
    /// New kernel time of the pod, in nanoseconds.
    pub(crate) pod_ns: u64,
    /// New kernel time of the process, in nanoseconds.
    pub(crate) own_ns: u64,
    /// End of the last known kernel time of the process, in nanoseconds; 0: unknown.
    pub(crate) busy_until: u64,
}

impl Process {
    pub(crate) const fn new(id: ProcessId, pod: PodKey, peer: Peer) -> Self {
        Self {
            id,
            pod,
            peer,
            program: String::new(),
            greeting: Greeting::Expected,
            resumed: Resumed::new(),
            device: None,
            lost_at: None,
            is_killed: false,
            watch: Watch::new(),
            is_examined: false,
            has_other_connection: false,
            has_page: true,
            reports: 0,
            refused_claims: 0,
        }
    }

    pub(crate) const fn id(&self) -> ProcessId {
        self.id
    }

    pub(crate) const fn pod(&self) -> PodKey {
        self.pod
    }

    pub(crate) const fn pid(&self) -> u32 {
        self.peer.pid
    }

    pub(crate) fn program(&self) -> &str {
        &self.program
    }

    pub(crate) const fn greeting(&self) -> Greeting {
        self.greeting
    }

    pub(crate) const fn resumed(&self) -> Resumed {
        self.resumed
    }

    pub(crate) const fn device(&self) -> Option<&Device> {
        self.device.as_ref()
    }

    /// Returns whether the pages could be sent, as far as is known.
    pub(crate) const fn has_page(&self) -> bool {
        self.has_page
    }

    /// Records that the process has not got its pages.
    pub(crate) const fn lose_page(&mut self) {
        self.has_page = false;
    }

    pub(crate) const fn device_mut(&mut self) -> Option<&mut Device> {
        self.device.as_mut()
    }

    pub(crate) const fn is_lost(&self) -> bool {
        self.lost_at.is_some()
    }

    pub(crate) const fn lost_at(&self) -> Option<u64> {
        self.lost_at
    }

    pub(crate) const fn is_killed(&self) -> bool {
        self.is_killed
    }

    pub(crate) const fn has_other_connection(&self) -> bool {
        self.has_other_connection
    }

    /// Sets whether another connection of the same process is known.
    pub(crate) const fn set_other_connection(&mut self, is_there: bool) {
        self.has_other_connection = is_there;
    }

    /// Returns whether the process may live on after its connection.
    pub(crate) const fn is_watched(&self) -> bool {
        self.peer.is_watched
    }

    /// Returns whether two connections are of the same process: same pod, ID and start time.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let start = self.peer.start;
        self.pod == other.pod
            && self.peer.pid == other.peer.pid
            && start.is_some()
            && start == other.peer.start
    }

    /// Returns whether `other` is another connection of the same process over which it is served. Messages of an earlier
    /// connection may be read after those of a later one.
    pub(crate) fn is_replaced_by(&self, other: &Self) -> bool {
        let is_served = !other.is_lost() && other.device.is_some();
        is_served && other.id != self.id && other.is_same(self)
    }

    /// Returns the process's record for the roster; `None` without pages or start time.
    pub(crate) fn record(&self) -> Option<ProcessRecord> {
        Some(ProcessRecord {
            pid: self.peer.pid,
            start: self.peer.start?,
            sm_hundredths: self.device()?.sm_hundredths,
        })
    }

    pub(crate) fn greet(&mut self, program: &str, resumed: Resumed) {
        self.greeting = Greeting::Received;
        program.clone_into(&mut self.program);
        self.resumed = resumed;
    }

    pub(crate) const fn set_welcomed(&mut self) {
        self.greeting = Greeting::Welcomed;
    }

    /// Adds kernel time between the sending and the handling of the `Hello`.
    pub(crate) fn resume_at_least(&mut self, busy_ns: u64) {
        self.resumed.busy_ns = self.resumed.busy_ns.max(busy_ns);
    }

    /// Counts device memory which the process was granted over another connection, whatever its `Hello` says, until it claims anew.
    pub(crate) fn resume_memory(&mut self, granted_bytes: u64) {
        self.resumed.bytes_used = self.resumed.bytes_used.max(granted_bytes);
    }

    /// Counts host memory which the process was given over another connection, whatever its `Hello` says, and what that says up to `most`, in
    /// bytes. What it states not to have may have been lost on the way.
    pub(crate) fn resume_windows(&mut self, former: Windows, most: u64) {
        let own = &mut self.resumed;
        let stated = own.windows.bytes.min(most);
        let bytes = stated.max(former.bytes);
        own.windows = Windows {
            bytes,
            pinned: own.windows.pinned.max(former.pinned).min(bytes),
            missing: bytes - stated,
            count: former.count,
        };
    }

    /// Counts the gate of the process as open, whatever its `Hello` says.
    pub(crate) const fn resume_open(&mut self) {
        self.resumed.is_open = true;
    }

    /// Gives the process pages. `former_epoch`: last epoch of its gate in former pages; 0 where there are none. `before`: what it may still
    /// state of the time of those.
    pub(crate) fn attach(
        &mut self,
        sm_hundredths: u32,
        is_mps: bool,
        former_epoch: u64,
        before: Unstated,
        now: u64,
    ) {
        self.greeting = Greeting::Attached;
        let open = self.resumed.is_open;
        let mut facts = Facts::default();
        if open {
            // As in the new page, until the process has copied its state to it.
            (facts.inflight_us, facts.unmeasured) = (1, 1);
        }
        self.device = Some(Device {
            gate: Gate::new(open, former_epoch, now),
            sm_hundredths,
            is_mps,
            created_at: now,
            before,
            memory_of_others: 0,
            moves: ProcessMoves::new(&self.resumed),
            facts,
            listed: None,
            observed: Observed {
                busy_before_ns: self.resumed.busy_ns,
                ..Observed::default()
            },
        });
    }

    pub(crate) const fn lose_connection(&mut self, now: u64) {
        self.lost_at = Some(now);
    }

    pub(crate) const fn set_killed(&mut self) {
        self.is_killed = true;
    }

    /// Records that its driver has reported an error that stays.
    pub(crate) fn fail(&mut self, now: Time) {
        let work = self
            .device
            .as_ref()
            .map_or_else(Work::default, Device::work);
        let has_error = true;
        self.watch.observe(now, &Work { has_error, ..work });
    }

    /// Returns whether its driver has reported an error that stays.
    pub(crate) const fn has_failed(&self) -> bool {
        self.watch.error_since().is_some()
    }

    /// Returns since when its driver has reported an error that stays, if it has.
    pub(crate) const fn failed_since(&self) -> Option<Time> {
        self.watch.error_since()
    }

    /// Records that its driver has reported an error that stays if it states so, as one does which greets an agent that has started since.
    pub(crate) fn fail_if_stated(&mut self, now: Time) {
        let states_error = self.device.as_ref().is_some_and(|own| own.work().has_error);
        if states_error && !self.has_failed() {
            self.fail(now);
        }
    }

    /// Takes its present work, and returns its fault unless it is being ended. `usual`: execution time of its requests, if it is known.
    pub(crate) fn fault(&mut self, now: Time, usual: Option<Span>) -> Option<Fault> {
        let work = self.device.as_ref()?.work();
        self.watch.observe(now, &work);
        let fault = self.watch.fault(now, usual);
        self.is_examined &= fault.is_some();
        // Of one without a connection nothing new is known.
        fault.filter(|_| !self.is_killed && !self.is_lost())
    }

    /// Returns whether it is to be examined: not yet since its work progressed last.
    pub(crate) const fn examine(&mut self) -> bool {
        !std::mem::replace(&mut self.is_examined, true)
    }

    /// Records that it was found stopped, and can make no progress.
    pub(crate) fn was_stopped(&mut self, now: Time) {
        self.watch.restart(now);
        self.is_examined = false;
    }

    /// Counts a report of the process. Returns whether it is to be recorded.
    pub(crate) const fn count_report(&mut self) -> bool {
        self.reports = self.reports.saturating_add(1);
        self.reports <= REPORTS_MAX
    }

    /// Counts a claim that the slot can never hold. Returns whether it is to be recorded, as are the first, second, fourth and so on, like the refusals of
    /// allocations which processes report.
    pub(crate) const fn count_refused_claim(&mut self) -> bool {
        self.refused_claims = self.refused_claims.saturating_add(1);
        self.refused_claims.is_power_of_two()
    }

    /// Returns what the scheduler is to know of the process; `None` without pages.
    pub(crate) fn usage(&mut self, now: u64) -> Option<ProcessUsage> {
        let is_lost = self.is_lost();
        let device = self.device.as_mut()?;
        let unfinished_since = device.unfinished_since(now);
        let is_active = std::mem::take(&mut device.observed.is_active);
        let in_flight_since = device.in_flight_since(unfinished_since, is_active, now);
        let (unfinished_since, activity) = match in_flight_since {
            None => (
                None,
                Activity::Idle {
                    since: Time(device.observed.idle_at),
                },
            ),
            // Without a connection it cannot be probed, and may have opened its gate for want of an agent.
            Some(_) if is_lost => (unfinished_since, Activity::Unknown),
            Some(since) => (
                Some(since),
                Activity::Busy {
                    since: Time(since),
                    expected: device.expected(),
                },
            ),
        };
        Some(ProcessUsage {
            process: self.id,
            is_active,
            unfinished_since: unfinished_since.map(Time),
            activity,
        })
    }

    /// Returns whether the host has all of its memory, as it publishes it.
    pub(crate) fn is_sealed(&self) -> bool {
        self.device().is_some_and(|device| {
            let is_there = device.moves.residency == Residency::Resident;
            device.facts.sealed == 1 && is_there
        })
    }

    pub(crate) fn figures(&self, memory: Option<&ProcessMemory>) -> Option<ProcessFigures> {
        let Device {
            gate,
            facts,
            observed,
            moves,
            ..
        } = self.device()?;
        Some(ProcessFigures {
            pid: self.peer.pid,
            program: self.program.clone(),
            sm_hundredths: self.device()?.sm_hundredths,
            is_open: gate.is_open(),
            parked: facts.parked,
            launches: observed.counted.launches,
            busy_ns: observed.busy_ns,
            bytes_used: facts.bytes_used,
            bytes_fixed: facts.bytes_fixed,
            fixed: facts.fixed,
            context_residue: memory.map(|memory| memory.bytes.saturating_sub(facts.bytes_used)),
            is_mps: Some(self.device()?.is_mps),
            unknown_symbols: observed.counted.unknown_symbols,
            ungated_ns: observed.counted.ungated_ns,
            last_error: facts.last_error,
            residency: if self.has_failed() {
                Residency::Faulted.name()
            } else {
                moves.residency.name()
            },
            is_away: matches!(moves.residency, Residency::Host | Residency::Faulted),
            is_sealed: self.is_sealed(),
            host_bytes: moves.windows.held(),
            pinned_bytes: moves.windows.pinned.min(moves.windows.held()),
        })
    }
}

impl Device {
    pub(crate) const fn moves(&self) -> &ProcessMoves {
        &self.moves
    }

    pub(crate) const fn moves_mut(&mut self) -> &mut ProcessMoves {
        &mut self.moves
    }

    /// Returns its work as it states it.
    const fn work(&self) -> Work {
        let Facts {
            busy_since,
            busy_ns,
            launches,
            last_error,
            ..
        } = self.facts;
        let Observed {
            stretches,
            longest_ns,
            ..
        } = self.observed;
        Work {
            longest: if stretches < faults::KNOWN_FROM {
                None
            } else {
                Some(Span(longest_ns))
            },
            unfinished_since: match busy_since {
                0 => None,
                since => Some(Time(since)),
            },
            launches,
            ended: Span(busy_ns),
            has_error: last_error != 0,
        }
    }

    /// Returns the device memory of the process's context as far as it counts it, in bytes.
    pub(crate) const fn context_bytes(&self) -> u64 {
        self.facts.fixed[FIXED_CONTEXT]
    }

    /// Takes the device memory that the driver lists for the process, in bytes. Returns that of its context, once the process has all of its memory there
    /// and neither figure has changed since the one before.
    pub(crate) fn measure_context(&mut self, listed: u64) -> Option<u64> {
        let counted = self.facts.bytes_used.saturating_sub(self.context_bytes());
        let is_same = self.listed == Some((listed, counted));
        self.listed = Some((listed, counted));
        let is_there = self.moves.residency == Residency::Resident;
        (is_same && is_there).then(|| listed.saturating_sub(counted))
    }

    /// Returns the kernel time of the process as it states it, in nanoseconds.
    pub(crate) const fn busy_ns(&self) -> u64 {
        self.facts.busy_ns
    }

    /// Leaves out kernel time up to this total of the process, in nanoseconds: another connection of it was charged for that.
    pub(crate) fn skip_charged(&mut self, total_ns: u64) {
        let own = &mut self.observed;
        own.busy_before_ns = own.busy_before_ns.max(total_ns.saturating_sub(own.busy_ns));
    }

    /// Returns the device memory that the process states to hold, in bytes.
    pub(crate) const fn bytes_used(&self) -> u64 {
        self.facts.bytes_used
    }

    /// Sets the device memory of the pod's other processes. Returns whether it differs from that in the page.
    pub(crate) const fn set_memory_of_others(&mut self, bytes: u64) -> bool {
        let is_new = self.memory_of_others != bytes;
        self.memory_of_others = bytes;
        is_new
    }

    /// Returns whether the process states that nothing is in flight.
    pub(crate) const fn is_idle(&self) -> bool {
        self.facts.inflight_us == 0
    }

    /// Returns the end of its last known kernel time, in nanoseconds; 0: unknown.
    pub(crate) const fn busy_until(&self) -> u64 {
        self.observed.busy_until
    }

    /// Returns the time since which the process is known to be idle, else the end of its last kernel time, in nanoseconds.
    pub(crate) const fn idle_since(&self) -> u64 {
        match self.observed.idle_at {
            0 => self.observed.busy_until,
            since => since,
        }
    }

    /// Records that the process is idle, since it has just got its token.
    pub(crate) const fn set_idle(&mut self, now: u64) {
        self.observed.idle_at = now;
    }

    /// Returns the most kernel time since these pages were created that is believed, in nanoseconds.
    const fn most_ns(&self, now: u64) -> u64 {
        let own = now.saturating_sub(self.created_at);
        own.saturating_add(self.before.ns)
    }

    /// Returns what the process may still state of the time until now.
    pub(crate) fn unstated(&self, now: u64) -> Unstated {
        Unstated {
            since: Some(self.before.since.unwrap_or(self.created_at)),
            ns: self.most_ns(now).saturating_sub(self.observed.busy_ns),
        }
    }

    /// Takes new facts, and returns the kernel time in them. `alone`: no other process of the pod has pages; `union`: stretches
    /// of the pod's processes.
    pub(crate) fn settle(
        &mut self,
        facts: &Facts,
        alone: bool,
        union: &mut Union,
        now: u64,
    ) -> Settlement {
        self.facts.clone_from(facts);
        let begun = self.before.since.unwrap_or(self.created_at);
        let most = self.most_ns(now);
        let observed = &mut self.observed;
        // Of work which was in flight when the first pages were created, the part before then does not count, nor what had ended before it.
        if (1..begun).contains(&facts.busy_since) {
            let before = facts.busy_ns.saturating_add(begun - facts.busy_since);
            observed.busy_before_ns = observed.busy_before_ns.max(before);
        }
        // At most the time that has passed, and never less than before.
        let since = facts.busy_ns.saturating_sub(observed.busy_before_ns);
        let believed = since.min(most).max(observed.busy_ns);
        let own_ns = believed - observed.busy_ns;
        observed.busy_ns = believed;
        observed.is_active |= facts.launches != observed.launches;
        observed.launches = facts.launches;
        let mut fresh = 0_u64;
        let mut length = 0_u64;
        for &(begin, end) in &facts.stretches {
            let (begin, end) = (begin.max(begun), end.min(now));
            if begin < end {
                observed.stretches += 1;
                observed.longest_ns = observed.longest_ns.max(end - begin);
                length += end - begin;
                fresh += union.add(begin, end);
                observed.busy_until = observed.busy_until.max(end);
            }
        }
        let pod_ns = if alone {
            observed.unmatched_ns = 0;
            own_ns
        } else {
            // Stretches are published later than the sum, and contain gaps that it does not.
            let unmatched = observed.unmatched_ns.saturating_add(own_ns);
            let matched = unmatched.min(length);
            observed.unmatched_ns = unmatched - matched;
            scaled(fresh, matched, length)
        };
        Settlement {
            pod_ns,
            own_ns,
            busy_until: observed.busy_until,
        }
    }

    /// Adds the growth of the facts since the last call to the pod's counters.
    pub(crate) fn count(&mut self, counters: &mut PodCounters) {
        let (facts, counted) = (&self.facts, &mut self.observed.counted);
        for (counted, fact, counter) in [
            (
                &mut counted.launches,
                facts.launches,
                &mut counters.launches,
            ),
            (
                &mut counted.unknown_symbols,
                facts.unknown_symbols,
                &mut counters.unknown_symbols,
            ),
            (
                &mut counted.ungated_ns,
                facts.ungated_ns,
                &mut counters.ungated_ns,
            ),
            (
                &mut counted.refused_allocations,
                facts.refused_allocations,
                &mut counters.refused_allocations,
            ),
            (
                &mut counted.bound_exceeded,
                facts.bound_exceeded,
                &mut counters.bound_exceeded,
            ),
        ] {
            // A decreasing count is invalid and adds nothing.
            if fact > *counted {
                *counter = counter.saturating_add(fact - *counted);
                *counted = fact;
            }
        }
    }

    fn unfinished_since(&self, now: u64) -> Option<u64> {
        let since = self.facts.busy_since;
        (since != 0).then(|| since.clamp(self.created_at.min(now), now))
    }

    /// Returns the time since which work is in flight or being launched, in nanoseconds; `None`: nothing is in flight, at least
    /// since [`Observed::idle_at`]. `is_active`: the process has launched since the last observation.
    fn in_flight_since(
        &mut self,
        unfinished_since: Option<u64>,
        is_active: bool,
        now: u64,
    ) -> Option<u64> {
        let is_under_way = self.facts.inflight_us != 0;
        let observed = &mut self.observed;
        if unfinished_since.is_none() && !is_under_way {
            observed.under_way_at = 0;
            // The exact time is unknown.
            if is_active || observed.idle_at == 0 {
                observed.idle_at = now;
            }
            return None;
        }
        observed.idle_at = 0;
        if unfinished_since.is_some() {
            observed.under_way_at = 0;
        } else if is_active || observed.under_way_at == 0 {
            observed.under_way_at = now;
        }
        Some(unfinished_since.unwrap_or(observed.under_way_at))
    }

    /// Returns the expected duration of the work in flight; `None` when some of it was never measured.
    fn expected(&self) -> Option<Span> {
        let in_flight = u64::from(self.facts.inflight_us);
        (self.facts.unmeasured == 0).then_some(Span(in_flight * 1_000))
    }
}

fn scaled(value: u64, by: u64, of: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(by) / u128::from(of.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
