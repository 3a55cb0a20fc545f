//! Devices visible to the process, their attributes, and attributes of pointers.

use std::ffi::c_char;

use crate::driver::{Device, Driver, driver};
use crate::error::{Error, Result};
use crate::memory::{Region, RegionKind};
use crate::occupancy::{
    BLOCKS_OF_AN_SM, REGISTERS_OF_AN_SM, THREADS_OF_A_BLOCK, THREADS_OF_AN_SM,
    reserved_shared_memory,
};
use crate::pointer::{In, Out, Text, put_text};
use crate::state::State;
use device::part::sms_of_percentage;
use softgpu_wire::identity::Identity;

/// Driver version 13000, which stands for CUDA 13.0.
pub(crate) const VERSION: i32 = 13_000;

/// `CUuuid`, 16 bytes returned by value through a pointer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Uuid {
    bytes: [u8; 16],
}

/// `CUdevprop`, the result of `cuDeviceGetProperties`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Properties {
    threads_of_a_block: i32,
    block: [i32; 3],
    grid: [i32; 3],
    shared_bytes: i32,
    constant_bytes: i32,
    warp: i32,
    pitch: i32,
    registers: i32,
    clock_khz: i32,
    texture_align: i32,
}

/// Properties of a GPU model that `cuDeviceGetAttribute` returns and that are not in [`Part`](device::part::Part).
struct Figures {
    clock_khz: i32,
    memory_clock_khz: i32,
    bus_bits: i32,
    l2_bytes: i32,
    shared_of_an_sm: i32,
    shared_of_a_block: i32,
}

/// Returns the figures of the vendor's data sheets and programming guide, by compute capability.
fn figures(device: &Device) -> Figures {
    match device.part.compute_capability {
        [7, _] => Figures {
            clock_khz: 1_530_000,
            memory_clock_khz: 877_000,
            bus_bits: 4096,
            l2_bytes: 6 << 20,
            shared_of_an_sm: 96 << 10,
            shared_of_a_block: 96 << 10,
        },
        [8, _] => Figures {
            clock_khz: 1_410_000,
            memory_clock_khz: 1_593_000,
            bus_bits: 5120,
            l2_bytes: 40 << 20,
            shared_of_an_sm: 164 << 10,
            shared_of_a_block: 163 << 10,
        },
        _ => Figures {
            clock_khz: 1_980_000,
            memory_clock_khz: 2_619_000,
            bus_bits: if device.part.name == "H200" {
                6144
            } else {
                5120
            },
            l2_bytes: 50 << 20,
            shared_of_an_sm: 228 << 10,
            shared_of_a_block: 227 << 10,
        },
    }
}

/// Returns the shared memory of an SM, in bytes.
pub(crate) fn shared_of_an_sm(device: &Device) -> u32 {
    u32::try_from(figures(device).shared_of_an_sm).unwrap_or(0)
}

/// Returns an attribute by its `CUdevice_attribute` number; attributes of textures, surfaces and absent features are 0.
/// `None` for an unknown number.
fn attribute_of(device: &Device, attribute: u32, clients_percentage: Option<u32>) -> Option<i32> {
    let figures = figures(device);
    let [major, minor] = device.part.compute_capability;
    let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    let (domain, bus, slot) = Identity::pci(device.gpu);
    let since = |capability: u32| i32::from(major >= capability);
    Some(match attribute {
        1..=2 => number(THREADS_OF_A_BLOCK),
        3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65_535,
        8 => 48 << 10,
        9 => 64 << 10,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => number(REGISTERS_OF_AN_SM),
        13 => figures.clock_khz,
        14 => 512,
        // An MPS client sees the SMs that its percentage leaves it.
        16 => number(clients_percentage.map_or(device.sms, |percent| {
            sms_of_percentage(device.sms, device.part.sm_unit, percent)
        })),
        133 => i32::from(clients_percentage.is_some()),
        30 => 512,
        51 => 32,
        // Concurrent copy and kernel, mapped host memory, concurrent kernels, unified addresses, priorities, L1 of both
        // kinds, preemption, host pointers of registered memory, cooperative launches, registration, VMM, POSIX file
        // handles, pools, IPC of events.
        15 | 19 | 31 | 41 | 78 | 79 | 80 | 90 | 91 | 95 | 99 | 102 | 103 | 115 | 125 => 1,
        32 => 1, // ECC
        33 => number(bus),
        34 => number(slot),
        50 => number(domain),
        36 => figures.memory_clock_khz,
        37 => figures.bus_bits,
        38 => figures.l2_bytes,
        39 => number(THREADS_OF_AN_SM),
        40 => number(device.part.copy_engines_each_way) + 2,
        75 => number(major),
        76 => number(minor),
        81 => figures.shared_of_an_sm,
        97 => figures.shared_of_a_block,
        87 => 2,
        106 => number(BLOCKS_OF_AN_SM),
        108 => figures.l2_bytes / 8 * 5,
        109 => 128 << 20,
        111 => number(reserved_shared_memory(device)),
        119 => 1, // pools share their memory by POSIX files
        120 => since(9),
        126 => {
            if major >= 9 {
                4
            } else {
                1
            }
        }
        130 | 131 => -1,
        134 => 0,
        // Textures and surfaces, managed memory, stream memory operations, RDMA, multicast and other absent features.
        17..=147 => 0,
        _ => return None,
    })
}

/// Implements `cuDeviceGetCount`: returns the number of visible devices.
pub(crate) fn count(out: Out<i32>) -> Result {
    let driver = driver()?;
    out.put(i32::try_from(driver.devices.len()).unwrap_or(i32::MAX))
}

/// Implements `cuDeviceGet`: a device's handle is its ordinal.
pub(crate) fn get(out: Out<i32>, ordinal: i32) -> Result {
    driver()?.device(ordinal)?;
    out.put(ordinal)
}

/// Implements `cuDeviceGetName`: writes the product name, with the MIG profile of a slice.
pub(crate) fn name(to: Out<c_char>, bytes: i32, ordinal: i32) -> Result {
    let device = driver()?.device(ordinal)?;
    put_text(to, bytes, &device.name)
}

/// Implements `cuDeviceGetUuid` and `cuDeviceGetUuid_v2`: returns the UUID of the GPU or MIG device.
pub(crate) fn uuid(out: Out<Uuid>, ordinal: i32) -> Result {
    let device = driver()?.device(ordinal)?;
    out.put(Uuid { bytes: device.uuid })
}

/// Implements `cuDeviceTotalMem_v2`: returns the device memory in bytes, after scaling.
pub(crate) fn total_memory(out: Out<usize>, ordinal: i32) -> Result {
    let device = driver()?.device(ordinal)?;
    out.put(usize::try_from(device.memory).unwrap_or(usize::MAX))
}

/// Implements `cuDeviceTotalMem`: returns the device memory in bytes, at most what 32 bits hold.
pub(crate) fn total_memory_short(out: Out<u32>, ordinal: i32) -> Result {
    let device = driver()?.device(ordinal)?;
    out.put(u32::try_from(device.memory).unwrap_or(u32::MAX))
}

/// Implements `cuDeviceGetAttribute`: returns one attribute of a device.
pub(crate) fn attribute(out: Out<i32>, attribute: u32, ordinal: i32) -> Result {
    let driver = driver()?;
    let device = driver.device(ordinal)?;
    // A percentage of 0 means that neither the daemon nor the environment sets one.
    let percentage = driver
        .mps
        .as_ref()
        .map(|mps| match mps.percentage_hundredths {
            0 => 10_000,
            set => u32::try_from(set).unwrap_or(10_000),
        });
    out.put(attribute_of(device, attribute, percentage).ok_or(Error::INVALID_VALUE)?)
}

/// Implements `cuDeviceComputeCapability`: returns the major and minor number.
pub(crate) fn compute_capability(major: Out<i32>, minor: Out<i32>, ordinal: i32) -> Result {
    let device = driver()?.device(ordinal)?;
    let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    let [first, second] = device.part.compute_capability;
    major.put(number(first))?;
    minor.put(number(second))
}

/// Implements `cuDeviceGetProperties`: returns the properties of the first CUDA versions.
pub(crate) fn properties(out: Out<Properties>, ordinal: i32) -> Result {
    let device = driver()?.device(ordinal)?;
    out.put(Properties {
        threads_of_a_block: 1024,
        block: [1024, 1024, 64],
        grid: [i32::MAX, 65_535, 65_535],
        shared_bytes: 48 << 10,
        constant_bytes: 64 << 10,
        warp: 32,
        pitch: i32::MAX,
        registers: 65_536,
        clock_khz: figures(device).clock_khz,
        texture_align: 512,
    })
}

fn bus_text(device: &Device) -> String {
    let (domain, bus, slot) = Identity::pci(device.gpu);
    format!("{domain:04X}:{bus:02X}:{slot:02X}.0")
}

/// Implements `cuDeviceGetPCIBusId`: writes domain, bus and device in hexadecimal.
pub(crate) fn bus_id(to: Out<c_char>, bytes: i32, ordinal: i32) -> Result {
    let device = driver()?.device(ordinal)?;
    put_text(to, bytes, &bus_text(device))
}

/// Implements `cuDeviceGetByPCIBusId`: finds a device; domain and function may be omitted.
pub(crate) fn by_bus_id(out: Out<i32>, text: Text) -> Result {
    let driver = driver()?;
    let text = text.string()?.to_ascii_uppercase();
    let is_it = |device: &Device| {
        let own = bus_text(device);
        own == text || own[5..] == text || own[..10] == text || own[5..10] == text
    };
    let found = driver.devices.iter().position(is_it);
    out.put(i32::try_from(found.ok_or(Error::INVALID_DEVICE)?).unwrap_or(i32::MAX))
}

/// Returns whether one device may use the other's memory: whole GPUs of a node may, slices may not.
pub(crate) fn can_access_peer(driver: &Driver, one: usize, other: usize) -> bool {
    let is_slice = |at: usize| driver.devices.get(at).is_none_or(|device| device.is_slice);
    one != other && !is_slice(one) && !is_slice(other)
}

fn both(driver: &Driver, one: i32, other: i32) -> Result<(usize, usize)> {
    driver.device(one)?;
    driver.device(other)?;
    let place = |ordinal: i32| usize::try_from(ordinal).map_err(|_| Error::INVALID_DEVICE);
    Ok((place(one)?, place(other)?))
}

/// Implements `cuDeviceCanAccessPeer`: returns whether one device may use the other's memory.
pub(crate) fn peer_access(out: Out<i32>, one: i32, other: i32) -> Result {
    let driver = driver()?;
    let (one, other) = both(driver, one, other)?;
    out.put(i32::from(can_access_peer(driver, one, other)))
}

/// Implements `cuDeviceGetP2PAttribute`: access is supported, atomics are not.
pub(crate) fn peer_attribute(out: Out<i32>, attribute: u32, one: i32, other: i32) -> Result {
    let driver = driver()?;
    let (one, other) = both(driver, one, other)?;
    match attribute {
        1 => out.put(0),
        2 => out.put(i32::from(can_access_peer(driver, one, other))),
        3..=6 => out.put(0),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// Implements `cuDeviceGetExecAffinitySupport`: a number of SMs is supported under MPS.
pub(crate) fn affinity_support(out: Out<i32>, kind: u32, ordinal: i32) -> Result {
    let driver = driver()?;
    driver.device(ordinal)?;
    if kind != 0 {
        return Err(Error::INVALID_VALUE);
    }
    out.put(i32::from(driver.mps.is_some()))
}

/// Destination of a pointer attribute, whose type depends on the attribute.
type Value = Out<u8>;

fn region_at(state: &State, address: u64) -> Option<(u64, Region)> {
    let (at, region) = state.memory.find(address)?;
    Some((at, region.clone()))
}

/// Writes one attribute of the memory at an address; with `strict`, memory unknown to the driver is an error.
fn put_attribute(
    state: &State,
    attribute: u32,
    value: Value,
    address: u64,
    strict: bool,
) -> Result {
    let found = region_at(state, address);
    let Some((at, region)) = found else {
        if strict {
            return Err(Error::INVALID_VALUE);
        }
        // Memory unknown to the driver has null attributes.
        return match attribute {
            1 | 4 | 7 | 11 | 18 | 12 | 3 => value.cast::<u64>().put(0),
            9 => value.cast::<i32>().put(-2),
            2 | 13 | 14 | 16 => value.cast::<u32>().put(0),
            6 | 8 | 10 | 15 => value.put(0),
            _ => Err(Error::INVALID_VALUE),
        };
    };
    let context = match region.kind {
        RegionKind::Plain { context, .. }
        | RegionKind::Pinned { context, .. }
        | RegionKind::Registered { context, .. }
        | RegionKind::Opened { context, .. } => Some(context),
        RegionKind::Mapped { .. } | RegionKind::Pooled { .. } => None,
    };
    match attribute {
        // Memory of cuMemCreate and of pools has no context.
        1 => value
            .cast::<u64>()
            .put(context.map_or(0, |context| context.raw())),
        2 => value
            .cast::<u32>()
            .put(if region.is_host() { 1 } else { 2 }),
        3 => value.cast::<u64>().put(address),
        4 if region.is_host() => value.cast::<u64>().put(address),
        4 => Err(Error::INVALID_VALUE),
        6 => value.put(u8::from(region.sync_memops)),
        7 => value.cast::<u64>().put(region.id),
        8 => value.put(0),
        9 => {
            let device = i32::try_from(region.device).unwrap_or(i32::MAX);
            value.cast::<i32>().put(device)
        }
        10 => value.put(u8::from(matches!(region.kind, RegionKind::Plain { .. }))),
        11 => value.cast::<u64>().put(at),
        12 => value.cast::<u64>().put(region.requested),
        13 => value.cast::<u32>().put(1),
        14 => value.cast::<u32>().put(match region.kind {
            RegionKind::Mapped { .. } => 1,
            _ => 0,
        }),
        15 => value.put(0),
        16 => value.cast::<u32>().put(match region.kind {
            RegionKind::Mapped {
                can_read: false, ..
            } => 0,
            RegionKind::Mapped {
                can_write: false, ..
            } => 1,
            _ => 3,
        }),
        17 => value.cast::<u64>().put(0),
        18 => value.cast::<u64>().put(region.bytes),
        19 => value.cast::<u64>().put(at),
        20 => value.cast::<u64>().put(region.id),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// Implements `cuPointerGetAttribute`: returns one attribute; memory unknown to the driver is an error.
pub(crate) fn pointer_attribute(value: Value, attribute: u32, address: u64) -> Result {
    let driver = driver()?;
    let state = driver.state();
    driver.current(&state)?;
    put_attribute(&state, attribute, value, address, true)
}

/// Implements `cuPointerGetAttributes`: returns several attributes, null ones for unknown memory.
pub(crate) fn pointer_attributes(
    count: u32,
    attributes: In<u32>,
    values: In<Value>,
    address: u64,
) -> Result {
    let driver = driver()?;
    let state = driver.state();
    driver.current(&state)?;
    let count = count as usize;
    let values = values.list(count)?;
    for (attribute, value) in attributes.list(count)?.into_iter().zip(values) {
        put_attribute(&state, attribute, value, address, false)?;
    }
    Ok(())
}

/// Implements `cuPointerSetAttribute`: sets `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`, which is stored only.
pub(crate) fn set_pointer_attribute(value: In<u32>, attribute: u32, address: u64) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    if attribute != 6 {
        return Err(Error::INVALID_VALUE);
    }
    let at = state
        .memory
        .find(address)
        .map(|(at, _)| at)
        .ok_or(Error::INVALID_VALUE)?;
    let region = state.memory.at_mut(at).ok_or(Error::INVALID_VALUE)?;
    region.sync_memops = value.get()? != 0;
    Ok(())
}
