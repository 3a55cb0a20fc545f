//! Waiting for a condition of another thread or process.

use std::time::{Duration, Instant};

/// Time after which a condition counts as never met. It ends a test which hangs, and measures nothing.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Time between two evaluations.
const PAUSE: Duration = Duration::from_millis(2);

/// Result of evaluating a condition.
pub trait Condition {
    /// Value of a condition which holds.
    type Value;

    /// Returns the value if the condition holds.
    fn value(self) -> Option<Self::Value>;
}

impl Condition for bool {
    type Value = ();

    fn value(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Condition for Option<T> {
    type Value = T;

    fn value(self) -> Self {
        self
    }
}

/// Blocks until a condition holds and returns its value.
///
/// # Panics
///
/// If it does not hold within [`PATIENCE`]; `description` is then in the message.
pub fn until<C: Condition>(description: &str, mut condition: impl FnMut() -> C) -> C::Value {
    let begin = Instant::now();
    loop {
        if let Some(value) = condition().value() {
            return value;
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "not within {PATIENCE:?}: {description}"
        );
        std::thread::park_timeout(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_the_value_once_there_is_one() {
        let mut evaluations = 0;
        let value = until("the third evaluation", || {
            evaluations += 1;
            (evaluations == 3).then_some("value")
        });
        assert_eq!(value, "value");
    }
}
