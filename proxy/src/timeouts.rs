//! The three limits on a request's time, all counted from its arrival.
//!
//! | limit | strikes when | before the response has begun | after |
//! |---|---|---|---|
//! | request | the whole takes too long | 504 | the response is ended |
//! | response start | no response header came | 504 | – |
//! | idle | no response byte came for so long | 504 | the response is ended |

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

/// How long a request may take, and what is said when it takes longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLimits {
    /// The whole, from arrival. Zero gives every request up at once.
    pub request: Duration,
    /// Until the head of the answer; `None`: no such limit.
    pub response_start: Option<Duration>,
    /// Between two bytes of the answer; `None`: no such limit.
    pub idle: Option<Duration>,
    /// What is said in a 504 and, as Knative does it, in the midst of a response.
    pub text: &'static str,
}

/// The limits of one request. See the [module](self).
#[derive(Debug, Clone)]
pub struct Timeouts {
    /// When the request came.
    pub arrival: Instant,
    limits: TimeLimits,
    last_write: Instant,
}

/// A limit was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired;

impl Timeouts {
    /// The limits of a request that came at `arrival`.
    #[must_use]
    pub const fn new(limits: TimeLimits, arrival: Instant) -> Self {
        Self {
            arrival,
            limits,
            last_write: arrival,
        }
    }

    /// These, without the limit until the head of the answer.
    #[must_use]
    pub fn without_response_start(&self) -> Self {
        let mut timeouts = self.clone();
        timeouts.limits.response_start = None;
        timeouts
    }

    /// Returns what is said when one of them strikes.
    #[must_use]
    pub const fn text(&self) -> &'static str {
        self.limits.text
    }

    /// Response bytes have been passed on.
    pub fn note_write(&mut self) {
        if self.limits.idle.is_some() {
            self.last_write = Instant::now();
        }
    }

    /// When a response that has begun is ended, if nothing more is written.
    #[must_use]
    pub fn mid_stream(&self) -> Instant {
        let request = self.arrival + self.limits.request;
        self.limits
            .idle
            .map_or(request, |idle| request.min(self.last_write + idle))
    }

    /// When a request whose response has not begun is given up.
    #[must_use]
    pub fn before_response(&self, informed: bool) -> Instant {
        match self.limits.response_start {
            // An interim response counts as a start, as under Knative.
            Some(limit) if !informed => self.mid_stream().min(self.arrival + limit),
            _ => self.mid_stream(),
        }
    }

    /// When a tunnel is closed: `heard` once the upstream has sent a byte through it, `last` the
    /// last byte in either direction.
    #[must_use]
    pub fn tunnel(&self, heard: bool, last: Instant) -> Instant {
        Self {
            last_write: last,
            ..self.clone()
        }
        .before_response(heard)
    }

    /// An interim response matters to these limits.
    #[must_use]
    pub const fn watch_interim(&self) -> bool {
        self.limits.response_start.is_some()
    }

    /// Awaits what comes before the response, up to its limit. `informed` is set by an interim response.
    ///
    /// # Errors
    /// [`Expired`]: the future is of no more use.
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
            // The clock first: who always finds something to read spends the turn's whole budget.
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
