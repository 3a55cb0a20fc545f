//! Graphs: captured from streams or built by explicit calls, instantiated, launched.
//!
//! | module | contents |
//! |---|---|
//! | [`nodes`] | graphs, their nodes and edges |
//! | [`parameters`] | nodes' parameters as the interface's structures |
//! | [`build`] | graphs built by explicit calls |
//! | [`capture`] | graphs captured from streams |
//! | [`plan`] | a graph as commands for the server |
//! | [`exec`] | executable graphs: instantiation, launch, update |
//! | [`program`] | effects of a launch on memory |
//! | [`objects`] | user objects bound to the lifetime of graphs |
//! | [`dot`] | graphs in Graphviz's format |
//! | [`memory`] | attributes of graphs' memory, all 0 |

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
