//! Outcomes of requests, as counted by metrics.

/// How a request ended, for counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The upstream answered, with whatever status.
    Answered,
    /// The request was refused because the queue was full, or because the revision went away.
    Refused,
    /// The request was late and was shed.
    Shed,
    /// A timeout ended the request.
    Timeout,
    /// The upstream could not be reached, or its answer broke off.
    Failed,
    /// The client left before the response had ended.
    Cancelled,
    /// The request could not be read.
    Malformed,
    /// The request counts at another instance of the function, which has answered it; or it came from there and was not started here.
    Forwarded,
}

impl Outcome {
    /// All outcomes, each at the index of its number.
    pub const ALL: [Self; 8] = [
        Self::Answered,
        Self::Refused,
        Self::Shed,
        Self::Timeout,
        Self::Failed,
        Self::Cancelled,
        Self::Malformed,
        Self::Forwarded,
    ];

    /// Returns the value of the metric label `outcome`.
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
            Self::Forwarded => "forwarded",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_indexed_by_their_numbers() {
        for (at, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, at);
        }
    }
}
