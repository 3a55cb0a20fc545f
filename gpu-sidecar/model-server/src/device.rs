//! Devices that compute batches: the GPU, or the CPU, which waits for their time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::blocks::layout;
use crate::checksum::{CheckedBlocks, word};
use crate::failure::Failure;
use crate::gpu;
use crate::models::Model;
use crate::plan::Plan;
use crate::request::Request;
use crate::settings::{Device, Settings};

/// A batch to compute.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) members: &'a [Request],
    pub(crate) checked: CheckedBlocks,
    /// Whether progress is reported after each step.
    pub(crate) is_streamed: bool,
}

/// Result of a batch.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// `weir_hash` of each member's input.
    pub(crate) inputs: Vec<u64>,
    /// Number and `weir_hash` of each checked block.
    pub(crate) blocks: Vec<(usize, u64)>,
    /// Whether the lane's state was what the batch before had written.
    pub(crate) is_state_right: bool,
    /// Time from the start of the first kernel to the end of the last one.
    pub(crate) took: Duration,
}

/// A device with the model's weights.
#[derive(Debug)]
pub(crate) enum LoadedModel {
    Cpu(Arc<Vec<Vec<u32>>>),
    Gpu(Arc<gpu::Gpu>),
}

/// A lane, which computes one batch at a time on its own thread.
#[derive(Debug)]
pub(crate) enum Lane {
    Cpu {
        weights: Arc<Vec<Vec<u32>>>,
        input_words: u64,
    },
    Gpu(Box<gpu::Lane>),
}

impl LoadedModel {
    /// Opens the device and loads the model's weights.
    pub(crate) fn load(settings: &Settings) -> Result<Self, Failure> {
        let (model, scale) = (&settings.planner.model, settings.bytes_scale);
        match settings.device {
            Device::Cpu => Ok(Self::Cpu(Arc::new(host_weights(model, scale)))),
            Device::Gpu(ordinal) => {
                let gpu = gpu::Gpu::load(ordinal, model, scale, settings.touch)?;
                Ok(Self::Gpu(Arc::new(gpu)))
            }
        }
    }

    /// Creates a further lane.
    pub(crate) fn lane(&self, settings: &Settings) -> Result<Lane, Failure> {
        let (model, scale) = (&settings.planner.model, settings.bytes_scale);
        match self {
            Self::Cpu(weights) => Ok(Lane::Cpu {
                weights: Arc::clone(weights),
                input_words: model.input_words(scale),
            }),
            Self::Gpu(gpu) => {
                let sizes = gpu::Sizes {
                    batch: settings.batch,
                    input_words: model.input_words(scale),
                    output_words: model.output_words(scale),
                    checked: settings.check.min(gpu.block_count()),
                    change: settings.change,
                    scale,
                };
                let lane = gpu::Lane::new(gpu, model, sizes)?;
                Ok(Lane::Gpu(Box::new(lane)))
            }
        }
    }

    /// Returns the device's name, or `cpu`.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Cpu(_) => "cpu",
            Self::Gpu(gpu) => gpu.name(),
        }
    }
}

impl Lane {
    /// Computes a batch. If it is streamed, `progress` is called after each step with the number of completed steps.
    pub(crate) fn run(
        &mut self,
        batch: &Batch<'_>,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Outcome, Failure> {
        match self {
            Self::Cpu {
                weights,
                input_words,
            } => Ok(wait(weights, *input_words, batch, progress)),
            Self::Gpu(lane) => lane.run(batch, progress),
        }
    }

    /// Returns the number of blocks of weights which are not at their addresses, as the driver reports.
    pub(crate) fn moved_blocks(&self) -> u64 {
        match self {
            Self::Cpu { .. } => 0,
            Self::Gpu(lane) => lane.moved_blocks(),
        }
    }

    /// A tiny kernel and a copy.
    pub(crate) fn probe(&mut self) -> Result<(), Failure> {
        match self {
            Self::Cpu { .. } => Ok(()),
            Self::Gpu(lane) => lane.probe(),
        }
    }
}

fn host_weights(model: &Model, scale: u64) -> Vec<Vec<u32>> {
    let seed = model.seed();
    let blocks = layout(model.weights_bytes, scale);
    let words = |first: u64, count: u64| (first..first + count).map(|at| word(seed, at)).collect();
    blocks
        .iter()
        .map(|block| words(block.first_word, block.used / 4))
        .collect()
}

/// Computes a batch on the CPU: hashes inputs and weights, and waits until the kernels would have ended.
fn wait(
    weights: &[Vec<u32>],
    input_words: u64,
    batch: &Batch<'_>,
    progress: &mut dyn FnMut(usize),
) -> Outcome {
    let begin = Instant::now();
    let mut inputs = Vec::with_capacity(batch.members.len());
    for member in batch.members {
        let input: Vec<u32> = (0..input_words).map(|at| word(member.seed, at)).collect();
        inputs.push(kernels::effect::hash(0, &input));
    }
    let numbers = batch.checked.numbers(weights.len());
    let blocks = numbers
        .map(|number| (number, kernels::effect::hash(0, &weights[number])))
        .collect();
    let mut due = Duration::ZERO;
    for (step, kernels) in batch.plan.kernels().enumerate() {
        due += Duration::from_nanos(kernels.iter().sum());
        #[expect(
            clippy::disallowed_methods,
            reason = "a worker's own thread, without other work"
        )]
        std::thread::sleep(due.saturating_sub(begin.elapsed()));
        if batch.is_streamed {
            progress(step + 1);
        }
    }
    Outcome {
        inputs,
        blocks,
        is_state_right: true,
        took: begin.elapsed(),
    }
}
