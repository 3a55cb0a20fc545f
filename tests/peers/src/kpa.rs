//! Knative's decision on the number of pods of a revision (`pkg/autoscaler/scaling`), from reports each second.
//!
//! Desired = ceil(mean ÷ target), over a stable and over a panic window. Panic begins when the panic window requires twice the
//! ready pods, lasts until a stable window has passed without reason for it, and never scales down.

use std::collections::VecDeque;

/// Ratio of desired to ready pods at which panic begins.
const PANIC_RATIO: f64 = 2.0;
/// Largest factor of growth, and of shrinking, in one decision.
const GROWTH_MAX: f64 = 1_000.0;
const SHRINK_MAX: f64 = 2.0;

/// Decider of one revision.
#[derive(Debug, Clone)]
pub struct Kpa {
    /// Target concurrency of a pod, with the target utilization; above zero.
    target: f64,
    stable: usize,
    panic: usize,
    /// Sums of each second, the newest last, at most as many as the stable window has seconds.
    buckets: VecDeque<f64>,
    /// Seconds since there was reason for panic, and the most pods desired during it.
    panicking: Option<(usize, u32)>,
}

impl Kpa {
    /// Returns a decider with windows of `stable` and `panic` seconds.
    #[must_use]
    pub const fn new(target: f64, stable: usize, panic: usize) -> Self {
        Self {
            target,
            stable,
            panic,
            buckets: VecDeque::new(),
            panicking: None,
        }
    }

    /// Records the concurrency reported for a second.
    pub fn record(&mut self, concurrency: f64) {
        self.buckets.push_back(concurrency);
        if self.buckets.len() > self.stable {
            self.buckets.pop_front();
        }
        if let Some((since, _)) = &mut self.panicking {
            *since += 1;
        }
    }

    /// Returns the desired number of pods while `ready` are ready; `None` before the first report.
    pub fn decide(&mut self, ready: u32) -> Option<u32> {
        let stable = self.wanted(self.stable)?;
        let panic = self.wanted(self.panic)?;
        let has = f64::from(ready.max(1));
        let bounded = |pods: f64| pods.min(has * GROWTH_MAX).max((has / SHRINK_MAX).floor());
        let count = |pods: f64| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "whole and not negative"
            )]
            let count = pods as u32;
            count
        };
        if panic / has >= PANIC_RATIO {
            let most = self.panicking.map_or(0, |(_, most)| most);
            self.panicking = Some((0, most));
        } else if self.panicking.is_some_and(|(since, _)| since > self.stable) {
            self.panicking = None;
        }
        Some(match &mut self.panicking {
            Some((_, most)) => {
                *most = (*most).max(count(bounded(panic))).max(ready);
                *most
            }
            None => count(if stable == 0.0 && ready <= 1 {
                0.0
            } else {
                bounded(stable)
            }),
        })
    }

    /// Returns the desired pods by the mean of the last `window` seconds, rounded up.
    fn wanted(&self, window: usize) -> Option<f64> {
        let taken = self.buckets.iter().rev().take(window);
        #[expect(clippy::cast_precision_loss, reason = "seconds of a window")]
        let length = taken.len() as f64;
        (length > 0.0).then(|| (taken.sum::<f64>() / length / self.target).ceil())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_load_needs_its_mean_divided_by_the_target() {
        let mut kpa = Kpa::new(0.7, 60, 6);
        assert_eq!(kpa.decide(1), None);
        for _ in 0..60 {
            kpa.record(3.0);
        }
        // From one pod this is panic, with the same result.
        assert_eq!(kpa.decide(1), Some(5));
        assert_eq!(kpa.clone().decide(5), Some(5));
    }

    #[test]
    fn a_burst_panics_and_holds_until_a_stable_window_has_passed() {
        let mut kpa = Kpa::new(1.0, 10, 2);
        for _ in 0..10 {
            kpa.record(1.0);
        }
        assert_eq!(kpa.decide(1), Some(1));
        kpa.record(20.0);
        kpa.record(20.0);
        assert_eq!(kpa.decide(1), Some(20));
        for _ in 0..10 {
            kpa.record(0.0);
            assert_eq!(kpa.decide(20), Some(20));
        }
        kpa.record(0.0);
        // Shrinks to half at a time.
        assert_eq!(kpa.decide(20), Some(10));
        assert_eq!(kpa.decide(1), Some(0));
    }
}
