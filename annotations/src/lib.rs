//! Weir's annotations, `weir.dev/…`, on a revision's template: every key with its type, its range, its conflicts with
//! other keys, and its error messages (contracts §1).
//!
//! [`Settings`] holds the parsed values. There are two ways to parse them. *Lenient* parsing ([`LenientSettings`])
//! keeps the default of each invalid value, and is meant for programs that serve an existing pod. *Strict* parsing
//! ([`read_strictly`]) rejects all annotations if one is invalid, and is meant for admission; [`review`](mod@review)
//! reports the errors per key. [`podinfo`] parses the annotations file that the kubelet's downward API writes.
//!
//! Deliberately absent: access to a cluster; callers bring annotations as text. Start reading in [`Settings`].
#![forbid(unsafe_code)]

mod contradiction;
mod keys;
mod lenient;
mod limits;
pub mod podinfo;
pub mod review;
mod settings;
mod strict;
pub mod template;
pub mod values;

pub use contradiction::Contradiction;
pub use keys::{KEYS, Key, PREFIX, Part, variable};
pub use lenient::LenientSettings;
pub use limits::{
    BUFFERED_BYTES_MAX, HEAD_BYTES_MAX, HEAD_LINES_MAX, HEAD_TIME_MAX, Limits, STREAMS_MAX,
};
pub use settings::{
    Evict, Isolation, KEEP_ALIVE_DEFAULT, Late, MidStreamTimeout, QUEUE_DEPTH_MAX,
    SLO_PERCENTILE_DEFAULT, SettingError, Settings, TrustBudget, Variant,
};
pub use strict::{PROBLEMS_MAX, read_strictly};
pub use units::{SHARE_WHOLE, SM_WHOLE};
