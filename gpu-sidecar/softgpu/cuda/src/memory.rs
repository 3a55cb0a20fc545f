//! Device memory and its addresses. All of it is shared memory of the system, mapped at the addresses that programs
//! hold: copies and kernels access it, and so would a program that dereferences a device pointer by mistake.
//!
//! Plain allocations come from a heap, one file for each device; memory made with `cuMemCreate` has a file of its own,
//! which other processes can map. The device is charged in whole granules, as by the real driver.
//! other processes can map. What is charged to the device is counted in whole granules, as the real driver does.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use softgpu_wire::message::{Kind, Message};

use crate::context::Context;
use crate::driver::{Driver, driver};
use crate::error::{Error, Result};
use crate::pointer::{Out, as_pointer, size};
use crate::state::State;
use crate::table::Handle;
use crate::{graph, stream};

/// Kind of access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Kind of memory in a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RegionKind {
    /// A plain allocation. `charge` is the number of its granules' allocation at the server; 0 if it shares a granule.
    Plain {
        context: Handle<Context>,
        charge: u64,
    },
    /// A mapping of a `cuMemCreate` handle.
    Mapped {
        handle: u64,
        can_read: bool,
        can_write: bool,
    },
    /// Host memory accessible to the device, allocated by the driver.
    Pinned {
        context: Handle<Context>,
        flags: u32,
    },
    /// Host memory registered by the program.
    Registered {
        context: Handle<Context>,
        flags: u32,
    },
    /// Memory of another process, opened from its IPC handle.
    Opened {
        context: Handle<Context>,
        allocation: u64,
    },
    /// Memory of a pool. `is_freed` is set once its free is submitted to a stream.
    Pooled {
        pool: u64,
        charge: u64,
        is_freed: bool,
    },
}

/// A range of addresses with memory of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) bytes: u64,
    /// Requested number of bytes, before rounding.
    pub(crate) requested: u64,
    pub(crate) device: usize,
    pub(crate) kind: RegionKind,
    /// Number unique among allocations (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
    pub(crate) id: u64,
    /// Whether synchronous operations on the region always block (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`); stored only.
    pub(crate) sync_memops: bool,
}

impl Region {
    pub(crate) const fn is_host(&self) -> bool {
        matches!(
            self.kind,
            RegionKind::Pinned { .. } | RegionKind::Registered { .. }
        )
    }
}

/// Granules of one device, and the small allocations within them.
#[derive(Debug)]
struct Heap {
    file: OwnedFd,
    base: u64,
    bytes: u64,
    granule: u64,
    /// Free ranges of whole granules: length by start.
    free: BTreeMap<u64, u64>,
    /// Granules shared by small allocations, by start.
    shared: BTreeMap<u64, Shared>,
}

/// A granule shared by small allocations.
#[derive(Debug)]
struct Shared {
    charge: u64,
    /// Free ranges: length by start.
    free: BTreeMap<u64, u64>,
}

/// Alignment of small allocations in bytes.
const ALIGN: u64 = 512;
/// Granule of the real driver in bytes, before scaling.
pub(crate) const GRANULE: u64 = 2 << 20;

/// All memory known to the driver; see the [module](self).
pub(crate) struct Memory {
    regions: BTreeMap<u64, Region>,
    heaps: Vec<Option<Heap>>,
    pub(crate) vmm: crate::vmm::Vmm,
    /// Opened memory of other processes by key: its address, and the number of times it was opened.
    pub(crate) opened: HashMap<[u64; 2], (u64, u32)>,
}

/// Takes a range of this length from the first free range that is large enough.
fn take_first(free: &mut BTreeMap<u64, u64>, bytes: u64) -> Option<u64> {
    let (&at, &there) = free.iter().find(|(_, there)| **there >= bytes)?;
    free.remove(&at);
    if there > bytes {
        free.insert(at + bytes, there - bytes);
    }
    Some(at)
}

/// Returns a range to the free ones and merges it with its neighbours.
fn give_back(free: &mut BTreeMap<u64, u64>, mut at: u64, mut bytes: u64) {
    if let Some(behind) = free.remove(&(at + bytes)) {
        bytes += behind;
    }
    if let Some((&before, &there)) = free.range(..at).next_back()
        && before + there == at
    {
        at = before;
        bytes += there;
    }
    free.insert(at, bytes);
}

impl Heap {
    fn new(bytes: u64, granule: u64) -> Result<Self> {
        let bytes = bytes.next_multiple_of(granule);
        let file = memfd_create("weir-softgpu-memory", MemfdFlags::CLOEXEC)
            .map_err(|_| Error::OPERATING_SYSTEM)?;
        ftruncate(&file, bytes).map_err(|_| Error::OUT_OF_MEMORY)?;
        let length = usize::try_from(bytes).map_err(|_| Error::OUT_OF_MEMORY)?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
                &file,
                0,
            )
        };
        let base = at.map_err(|_| Error::OUT_OF_MEMORY)?.expose_provenance() as u64;
        Ok(Self {
            file,
            base,
            bytes,
            granule,
            free: BTreeMap::from([(base, bytes)]),
            shared: BTreeMap::new(),
        })
    }

    /// Returns these bytes to the system; they are zero when used again.
    fn punch(&self, at: u64, bytes: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _punched = fallocate(&self.file, flags, at - self.base, bytes);
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        let at = as_pointer(self.base);
        // SAFETY: the mapping was made in `new`, and only this value unmaps it.
        let _unmapped = unsafe { munmap(at, size(self.bytes)) };
    }
}

impl Memory {
    pub(crate) fn new(devices: usize) -> Self {
        Self {
            regions: BTreeMap::new(),
            heaps: (0..devices).map(|_| None).collect(),
            vmm: crate::vmm::Vmm::default(),
            opened: HashMap::new(),
        }
    }

    /// Returns the region that contains an address, and its start.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, &Region)> {
        let (&at, region) = self.regions.range(..=address).next_back()?;
        (address - at < region.bytes).then_some((at, region))
    }

    pub(crate) fn at(&self, begin: u64) -> Option<&Region> {
        self.regions.get(&begin)
    }

    pub(crate) fn at_mut(&mut self, begin: u64) -> Option<&mut Region> {
        self.regions.get_mut(&begin)
    }

    pub(crate) fn add(&mut self, at: u64, region: Region) {
        self.regions.insert(at, region);
    }

    pub(crate) fn remove(&mut self, at: u64) -> Option<Region> {
        self.regions.remove(&at)
    }

    /// Returns the starts of the regions that exactly fill a range, or `None` if they do not.
    pub(crate) fn filling(&self, address: u64, bytes: u64) -> Option<Vec<u64>> {
        let end = address.checked_add(bytes)?;
        let mut found = Vec::new();
        let mut next = address;
        for (&at, region) in self.regions.range(address..end) {
            if at != next {
                return None;
            }
            next = at + region.bytes;
            found.push(at);
        }
        (next == end && bytes > 0).then_some(found)
    }

    /// Returns whether any region overlaps a range.
    pub(crate) fn is_touched(&self, address: u64, bytes: u64) -> bool {
        let end = address.saturating_add(bytes);
        self.regions.range(address..end).next().is_some() || self.find(address).is_some()
    }

    /// Returns whether a range consists of memory known to the driver, whatever its access rights.
    pub(crate) fn covers(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else {
            return false;
        };
        let mut next = address;
        while next < end {
            match self.find(next) {
                Some((at, region)) if end <= at + region.requested => return true,
                // The bytes added by rounding are not the program's.
                Some((at, region)) if region.requested == region.bytes => next = at + region.bytes,
                _ => return false,
            }
        }
        true
    }

    /// Returns whether an address is in the range of device memory, allocated or not.
    pub(crate) fn is_device(&self, address: u64) -> bool {
        self.vmm.is_reserved(address) || self.is_in_heap(address)
    }

    /// Returns whether a copy may access a range. An address outside of device memory counts as host memory.
    pub(crate) fn may_copy(&self, address: u64, bytes: u64, access: Access) -> bool {
        let is_host = self.find(address).is_none() && !self.is_device(address);
        is_host || self.may(address, bytes, access)
    }

    /// Returns whether the device may access a range: all of it is known and permits the access.
    pub(crate) fn may(&self, address: u64, bytes: u64, access: Access) -> bool {
        let Some(end) = address.checked_add(bytes) else {
            return false;
        };
        let mut next = address;
        while next < end {
            let Some((at, region)) = self.find(next) else {
                return false;
            };
            let is_allowed = match (&region.kind, access) {
                (RegionKind::Mapped { can_read, .. }, Access::Read) => *can_read,
                (RegionKind::Mapped { can_write, .. }, Access::Write) => *can_write,
                _ => true,
            };
            if !is_allowed {
                return false;
            }
            next = at + region.bytes;
        }
        true
    }

    fn is_in_heap(&self, address: u64) -> bool {
        self.heaps
            .iter()
            .flatten()
            .any(|heap| address >= heap.base && address - heap.base < heap.bytes)
    }

    /// Returns whether an address is in a region known to the driver.
    pub(crate) fn is_known(&self, address: u64) -> bool {
        self.find(address).is_some()
    }

    /// Returns the device of the region at an address, or of the last one before it.
    pub(crate) fn device_near(&self, address: u64) -> Option<usize> {
        self.regions
            .range(..=address)
            .next_back()
            .map(|(_, region)| region.device)
    }

    /// Returns the starts of all regions that satisfy a predicate.
    pub(crate) fn regions(&self, is_meant: impl Fn(&Region) -> bool) -> Vec<u64> {
        self.regions
            .iter()
            .filter(|(_, region)| is_meant(region))
            .map(|(at, _)| *at)
            .collect()
    }

    fn heap(&mut self, driver: &Driver, device: usize) -> Result<&mut Heap> {
        let there = self.heaps.get_mut(device).ok_or(Error::INVALID_DEVICE)?;
        match there {
            Some(heap) => Ok(heap),
            None => {
                // Twice the device's memory leaves room for fragmentation.
                let bytes = driver.devices[device].memory.saturating_mul(2);
                Ok(there.insert(Heap::new(bytes, granule(driver))?))
            }
        }
    }
}

/// Returns the granularity of device memory in bytes.
pub(crate) fn granule(driver: &Driver) -> u64 {
    (GRANULE / u64::from(driver.config.bytes)).max(4096)
}

/// Charges bytes to a device at the server; fails if it has too little memory.
pub(crate) fn charge(driver: &Driver, device: usize, bytes: u64) -> Result<u64> {
    let unit = u64::from(driver.devices[device].unit);
    let message = Message::new(Kind::Allocate, &[unit, bytes, 0, 0]);
    Ok(driver.request(&message)?.words[0])
}

/// Returns charged bytes to the device.
pub(crate) fn discharge(driver: &Driver, charge: u64) -> Result {
    driver
        .request(&Message::new(Kind::Free, &[charge]))
        .map(|_| ())
}

/// Allocates device memory from the heap; returns its address, its length, and its charge at the server.
pub(crate) fn allocate(
    driver: &Driver,
    state: &mut State,
    device: usize,
    requested: u64,
) -> Result<(u64, u64, u64)> {
    let granule = granule(driver);
    if requested == 0 {
        return Err(Error::INVALID_VALUE);
    }
    if requested > driver.devices[device].memory {
        return Err(Error::OUT_OF_MEMORY);
    }
    if requested >= granule / 2 {
        let bytes = requested.next_multiple_of(granule);
        state.memory.heap(driver, device)?;
        let charge = charge(driver, device, bytes)?;
        let heap = state.memory.heap(driver, device)?;
        let Some(at) = take_first(&mut heap.free, bytes) else {
            discharge(driver, charge)?;
            return Err(Error::OUT_OF_MEMORY);
        };
        return Ok((at, bytes, charge));
    }
    let bytes = requested.next_multiple_of(ALIGN);
    let heap = state.memory.heap(driver, device)?;
    for shared in heap.shared.values_mut() {
        if let Some(at) = take_first(&mut shared.free, bytes) {
            return Ok((at, bytes, 0));
        }
    }
    let charge = charge(driver, device, granule)?;
    let heap = state.memory.heap(driver, device)?;
    let Some(begin) = take_first(&mut heap.free, granule) else {
        discharge(driver, charge)?;
        return Err(Error::OUT_OF_MEMORY);
    };
    let mut free = BTreeMap::from([(begin, granule)]);
    let at = take_first(&mut free, bytes).ok_or(Error::OUT_OF_MEMORY)?;
    heap.shared.insert(begin, Shared { charge, free });
    Ok((at, bytes, 0))
}

/// Returns memory to the heap.
pub(crate) fn release(
    driver: &Driver,
    state: &mut State,
    device: usize,
    at: u64,
    bytes: u64,
    charge: u64,
) -> Result {
    let Some(heap) = state.memory.heaps.get_mut(device).and_then(Option::as_mut) else {
        return Ok(());
    };
    if charge > 0 {
        heap.punch(at, bytes);
        give_back(&mut heap.free, at, bytes);
        return discharge(driver, charge);
    }
    let begin = heap.base + (at - heap.base) / heap.granule * heap.granule;
    let granule = heap.granule;
    let Some(shared) = heap.shared.get_mut(&begin) else {
        return Ok(());
    };
    give_back(&mut shared.free, at, bytes);
    if shared.free.get(&begin) != Some(&granule) {
        return Ok(());
    }
    let charge = shared.charge;
    heap.shared.remove(&begin);
    heap.punch(begin, granule);
    give_back(&mut heap.free, begin, granule);
    discharge(driver, charge)
}

/// Parameters for another process to map a plain allocation: the heap's file, the range of the allocation's granules in
/// it, their charge, and the allocation's offset in the range.
pub(crate) struct ExportableRange {
    pub(crate) file: OwnedFd,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) charge: u64,
    pub(crate) within: u64,
}

/// Returns the range that another process must map for a plain allocation.
pub(crate) fn exportable_range(state: &State, at: u64) -> Result<ExportableRange> {
    let region = state.memory.at(at).ok_or(Error::INVALID_VALUE)?;
    let RegionKind::Plain { charge, .. } = region.kind else {
        return Err(Error::INVALID_VALUE);
    };
    let heap = state.memory.heaps[region.device]
        .as_ref()
        .ok_or(Error::INVALID_VALUE)?;
    let file = heap
        .file
        .as_fd()
        .try_clone_to_owned()
        .map_err(|_| Error::OPERATING_SYSTEM)?;
    if charge > 0 {
        return Ok(ExportableRange {
            file,
            offset: at - heap.base,
            bytes: region.bytes,
            charge,
            within: 0,
        });
    }
    let offset = (at - heap.base) / heap.granule * heap.granule;
    let shared = heap
        .shared
        .get(&(heap.base + offset))
        .ok_or(Error::INVALID_VALUE)?;
    Ok(ExportableRange {
        file,
        offset,
        bytes: heap.granule,
        charge: shared.charge,
        within: at - heap.base - offset,
    })
}

/// Frees the memory of a destroyed context. The caller has paused effects.
pub(crate) fn forget_context(driver: &Driver, state: &mut State, context: Handle<Context>) {
    let its = state.memory.regions(|region| match region.kind {
        RegionKind::Plain { context: of, .. } | RegionKind::Opened { context: of, .. } => {
            of == context
        }
        RegionKind::Pinned { context: of, .. } | RegionKind::Registered { context: of, .. } => {
            of == context
        }
        RegionKind::Mapped { .. } | RegionKind::Pooled { .. } => false,
    });
    for at in its {
        let Some(region) = state.memory.remove(at) else {
            continue;
        };
        let _given_back = match region.kind {
            RegionKind::Plain { charge, .. } => {
                release(driver, state, region.device, at, region.bytes, charge)
            }
            RegionKind::Pinned { .. } => crate::host::unmap(at, region.bytes),
            RegionKind::Opened { allocation, .. } => {
                state.memory.opened.retain(|_, (opened, _)| *opened != at);
                crate::ipc::close_now(driver, at, &region, allocation)
            }
            _ => Ok(()),
        };
    }
}

fn allocate_plain(out: Out<u64>, requested: u64) -> Result<u64> {
    let driver = driver()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    driver.wait_unlocked()?;
    let mut state = driver.state();
    let context = driver.current(&state)?;
    graph::refuse_while_capturing(&mut state, context)?;
    let device = state
        .contexts
        .get(context)
        .map_or(0, |context| context.device);
    let (at, bytes, charge) = allocate(driver, &mut state, device, requested)?;
    let id = state.next_id();
    let region = Region {
        bytes,
        requested,
        device,
        kind: RegionKind::Plain { context, charge },
        id,
        sync_memops: false,
    };
    state.memory.add(at, region);
    out.put(at)?;
    Ok(at)
}

/// Implements `cuMemAlloc_v2`: allocates device memory.
pub(crate) fn alloc(out: Out<u64>, bytes: usize) -> Result {
    allocate_plain(out, bytes as u64).map(|_| ())
}

/// Implements `cuMemAllocPitch_v2`: allocates rows padded to multiples of 512 bytes.
pub(crate) fn alloc_pitch(
    out: Out<u64>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element: u32,
) -> Result {
    driver()?;
    if ![4, 8, 16].contains(&element) || width == 0 || height == 0 || pitch.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let row = width
        .checked_next_multiple_of(512)
        .ok_or(Error::INVALID_VALUE)?;
    let bytes = row.checked_mul(height).ok_or(Error::OUT_OF_MEMORY)?;
    allocate_plain(out, bytes as u64)?;
    pitch.put(row)
}

/// Implements `cuMemFree_v2`: waits for all work of the context first, as the driver does.
pub(crate) fn free(address: u64) -> Result {
    let driver = driver()?;
    if address == 0 {
        return Ok(());
    }
    let context = {
        let mut state = driver.state();
        driver.current_any(&state)?;
        let region = state.memory.at(address).ok_or(Error::INVALID_VALUE)?;
        match region.kind {
            RegionKind::Plain { context, .. } => {
                graph::refuse_while_capturing(&mut state, context)?;
                Some(context)
            }
            RegionKind::Pooled { .. } => None,
            _ => return Err(Error::INVALID_VALUE),
        }
    };
    match context {
        Some(context) => crate::context::drain(driver, context)?,
        None => return crate::pool::free_synchronously(driver, address),
    }
    let _paused = driver.effects.pause();
    let mut state = driver.state();
    let is_plain = |region: &Region| matches!(region.kind, RegionKind::Plain { .. });
    if !state.memory.at(address).is_some_and(is_plain) {
        return Err(Error::INVALID_VALUE);
    }
    let region = state.memory.remove(address).ok_or(Error::INVALID_VALUE)?;
    let RegionKind::Plain { charge, .. } = region.kind else {
        return Err(Error::INVALID_VALUE);
    };
    release(
        driver,
        &mut state,
        region.device,
        address,
        region.bytes,
        charge,
    )
}

/// Implements `cuMemGetInfo_v2`: returns the free and the total memory of the current device.
pub(crate) fn info(free: Out<usize>, total: Out<usize>) -> Result {
    let driver = driver()?;
    let device = {
        let state = driver.state();
        let context = driver.current(&state)?;
        state
            .contexts
            .get(context)
            .map_or(0, |context| context.device)
    };
    let unit = u64::from(driver.devices[device].unit);
    let answer = driver.request(&Message::new(Kind::MemoryInfo, &[unit]))?;
    let number = |word: u64| usize::try_from(word).unwrap_or(usize::MAX);
    // The real driver accepts null for either.
    free.put_if_wanted(number(answer.words[0]));
    total.put_if_wanted(number(answer.words[1]));
    Ok(())
}

/// Implements `cuMemGetAddressRange_v2`: returns the start and the requested size of an allocation.
pub(crate) fn address_range(base: Out<u64>, size: Out<usize>, address: u64) -> Result {
    let driver = driver()?;
    let state = driver.state();
    driver.current(&state)?;
    let (at, region) = state.memory.find(address).ok_or(Error::NOT_FOUND)?;
    base.put_if_wanted(at);
    size.put_if_wanted(usize::try_from(region.requested).unwrap_or(usize::MAX));
    Ok(())
}

/// Blocks until all work of a device has ended, before mappings change.
pub(crate) fn drain_device(driver: &Driver, device: usize) -> Result {
    let contexts: Vec<_> = {
        let state = driver.state();
        let contexts = state.contexts.iter();
        contexts
            .filter(|(_, context)| context.device == device)
            .map(|(handle, _)| handle)
            .collect()
    };
    for context in contexts {
        let targets = stream::targets(&driver.state(), context);
        for target in targets {
            driver.wait(target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_taken_and_merged_again() {
        let mut free = BTreeMap::from([(1000, 100)]);
        let at: Vec<_> = (0..10)
            .map(|_| take_first(&mut free, 10).unwrap())
            .collect();
        assert_eq!(take_first(&mut free, 1), None);
        for &at in at.iter().step_by(2).chain(at.iter().skip(1).step_by(2)) {
            give_back(&mut free, at, 10);
        }
        assert_eq!(free, BTreeMap::from([(1000, 100)]));
    }
}
