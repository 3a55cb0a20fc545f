//! The limit of one pod: a debt that is never forgiven, and an exact sliding horizon.
//!
//! The debt is kept as a point in time: usage moves it ahead by usage ÷ limit, real time catches up with
//! it, and it never lags by more than the window (the most that can be saved up). Whoever is ahead of real
//! time has used more than its limit. Unlike M4.7's window the debt has no cap and survives everything: a
//! kernel of 5 s at limit 0.1 holds its pod for about 50 s.
//!
//! The debt alone would allow limit × (10 s + window) in some 10 s. So the usage of the last horizon is
//! kept as well, in [`BUCKETS`] parts. Of what it may hold, a reserve is left for work that is in flight at a close.
//!
//! A pod that the horizon has shut is shut in the same way one horizon later, and again: it may use what leaves the horizon, and no
//! more. So the debt is paid back at a rate a little below the limit, at which the horizon of a pod that always wants more rarely
//! fills, and shuts it for no longer than its debt does.

use super::{Settings, Share};
use crate::{Span, Time};

/// Parts of the horizon that are told apart. Within a part usage counts as if it were as late as it can
/// be, so the answer is never too low, and at most limit × one part too high.
const BUCKETS: usize = 256;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Limit {
    terms: Terms,
    window: Span,
    /// Real time when nothing is owed or saved.
    even_at: Time,
    /// What a division left over, in parts of a nanosecond.
    remainder: u64,
    recent: Recent,
}

/// What follows from a share and the settings.
#[derive(Clone, Copy, Debug)]
struct Terms {
    share: Share,
    /// At which the debt is paid back: the share, less the reserve and half a turn (what is used after a pause) per horizon.
    /// Depending on where it cuts, a horizon holds up to one turn more than the rate says. With half of one no pause is longer than
    /// usual, whatever the length of kernels (20 µs to 50 ms were tried); the other half would cost as much again: with horizons
    /// of 10 s and cycles of 100 ms half a per cent of the limit, more at limits below 5 %.
    rate: Share,
    /// A pod that was shut for its debt accrues credit for so long: a token has to be worth its hand-over.
    pause: Span,
    /// What the horizon has to have room for, when a pod that was shut by it may go on.
    least: Span,
    /// What the horizon allows, with the reserve kept.
    allowed: Span,
}

/// How much was used when, over the last horizon.
#[derive(Clone, Debug)]
pub(super) struct Recent {
    horizon: Span,
    width: u64,
    /// The bucket of a point in time is at `number % len`; one more than [`BUCKETS`], for the two that
    /// the horizon cuts.
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

    /// When usage of bucket `number` is over at the latest.
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

    /// Adds usage that has just become known: it lies as late as there is room for it, and what lies
    /// before the horizon is dropped.
    pub(super) fn add(&mut self, now: Time, delta: Span) {
        self.advance(now);
        let mut left = delta.0;
        let mut number = self.newest;
        let oldest = self.oldest();
        while left > 0 {
            let slot = self.slot(number);
            // The newest bucket has not passed yet.
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

    /// Usage over the horizon that ends now.
    pub(super) fn used(&mut self, now: Time) -> Span {
        self.advance(now);
        let from = now.before(self.horizon);
        if now.0 < self.horizon.0 {
            return Span(self.sum);
        }
        // Only the oldest one or two are cut.
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

    /// When usage over the horizon will have fallen to `allowed`, if none is added.
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
        // With more a pod could not begin: it has less after its shortest pause.
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
            // More than is taken for none left.
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
            // Enough to begin at once; what it could save up otherwise, each new pod would have for nothing.
            even_at: now.before(settings.cycle),
            remainder: 0,
            recent: Recent::new(now, settings.horizon),
        }
    }

    /// Another limit from now on. What is owed or saved stays the same in time of the GPU.
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

    /// What is not yet paid back.
    pub(super) fn debt(&self, now: Time) -> Span {
        self.terms.rate.of(self.even_at.since(now))
    }

    /// The pod has used this much more.
    pub(super) fn charge(&mut self, now: Time, delta: Span) {
        self.recent.add(now, delta);
        // While it ran it did not save up.
        self.cap(now.before(delta));
        let (by, remainder) = ahead_by(self.terms.rate, delta, self.remainder);
        self.even_at = self.even_at.after(by);
        self.remainder = remainder;
    }

    /// From when on the pod may run again: not at the first nanosecond of credit.
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

    /// Until when a holder may run without a break, if it has run since `since` already and that time is
    /// not charged yet. `slack` before the horizon is full counts as full: it is crept up to.
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
        // Credit at `since`, then used at rate 1 and accrued at its own.
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

/// By how much usage moves an account that runs at `share`, and the rest of the division, to be given
/// with the next.
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
