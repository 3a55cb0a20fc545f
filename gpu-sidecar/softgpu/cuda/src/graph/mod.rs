//! Graphs: captured from streams or built by hand, instantiated, launched.
//!
//! | module | what |
//! |---|---|
//! | [`nodes`] | graphs, their nodes, and which wait for which |
//! | [`parameters`] | what nodes do, as the interface says it |
//! | [`build`] | graphs built by hand |
//! | [`capture`] | graphs made of what streams are told |
//! | [`plan`] | a graph as commands for the server |
//! | [`exec`] | instantiating, launching, changing what is launched |
//! | [`program`] | what a launch does to memory |
//! | [`objects`] | what programs bind to the life of graphs |
//! | [`dot`] | graphs as pictures |
//! | [`memory`] | the memory of graphs, of which there is none |

pub(crate) mod build;
pub(crate) mod capture;
pub(crate) mod dot;
pub(crate) mod exchange;
pub(crate) mod exec;
pub(crate) mod memory;
pub(crate) mod nodes;
pub(crate) mod objects;
pub(crate) mod parameters;
mod plan;
mod program;

pub(crate) use capture::{
    Capture, capture_of, capture_record, capture_wait, capture_work, forget_stream, invalidate,
    invalidate_all, invalidate_capture, is_capturing_blocking, is_capturing_globally, join, record,
    refuse_captured, refuse_while_capturing,
};
pub(crate) use exec::{Exec, forget_context};
pub(crate) use nodes::Graph;
pub(crate) use program::Program;
