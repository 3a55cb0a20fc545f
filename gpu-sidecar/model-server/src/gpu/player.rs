//! Launches of a plan, repeated or as a graph, for `model-server load`.

use std::sync::Arc;

use cudarc::driver::{result, sys};
use kernels::Launch;

use super::handles::{Context, Event, Stream, check};
use super::{Gpu, SPIN_BLOCKS, SPIN_THREADS};
use crate::failure::Failure;

/// A stream of kernels and graphs without data, for the load generator.
#[derive(Debug)]
pub(crate) struct Player {
    // Dropped in this order.
    graph: Option<Graph>,
    marks: [Event; 2],
    stream: Stream,
    gpu: Gpu,
}

impl Player {
    pub(crate) fn new(gpu: Gpu) -> Result<Self, Failure> {
        let context = &gpu.context;
        context.bind()?;
        Ok(Self {
            graph: None,
            marks: [Event::new(context)?, Event::new(context)?],
            stream: Stream::new(context)?,
            gpu,
        })
    }

    /// Launches a kernel that occupies all SMs.
    pub(crate) fn launch(&self, spin: &Launch) -> Result<(), Failure> {
        let gpu = &self.gpu;
        self.stream
            .launch(gpu.spin, spin, SPIN_BLOCKS, SPIN_THREADS)
    }

    /// Captures these kernels, in sequence, as the graph.
    pub(crate) fn record(&mut self, spins: &[Launch]) -> Result<(), Failure> {
        use sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as OWN_THREAD;
        let raw = self.stream.raw;
        // SAFETY: the stream exists, and this thread captures nothing else.
        let begun = unsafe { result::stream::begin_capture(raw, OWN_THREAD) };
        check("cuStreamBeginCapture", begun)?;
        let recorded = spins.iter().try_for_each(|spin| self.launch(spin));
        // SAFETY: the stream exists and is capturing.
        let ended = unsafe { result::stream::end_capture(raw) };
        let graph = check("cuStreamEndCapture", ended)?;
        let none = sys::CUgraphInstantiate_flags(0);
        // SAFETY: the driver has just returned the graph.
        let instance = unsafe { result::graph::instantiate(graph, none) };
        // SAFETY: as above, and the graph is not used again: only its instance is launched.
        let destroyed = unsafe { result::graph::destroy(graph) };
        let raw = check("cuGraphInstantiateWithFlags", instance)?;
        self.graph = Some(Graph {
            context: Arc::clone(&self.gpu.context),
            raw,
        });
        check("cuGraphDestroy", destroyed).and(recorded)
    }

    /// Launches the captured graph.
    pub(crate) fn launch_graph(&self) -> Result<(), Failure> {
        let Some(graph) = &self.graph else {
            return Ok(());
        };
        // SAFETY: both exist until they are dropped.
        let launched = unsafe { result::graph::launch(graph.raw, self.stream.raw) };
        check("cuGraphLaunch", launched)
    }

    /// Records an event after everything launched until now; there are two events, used in turn.
    pub(crate) fn mark(&self, number: usize) -> Result<(), Failure> {
        self.marks[number % 2].record(&self.stream)
    }

    /// Blocks until everything launched before a mark is done.
    pub(crate) fn await_mark(&self, number: usize) -> Result<(), Failure> {
        self.marks[number % 2].synchronize()
    }
}

/// An instantiated graph, ready to launch.
#[derive(Debug)]
struct Graph {
    context: Arc<Context>,
    raw: sys::CUgraphExec,
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: instantiated once, by `Player::record`.
            let _destroyed = unsafe { result::graph::exec_destroy(self.raw) };
        }
    }
}
