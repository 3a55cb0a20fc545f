//! Whether a pod that could own functions answers.

/// A pod that has left so many probes in a row without an answer is given up.
pub const MISSES_MAX: u32 = 2;

/// What probes have shown of a pod. One that was never probed is not known to answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    has_answered: bool,
    missed: u32,
}

impl Health {
    /// Takes the outcome of a probe.
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

    /// Whether it is taken to answer.
    #[must_use]
    pub const fn is_good(self) -> bool {
        self.has_answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_missed_probe_is_forgiven_to_a_pod_that_has_answered() {
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
