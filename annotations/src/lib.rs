//! The annotations of Weir, `weir.dev/…`, on a revision's template: every key with its type, its range, what it
//! contradicts, and the sentence that says so (design 4.1).
//!
//! [`Settings`] is what they ask for. Two readings fill it. The *lenient* one ([`LenientSettings`])
//! keeps the default of whatever cannot be used, and is for a program that serves a pod
//! which is there already. The *strict* one ([`read_strictly`]) refuses all of them, and is for whoever admits a pod; [`review`](mod@review) says it key by key.
//! [`podinfo`] reads the file in which the kubelet's downward API passes them on.
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
    ALL_HUNDREDTHS, ALL_PPM, Evict, Isolation, KEEP_ALIVE_DEFAULT, Late, MidStreamTimeout,
    QUEUE_DEPTH_MAX, SLO_PERCENTILE_DEFAULT, SettingError, Settings, TrustBudget, Variant,
};
pub use strict::{PROBLEMS_MAX, read_strictly};
