//! One instance behind its queue-proxy, as it runs in a pod: requests arrive at the proxy, wait at its gate, occupy the
//! user container one at a time, and their responses return to the client.
//!
//! Dispatch, waiting, refusal and shedding are decided by [`policy::gate`], deadlines by [`policy::slo`], and estimates of
//! service times by [`policy::class`] and [`policy::profile`]: the code that the queue-proxy runs, called in its order. This
//! module also models what the proxy itself adds: a request which is shed while it waits receives its response at the next tick
//! of the proxy's timer, and the duration of a request is recorded before its slot is granted to the next.
//!
//! **Hops.** Half of [`Hop::outside`] passes between the time when a request is due and its arrival at the gate, and the other
//! half between the release of its slot and the response's arrival at the client. [`Hop::inside`] passes between the slot and
//! the computation, half in each direction; no other request computes meanwhile. Hops are measured, see [`Hops`]; each request
//! uses one measured pair, drawn at random, so that the correlation within a pair is kept.
//!
//! Every event costs as much as the gate's operation: O(log of the queue's depth). Memory grows with the number of requests.

use policy::class;
use policy::gate::{Action, Admission, Arrival, Gate, Late, Order, RefuseReason, Settings};
use policy::profile::{ClassId, Profile};
use policy::slo::{Deadline, Signals};
use policy::{RequestId, Span, Time};
use thiserror::Error;

use crate::agenda::Agenda;
use crate::random::Stream;

/// Resolution of the proxy's timers, which fire at whole milliseconds (tokio's resolution).
const TICK: Span = Span::from_millis(1);

/// A request to the instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Time at which the client is due to send the request.
    pub due: Time,
    /// Time of computation in the user container.
    pub service: Span,
    /// Objective that the request states (`Weir-Budget-Ms`), if any.
    pub budget: Option<Span>,
    /// Length of the body, in bytes.
    pub body_bytes: u64,
}

/// Settings of the queue-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Largest number of waiting requests.
    pub depth: usize,
    /// Objective of the revision. If `None`, requests are dispatched in order of arrival.
    pub slo: Option<Span>,
    /// Treatment of requests that cannot meet their deadlines.
    pub late: Late,
    /// Request timeout of the revision.
    pub revision_timeout: Span,
}

/// Latency of one uncontended request besides its computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Hop {
    /// Latency between client and gate, both directions together.
    pub outside: Span,
    /// Latency between gate and computation, both directions together.
    pub inside: Span,
}

/// Measured hops, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hops(Vec<Hop>);

/// Error for an empty list of measured hops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no hops were measured: at least one is needed")]
pub struct NoHops;

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The request was executed and answered.
    Served,
    /// The request found the queue full, or was displaced by a request that could meet its deadline.
    Refused,
    /// The request could not meet its deadline.
    Shed,
}

/// Response to a request, as the client observes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Outcome of the request.
    pub fate: Fate,
    /// Time from the moment when the request was due to its response.
    pub latency: Span,
}

impl Hops {
    /// Wraps a list of measured hops.
    ///
    /// # Errors
    /// Returns [`NoHops`] if the list is empty.
    pub fn new(measured: Vec<Hop>) -> Result<Self, NoHops> {
        if measured.is_empty() {
            return Err(NoHops);
        }
        Ok(Self(measured))
    }

    /// Draws one hop, each with equal probability.
    fn draw(&self, stream: &mut Stream) -> Hop {
        let count = self.0.len() as u64;
        // The high half of a product: no part of the range is preferred by more than 2^-64 times the count.
        let at = (u128::from(stream.bits()) * u128::from(count)) >> 64;
        self.0[usize::try_from(at).unwrap_or(0)]
    }
}

/// Serves requests, which must be in the order of their due times, and returns one answer for each, in the same order. The
/// same requests, settings, hops and stream yield the same answers on every machine.
#[must_use]
pub fn serve(requests: &[Request], proxy: &Proxy, hops: &Hops, stream: &mut Stream) -> Vec<Answer> {
    let mut run = Run {
        requests,
        proxy,
        // Drawn in the order of requests, whatever their fate, so that every policy is run with the same hops.
        hops: requests.iter().map(|_| hops.draw(stream)).collect(),
        agenda: Agenda::new(),
        gate: Gate::new(Settings {
            concurrency: 1,
            depth: proxy.depth,
            order: if proxy.slo.is_some() {
                Order::Deadline
            } else {
                Order::Arrival
            },
            late: proxy.late,
        }),
        profile: Profile::new(class::COUNT, Span::ZERO),
        wakes_at: Time::NEVER,
        actions: Vec::new(),
        answers: vec![None; requests.len()],
    };
    for (at, request) in requests.iter().enumerate() {
        let arrives = request.due.after(half(run.hops[at].outside));
        run.agenda.add(arrives, Event::Arrives(at));
    }
    while let Some(event) = run.agenda.take() {
        run.handle(event);
    }
    let unanswered = Answer {
        fate: Fate::Refused,
        latency: Span(u64::MAX),
    };
    // Each request has an answer: a waiting one is dispatched or refused at the latest when all before it have left.
    (run.answers.into_iter())
        .map(|answer| answer.unwrap_or(unanswered))
        .collect()
}

const fn half(span: Span) -> Span {
    Span(span.0 / 2)
}

#[derive(Clone, Copy)]
enum Event {
    /// A request reaches the gate.
    Arrives(usize),
    /// A request releases its slot; carries the time at which it got the slot.
    Departs(usize, Time),
    /// The proxy's timer fires.
    Wakes,
}

struct Run<'a> {
    requests: &'a [Request],
    proxy: &'a Proxy,
    hops: Vec<Hop>,
    agenda: Agenda<Event>,
    gate: Gate,
    profile: Profile,
    wakes_at: Time,
    actions: Vec<Action>,
    answers: Vec<Option<Answer>>,
}

impl Run<'_> {
    fn handle(&mut self, event: Event) {
        let now = self.agenda.now();
        let mut actions = std::mem::take(&mut self.actions);
        match event {
            Event::Arrives(at) => self.arrive(at, &mut actions),
            Event::Departs(at, since) => {
                let (class, _) = self.class_and_deadline(at, now);
                self.profile.observe(class, now.since(since));
                self.end(at, Fate::Served);
                self.gate.depart(now, &mut actions);
            }
            Event::Wakes => {
                self.wakes_at = Time::NEVER;
                // The request for which the timer was set may have left.
                if self.gate.next_wake().is_some_and(|at| at <= now) {
                    self.gate.wake(now, &mut actions);
                }
            }
        }
        for action in actions.drain(..) {
            match action {
                Action::Dispatch { id, .. } => self.start(number(id)),
                Action::Refuse { id, reason, .. } => self.end(number(id), fate(reason)),
            }
        }
        self.actions = actions;
        self.set_timer();
    }

    fn arrive(&mut self, at: usize, actions: &mut Vec<Action>) {
        let now = self.agenda.now();
        let (class, deadline) = self.class_and_deadline(at, now);
        let arrival = Arrival {
            id: RequestId(at as u64),
            at: now,
            key: deadline.latest_start(self.profile.estimate(class), Span::ZERO),
            objective: deadline.objective.unwrap_or_default(),
            kept: false,
        };
        match self.gate.arrive(now, arrival, actions) {
            Admission::Dispatch(_) => self.start(at),
            Admission::Wait(_) => {}
            Admission::Refuse(reason) => self.end(at, fate(reason)),
        }
    }

    /// Returns class and deadline of a request as the proxy derives them from its headers and body length.
    fn class_and_deadline(&self, at: usize, arrival: Time) -> (ClassId, Deadline) {
        let request = &self.requests[at];
        let signals = Signals {
            budget: request
                .budget
                .map(|own| own.min(self.proxy.revision_timeout)),
            slo: self.proxy.slo,
            revision_timeout: self.proxy.revision_timeout,
            ..Signals::default()
        };
        let deadline = signals.deadline(arrival);
        let class = class::of(deadline.objective, Some(request.body_bytes));
        (class, deadline)
    }

    fn start(&mut self, at: usize) {
        let now = self.agenda.now();
        let ends = now
            .after(self.hops[at].inside)
            .after(self.requests[at].service);
        self.agenda.add(ends, Event::Departs(at, now));
    }

    fn end(&mut self, at: usize, fate: Fate) {
        let hop = self.hops[at].outside;
        let answered = self.agenda.now().after(hop.less(half(hop)));
        self.answers[at] = Some(Answer {
            fate,
            latency: answered.since(self.requests[at].due),
        });
    }

    /// Sets the proxy's timer to the first tick at or after the time at which the first waiting request becomes late.
    fn set_timer(&mut self) {
        let Some(late) = self.gate.next_wake() else {
            return;
        };
        let at = Time(late.0.div_ceil(TICK.0).saturating_mul(TICK.0));
        if at < self.wakes_at {
            self.wakes_at = at;
            self.agenda.add(at, Event::Wakes);
        }
    }
}

fn number(id: RequestId) -> usize {
    usize::try_from(id.0).unwrap_or(usize::MAX)
}

const fn fate(reason: RefuseReason) -> Fate {
    match reason {
        RefuseReason::Full | RefuseReason::Displaced => Fate::Refused,
        RefuseReason::Late => Fate::Shed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, Streams};

    const MS: u64 = 1_000_000;

    fn stream(seed: u64) -> Stream {
        Streams::new("instance", seed).stream(Purpose::Noise, 0)
    }

    fn hops(outside_ms: u64, inside_ms: u64) -> Hops {
        let (outside, inside) = (Span::from_millis(outside_ms), Span::from_millis(inside_ms));
        Hops::new(vec![Hop { outside, inside }]).unwrap()
    }

    fn request(due_ms: u64, service_ms: u64, budget_ms: u64) -> Request {
        Request {
            due: Time(due_ms * MS),
            service: Span::from_millis(service_ms),
            budget: Some(Span::from_millis(budget_ms)),
            body_bytes: 25,
        }
    }

    const STOCK: Proxy = Proxy {
        depth: 10,
        slo: None,
        late: Late::Serve,
        revision_timeout: Span::from_secs(300),
    };
    const WEIR: Proxy = Proxy {
        slo: Some(Span::from_secs(1)),
        late: Late::Shed,
        ..STOCK
    };

    fn latencies(answers: &[Answer]) -> Vec<(Fate, u64)> {
        let each = answers.iter();
        each.map(|own| (own.fate, own.latency.as_millis()))
            .collect()
    }

    #[test]
    fn a_single_request_takes_its_service_and_its_hops() {
        for proxy in [STOCK, WEIR] {
            let answers = serve(&[request(7, 50, 200)], &proxy, &hops(2, 4), &mut stream(1));
            assert_eq!(latencies(&answers), [(Fate::Served, 56)]);
        }
        assert_eq!(Hops::new(Vec::new()), Err(NoHops));
    }

    #[test]
    fn arrival_order_serializes_requests_and_inside_hops_occupy_the_slot() {
        let requests = [
            request(0, 50, 60),
            request(1, 10, 20),
            request(2, 10, 1_000),
        ];
        let answers = serve(&requests, &STOCK, &hops(2, 4), &mut stream(1));
        // At the gate at 1, 2 and 3 ms; slots are released at 55, 69 and 83 ms.
        let served = [(Fate::Served, 56), (Fate::Served, 69), (Fate::Served, 82)];
        assert_eq!(latencies(&answers), served);
    }

    #[test]
    fn deadline_order_starts_the_most_urgent_request_first() {
        let requests = [
            request(0, 50, 200),
            request(1, 30, 900),
            request(2, 10, 100),
        ];
        let answers = serve(&requests, &WEIR, &hops(0, 0), &mut stream(1));
        let served = [(Fate::Served, 50), (Fate::Served, 89), (Fate::Served, 58)];
        assert_eq!(latencies(&answers), served);
    }

    #[test]
    fn late_waiting_requests_are_shed_at_the_next_tick_except_one_a_second() {
        let late = |due| request(due, 10, 20);
        let requests = [request(0, 500, 900), late(10), late(11), late(12)];
        let answers = serve(&requests, &WEIR, &hops(0, 0), &mut stream(1));
        assert_eq!(answers[0].fate, Fate::Served);
        // The first is kept; the keys of the others are 31 and 32 ms.
        assert_eq!(latencies(&answers)[1], (Fate::Served, 500));
        assert_eq!(
            latencies(&answers)[2..],
            [(Fate::Shed, 21), (Fate::Shed, 21)]
        );
    }

    #[test]
    fn the_queue_holds_no_more_than_its_depth() {
        let requests: Vec<_> = (0..20).map(|at| request(at, 100, 10)).collect();
        let answers = serve(&requests, &STOCK, &hops(0, 0), &mut stream(1));
        let served = answers.iter().filter(|own| own.fate == Fate::Served);
        assert_eq!(served.count(), 11);
    }

    /// Reference by Lindley's recursion: first in, first out, ten waiting requests.
    fn lindley(requests: &[Request], hops: &[Hop]) -> Vec<Option<Span>> {
        let mut ends: Vec<Time> = Vec::new();
        let mut order: Vec<usize> = (0..requests.len()).collect();
        let at_gate = |at: usize| requests[at].due.after(half(hops[at].outside));
        order.sort_by_key(|&at| (at_gate(at), at));
        let mut answers = vec![None; requests.len()];
        for at in order {
            let arrives = at_gate(at);
            let there = ends.iter().filter(|&&end| end > arrives).count();
            if there > 10 {
                continue;
            }
            let begins = ends.last().map_or(arrives, |&end| end.max(arrives));
            let end = begins.after(hops[at].inside).after(requests[at].service);
            ends.push(end);
            let hop = hops[at].outside;
            let answered = end.after(hop.less(half(hop)));
            answers[at] = Some(answered.since(requests[at].due));
        }
        answers
    }

    #[test]
    fn random_loads_in_arrival_order_agree_with_lindleys_recursion() {
        for seed in 0..200 {
            let mut random = stream(seed);
            let mut due = 0;
            let requests: Vec<Request> = (0..150)
                .map(|_| {
                    due += random.bits() % (20 * MS);
                    Request {
                        due: Time(due),
                        service: Span(1 + random.bits() % (20 * MS)),
                        budget: None,
                        body_bytes: 0,
                    }
                })
                .collect();
            let measured: Vec<Hop> = (0..7)
                .map(|_| Hop {
                    outside: Span(random.bits() % MS),
                    inside: Span(random.bits() % MS),
                })
                .collect();
            let hops = Hops::new(measured).unwrap();
            let (mut one, mut other) = (random.clone(), random);
            let drawn: Vec<Hop> = requests.iter().map(|_| hops.draw(&mut one)).collect();
            let answers = serve(&requests, &STOCK, &hops, &mut other);
            for (answer, expected) in answers.iter().zip(lindley(&requests, &drawn)) {
                let own = (answer.fate == Fate::Served).then_some(answer.latency);
                assert_eq!(own, expected, "seed {seed}");
            }
        }
    }

    #[test]
    fn every_request_has_one_answer_under_any_settings() {
        for seed in 0..200 {
            let mut random = stream(seed);
            let mut due = 0;
            let requests: Vec<Request> = (0..200)
                .map(|_| {
                    due += random.bits() % (15 * MS);
                    let service = 1 + random.bits() % (20 * MS);
                    Request {
                        due: Time(due),
                        service: Span(service),
                        budget: Some(Span((service * 4).max(MS))),
                        body_bytes: random.bits() % 100,
                    }
                })
                .collect();
            let proxy = if seed % 2 == 0 {
                WEIR
            } else {
                Proxy {
                    late: Late::Serve,
                    depth: 3,
                    ..WEIR
                }
            };
            let answers = serve(&requests, &proxy, &hops(1, 1), &mut random.clone());
            assert!(answers.iter().all(|own| own.latency.0 < u64::MAX));
            // Requests compute one at a time, so all work fits before the last answer.
            let work: u64 = (requests.iter().zip(&answers))
                .filter(|(_, own)| own.fate == Fate::Served)
                .map(|(request, _)| request.service.0 + MS)
                .sum();
            let answered = requests.iter().zip(&answers);
            let last = answered.map(|(request, own)| request.due.after(own.latency).0);
            assert!(work <= last.max().unwrap(), "seed {seed}");
            assert_eq!(
                answers,
                serve(&requests, &proxy, &hops(1, 1), &mut random),
                "seed {seed}"
            );
        }
    }
}
