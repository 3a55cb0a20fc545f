//! Time limits of a request.
//!
//! | limit | expires | before the response has begun | afterwards |
//! |---|---|---|---|
//! | request | this long after the arrival | 504 | the response is ended |
//! | response start | this long after the arrival without a response head | 504 | – |
//! | idle | this long after the arrival or the last response byte | 504 | the response is ended |

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

/// Configured time limits, with the text sent when one expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLimits {
    /// Longest time from the arrival to the end of the response. Zero fails every request at once.
    pub request: Duration,
    /// Longest time from the arrival to the head of the answer; `None` without a limit.
    pub response_start: Option<Duration>,
    /// Longest time between two bytes of the answer; `None` without a limit.
    pub idle: Option<Duration>,
    /// Body of a 504, and text appended to a response that has begun, as under Knative.
    pub text: &'static str,
}

/// Time limits of one request. See the [module](self).
#[derive(Debug, Clone)]
pub struct Timeouts {
    /// Time at which the request arrived.
    pub arrival: Instant,
    limits: TimeLimits,
    last_write: Instant,
}

/// Error for a future that did not complete within its time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired;

impl Timeouts {
    /// Creates the limits of a request that arrived at `arrival`.
    #[must_use]
    pub const fn new(limits: TimeLimits, arrival: Instant) -> Self {
        Self {
            arrival,
            limits,
            last_write: arrival,
        }
    }

    /// Returns a copy without the limit on the response start.
    #[must_use]
    pub fn without_response_start(&self) -> Self {
        let mut timeouts = self.clone();
        timeouts.limits.response_start = None;
        timeouts
    }

    /// Returns the text that is sent when a limit expires.
    #[must_use]
    pub const fn text(&self) -> &'static str {
        self.limits.text
    }

    /// Notes that response bytes have been passed on, which restarts the idle limit.
    pub fn note_write(&mut self) {
        if self.limits.idle.is_some() {
            self.last_write = Instant::now();
        }
    }

    /// Returns the time at which a response that has begun is ended if no more bytes are written.
    #[must_use]
    pub fn mid_stream(&self) -> Instant {
        let request = self.arrival + self.limits.request;
        self.limits
            .idle
            .map_or(request, |idle| request.min(self.last_write + idle))
    }

    /// Returns the time at which a request without a response fails. `informed` states whether an interim response has
    /// arrived, which removes the limit on the response start.
    #[must_use]
    pub fn before_response(&self, informed: bool) -> Instant {
        match self.limits.response_start {
            // An interim response counts as a start, as under Knative.
            Some(limit) if !informed => self.mid_stream().min(self.arrival + limit),
            _ => self.mid_stream(),
        }
    }

    /// Returns the time at which a tunnel is closed. `heard` states whether the upstream has sent a byte through it, and
    /// `last` is the time of the last byte in either direction.
    #[must_use]
    pub fn tunnel(&self, heard: bool, last: Instant) -> Instant {
        Self {
            last_write: last,
            ..self.clone()
        }
        .before_response(heard)
    }

    /// Returns whether interim responses affect the limits.
    #[must_use]
    pub const fn watch_interim(&self) -> bool {
        self.limits.response_start.is_some()
    }

    /// Awaits a future that ends when the response begins, within its time limit. `informed` is set by an interim
    /// response.
    ///
    /// # Errors
    /// Returns [`Expired`] at the limit; the future must not be polled any more.
    pub async fn run<T>(
        &self,
        informed: Option<&Arc<AtomicBool>>,
        mut future: Pin<&mut impl Future<Output = T>>,
    ) -> Result<T, Expired> {
        if self.limits.request.is_zero() {
            return Err(Expired);
        }
        let is_informed = || informed.is_some_and(|informed| informed.load(Ordering::Relaxed));
        let mut sleep = pin!(tokio::time::sleep_until(self.before_response(false)));
        let mut is_over = move |cx: &mut Context<'_>| {
            while sleep.as_mut().poll(cx).is_ready() {
                let at = self.before_response(is_informed());
                if sleep.deadline() >= at {
                    return true;
                }
                sleep.as_mut().reset(at);
            }
            false
        };
        let mut has_timer = false;
        poll_fn(|cx| {
            // The timer is polled first: a future that always has input would use up the task's budget.
            if has_timer && is_over(cx) {
                return Poll::Ready(Err(Expired));
            }
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            if !has_timer {
                has_timer = true;
                if is_over(cx) {
                    return Poll::Ready(Err(Expired));
                }
            }
            Poll::Pending
        })
        .await
    }
}
