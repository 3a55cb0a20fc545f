//! The threads of a process around the library's state: the program, the watch, the link.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use preload_state::claims::AnswerStep;
use preload_state::gate::{HUNG_AFTER, IN_FLIGHT_POLL, ParkStep, Parking, RECHECK_INTERVAL};
use preload_state::link::{self, Action as LinkAction, Phase};
use preload_state::nanoseconds;
use preload_state::silence::{Silence, page_of};
use preload_state::watch::{POLL_INTERVAL, WatchStep};
use protocol::message::{FromAgent, FromProcess};

use crate::checks::Failure;
use crate::gpu::{Ended, SMS};
use crate::process::{Flights, Linker, OrdersKind, Pass, Program, UNKNOWN_NS, Watcher};
use crate::world::{Event, LinkEvent, MS, SECOND, Thread, US, World};

/// Time for which the receiving thread waits for a message before it looks at the connection again.
const CHECK_NS: u64 = SECOND;

impl World {
    /// Wakes a thread which waits for a word, if it does.
    pub(crate) fn wake(&mut self, process: usize, thread: Thread) {
        let own = &self.processes[process];
        let waits = match thread {
            Thread::Program => matches!(own.program, Program::Parked(_) | Program::Claiming(..)),
            Thread::Watch => matches!(own.watcher, Watcher::Sleeping),
            Thread::Mover => self.plan.moves() && own.memory.is_idle(),
            Thread::Link => false,
        };
        if waits && own.is_active {
            let delay = self.delay();
            self.go(process, thread, delay);
        }
    }

    /// Wakes all threads, because another page is in use.
    fn wake_all(&mut self, process: usize) {
        self.wake(process, Thread::Program);
        self.wake(process, Thread::Watch);
        self.wake(process, Thread::Mover);
    }

    // The program

    /// Lets the program go on.
    pub(crate) fn program(&mut self, process: usize) -> Result<(), Failure> {
        let own = &mut self.processes[process];
        match std::mem::replace(&mut own.program, Program::Paused) {
            Program::Off => {
                own.program = Program::Off;
                Ok(())
            }
            Program::Paused => self.begin_burst(process),
            Program::Launching => self.try_launch(process),
            Program::Announced(pass) => self.try_gate(process, pass),
            Program::Calling(pass) => self.land(process, &pass),
            Program::Parked(parking) => self.park(process, parking),
            Program::Away(silence) => self.wait_for_memory(process, silence),
            Program::Syncing => self.sync(process),
            Program::Returning(begun) => {
                let marked = own.is_marked;
                match own.gate.finish_give_back(begun, marked) {
                    Some(epoch) => self.gave_back(process, epoch)?,
                    None => self.wake_all(process),
                }
                self.end_burst(process)
            }
            Program::Claiming(claim, answer, mut silence, looked_at) => {
                let is_current = own.claims_from == page_of(own.orders());
                let is_lost = !is_current && own.agent_pages().is_some();
                if is_lost {
                    // It is made again to the present agent.
                    let FromProcess::Claim { bytes, .. } = claim.message() else {
                        return Ok(());
                    };
                    return match self.plan.requests_ms {
                        0 => self.claim_total(process, bytes),
                        _ => self.begin_burst(process),
                    };
                }
                let is_answered =
                    match answer.step(self.now, own.orders(), own.agent_pages().is_some()) {
                        AnswerStep::Wait { left, .. } => {
                            let (page, now) = (Arc::clone(own.page()), self.now);
                            let (is_served, interval) = (own.is_served(), RECHECK_INTERVAL);
                            let waited = Duration::from_nanos(now - looked_at);
                            let orders = &page.orders;
                            let is_hung =
                                silence.has_lasted(orders, is_served, waited, interval, HUNG_AFTER);
                            own.program = Program::Claiming(claim, answer, silence, now);
                            let left = nanoseconds(left.min(interval));
                            self.go(process, Thread::Program, left);
                            return match is_hung {
                                true => self.give_agent_up(process),
                                false => Ok(()),
                            };
                        }
                        AnswerStep::Answered => true,
                        AnswerStep::Unanswered => false,
                    };
                let limit = own.memory_limit;
                if claim.is_granted(is_answered, own.orders(), limit) {
                    let FromProcess::Claim { bytes, .. } = claim.message() else {
                        return Ok(());
                    };
                    own.claimed = bytes;
                    own.facts().bytes_used.store(bytes, Ordering::Relaxed);
                    self.load(process)?;
                }
                self.pause(process);
                if std::mem::take(&mut self.processes[process].must_relinquish) {
                    self.relinquish(process);
                }
                self.receive(process)
            }
        }
    }

    /// Returns the time between two steps within a call; a thread may be preempted there.
    fn step(&mut self) -> u64 {
        if self.random.below(200) == 0 {
            return self.random.below(5 * MS);
        }
        100 + self.random.below(2 * US)
    }

    fn begin_burst(&mut self, process: usize) -> Result<(), Failure> {
        let own = &self.processes[process];
        let has_limit = own.memory_limit > 0 && own.agent_pages().is_some();
        if self.plan.requests_ms > 0 {
            let left = own.memory.left_to_load();
            if left > 0 && has_limit {
                return self.claim_total(process, left);
            }
            // What computes for itself has other memory, or none.
            if left > 0 || !own.has_request && self.is_healing {
                self.pause(process);
                return Ok(());
            }
        } else if has_limit && self.random.below(10) == 0 {
            return self.claim(process);
        }
        let mut burst = 1 + self.random.below_u32(self.processes[process].pace.burst);
        if self.is_healing {
            // So that every process has its turn in time.
            burst = 1;
        }
        let own = &mut self.processes[process];
        own.computes_request = own.has_request;
        own.burst = burst;
        own.bound_holds = true;
        own.program = Program::Launching;
        self.program(process)
    }

    fn claim(&mut self, process: usize) -> Result<(), Failure> {
        let limit = self.processes[process].memory_limit;
        let bytes = self.random.below(limit + limit / 4);
        self.claim_total(process, bytes)
    }

    fn claim_total(&mut self, process: usize, bytes: u64) -> Result<(), Failure> {
        let at_most = preload_state::claims::ANSWER_MAX;
        let own = &mut self.processes[process];
        let page = Arc::clone(own.page());
        let claim = own.claims.request(&page.orders, bytes);
        own.claims_from = page_of(&page.orders);
        if claim.is_held() {
            own.claimed = bytes;
            own.facts().bytes_used.store(bytes, Ordering::Relaxed);
        }
        let answer = claim.answer(self.now, at_most);
        let _lost = self.send(process, &claim.message());
        if claim.is_held() {
            self.load(process)?;
            self.pause(process);
            return Ok(());
        }
        self.processes[process].program =
            Program::Claiming(claim, answer, Silence::default(), self.now);
        self.program(process)
    }

    /// Gives up the unused part of the claim.
    fn relinquish(&mut self, process: usize) {
        let own = &mut self.processes[process];
        if own.memory_limit > 0 && own.agent_pages().is_some() {
            let page = Arc::clone(own.page());
            let claim = own.claims.request(&page.orders, own.claimed);
            let message = claim.message();
            let _lost = self.send(process, &message);
        }
    }

    /// Loads the model of a process which has claimed its memory.
    fn load(&mut self, process: usize) -> Result<(), Failure> {
        let own = &mut self.processes[process];
        if own.memory.left_to_load() == 0 {
            return Ok(());
        }
        own.memory.loaded();
        let slot = own.slot;
        self.check_slot_memory(slot)
    }

    fn pause(&mut self, process: usize) {
        let mean = if self.is_healing {
            40 * MS
        } else {
            self.processes[process].pace.pause_ns
        };
        let mut pause = if mean == 0 {
            5 * US
        } else {
            self.exponential(mean)
        };
        self.processes[process].program = Program::Paused;
        if self.plan.requests_ms > 0 {
            let own = &self.processes[process];
            pause = match (own.memory.left_to_load() > 0, own.has_request) {
                (true, _) => pause.max(5 * MS),
                (false, true) => US,
                // Between requests it computes for itself now and then.
                (false, false) => self.exponential(400 * MS),
            };
        }
        self.go(process, Thread::Program, pause);
    }

    /// Announces a launch.
    fn try_launch(&mut self, process: usize) -> Result<(), Failure> {
        let kernel = self.processes[process].pace.kernel_ns;
        let ns = kernel / 2 + self.random.below(kernel);
        // Estimates are moving averages of similar kernels.
        let estimate = ns - ns / 10 + self.random.below(ns / 5 + 1);
        let own = &mut self.processes[process];
        let is_new = !own.measured;
        let mut pass = Pass {
            page: page_of(own.orders()),
            epoch: own.orders().gate.epoch(),
            in_flight: 0,
            ns,
            estimate_ns: if is_new { UNKNOWN_NS } else { estimate },
            is_new,
        };
        own.is_marked = true;
        own.announce(&mut pass);
        own.program = Program::Announced(pass);
        let delay = self.step();
        self.go(process, Thread::Program, delay);
        Ok(())
    }

    /// Lets an announced launch pass the gate, or parks its thread.
    fn try_gate(&mut self, process: usize, mut pass: Pass) -> Result<(), Failure> {
        let now = self.now;
        let own = &mut self.processes[process];
        let has_memory = own.memory.gate.is_open();
        if has_memory
            && own
                .gate
                .passes(own.orders(), pass.in_flight, own.bound_holds)
        {
            pass.page = page_of(own.orders());
            pass.epoch = own.orders().gate.epoch();
            own.begin_work(now, &pass);
            own.program = Program::Calling(pass);
            let delay = self.step();
            self.go(process, Thread::Program, delay);
            return Ok(());
        }
        own.withdraw(&pass);
        own.is_marked = false;
        own.gate.begin_burst(now);
        if !has_memory {
            return self.wait_for_memory(process, Silence::default());
        }
        own.facts().parked.fetch_add(1, Ordering::AcqRel);
        own.parked_at = 0;
        self.park(process, Parking::default())
    }

    fn park(&mut self, process: usize, mut parking: Parking) -> Result<(), Failure> {
        let now = self.now;
        let own = &mut self.processes[process];
        let is_served = own.is_served();
        let page = Arc::clone(own.page());
        if own.parked_at > 0 {
            let waited = now - std::mem::take(&mut own.parked_at);
            if parking.waited(waited, &page.orders, is_served) {
                self.give_agent_up(process)?;
            }
        }
        let number = u32::try_from(process).unwrap();
        let own = &mut self.processes[process];
        let running = self.gpus[own.slot].running(number);
        let gate = Rc::clone(&own.gate);
        let is_served = own.is_served();
        let mut work = Flights {
            process: own,
            now,
            running_since: running.map(|(_, since)| since),
        };
        let step = parking.step(now, &page.orders, &gate, is_served, &mut work);
        let wait = match step {
            ParkStep::Launch | ParkStep::Exceed { .. } => {
                let own = &mut self.processes[process];
                own.facts().parked.fetch_sub(1, Ordering::AcqRel);
                own.bound_holds = step == ParkStep::Launch;
                own.program = Program::Launching;
                let delay = self.step();
                self.go(process, Thread::Program, delay);
                return Ok(());
            }
            ParkStep::Ask { epoch } => {
                if !self.send(process, &FromProcess::Ask { epoch }) {
                    self.lose_connection(process);
                }
                nanoseconds(RECHECK_INTERVAL)
            }
            ParkStep::Wait { .. } => nanoseconds(RECHECK_INTERVAL),
            // Fewer polls than there are, so that runs are short.
            ParkStep::Poll => nanoseconds(IN_FLIGHT_POLL) + self.random.below(MS),
        };
        let own = &mut self.processes[process];
        if step != ParkStep::Poll {
            own.parked_at = now;
        }
        own.program = Program::Parked(parking);
        self.go(process, Thread::Program, wait);
        Ok(())
    }

    /// Closes the connection to an agent without a heartbeat.
    pub(crate) fn give_agent_up(&mut self, process: usize) -> Result<(), Failure> {
        self.check_hung(process)?;
        if self.processes[process].connection.is_some() && self.processes[process].is_served() {
            self.processes[process].status.set_hung();
            self.lose_connection(process);
        }
        Ok(())
    }

    fn land(&mut self, process: usize, pass: &Pass) -> Result<(), Failure> {
        self.check_launch(process, pass)?;
        self.check_memory(process)?;
        self.launch(process, pass.ns)?;
        let own = &mut self.processes[process];
        own.facts().launches.0.fetch_add(1, Ordering::Relaxed);
        own.launched += 1;
        own.is_marked = false;
        own.bound_holds = true;
        own.burst = own.burst.saturating_sub(1);
        if own.burst > 0 {
            own.program = Program::Launching;
            let delay = self.step();
            self.go(process, Thread::Program, delay);
        } else if self.random.below(8) == 0 && self.plan.requests_ms == 0 {
            // Does not wait for its work.
            self.pause(process);
        } else {
            self.processes[process].program = Program::Syncing;
            self.program(process)?;
        }
        Ok(())
    }

    fn sync(&mut self, process: usize) -> Result<(), Failure> {
        let number = u32::try_from(process).unwrap();
        let slot = self.processes[process].slot;
        if self.gpus[slot].is_busy(number) {
            // The end of its last kernel wakes it.
            self.processes[process].program = Program::Syncing;
            return Ok(());
        }
        let own = &mut self.processes[process];
        own.reap();
        let page = Arc::clone(own.page());
        if own.gate.after_host_wait(self.now, &page.orders)
            && let Some(begun) = own.gate.begin_give_back(&page.orders)
        {
            own.program = Program::Returning(begun);
            let delay = self.step();
            self.go(process, Thread::Program, delay);
            return Ok(());
        }
        self.end_burst(process)
    }

    fn end_burst(&mut self, process: usize) -> Result<(), Failure> {
        let is_request = std::mem::take(&mut self.processes[process].computes_request);
        if is_request && self.processes[process].has_request {
            self.request_ends(process)?;
        }
        self.pause(process);
        Ok(())
    }

    fn gave_back(&mut self, process: usize, epoch: u64) -> Result<(), Failure> {
        let own = &mut self.processes[process];
        own.publish();
        let page = page_of(own.orders());
        self.report_closed(process, page, epoch)
    }

    fn report_closed(&mut self, process: usize, page: usize, epoch: u64) -> Result<(), Failure> {
        self.check_closed(process, page, epoch)?;
        if !self.send(process, &FromProcess::Closed { epoch }) {
            self.lose_connection(process);
        }
        Ok(())
    }

    /// Notes the end of a kernel on the device.
    pub(crate) fn kernel_ended(&mut self, kernel: Ended) -> Result<(), Failure> {
        let process = kernel.process as usize;
        let own = &mut self.processes[process];
        own.ran_ns += kernel.end - kernel.begin;
        let flight = own.flights.iter_mut().find(|flight| flight.ran.is_none());
        if let Some(flight) = flight {
            flight.ran = Some((kernel.begin, kernel.end));
        }
        self.check_quota(&kernel)?;
        let own = &mut self.processes[process];
        if !self.gpus[own.slot].is_busy(kernel.process)
            && let Some(before) = own.revoked_at_probe
        {
            let revoked = self.revoked_unresponsive(self.processes[process].pod);
            let own = &mut self.processes[process];
            own.revoked_at_probe = (revoked == before).then_some(before);
        }
        let own = &mut self.processes[process];
        let (syncs, watches) = (
            matches!(own.program, Program::Syncing),
            matches!(own.watcher, Watcher::Waiting),
        );
        if syncs {
            let delay = self.step();
            self.go(process, Thread::Program, delay);
        }
        if watches {
            let delay = self.step();
            self.go(process, Thread::Watch, delay);
        }
        Ok(())
    }

    // The watch

    /// Lets the watch thread go on.
    pub(crate) fn watch(&mut self, process: usize) -> Result<(), Failure> {
        let number = u32::try_from(process).unwrap();
        let own = &mut self.processes[process];
        let slot = own.slot;
        match own.watcher {
            Watcher::Draining(page, epoch) => {
                let poll = if own.is_marked {
                    Some(IN_FLIGHT_POLL)
                } else {
                    own.reap();
                    let is_busy = self.gpus[slot].is_busy(number) || !own.flights.is_empty();
                    is_busy.then_some(POLL_INTERVAL)
                };
                if let Some(poll) = poll {
                    self.go(process, Thread::Watch, nanoseconds(poll));
                    return Ok(());
                }
                own.publish();
                own.watcher = Watcher::Sleeping;
                self.report_closed(process, page, epoch)?;
            }
            Watcher::Returning(begun, interval) => {
                own.watcher = Watcher::Sleeping;
                let marked = own.is_marked;
                match own.gate.finish_give_back(begun, marked) {
                    Some(epoch) => {
                        own.watch.gave_back();
                        self.gave_back(process, epoch)?;
                    }
                    None => {
                        self.wake_all(process);
                        self.go(process, Thread::Watch, interval);
                        return Ok(());
                    }
                }
            }
            Watcher::Waiting => {
                if self.gpus[slot].is_busy(number) {
                    return Ok(());
                }
                own.watcher = Watcher::Sleeping;
            }
            Watcher::Sleeping => {}
        }
        let own = &mut self.processes[process];
        let page = Arc::clone(own.page());
        let gate = Rc::clone(&own.gate);
        let launches = own.facts().launches.0.load(Ordering::Relaxed);
        own.reap();
        let has_work = !own.flights.is_empty();
        match own.watch.step(&page.orders, &gate, launches, || has_work) {
            WatchStep::Drain { epoch } => {
                own.watcher = Watcher::Draining(page_of(&page.orders), epoch);
                let delay = self.step();
                self.go(process, Thread::Watch, delay);
            }
            WatchStep::WaitForWork => {
                own.watcher = Watcher::Waiting;
                if !self.gpus[slot].is_busy(number) {
                    // A launch that has not reached the device yet.
                    self.go(process, Thread::Watch, nanoseconds(POLL_INTERVAL));
                }
            }
            WatchStep::GiveBack { interval } => {
                let interval = nanoseconds(interval);
                match gate.begin_give_back(&page.orders) {
                    Some(begun) => {
                        own.watcher = Watcher::Returning(begun, interval);
                        let delay = self.step();
                        self.go(process, Thread::Watch, delay);
                    }
                    None => self.go(process, Thread::Watch, interval),
                }
            }
            WatchStep::Sleep { interval } => {
                self.go(process, Thread::Watch, nanoseconds(interval));
            }
        }
        Ok(())
    }

    // The link

    fn link_after(&mut self, process: usize, ns: u64, event: LinkEvent) {
        let turn = self.processes[process].turns[Thread::Link as usize];
        self.after(
            ns,
            Event::Link {
                process,
                turn,
                event,
            },
        );
    }

    /// Turns what the link's thread has waited for into an event of the link.
    pub(crate) fn link_event(&mut self, process: usize, event: LinkEvent) -> Result<(), Failure> {
        let own = &self.processes[process];
        let is_connected = own.connection.is_some();
        let event = match event {
            LinkEvent::Connect(outcome) => link::Event::Connect(outcome),
            LinkEvent::NoReply => link::Event::Reply(None),
            LinkEvent::Nothing => link::Event::Nothing,
            LinkEvent::Elapsed => link::Event::Elapsed(own.activity()),
            LinkEvent::Ended => return self.connection_ended(process),
            LinkEvent::Initialised => {
                self.initialise(process);
                link::Event::Initialised { is_connected }
            }
            LinkEvent::Run => link::Event::Run {
                is_connected,
                activity: own.activity(),
            },
        };
        self.link(process, event)
    }

    /// Makes the device known to the process, as the driver does.
    fn initialise(&mut self, process: usize) {
        let own = &self.processes[process];
        let number = u32::try_from(process).unwrap();
        self.gpus[own.slot].admit(number, own.sm_hundredths.max(1));
    }

    /// Passes an event to the link, and carries out its actions.
    pub(crate) fn link(&mut self, process: usize, event: link::Event) -> Result<(), Failure> {
        let own = &mut self.processes[process];
        own.turns[Thread::Link as usize] += 1;
        own.linker = Linker::Busy;
        own.link.handle(self.now, event);
        own.status.set_lost(own.link.is_lost());
        while let Some(action) = self.processes[process].link.poll() {
            self.link_action(process, action)?;
        }
        Ok(())
    }

    fn link_action(&mut self, process: usize, action: LinkAction) -> Result<(), Failure> {
        let now = self.now;
        let own = &mut self.processes[process];
        match action {
            LinkAction::Connect => {
                let outcome = self.connect(process);
                let delay = self.delay();
                self.link_after(process, delay, LinkEvent::Connect(outcome));
            }
            LinkAction::Hello { again, open } => {
                let message = own.hello(again, open);
                self.request(process, &message);
            }
            LinkAction::Attach => {
                let sms = (SMS * own.sm_hundredths / 10_000).max(1);
                let mut uuid = [0; 16];
                uuid[15] = u8::try_from(own.slot).unwrap();
                let message = FromProcess::Attach {
                    uuid,
                    multiprocessors: sms,
                    mps: !self.plan.has_exclusive_slots(),
                    context_bytes: 0,
                    busy_ns: own.busy_ns(),
                };
                self.request(process, &message);
            }
            LinkAction::MapPages => {
                let pages = own.received.take();
                if let Some(pages) = &pages {
                    own.map(now, pages);
                    self.wake_all(process);
                }
                self.link(process, link::Event::Mapped(pages.is_some()))?;
            }
            LinkAction::Start => {
                own.is_active = true;
                own.count_ungated(now);
                own.program = Program::Paused;
                let delay = self.random.below(20 * MS);
                self.go(process, Thread::Program, delay);
                self.go(process, Thread::Watch, 10 * US);
                if self.plan.moves() {
                    self.go(process, Thread::Mover, 20 * US);
                }
                self.link(process, link::Event::Started(true))?;
            }
            LinkAction::Receive => {
                own.linker = Linker::Message;
                if own.inbox.is_empty() && own.connection.is_none() {
                    self.link_after(process, US, LinkEvent::Ended);
                } else if own.inbox.is_empty() {
                    self.link_after(process, CHECK_NS, LinkEvent::Nothing);
                } else {
                    self.receive(process)?;
                }
            }
            LinkAction::Pause(span) => {
                self.link_after(process, nanoseconds(span), LinkEvent::Elapsed);
            }
            LinkAction::Return(is_good) => {
                own.linker = Linker::Program;
                if !is_good {
                    // The program gives up, and its container is started again.
                    return self.end_process(process);
                }
                let event = if own.is_active {
                    LinkEvent::Run
                } else {
                    LinkEvent::Initialised
                };
                let delay = self.random.below(10 * MS);
                self.link_after(process, delay, event);
            }
            LinkAction::Limits(terms) => own.memory_limit = terms.memory_limit,
            LinkAction::SetEnvironment(terms) => {
                own.sm_hundredths = terms.active_thread_hundredths;
            }
            LinkAction::Send(message) => {
                let _lost = self.send(process, &message);
            }
            LinkAction::Relinquish => {
                if matches!(own.program, Program::Claiming(..)) {
                    own.must_relinquish = true;
                } else {
                    self.relinquish(process);
                }
            }
            LinkAction::Shutdown => self.close(process),
            LinkAction::UseOpenOrders => {
                if own.use_default_orders(now, OrdersKind::Open) {
                    self.check_ungated(process)?;
                    self.wake_all(process);
                }
            }
            LinkAction::UseClosedOrders => {
                if own.use_default_orders(now, OrdersKind::Closed) {
                    self.wake_all(process);
                }
            }
            LinkAction::CountUngated(ns) => {
                own.facts().ungated_ns.fetch_add(ns, Ordering::Relaxed);
            }
            LinkAction::Log(_) => {}
        }
        Ok(())
    }

    fn request(&mut self, process: usize, message: &FromProcess) {
        if self.send(process, message) {
            self.processes[process].linker = Linker::Reply;
            let patience = nanoseconds(link::ANSWER_MAX);
            self.link_after(process, patience, LinkEvent::NoReply);
        } else {
            self.link_after(process, US, LinkEvent::NoReply);
        }
    }

    /// Passes a message that has come to the link's thread, if it waits for one.
    pub(crate) fn receive(&mut self, process: usize) -> Result<(), Failure> {
        let own = &mut self.processes[process];
        if own.is_liar {
            own.inbox.clear();
            return Ok(());
        }
        if !matches!(own.linker, Linker::Reply | Linker::Message) {
            return Ok(());
        }
        // A claim that waits holds the lock which the answer to this message needs.
        let claims = matches!(own.program, Program::Claiming(..));
        if claims && matches!(own.inbox.front(), Some((FromAgent::Relinquish, _))) {
            return Ok(());
        }
        let Some((message, pages)) = own.inbox.pop_front() else {
            return Ok(());
        };
        if let FromAgent::HostWindow { bytes, is_pinned } = message
            && own.linker == Linker::Message
        {
            own.memory.add_window(bytes, is_pinned);
            self.wake(process, Thread::Mover);
            return self.link(process, link::Event::Nothing);
        }
        let event = if own.linker == Linker::Reply {
            own.received = pages;
            link::Event::Reply(Some(message))
        } else {
            link::Event::Message(message)
        };
        self.link(process, event)
    }

    /// Shuts the connection down, which wakes the link's thread.
    pub(crate) fn lose_connection(&mut self, process: usize) {
        self.close(process);
        let delay = self.delay();
        self.link_after(process, delay, LinkEvent::Ended);
    }

    /// Handles the end of the connection in the link's thread.
    pub(crate) fn connection_ended(&mut self, process: usize) -> Result<(), Failure> {
        self.close(process);
        let own = &self.processes[process];
        if own.is_liar {
            return Ok(());
        }
        match own.linker {
            Linker::Reply => self.link(process, link::Event::Reply(None)),
            Linker::Message => {
                let activity = own.activity();
                self.link(process, link::Event::Closed(activity))
            }
            Linker::Busy | Linker::Program => Ok(()),
        }
    }

    /// Returns whether a process is served for good.
    pub(crate) fn is_attached(&self, process: usize) -> bool {
        let own = &self.processes[process];
        own.link.phase() == Phase::Attached && own.is_served()
    }
}
