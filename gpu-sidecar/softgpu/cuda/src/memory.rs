//! Device memory and the addresses of it. All of it is shared memory of the system, mapped at the addresses that programs
//! hold: copies and kernels read and write it, and so would a program that uses a device pointer by mistake.
//!
//! Plain allocations come from a heap, one file for each device; memory made with `cuMemCreate` has a file of its own, which
//! other processes can map. What is charged to the device is counted in whole granules, as the real driver does.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use softgpu_wire::message::{Kind, Message};

use crate::context::Context;
use crate::driver::{Driver, driver};
use crate::error::{Error, Result};
use crate::pointer::{Out, place, size};
use crate::state::State;
use crate::table::Handle;
use crate::{graph, stream};

/// How memory is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// What lies at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A plain allocation; `charge`: the granules it lies in.
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
    /// Host memory that the device can reach: allocated by the driver.
    Pinned {
        context: Handle<Context>,
        flags: u32,
    },
    /// Host memory that the program has registered.
    Registered {
        context: Handle<Context>,
        flags: u32,
    },
    /// Memory of another process, opened from a handle of it.
    Opened {
        context: Handle<Context>,
        allocation: u64,
    },
    /// Memory of a pool; `is_freed`: a stream has been told to give it back.
    Pooled {
        pool: u64,
        charge: u64,
        is_freed: bool,
    },
}

/// A stretch of addresses.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) bytes: u64,
    /// As it was asked for, before rounding.
    pub(crate) asked: u64,
    pub(crate) device: usize,
    pub(crate) what: What,
    /// A number that no other allocation has (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
    pub(crate) id: u64,
    /// Work on it is waited for, however it is started (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`).
    pub(crate) sync_memops: bool,
}

impl Region {
    pub(crate) const fn is_host(&self) -> bool {
        matches!(self.what, What::Pinned { .. } | What::Registered { .. })
    }
}

/// Granules of one device, and the allocations within them.
#[derive(Debug)]
struct Heap {
    file: OwnedFd,
    base: u64,
    bytes: u64,
    granule: u64,
    /// Stretches of whole granules that nobody has, by where they begin.
    free: BTreeMap<u64, u64>,
    /// Granules that small allocations share, by where they begin.
    shared: BTreeMap<u64, Shared>,
}

/// A granule with small allocations in it.
#[derive(Debug)]
struct Shared {
    charge: u64,
    /// Stretches that nobody has, by where they begin.
    free: BTreeMap<u64, u64>,
}

/// Small allocations begin at multiples of this.
const ALIGN: u64 = 512;
/// Granules of the real driver, before the scale.
pub(crate) const GRANULE: u64 = 2 << 20;

/// See the [module](self).
pub(crate) struct Memory {
    regions: BTreeMap<u64, Region>,
    heaps: Vec<Option<Heap>>,
    pub(crate) vmm: crate::vmm::Vmm,
    /// Memory of other processes, by its key: where it is, and how often it was opened.
    pub(crate) opened: HashMap<[u64; 2], (u64, u32)>,
}

/// Takes a stretch of this length from the first free one that has it.
fn take_first(free: &mut BTreeMap<u64, u64>, bytes: u64) -> Option<u64> {
    let (&at, &there) = free.iter().find(|(_, there)| **there >= bytes)?;
    free.remove(&at);
    if there > bytes {
        free.insert(at + bytes, there - bytes);
    }
    Some(at)
}

/// Gives a stretch back, joined with its neighbours.
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
        // SAFETY: a new mapping, at a place that the kernel chooses.
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

    /// The system has these bytes back; they are zero when they are used again.
    fn punch(&self, at: u64, bytes: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _punched = fallocate(&self.file, flags, at - self.base, bytes);
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        let at = place(self.base);
        // SAFETY: the mapping made in `new`, which nobody else unmaps.
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

    /// What lies at an address, and where that begins.
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

    /// The regions of a stretch, if they fill it.
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

    /// Whether any region lies in a stretch.
    pub(crate) fn is_touched(&self, address: u64, bytes: u64) -> bool {
        let end = address.saturating_add(bytes);
        self.regions.range(address..end).next().is_some() || self.find(address).is_some()
    }

    /// Whether all of a stretch is memory that the device knows, whatever may be done with it.
    pub(crate) fn covers(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else {
            return false;
        };
        let mut next = address;
        while next < end {
            match self.find(next) {
                Some((at, region)) if end <= at + region.asked => return true,
                // What an allocation was rounded up to is not the program's.
                Some((at, region)) if region.asked == region.bytes => next = at + region.bytes,
                _ => return false,
            }
        }
        true
    }

    /// Whether an address is one of those that device memory can have.
    pub(crate) fn is_device(&self, address: u64) -> bool {
        self.vmm.is_reserved(address) || self.is_in_heap(address)
    }

    /// Whether a copy may use a stretch of memory so. What is no device address is taken for memory of the host.
    pub(crate) fn may_copy(&self, address: u64, bytes: u64, access: Access) -> bool {
        let is_host = self.find(address).is_none() && !self.is_device(address);
        is_host || self.may(address, bytes, access)
    }

    /// Whether the device may use a stretch of memory so: all of it is known, and open to it.
    pub(crate) fn may(&self, address: u64, bytes: u64, access: Access) -> bool {
        let Some(end) = address.checked_add(bytes) else {
            return false;
        };
        let mut next = address;
        while next < end {
            let Some((at, region)) = self.find(next) else {
                return false;
            };
            let is_allowed = match (&region.what, access) {
                (What::Mapped { can_read, .. }, Access::Read) => *can_read,
                (What::Mapped { can_write, .. }, Access::Write) => *can_write,
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

    /// Whether the device may use it, where only memory that it knows counts.
    pub(crate) fn is_known(&self, address: u64) -> bool {
        self.find(address).is_some()
    }

    /// The device whose memory lies at an address or just before it.
    pub(crate) fn device_near(&self, address: u64) -> Option<usize> {
        self.regions
            .range(..=address)
            .next_back()
            .map(|(_, region)| region.device)
    }

    /// All regions for which this holds.
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
                // Twice the device's memory: room enough however it is cut up.
                let bytes = driver.devices[device].memory.saturating_mul(2);
                Ok(there.insert(Heap::new(bytes, granule(driver))?))
            }
        }
    }
}

/// The granularity of device memory.
pub(crate) fn granule(driver: &Driver) -> u64 {
    (GRANULE / u64::from(driver.config.bytes)).max(4096)
}

/// Charges bytes to a device; the server says whether they are there.
pub(crate) fn charge(driver: &Driver, device: usize, bytes: u64) -> Result<u64> {
    let unit = u64::from(driver.devices[device].unit);
    let message = Message::new(Kind::Allocate, &[unit, bytes, 0, 0]);
    Ok(driver.request(&message)?.words[0])
}

/// Gives them back.
pub(crate) fn discharge(driver: &Driver, charge: u64) -> Result {
    driver
        .request(&Message::new(Kind::Free, &[charge]))
        .map(|_| ())
}

/// Device memory from the heap: where it begins, and what was charged for it.
pub(crate) fn allocate(
    driver: &Driver,
    state: &mut State,
    device: usize,
    asked: u64,
) -> Result<(u64, u64, u64)> {
    let granule = granule(driver);
    if asked == 0 {
        return Err(Error::INVALID_VALUE);
    }
    if asked > driver.devices[device].memory {
        return Err(Error::OUT_OF_MEMORY);
    }
    if asked >= granule / 2 {
        let bytes = asked.next_multiple_of(granule);
        state.memory.heap(driver, device)?;
        let charge = charge(driver, device, bytes)?;
        let heap = state.memory.heap(driver, device)?;
        let Some(at) = take_first(&mut heap.free, bytes) else {
            discharge(driver, charge)?;
            return Err(Error::OUT_OF_MEMORY);
        };
        return Ok((at, bytes, charge));
    }
    let bytes = asked.next_multiple_of(ALIGN);
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

/// Gives memory from the heap back.
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

/// What is needed to let another process map a plain allocation: the heap's file, where the allocation's granules begin in
/// it, how many bytes they are, and how far into them it begins.
pub(crate) struct Lent {
    pub(crate) file: OwnedFd,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) charge: u64,
    pub(crate) within: u64,
}

/// See [`Lent`].
pub(crate) fn lend(state: &State, at: u64) -> Result<Lent> {
    let region = state.memory.at(at).ok_or(Error::INVALID_VALUE)?;
    let What::Plain { charge, .. } = region.what else {
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
        return Ok(Lent {
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
    Ok(Lent {
        file,
        offset,
        bytes: heap.granule,
        charge: shared.charge,
        within: at - heap.base - offset,
    })
}

/// A context is gone, and its memory with it. Effects are to be paused.
pub(crate) fn forget_context(driver: &Driver, state: &mut State, context: Handle<Context>) {
    let its = state.memory.regions(|region| match region.what {
        What::Plain { context: of, .. } | What::Opened { context: of, .. } => of == context,
        What::Pinned { context: of, .. } | What::Registered { context: of, .. } => of == context,
        What::Mapped { .. } | What::Pooled { .. } => false,
    });
    for at in its {
        let Some(region) = state.memory.remove(at) else {
            continue;
        };
        let _given_back = match region.what {
            What::Plain { charge, .. } => {
                release(driver, state, region.device, at, region.bytes, charge)
            }
            What::Pinned { .. } => crate::host::unmap(at, region.bytes),
            What::Opened { allocation, .. } => {
                state.memory.opened.retain(|_, (opened, _)| *opened != at);
                crate::ipc::close_now(driver, at, &region, allocation)
            }
            _ => Ok(()),
        };
    }
}

fn allocate_plain(out: Out<u64>, asked: u64) -> Result<u64> {
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
    let (at, bytes, charge) = allocate(driver, &mut state, device, asked)?;
    let id = state.next_id();
    let region = Region {
        bytes,
        asked,
        device,
        what: What::Plain { context, charge },
        id,
        sync_memops: false,
    };
    state.memory.add(at, region);
    out.put(at)?;
    Ok(at)
}

/// `cuMemAlloc_v2`.
pub(crate) fn alloc(out: Out<u64>, bytes: usize) -> Result {
    allocate_plain(out, bytes as u64).map(|_| ())
}

/// `cuMemAllocPitch_v2`.
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

/// `cuMemFree_v2`: waits for all work of the context first, as the driver does.
pub(crate) fn free(address: u64) -> Result {
    let driver = driver()?;
    if address == 0 {
        return Ok(());
    }
    let context = {
        let mut state = driver.state();
        driver.current_any(&state)?;
        let region = state.memory.at(address).ok_or(Error::INVALID_VALUE)?;
        match region.what {
            What::Plain { context, .. } => {
                graph::refuse_while_capturing(&mut state, context)?;
                Some(context)
            }
            What::Pooled { .. } => None,
            _ => return Err(Error::INVALID_VALUE),
        }
    };
    match context {
        Some(context) => crate::context::drain(driver, context)?,
        None => return crate::pool::free_synchronously(driver, address),
    }
    let _paused = driver.effects.pause();
    let mut state = driver.state();
    let is_plain = |region: &Region| matches!(region.what, What::Plain { .. });
    if !state.memory.at(address).is_some_and(is_plain) {
        return Err(Error::INVALID_VALUE);
    }
    let region = state.memory.remove(address).ok_or(Error::INVALID_VALUE)?;
    let What::Plain { charge, .. } = region.what else {
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

/// `cuMemGetInfo_v2`.
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
    // Either may be unwanted; the real driver takes null pointers here.
    free.put_if_wanted(number(answer.words[0]));
    total.put_if_wanted(number(answer.words[1]));
    Ok(())
}

/// `cuMemGetAddressRange_v2`.
pub(crate) fn address_range(base: Out<u64>, size: Out<usize>, address: u64) -> Result {
    let driver = driver()?;
    let state = driver.state();
    driver.current(&state)?;
    let (at, region) = state.memory.find(address).ok_or(Error::NOT_FOUND)?;
    base.put_if_wanted(at);
    size.put_if_wanted(usize::try_from(region.asked).unwrap_or(usize::MAX));
    Ok(())
}

/// Waits for all work of a device: before mappings change.
pub(crate) fn settle(driver: &Driver, device: usize) -> Result {
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
    fn stretches_are_taken_and_joined_again() {
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
