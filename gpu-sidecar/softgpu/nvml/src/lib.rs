//! `libnvidia-ml.so.1` over softgpu: what NVML tells of GPUs, told of a software GPU.
//!
//! What never changes comes from the folder's configuration, what does from its server (`server`); the library starts none.
//! `CUDA_VISIBLE_DEVICES` means nothing here, as it means nothing to NVML.
//!
//! | module | what |
//! |---|---|
//! | `api` | the functions, by their names |
//! | `absent` | the names of those that answer NOT_SUPPORTED whatever they are asked |
//! | `answer` | results, and the border over which no panic goes |
//! | `border` | callers' pointers |
//! | `layout` | callers' structs |
//! | `handle` | what callers hold of devices |
//! | `session` | what a process has between initialisation and shutdown |
//! | `node`, `facts`, `mig` | what never changes |
//! | `server`, `samples`, `events` | what does |
#![deny(unsafe_code)]

mod absent;
mod answer;
mod api;
mod border;
mod events;
mod facts;
mod handle;
mod layout;
mod mig;
mod node;
mod samples;
mod server;
mod session;
