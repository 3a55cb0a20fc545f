//! The live page (`/live/`): functions with their state, attainment and queue by slack; slots as a map of the last five minutes; events.
//!
//! | module | |
//! |---|---|
//! | [`answers`] | what role `data` and agents answer when they are asked |
//! | [`board`] | these answers put together, with what is remembered of earlier ones |
//! | [`state`] | what the page shows, as `/live/state` and `/live/stream` have it |
//! | [`page`] | requests of browsers: files, state, stream, and what is refused |
//! | [`server`] | a server on loopback |
//!
//! Bounds: files of 60 KiB in all; [`page::READERS_MAX`] streams; one event a second; 500 functions, 256 slots and 200 events in a state,
//! which says how many it leaves out.

pub mod answers;
mod attainment;
pub mod board;
pub mod page;
pub mod server;
pub mod state;
