//! A client of the server: its rings and its objects on the timeline.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use device::Time;
use device::ledger::ProcessId;
use device::machine::{EventId, StreamId};
use device::op::Graph;
use softgpu_wire::message::Role;
use softgpu_wire::page::{CONTEXTS, Completion, IN_FLIGHT, Page, Shared};
use softgpu_wire::record::EventSlot;

use crate::shared::SharedId;

/// Number of a client, in order of connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClientId(pub(crate) u64);

/// A context of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    pub(crate) unit: u32,
    pub(crate) process: ProcessId,
    /// Set by an error: the context runs no further commands.
    pub(crate) is_broken: bool,
}

/// A stream of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    pub(crate) context: u32,
}

/// An event of a client.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) id: EventId,
    /// Number of the event's last record.
    pub(crate) latest: u64,
    /// Number of records made.
    pub(crate) records: u64,
    /// Number of the last record that has occurred; earlier records which occur later are ignored.
    pub(crate) published: u64,
    /// Last record; `None` before the first one.
    pub(crate) recorded: Option<Recorded>,
    pub(crate) shared: Option<SharedId>,
}

/// Place of an event's record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorded {
    pub(crate) slot: u32,
    /// Stream that was in the slot then.
    pub(crate) stream: StreamId,
    /// Number of commands that have ended in the slot once the record has occurred.
    pub(crate) count: u64,
}

/// A client's process on one GPU or slice of the timeline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    pub(crate) id: ProcessId,
    /// Number of contexts of the process; 0 if it only holds memory.
    pub(crate) contexts: u32,
    pub(crate) mps: Option<u32>,
    pub(crate) percentage_hundredths: u32,
}

/// Rings of a client of [`Role::Cuda`].
#[derive(Debug)]
pub(crate) struct Rings {
    pub(crate) page: Shared<Page>,
    /// Number of commands taken out of the ring.
    pub(crate) head: u64,
    /// Number of completions appended to the ring.
    pub(crate) tail: u64,
    /// Completions for which the ring has no room yet.
    pub(crate) held_back: VecDeque<Completion>,
    /// Number of stream commands taken out of the ring.
    pub(crate) submitted: u64,
    /// Number of those that have ended.
    pub(crate) retired: u64,
    pub(crate) contexts: [Option<Context>; CONTEXTS],
    pub(crate) streams: Vec<Option<Stream>>,
    /// For each stream slot, the number of commands that have ended and the time of the last one.
    pub(crate) done: Vec<(u64, Time)>,
    pub(crate) events: HashMap<u32, Event>,
    pub(crate) graphs: HashMap<u32, Arc<Graph>>,
    pub(crate) next_graph: u32,
    /// The client's attention counter when its rings were last read.
    pub(crate) attention: u32,
    /// Set when something was published after the client's threads were last woken.
    pub(crate) has_news: bool,
    /// Since when there are effects on memory of which the client's threads were not notified, and for which none may be waiting.
    pub(crate) effects_since: Option<Time>,
}

impl Rings {
    pub(crate) fn new(page: Shared<Page>) -> Self {
        Self {
            page,
            head: 0,
            tail: 0,
            held_back: VecDeque::new(),
            submitted: 0,
            retired: 0,
            contexts: [None; CONTEXTS],
            streams: Vec::new(),
            done: Vec::new(),
            events: HashMap::new(),
            graphs: HashMap::new(),
            next_graph: 0,
            attention: 0,
            has_news: false,
            effects_since: None,
        }
    }

    /// Reads the client's attention counter, and returns whether it has appended or waits for anything, or anything may become of what it has submitted.
    pub(crate) fn is_busy(&mut self) -> bool {
        let before = std::mem::replace(&mut self.attention, self.page.attention());
        before != self.attention
            || self.in_flight() > 0
            || self.has_news
            || self.effects_since.is_some()
            || !self.held_back.is_empty()
            || self.page.has_commands(self.head)
            || self.page.waiting() != 0
    }

    /// Returns the number of commands submitted to streams that have not ended.
    pub(crate) const fn in_flight(&self) -> u64 {
        self.submitted - self.retired
    }

    /// Appends a completion of which the client's worker is to be notified now, or holds it back until the ring has room.
    pub(crate) fn complete(&mut self, completion: Completion) {
        self.has_news = true;
        self.append(completion);
    }

    /// Appends the completion of a command whose effect no other process waits for, and which ended at `ended`, as [`Self::complete`] does, but the worker
    /// is notified later unless a thread waits.
    pub(crate) fn complete_effect(&mut self, completion: Completion, ended: Time) {
        self.effects_since.get_or_insert(ended);
        self.append(completion);
    }

    /// Returns whether there are effects of which the worker was not notified, and nothing is in flight that could end after them.
    pub(crate) const fn has_last_effects(&self) -> bool {
        self.effects_since.is_some() && self.in_flight() == 0
    }

    fn append(&mut self, completion: Completion) {
        if !self.held_back.is_empty() || !self.page.complete(&mut self.tail, completion) {
            self.held_back.push_back(completion);
        }
    }

    /// Returns whether the client no longer takes completions, which a correct client always does.
    pub(crate) fn is_overfull(&self) -> bool {
        self.held_back.len() as u64 > 8 * IN_FLIGHT
    }

    /// Appends completions that were held back, as far as there is room.
    pub(crate) fn flush_held_back(&mut self) {
        while let Some(completion) = self.held_back.front() {
            if !self.page.complete(&mut self.tail, *completion) {
                return;
            }
            self.held_back.pop_front();
            self.has_news = true;
        }
    }

    /// Publishes that a record of an event has occurred, unless the slot holds another event by now (`id`) or a later
    /// record has occurred.
    pub(crate) fn event_occurred(&mut self, slot: u32, id: Option<EventId>, number: u64, at: Time) {
        let Some(event) = self.events.get_mut(&slot) else {
            return;
        };
        if id.is_some_and(|id| id != event.id) || number <= event.published {
            return;
        }
        event.published = number;
        self.page.set_event(EventSlot(slot), number, at);
    }

    /// Returns the number of commands that have ended in a stream slot.
    pub(crate) fn ended(&self, slot: u32) -> u64 {
        self.done.get(slot as usize).map_or(0, |(count, _)| *count)
    }

    /// Counts one more command of a stream as ended.
    pub(crate) fn retire(&mut self, slot: u32, at: Time) {
        let place = slot as usize;
        if self.done.len() <= place {
            self.done.resize(place + 1, (0, Time::ZERO));
        }
        let (count, ended) = &mut self.done[place];
        (*count, *ended) = (*count + 1, at);
        self.retired += 1;
    }

    /// Publishes the counts of ended commands.
    pub(crate) fn publish(&mut self, slot: u32) {
        if let Some((count, _)) = self.done.get(slot as usize) {
            let slot = softgpu_wire::record::StreamSlot(slot);
            self.page.set_stream_done(slot, *count);
        }
        self.page.set_retired(self.retired);
    }
}

/// A connected client with all its state.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: OwnedFd,
    pub(crate) pid: u32,
    pub(crate) name: String,
    /// `None` until the client has sent [`softgpu_wire::message::Kind::Hello`].
    pub(crate) role: Option<Role>,
    pub(crate) rings: Option<Rings>,
    /// Processes of the client on the timeline, by unit.
    pub(crate) processes: HashMap<u32, Process>,
    /// Allocations held by the client, by number.
    pub(crate) allocations: HashMap<u64, crate::memory::Held>,
    /// Whether the client has subscribed to GPU errors.
    pub(crate) watches: bool,
    /// Number of the MPS server, if the client is one.
    pub(crate) mps: Option<u32>,
    pub(crate) checkpoint: crate::checkpoint::State,
}
