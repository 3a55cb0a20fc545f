//! Queues of pods on exclusive slots: requests, leases, and the messages between a queue and the agent, as queue-proxy's.

use std::collections::VecDeque;

use agent_core::{Event as AgentEvent, PodKey};
use protocol::queue::{FromQueue, ToQueue, TraceContext};

use crate::checks::{Failure, ensure};
use crate::plan::Fault;
use crate::process::Program;
use crate::world::{Event, MS, SECOND, Thread, World};

/// Objective of each request, in nanoseconds.
const OBJECTIVE_NS: u64 = 200 * MS;
/// Time within which a request is answered once nothing is broken any more, in nanoseconds: others' models move before and after.
const ANSWER_NS: u64 = 2_500 * MS;
/// Largest number of waiting requests; further ones are answered 503.
const DEPTH: usize = 3;
/// Shortest and longest pause before a queue connects again, in nanoseconds.
const PAUSES: (u64, u64) = (20 * MS, SECOND);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    number: u64,
    arrived: u64,
    /// Number of times that it may still be forwarded.
    moves: u32,
}

/// Queue of a pod.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Number of its connection, which counts all of them, and whether it has one.
    link: u64,
    is_connected: bool,
    /// Number of the connection which the agent has admitted; 0: none.
    admitted: u64,
    /// Number of admissions.
    admissions: u64,
    /// Time of the last delivery in each direction, in nanoseconds: messages arrive in order.
    last: [u64; 2],
    pause: u64,
    /// Epoch of the lease; 0: none.
    epoch: u64,
    is_recalled: bool,
    is_idle_known: bool,
    /// Head which the agent knows.
    known_head: Option<u64>,
    seq: u64,
    waiting: VecDeque<Request>,
    /// Heads that no sibling serves although the agent has named one, and whether it has refused.
    returned: VecDeque<(u64, bool)>,
    /// The request that runs, and the process which computes it.
    running: Option<(Request, usize)>,
}

impl Queue {
    const fn may_start(&self) -> bool {
        self.epoch != 0 && !self.is_recalled
    }

    fn is_idle(&self) -> bool {
        self.running.is_none() && self.waiting.is_empty()
    }

    fn head(&mut self) -> FromQueue {
        self.seq += 1;
        let running = u32::from(self.may_start() && self.running.is_some());
        let waiting = u32::try_from(self.waiting.len()).unwrap();
        let head = self.waiting.front();
        FromQueue::Head {
            seq: self.seq,
            deadline: head.map_or(u64::MAX, |head| head.arrived + OBJECTIVE_NS),
            estimate: 5 * MS,
            requests: 0,
            in_time: 0,
            waiting: waiting + running,
            trace: TraceContext::default(),
            may_move: head.is_some_and(|head| head.moves > 0),
        }
    }

    /// Returns the next message that the agent is to get, if any.
    fn next_message(&mut self) -> Option<FromQueue> {
        if let Some((seq, is_refused)) = self.returned.pop_front() {
            return Some(FromQueue::Returned { seq, is_refused });
        }
        if self.may_start() {
            let is_idle = self.is_idle();
            if is_idle == self.is_idle_known {
                return None;
            }
            self.is_idle_known = is_idle;
            return Some(if is_idle {
                FromQueue::Idle {
                    epoch: self.epoch,
                    ends: false,
                }
            } else {
                self.head()
            });
        }
        let head = self.waiting.front().map(|head| head.number);
        if head != self.known_head {
            self.known_head = head;
            return Some(self.head());
        }
        if self.is_recalled && self.running.is_none() {
            self.is_recalled = false;
            let epoch = std::mem::take(&mut self.epoch);
            return Some(FromQueue::Idle { epoch, ends: true });
        }
        None
    }

    fn receive(&mut self, message: &ToQueue) {
        match message {
            ToQueue::Lease { epoch } => {
                self.epoch = *epoch;
                (self.is_recalled, self.is_idle_known) = (false, false);
                self.known_head = None;
            }
            ToQueue::Recall { epoch } if *epoch == self.epoch && self.epoch != 0 => {
                self.is_recalled = true;
                self.known_head = None;
            }
            _ => {}
        }
    }
}

/// What happens to a queue.
#[derive(Debug, Clone)]
pub(crate) enum QueueEvent {
    /// A request arrives.
    Request,
    /// It connects.
    Connect,
    /// The agent's end of the connection with this number accepts it.
    Accept(u64),
    /// It is looked whether it was admitted.
    Admitted(u64),
    /// A message over the connection with this number arrives at the queue; `None`: its end.
    ToQueue(u64, Option<ToQueue>),
    /// What a queue has sent arrives at the agent of this generation.
    ToAgent(u64, u64, FromQueueEnd),
    /// A request which another queue has forwarded arrives, its head there with this number.
    Forwarded {
        from: usize,
        seq: u64,
        request: Request,
    },
    /// A request which this queue has forwarded is back.
    Back { seq: u64, request: Request },
}

/// What the agent reads from a queue's connection.
#[derive(Debug, Clone)]
pub(crate) enum FromQueueEnd {
    Message(FromQueue),
    /// A message that is cut off.
    Cut,
    /// The end of the connection.
    End,
}

/// Returns the UID of a pod.
pub(crate) fn uid_of(pod: usize) -> String {
    format!("uid-{pod}")
}

fn key(pod: usize) -> PodKey {
    PodKey(u32::try_from(pod).unwrap())
}

impl World {
    pub(crate) fn queue_event(&mut self, pod: usize, event: QueueEvent) -> Result<(), Failure> {
        match event {
            QueueEvent::Request => self.arrive(pod),
            QueueEvent::Connect => {
                self.connect_queue(pod);
                Ok(())
            }
            QueueEvent::Accept(link) => self.accept_queue(pod, link),
            QueueEvent::Admitted(link) => {
                self.close_unless_admitted(pod, link);
                Ok(())
            }
            QueueEvent::ToQueue(link, message) => {
                let queue = &mut self.queues[pod];
                if !queue.is_connected || queue.link != link {
                    return Ok(());
                }
                match message {
                    Some(ToQueue::Sibling { seq, uid, .. }) => self.forward(pod, seq, &uid)?,
                    Some(message) => queue.receive(&message),
                    None => self.disconnected(pod),
                }
                self.queue_goes_on(pod)
            }
            QueueEvent::Forwarded { from, seq, request } => self.forwarded(pod, from, seq, request),
            QueueEvent::Back { seq, request } => {
                let queue = &mut self.queues[pod];
                queue.returned.push_back((seq, true));
                queue.waiting.push_front(request);
                self.queue_goes_on(pod)
            }
            QueueEvent::ToAgent(link, generation, message) => {
                // The agent reads from the connection which it has admitted, and from the next one after its end.
                let is_hung = self.node.hangs && self.queues[pod].link == link;
                if self.queues[pod].admitted != link && !is_hung {
                    return Ok(());
                }
                if matches!(message, FromQueueEnd::End) {
                    self.queues[pod].admitted = 0;
                }
                let pod = key(pod);
                let event = match message {
                    FromQueueEnd::Message(message) => AgentEvent::QueueMessage { pod, message },
                    FromQueueEnd::Cut => AgentEvent::QueueMalformed {
                        pod,
                        text: "cut off".to_owned(),
                    },
                    FromQueueEnd::End => AgentEvent::QueueDisconnected(pod),
                };
                self.agent_learns(generation, event)
            }
        }
    }

    /// Forwards the head of a queue to the instance which the agent has named, if it is still the one that the agent knows.
    fn forward(&mut self, pod: usize, seq: u64, uid: &str) -> Result<(), Failure> {
        let to = (0..self.plan.pods).find(|other| uid_of(*other) == uid);
        let of = |pod: usize| {
            let own = &self.node.pods[pod].pod;
            (own.slot, own.function.clone())
        };
        let is_sibling = to.is_some_and(|to| of(to).0 != of(pod).0 && of(to).1 == of(pod).1);
        ensure(is_sibling, "sibling", || {
            format!("{uid} is named to the queue of pod {pod}")
        })?;
        let queue = &mut self.queues[pod];
        let head = queue.waiting.front().copied();
        let is_known = head.map(|head| head.number) == queue.known_head && seq == queue.seq;
        match head.filter(|head| head.moves > 0 && is_known && !queue.may_start()) {
            Some(mut request) => {
                queue.waiting.pop_front();
                queue.known_head = None;
                request.moves -= 1;
                let delay = self.delay() + self.random.below(3) * MS;
                let from = pod;
                let event = QueueEvent::Forwarded { from, seq, request };
                self.later(to.unwrap(), delay, event);
            }
            None => queue.returned.push_back((seq, false)),
        }
        Ok(())
    }

    /// Takes a request that another queue has forwarded, or refuses it, as one that is full, gone, or slow.
    fn forwarded(
        &mut self,
        pod: usize,
        from: usize,
        seq: u64,
        mut request: Request,
    ) -> Result<(), Failure> {
        let is_full = self.queues[pod].waiting.len() >= DEPTH;
        if is_full || !self.node.pods[pod].is_there || self.random.below(8) == 0 {
            let delay = self.delay() + self.random.below(20) * MS;
            self.later(from, delay, QueueEvent::Back { seq, request });
            return Ok(());
        }
        request.moves = 0;
        self.checks.forwarded += 1;
        self.queues[pod].waiting.push_back(request);
        self.queue_goes_on(pod)
    }

    fn later(&mut self, pod: usize, ns: u64, event: QueueEvent) {
        self.after(ns, Event::Queue { pod, event });
    }

    fn arrive(&mut self, pod: usize) -> Result<(), Failure> {
        let mean = if self.is_healing {
            // So that all models have their turns in time.
            200 * self.plan.pods as u64 * MS
        } else {
            self.plan.requests_ms * MS
        };
        let ns = self.exponential(mean);
        self.later(pod, ns, QueueEvent::Request);
        let is_full = self.queues[pod].waiting.len() >= DEPTH;
        if !self.node.pods[pod].is_there || is_full {
            return Ok(());
        }
        self.checks.requests += 1;
        let request = Request {
            number: self.checks.requests,
            arrived: self.now,
            moves: if self.plan.siblings { 2 } else { 0 },
        };
        self.queues[pod].waiting.push_back(request);
        self.queue_goes_on(pod)
    }

    /// Starts what may start, and sends what is due.
    fn queue_goes_on(&mut self, pod: usize) -> Result<(), Failure> {
        let of_pod = |own: &&crate::process::Process| own.is_alive && own.pod == pod;
        let alive = self.processes.iter().filter(of_pod).count();
        while self.queues[pod].may_start() && self.queues[pod].running.is_none() {
            let Some(request) = self.queues[pod].waiting.pop_front() else {
                break;
            };
            if alive == 0 {
                // Answered 502.
                continue;
            }
            let pick = self.random.index(alive);
            let all = self.processes.iter().enumerate();
            let mut own = all.filter(|(_, own)| own.is_alive && own.pod == pod);
            let (process, _) = own.nth(pick).unwrap();
            self.queues[pod].running = Some((request, process));
            self.note(|| {
                format!(
                    "pod {pod} starts request {} in process {process}",
                    request.number
                )
            });
            self.processes[process].has_request = true;
            let own = &self.processes[process];
            if own.is_active && matches!(own.program, Program::Paused) {
                let delay = self.delay();
                self.go(process, Thread::Program, delay);
            }
        }
        while self.queues[pod].is_connected
            && let Some(message) = self.queues[pod].next_message()
        {
            self.send_to_agent(pod, FromQueueEnd::Message(message));
        }
        Ok(())
    }

    /// Records that a process has computed its request, or has ended amid it.
    pub(crate) fn request_ends(&mut self, process: usize) -> Result<(), Failure> {
        self.processes[process].has_request = false;
        let pod = self.processes[process].pod;
        let Some(queue) = self.queues.get_mut(pod) else {
            return Ok(());
        };
        if queue.running.is_some_and(|(_, own)| own == process) {
            queue.running = None;
            self.checks.requests_served += 1;
        }
        self.queue_goes_on(pod)
    }

    // Connections

    fn connect_queue(&mut self, pod: usize) {
        if self.queues[pod].is_connected || !self.node.pods[pod].is_there {
            return;
        }
        if self.node.agent.is_none() || !self.node.pods[pod].listens {
            return self.try_again(pod);
        }
        let queue = &mut self.queues[pod];
        queue.link += 1;
        queue.is_connected = true;
        (queue.known_head, queue.is_idle_known) = (None, false);
        let (link, epoch) = (queue.link, queue.epoch);
        queue.returned.clear();
        let (address, port) = match self.plan.siblings {
            true => (format!("10.0.0.{pod}"), 8_012),
            false => (String::new(), 0),
        };
        let queue = &self.queues[pod];
        let hello = FromQueue::Hello {
            again: link > 1,
            epoch,
            running: u32::from(queue.running.is_some()),
            waiting: u32::try_from(queue.waiting.len()).unwrap(),
            address,
            port,
        };
        let delay = self.delay();
        self.queues[pod].last[0] = self.now + delay;
        self.later(pod, delay, QueueEvent::Accept(link));
        self.send_to_agent(pod, FromQueueEnd::Message(hello));
        let _sent = self.queue_goes_on(pod);
    }

    fn try_again(&mut self, pod: usize) {
        let queue = &mut self.queues[pod];
        queue.pause = (2 * queue.pause).clamp(PAUSES.0, PAUSES.1);
        let pause = queue.pause;
        self.later(pod, pause, QueueEvent::Connect);
    }

    fn accept_queue(&mut self, pod: usize, link: u64) -> Result<(), Failure> {
        if self.queues[pod].link != link || !self.queues[pod].is_connected {
            return Ok(());
        }
        let event = AgentEvent::QueueConnected {
            pod: key(pod),
            is_of_pod: true,
        };
        self.agent_learns(self.node.generation, event)?;
        self.close_unless_admitted(pod, link);
        Ok(())
    }

    /// Closes the connection with this number if the agent, which has read of it, has not admitted it.
    fn close_unless_admitted(&mut self, pod: usize, link: u64) {
        let queue = &self.queues[pod];
        if self.node.agent.is_none() || queue.link != link || !queue.is_connected {
            return;
        }
        if self.node.hangs {
            self.later(pod, 10 * MS, QueueEvent::Admitted(link));
        } else if queue.admitted != link {
            self.send_to_queue(key(pod), None);
        }
    }

    pub(crate) fn admit_queue(&mut self, PodKey(pod): PodKey) {
        let queue = &mut self.queues[pod as usize];
        queue.admitted = queue.link;
        queue.admissions += 1;
    }

    /// Lets a message of the agent travel; `None`: the end of the connection.
    pub(crate) fn send_to_queue(&mut self, PodKey(pod): PodKey, message: Option<ToQueue>) {
        let pod = pod as usize;
        self.note(|| format!("the queue of pod {pod} is sent {message:?}"));
        let delay = self.delay();
        let queue = &mut self.queues[pod];
        let at = (self.now + delay).max(queue.last[1] + 1);
        queue.last[1] = at;
        let event = QueueEvent::ToQueue(queue.link, message);
        self.at(at, Event::Queue { pod, event });
    }

    fn send_to_agent(&mut self, pod: usize, message: FromQueueEnd) {
        self.note(|| format!("the queue of pod {pod} sends {message:?}"));
        let generation = self.node.generation;
        let delay = self.delay();
        let queue = &mut self.queues[pod];
        let at = (self.now + delay).max(queue.last[0] + 1);
        queue.last[0] = at;
        let event = QueueEvent::ToAgent(queue.link, generation, message);
        self.at(at, Event::Queue { pod, event });
    }

    /// Has the agent close the connection of a queue.
    pub(crate) fn close_queue(&mut self, pod: PodKey) {
        self.send_to_queue(pod, None);
        self.queues[pod.0 as usize].admitted = 0;
        let slot = self.node.pods[pod.0 as usize].pod.slot.0 as usize;
        if !self.is_leased(slot) {
            self.checks.unbounded.insert(slot);
        }
    }

    /// Handles the end of a queue's connection: a lease stays, and without one requests wait.
    fn disconnected(&mut self, pod: usize) {
        // An agent that closed an earlier connection when this one was in its inbox already takes it for connected, until it reads the end.
        let queue = &mut self.queues[pod];
        let at = self.now.max(queue.last[0]) + 1;
        queue.last[0] = at;
        let end = FromQueueEnd::End;
        let event = QueueEvent::ToAgent(queue.link, self.node.generation, end);
        self.at(at, Event::Queue { pod, event });
        self.queues[pod].is_connected = false;
        self.queues[pod].pause = 0;
        self.try_again(pod);
    }

    /// Ends the connections of all queues with the agent.
    pub(crate) fn drop_queues(&mut self) {
        for pod in 0..self.queues.len() {
            self.queues[pod].admitted = 0;
            if self.queues[pod].is_connected {
                self.send_to_queue(key(pod), None);
            }
        }
    }

    /// Kills a queue, with what waits and runs there. Another one starts if `starts`.
    pub(crate) fn kill_queue(&mut self, pod: usize, starts: bool) {
        if self.queues.is_empty() {
            return;
        }
        let before = std::mem::take(&mut self.queues[pod]);
        self.queues[pod].link = before.link;
        (self.queues[pod].last, self.queues[pod].admitted) = (before.last, before.admitted);
        if before.is_connected {
            self.send_to_agent(pod, FromQueueEnd::End);
        }
        // A new connection has another number; the old one's end comes first.
        self.queues[pod].link += u64::from(!before.is_connected);
        if starts {
            let delay = 10 * MS + self.random.below(300 * MS);
            self.later(pod, delay, QueueEvent::Connect);
        }
    }

    /// Has the queue of the last pod send a burst of messages as they come, and connect another time.
    pub(crate) fn lie_of_queue(&mut self) -> Result<(), Failure> {
        let pod = self.queues.len() - 1;
        if !self.node.pods[pod].is_there {
            return Ok(());
        }
        // An agent that hangs would admit it later, beside the next one.
        let learns_now = self.node.agent.is_some() && !self.node.hangs;
        if learns_now && self.random.below(3) == 0 {
            let event = AgentEvent::QueueConnected {
                pod: key(pod),
                is_of_pod: self.random.below(2) == 0,
            };
            let before = (self.queues[pod].admitted, self.queues[pod].admissions);
            self.agent_learns(self.node.generation, event)?;
            if self.queues[pod].admissions != before.1 {
                // It ends at once.
                self.queues[pod].admitted = before.0;
                let event = AgentEvent::QueueDisconnected(key(pod));
                self.agent_learns(self.node.generation, event)?;
            }
        }
        if self.queues[pod].is_connected {
            for _message in 0..self.random.index(40) {
                let message = match self.random.below(64) {
                    0 => FromQueueEnd::Cut,
                    _ => FromQueueEnd::Message(self.lie_to_agent(pod)),
                };
                self.send_to_agent(pod, message);
            }
        }
        Ok(())
    }

    fn lie_to_agent(&mut self, pod: usize) -> FromQueue {
        const YEARS: u64 = 100 * 365 * 86_400 * SECOND;
        let now = self.now;
        let mut one_of = |all: [u64; 4]| all[self.random.index(4)];
        let epoch = self.queues[pod].epoch;
        match one_of([0, 1, 2, 3]) {
            0 => FromQueue::Idle {
                epoch: one_of([0, epoch, epoch.wrapping_sub(1), u64::MAX]),
                ends: one_of([0, 1, 0, 1]) == 1,
            },
            1 => FromQueue::Returned {
                seq: one_of([0, 1, self.queues[pod].seq, u64::MAX]),
                is_refused: one_of([0, 1, 0, 1]) == 1,
            },
            2 if one_of([0, 0, 0, 1]) == 1 => FromQueue::Hello {
                again: true,
                epoch: one_of([0, epoch, 1, u64::MAX]),
                running: u32::MAX,
                waiting: u32::MAX,
                address: "::".to_owned(),
                port: u32::MAX,
            },
            _ => FromQueue::Head {
                seq: one_of([0, 1, 2, u64::MAX]),
                deadline: one_of([0, now, now + 200 * MS, now + YEARS]),
                estimate: one_of([0, 5 * MS, SECOND, u64::MAX]),
                requests: one_of([0, 10, 1_000, u64::MAX]),
                in_time: one_of([0, 10, 2_000, u64::MAX]),
                waiting: u32::try_from(one_of([0, 1, 3, u64::from(u32::MAX)])).unwrap(),
                trace: TraceContext::default(),
                may_move: one_of([0, 1, 0, 1]) == 1,
            },
        }
    }

    /// Begins a queue for each pod, and its requests.
    pub(crate) fn begin_queues(&mut self) {
        for pod in 0..self.plan.pods {
            self.queues.push(Queue::default());
            let delay = self.random.below(50 * MS);
            self.later(pod, delay, QueueEvent::Connect);
            let delay = self.random.below(SECOND);
            self.later(pod, delay, QueueEvent::Request);
        }
    }

    /// Each request is answered in time once nothing is broken any more.
    pub(crate) fn check_requests(&self) -> Result<(), Failure> {
        for (pod, queue) in self.queues.iter().enumerate() {
            let running = queue.running.iter().map(|(request, _)| request);
            let oldest = running.chain(&queue.waiting).map(|own| own.arrived).min();
            let age = oldest.map_or(0, |arrived| self.now - arrived);
            ensure(age < ANSWER_NS, "requests", || {
                format!(
                    "a request of pod {pod} has waited for {} ms: {queue:?}; {}",
                    age / MS,
                    self.holders()
                )
            })?;
        }
        Ok(())
    }

    /// Returns what each process of an exclusive slot does.
    fn holders(&self) -> String {
        let alive = self.processes.iter().enumerate();
        let alive = alive.filter(|(_, own)| own.is_alive);
        let text = alive.map(|(at, own)| {
            format!(
                "process {at} of pod {} on slot {}: {:?}, request {}, away {}, gate open {}",
                own.pod,
                own.slot,
                own.program,
                own.has_request,
                own.memory.is_away(),
                own.orders().gate.is_open()
            )
        });
        text.collect::<Vec<_>>().join("; ")
    }

    /// Returns whether the queue of some pod on a slot is connected.
    pub(crate) fn is_leased(&self, slot: usize) -> bool {
        let mut pods = self.node.pods.iter().zip(&self.queues);
        pods.any(|(pod, queue)| {
            pod.is_there && pod.pod.slot.0 as usize == slot && queue.admitted > 0
        })
    }

    /// The models of a slot take no more than its memory.
    pub(crate) fn check_slot_memory(&mut self, slot: usize) -> Result<(), Failure> {
        let Some(most) = self.node.slots[slot].models_memory else {
            return Ok(());
        };
        // Without an agent each process takes what the slot has.
        if self.plan.has(Fault::AgentKill) || self.plan.has(Fault::AgentHang) {
            return Ok(());
        }
        // Nor is there a bound as long as no queue is connected, and on a lost slot everything returns, to find out.
        let is_leased = self.is_leased(slot);
        let there = self.processes.iter();
        let there = there.filter(|own| own.is_alive && own.slot == slot);
        // Nor for a process which the agent has refused, or from which it hears nothing: it has what its limit allows, as without an agent.
        let mut with_memory = there.clone().filter(|own| own.memory.on_device() > 0);
        let is_alone = with_memory.any(|own| own.agent_pages().is_none());
        if !is_leased {
            self.checks.unbounded.insert(slot);
        }
        if self.checks.unbounded.contains(&slot) {
            return Ok(());
        }
        let models: Vec<_> = there
            .map(|own| (own.pod, own.pid, own.memory.on_device()))
            .filter(|(_, _, bytes)| *bytes > 0)
            .collect();
        let bytes: u64 = models.iter().map(|(_, _, bytes)| bytes).sum();
        if is_alone {
            self.checks.crowded.insert(slot);
        } else if bytes <= most {
            self.checks.crowded.remove(&slot);
        }
        // What it took meanwhile stays until others have left.
        if self.checks.crowded.contains(&slot) {
            return Ok(());
        }
        ensure(bytes <= most, "slot memory", || {
            format!(
                "models take {bytes} of {most} bytes of slot {slot}: pod, process, bytes: {models:?}"
            )
        })
    }
}
