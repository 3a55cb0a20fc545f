//! The service's thread: takes what is ready, lets each slot decide that has something to decide, and sleeps until something
//! happens or is due.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use policy::tokens::ProcessId;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::memory::Answer;
use super::pod::Served;
use super::process::Process;
use super::slot::{Hands, Shared};
use crate::events::EventKind;
use crate::state::{AgentFigures, Inbox, PUBLISH_SPAN, PodKey, ServiceSettings, SlotKey};

/// Messages of one process that are taken before others have their turn.
pub(super) const MESSAGES_AT_ONCE: usize = 16;
/// How often a process with parked threads gets a sign of life, in nanoseconds.
const BEAT_NS: u64 = 50_000_000;
/// How often it is looked after what tells nobody when it ends, in nanoseconds.
const LOOK_NS: u64 = 100_000_000;

const WAKE: u64 = 0;
/// What is ready is the listener of this pod.
pub(super) const LISTENER: u64 = 1 << 32;
/// What is ready is the connection of this process.
pub(super) const CONNECTION: u64 = 2 << 32;

/// All that the thread owns.
pub(super) struct Service {
    pub(super) settings: ServiceSettings,
    pub(super) inbox: Inbox,
    pub(super) epoll: OwnedFd,
    pub(super) slots: HashMap<SlotKey, Shared>,
    pub(super) pods: HashMap<PodKey, Served>,
    pub(super) processes: HashMap<u32, Process>,
    pub(super) next_process: u32,
    /// Processes that have said hello before their slot's MPS daemon answers, and until when they wait for it.
    pub(super) early: Vec<(ProcessId, u64)>,
    pub(super) agent: AgentFigures,
    pub(super) published_at: u64,
    pub(super) looked_at: u64,
    pub(super) beat_at: u64,
    pub(super) answers: Vec<Answer>,
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
            looked_at: 0,
            beat_at: 0,
            answers: Vec::new(),
            is_stopping: false,
        })
    }

    pub(super) fn run(mut self) {
        // A timer that comes 50 µs late is half a hand-over. Without the right to it, hand-overs take longer.
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
                self.take(event.data.u64());
            }
            self.due();
        }
    }

    /// When there is something to do, in nanoseconds.
    pub(super) fn next(&self, now: u64) -> Option<u64> {
        let slots = self.slots.values().filter_map(Shared::next);
        let claims = self.pods.values().filter_map(|served| served.claims.next());
        let doors = self.pods.values().filter_map(|pod| pod.door.opens_at());
        let early = self.early.iter().map(|(_, until)| *until);
        let beats = self.somebody_waits().then_some(self.beat_at + BEAT_NS);
        let looks = self.must_look().then_some(self.looked_at + LOOK_NS);
        slots
            .chain(claims)
            .chain(doors)
            .chain(early)
            .chain(beats)
            .chain(looks)
            .min()
            .map(|at| at.max(now))
    }

    pub(super) fn somebody_waits(&self) -> bool {
        self.slots
            .values()
            .any(|slot| slot.tokens.waiting() > 0 || !slot.asked_early.is_empty())
    }

    /// Something is there whose end, or whose use, nobody tells.
    pub(super) fn must_look(&self) -> bool {
        self.pods.values().any(|served| !served.silent.is_empty())
            || self.processes.values().any(|process| {
                process.lost_at.is_some()
                    || process
                        .attached
                        .as_ref()
                        // One that holds is settled now and then, also while nothing is to be decided.
                        .is_some_and(|attached| {
                            attached.is_open() || attached.closing_since.is_some()
                        })
            })
    }

    pub(super) fn take(&mut self, data: u64) {
        let number = u32::try_from(data & u64::from(u32::MAX)).unwrap_or(0);
        match data >> 32 << 32 {
            LISTENER => self.accept(PodKey(number)),
            CONNECTION => self.hear(ProcessId(number)),
            _ => {
                self.inbox.clear_wake();
                while let Some(command) = self.inbox.next() {
                    self.obey(command);
                    if self.is_stopping {
                        return;
                    }
                }
            }
        }
    }

    pub(super) fn due(&mut self) {
        let now = super::now_ns();
        self.open_doors(now);
        self.answer_early(now);
        self.answer_claims(now);
        if now >= self.beat_at + BEAT_NS && self.somebody_waits() {
            self.beat_at = now;
            for process in self.processes.values() {
                if let Some(attached) = &process.attached {
                    attached.beat();
                }
            }
        }
        if now >= self.looked_at + LOOK_NS {
            self.looked_at = now;
            self.look(now);
        }
        let mut keys: Vec<SlotKey> = Vec::new();
        for (key, slot) in &self.slots {
            if slot.next().is_some_and(|at| at <= now) {
                keys.push(*key);
            }
        }
        for key in keys {
            self.thaw(key, now);
            self.on_slot(key, |slot, hands| slot.decide(hands));
        }
        let is_time = now.saturating_sub(self.published_at)
            >= u64::try_from(PUBLISH_SPAN.as_nanos()).unwrap_or(u64::MAX);
        if self.inbox.are_figures_wanted() || (is_time && !self.processes.is_empty()) {
            self.published_at = now;
            let figures = self.figures(now);
            self.inbox.publish(figures);
        }
    }

    /// Does something with a slot and what its orders need.
    pub(super) fn on_slot<T>(
        &mut self,
        key: SlotKey,
        work: impl FnOnce(&mut Shared, &mut Hands<'_>) -> T,
    ) -> Option<T> {
        let slot = self.slots.get_mut(&key)?;
        let mut hands = Hands {
            processes: &mut self.processes,
            pods: &mut self.pods,
            now: super::now_ns(),
        };
        Some(work(slot, &mut hands))
    }

    pub(super) fn slot_of(&self, id: ProcessId) -> Option<SlotKey> {
        let process = self.processes.get(&id.0)?;
        Some(self.pods.get(&process.pod)?.pod.slot)
    }

    pub(super) fn tell(&self, kind: EventKind, pod: PodKey, text: impl Into<String>) {
        let Some(served) = self.pods.get(&pod) else {
            return;
        };
        let slot = self.slots.get(&served.pod.slot);
        let slot = slot.map_or("", |slot| slot.slot.name.as_str());
        self.settings
            .events
            .tell(kind, slot, &served.pod.display(), text);
    }
}
