//! The limit of one pod: a debt that is never forgiven, and an exact sliding horizon.
//!
//! The debt is kept as a point in time: usage moves it ahead by usage ÷ limit, and real time catches up with it. It
//! never lags by more than the window, which is the most that can be saved up. A pod ahead of real time has used more
//! than its limit. Unlike M4.7's window the debt has no cap and survives everything: a kernel of 5 s at limit 0.1 holds
//! its pod for about 50 s.
//!
//! The debt alone would allow limit × (10 s + window) in some periods of 10 s. So the usage of the last horizon is kept
//! as well, in [`BUCKETS`] parts. Part of the allowed usage is reserved for work that is in flight at a close.
//!
//! A pod that was closed by the horizon is closed in the same way one horizon later, and again after that: it may use
//! what leaves the horizon, and no more. So the debt is paid back at a rate slightly below the limit. At that rate the
//! horizon of a pod that always wants more rarely fills, and closes it for no longer than its debt does.

use super::{Settings, Share};
use crate::{Span, Time};

/// Number of parts of the horizon. Usage within a part counts as if it were as late as possible, so the result is never
/// too low, and at most limit × one part too high.
const BUCKETS: usize = 256;

/// Limit of one pod; see the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Limit {
    terms: Terms,
    window: Span,
    /// Real time at which nothing is owed or saved.
    even_at: Time,
    /// Remainder of a division, in parts of a nanosecond.
    remainder: u64,
    recent: Recent,
}

/// Values that follow from a share and the settings.
#[derive(Clone, Copy, Debug)]
struct Terms {
    share: Share,
    /// Rate at which the debt is paid back: the share, less the reserve and half a turn (what is used after a pause)
    /// per horizon. Depending on where it begins, a horizon contains up to one turn more than the rate implies. With
    /// half a turn subtracted, no pause is longer than usual, whatever the length of kernels (20 µs to 50 ms were
    /// tried). The other half would cost as much again: with horizons of 10 s and cycles of 100 ms half a percent of
    /// the limit, and more at limits below 5 %.
    rate: Share,
    /// Time for which a pod that was closed for its debt accrues credit: a token has to be worth its hand-over.
    pause: Span,
    /// Room that the horizon must have before a pod that was closed by it may continue.
    least: Span,
    /// Usage that the horizon allows, with the reserve subtracted.
    allowed: Span,
}

/// Usage over the last horizon, by time.
#[derive(Clone, Debug)]
pub(super) struct Recent {
    horizon: Span,
    width: u64,
    /// Usage per bucket. The bucket of a point in time is at `number % len`; there is one more than [`BUCKETS`], for
    /// the two that the horizon cuts.
    buckets: Box<[u64]>,
    newest: u64,
    sum: u64,
}

impl Recent {
    pub(super) fn new(now: Time, horizon: Span) -> Self {
        let width = horizon.0.div_ceil(BUCKETS as u64).max(1);
        Self {
            horizon,
            width,
            buckets: vec![0; BUCKETS + 1].into_boxed_slice(),
            newest: now.0 / width,
            sum: 0,
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "a remainder of the number of buckets"
    )]
    fn slot(&self, number: u64) -> usize {
        (number % self.buckets.len() as u64) as usize
    }

    fn oldest(&self) -> u64 {
        (self.newest + 1).saturating_sub(self.buckets.len() as u64)
    }

    /// Returns the latest end of the usage in bucket `number`.
    fn end(&self, number: u64) -> Time {
        Time((number + 1).saturating_mul(self.width))
    }

    fn advance(&mut self, now: Time) {
        let newest = now.0 / self.width;
        if newest.saturating_sub(self.newest) >= self.buckets.len() as u64 {
            self.buckets.fill(0);
            self.sum = 0;
            self.newest = newest;
        }
        while self.newest < newest {
            self.newest += 1;
            let slot = self.slot(self.newest);
            self.sum -= std::mem::take(&mut self.buckets[slot]);
        }
    }

    /// Adds usage that was reported at `now` and may have ended at any time before: it fills the elapsed parts of the
    /// buckets from the newest one backwards, and what does not fit into the horizon is dropped.
    pub(super) fn add(&mut self, now: Time, delta: Span) {
        self.advance(now);
        let mut left = delta.0;
        let mut number = self.newest;
        let oldest = self.oldest();
        while left > 0 {
            let slot = self.slot(number);
            // Only the elapsed part of the newest bucket has room.
            let room = now.0.min(self.end(number).0) - number * self.width;
            let part = left.min(room.saturating_sub(self.buckets[slot]));
            self.buckets[slot] += part;
            self.sum += part;
            left -= part;
            if number == oldest {
                break;
            }
            number -= 1;
        }
    }

    /// Returns the usage over the horizon that ends now.
    pub(super) fn used(&mut self, now: Time) -> Span {
        self.advance(now);
        let from = now.before(self.horizon);
        if now.0 < self.horizon.0 {
            return Span(self.sum);
        }
        // Only the oldest one or two buckets are cut.
        let mut used = self.sum;
        let mut number = self.oldest();
        while number <= self.newest {
            let start = number.saturating_mul(self.width);
            if start >= from.0 {
                break;
            }
            let held = self.buckets[self.slot(number)];
            used -= held - held.min(self.end(number).since(from).0);
            number += 1;
        }
        Span(used)
    }

    /// Returns when usage over the horizon will have fallen to `allowed`, if none is added.
    fn falls_to(&self, allowed: Span) -> Time {
        let Some(mut excess) = self.sum.checked_sub(allowed.0).filter(|&e| e > 0) else {
            return Time::ZERO;
        };
        for number in self.oldest()..=self.newest {
            let held = self.buckets[self.slot(number)];
            if held >= excess {
                return self
                    .end(number)
                    .before(Span(held - excess))
                    .after(self.horizon);
            }
            excess -= held;
        }
        Time::NEVER
    }
}

impl Terms {
    fn new(share: Share, settings: &Settings) -> Self {
        let pause = settings
            .cycle
            .max(share.time_to_accrue(settings.slice_min))
            .min(Span(settings.window.0 / 2));
        let turn = share.of(pause);
        // With a larger reserve a pod could not begin, as it has less after its shortest pause.
        let reserve = settings.in_flight.min(Span(turn.0 / 2));
        let kept = Span(turn.0 / 2 + reserve.0);
        let less = u128::from(kept.0) * u128::from(super::SHARE_WHOLE);
        let less = super::quota::narrow(less.div_ceil(u128::from(settings.horizon.0)));
        let parts = share.parts_per_million();
        let less = u32::try_from(less).unwrap_or(u32::MAX).min(parts / 2);
        let rate = Share::from_parts_per_million(parts - less).unwrap_or(share);
        Self {
            share,
            rate: if share.is_whole() { share } else { rate },
            pause,
            // Must exceed the room that counts as none left.
            least: turn.min(settings.slice_min.max(Span(settings.hand_over.0 * 2))),
            allowed: share.of(settings.horizon).less(reserve),
        }
    }
}

impl Limit {
    pub(super) fn new(now: Time, share: Share, settings: &Settings) -> Self {
        Self {
            terms: Terms::new(share, settings),
            window: settings.window,
            // Enough to begin at once. A full window of credit would be a gift to each new pod.
            even_at: now.before(settings.cycle),
            remainder: 0,
            recent: Recent::new(now, settings.horizon),
        }
    }

    /// Changes the limit. What is owed or saved stays the same in GPU time.
    pub(super) fn set_share(&mut self, now: Time, share: Share, settings: &Settings) {
        let saved = self.terms.rate.of(now.since(self.even_at));
        let owed = self.debt(now);
        self.terms = Terms::new(share, settings);
        let rate = self.terms.rate;
        self.even_at = now
            .after(rate.time_to_accrue(owed))
            .before(rate.time_to_accrue(saved));
        if share.is_none() {
            self.even_at = now;
        }
        self.remainder = 0;
        self.cap(now);
    }

    fn cap(&mut self, now: Time) {
        self.even_at = self.even_at.max(now.before(self.window));
    }

    /// Returns the debt that is not yet paid back.
    pub(super) fn debt(&self, now: Time) -> Span {
        self.terms.rate.of(self.even_at.since(now))
    }

    /// Charges the pod for usage of `delta`.
    pub(super) fn charge(&mut self, now: Time, delta: Span) {
        self.recent.add(now, delta);
        // While it ran it could not save up.
        self.cap(now.before(delta));
        let (by, remainder) = ahead_by(self.terms.rate, delta, self.remainder);
        self.even_at = self.even_at.after(by);
        self.remainder = remainder;
    }

    /// Returns when the pod may run again, which is not at the first nanosecond of credit.
    pub(super) fn resumes_at(&mut self, now: Time) -> Time {
        let Terms {
            share,
            pause,
            least,
            allowed,
            ..
        } = self.terms;
        if share.is_whole() {
            return Time::ZERO;
        }
        if share.is_none() {
            return Time::NEVER;
        }
        let repaid = self.even_at.max(now.before(self.window)).after(pause);
        let allowed = allowed.less(least);
        let room = if self.recent.used(now) <= allowed {
            Time::ZERO
        } else {
            self.recent.falls_to(allowed)
        };
        repaid.max(room)
    }

    /// Returns until when a holder may run without a break, if it has been running since `since` and that time is not
    /// charged yet. If less than `slack` is left of the horizon it counts as full, since usage only creeps up to it.
    pub(super) fn exhausted_at(&mut self, now: Time, since: Time, slack: Span) -> Time {
        let Terms {
            share,
            rate,
            allowed,
            ..
        } = self.terms;
        if share.is_whole() {
            return Time::NEVER;
        }
        // Credit at `since`, which is then used at rate 1 and accrued at the pod's own rate.
        let even_at = self.even_at.max(since.before(self.window));
        let credit = rate.of(since.since(even_at));
        let by_debt = if even_at >= since {
            since
        } else {
            since.after(rate.time_to_exhaust(credit))
        };
        let allowed = allowed.less(self.recent.used(now));
        let by_horizon = if allowed <= slack {
            since
        } else {
            since.after(allowed)
        };
        by_debt.min(by_horizon)
    }
}

/// Returns by how much usage moves an account that runs at `share`, and the remainder of the division, which must be
/// passed to the next call.
pub(super) fn ahead_by(share: Share, delta: Span, remainder: u64) -> (Span, u64) {
    let whole = u128::from(super::SHARE_WHOLE);
    let Some(parts) = Some(u128::from(share.parts_per_million())).filter(|&p| p > 0) else {
        return (Span(u64::MAX), 0);
    };
    let wide = u128::from(delta.0) * whole + u128::from(remainder);
    (
        Span(super::quota::narrow(wide / parts)),
        super::quota::narrow(wide % parts),
    )
}
