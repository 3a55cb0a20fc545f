//! `libcuda.so.1` over softgpu: the CUDA driver API for programs on a machine without a GPU.
//!
//! Time is the server's: a launch is a record in a ring, and the server computes when it starts and ends. The effects
//! of copies and kernels on memory are performed in this process, in the order in which the commands end, before any
//! wait for them returns.
//!
//! | module | contents |
//! |---|---|
//! | `driver` | the connection to the server, the lock, waiting |
//! | `state`, `table` | objects of the process and their handles |
//! | `context`, `stream`, `event` | the objects of the same names |
//! | `work`, `effects`, `hashes` | work of streams, and its effects on memory |
//! | `memory`, `vmm`, `host`, `pool`, `ipc` | the kinds of memory |
//! | `copy`, `launch`, `module`, `graph` | copies, launches, code, graphs |
//! | `image`, `refusal` | formats of code images, and messages about refused ones |
//! | `device`, `visible`, `mps`, `checkpoint` | devices and their visibility, MPS, checkpoints |
//! | `export`, `resolver` | exported symbols, and `cuGetProcAddress` |
//! | `calls`, `host_time` | record of the calls; time that calls take |
//! | `error`, `pointer` | results and callers' pointers |

mod calls;
pub(crate) mod checkpoint;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod driver;
pub(crate) mod effects;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod export;
pub(crate) mod graph;
mod hashes;
pub(crate) mod host;
mod host_time;
pub(crate) mod image;
pub(crate) mod ipc;
pub(crate) mod launch;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod mps;
pub(crate) mod occupancy;
mod pointer;
pub(crate) mod pool;
pub(crate) mod refusal;
pub(crate) mod resolver;
pub(crate) mod state;
pub(crate) mod stream;
pub(crate) mod table;
mod tensor_map;
pub(crate) mod visible;
pub(crate) mod vmm;
pub(crate) mod work;
