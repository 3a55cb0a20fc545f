//! Interprocess memory and events (`cuIpc…`): handles of 64 bytes, which the server exchanges for files.

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use softgpu_wire::message::{Kind, Message};

use crate::context;
use crate::driver::{Driver, driver};
use crate::effects::Effect;
use crate::error::{Error, Result};
use crate::event::{self, Event};
use crate::memory::{self, Region, RegionKind};
use crate::pointer::{Out, as_pointer, size};
use crate::state::event_slot;
use crate::table::Handle;

/// `CUipcMemHandle` and `CUipcEventHandle`, opaque 64 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle {
    bytes: [u8; 64],
}

/// Magic at the start of a handle.
const MARK: [u8; 8] = *b"weirsgpu";

impl IpcHandle {
    fn new(key: [u64; 2], within: u64) -> Self {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&MARK);
        for (to, word) in bytes[8..].chunks_exact_mut(8).zip([key[0], key[1], within]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        Self { bytes }
    }

    fn read(&self) -> Result<([u64; 2], u64)> {
        if self.bytes[..8] != MARK {
            return Err(Error::INVALID_VALUE);
        }
        let word = |at: usize| {
            u64::from_le_bytes(std::array::from_fn(|byte| self.bytes[8 + at * 8 + byte]))
        };
        Ok(([word(0), word(1)], word(2)))
    }
}

/// Implements `cuIpcGetMemHandle`: supports plain allocations only, like the real driver.
pub(crate) fn get_memory(out: Out<IpcHandle>, address: u64) -> Result {
    let driver = driver()?;
    let lent = {
        let state = driver.state();
        driver.current(&state)?;
        let (at, _) = state.memory.find(address).ok_or(Error::INVALID_VALUE)?;
        memory::exportable_range(&state, at)?
    };
    let message =
        Message::new(Kind::Offer, &[lent.charge, lent.offset, lent.bytes]).with_file(lent.file);
    let [first, second, ..] = driver.request(&message)?.words;
    out.put(IpcHandle::new([first, second], lent.within))
}

/// Implements `cuIpcOpenMemHandle` and `cuIpcOpenMemHandle_v2`: maps another process's memory.
pub(crate) fn open_memory(out: Out<u64>, handle: IpcHandle, flags: u32) -> Result {
    let driver = driver()?;
    driver.wait_unlocked()?;
    if flags > 1 || out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let context = driver.current(&driver.state())?;
    let (key, within) = handle.read()?;
    if let Some((at, count)) = driver.state().memory.opened.get_mut(&key) {
        // Opened before: returns the same address, which must be closed once more.
        *count += 1;
        return out.put(*at + within);
    }
    let mut answer = driver.request(&Message::new(Kind::Accept, &key))?;
    let [allocation, unit, offset, bytes, ..] = answer.words;
    let close = || memory::discharge(driver, allocation);
    let file = answer.files.pop().ok_or(Error::UNKNOWN)?;
    let device = driver
        .devices
        .iter()
        .position(|device| u64::from(device.unit) == unit);
    let (Some(device), true) = (device, within < bytes) else {
        close()?;
        return Err(Error::INVALID_VALUE);
    };
    let Some(at) = map(&file, offset, bytes) else {
        close()?;
        return Err(Error::MAP_FAILED);
    };
    let mut state = driver.state();
    let id = state.next_id();
    let region = Region {
        bytes,
        requested: bytes,
        device,
        kind: RegionKind::Opened {
            context,
            allocation,
        },
        id,
        sync_memops: false,
    };
    state.memory.add(at, region);
    state.memory.opened.insert(key, (at, 1));
    out.put(at + within)
}

fn map(file: &OwnedFd, offset: u64, bytes: u64) -> Option<u64> {
    let there = u64::try_from(fstat(file).ok()?.st_size).ok()?;
    if offset.checked_add(bytes)? > there {
        return None;
    }
    let length = usize::try_from(bytes).ok()?;
    // SAFETY: a new mapping within the file, at an address that the kernel chooses.
    let at = unsafe {
        mmap(
            std::ptr::null_mut(),
            length,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file,
            offset,
        )
    };
    Some(at.ok()?.expose_provenance() as u64)
}

/// Unmaps and releases opened memory. The caller has paused effects, or has removed the region.
pub(crate) fn close_now(driver: &Driver, at: u64, region: &Region, allocation: u64) -> Result {
    let at = as_pointer::<c_void>(at);
    // SAFETY: mapped by `open_memory`, and no longer in a region.
    unsafe { munmap(at, size(region.bytes)) }.map_err(|_| Error::UNKNOWN)?;
    memory::discharge(driver, allocation)
}

/// Implements `cuIpcCloseMemHandle`: waits for the context's work and closes opened memory once.
pub(crate) fn close_memory(address: u64) -> Result {
    let driver = driver()?;
    let context = {
        let state = driver.state();
        let current = driver.current(&state)?;
        match state.memory.find(address) {
            Some((
                _,
                Region {
                    kind: RegionKind::Opened { .. },
                    ..
                },
            )) => current,
            _ => return Err(Error::INVALID_VALUE),
        }
    };
    context::drain(driver, context)?;
    let _paused = driver.effects.pause();
    let mut state = driver.state();
    let at = state
        .memory
        .find(address)
        .map(|(at, _)| at)
        .ok_or(Error::INVALID_VALUE)?;
    if let Some((_, count)) = state
        .memory
        .opened
        .values_mut()
        .find(|(opened, _)| *opened == at)
        && *count > 1
    {
        *count -= 1;
        return Ok(());
    }
    state.memory.opened.retain(|_, (opened, _)| *opened != at);
    let region = state.memory.remove(at).ok_or(Error::INVALID_VALUE)?;
    let RegionKind::Opened { allocation, .. } = region.kind else {
        return Err(Error::INVALID_VALUE);
    };
    close_now(driver, at, &region, allocation)
}

/// Shared page of an interprocess event: the number of its records before which all effects are performed.
#[derive(Debug)]
#[repr(C)]
struct EffectCounter {
    done: AtomicU64,
}

/// Mapping of an [`EffectCounter`].
#[derive(Debug)]
pub(crate) struct EventPage {
    at: *const EffectCounter,
}

// SAFETY: atomics in memory that is mapped as long as the value lives.
unsafe impl Send for EventPage {}
// SAFETY: as above.
unsafe impl Sync for EventPage {}

impl Drop for EventPage {
    fn drop(&mut self) {
        // SAFETY: mapped in `of`, and not used afterwards.
        let _unmapped = unsafe { munmap(self.at.cast_mut().cast(), size_of::<EffectCounter>()) };
    }
}

impl EventPage {
    fn of(file: &OwnedFd) -> Result<Self> {
        if fstat(file).map_err(|_| Error::UNKNOWN)?.st_size < 8 {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: a new mapping within the file, which is sealed, at an address that the kernel chooses.
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                size_of::<EffectCounter>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        };
        let at = at.map_err(|_| Error::OUT_OF_MEMORY)?;
        Ok(Self {
            at: at.cast_const().cast(),
        })
    }

    fn counter(&self) -> &EffectCounter {
        // SAFETY: mapped for as long as `self` lives; every bit pattern is valid.
        unsafe { &*self.at }
    }

    /// Counts one more record before which all effects are performed.
    pub(crate) fn record_done(&self) {
        self.counter().done.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns whether this many records are counted. The server raises the count when a process dies.
    pub(crate) fn is_done(&self, records: u64) -> bool {
        self.counter().done.load(Ordering::Acquire) >= records
    }
}

/// State of an event that is shared with other processes.
#[derive(Debug)]
pub(crate) struct SharedEvent {
    page: Arc<EventPage>,
    file: Option<OwnedFd>,
}

impl SharedEvent {
    pub(crate) fn create() -> Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("weir-softgpu-event", flags).map_err(|_| Error::OUT_OF_MEMORY)?;
        ftruncate(&file, size_of::<EffectCounter>() as u64).map_err(|_| Error::OUT_OF_MEMORY)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(|_| Error::OPERATING_SYSTEM)?;
        Ok(Self {
            page: Arc::new(EventPage::of(&file)?),
            file: Some(file),
        })
    }

    pub(crate) fn record_effect(&self) -> Effect {
        Effect::SharedRecord(Arc::clone(&self.page))
    }

    pub(crate) fn wait_effect(&self) -> Effect {
        Effect::SharedWait(Arc::clone(&self.page))
    }
}

/// Implements `cuIpcGetEventHandle`: offers an interprocess event; only its creator can.
pub(crate) fn get_event(out: Out<IpcHandle>, handle: Handle<Event>) -> Result {
    let driver = driver()?;
    let file = {
        let state = driver.state();
        let event = state.events.get(handle).ok_or(Error::INVALID_HANDLE)?;
        let shared = event.shared.as_ref().ok_or(Error::INVALID_HANDLE)?;
        let file = shared.file.as_ref().ok_or(Error::INVALID_HANDLE)?;
        file.try_clone().map_err(|_| Error::OPERATING_SYSTEM)?
    };
    let slot = u64::from(event_slot(handle).0);
    let answer = driver.request(&Message::new(Kind::EventOffer, &[slot]).with_file(file))?;
    let [first, second, ..] = answer.words;
    out.put(IpcHandle::new([first, second], 0))
}

/// Implements `cuIpcOpenEventHandle`: opens another process's event.
pub(crate) fn open_event(out: Out<Handle<Event>>, ipc: IpcHandle) -> Result {
    let driver = driver()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let ([first, second], _) = ipc.read()?;
    let event = {
        let mut state = driver.room(1)?;
        let context = driver.current(&state)?;
        event::create(
            &mut state,
            context,
            event::FLAG_DISABLE_TIMING | event::FLAG_INTERPROCESS,
        )?
    };
    let slot = u64::from(event_slot(event).0);
    let answer = driver.request(&Message::new(Kind::EventAccept, &[first, second, slot]));
    let page = answer.and_then(|mut answer| {
        let file = answer.files.pop().ok_or(Error::UNKNOWN)?;
        EventPage::of(&file)
    });
    let mut state = driver.room(1)?;
    match page {
        Ok(page) => {
            if let Some(event) = state.events.get_mut(event) {
                event.shared = Some(SharedEvent {
                    page: Arc::new(page),
                    file: None,
                });
            }
            out.put(event)
        }
        Err(error) => {
            event::forget(driver, &mut state, event);
            Err(error)
        }
    }
}

/// Returns the number of an event's last record, by any process.
pub(crate) fn latest_record(driver: &Driver, event: Handle<Event>) -> Result<u64> {
    let slot = u64::from(event_slot(event).0);
    Ok(driver
        .request(&Message::new(Kind::Flush, &[slot + 1]))?
        .words[0])
}
