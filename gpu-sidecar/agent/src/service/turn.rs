//! The event loop of the service's thread: handles ready descriptors, wakes the slots that are due, and sleeps until the next
//! event or deadline.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use policy::tokens::ProcessId;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::memory::ClaimAnswer;
use super::pod::ServedPod;
use super::process::Process;
use super::slot::{ServedSlot, SlotContext};
use crate::events::EventKind;
use crate::state::{AgentFigures, Inbox, PUBLISH_SPAN, PodKey, ServiceSettings, SlotKey};

/// Maximum number of messages of one process handled before other descriptors.
pub(super) const MESSAGES_AT_ONCE: usize = 16;
/// Interval of the heartbeats while a process waits, in nanoseconds.
const HEARTBEAT_NS: u64 = 50_000_000;
/// Interval of polling peers whose exit raises no event, in nanoseconds.
const POLL_NS: u64 = 100_000_000;

/// Tag of the command channel in epoll data.
const WAKE: u64 = 0;
/// Tag of a pod's listener in epoll data; the low 32 bits are the pod's key.
pub(super) const LISTENER: u64 = 1 << 32;
/// Tag of a process's connection in epoll data; the low 32 bits are the process's number.
pub(super) const CONNECTION: u64 = 2 << 32;

/// State of the service, owned by its thread.
pub(super) struct Service {
    pub(super) settings: ServiceSettings,
    pub(super) inbox: Inbox,
    pub(super) epoll: OwnedFd,
    pub(super) slots: HashMap<SlotKey, ServedSlot>,
    pub(super) pods: HashMap<PodKey, ServedPod>,
    pub(super) processes: HashMap<u32, Process>,
    pub(super) next_process: u32,
    /// Processes that have greeted before their slot's MPS daemon answers, each with the end of its wait in nanoseconds.
    pub(super) early: Vec<(ProcessId, u64)>,
    pub(super) agent: AgentFigures,
    pub(super) published_at: u64,
    pub(super) polled_at: u64,
    pub(super) heartbeat_at: u64,
    pub(super) answers: Vec<ClaimAnswer>,
    pub(super) is_stopping: bool,
}

impl Service {
    pub(super) fn new(settings: ServiceSettings, inbox: Inbox) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            inbox.wake(),
            epoll::EventData::new_u64(WAKE),
            epoll::EventFlags::IN,
        )?;
        Ok(Self {
            settings,
            inbox,
            epoll,
            slots: HashMap::new(),
            pods: HashMap::new(),
            processes: HashMap::new(),
            next_process: 0,
            early: Vec::new(),
            agent: AgentFigures::default(),
            published_at: 0,
            polled_at: 0,
            heartbeat_at: 0,
            answers: Vec::new(),
            is_stopping: false,
        })
    }

    pub(super) fn run(mut self) {
        // A timer that is 50 µs late costs half a hand-over. Without the privileges, hand-overs take longer.
        let _slack = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
        let _nice = rustix::process::setpriority_process(None, -10);
        let mut ready = Vec::with_capacity(256);
        while !self.is_stopping {
            let now = super::now_ns();
            let timeout = self.next(now).map(|at| {
                let span = at.saturating_sub(now);
                Timespec {
                    tv_sec: i64::try_from(span / 1_000_000_000).unwrap_or(i64::MAX),
                    tv_nsec: i64::try_from(span % 1_000_000_000).unwrap_or(0),
                }
            });
            ready.clear();
            let waited = epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut ready),
                timeout.as_ref(),
            );
            match waited {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot wait for events");
                    return;
                }
            }
            self.agent.wakeups += 1;
            for event in &ready {
                self.handle_ready(event.data.u64());
            }
            self.handle_due();
        }
    }

    /// Returns the time of the next deadline, in nanoseconds; `None` when only events wake the thread.
    pub(super) fn next(&self, now: u64) -> Option<u64> {
        let slots = self.slots.values().filter_map(ServedSlot::next);
        let claims = self.pods.values().filter_map(|served| served.claims.next());
        let resumptions = self
            .pods
            .values()
            .filter_map(|pod| pod.accept_limiter.resumes_at());
        let early = self.early.iter().map(|(_, until)| *until);
        let beats = self
            .has_waiters()
            .then_some(self.heartbeat_at + HEARTBEAT_NS);
        let polls = self.must_poll().then_some(self.polled_at + POLL_NS);
        slots
            .chain(claims)
            .chain(resumptions)
            .chain(early)
            .chain(beats)
            .chain(polls)
            .min()
            .map(|at| at.max(now))
    }

    /// Returns whether any process waits for a token.
    pub(super) fn has_waiters(&self) -> bool {
        self.slots
            .values()
            .any(|slot| slot.tokens.waiting() > 0 || !slot.early_requests.is_empty())
    }

    /// Returns whether any state changes without an event: silent or lost processes, or holders.
    pub(super) fn must_poll(&self) -> bool {
        self.pods.values().any(|served| !served.silent.is_empty())
            || self.processes.values().any(|process| {
                process.lost_at.is_some()
                    || process
                        .attached
                        .as_ref()
                        // Holders are settled periodically, also while no decision is due.
                        .is_some_and(|attached| {
                            attached.is_open() || attached.closing_since.is_some()
                        })
            })
    }

    /// Handles a ready descriptor by the tag in its epoll data.
    pub(super) fn handle_ready(&mut self, data: u64) {
        let number = u32::try_from(data & u64::from(u32::MAX)).unwrap_or(0);
        match data >> 32 << 32 {
            LISTENER => self.accept(PodKey(number)),
            CONNECTION => self.receive(ProcessId(number)),
            _ => {
                self.inbox.clear_wake();
                while let Some(command) = self.inbox.next() {
                    self.handle_command(command);
                    if self.is_stopping {
                        return;
                    }
                }
            }
        }
    }

    /// Handles everything that is due by now: pauses, claims, heartbeats, polling, slots and figures.
    pub(super) fn handle_due(&mut self) {
        let now = super::now_ns();
        self.resume_accepting(now);
        self.answer_early(now);
        self.answer_claims(now);
        if now >= self.heartbeat_at + HEARTBEAT_NS && self.has_waiters() {
            self.heartbeat_at = now;
            for process in self.processes.values() {
                if let Some(attached) = &process.attached {
                    attached.heartbeat();
                }
            }
        }
        if now >= self.polled_at + POLL_NS {
            self.polled_at = now;
            self.poll_peers(now);
        }
        let mut keys: Vec<SlotKey> = Vec::new();
        for (key, slot) in &self.slots {
            if slot.next().is_some_and(|at| at <= now) {
                keys.push(*key);
            }
        }
        for key in keys {
            self.thaw(key, now);
            self.on_slot(key, |slot, context| slot.decide(context));
        }
        let is_time = now.saturating_sub(self.published_at)
            >= u64::try_from(PUBLISH_SPAN.as_nanos()).unwrap_or(u64::MAX);
        if self.inbox.take_figures_request() || (is_time && !self.processes.is_empty()) {
            self.published_at = now;
            let figures = self.figures(now);
            self.inbox.publish(figures);
        }
    }

    /// Runs `work` with a slot and its context, and returns the result; `None` when there is no such slot.
    pub(super) fn on_slot<T>(
        &mut self,
        key: SlotKey,
        work: impl FnOnce(&mut ServedSlot, &mut SlotContext<'_>) -> T,
    ) -> Option<T> {
        let slot = self.slots.get_mut(&key)?;
        let mut context = SlotContext {
            processes: &mut self.processes,
            pods: &mut self.pods,
            now: super::now_ns(),
        };
        Some(work(slot, &mut context))
    }

    /// Returns the slot of a process's pod.
    pub(super) fn slot_of(&self, id: ProcessId) -> Option<SlotKey> {
        let process = self.processes.get(&id.0)?;
        Some(self.pods.get(&process.pod)?.pod.slot)
    }

    /// Records an event of a pod, with its slot.
    pub(super) fn record_event(&self, kind: EventKind, pod: PodKey, text: impl Into<String>) {
        let Some(served) = self.pods.get(&pod) else {
            return;
        };
        let slot = self.slots.get(&served.pod.slot);
        let slot = slot.map_or("", |slot| slot.slot.name.as_str());
        self.settings
            .events
            .record(kind, slot, &served.pod.display(), text);
    }
}
