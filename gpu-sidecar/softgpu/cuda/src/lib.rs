//! `libcuda.so.1` over softgpu: the driver API for programs on a machine without a GPU.
//!
//! Time is the server's: a launch is a record in a ring, and when it starts and ends is computed there. What a copy or a
//! kernel does to memory is done here, in this process, in the order in which the server says that it has ended, before
//! anybody who waits for it goes on.
//!
//! | module | what |
//! |---|---|
//! | `driver` | the connection, the lock, waiting |
//! | `state`, `table` | what a process has made, and the handles of it |
//! | `context`, `stream`, `event` | the objects of the same names |
//! | `work`, `effects` | what a stream is told to do, and what that does to memory |
//! | `memory`, `vmm`, `host`, `pool`, `ipc` | memory by all its ways |
//! | `copy`, `launch`, `module`, `graph` | copies, launches, code, graphs |
//! | `image`, `refusal` | what an image of code is, and what is said where one is refused |
//! | `device`, `visible`, `mps`, `checkpoint` | what there is, what is seen of it, by which share, from outside |
//! | `export`, `resolver` | the names, and `cuGetProcAddress` |
//! | `error`, `pointer` | results and callers' pointers |

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
pub(crate) mod host;
pub(crate) mod image;
pub(crate) mod ipc;
pub(crate) mod launch;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod mps;
pub(crate) mod pointer;
pub(crate) mod pool;
pub(crate) mod refusal;
pub(crate) mod resolver;
pub(crate) mod state;
pub(crate) mod stream;
pub(crate) mod table;
pub(crate) mod visible;
pub(crate) mod vmm;
pub(crate) mod work;
