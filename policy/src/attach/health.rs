//! Whether a pod that could own functions answers probes.

/// Number of probes missed in a row after which a pod is given up.
pub const MISSES_MAX: u32 = 2;

/// Results of the probes of a pod. A pod that was never probed counts as one that does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    has_answered: bool,
    missed: u32,
}

impl Health {
    /// Records the result of a probe.
    pub const fn probed(&mut self, is_answered: bool) {
        if is_answered {
            *self = Self {
                has_answered: true,
                missed: 0,
            };
        } else {
            self.missed = self.missed.saturating_add(1);
            self.has_answered = self.has_answered && self.missed < MISSES_MAX;
        }
    }

    /// Returns whether the pod is considered to answer.
    #[must_use]
    pub const fn is_good(self) -> bool {
        self.has_answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_has_answered_may_miss_one_probe() {
        let mut health = Health::default();
        let mut after = |is_answered| {
            health.probed(is_answered);
            health.is_good()
        };
        assert!(!after(false));
        assert!(after(true));
        assert!(after(false));
        assert!(after(true));
        assert!(after(false));
        assert!(!after(false));
        assert!(!after(false));
        assert!(after(true));
    }
}
