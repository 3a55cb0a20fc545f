//! One process of a pod: its connection and its pages, and what of its words is believed.

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

use super::roster::{self, Known};
use crate::state::{PodCounters, PodKey};

/// A process.
#[derive(Debug)]
pub(super) struct Process {
    /// Its number for the scheduler and the table of connections.
    pub(super) id: ProcessId,
    /// Whose it is.
    pub(super) pod: PodKey,
    /// As the kernel tells it.
    pub(super) pid: u32,
    /// As it names itself.
    pub(super) program: String,
    /// `None`: it has gone away without being dead.
    connection: Option<OwnedFd>,
    /// Its number may be another's soon; this is its own.
    life: Option<OwnedFd>,
    start: Option<u64>,
    /// It has said hello.
    pub(super) has_greeted: bool,
    /// It was told where it may compute.
    pub(super) is_welcome: bool,
    /// It was open, or computed, when it greeted.
    pub(super) was_open: bool,
    /// Its pages, and what was seen of them.
    pub(super) attached: Option<Attached>,
    /// Bytes of the pod's memory that it may hold.
    pub(super) claim: u64,
    /// When the connection was lost, in nanoseconds.
    pub(super) lost_at: Option<u64>,
    /// It was killed.
    pub(super) is_ended: bool,
    /// Kernel time and bytes of the device that it had when it greeted.
    pub(super) before: (u64, u64),
    /// Reports that were taken of it.
    pub(super) reports: u32,
}

/// Reports of one process that are told; more say nothing new.
pub(super) const REPORTS_MAX: u32 = 32;

/// A process with pages.
#[derive(Debug)]
pub(super) struct Attached {
    orders: Page<Orders>,
    facts: Page<Facts>,
    /// Its share of SMs, counted after the driver's rounding.
    pub(super) sm_hundredths: u32,
    /// It is a client of an MPS server.
    pub(super) is_mps: bool,
    /// Where its gate stands.
    epoch: u64,
    /// Since when it has its token, or waits for it.
    pub(super) since: Option<u64>,
    /// Since when it was told to close, if it has not done so.
    pub(super) closing_since: Option<u64>,
    /// Since when others wait for the SMs that it holds.
    pub(super) contended_since: Option<u64>,
    /// It has asked since its token was given.
    pub(super) asks_again: bool,
    /// When the pages were made.
    pub(super) at: u64,
    /// What was seen of the facts.
    pub(super) seen: Seen,
}

/// What was seen of a process's facts.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Kernel time.
    pub(super) busy_ns: u64,
    /// Kernel time that the process had before these pages.
    pub(super) busy_before_ns: u64,
    /// Kernel time whose stretches were not seen yet.
    pub(super) unmatched_ns: u64,
    /// Stretches.
    pub(super) stretches: u64,
    /// Until when it was busy, as far as is known.
    pub(super) busy_until: u64,
    pub(super) launches: u64,
    pub(super) launches_at_settle: u64,
    /// When nothing was first seen in flight; 0: something was when it was last looked.
    pub(super) idle_at: u64,
    /// When a launch was first seen to be under way of which nothing more is known; 0: none is.
    pub(super) under_way_at: u64,
    pub(super) unknown_symbols: u64,
    pub(super) ungated_ns: u64,
    pub(super) refused_allocations: u64,
    pub(super) bound_exceeded: u64,
}

/// What came over a connection.
#[derive(Debug)]
pub(super) enum Came {
    /// A message.
    Message(FromProcess),
    /// Nothing more for now.
    Nothing,
    /// No message.
    Malformed(Malformed),
    /// The other side is gone.
    End,
}

impl Process {
    /// One that has just connected.
    ///
    /// # Errors
    /// It is dead already, or no file descriptor is left to tell when it will be.
    pub(super) fn new(
        id: ProcessId,
        pod: PodKey,
        connection: OwnedFd,
        pid: u32,
    ) -> io::Result<Self> {
        // One of another PID namespace has no number here.
        let number = i32::try_from(pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let life = number
            .map(|number| pidfd_open(number, PidfdFlags::empty()))
            .transpose()?;
        let start = roster::start_of(pid);
        if life.is_some() && start.is_none() {
            return Err(Errno::SRCH.into());
        }
        Ok(Self {
            id,
            pod,
            pid,
            program: String::new(),
            connection: Some(connection),
            life,
            start,
            has_greeted: false,
            is_welcome: false,
            was_open: false,
            attached: None,
            claim: 0,
            lost_at: None,
            is_ended: false,
            before: (0, 0),
            reports: 0,
        })
    }

    /// Its connection, if there is one.
    pub(super) fn connection(&self) -> Option<BorrowedFd<'_>> {
        self.connection.as_ref().map(AsFd::as_fd)
    }

    /// Closes the connection.
    pub(super) fn hang_up(&mut self, now: u64) {
        self.connection = None;
        self.lost_at = Some(now);
    }

    /// Whether it still lives. One that cannot be told apart from others by a file descriptor lives as long as its
    /// connection.
    pub(super) fn lives(&self) -> bool {
        let Some(life) = &self.life else {
            return self.connection.is_some();
        };
        !has_ended(life)
    }

    /// Whether it is the same process as that of another connection.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.pod == other.pod
            && self.pid == other.pid
            && self.start == other.start
            && self.start.is_some()
    }

    /// Ends it.
    pub(super) fn kill(&mut self) {
        self.is_ended = true;
        if let Some(life) = &self.life {
            let _dead = pidfd_send_signal(life, Signal::KILL);
        }
    }

    /// How it is written down.
    pub(super) fn known(&self) -> Option<Known> {
        Some(Known {
            pid: self.pid,
            start: self.start?,
            sm_hundredths: self.attached.as_ref()?.sm_hundredths,
        })
    }

    /// The next message.
    pub(super) fn next(&self) -> Came {
        let Some(connection) = &self.connection else {
            return Came::End;
        };
        let mut bytes = [MaybeUninit::uninit(); MESSAGE_MAX];
        let received = recv(
            connection,
            &mut bytes[..],
            RecvFlags::DONTWAIT | RecvFlags::TRUNC,
        );
        match received {
            Ok((_, 0)) => Came::End,
            Ok((_, whole)) if whole > MESSAGE_MAX => Came::Malformed(Malformed::Length),
            Ok(((read, _), _)) => match FromProcess::read(read) {
                Ok(message) => Came::Message(message),
                Err(malformed) => Came::Malformed(malformed),
            },
            Err(Errno::AGAIN | Errno::INTR) => Came::Nothing,
            Err(_) => Came::End,
        }
    }

    /// Says something. `false`: it does not read what it is told, or is gone.
    pub(super) fn say(&self, message: &FromAgent) -> bool {
        let Some(connection) = &self.connection else {
            return false;
        };
        let mut writer = message.write();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        send(connection, writer.finish(), flags).is_ok()
    }

    /// Makes pages and hands them over.
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
        // A gate that was found open stays so until the scheduler says otherwise.
        let epoch = if open { 2 } else { 1 };
        orders.gate.set(epoch);
        if open {
            // Until the process has carried over how it stands, it counts as one of whose work nothing is known.
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
            asks_again: false,
            at: now,
            seen: Seen::default(),
        });
        Ok(())
    }
}

fn has_ended(life: &OwnedFd) -> bool {
    // The descriptor is readable once no thread is left, whether or not the parent has taken notice.
    let mut fds = [rustix::event::PollFd::new(
        life,
        rustix::event::PollFlags::IN,
    )];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(count) if count > 0)
}

impl Attached {
    /// What the process says of itself.
    pub(super) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// What it is ordered.
    pub(super) fn orders(&self) -> &Orders {
        &self.orders
    }

    /// Where its gate stands: even is open.
    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// It has a token.
    pub(super) const fn is_open(&self) -> bool {
        self.epoch & 1 == 0
    }

    /// Opens the gate.
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
        self.asks_again = false;
        self.seen.idle_at = now;
    }

    /// Shuts the gate, and has the process say when nothing is in flight.
    pub(super) fn shut(&mut self, now: u64) {
        if self.is_open() {
            self.epoch += 1;
            self.orders.gate.set(self.epoch);
            self.attention();
            self.closing_since = Some(now);
        }
    }

    /// Shuts the gate and takes the token as given back. Returns whether the process has asked for another.
    pub(super) fn revoke(&mut self) -> bool {
        if self.is_open() {
            self.epoch += 1;
            self.orders.gate.set(self.epoch);
            self.attention();
        }
        self.closing_since = None;
        self.contended_since = None;
        self.since = None;
        std::mem::take(&mut self.asks_again)
    }

    /// Since when something is in flight or under way, in nanoseconds, where the process itself says `unfinished_since`. `None`:
    /// nothing is, since [`Seen::idle_at`] at least. `is_active`: it has launched since it was last looked.
    pub(super) fn in_flight_since(
        &mut self,
        unfinished_since: Option<u64>,
        is_active: bool,
        now: u64,
    ) -> Option<u64> {
        let is_under_way = self.facts.inflight_us.load(Ordering::Acquire) != 0;
        let seen = &mut self.seen;
        if unfinished_since.is_none() && !is_under_way {
            seen.under_way_at = 0;
            // Since when exactly is not known.
            if is_active || seen.idle_at == 0 {
                seen.idle_at = now;
            }
            return None;
        }
        seen.idle_at = 0;
        if unfinished_since.is_some() {
            seen.under_way_at = 0;
        } else if is_active || seen.under_way_at == 0 {
            seen.under_way_at = now;
        }
        Some(unfinished_since.unwrap_or(seen.under_way_at))
    }

    /// How long what is in flight is expected to take; `None`: some of it was never measured.
    pub(super) fn expected(&self) -> Option<Span> {
        let is_measured = self.facts.unmeasured.load(Ordering::Acquire) == 0;
        let in_flight = self.facts.inflight_us.load(Ordering::Acquire);
        is_measured.then(|| Span(u64::from(in_flight) * 1_000))
    }

    /// Takes note that the process has shut the gate from inside.
    pub(super) fn note_shut(&mut self) {
        if self.is_open() {
            self.epoch += 1;
            self.orders.gate.set(self.epoch);
        }
        self.closing_since = None;
        self.since = None;
    }

    /// Renews a token.
    pub(super) fn extend(&self, until: u64, inflight_us_max: u32) {
        self.orders.open_until.store(until, Ordering::Relaxed);
        self.orders
            .inflight_us_max
            .store(inflight_us_max, Ordering::Relaxed);
    }

    /// Says whether others wait for its SMs.
    pub(super) fn contended(&mut self, is: bool, inflight_us_max: u32, now: u64) {
        self.contended_since = is.then_some(now);
        self.orders
            .inflight_us_max
            .store(inflight_us_max, Ordering::Relaxed);
        self.orders
            .contended
            .store(u32::from(is), Ordering::Release);
        if is {
            self.attention();
        }
    }

    fn attention(&self) {
        self.orders.attention.fetch_add(1, Ordering::Release);
        wake(&self.orders.attention);
    }

    /// Answers a claim.
    pub(super) fn answer_claim(&self, seq: u32, claim: u64) {
        self.orders.memory_claim.store(claim, Ordering::Release);
        self.orders.claim_answered.store(seq, Ordering::Release);
        wake(&self.orders.claim_answered);
    }

    /// Adds what is new in the facts to what is counted of the pod.
    pub(super) fn count(&mut self, counters: &mut PodCounters) {
        let facts = &self.facts;
        let seen = &mut self.seen;
        let grow = |seen: &mut u64, now: u64, counter: &mut u64| {
            // A count that goes backwards is a lie, and adds nothing.
            if now > *seen {
                *counter = counter.saturating_add(now - *seen);
                *seen = now;
            }
        };
        for (seen, fact, counter) in [
            (
                &mut seen.launches,
                &facts.launches.0,
                &mut counters.launches,
            ),
            (
                &mut seen.unknown_symbols,
                &facts.unknown_symbols,
                &mut counters.unknown_symbols,
            ),
            (
                &mut seen.ungated_ns,
                &facts.ungated_ns,
                &mut counters.ungated_ns,
            ),
            (
                &mut seen.refused_allocations,
                &facts.refused_allocations,
                &mut counters.refused_allocations,
            ),
            (
                &mut seen.bound_exceeded,
                &facts.bound_exceeded,
                &mut counters.bound_exceeded,
            ),
        ] {
            grow(seen, fact.load(Ordering::Relaxed), counter);
        }
    }

    /// Gives a sign of life.
    pub(super) fn beat(&self) {
        self.orders.heartbeat.fetch_add(1, Ordering::Relaxed);
    }
}

/// Wakes all that wait on a word, in whatever process.
fn wake(word: &AtomicU32) {
    let _nobody = futex::wake(word, futex::Flags::empty(), i32::MAX.cast_unsigned());
}
