//! Access to the gate for its benchmark. Not a public interface.

use std::future::Future as _;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::HeaderMap;
use policy::class;
use policy::gate::{Late, Order, Settings};
use policy::slo::Trust;

use protocol::queue::{ToQueue, TraceContext};
use proxy::clock::Clock;
use proxy::deadline::Deadlines;
use proxy::headers;

use crate::admission::{Admission, Admitted, Claim};
use crate::drain::Drain;

/// A gate with an empty queue and one free slot.
#[derive(Debug)]
pub struct IdleGate {
    admission: Arc<Admission>,
    deadlines: Deadlines,
    clock: Clock,
}

impl IdleGate {
    /// Creates a gate that orders requests by deadline, or by arrival if `deadlines` is false.
    #[must_use]
    pub fn new(deadlines: bool) -> Self {
        let order = if deadlines {
            Order::Deadline
        } else {
            Order::Arrival
        };
        let clock = Clock::start();
        let settings = Settings {
            concurrency: 1,
            depth: 10,
            order,
            late: Late::Serve,
        };
        Self {
            admission: Admission::new(settings, clock),
            deadlines: Deadlines::new(
                Some(Duration::from_secs(1)),
                Trust::All,
                Duration::from_secs(300),
            ),
            clock,
        }
    }

    /// Creates a gate which holds the lease of its pod's slot, and orders requests by deadline.
    #[must_use]
    pub fn leased() -> Self {
        let gate = Self::new(true);
        let drain = Drain::new(Duration::from_secs(30));
        gate.admission.require_lease(None, drain);
        let _hello = gate.admission.greet(false);
        gate.admission.receive(&ToQueue::Lease { epoch: 1 });
        gate
    }

    /// Takes the messages that the agent is to get, as the connection to it does beside the requests. Returns their number.
    #[must_use]
    pub fn take_messages(&self) -> usize {
        std::iter::from_fn(|| self.admission.next_message((0, 0))).count()
    }

    /// Passes one request: reads its deadline headers, acquires the slot and releases it.
    ///
    /// # Panics
    /// Panics if the slot is taken, which only concurrent calls can cause.
    pub fn pass(&self, request: &HeaderMap) {
        let arrival = self.clock.now();
        let deadline = self.deadlines.read(request, arrival).deadline;
        let class = class::of(deadline.objective, headers::content_length(request));
        let claim = Claim {
            arrival,
            deadline,
            class,
            may_move: false,
            trace: TraceContext::default(),
            back: None,
        };
        let mut acquire = pin!(Arc::clone(&self.admission).acquire(claim));
        match acquire
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(Ok(Admitted::Start(mut permit))) => permit.complete(),
            Poll::Ready(Ok(Admitted::Forward(_)) | Err(_)) | Poll::Pending => {
                panic!("the slot is taken")
            }
        }
    }
}
