//! A process: the state of the preload library, as it is in the library, and the threads around it.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use agent_core::local::SharedPages;
use preload_state::busy::Busy;
use preload_state::claims::{Answer, Claim, ClaimRequests};
use preload_state::gate::{Gate, Parking, Work};
use preload_state::link::{Activity, Link, Status};
use preload_state::silence::Silence;
use preload_state::watch::Watch;
use protocol::message::{FromAgent, FromProcess};
use protocol::page::{Facts, Orders};

use crate::moves::Memory;

/// Estimate of a kernel that was never measured, in nanoseconds.
pub(crate) const UNKNOWN_NS: u64 = 50_000;

/// What the thread of the program does.
#[derive(Debug)]
pub(crate) enum Program {
    /// The driver is not initialised.
    Off,
    /// It pauses, or works on the host.
    Paused,
    /// It is about to launch.
    Launching,
    /// Its launch counts as in flight, and has not passed the gate.
    Announced(Pass),
    /// Its launch has passed the gate, and the driver is being called.
    Calling(Pass),
    /// It is parked at the gate.
    Parked(Parking),
    /// It waits for its stream.
    Syncing,
    /// It returns the token, between the two steps.
    Returning(preload_state::gate::GiveBack),
    /// It waits for memory, and has looked for a heartbeat last at this time, in nanoseconds.
    Claiming(Claim, Answer, Silence, u64),
    /// It waits until the process's memory is on the device.
    Away(Silence),
}

/// A launch on its way through the gate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pass {
    /// Identity of the page, and epoch at which it passed.
    pub(crate) page: usize,
    pub(crate) epoch: u64,
    /// Work in flight without it, in nanoseconds.
    pub(crate) in_flight: u64,
    /// Duration of the kernel, in nanoseconds.
    pub(crate) ns: u64,
    /// Estimate, in nanoseconds.
    pub(crate) estimate_ns: u64,
    pub(crate) is_new: bool,
}

/// What the watch thread does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Watcher {
    /// It waits for the word `attention`.
    Sleeping,
    /// It waits until no launch is in progress and nothing is in flight, after this epoch of this page.
    Draining(usize, u64),
    /// It waits for the stream.
    Waiting,
    /// It returns the token, between the two steps; then it sleeps for at most this time, in nanoseconds.
    Returning(preload_state::gate::GiveBack, u64),
}

/// What the thread of the link waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Linker {
    /// Another event of its own.
    Busy,
    /// A reply.
    Reply,
    /// A message.
    Message,
    /// The program, which calls the driver next.
    Program,
}

/// Kind of the page of orders in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OrdersKind {
    /// Every launch passes.
    Open,
    /// No launch passes.
    Closed,
    /// The agent's.
    Agent,
}

/// A kernel from its launch until its end is noticed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flight {
    pub(crate) estimate_ns: u64,
    pub(crate) is_new: bool,
    /// Begin and end on the device, once it has ended.
    pub(crate) ran: Option<(u64, u64)>,
}

/// A process of a pod.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pod: usize,
    pub(crate) slot: usize,
    pub(crate) pid: u32,
    pub(crate) start: u64,
    pub(crate) sm_hundredths: u32,
    pub(crate) is_liar: bool,
    pub(crate) is_alive: bool,
    pub(crate) is_stopped: bool,
    /// Whether its driver has reported an error that stays.
    pub(crate) has_failed: bool,
    /// Whether the library is in effect.
    pub(crate) is_active: bool,

    pub(crate) gate: Rc<Gate>,
    pub(crate) watch: Watch,
    pub(crate) link: Link,
    pub(crate) status: Status,
    pub(crate) claims: ClaimRequests,
    busy: Busy,
    /// Pages without an agent: by the first every launch passes, by the second none.
    default_pages: [Arc<SharedPages>; 2],
    orders_kind: OrdersKind,
    orders: Arc<SharedPages>,
    facts: Arc<SharedPages>,
    /// Pages used so far, which are never unmapped.
    former: Vec<Arc<SharedPages>>,
    pub(crate) received: Option<Arc<SharedPages>>,

    pub(crate) connection: Option<usize>,
    pub(crate) inbox: VecDeque<(FromAgent, Option<Arc<SharedPages>>)>,
    pub(crate) program: Program,
    pub(crate) watcher: Watcher,
    pub(crate) linker: Linker,
    pub(crate) memory: Memory,
    /// Whether it has a request of its pod's queue to compute.
    pub(crate) has_request: bool,
    /// Whether its present burst is that of a request.
    pub(crate) computes_request: bool,
    /// Numbers of the current waits: an event of an earlier one is ignored.
    pub(crate) turns: [u64; 4],
    pub(crate) is_marked: bool,
    pub(crate) bound_holds: bool,
    pub(crate) parked_at: u64,
    /// Launches left in the burst, and the character of the program.
    pub(crate) burst: u32,
    pub(crate) pace: Pace,
    pub(crate) flights: VecDeque<Flight>,
    pub(crate) tag: u32,
    pub(crate) measured: bool,
    pub(crate) launched: u64,
    pub(crate) memory_limit: u64,
    pub(crate) claimed: u64,
    /// Page to which the last claim was made.
    pub(crate) claims_from: usize,
    /// Whether memory is to be relinquished after the claim that waits.
    pub(crate) must_relinquish: bool,
    /// Page and epoch reported last as closed.
    pub(crate) closed: (usize, u64),
    /// Tokens of its pod that were revoked for want of an answer when the agent probed it; until it answers in time, is idle after
    /// a revocation, or receives a token.
    pub(crate) revoked_at_probe: Option<u64>,
    /// Time since which it computes without an agent, in nanoseconds.
    pub(crate) ungated_since: Option<u64>,
    /// Time at which it last did, in nanoseconds.
    pub(crate) ungated_at: Option<u64>,
    /// Kernel time on the device, in nanoseconds.
    pub(crate) ran_ns: u64,
}

/// Character of a program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Duration of its kernels, in nanoseconds.
    pub(crate) kernel_ns: u64,
    /// Largest number of launches in a burst.
    pub(crate) burst: u32,
    /// Mean pause between bursts, in nanoseconds.
    pub(crate) pause_ns: u64,
}

impl Process {
    pub(crate) fn new(pod: usize, slot: usize, pid: u32, start: u64, pace: Pace) -> Self {
        let default_pages = [SharedPages::default(), SharedPages::default()].map(Arc::new);
        default_pages[0].orders.gate.set(0);
        Self {
            pod,
            slot,
            pid,
            start,
            sm_hundredths: 0,
            is_liar: false,
            is_alive: true,
            is_stopped: false,
            has_failed: false,
            is_active: false,
            gate: Rc::new(Gate::new()),
            watch: Watch::new(),
            link: Link::new(),
            status: Status::new(),
            claims: ClaimRequests::new(),
            busy: Busy::new(),
            orders_kind: OrdersKind::Open,
            orders: Arc::clone(&default_pages[0]),
            facts: Arc::clone(&default_pages[0]),
            default_pages,
            former: Vec::new(),
            received: None,
            connection: None,
            inbox: VecDeque::new(),
            program: Program::Off,
            watcher: Watcher::Sleeping,
            linker: Linker::Busy,
            memory: Memory::default(),
            has_request: false,
            computes_request: false,
            turns: [0; 4],
            is_marked: false,
            bound_holds: true,
            parked_at: 0,
            burst: 0,
            pace,
            flights: VecDeque::new(),
            tag: 0,
            measured: false,
            launched: 0,
            memory_limit: 0,
            claimed: 0,
            claims_from: 0,
            must_relinquish: false,
            closed: (0, 0),
            revoked_at_probe: None,
            ungated_since: None,
            ungated_at: None,
            ran_ns: 0,
        }
    }

    /// Notes that the agent reads an answer to a probe, when this number of the pod's tokens has been revoked for want of one.
    pub(crate) fn answer_probe(&mut self, revoked: u64) {
        self.revoked_at_probe = self.revoked_at_probe.filter(|before| revoked > *before);
    }

    pub(crate) const fn page(&self) -> &Arc<SharedPages> {
        &self.orders
    }

    pub(crate) fn orders(&self) -> &Orders {
        &self.orders.orders
    }

    pub(crate) fn facts(&self) -> &Facts {
        &self.facts.facts
    }

    /// Returns the page of orders of an agent, connected or not.
    pub(crate) fn agent_pages(&self) -> Option<&Arc<SharedPages>> {
        (self.orders_kind == OrdersKind::Agent).then_some(&self.orders)
    }

    /// Returns whether the orders are those of a connected agent.
    pub(crate) fn is_served(&self) -> bool {
        !self.status.is_lost() && self.agent_pages().is_some()
    }

    /// Returns whether it computes without an agent.
    pub(crate) fn is_ungated(&self) -> bool {
        self.is_active && self.orders_kind == OrdersKind::Open
    }

    pub(crate) fn activity(&self) -> Activity {
        Activity {
            is_hung: self.status.take_hung(),
            computes: self.orders().gate.is_open() || self.gate.word().in_flight() != 0,
        }
    }

    /// Uses the orders without an agent. Returns whether they differ, so that all waiters are to be woken.
    pub(crate) fn use_default_orders(&mut self, now: u64, kind: OrdersKind) -> bool {
        if self.orders_kind == kind {
            return false;
        }
        let page = usize::from(kind == OrdersKind::Closed);
        let page = Arc::clone(&self.default_pages[page]);
        self.use_orders(now, kind, page);
        true
    }

    fn use_orders(&mut self, now: u64, kind: OrdersKind, page: Arc<SharedPages>) {
        (self.orders_kind, self.orders) = (kind, page);
        self.gate.reset();
        self.count_ungated(now);
    }

    /// Notes whether it computes without an agent from now on.
    pub(crate) fn count_ungated(&mut self, now: u64) {
        if self.is_ungated() {
            self.ungated_since.get_or_insert(now);
        } else if self.ungated_since.take().is_some() {
            self.ungated_at = Some(now);
        }
    }

    /// Maps new pages, and continues the counters in them.
    pub(crate) fn map(&mut self, now: u64, pages: &Arc<SharedPages>) {
        let total = self.busy.total_ns();
        preload_state::counters::carry_over(self.facts(), &pages.facts, total);
        self.former.push(Arc::clone(pages));
        self.facts = Arc::clone(pages);
        self.use_orders(now, OrdersKind::Agent, Arc::clone(pages));
    }

    pub(crate) fn hello(&self, again: bool, open: bool) -> FromProcess {
        let name = "program".to_owned();
        let greeting = preload_state::counters::Greeting {
            pid: 1,
            again,
            open,
            busy_ns: self.busy.total_ns(),
            program: name,
            host_bytes: self.memory.windows,
            pinned_bytes: self.memory.pinned.max(self.memory.registered),
        };
        preload_state::counters::hello(self.facts(), greeting)
    }

    pub(crate) const fn busy_ns(&self) -> u64 {
        self.busy.total_ns()
    }

    /// Adds a launch to the work in flight.
    pub(crate) fn announce(&self, pass: &mut Pass) {
        pass.in_flight = self.gate.announce(pass.estimate_ns);
        if pass.is_new {
            self.facts().unmeasured.fetch_add(1, Ordering::Release);
        }
        self.publish_in_flight();
    }

    /// Removes a launch which has not passed the gate from the work in flight.
    pub(crate) fn withdraw(&self, pass: &Pass) {
        self.gate.word().subtract(pass.estimate_ns);
        if pass.is_new {
            self.facts().unmeasured.fetch_sub(1, Ordering::Release);
        }
        self.publish_in_flight();
    }

    fn publish_in_flight(&self) {
        preload_state::counters::publish_in_flight(self.facts(), self.gate.word().in_flight());
    }

    /// Begins to measure a launch which has passed the gate.
    pub(crate) fn begin_work(&mut self, now: u64, pass: &Pass) {
        self.flights.push_back(Flight {
            estimate_ns: pass.estimate_ns,
            is_new: pass.is_new,
            ran: None,
        });
        let busy_since = &self.facts().busy_since;
        let _oldest = busy_since.compare_exchange(0, now, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Notices the ends of kernels.
    pub(crate) fn reap(&mut self) {
        while let Some(&Flight {
            estimate_ns,
            is_new,
            ran: Some((begin, end)),
        }) = self.flights.front()
        {
            self.flights.pop_front();
            let pages = Arc::clone(&self.facts);
            let facts = &pages.facts;
            self.busy.add(begin, end, facts);
            if is_new {
                self.measured = true;
                facts.unmeasured.fetch_sub(1, Ordering::Release);
            }
            let left = self.gate.word().subtract(estimate_ns);
            preload_state::counters::publish_in_flight(facts, left);
            let since = if left == 0 { 0 } else { end };
            facts.busy_since.store(since, Ordering::Release);
        }
    }

    /// Publishes all kernel time.
    pub(crate) fn publish(&mut self) {
        let pages = Arc::clone(&self.facts);
        self.busy.flush(&pages.facts);
    }
}

/// The work of a process as its parked thread finds it out.
pub(crate) struct Flights<'a> {
    pub(crate) process: &'a mut Process,
    pub(crate) now: u64,
    /// Begin of the running kernel, in nanoseconds.
    pub(crate) running_since: Option<u64>,
}

impl Work for Flights<'_> {
    fn reap(&mut self) {
        self.process.reap();
    }

    fn remaining_ns(&mut self) -> u64 {
        let all: u64 = self
            .process
            .flights
            .iter()
            .map(|flight| flight.estimate_ns)
            .sum();
        let done = self.running_since.map_or(0, |since| self.now - since);
        let first = self.process.flights.front();
        all.saturating_sub(first.map_or(0, |first| done.min(first.estimate_ns)))
    }

    fn is_stream_empty(&mut self) -> bool {
        self.process.flights.is_empty()
    }
}
