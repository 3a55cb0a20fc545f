//! Launches: the SMs a grid fills, its duration, and its parameters.

use std::ffi::c_void;

use softgpu_wire::config::{Effects, KernelConfig};
use softgpu_wire::record::{KernelRecord, LawCode};

use crate::driver::{Device, Driver, driver};
use crate::error::{Error, Result};
use crate::module::{self, Code, Function};
use crate::pointer::{In, bytes_at};
use crate::refusal;
use crate::state::State;
use crate::stream::{self, DefaultStream, Stream};
use crate::table::Handle;
use crate::work::{KernelEffect, KernelLaunch, Parameters, Work};

/// Duration of a kernel apart from its memory traffic and arithmetic, in ns.
const LAUNCH_NS: u64 = 2_000;
/// Duration of a wave of blocks of a foreign kernel, in ns: an assumption, since what its threads do is unknown. An entry
/// `[[kernel]]` of the configuration replaces it.
const WAVE_NS: u64 = 3_000;
/// Multiply-adds of an SM per ns: 128 lanes at 1.5 GHz.
const FMA_OF_AN_SM_PER_NS: u64 = 192;

/// `CUlaunchConfig`, the configuration of `cuLaunchKernelEx`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: Handle<Stream>,
    attributes: In<Attribute>,
    attribute_count: u32,
}

/// `CUlaunchAttribute`: an id and a value of 64 bytes.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct Attribute {
    id: u32,
    pad: u32,
    value: [u64; 8],
}

/// Implements `cuFuncSetBlockShape`, which PyCUDA calls before each launch: checks the shape. Only `cuLaunch` and its siblings, which are not
/// supported, would use it.
pub(crate) fn set_block_shape(handle: Handle<Function>, block: [i32; 3]) -> Result {
    let block = block.map(|size| u32::try_from(size).unwrap_or(0));
    check_shape([1; 3], block, 0)?;
    module::function_hint(handle)
}

fn check_shape(grid: [u32; 3], block: [u32; 3], shared_bytes: u32) -> Result<(u64, u32)> {
    let threads = block
        .iter()
        .try_fold(1_u32, |all, &one| all.checked_mul(one));
    let threads = threads.filter(|threads| (1..=1024).contains(threads) && block[2] <= 64);
    let threads = threads.ok_or(Error::INVALID_VALUE)?;
    let in_range = grid[0] <= i32::MAX.unsigned_abs() && grid[1] <= 65_535 && grid[2] <= 65_535;
    if grid.contains(&0) || !in_range {
        return Err(Error::INVALID_VALUE);
    }
    if shared_bytes > 227 << 10 {
        return Err(Error::INVALID_VALUE);
    }
    let blocks = grid.iter().map(|&one| u64::from(one)).product();
    Ok((blocks, threads))
}

/// Returns the number of waves in which a grid runs, and the number of SMs it uses: blocks are spread over all SMs
/// before any gets a second one.
fn waves(blocks: u64, on_an_sm: u32, sms: u32) -> (u64, u32) {
    let at_once = u64::from(on_an_sm.max(1)) * u64::from(sms.max(1));
    let used = u32::try_from(blocks.min(sms.into())).unwrap_or(sms);
    (blocks.div_ceil(at_once), used)
}

/// Returns the duration in ns of a kernel with this memory traffic and this many multiplications.
fn duration(device: &Device, bytes: u64, multiplications: u64) -> u64 {
    let moving = u128::from(bytes) * 1_000_000_000 / u128::from(device.memory_rate);
    let moving = u64::try_from(moving).unwrap_or(u64::MAX);
    let computing = multiplications / (FMA_OF_AN_SM_PER_NS * u64::from(device.sms.max(1)));
    moving.max(computing).saturating_add(LAUNCH_NS)
}

/// Returns the record of a launch for the timeline.
fn record(
    device: &Device,
    code: &Code,
    launch: Option<&kernels::Launch>,
    blocks: u64,
    on_an_sm: u32,
) -> KernelRecord {
    let (waves, filled) = waves(blocks, on_an_sm, device.sms);
    let linear = LawCode {
        law: 0,
        parameter_millionths: 0,
    };
    if let Some(busy) = launch.and_then(kernels::Launch::busy) {
        let (law, parameter_millionths) = busy.law.encode();
        return KernelRecord {
            duration_ns: busy.ns.saturating_mul(waves),
            sms: filled,
            law: LawCode {
                law: u8::try_from(law).unwrap_or_default(),
                parameter_millionths,
            },
            interference_millionths: busy.interference_millionths,
        };
    }
    match (code, launch) {
        (Code::Foreign(kernel), _) => {
            let rule = kernel.rule.as_ref();
            let usual = || waves.saturating_mul(WAVE_NS).saturating_add(LAUNCH_NS);
            let own = |rule: &KernelConfig| rule.duration_us.saturating_mul(1_000);
            let sms = rule.and_then(|rule| rule.sms).unwrap_or(filled);
            KernelRecord {
                duration_ns: rule.map_or_else(usual, own),
                sms: sms.min(device.sms),
                law: linear,
                interference_millionths: 0,
            }
        }
        (Code::Own(_), launch) => {
            let bytes = launch.map_or(0, |launch| {
                let known: u64 = launch.accesses().map(|access| access.bytes).sum();
                known.saturating_add(launch.hidden_bytes())
            });
            let multiplications = match launch {
                Some(kernels::Launch::Matmul { n, .. }) => u64::from(*n).pow(3),
                _ => 0,
            };
            KernelRecord {
                duration_ns: duration(device, bytes, multiplications),
                sms: filled,
                law: linear,
                interference_millionths: 0,
            }
        }
    }
}

/// Copies the parameters of a launch, from the list of their addresses or from one buffer.
fn parameters(
    code: &Code,
    list: In<*const c_void>,
    extra: In<*const c_void>,
) -> Result<Parameters> {
    let size = code.parameter_bytes();
    if !extra.is_null() {
        let words = extra.list(5)?;
        // `CU_LAUNCH_PARAM_BUFFER_POINTER`, `CU_LAUNCH_PARAM_BUFFER_SIZE`, `CU_LAUNCH_PARAM_END`.
        let [1, 2, 0] = [words[0].addr(), words[2].addr(), words[4].addr()] else {
            return Err(Error::INVALID_VALUE);
        };
        let bytes = In::<usize>::from_raw(words[3].cast()).get()?;
        if bytes < size {
            return Err(Error::INVALID_VALUE);
        }
        let whole = bytes_at(words[1], size)?;
        return Parameters::new(size, |buffer| {
            buffer.copy_from_slice(&whole);
            Ok(())
        });
    }
    let layout = code.parameters();
    let addresses = list.list(layout.len())?;
    Parameters::new(size, |buffer| {
        for (parameter, address) in layout.iter().zip(addresses) {
            let bytes = bytes_at(address, parameter.size)?;
            buffer[parameter.offset..parameter.offset + parameter.size].copy_from_slice(&bytes);
        }
        Ok(())
    })
}

/// Returns the device addresses among the parameters: words of eight bytes at multiples of eight which lie in an allocation.
fn addresses(state: &State, parameters: &[u8]) -> Vec<u64> {
    let words = parameters.as_chunks::<8>().0.iter();
    let words = words.map(|word| u64::from_le_bytes(*word));
    words
        .filter(|address| state.memory.is_device(*address))
        .collect()
}

/// Prepares a launch from its arguments; also used for the nodes of graphs.
pub(crate) fn prepare(
    driver: &Driver,
    state: &mut State,
    function: Handle<Function>,
    [grid, block]: [[u32; 3]; 2],
    shared_bytes: u32,
    list: In<*const c_void>,
    extra: In<*const c_void>,
) -> Result<KernelLaunch> {
    let function = module::function(driver, state, function)?;
    let there = state.functions.get(function).ok_or(Error::INVALID_HANDLE)?;
    let parameters = parameters(&there.code, list, extra)?;
    let (blocks, threads) = check_shape(grid, block, shared_bytes)?;
    let launch = match &there.code {
        Code::Own(kernel) => {
            let launch = kernels::Launch::decode(*kernel, parameters.bytes());
            Some(launch.map_err(|_| Error::INVALID_VALUE)?)
        }
        Code::Foreign(kernel) => {
            if threads > kernel.info.threads_max {
                return Err(Error::INVALID_VALUE);
            }
            None
        }
    };
    let context = state
        .contexts
        .get(there.context)
        .ok_or(Error::CONTEXT_IS_DESTROYED)?;
    let device = &driver.devices[context.device];
    let resources = there.code.resources(threads, shared_bytes);
    let on_an_sm = resources.blocks_on_an_sm(device);
    if on_an_sm == 0 {
        return Err(Error::LAUNCH_OUT_OF_RESOURCES);
    }
    let record = record(device, &there.code, launch.as_ref(), blocks, on_an_sm);
    let effect = match &there.code {
        Code::Own(_) => launch
            .filter(|launch| !matches!(launch, kernels::Launch::Spin(_)))
            .map(KernelEffect::Own),
        Code::Foreign(kernel) => {
            refusal::modelled(kernel);
            let touches = |rule: &KernelConfig| rule.effects == Effects::Touch;
            let touches = kernel.rule.as_ref().is_some_and(touches);
            touches.then(|| KernelEffect::Touch(addresses(state, parameters.bytes()).into()))
        }
    };
    Ok(KernelLaunch {
        function,
        grid,
        block,
        shared_bytes,
        parameters,
        record,
        effect,
    })
}

/// Arguments of a launch into a stream.
struct Request {
    function: Handle<Function>,
    shape: [[u32; 3]; 2],
    shared_bytes: u32,
    stream: Handle<Stream>,
    list: In<*const c_void>,
    extra: In<*const c_void>,
    is_cooperative: bool,
}

fn launch(request: &Request, default: DefaultStream) -> Result {
    let driver = driver()?;
    let mut state = stream::room(driver)?;
    let stream = stream::resolve(driver, &mut state, request.stream, default)?;
    let launched = prepare(
        driver,
        &mut state,
        request.function,
        request.shape,
        request.shared_bytes,
        request.list,
        request.extra,
    )?;
    if request.is_cooperative {
        let [grid, block] = request.shape;
        let blocks: u64 = grid.iter().map(|&one| u64::from(one)).product();
        let there = state
            .functions
            .get(launched.function)
            .ok_or(Error::INVALID_HANDLE)?;
        let context = state
            .contexts
            .get(there.context)
            .ok_or(Error::INVALID_CONTEXT)?;
        let device = &driver.devices[context.device];
        let resources = (there.code).resources(block.iter().product(), request.shared_bytes);
        let at_once = u64::from(resources.blocks_on_an_sm(device)) * u64::from(device.sms);
        if blocks > at_once {
            return Err(Error::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
    }
    stream::enqueue(driver, &mut state, stream, Work::Kernel(launched))?;
    drop(state);
    refusal::report_modelled(driver);
    Ok(())
}

/// Implements `cuLaunchKernel` and `cuLaunchCooperativeKernel`: launches a kernel into a stream.
#[expect(clippy::too_many_arguments, reason = "the interface's")]
pub(crate) fn kernel(
    function: Handle<Function>,
    shape: [[u32; 3]; 2],
    shared_bytes: u32,
    stream: Handle<Stream>,
    list: In<*const c_void>,
    extra: In<*const c_void>,
    is_cooperative: bool,
    default: DefaultStream,
) -> Result {
    let request = Request {
        function,
        shape,
        shared_bytes,
        stream,
        list,
        extra,
        is_cooperative,
    };
    launch(&request, default)
}

/// Implements `cuLaunchKernelEx`: only the cooperative attribute is honored.
pub(crate) fn kernel_ex(
    config: In<Config>,
    function: Handle<Function>,
    list: In<*const c_void>,
    extra: In<*const c_void>,
    default: DefaultStream,
) -> Result {
    const COOPERATIVE: u32 = 2;
    let config = config.get()?;
    let attributes = config.attributes.list(config.attribute_count as usize)?;
    let is_set = |attribute: &Attribute| {
        attribute.id == COOPERATIVE
            && attribute.value[0] & 0xffff_ffff != 0
            && attribute.pad < u32::MAX
    };
    let request = Request {
        function,
        shape: [config.grid, config.block],
        shared_bytes: config.shared_bytes,
        stream: config.stream,
        list,
        extra,
        is_cooperative: attributes.iter().any(is_set),
    };
    launch(&request, default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_fills_at_most_one_sm_per_block() {
        assert_eq!(waves(1, 32, 132), (1, 1));
        assert_eq!(waves(132, 2, 132), (1, 132));
        assert_eq!(waves(264, 2, 132), (1, 132));
        assert_eq!(waves(265, 2, 132), (2, 132));
        assert_eq!(waves(64, 32, 132), (1, 64));
        assert_eq!(check_shape([1, 1, 1], [1024, 1, 1], 0), Ok((1, 1024)));
        for (grid, block) in [
            ([0, 1, 1], [1, 1, 1]),
            ([1, 65_536, 1], [1, 1, 1]),
            ([1, 1, 1], [1025, 1, 1]),
            ([1, 1, 1], [1, 1, 65]),
            ([1, 1, 1], [u32::MAX, u32::MAX, 1]),
        ] {
            assert_eq!(check_shape(grid, block, 0), Err(Error::INVALID_VALUE));
        }
    }
}
