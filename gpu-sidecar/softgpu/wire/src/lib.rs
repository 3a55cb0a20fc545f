//! What softgpu's server and its clients say to each other.
//!
//! | module | what |
//! |---|---|
//! | [`config`] | the file that says which GPUs there are |
//! | [`identity`] | the names and UUIDs of GPUs and slices |
//! | [`place`] | the folder of a software GPU, and how its server is found or started |
//! | [`message`] | requests over a Unix socket: whatever needs an answer |
//! | [`graph`] | the nodes of graphs |
//! | [`ledger`] | the file that says who held what, when |
//! | [`page`] | memory that a client shares with the server: commands one way, completions the other |
//! | [`record`] | the commands in it |
//! | [`clock`] | the clock that all stamps are of |
#![deny(unsafe_code)]

pub mod clock;
pub mod config;
pub mod graph;
pub mod identity;
pub mod ledger;
pub mod message;
pub mod page;
pub mod place;
pub mod record;
