//! What can go wrong with a device.

/// A request, a check or the load did not end well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// A call of the driver.
    #[error("{call}: {name}")]
    Cuda {
        /// The function.
        call: &'static str,
        /// The error's name, as `CUDA_ERROR_OUT_OF_MEMORY`.
        name: String,
        /// Whether every call after it fails as well: only a new process helps.
        is_sticky: bool,
    },
    /// The driver's library is not there or not whole.
    #[error("{0}")]
    Library(String),
    /// An answer came back other than it was written.
    #[error(
        "the answer of request {member} of the batch came back wrong: word {word} is {found:#x}, not {written:#x}"
    )]
    Answer {
        /// Which one of its batch.
        member: usize,
        /// Which word.
        word: usize,
        /// What came back.
        found: u32,
        /// What was written.
        written: u32,
    },
    /// The thread that computes is gone.
    #[error("the worker has ended")]
    Worker,
}

impl Failure {
    /// Whether the server cannot go on.
    pub(crate) const fn is_final(&self) -> bool {
        match self {
            Self::Cuda { is_sticky, .. } => *is_sticky,
            Self::Library(_) | Self::Worker => true,
            Self::Answer { .. } => false,
        }
    }
}
