//! The GPU, through the CUDA driver's library: the one module with `unsafe`.
//!
//! The library is opened when a GPU is wanted and not before, as frameworks do. Memory is taken with `cuMemAlloc`, one
//! call per block; host memory is pinned; waiting sleeps instead of spinning. A batch is put into its lane's stream
//! at once:
//!
//! 1. every member's input, host to device;
//! 2. the sums are set to zero; the first event;
//! 3. `weir_hash` of every input and of the blocks that the batch checks;
//! 4. the plan's kernels (`weir_spin`), with an event after each step if the batch is streamed;
//! 5. `weir_fill` of every member's answer; the last event;
//! 6. sums and answers, device to host.

use std::ffi::{CString, c_void};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use kernels::{Kernel, Launch, PTX};

use crate::blocks::{Block, layout};
use crate::checksum::word;
use crate::device::{Batch, Outcome};
use crate::failure::Failure;
use crate::models::Model;

/// Threads of a kernel that keeps an SM busy: so many fit once, or twice, on any.
const SPIN_THREADS: u32 = 1_024;
/// Its blocks: one for each SM of any GPU and a few more. What the driver says is no measure: a client of MPS is told the SMs
/// that its percentage leaves it, and a model does not compute less for that.
const SPIN_BLOCKS: u32 = 160;
/// Threads of a block of the others.
const THREADS: u32 = 256;

/// Every function of the driver that is called, but for the one that [`elapsed`](Gpu::elapsed) chooses. All are in
/// every driver since CUDA 11.
const NEEDED: [&str; 25] = [
    "cuInit",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuStreamDestroy_v2",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventDestroy_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemsetD8Async",
    "cuLaunchKernel",
];
/// The newer one is not in drivers before CUDA 12.8, and cudarc knows no other for CUDA 13.
const ELAPSED: [&str; 2] = ["cuEventElapsedTime_v2", "cuEventElapsedTime"];

type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;

/// After these the context is of no use: every call fails until the process is a new one.
fn is_sticky(error: sys::CUresult) -> bool {
    use sys::CUresult as E;
    matches!(
        error,
        E::CUDA_ERROR_DEINITIALIZED
            | E::CUDA_ERROR_DEVICE_UNAVAILABLE
            | E::CUDA_ERROR_ECC_UNCORRECTABLE
            | E::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | E::CUDA_ERROR_CONTAINED
            | E::CUDA_ERROR_INVALID_CONTEXT
            | E::CUDA_ERROR_ILLEGAL_ADDRESS
            | E::CUDA_ERROR_LAUNCH_TIMEOUT
            | E::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | E::CUDA_ERROR_ASSERT
            | E::CUDA_ERROR_HARDWARE_STACK_ERROR
            | E::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | E::CUDA_ERROR_MISALIGNED_ADDRESS
            | E::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | E::CUDA_ERROR_INVALID_PC
            | E::CUDA_ERROR_LAUNCH_FAILED
            | E::CUDA_ERROR_TENSOR_MEMORY_LEAK
            | E::CUDA_ERROR_MPS_CONNECTION_FAILED
            | E::CUDA_ERROR_MPS_RPC_FAILURE
            | E::CUDA_ERROR_MPS_CLIENT_TERMINATED
            | E::CUDA_ERROR_EXTERNAL_DEVICE
            | E::CUDA_ERROR_UNKNOWN
    )
}

fn check<T>(call: &'static str, result: Result<T, DriverError>) -> Result<T, Failure> {
    result.map_err(|DriverError(error)| Failure::Cuda {
        call,
        name: format!("{error:?}"),
        is_sticky: is_sticky(error),
    })
}

/// The device's primary context.
#[derive(Debug)]
struct Context {
    device: sys::CUdevice,
    raw: sys::CUcontext,
}

// SAFETY: the driver's handles may be used from every thread; the pointer is never followed.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks what it has to.
unsafe impl Sync for Context {}

impl Context {
    fn new(device: sys::CUdevice) -> Result<Self, Failure> {
        // SAFETY: the device is one that the driver gave.
        let raw = unsafe { result::primary_ctx::retain(device) };
        let raw = check("cuDevicePrimaryCtxRetain", raw)?;
        Ok(Self { device, raw })
    }

    /// Makes it the calling thread's.
    fn bind(&self) -> Result<(), Failure> {
        // SAFETY: retained until this is dropped.
        check("cuCtxSetCurrent", unsafe {
            result::ctx::set_current(self.raw)
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, by `new`. Whoever needs it holds this.
        let _released = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Device memory.
#[derive(Debug)]
struct Memory {
    context: Arc<Context>,
    address: sys::CUdeviceptr,
    bytes: u64,
}

impl Memory {
    fn new(context: &Arc<Context>, bytes: u64) -> Result<Self, Failure> {
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: what lies in it is never read before it was written.
        let address = check("cuMemAlloc_v2", unsafe { result::malloc_sync(length) })?;
        Ok(Self {
            context: Arc::clone(context),
            address,
            bytes,
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: taken once, by `new`; what ran on it has ended (`Lane::run` waits).
            let _freed = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Pinned host memory: words, all of them written.
struct Pinned {
    context: Arc<Context>,
    words: *mut u32,
    count: usize,
}

// SAFETY: it owns what it points to.
unsafe impl Send for Pinned {}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({} words)", self.count)
    }
}

impl Pinned {
    fn new(context: &Arc<Context>, count: usize) -> Result<Self, Failure> {
        let bytes = count.saturating_mul(4);
        // SAFETY: what lies in it is written below, before it is read.
        let pointer = check("cuMemHostAlloc", unsafe { result::malloc_host(bytes, 0) })?;
        let words = pointer.cast::<u32>();
        // SAFETY: it is `bytes` long, page-aligned and nobody else's.
        unsafe { words.write_bytes(0, count) };
        Ok(Self {
            context: Arc::clone(context),
            words,
            count,
        })
    }

    /// Only while nothing in a stream reads or writes it.
    fn words(&mut self) -> &mut [u32] {
        // SAFETY: written by `new`, `count` long, and `&mut self` keeps others away. No copy is under way: the one
        // place where copies are put into a stream (`Lane::run`, `Gpu::load`) waits for their end before it returns
        // or calls this again.
        unsafe { std::slice::from_raw_parts_mut(self.words, self.count) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: taken once, by `new`; no copy is under way.
            let _freed = unsafe { result::free_host(self.words.cast()) };
        }
    }
}

/// A stream, which waits for no other.
#[derive(Debug)]
struct Stream {
    context: Arc<Context>,
    raw: sys::CUstream,
}

// SAFETY: the driver's handles may be used from every thread; the pointer is never followed.
unsafe impl Send for Stream {}

impl Stream {
    fn new(context: &Arc<Context>) -> Result<Self, Failure> {
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking);
        Ok(Self {
            context: Arc::clone(context),
            raw: check("cuStreamCreate", raw)?,
        })
    }

    fn synchronize(&self) -> Result<(), Failure> {
        // SAFETY: it is there until this is dropped.
        check("cuStreamSynchronize", unsafe {
            result::stream::synchronize(self.raw)
        })
    }

    /// Copies words to the device; they must stay as they are until the stream is waited for.
    fn copy_in(&self, to: sys::CUdeviceptr, from: &[u32]) -> Result<(), Failure> {
        // SAFETY: the callers (`Lane::run`, `Gpu::load`) own both and wait before either is touched or freed.
        check("cuMemcpyHtoDAsync_v2", unsafe {
            result::memcpy_htod_async(to, from, self.raw)
        })
    }

    /// Copies words from the device; they must not be looked at until the stream is waited for.
    fn copy_out(&self, to: &mut [u32], from: sys::CUdeviceptr) -> Result<(), Failure> {
        // SAFETY: as in `copy_in`.
        check("cuMemcpyDtoHAsync_v2", unsafe {
            result::memcpy_dtoh_async(to, from, self.raw)
        })
    }

    fn launch(
        &self,
        function: Function,
        launch: &Launch,
        blocks: u32,
        threads: u32,
    ) -> Result<(), Failure> {
        let buffer = launch.encode();
        let mut values = [0_u64; 4];
        let mut pointers = [std::ptr::null_mut::<c_void>(); 4];
        let parameters = launch.kernel().parameters();
        for ((value, pointer), parameter) in values.iter_mut().zip(&mut pointers).zip(parameters) {
            let mut bytes = [0; 8];
            bytes[..parameter.size].copy_from_slice(&buffer[parameter.offset..][..parameter.size]);
            *value = u64::from_le_bytes(bytes);
            *pointer = std::ptr::from_mut(value).cast();
        }
        let pointers = &mut pointers[..parameters.len()];
        // SAFETY: the function is of a loaded module, the pointers are to as many values as it has parameters, each at
        // least as long as its parameter, and are read before the call returns. The addresses among them are of memory
        // that the callers own and keep until the stream was waited for.
        check("cuLaunchKernel", unsafe {
            result::launch_kernel(
                function.0,
                (blocks, 1, 1),
                (threads, 1, 1),
                0,
                self.raw,
                pointers,
            )
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created once, by `new`.
            let _destroyed = unsafe { result::stream::destroy(self.raw) };
        }
    }
}

/// An event, whose waiters sleep.
#[derive(Debug)]
struct Event {
    context: Arc<Context>,
    raw: sys::CUevent,
}

// SAFETY: the driver's handles may be used from every thread; the pointer is never followed.
unsafe impl Send for Event {}

impl Event {
    fn new(context: &Arc<Context>) -> Result<Self, Failure> {
        let raw = result::event::create(sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC);
        Ok(Self {
            context: Arc::clone(context),
            raw: check("cuEventCreate", raw)?,
        })
    }

    fn record(&self, stream: &Stream) -> Result<(), Failure> {
        // SAFETY: both are there until they are dropped.
        check("cuEventRecord", unsafe {
            result::event::record(self.raw, stream.raw)
        })
    }

    fn synchronize(&self) -> Result<(), Failure> {
        // SAFETY: it is there until this is dropped.
        check("cuEventSynchronize", unsafe {
            result::event::synchronize(self.raw)
        })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created once, by `new`.
            let _destroyed = unsafe { result::event::destroy(self.raw) };
        }
    }
}

/// Our kernels, compiled for the device.
#[derive(Debug)]
struct Module {
    context: Arc<Context>,
    raw: sys::CUmodule,
}

/// A kernel of a [`Module`] that is still loaded: [`Gpu`] keeps both.
#[derive(Clone, Copy, Debug)]
struct Function(sys::CUfunction);

// SAFETY: the driver's handles may be used from every thread; the pointer is never followed.
unsafe impl Send for Module {}
// SAFETY: as above; nothing is changed through it.
unsafe impl Sync for Module {}
// SAFETY: as above.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Module {
    fn new(context: &Arc<Context>) -> Result<Self, Failure> {
        let text = CString::new(PTX)
            .map_err(|error| Failure::Library(format!("the kernels' text has a NUL: {error}")))?;
        // SAFETY: PTX with a NUL behind it, which is read before the call returns.
        let raw = unsafe { result::module::load_data(text.as_ptr().cast()) };
        Ok(Self {
            context: Arc::clone(context),
            raw: check("cuModuleLoadData", raw)?,
        })
    }

    fn function(&self, kernel: Kernel) -> Result<Function, Failure> {
        let name = CString::new(kernel.name())
            .map_err(|error| Failure::Library(format!("a kernel's name has a NUL: {error}")))?;
        // SAFETY: the module is loaded.
        let raw = unsafe { result::module::get_function(self.raw, name) };
        Ok(Function(check("cuModuleGetFunction", raw)?))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: loaded once, by `new`; none of its kernels run.
            let _unloaded = unsafe { result::module::unload(self.raw) };
        }
    }
}

/// Looks for the driver's library and everything in it that is needed.
fn library() -> Result<Elapsed, Failure> {
    // SAFETY: libraries of these names are the driver's or stand for it, and have no initialiser that could not run here.
    if !unsafe { sys::is_culib_present() } {
        return Err(Failure::Library(
            "libcuda.so.1 cannot be opened: install NVIDIA's driver, let LD_LIBRARY_PATH name the folder of a software \
             GPU, or wait the service time with --device cpu"
                .to_owned(),
        ));
    }
    // SAFETY: as above; it is there.
    let library = unsafe { sys::culib() };
    let mut missing = Vec::new();
    for name in NEEDED {
        // SAFETY: only whether it is there is looked at; the type does not matter.
        if unsafe { library.get::<*const c_void>(name.as_bytes()) }.is_err() {
            missing.push(name);
        }
    }
    let mut elapsed = None;
    for name in ELAPSED {
        if elapsed.is_none() {
            // SAFETY: both have this type, as cuda.h declares them.
            let found = unsafe { library.get::<Elapsed>(name.as_bytes()) };
            elapsed = found.ok().map(|symbol| *symbol);
        }
    }
    if elapsed.is_none() {
        missing.push(ELAPSED[1]);
    }
    match elapsed {
        Some(elapsed) if missing.is_empty() => Ok(elapsed),
        _ => Err(Failure::Library(format!(
            "libcuda.so.1 lacks {}: a driver of CUDA 11.4 or newer is needed",
            missing.join(", ")
        ))),
    }
}

/// A GPU with a model's weights.
#[derive(Debug)]
pub(crate) struct Gpu {
    // Dropped in this order.
    blocks: Vec<(Memory, Block)>,
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
    /// Opens the GPU of this number and loads a model's weights, sizes divided by `scale`.
    pub(crate) fn load(ordinal: u32, model: &Model, scale: u64) -> Result<Self, Failure> {
        let mut gpu = Self::open(ordinal)?;
        gpu.load_weights(model.seed(), layout(model.weights_bytes, scale))?;
        Ok(gpu)
    }

    /// Opens the GPU of this number, without weights.
    pub(crate) fn open(ordinal: u32) -> Result<Self, Failure> {
        use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as SMS;
        let elapsed = library()?;
        check("cuInit", result::init())?;
        let ordinal = i32::try_from(ordinal).unwrap_or(i32::MAX);
        let device = check("cuDeviceGet", result::device::get(ordinal))?;
        let name = check("cuDeviceGetName", result::device::get_name(device))?;
        // SAFETY: the device is one that the driver gave.
        let sms = unsafe { result::device::get_attribute(device, SMS) };
        let sms = check("cuDeviceGetAttribute", sms)?;
        let context = Arc::new(Context::new(device)?);
        context.bind()?;
        let module = Module::new(&context)?;
        Ok(Self {
            blocks: Vec::new(),
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
            // Also after an error: neither memory may go while it is copied.
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

    /// The time between two events that are past.
    fn elapsed(&self, begin: &Event, end: &Event) -> Result<Duration, Failure> {
        let mut ms = 0.0_f32;
        // SAFETY: the type is the function's, the pointer is to a float, and both events are there.
        let result = unsafe { (self.elapsed)(&raw mut ms, begin.raw, end.raw) };
        check("cuEventElapsedTime", result.result())?;
        let seconds = f64::from(ms.max(0.0)) / 1e3;
        Ok(Duration::try_from_secs_f64(seconds).unwrap_or_default())
    }

    /// As many blocks as these words keep busy, a few per SM.
    fn grid(&self, words: u64) -> u32 {
        let blocks = words.div_ceil(u64::from(THREADS)).max(1);
        let most = self.sms.saturating_mul(8);
        u32::try_from(blocks).unwrap_or(most).min(most)
    }
}

/// How large a lane's buffers are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Members of a batch.
    pub(crate) batch: usize,
    /// Words of each one's input.
    pub(crate) input_words: u64,
    /// Words of each one's answer.
    pub(crate) output_words: u64,
    /// Blocks that a batch checks.
    pub(crate) checked: usize,
}

impl Sizes {
    /// Sums of a batch, inputs first: two words each.
    const fn sums(&self) -> usize {
        self.batch + self.checked
    }
}

/// A stream of its own, and buffers.
#[derive(Debug)]
pub(crate) struct Lane {
    gpu: Arc<Gpu>,
    spin: Spin,
    sizes: Sizes,
    stream: Stream,
    begin: Event,
    end: Event,
    /// Steps record them in turn.
    marks: [Event; 2],
    /// Members' inputs, one behind the other.
    input: Memory,
    host_input: Pinned,
    /// The sums, then members' answers.
    output: Memory,
    host_output: Pinned,
}

/// How the model's kernels behave.
#[derive(Clone, Copy, Debug)]
struct Spin {
    law: kernels::Law,
    interference_millionths: u32,
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
        let output_words = 2 * sizes.sums() + words(sizes.batch, sizes.output_words);
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
        })
    }

    /// Computes a batch, of at most as many members as the sizes say.
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
        // Also after an error: the stream may still read and write the buffers.
        self.stream.synchronize().and(ran)?;
        self.outcome(members.len(), batch)
    }

    fn enqueue(
        &mut self,
        members: usize,
        batch: &Batch<'_>,
        progress: &mut dyn FnMut(usize),
    ) -> Result<(), Failure> {
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
        } = self;
        let inputs = &host_input.words()[..words(members, sizes.input_words)];
        stream.copy_in(input.address, inputs)?;
        stream.zero(output, sizes.sums())?;
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
        let numbers = batch.checked.numbers(gpu.blocks.len());
        for (place, number) in numbers.take(sizes.checked).enumerate() {
            let (memory, block) = &gpu.blocks[number];
            let words = block.used / 4;
            let launch = Launch::Hash {
                out: sum(sizes.batch + place),
                input: memory.address,
                words,
            };
            stream.launch(gpu.hash, &launch, gpu.grid(words), THREADS)?;
        }

        for (step, kernels) in batch.plan.kernels().enumerate() {
            for &ns in kernels {
                let launch = Launch::Spin {
                    ns,
                    law: spin.law,
                    interference_millionths: spin.interference_millionths,
                };
                stream.launch(gpu.spin, &launch, SPIN_BLOCKS, SPIN_THREADS)?;
            }
            if batch.is_streamed {
                marks[step % 2].record(stream)?;
                // One step is always in the stream behind the one that is waited for.
                if step > 0 {
                    marks[(step - 1) % 2].synchronize()?;
                    progress(step);
                }
            }
        }

        let answers = 2 * sizes.sums();
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
        Ok(())
    }

    fn outcome(&mut self, members: usize, batch: &Batch<'_>) -> Result<Outcome, Failure> {
        let took = self.gpu.elapsed(&self.begin, &self.end)?;
        let sizes = self.sizes;
        let numbers = batch.checked.numbers(self.gpu.blocks.len());
        let (sums, answers) = self.host_output.words().split_at(2 * sizes.sums());
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
            took,
        })
    }

    /// Writes a word with a kernel and copies it back.
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
    /// Sets the first so many sums of two words to zero.
    fn zero(&self, memory: &Memory, sums: usize) -> Result<(), Failure> {
        let bytes = usize::try_from(memory.bytes.min(bytes(2 * sums))).unwrap_or(usize::MAX);
        // SAFETY: not longer than the memory, which the caller keeps until it has waited for the stream.
        check("cuMemsetD8Async", unsafe {
            result::memset_d8_async(memory.address, 0, bytes, self.raw)
        })
    }
}

/// A stream of kernels and graphs without data, for a load.
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

    /// Launches a kernel that asks for all SMs.
    pub(crate) fn launch(&self, spin: &Launch) -> Result<(), Failure> {
        let gpu = &self.gpu;
        self.stream
            .launch(gpu.spin, spin, SPIN_BLOCKS, SPIN_THREADS)
    }

    /// Makes these kernels, in a row, the graph.
    pub(crate) fn record(&mut self, spins: &[Launch]) -> Result<(), Failure> {
        use sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as OWN_THREAD;
        let raw = self.stream.raw;
        // SAFETY: the stream is there, and nothing else of this thread is captured.
        let begun = unsafe { result::stream::begin_capture(raw, OWN_THREAD) };
        check("cuStreamBeginCapture", begun)?;
        let recorded = spins.iter().try_for_each(|spin| self.launch(spin));
        // SAFETY: the stream is there, and captures.
        let ended = unsafe { result::stream::end_capture(raw) };
        let graph = check("cuStreamEndCapture", ended)?;
        let none = sys::CUgraphInstantiate_flags(0);
        // SAFETY: the graph was given just now.
        let instance = unsafe { result::graph::instantiate(graph, none) };
        // SAFETY: as above, and it is not used again: what is launched is the instance.
        let destroyed = unsafe { result::graph::destroy(graph) };
        let raw = check("cuGraphInstantiateWithFlags", instance)?;
        self.graph = Some(Graph {
            context: Arc::clone(&self.gpu.context),
            raw,
        });
        check("cuGraphDestroy", destroyed).and(recorded)
    }

    /// Launches the graph.
    pub(crate) fn launch_graph(&self) -> Result<(), Failure> {
        let Some(graph) = &self.graph else {
            return Ok(());
        };
        // SAFETY: both are there until they are dropped.
        let launched = unsafe { result::graph::launch(graph.raw, self.stream.raw) };
        check("cuGraphLaunch", launched)
    }

    /// Marks what was launched until now; there are two marks.
    pub(crate) fn mark(&self, number: usize) -> Result<(), Failure> {
        self.marks[number % 2].record(&self.stream)
    }

    /// Waits until what was launched before a mark is done.
    pub(crate) fn await_mark(&self, number: usize) -> Result<(), Failure> {
        self.marks[number % 2].synchronize()
    }
}

/// A graph that can be launched.
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

/// What every word of an answer to a request with this seed is.
fn answer_word(seed: u64) -> u32 {
    word(seed, u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_named_as_the_driver_names_them() {
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
