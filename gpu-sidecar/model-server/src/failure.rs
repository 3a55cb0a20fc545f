//! Failures of a device.

/// Failure of a request, a check or the load.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// A driver call failed.
    #[error("{call}: {name}")]
    Cuda {
        /// Name of the driver function.
        call: &'static str,
        /// Name of the error, such as `CUDA_ERROR_OUT_OF_MEMORY`.
        name: String,
        /// Whether all later calls fail as well, until the process is restarted.
        is_sticky: bool,
    },
    /// The driver's library is missing or incomplete.
    #[error("{0}")]
    Library(String),
    /// An answer read back differs from the written one.
    #[error(
        "corrupt answer of request {member} of the batch: word {word} is {found:#x}, expected {written:#x}"
    )]
    Answer {
        /// Index of the request in its batch.
        member: usize,
        /// Index of the word in the answer.
        word: usize,
        /// Word that was read back.
        found: u32,
        /// Word that was written.
        written: u32,
    },
    /// A worker thread has ended.
    #[error("the worker has ended")]
    Worker,
}

impl Failure {
    /// Returns whether the server cannot continue after this failure.
    pub(crate) const fn is_final(&self) -> bool {
        match self {
            Self::Cuda { is_sticky, .. } => *is_sticky,
            Self::Library(_) | Self::Worker => true,
            Self::Answer { .. } => false,
        }
    }
}
