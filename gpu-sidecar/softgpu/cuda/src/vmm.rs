//! Virtual memory management (`cuMemAddressReserve`, `cuMemCreate`, `cuMemMap`): every handle is a file of its own,
//! which can be mapped at several addresses and in several processes.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, IntoRawFd as _, OwnedFd};

use device::part::MappingTimes;
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::io::{dup, fcntl_dupfd_cloexec};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use softgpu_wire::clock;
use softgpu_wire::message::{Kind, Message};

use crate::driver::{Driver, driver};
use crate::error::{Error, Result};
use crate::host_time;
use crate::memory::{Region, RegionKind, granule};
use crate::pointer::{In, Out, as_pointer};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`, the only exportable handle type.
const POSIX_FD: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`, the only supported location type.
const ON_DEVICE: u32 = 1;
/// Lowest descriptor for files of handles, above those that a program opens itself.
const FIRST_FILE: i32 = 1024;

/// A reserved range of addresses, by its start.
#[derive(Clone, Copy, Debug)]
struct Reservation {
    bytes: u64,
}

/// Memory of a device without an address.
#[derive(Debug)]
pub(crate) struct PhysicalMemory {
    file: OwnedFd,
    bytes: u64,
    pub(crate) device: usize,
    /// Number of the memory's allocation at the server.
    charge: u64,
    /// Number of `cuMemRelease` calls due.
    handles: u32,
    mappings: u32,
    properties: Properties,
}

/// Reservations and memory handles; see the [module](self).
#[derive(Default, Debug)]
pub(crate) struct Vmm {
    reservations: BTreeMap<u64, Reservation>,
    physical: BTreeMap<u64, PhysicalMemory>,
    next: u64,
}

impl Vmm {
    fn reservation(&self, at: u64, bytes: u64) -> Option<u64> {
        let (&begin, there) = self.reservations.range(..=at).next_back()?;
        let end = at.checked_add(bytes)?;
        (end <= begin + there.bytes).then_some(begin)
    }

    pub(crate) fn is_reserved(&self, at: u64) -> bool {
        self.reservation(at, 1).is_some()
    }
}

/// `CUmemLocation`, a kind of location and a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Location {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

/// `CUmemAllocationProp`, the properties of memory from `cuMemCreate`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    kind: u32,
    requested_handles: u32,
    location: Location,
    win32: *const c_void,
    compression: u8,
    rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

// SAFETY: its pointer is only stored and returned, never dereferenced.
unsafe impl Send for Properties {}

/// `CUmemAccessDesc`, the access rights of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AccessDescription {
    location: Location,
    flags: u32,
}

fn length(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| Error::INVALID_VALUE)
}

/// Moves a file to a high descriptor, because programs that use `select` need low ones.
fn high(file: OwnedFd) -> Result<OwnedFd> {
    if let Ok(high) = fcntl_dupfd_cloexec(&file, FIRST_FILE) {
        return Ok(high);
    }
    let limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum || limit.maximum.is_none() {
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        let _raised = setrlimit(Resource::Nofile, raised);
    }
    Ok(fcntl_dupfd_cloexec(&file, FIRST_FILE).unwrap_or(file))
}

/// Returns the device of a location.
fn device_of(driver: &Driver, location: Location) -> Result<usize> {
    if location.kind != ON_DEVICE {
        return Err(if (1..=5).contains(&location.kind) {
            Error::NOT_SUPPORTED
        } else {
            Error::INVALID_VALUE
        });
    }
    driver.device(location.id)?;
    usize::try_from(location.id).map_err(|_| Error::INVALID_DEVICE)
}

fn check_properties(driver: &Driver, properties: &Properties) -> Result<usize> {
    // Pinned memory is the only kind.
    if properties.kind != 1 {
        return Err(Error::INVALID_VALUE);
    }
    if properties.requested_handles & !POSIX_FD != 0 {
        return Err(Error::NOT_SUPPORTED);
    }
    device_of(driver, properties.location)
}

/// Implements `cuMemGetAllocationGranularity`: minimum and recommended granularity are equal.
pub(crate) fn granularity(out: Out<usize>, properties: In<Properties>, option: u32) -> Result {
    let driver = driver()?;
    check_properties(driver, &properties.get()?)?;
    if option > 1 {
        return Err(Error::INVALID_VALUE);
    }
    out.put(length(granule(driver))?)
}

/// Implements `cuMemAddressReserve`: the requested address is only a hint.
pub(crate) fn reserve(
    out: Out<u64>,
    bytes: usize,
    alignment: usize,
    hint: u64,
    flags: u64,
) -> Result {
    let driver = driver()?;
    let granule = granule(driver);
    let bytes = bytes as u64;
    let is_good = alignment == 0 || alignment.is_power_of_two();
    if flags != 0 || bytes == 0 || !bytes.is_multiple_of(granule) || !is_good || out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let alignment = (alignment as u64).max(granule.next_power_of_two());
    let mut state = driver.state();
    let whole = bytes.checked_add(alignment).ok_or(Error::OUT_OF_MEMORY)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping, not a fixed one: at the hint only if nothing else is mapped there.
    let at = unsafe { mmap_anonymous(as_pointer(hint), length(whole)?, ProtFlags::empty(), flags) };
    let at = at.map_err(|_| Error::OUT_OF_MEMORY)?.expose_provenance() as u64;
    let begin = at.next_multiple_of(alignment);
    let behind = begin + bytes;
    for (from, to) in [(at, begin), (behind, at + whole)] {
        if to > from {
            // SAFETY: the ends of the new mapping, outside of the kept range.
            let _unmapped = unsafe { munmap(as_pointer(from), length(to - from)?) };
        }
    }
    state
        .memory
        .vmm
        .reservations
        .insert(begin, Reservation { bytes });
    out.put(begin)
}

/// Implements `cuMemAddressFree`: frees a reservation without mappings.
pub(crate) fn address_free(at: u64, bytes: usize) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    let there = state.memory.vmm.reservations.get(&at).copied();
    if there.is_none_or(|there| there.bytes != bytes as u64) {
        return Err(Error::INVALID_VALUE);
    }
    if state.memory.is_touched(at, bytes as u64) {
        return Err(Error::INVALID_VALUE);
    }
    state.memory.vmm.reservations.remove(&at);
    // SAFETY: reserved by `reserve`, without mappings.
    unsafe { munmap(as_pointer(at), bytes) }.map_err(|_| Error::INVALID_VALUE)
}

/// Implements `cuMemCreate`: allocates memory without an address; needs no context.
pub(crate) fn create(
    out: Out<u64>,
    bytes: usize,
    properties: In<Properties>,
    flags: u64,
) -> Result {
    let begin = clock::now();
    let driver = driver()?;
    driver.wait_unlocked()?;
    let properties = properties.get()?;
    let device = check_properties(driver, &properties)?;
    let bytes = bytes as u64;
    if flags != 0 || bytes == 0 || !bytes.is_multiple_of(granule(driver)) || out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let file = memfd_create("weir-softgpu-memory", MemfdFlags::CLOEXEC)
        .map_err(|_| Error::OUT_OF_MEMORY)?;
    ftruncate(&file, bytes).map_err(|_| Error::OUT_OF_MEMORY)?;
    let file = high(file)?;
    let stat = fstat(&file).map_err(|_| Error::OPERATING_SYSTEM)?;
    let unit = u64::from(driver.devices[device].unit);
    let words = [unit, bytes, stat.st_dev, stat.st_ino];
    let charge = driver.request(&Message::new(Kind::Allocate, &words))?.words[0];
    let mut state = driver.state();
    let physical = PhysicalMemory {
        file,
        bytes,
        device,
        charge,
        handles: 1,
        mappings: 0,
        properties,
    };
    out.put(add(&mut state.memory.vmm, physical))?;
    drop(state);
    let times = &driver.devices[device].part.mappings;
    host_time::spend(driver, begin, times.create_us, 1);
    Ok(())
}

fn add(vmm: &mut Vmm, physical: PhysicalMemory) -> u64 {
    vmm.next += 1;
    let handle = vmm.next;
    vmm.physical.insert(handle, physical);
    handle
}

/// Frees memory that has neither handles nor mappings.
fn drop_if_unused(driver: &Driver, vmm: &mut Vmm, handle: u64) -> Result {
    let is_used = |physical: &PhysicalMemory| physical.handles > 0 || physical.mappings > 0;
    if vmm.physical.get(&handle).is_some_and(is_used) {
        return Ok(());
    }
    match vmm.physical.remove(&handle) {
        Some(physical) => crate::memory::discharge(driver, physical.charge),
        None => Ok(()),
    }
}

/// Implements `cuMemRelease`: drops a reference to a handle.
pub(crate) fn release(handle: u64) -> Result {
    let begin = clock::now();
    let driver = driver()?;
    let mut state = driver.state();
    let vmm = &mut state.memory.vmm;
    let physical = vmm
        .physical
        .get_mut(&handle)
        .filter(|there| there.handles > 0);
    let physical = physical.ok_or(Error::INVALID_VALUE)?;
    physical.handles -= 1;
    let times = &driver.devices[physical.device].part.mappings;
    drop_if_unused(driver, vmm, handle)?;
    drop(state);
    host_time::spend(driver, begin, times.release_us, 1);
    Ok(())
}

/// Implements `cuMemMap`: maps a whole handle, inaccessible until `cuMemSetAccess`.
pub(crate) fn map(at: u64, bytes: usize, offset: usize, handle: u64, flags: u64) -> Result {
    let begin = clock::now();
    let driver = driver()?;
    driver.wait_unlocked()?;
    let size = bytes as u64;
    let mut state = driver.state();
    let memory = &mut state.memory;
    let physical = memory
        .vmm
        .physical
        .get(&handle)
        .ok_or(Error::INVALID_VALUE)?;
    if flags != 0
        || offset != 0
        || size == 0
        || size != physical.bytes
        || !at.is_multiple_of(granule(driver))
    {
        return Err(Error::INVALID_VALUE);
    }
    if memory.vmm.reservation(at, size).is_none() {
        return Err(Error::INVALID_VALUE);
    }
    if memory.is_touched(at, size) {
        return Err(Error::INVALID_VALUE);
    }
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: addresses reserved by `reserve`, with nothing mapped there.
    let mapped = unsafe {
        mmap(
            as_pointer(at),
            bytes,
            ProtFlags::empty(),
            flags,
            &physical.file,
            0,
        )
    };
    mapped.map_err(|_| Error::OUT_OF_MEMORY)?;
    let device = physical.device;
    if let Some(physical) = memory.vmm.physical.get_mut(&handle) {
        physical.mappings += 1;
    }
    let id = state.next_id();
    let region = Region {
        bytes: size,
        requested: size,
        device,
        kind: RegionKind::Mapped {
            handle,
            can_read: false,
            can_write: false,
        },
        id,
        sync_memops: false,
    };
    state.memory.add(at, region);
    drop(state);
    let times = &driver.devices[device].part.mappings;
    host_time::spend(driver, begin, times.map_us, 1);
    Ok(())
}

/// Implements `cuMemUnmap`: removes whole mappings.
pub(crate) fn unmap(at: u64, bytes: usize) -> Result {
    let begin = clock::now();
    let driver = driver()?;
    driver.wait_unlocked()?;
    let _paused = driver.effects.pause();
    let mut state = driver.state();
    let found = state
        .memory
        .filling(at, bytes as u64)
        .ok_or(Error::INVALID_VALUE)?;
    let is_mapped = |at: &u64| {
        matches!(
            state.memory.at(*at),
            Some(Region {
                kind: RegionKind::Mapped { .. },
                ..
            })
        )
    };
    if !found.iter().all(is_mapped) {
        return Err(Error::INVALID_VALUE);
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: addresses reserved by `reserve`, with mappings of this module that no effect uses now.
    let emptied = unsafe { mmap_anonymous(as_pointer(at), bytes, ProtFlags::empty(), flags) };
    emptied.map_err(|_| Error::OPERATING_SYSTEM)?;
    let count = found.len();
    let mut times = MappingTimes::default();
    for at in found {
        let Some(Region {
            kind: RegionKind::Mapped { handle, .. },
            device,
            ..
        }) = state.memory.remove(at)
        else {
            continue;
        };
        times = driver.devices[device].part.mappings;
        let vmm = &mut state.memory.vmm;
        if let Some(physical) = vmm.physical.get_mut(&handle) {
            physical.mappings -= 1;
        }
        drop_if_unused(driver, vmm, handle)?;
    }
    drop(state);
    host_time::spend(driver, begin, times.unmap_us, count);
    Ok(())
}

/// Implements `cuMemSetAccess`: sets the access rights of whole mappings.
pub(crate) fn set_access(
    at: u64,
    bytes: usize,
    list: In<AccessDescription>,
    count: usize,
) -> Result {
    let begin = clock::now();
    let driver = driver()?;
    if count == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let list = list.list(count)?;
    // Effects must not use memory whose access is revoked.
    let _paused = driver.effects.pause();
    let mut state = driver.state();
    let found = state
        .memory
        .filling(at, bytes as u64)
        .ok_or(Error::INVALID_VALUE)?;
    // Validates everything before changing anything.
    let mut rights = (false, false);
    for description in &list {
        let device = device_of(driver, description.location)?;
        rights = match description.flags {
            0 => (false, false),
            1 => (true, false),
            3 => (true, true),
            _ => return Err(Error::INVALID_VALUE),
        };
        for &at in &found {
            let Some(region) = state.memory.at(at) else {
                continue;
            };
            if device != region.device
                && !crate::device::can_access_peer(driver, device, region.device)
            {
                return Err(Error::PEER_ACCESS_UNSUPPORTED);
            }
            if !matches!(region.kind, RegionKind::Mapped { .. }) {
                return Err(Error::INVALID_VALUE);
            }
        }
    }
    // All devices share the rights, because a process has one address space. The last description wins.
    let (may_read, may_write) = rights;
    let mut flags = MprotectFlags::empty();
    flags.set(MprotectFlags::READ, may_read);
    flags.set(MprotectFlags::WRITE, may_write);
    let mappings = found.len();
    let mut times = MappingTimes::default();
    for at in found {
        let Some(region) = state.memory.at_mut(at) else {
            continue;
        };
        // SAFETY: a mapping of this module, which no effect uses now.
        let changed = unsafe { mprotect(as_pointer(at), length(region.bytes)?, flags) };
        changed.map_err(|_| Error::OPERATING_SYSTEM)?;
        if let RegionKind::Mapped {
            can_read,
            can_write,
            ..
        } = &mut region.kind
        {
            (*can_read, *can_write) = rights;
        }
        times = driver.devices[region.device].part.mappings;
    }
    drop(state);
    host_time::spend(driver, begin, times.access_us, mappings);
    Ok(())
}

/// Implements `cuMemGetAccess`: returns the access rights at an address.
pub(crate) fn get_access(out: Out<u64>, location: In<Location>, at: u64) -> Result {
    let driver = driver()?;
    device_of(driver, location.get()?)?;
    let state = driver.state();
    let (_, region) = state.memory.find(at).ok_or(Error::INVALID_VALUE)?;
    let flags = match region.kind {
        RegionKind::Mapped {
            can_write: true, ..
        }
        | RegionKind::Plain { .. }
        | RegionKind::Pooled { .. } => 3,
        RegionKind::Mapped { can_read: true, .. } => 1,
        RegionKind::Mapped { .. } => 0,
        _ => return Err(Error::INVALID_VALUE),
    };
    out.put(flags)
}

/// Implements `cuMemExportToShareableHandle`: returns a file descriptor for a handle.
pub(crate) fn export(out: Out<i32>, handle: u64, kind: u32, flags: u64) -> Result {
    let driver = driver()?;
    let state = driver.state();
    let physical = state
        .memory
        .vmm
        .physical
        .get(&handle)
        .ok_or(Error::INVALID_VALUE)?;
    if flags != 0 || kind != POSIX_FD || physical.properties.requested_handles & POSIX_FD == 0 {
        return Err(Error::INVALID_VALUE);
    }
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let file = dup(&physical.file).map_err(|_| Error::OPERATING_SYSTEM)?;
    out.put(file.into_raw_fd())
}

/// Implements `cuMemImportFromShareableHandle`: the file descriptor remains the caller's.
pub(crate) fn import(out: Out<u64>, os_handle: *mut c_void, kind: u32) -> Result {
    let driver = driver()?;
    driver.wait_unlocked()?;
    if kind != POSIX_FD {
        return Err(Error::NOT_SUPPORTED);
    }
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let number = i32::try_from(os_handle.addr()).map_err(|_| Error::INVALID_VALUE)?;
    if number < 0 {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: the caller guarantees an open file for the duration of the call; it is only inspected and duplicated.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    let stat = fstat(file).map_err(|_| Error::INVALID_VALUE)?;
    let answer = driver.request(&Message::new(Kind::Import, &[stat.st_dev, stat.st_ino]))?;
    let [charge, unit, bytes, ..] = answer.words;
    let device = driver
        .devices
        .iter()
        .position(|device| u64::from(device.unit) == unit);
    let Some(device) = device else {
        crate::memory::discharge(driver, charge)?;
        return Err(Error::INVALID_DEVICE);
    };
    let Ok(file) = file.try_clone_to_owned() else {
        crate::memory::discharge(driver, charge)?;
        return Err(Error::OPERATING_SYSTEM);
    };
    let mut state = driver.state();
    let physical = PhysicalMemory {
        file: high(file)?,
        bytes,
        device,
        charge,
        handles: 1,
        mappings: 0,
        properties: Properties {
            kind: 1,
            requested_handles: POSIX_FD,
            location: Location {
                kind: ON_DEVICE,
                id: i32::try_from(device).unwrap_or(i32::MAX),
            },
            win32: std::ptr::null(),
            compression: 0,
            rdma: 0,
            usage: 0,
            reserved: [0; 4],
        },
    };
    out.put(add(&mut state.memory.vmm, physical))
}

/// Implements `cuMemRetainAllocationHandle`: returns the handle of mapped memory and adds a reference.
pub(crate) fn retain(out: Out<u64>, at: *mut c_void) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    let region = state
        .memory
        .find(at.expose_provenance() as u64)
        .map(|(_, region)| region.kind.clone());
    let Some(RegionKind::Mapped { handle, .. }) = region else {
        return Err(Error::INVALID_VALUE);
    };
    let physical = state
        .memory
        .vmm
        .physical
        .get_mut(&handle)
        .ok_or(Error::INVALID_VALUE)?;
    physical.handles += 1;
    out.put(handle)
}

/// Implements `cuMemGetAllocationPropertiesFromHandle`: returns the properties of a handle.
pub(crate) fn properties(out: Out<Properties>, handle: u64) -> Result {
    let driver = driver()?;
    let state = driver.state();
    let physical = state
        .memory
        .vmm
        .physical
        .get(&handle)
        .ok_or(Error::INVALID_VALUE)?;
    out.put(physical.properties)
}
