//! Protocol between softgpu's server and its clients.
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | the file that lists the GPUs |
//! | [`identity`] | names and UUIDs of GPUs and slices |
//! | [`softgpu_dir`] | the folder of a software GPU, and how its server is found or started |
//! | [`message`] | requests over a Unix socket: everything that needs an answer |
//! | [`graph`] | encoding of graphs' nodes |
//! | [`ledger`] | the file of resources held over time, by process |
//! | [`page`] | memory that a client shares with the server: commands one way, completions the other |
//! | [`record`] | encoding of the commands in that memory |
//! | [`clock`] | the clock of all timestamps |
#![deny(unsafe_code)]

pub mod clock;
pub mod config;
pub mod graph;
pub mod identity;
pub mod ledger;
pub mod message;
pub mod page;
pub mod record;
pub mod softgpu_dir;
