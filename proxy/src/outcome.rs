//! How a request ended.

/// How a request ended, for counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Answered by the upstream, whatever it said.
    Answered,
    /// The queue was full.
    Refused,
    /// It was late, and late requests are shed.
    Shed,
    /// A timeout ended it.
    Timeout,
    /// The upstream could not be reached, or broke off.
    Failed,
    /// The client left.
    Cancelled,
    /// It could not be read.
    Malformed,
}

impl Outcome {
    /// All of them, each at the place of its number.
    pub const ALL: [Self; 7] = [
        Self::Answered,
        Self::Refused,
        Self::Shed,
        Self::Timeout,
        Self::Failed,
        Self::Cancelled,
        Self::Malformed,
    ];

    /// Returns the value of the label `outcome`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Shed => "shed",
            Self::Timeout => "timeout",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Malformed => "malformed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_stand_where_their_numbers_say() {
        for (at, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, at);
        }
    }
}
