//! The way through the gate, for the benchmark of it alone: not for use.

use std::future::Future as _;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::HeaderMap;
use policy::class;
use policy::gate::{Late, Order, Settings};
use policy::slo::Trust;

use proxy::clock::Clock;
use proxy::deadline::Deadlines;
use proxy::headers;

use crate::admission::{Admission, Claim};

/// A gate at which nobody waits.
#[derive(Debug)]
pub struct IdleGate {
    admission: Arc<Admission>,
    deadlines: Deadlines,
    clock: Clock,
}

impl IdleGate {
    /// With or without deadlines.
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

    /// What a request does: its headers are read, it gets the place and gives it back.
    ///
    /// # Panics
    /// If the place is taken, which cannot be.
    pub fn pass(&self, request: &HeaderMap) {
        let arrival = self.clock.now();
        let deadline = self.deadlines.read(request, arrival).deadline;
        let class = class::of(deadline.objective, headers::content_length(request));
        let claim = Claim {
            arrival,
            deadline,
            class,
        };
        let mut acquire = pin!(Arc::clone(&self.admission).acquire(claim));
        match acquire
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(Ok(mut permit)) => permit.complete(),
            Poll::Ready(Err(_)) | Poll::Pending => panic!("the place is free"),
        }
    }
}
