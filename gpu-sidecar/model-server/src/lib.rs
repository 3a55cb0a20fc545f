//! A small HTTP server in the shape of an inference container: it loads a model's weights into a GPU's memory, and for
//! each request copies an input, launches the model's kernels in order through the CUDA driver, and copies the answer
//! back. The same program runs on a real GPU, on a software GPU behind the same library, and without any, where the
//! service time is waited.
//!
//! | path | answer |
//! |---|---|
//! | `POST /infer` | 200 when it is computed; body in: `{"input": n, "output": n}`, whole numbers, with `"seed": n` and `"stream": true` if wanted; out: the model's name, a checksum of input and weights, which blocks of the weights were looked at, how many requests were computed together, the GPU's ms, the server's `pid`, and `read_ns` and `answered_ns`, when the request was read and its answer made by `CLOCK_MONOTONIC` |
//! | | 400 for another body, 500 with the error's name when the driver fails, 503 while the weights are loaded, and when too many wait |
//! | `GET /ready` | 200 when the weights are there, 503 before and after the device has failed |
//! | `GET /health` | 200; 500 after a failure that only a new process ends. Does not touch the GPU |
//! | `GET /health?gpu=1` | the same after a tiny kernel and a copy, which have their turn before all requests that wait |
//! | `GET /served` | the number of requests served to the end |
//! | `GET /stats` | JSON: requests, batches, errors, bytes of weights, seconds of the load, device, the GPU's ms |
//! | `GET /checksum?first=N&count=N&seed=N` | what the checksum of an answer must be that looked at these blocks, to a request with this seed |
//!
//! A streamed answer is a line of JSON per unit of output as it is computed, then the answer above. A failure between
//! breaks the connection off.
//!
//! Settings are options or variables of the environment, all in the module `settings`; [`main`] takes the variables
//! alone. The models are in [`models`], the blocks of weights in [`blocks`], the checksum in [`checksum`].
//!
//! What has begun runs to its end, even if the client has gone: a GPU cannot be interrupted. Who has gone while it
//! waited is passed over. SIGTERM and SIGINT end the server: no new connections; what waits and runs is finished, for
//! as long as `--drain` says.
//!
//! `model-server load …` is no server: it keeps the GPU busy as told, see [`load`].
//!
//! Exit codes: 0 after a signal; 1 for a port in use, a library that is not there, a load that fails; 2 for an option
//! or a variable that cannot be used.
#![deny(unsafe_code)]

pub mod blocks;
pub mod checksum;
pub mod load;
pub mod models;

mod cost;
mod device;
mod failure;
#[expect(unsafe_code, reason = "the driver's library is C")]
mod gpu;
mod http;
mod plan;
mod queue;
mod request;
mod run;
mod server;
mod settings;
mod units;

pub use checksum::expected_checksum;
pub use cost::{Cost, Work};
pub use models::Model;
pub use run::{main, main_with_arguments};
