//! A client: its rings, and what of the timeline belongs to it.

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

/// A client, in the order in which they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClientId(pub(crate) u64);

/// A context of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    pub(crate) unit: u32,
    pub(crate) process: ProcessId,
    /// It has gone wrong: nothing runs in it any more.
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
    /// The number of its last record.
    pub(crate) latest: u64,
    /// How often it was recorded.
    pub(crate) records: u64,
    /// The number of the last record that has happened: an older one that happens later counts no more.
    pub(crate) published: u64,
    pub(crate) shared: Option<SharedId>,
}

/// What a client has on one GPU or slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    pub(crate) id: ProcessId,
    /// Contexts; none: it holds memory alone.
    pub(crate) contexts: u32,
    pub(crate) mps: Option<u32>,
    pub(crate) percentage_hundredths: u32,
}

/// The rings of a client that computes.
#[derive(Debug)]
pub(crate) struct Rings {
    pub(crate) page: Shared<Page>,
    /// Commands taken out.
    pub(crate) head: u64,
    /// Completions put in.
    pub(crate) tail: u64,
    /// Completions for which there is no room yet.
    pub(crate) held_back: VecDeque<Completion>,
    /// Commands in streams that were taken out, and those of them that have ended.
    pub(crate) submitted: u64,
    pub(crate) retired: u64,
    pub(crate) contexts: [Option<Context>; CONTEXTS],
    pub(crate) streams: Vec<Option<Stream>>,
    /// Of each place for a stream: commands that have ended, and when the last one did.
    pub(crate) done: Vec<(u64, Time)>,
    pub(crate) events: HashMap<u32, Event>,
    pub(crate) graphs: HashMap<u32, Arc<Graph>>,
    pub(crate) next_graph: u32,
    /// How often the client had asked for something when it was looked at.
    pub(crate) attention: u32,
    /// Something was published since the client's threads were woken.
    pub(crate) has_news: bool,
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
        }
    }

    /// Commands of streams that have not ended.
    pub(crate) const fn in_flight(&self) -> u64 {
        self.submitted - self.retired
    }

    /// Tells the client of a completion, now or as soon as there is room.
    pub(crate) fn complete(&mut self, completion: Completion) {
        self.has_news = true;
        if !self.held_back.is_empty() || !self.page.complete(&mut self.tail, completion) {
            self.held_back.push_back(completion);
        }
    }

    /// Whether the client takes no completions, which one of ours always does.
    pub(crate) fn is_stuffed(&self) -> bool {
        self.held_back.len() as u64 > 8 * IN_FLIGHT
    }

    /// Tells what was held back.
    pub(crate) fn catch_up(&mut self) {
        while let Some(completion) = self.held_back.front() {
            if !self.page.complete(&mut self.tail, *completion) {
                return;
            }
            self.held_back.pop_front();
            self.has_news = true;
        }
    }

    /// A record of an event has happened: told, unless the event is another by now (`id`), or a later record has happened.
    pub(crate) fn happen(&mut self, slot: u32, id: Option<EventId>, number: u64, at: Time) {
        let Some(event) = self.events.get_mut(&slot) else {
            return;
        };
        if id.is_some_and(|id| id != event.id) || number <= event.published {
            return;
        }
        event.published = number;
        self.page.set_event(EventSlot(slot), number, at);
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

    /// Makes the counts of ended commands known.
    pub(crate) fn publish(&mut self, slot: u32) {
        if let Some((count, _)) = self.done.get(slot as usize) {
            let slot = softgpu_wire::record::StreamSlot(slot);
            self.page.set_stream_done(slot, *count);
        }
        self.page.set_retired(self.retired);
    }
}

/// A client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: OwnedFd,
    pub(crate) pid: u32,
    pub(crate) name: String,
    /// None until it has said what it is.
    pub(crate) role: Option<Role>,
    pub(crate) rings: Option<Rings>,
    /// What it has on each unit, by their numbers.
    pub(crate) processes: HashMap<u32, Process>,
    /// Allocations that it holds, by their numbers.
    pub(crate) allocations: HashMap<u64, crate::memory::Held>,
    /// It wants to hear of errors of GPUs.
    pub(crate) watches: bool,
    /// It is an MPS server, with this number.
    pub(crate) mps: Option<u32>,
    pub(crate) checkpoint: crate::checkpoint::State,
}
