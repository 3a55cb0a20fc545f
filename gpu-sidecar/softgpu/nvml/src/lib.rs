//! `libnvidia-ml.so.1` over softgpu: NVML for a software GPU.
//!
//! Constant properties come from the folder's configuration, variable ones from its server (`server`), which the
//! library never starts. `CUDA_VISIBLE_DEVICES` is ignored, as by the vendor's NVML.
//!
//! | module | contents |
//! |---|---|
//! | `api` | supported functions, by their exported names |
//! | `absent` | unsupported functions, which return NOT_SUPPORTED |
//! | `answer` | result codes, and the guard against panics |
//! | `pointer` | callers' pointers |
//! | `layout` | structs of the interface |
//! | `handle` | handles of devices, instances and event sets |
//! | `session` | state of a process between initialization and shutdown |
//! | `node`, `facts`, `mig` | constant properties |
//! | `server`, `samples`, `events` | variable state |
#![deny(unsafe_code)]

mod absent;
mod answer;
mod api;
mod events;
mod facts;
mod handle;
mod layout;
mod mig;
mod node;
mod pointer;
mod samples;
mod server;
mod session;
