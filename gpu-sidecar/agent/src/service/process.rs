//! One process of a pod: its connection and pages, and the validation of what it publishes.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use agent_pages::Page;
use policy::Span;
use policy::tokens::ProcessId;
use protocol::message::{FromAgent, FromProcess, MESSAGE_MAX, Malformed};
use protocol::page::{Facts, Orders};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg,
};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::futex;

use super::roster::{self, ProcessRecord};
use crate::state::{PodCounters, PodKey};

/// A connection of a process, from its acceptance until the process is forgotten.
#[derive(Debug)]
pub(super) struct Process {
    /// Number in the scheduler and in the table of connections.
    pub(super) id: ProcessId,
    /// Pod of the process.
    pub(super) pod: PodKey,
    /// Process ID from the socket's credentials; 0 for a process of another PID namespace.
    pub(super) pid: u32,
    /// Program name, as reported by the process.
    pub(super) program: String,
    /// Connection; `None` after its end, while the process is still alive.
    connection: Option<OwnedFd>,
    /// Identifies the process even after its ID is reused; `None` for a process of another PID namespace.
    pidfd: Option<OwnedFd>,
    /// Start time of the process, in clock ticks since boot.
    start: Option<u64>,
    /// Whether the process has sent `Hello`.
    pub(super) has_greeted: bool,
    /// Whether the process was sent `Welcome`.
    pub(super) is_welcomed: bool,
    /// Whether the gate of the process was open, or it computed, when it sent `Hello`.
    pub(super) greeted_open: bool,
    /// Shared pages of the process, and the values observed in them; `None` before `Attach`.
    pub(super) attached: Option<Attached>,
    /// Granted claim on the pod's memory, in bytes.
    pub(super) claim: u64,
    /// Time at which the connection ended, in nanoseconds.
    pub(super) lost_at: Option<u64>,
    /// Whether this agent has killed the process.
    pub(super) is_killed: bool,
    /// Kernel time in nanoseconds and device memory in bytes, as the process reported them with `Hello`.
    pub(super) usage_before: (u64, u64),
    /// Number of reports recorded.
    pub(super) reports: u32,
}

/// Maximum number of reports recorded per process; more of them add no information.
pub(super) const REPORTS_MAX: u32 = 32;

/// State of a process with pages.
#[derive(Debug)]
pub(super) struct Attached {
    orders: Page<Orders>,
    facts: Page<Facts>,
    /// Share of the SMs after the driver's rounding, in hundredths of a percent.
    pub(super) sm_hundredths: u32,
    /// Whether the process is a client of an MPS server.
    pub(super) is_mps: bool,
    /// Epoch of the process's gate: even while the gate is open.
    epoch: u64,
    /// Time of the grant of the process's token, or of the request that is waiting, in nanoseconds.
    pub(super) since: Option<u64>,
    /// Time of the order to close, in nanoseconds, while the return of the token is outstanding.
    pub(super) closing_since: Option<u64>,
    /// Time since which other processes wait for the SMs of this one, in nanoseconds.
    pub(super) contended_since: Option<u64>,
    /// Whether the process has requested another token since the grant of the current one.
    pub(super) requests_again: bool,
    /// Time at which the pages were created, in nanoseconds.
    pub(super) at: u64,
    /// Values of the facts at the last observation.
    pub(super) observed: Observed,
}

/// Validated values of a process's facts at the last observation.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// Kernel time since the pages were created, in nanoseconds.
    pub(super) busy_ns: u64,
    /// Kernel time of the process before these pages, in nanoseconds.
    pub(super) busy_before_ns: u64,
    /// Kernel time without a matching stretch so far, in nanoseconds.
    pub(super) unmatched_ns: u64,
    /// Number of stretches read.
    pub(super) stretches: u64,
    /// End of the last known stretch of kernel time, in nanoseconds.
    pub(super) busy_until: u64,
    /// Number of launches counted for the pod.
    pub(super) launches: u64,
    /// Number of launches at the last settlement.
    pub(super) launches_at_settle: u64,
    /// Time at which nothing was first observed in flight, in nanoseconds; 0: something was in flight at the last observation.
    pub(super) idle_at: u64,
    /// Time at which a launch without further information was first observed, in nanoseconds; 0: there is none.
    pub(super) under_way_at: u64,
    /// Number of unknown driver functions counted for the pod.
    pub(super) unknown_symbols: u64,
    /// Time without an agent counted for the pod, in nanoseconds.
    pub(super) ungated_ns: u64,
    /// Number of refused allocations counted for the pod.
    pub(super) refused_allocations: u64,
    /// Number of exceeded in-flight bounds counted for the pod.
    pub(super) bound_exceeded: u64,
}

/// Outcome of reading from a connection.
#[derive(Debug)]
pub(super) enum Received {
    /// A valid message from the process.
    Message(FromProcess),
    /// No message is available now.
    Nothing,
    /// A message that could not be parsed.
    Malformed(Malformed),
    /// The peer has closed the connection.
    End,
}

impl Process {
    /// Creates the state of a process that has just connected.
    ///
    /// # Errors
    /// Returns an error when the process has ended already, or no file descriptor is left to watch it.
    pub(super) fn new(
        id: ProcessId,
        pod: PodKey,
        connection: OwnedFd,
        pid: u32,
    ) -> io::Result<Self> {
        // A process of another PID namespace has no ID here.
        let number = i32::try_from(pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let pidfd = number
            .map(|number| pidfd_open(number, PidfdFlags::empty()))
            .transpose()?;
        let start = roster::start_of(pid);
        if pidfd.is_some() && start.is_none() {
            return Err(Errno::SRCH.into());
        }
        Ok(Self {
            id,
            pod,
            pid,
            program: String::new(),
            connection: Some(connection),
            pidfd,
            start,
            has_greeted: false,
            is_welcomed: false,
            greeted_open: false,
            attached: None,
            claim: 0,
            lost_at: None,
            is_killed: false,
            usage_before: (0, 0),
            reports: 0,
        })
    }

    /// Returns the connection of the process; `None` after it was closed.
    pub(super) fn connection(&self) -> Option<BorrowedFd<'_>> {
        self.connection.as_ref().map(AsFd::as_fd)
    }

    /// Closes the connection at this time.
    pub(super) fn close_connection(&mut self, now: u64) {
        self.connection = None;
        self.lost_at = Some(now);
    }

    /// Returns whether the process is alive. One without a pidfd counts as alive as long as its connection.
    pub(super) fn is_alive(&self) -> bool {
        let Some(pidfd) = &self.pidfd else {
            return self.connection.is_some();
        };
        !has_ended(pidfd)
    }

    /// Returns whether two connections are of the same process: same pod, ID and start time.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.pod == other.pod
            && self.pid == other.pid
            && self.start == other.start
            && self.start.is_some()
    }

    /// Kills the process, if its pidfd is known.
    pub(super) fn kill(&mut self) {
        self.is_killed = true;
        if let Some(pidfd) = &self.pidfd {
            let _dead = pidfd_send_signal(pidfd, Signal::KILL);
        }
    }

    /// Returns the process's record for the roster; `None` without pages or start time.
    pub(super) fn record(&self) -> Option<ProcessRecord> {
        Some(ProcessRecord {
            pid: self.pid,
            start: self.start?,
            sm_hundredths: self.attached.as_ref()?.sm_hundredths,
        })
    }

    /// Reads the next message without blocking.
    pub(super) fn next(&self) -> Received {
        let Some(connection) = &self.connection else {
            return Received::End;
        };
        let mut bytes = [MaybeUninit::uninit(); MESSAGE_MAX];
        let received = recv(
            connection,
            &mut bytes[..],
            RecvFlags::DONTWAIT | RecvFlags::TRUNC,
        );
        match received {
            Ok((_, 0)) => Received::End,
            Ok((_, whole)) if whole > MESSAGE_MAX => Received::Malformed(Malformed::Length),
            Ok(((read, _), _)) => match FromProcess::read(read) {
                Ok(message) => Received::Message(message),
                Err(malformed) => Received::Malformed(malformed),
            },
            Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
            Err(_) => Received::End,
        }
    }

    /// Sends a message without blocking. Returns `false` when the socket buffer is full or the connection has ended.
    pub(super) fn send(&self, message: &FromAgent) -> bool {
        let Some(connection) = &self.connection else {
            return false;
        };
        let mut writer = message.write();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        send(connection, writer.finish(), flags).is_ok()
    }

    /// Creates the pages and sends them to the process; `prepare` fills the orders first.
    ///
    /// # Errors
    /// Returns an error when the pages cannot be created or sent.
    pub(super) fn attach(
        &mut self,
        sm_hundredths: u32,
        is_mps: bool,
        open: bool,
        now: u64,
        prepare: impl FnOnce(&Orders),
    ) -> io::Result<()> {
        let orders = Page::<Orders>::new()?;
        let facts = Page::<Facts>::new()?;
        // A gate that was open stays open until the scheduler closes it.
        let epoch = if open { 2 } else { 1 };
        orders.gate.set(epoch);
        if open {
            // Until the process has copied its state to these pages, it counts as having work of unknown length.
            facts.inflight_us.store(1, Ordering::Release);
            facts.unmeasured.store(1, Ordering::Release);
        }
        prepare(&orders);
        let connection = self
            .connection
            .as_ref()
            .ok_or(io::ErrorKind::NotConnected)?;
        let read_only = orders.read_only()?;
        let files = [read_only.as_fd(), facts.file()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let mut writer = FromAgent::Pages.write();
        let part = [io::IoSlice::new(writer.finish())];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _bytes = sendmsg(connection, &part, &mut control, flags)?;
        self.attached = Some(Attached {
            orders,
            facts,
            sm_hundredths,
            is_mps,
            epoch,
            since: open.then_some(now),
            closing_since: None,
            contended_since: None,
            requests_again: false,
            at: now,
            observed: Observed::default(),
        });
        Ok(())
    }
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    // A pidfd is readable once no thread is left, whether or not the parent has waited for the process.
    let mut fds = [rustix::event::PollFd::new(
        pidfd,
        rustix::event::PollFlags::IN,
    )];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(count) if count > 0)
}

impl Attached {
    /// Returns the page of facts, which the process writes and the agent reads.
    pub(super) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Returns the page of orders, which the agent writes and the process reads.
    pub(super) fn orders(&self) -> &Orders {
        &self.orders
    }

    /// Returns the epoch of the process's gate: even while the gate is open.
    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns whether the gate of the process is open: it holds a token.
    pub(super) const fn is_open(&self) -> bool {
        self.epoch & 1 == 0
    }

    /// Opens the gate until `until`, with at most `inflight_us_max` microseconds of work in flight, and wakes parked threads.
    pub(super) fn open(&mut self, until: u64, inflight_us_max: u32, now: u64) {
        self.orders.open_until.store(until, Ordering::Relaxed);
        self.orders
            .inflight_us_max
            .store(inflight_us_max, Ordering::Relaxed);
        self.orders.contended.store(0, Ordering::Relaxed);
        self.epoch += 1 + (self.epoch + 1) % 2;
        self.orders.gate.set(self.epoch);
        wake(self.orders.gate.word());
        self.since = Some(now);
        self.closing_since = None;
        self.contended_since = None;
        self.requests_again = false;
        self.observed.idle_at = now;
    }

    /// Shuts the gate and orders the process to report when nothing is in flight.
    pub(super) fn shut(&mut self, now: u64) {
        if self.is_open() {
            self.epoch += 1;
            self.orders.gate.set(self.epoch);
            self.raise_attention();
            self.closing_since = Some(now);
        }
    }

    /// Shuts the gate and counts the token as returned. Returns whether the process has requested another one.
    pub(super) fn revoke(&mut self) -> bool {
        if self.is_open() {
            self.epoch += 1;
            self.orders.gate.set(self.epoch);
            self.raise_attention();
        }
        self.closing_since = None;
        self.contended_since = None;
        self.since = None;
        std::mem::take(&mut self.requests_again)
    }

    /// Returns the time since which work is in flight or being launched, in nanoseconds; `unfinished_since` is the process's
    /// own report. `None`: nothing is in flight, at least since [`Observed::idle_at`]. `is_active`: the process has launched
    /// since the last observation.
    pub(super) fn in_flight_since(
        &mut self,
        unfinished_since: Option<u64>,
        is_active: bool,
        now: u64,
    ) -> Option<u64> {
        let is_under_way = self.facts.inflight_us.load(Ordering::Acquire) != 0;
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
    pub(super) fn expected(&self) -> Option<Span> {
        let is_measured = self.facts.unmeasured.load(Ordering::Acquire) == 0;
        let in_flight = self.facts.inflight_us.load(Ordering::Acquire);
        is_measured.then(|| Span(u64::from(in_flight) * 1_000))
    }

    /// Records that the process has shut the gate from inside.
    pub(super) fn note_shut(&mut self) {
        if self.is_open() {
            self.epoch += 1;
            self.orders.gate.set(self.epoch);
        }
        self.closing_since = None;
        self.since = None;
    }

    /// Extends the token until `until`.
    pub(super) fn extend(&self, until: u64, inflight_us_max: u32) {
        self.orders.open_until.store(until, Ordering::Relaxed);
        self.orders
            .inflight_us_max
            .store(inflight_us_max, Ordering::Relaxed);
    }

    /// Publishes whether other processes wait for its SMs.
    pub(super) fn contended(&mut self, is: bool, inflight_us_max: u32, now: u64) {
        self.contended_since = is.then_some(now);
        self.orders
            .inflight_us_max
            .store(inflight_us_max, Ordering::Relaxed);
        self.orders
            .contended
            .store(u32::from(is), Ordering::Release);
        if is {
            self.raise_attention();
        }
    }

    /// Increments the attention word and wakes the process's thread that waits for it.
    fn raise_attention(&self) {
        self.orders.attention.fetch_add(1, Ordering::Release);
        wake(&self.orders.attention);
    }

    /// Publishes the answer to a claim of memory.
    pub(super) fn answer_claim(&self, seq: u32, claim: u64) {
        self.orders.memory_claim.store(claim, Ordering::Release);
        self.orders.claim_answered.store(seq, Ordering::Release);
        wake(&self.orders.claim_answered);
    }

    /// Adds the growth of the facts since the last observation to the pod's counters.
    pub(super) fn count(&mut self, counters: &mut PodCounters) {
        let facts = &self.facts;
        let observed = &mut self.observed;
        let grow = |counted: &mut u64, now: u64, counter: &mut u64| {
            // A decreasing count is invalid and adds nothing.
            if now > *counted {
                *counter = counter.saturating_add(now - *counted);
                *counted = now;
            }
        };
        for (counted, fact, counter) in [
            (
                &mut observed.launches,
                &facts.launches.0,
                &mut counters.launches,
            ),
            (
                &mut observed.unknown_symbols,
                &facts.unknown_symbols,
                &mut counters.unknown_symbols,
            ),
            (
                &mut observed.ungated_ns,
                &facts.ungated_ns,
                &mut counters.ungated_ns,
            ),
            (
                &mut observed.refused_allocations,
                &facts.refused_allocations,
                &mut counters.refused_allocations,
            ),
            (
                &mut observed.bound_exceeded,
                &facts.bound_exceeded,
                &mut counters.bound_exceeded,
            ),
        ] {
            grow(counted, fact.load(Ordering::Relaxed), counter);
        }
    }

    /// Increments the heartbeat, which shows waiting threads that the agent is alive.
    pub(super) fn heartbeat(&self) {
        self.orders.heartbeat.fetch_add(1, Ordering::Relaxed);
    }
}

/// Wakes all threads that wait on a word, in any process.
fn wake(word: &AtomicU32) {
    let _woken = futex::wake(word, futex::Flags::empty(), i32::MAX.cast_unsigned());
}
