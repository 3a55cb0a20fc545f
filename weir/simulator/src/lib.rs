//! Weir's decisions in virtual time.
//!
//! The [`policy`] crate decides; this crate has what policy does not know: requests that arrive, time that passes,
//! devices that are busy. The same scenario and seed give the same result on every machine.
//!
//! | module | what |
//! |---|---|
//! | [`agenda`] | events in the order of time |
//! | [`random`] | random numbers in streams of their own |
#![forbid(unsafe_code)]

pub mod agenda;
pub mod random;
