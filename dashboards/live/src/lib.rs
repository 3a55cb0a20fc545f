//! The live page (`/live/`): functions with their state, attainment and queue by slack; slots as a map of the last five
//! minutes; events.
//!
//! | module | content |
//! |---|---|
//! | [`answers`] | answers of role `data` and agents to queries |
//! | [`board`] | the combination of these answers into a state |
//! | [`state`] | the state shown by the page, as served by `/live/state` and `/live/stream` |
//! | [`page`] | requests of browsers: files, state, stream, and refusals |
//! | [`server`] | an HTTP server on loopback |
//!
//! Bounds: files of 60 KiB in all; [`page::READERS_MAX`] streams; one event a second; 500 functions, 256 slots and 200
//! events in a state, which has the numbers of omitted ones.
//!
//! Deliberately absent: history beyond what the page holds, and requests which change anything. Start reading in [`board`].

pub mod answers;
mod attainment;
pub mod board;
pub mod page;
pub mod server;
pub mod state;
