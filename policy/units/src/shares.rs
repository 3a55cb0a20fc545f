//! The whole of which shares are parts.

/// All of the time: shares of wall time are in millionths of it.
pub const SHARE_WHOLE: u32 = 1_000_000;

/// All SMs of a GPU or slice: shares of SMs are in hundredths of a percent of them.
pub const SM_WHOLE: u32 = 10_000;
