//! HTTP transport of Weir's proxies, queue-proxy and activator-ext.
//!
//! [`connection`] serves a client connection and passes its requests to a [`connection::Handler`]; [`forward`] sends a
//! request to an [`upstream`] and returns the answer through [`relay`]. This crate makes no scheduling decisions and does
//! not know about pods: each program defines what a request holds at its upstream as a [`relay::UpstreamSlot`].
//!
//! Deliberately absent: a pool of connections with tasks of its own (see [`upstream`]), and retries beyond the one that RFC 9110 §9.2.2
//! allows. Start reading in [`forward`].
#![forbid(unsafe_code)]

pub mod attainment;
pub mod autoscaler;
pub mod body;
pub mod buffered;
pub mod client_body;
pub mod client_tls;
pub mod clock;
pub mod connection;
pub mod deadline;
pub mod env;
pub mod exchange;
pub mod forward;
mod frames;
mod framing;
mod go_json;
pub mod handover;
pub mod headers;
pub mod instruments;
pub mod io;
pub mod lease_wait;
pub mod limits;
pub mod lines;
pub mod listen;
pub mod malformed;
pub mod missed;
pub mod observability;
pub mod outage;
pub mod outcome;
pub mod process;
pub mod process_log;
pub mod process_metrics;
pub mod profiling;
pub mod relay;
pub mod request_log;
pub mod respond;
mod retry;
pub mod scrape;
pub mod server_timing;
pub mod settings;
pub mod socket;
pub mod telemetry;
pub mod template;
pub mod timeouts;
pub mod tls;
pub mod traces;
pub mod tunnel;
pub mod upstream;
pub mod waiters;
pub mod wire;
pub mod workers;
