//! A small HTTP inference server: it loads a model's weights into GPU memory, and for each request copies an input, launches
//! the model's kernels in order through the CUDA driver, and copies the output back. The same program runs on a real GPU, on a
//! software GPU behind the same library, and without any GPU, where it waits for the service time.
//!
//! | path | response |
//! |---|---|
//! | `POST /infer` | 200 after the computation. Request body: `{"input": n, "output": n}`, whole numbers, optionally with `"seed": n` and `"stream": true`. Response body: the model's name, a checksum of input and weights, the checked blocks of the weights, the batch size, the GPU time in ms, the server's `pid`, and `read_ns` and `answered_ns`, the times on `CLOCK_MONOTONIC` at which the request was read and its answer made |
//! | | 400 for an invalid body, 500 with the error's name when the driver fails, 503 while the weights are loaded or when too many requests wait |
//! | `GET /ready` | 200 once the weights are loaded, 503 before and after the device has failed |
//! | `GET /health` | 200; 500 after a failure that only a restart of the process resolves. Does not use the GPU |
//! | `GET /health?gpu=1` | the same after a tiny kernel and a copy, which run before all waiting requests |
//! | `GET /served` | number of requests served completely |
//! | `GET /stats` | JSON: requests, batches, errors, bytes of weights, seconds of the load, device, GPU time in ms |
//! | `GET /checksum?first=N&count=N&seed=N` | the expected checksum of an answer that checked these blocks, for a request with this seed |
//!
//! A streamed answer is one line of JSON per unit of output as it is computed, followed by the answer above. A failure in
//! between closes the connection.
//!
//! Settings are options or environment variables, all in the module `settings`; [`main`] reads only the variables. The models
//! are in [`models`], the blocks of weights in [`blocks`], the checksum in [`checksum`].
//!
//! A started computation runs to its end, even if the client has disconnected: a GPU cannot be interrupted. Waiting requests of
//! disconnected clients are skipped. SIGTERM and SIGINT stop the server: it accepts no more connections and finishes waiting
//! and running requests, for at most the time of `--drain`.
//!
//! `model-server load …` is not a server: it keeps the GPU busy as configured, see [`load`].
//!
//! Exit codes: 0 after a signal; 1 for a port in use, a missing library or a failed load; 2 for an invalid option or variable.
#![deny(unsafe_code)]

pub mod blocks;
pub mod checksum;
pub mod load;
pub mod models;

mod cost;
mod device;
mod failure;
#[expect(unsafe_code, reason = "calls the driver's C library")]
mod gpu;
mod http;
mod plan;
mod queue;
mod request;
mod run;
mod server;
mod settings;
mod touch;
mod units;

pub use checksum::expected_checksum;
pub use cost::{Cost, Work};
pub use models::Model;
pub use run::{main, main_with_arguments};
pub use units::bytes;
