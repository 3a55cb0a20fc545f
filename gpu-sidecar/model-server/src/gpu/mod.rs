//! The GPU, through the CUDA driver's library: the only module with `unsafe`.
//!
//! The library is opened when a GPU is first used, as frameworks do. Device memory is allocated with `cuMemAlloc`, one call per
//! block; host memory is pinned; waits sleep instead of spinning. A batch is enqueued into its lane's stream as a whole:
//!
//! 1. every member's input, host to device;
//! 2. the sums are set to zero; the first event;
//! 3. `weir_hash` of every input and of the blocks that the batch checks, unless the plan's kernels read them;
//! 4. the plan's kernels (`weir_spin`, or `weir_layer` and `weir_hidden_layer` with `--touch`), with an event after each step if the
//!    batch is streamed;
//! 5. with `--change`, `weir_hash` and `weir_fill` of the lane's state;
//! 6. `weir_fill` of every member's answer; the last event;
//! 7. sums and answers, device to host.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::result;
use cudarc::driver::sys;
use kernels::{Busy, Kernel, Launch};

use crate::blocks::{Block, layout};
use crate::checksum::word;
use crate::device::{Batch, Outcome};
use crate::failure::Failure;
use crate::models::Model;
use crate::touch::{Touch, part};

mod handles;
mod player;
mod state;

use handles::{Context, Elapsed, Event, Function, Memory, Module, Pinned, Stream, check, library};
pub(crate) use player::Player;
use state::{Expected, State};

/// Threads per block of a spinning kernel: one or two such blocks fill an SM of any GPU.
const SPIN_THREADS: u32 = 1_024;
/// Blocks of a spinning kernel: one for each SM of any GPU, and a few more. The number reported by the driver is unsuitable: an
/// MPS client sees only the SMs of its percentage, which does not reduce a model's work.
const SPIN_BLOCKS: u32 = 160;
/// Threads per block of the other kernels.
const THREADS: u32 = 256;

/// A GPU with the kernels and a model's weights.
#[derive(Debug)]
pub(crate) struct Gpu {
    // Dropped in this order.
    blocks: Vec<(Memory, Block)>,
    /// Addresses of the blocks, where kernels read them from device memory.
    table: Option<Memory>,
    touch: Touch,
    layer: Function,
    hidden_layer: Function,
    spin: Function,
    fill: Function,
    hash: Function,
    _module: Module,
    context: Arc<Context>,
    elapsed: Elapsed,
    name: String,
    sms: u32,
}

impl Gpu {
    /// Opens the GPU of this index and loads a model's weights, sizes divided by `scale`.
    pub(crate) fn load(
        ordinal: u32,
        model: &Model,
        scale: u64,
        touch: Touch,
    ) -> Result<Self, Failure> {
        let mut gpu = Self::open(ordinal)?;
        gpu.load_weights(model.seed(), layout(model.weights_bytes, scale))?;
        gpu.touch = touch;
        if touch == Touch::Hidden && !gpu.blocks.is_empty() {
            gpu.table = Some(gpu.write_table()?);
        }
        Ok(gpu)
    }

    /// Writes the addresses of the blocks to device memory.
    fn write_table(&self) -> Result<Memory, Failure> {
        let mut staging = Pinned::new(&self.context, 2 * self.blocks.len())?;
        let words = staging.words();
        for (entry, (memory, _)) in words.chunks_exact_mut(2).zip(&self.blocks) {
            let bytes = memory.address.to_le_bytes();
            let halves = bytes.as_chunks().0;
            for (word, half) in entry.iter_mut().zip(halves) {
                *word = u32::from_le_bytes(*half);
            }
        }
        let table = Memory::new(&self.context, bytes(words.len()))?;
        let stream = Stream::new(&self.context)?;
        let copied = stream.copy_in(table.address, words);
        // Also after an error: neither memory may be freed during a copy.
        stream.synchronize().and(copied)?;
        Ok(table)
    }

    /// Opens the GPU of this index, without weights.
    pub(crate) fn open(ordinal: u32) -> Result<Self, Failure> {
        use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as SMS;
        let elapsed = library()?;
        check("cuInit", result::init())?;
        let ordinal = i32::try_from(ordinal).unwrap_or(i32::MAX);
        let device = check("cuDeviceGet", result::device::get(ordinal))?;
        let name = check("cuDeviceGetName", result::device::get_name(device))?;
        // SAFETY: the driver has returned the device.
        let sms = unsafe { result::device::get_attribute(device, SMS) };
        let sms = check("cuDeviceGetAttribute", sms)?;
        let context = Arc::new(Context::new(device)?);
        context.bind()?;
        let module = Module::new(&context)?;
        Ok(Self {
            blocks: Vec::new(),
            table: None,
            touch: Touch::None,
            layer: module.function(Kernel::Layer)?,
            hidden_layer: module.function(Kernel::HiddenLayer)?,
            spin: module.function(Kernel::Spin)?,
            fill: module.function(Kernel::Fill)?,
            hash: module.function(Kernel::Hash)?,
            _module: module,
            context,
            elapsed,
            name,
            sms: u32::try_from(sms).unwrap_or(1).max(1),
        })
    }

    fn load_weights(&mut self, seed: u64, blocks: Vec<Block>) -> Result<(), Failure> {
        let count = |block: &Block| usize::try_from(block.used / 4).unwrap_or(usize::MAX);
        let Some(longest) = blocks.iter().map(count).max() else {
            return Ok(());
        };
        let stream = Stream::new(&self.context)?;
        let mut staging = Pinned::new(&self.context, longest)?;
        for block in blocks {
            let memory = Memory::new(&self.context, block.bytes)?;
            let words = &mut staging.words()[..count(&block)];
            for (word, at) in words.iter_mut().zip(block.first_word..) {
                *word = self::word(seed, at);
            }
            let copied = stream.copy_in(memory.address, words);
            // Also after an error: neither memory may be freed during a copy.
            stream.synchronize().and(copied)?;
            self.blocks.push((memory, block));
        }
        Ok(())
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the time between two completed events.
    fn elapsed(&self, begin: &Event, end: &Event) -> Result<Duration, Failure> {
        let mut ms = 0.0_f32;
        // SAFETY: the type is the function's, the pointer is to a float, and both events exist.
        let result = unsafe { (self.elapsed)(&raw mut ms, begin.raw, end.raw) };
        check("cuEventElapsedTime", result.result())?;
        let seconds = f64::from(ms.max(0.0)) / 1e3;
        Ok(Duration::try_from_secs_f64(seconds).unwrap_or_default())
    }

    /// Returns the function and the launch of a layer that reads a block and adds its hash to the sum at `out`; or, unless `reads`, of one that has
    /// the same arguments and reads none of its words, as between the layers of a model.
    fn layer_of(&self, busy: Busy, out: u64, number: usize, reads: bool) -> (Function, Launch) {
        let (memory, block) = &self.blocks[number];
        let words = if reads { block.used / 4 } else { 0 };
        match &self.table {
            Some(table) => {
                let launch = Launch::HiddenLayer {
                    busy,
                    out,
                    table: table.address,
                    index: u64::try_from(number).unwrap_or(u64::MAX),
                    words,
                };
                (self.hidden_layer, launch)
            }
            None => {
                let launch = Launch::Layer {
                    busy,
                    out,
                    input: memory.address,
                    words,
                };
                (self.layer, launch)
            }
        }
    }

    /// Returns the number of blocks for this many words, at most eight per SM.
    fn grid(&self, words: u64) -> u32 {
        let blocks = words.div_ceil(u64::from(THREADS)).max(1);
        let most = self.sms.saturating_mul(8);
        u32::try_from(blocks).unwrap_or(most).min(most)
    }
}

/// Sizes of a lane's buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Maximum number of members of a batch.
    pub(crate) batch: usize,
    /// Words of each member's input.
    pub(crate) input_words: u64,
    /// Words of each member's answer.
    pub(crate) output_words: u64,
    /// Number of blocks that a batch checks.
    pub(crate) checked: usize,
    /// Bytes of state that a batch changes, before the division by `scale`.
    pub(crate) change: u64,
    /// Divisor of sizes.
    pub(crate) scale: u64,
}

/// A stream with its own buffers, which computes one batch at a time.
#[derive(Debug)]
pub(crate) struct Lane {
    gpu: Arc<Gpu>,
    spin: Spin,
    sizes: Sizes,
    stream: Stream,
    begin: Event,
    end: Event,
    /// Events recorded by alternating steps.
    marks: [Event; 2],
    /// Inputs of the members, consecutively.
    input: Memory,
    host_input: Pinned,
    /// The sums, then the answers of the members.
    output: Memory,
    host_output: Pinned,
    state: State,
}

/// Speed-up law and interference of the model's kernels.
#[derive(Clone, Copy, Debug)]
struct Spin {
    law: kernels::Law,
    interference_millionths: u32,
}

impl Spin {
    const fn busy(self, ns: u64) -> Busy {
        Busy {
            ns,
            law: self.law,
            interference_millionths: self.interference_millionths,
        }
    }
}

fn words(count: usize, each: u64) -> usize {
    let each = usize::try_from(each).unwrap_or(usize::MAX);
    count.saturating_mul(each)
}

fn bytes(words: usize) -> u64 {
    u64::try_from(words).unwrap_or(u64::MAX).saturating_mul(4)
}

impl Lane {
    pub(crate) fn new(gpu: &Arc<Gpu>, model: &Model, sizes: Sizes) -> Result<Self, Failure> {
        let context = &gpu.context;
        context.bind()?;
        let input_words = words(sizes.batch, sizes.input_words);
        let state = State::new(context, sizes.change, sizes.scale)?;
        let sums = sizes.batch + sizes.checked + state.len();
        let output_words = 2 * sums + words(sizes.batch, sizes.output_words);
        Ok(Self {
            gpu: Arc::clone(gpu),
            spin: Spin {
                law: model.law,
                interference_millionths: model.interference_millionths,
            },
            sizes,
            stream: Stream::new(context)?,
            begin: Event::new(context)?,
            end: Event::new(context)?,
            marks: [Event::new(context)?, Event::new(context)?],
            input: Memory::new(context, bytes(input_words))?,
            host_input: Pinned::new(context, input_words)?,
            output: Memory::new(context, bytes(output_words))?,
            host_output: Pinned::new(context, output_words)?,
            state,
        })
    }

    /// Returns the number of sums of a batch: those of inputs, of blocks and of the state. Each has two words.
    fn sums(&self) -> usize {
        self.sizes.batch + self.sizes.checked + self.state.len()
    }

    /// Computes a batch of at most `sizes.batch` members; further ones are ignored.
    pub(crate) fn run(
        &mut self,
        batch: &Batch<'_>,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Outcome, Failure> {
        self.gpu.context.bind()?;
        let members = &batch.members[..batch.members.len().min(self.sizes.batch)];
        let each = words(1, self.sizes.input_words);
        for (input, member) in self.host_input.words().chunks_exact_mut(each).zip(members) {
            for (word, at) in input.iter_mut().zip(0..) {
                *word = self::word(member.seed, at);
            }
        }
        let ran = self.enqueue(members.len(), batch, progress);
        // Also after an error: the stream may still access the buffers.
        let ran = self.stream.synchronize().and(ran);
        match ran {
            Ok(expected) => self.outcome(members.len(), batch, expected),
            Err(failure) => {
                self.state.forget();
                Err(failure)
            }
        }
    }

    fn enqueue(
        &mut self,
        members: usize,
        batch: &Batch<'_>,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Expected, Failure> {
        let sums = self.sums();
        let Self {
            gpu,
            spin,
            sizes,
            stream,
            begin,
            end,
            marks,
            input,
            host_input,
            output,
            host_output,
            state,
        } = self;
        let inputs = &host_input.words()[..words(members, sizes.input_words)];
        stream.copy_in(input.address, inputs)?;
        stream.zero(output, sums)?;
        begin.record(stream)?;

        let sum = |number: usize| output.address + bytes(2 * number);
        for member in 0..members {
            let launch = Launch::Hash {
                out: sum(member),
                input: input.address + bytes(words(member, sizes.input_words)),
                words: sizes.input_words,
            };
            stream.launch(gpu.hash, &launch, gpu.grid(sizes.input_words), THREADS)?;
        }
        let checked: Vec<usize> = batch
            .checked
            .numbers(gpu.blocks.len())
            .take(sizes.checked)
            .collect();
        let kernels_of_all = batch.plan.count();
        // Without kernels nothing else would read the blocks.
        let is_layered = gpu.touch.reads() && kernels_of_all > 0;
        for (place, &number) in checked.iter().enumerate().filter(|_| !is_layered) {
            let (memory, block) = &gpu.blocks[number];
            let words = block.used / 4;
            let launch = Launch::Hash {
                out: sum(sizes.batch + place),
                input: memory.address,
                words,
            };
            stream.launch(gpu.hash, &launch, gpu.grid(words), THREADS)?;
        }

        let mut kernel = 0;
        for (step, kernels) in batch.plan.kernels().enumerate() {
            for &ns in kernels {
                let mut busy = spin.busy(ns);
                let read = if is_layered {
                    part(kernel, kernels_of_all, checked.len())
                } else {
                    0..0
                };
                kernel += 1;
                if read.is_empty() {
                    let before = read.start.min(checked.len().saturating_sub(1));
                    let (function, launch) = match checked.get(before).filter(|_| is_layered) {
                        Some(&number) => {
                            gpu.layer_of(busy, sum(sizes.batch + before), number, false)
                        }
                        None => (gpu.spin, Launch::Spin(busy)),
                    };
                    stream.launch(function, &launch, SPIN_BLOCKS, SPIN_THREADS)?;
                }
                for place in read {
                    let out = sum(sizes.batch + place);
                    let (function, launch) = gpu.layer_of(busy, out, checked[place], true);
                    stream.launch(function, &launch, SPIN_BLOCKS, SPIN_THREADS)?;
                    // The time is that of all blocks together.
                    busy.ns = 0;
                }
            }
            if batch.is_streamed {
                marks[step % 2].record(stream)?;
                // The stream always has one more step than the one being waited for.
                if step > 0 {
                    marks[(step - 1) % 2].synchronize()?;
                    progress(step);
                }
            }
        }

        let first = sizes.batch + sizes.checked;
        let expected = state.enqueue(gpu, stream, |number| sum(first + number))?;
        let answers = 2 * sums;
        for (place, member) in batch.members.iter().take(members).enumerate() {
            let launch = Launch::Fill {
                out: output.address + bytes(answers + words(place, sizes.output_words)),
                words: sizes.output_words,
                value: answer_word(member.seed),
            };
            stream.launch(gpu.fill, &launch, gpu.grid(sizes.output_words), THREADS)?;
        }
        end.record(stream)?;
        let length = answers + words(members, sizes.output_words);
        stream.copy_out(&mut host_output.words()[..length], output.address)?;
        if batch.is_streamed {
            let steps = batch.plan.steps();
            marks[(steps - 1) % 2].synchronize()?;
            progress(steps);
        }
        Ok(expected)
    }

    fn outcome(
        &mut self,
        members: usize,
        batch: &Batch<'_>,
        expected_state: Expected,
    ) -> Result<Outcome, Failure> {
        let took = self.gpu.elapsed(&self.begin, &self.end)?;
        let sizes = self.sizes;
        let numbers = batch.checked.numbers(self.gpu.blocks.len());
        let count = self.sums();
        let (sums, answers) = self.host_output.words().split_at(2 * count);
        let sum =
            |number: usize| u64::from(sums[2 * number]) | u64::from(sums[2 * number + 1]) << 32;
        let each = words(1, sizes.output_words);
        let expected = batch.members.iter().take(members).enumerate();
        for (answer, (member, request)) in answers.chunks_exact(each).zip(expected) {
            let written = answer_word(request.seed);
            if let Some(word) = answer.iter().position(|&found| found != written) {
                return Err(Failure::Answer {
                    member,
                    word,
                    found: answer[word],
                    written,
                });
            }
        }
        Ok(Outcome {
            inputs: (0..members).map(sum).collect(),
            blocks: numbers
                .take(sizes.checked)
                .enumerate()
                .map(|(place, number)| (number, sum(sizes.batch + place)))
                .collect(),
            is_state_right: self.state.is_right(expected_state, |number| {
                sum(sizes.batch + sizes.checked + number)
            }),
            took,
        })
    }

    /// Returns the number of blocks of weights which are not at their addresses, as the driver reports.
    pub(crate) fn moved_blocks(&self) -> u64 {
        let gpu = &self.gpu;
        if gpu.context.bind().is_err() {
            return gpu.blocks.len() as u64;
        }
        let blocks = gpu.blocks.iter();
        blocks.filter(|(memory, _)| !memory.is_known()).count() as u64
    }

    /// Checks the GPU: writes a word with a kernel and copies it back.
    pub(crate) fn probe(&mut self) -> Result<(), Failure> {
        self.gpu.context.bind()?;
        let written = self.host_output.words()[0].wrapping_add(0x9e37_79b9);
        let launch = Launch::Fill {
            out: self.output.address,
            words: 1,
            value: written,
        };
        let word = &mut self.host_output.words()[..1];
        let ran = self
            .stream
            .launch(self.gpu.fill, &launch, 1, THREADS)
            .and_then(|()| self.stream.copy_out(word, self.output.address));
        self.stream.synchronize().and(ran)?;
        match self.host_output.words()[0] {
            found if found == written => Ok(()),
            found => Err(Failure::Answer {
                member: 0,
                word: 0,
                found,
                written,
            }),
        }
    }
}

impl Stream {
    /// Enqueues setting the first `sums` sums, of two words each, to zero.
    fn zero(&self, memory: &Memory, sums: usize) -> Result<(), Failure> {
        let bytes = usize::try_from(memory.bytes.min(bytes(2 * sums))).unwrap_or(usize::MAX);
        // SAFETY: not longer than the memory, which the caller keeps until the stream is synchronised.
        check("cuMemsetD8Async", unsafe {
            result::memset_d8_async(memory.address, 0, bytes, self.raw)
        })
    }
}

/// Returns the value of every word of an answer to a request with this seed.
fn answer_word(seed: u64) -> u32 {
    word(seed, u64::MAX)
}

#[cfg(test)]
mod tests {
    use cudarc::driver::result::DriverError;

    use super::*;

    #[test]
    fn errors_have_the_drivers_names() {
        use sys::CUresult as E;
        let error = |code| check::<()>("cuLaunchKernel", Err(DriverError(code))).unwrap_err();
        let illegal = error(E::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(
            illegal.to_string(),
            "cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS"
        );
        assert!(illegal.is_final());
        assert!(!error(E::CUDA_ERROR_OUT_OF_MEMORY).is_final());
        assert!(!error(E::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES).is_final());
    }
}
