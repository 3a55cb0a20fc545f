//! Legacy inter-process handles (`cuIpcGetMemHandle`) of plain allocations. Mappings have no such handles, so the 64 bytes are a
//! ticket of this library: a process, one of its files, and a random number.
//!
//! The file lists the descriptors of the physical memory behind the allocation. A process that opens the ticket copies them from
//! the exporting process (`pidfd_getfd`), which the kernel permits where it permits tracing: for the same user and container,
//! without a security profile against it. Otherwise the open fails and logs one line; nothing else is affected. The exporting
//! process permits other processes of its user to do so, where the Yama module requires it.
//!
//! Small allocations share a slab, and opening one of them maps the whole slab, as with the driver's own allocations.

use crate::host::Host;
use preload_ops::System as _;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};

use super::device::{Allocation, Backing, Slot};
use super::physical::{self, Access, Block, Part, Properties};
use super::{contexts, lock, state, write_out};
use crate::driver::{
    self, Address, Code, Handle, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS,
};
use crate::hook::hooks;

hooks! { HOOKS:
    fn cuIpcGetMemHandle(handle: *mut Ticket, address: Address) = get;
    fn cuIpcOpenMemHandle(address: *mut Address, handle: Ticket, flags: c_uint) = open;
    fn cuIpcOpenMemHandle_v2(address: *mut Address, handle: Ticket, flags: c_uint) = open;
    fn cuIpcCloseMemHandle(address: Address) = close;
}

mod files;

/// First bytes of a ticket, which differ from those of the driver's handles.
const MARK: [u8; 8] = *b"weirmem1";
/// `CUipcMemHandle`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    words: [[u8; 8]; 8],
}

/// Contents of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TicketContents {
    pid: u64,
    /// Descriptor number of the list in the exporting process.
    list: u64,
    id: u64,
    /// Offset of the allocation within its block, in bytes.
    offset: u64,
}

impl Ticket {
    /// Encodes the contents as a ticket.
    fn new(contents: TicketContents) -> Self {
        let mut words = [[0; 8]; 8];
        words[0] = MARK;
        let numbers = [contents.pid, contents.list, contents.id, contents.offset];
        for (word, number) in words[1..].iter_mut().zip(numbers) {
            *word = number.to_le_bytes();
        }
        Self { words }
    }

    /// Decodes a ticket; `None` if it is a handle of the driver.
    fn read(&self) -> Option<TicketContents> {
        let [mark, pid, list, id, offset, ..] = self.words;
        (mark == MARK).then(|| TicketContents {
            pid: u64::from_le_bytes(pid),
            list: u64::from_le_bytes(list),
            id: u64::from_le_bytes(id),
            offset: u64::from_le_bytes(offset),
        })
    }
}

/// Block that other processes may map.
#[derive(Debug)]
struct Offer {
    id: u64,
    list: File,
    _files: Vec<OwnedFd>,
}

/// Block of another process that is mapped here, and how often it was opened.
#[derive(Clone, Copy, Debug)]
struct OpenedBlock {
    at: Address,
    times: u32,
}

/// Tickets for inter-process handles, which this process has offered or opened; see the [module](self).
#[derive(Debug, Default)]
pub(super) struct Tickets {
    offers: BTreeMap<Address, Offer>,
    opened: BTreeMap<u64, OpenedBlock>,
}

fn get(call: &dyn Fn() -> Code, out: *mut Ticket, address: Address) -> Code {
    if !Host.is_active() || out.is_null() {
        return call();
    }
    let Some(slot) = state().owner(address) else {
        return call();
    };
    if let Err(code) = contexts::current() {
        return code;
    }
    // Locked before the table, as in the order of locks.
    let mut tickets = lock(&state().ipc);
    let table = lock(&slot.table);
    let block = match table.find(address) {
        Some((_, allocation)) => match &allocation.backing {
            Backing::Own(block) => Some(block),
            Backing::Piece(_) => table.slab_block(address),
            Backing::Opened(_) => None,
        },
        None => None,
    };
    // The handle refers to the start of the allocation, as with the driver.
    let (Some(block), Some((at, _))) = (block, table.find(address)) else {
        return INVALID_VALUE;
    };
    let offset = at - block.at;
    match offer(&mut tickets, block) {
        Ok((id, list)) => {
            let contents = TicketContents {
                pid: u64::from(std::process::id()),
                list,
                id,
                offset,
            };
            write_out(out, Ticket::new(contents));
            SUCCESS
        }
        Err(code) => code,
    }
}

/// Exports a block, unless it is exported already, and returns the random number and the list's descriptor.
fn offer(tickets: &mut Tickets, block: &Block) -> Result<(u64, u64), Code> {
    let number = |list: &File| u64::try_from(list.as_raw_fd()).map_err(|_| NOT_SUPPORTED);
    if let Some(offer) = tickets.offers.get(&block.at) {
        return Ok((offer.id, number(&offer.list)?));
    }
    let id = files::random()?;
    let exported: Vec<OwnedFd> = block
        .parts
        .iter()
        .map(files::export)
        .collect::<Result<_, _>>()?;
    let list = files::write_list(id, block, &exported).ok_or(OUT_OF_MEMORY)?;
    let answer = (id, number(&list)?);
    let offer = Offer {
        id,
        list,
        _files: exported,
    };
    tickets.offers.insert(block.at, offer);
    files::allow_others();
    Ok(answer)
}

/// Invalidates the tickets of a block that is about to be unmapped. Processes that have opened one keep the memory.
pub(super) fn withdraw(at: Address) {
    lock(&state().ipc).offers.remove(&at);
}

fn open(call: &dyn Fn() -> Code, out: *mut Address, ticket: Ticket, flags: c_uint) -> Code {
    let Some(contents) = ticket.read().filter(|_| Host.is_active()) else {
        return call();
    };
    if out.is_null() || flags > 1 || contents.pid == u64::from(std::process::id()) {
        return INVALID_VALUE;
    }
    match open_at(contents) {
        Ok(at) => {
            write_out(out, at);
            SUCCESS
        }
        Err(code) => code,
    }
}

fn open_at(contents: TicketContents) -> Result<Address, Code> {
    let context = contexts::current()?;
    let device = contexts::device()?;
    // Held to the end, so that two threads that open one ticket share one mapping.
    let mut tickets = lock(&state().ipc);
    if let Some(opened) = tickets.opened.get_mut(&contents.id) {
        opened.times += 1;
        return Ok(opened.at + contents.offset);
    }
    let parts = files::import_all(contents)?;
    let mapped = map(&parts, context, device);
    let Ok((at, bytes)) = mapped else {
        physical::release_all(&parts);
        return mapped.map(|(at, _)| at);
    };
    if contents.offset >= bytes {
        return Err(INVALID_VALUE);
    }
    tickets
        .opened
        .insert(contents.id, OpenedBlock { at, times: 1 });
    Ok(at + contents.offset)
}

fn map(parts: &[Part], context: Handle, device: c_int) -> Result<(Address, u64), Code> {
    let first = parts.first().ok_or(INVALID_VALUE)?;
    let mut properties = Properties::default();
    let place = (&raw mut properties).cast();
    // SAFETY: a handle imported just now, and the driver's structure, valid for writes.
    let code = unsafe { driver::cuMemGetAllocationPropertiesFromHandle(place, first.handle) };
    if code != SUCCESS {
        return Err(code);
    }
    let slot = state().slot(properties.location.id).ok_or(INVALID_VALUE)?;
    let traits = slot.traits().ok_or(NOT_SUPPORTED)?;
    let kept = slot.map(&traits, parts.to_vec(), |table, block| {
        let (at, bytes) = (block.at, block.bytes);
        let allocation = Allocation::new(bytes, context, Backing::Opened(block));
        table.allocations.insert(at, allocation);
        (at, bytes)
    });
    let (at, bytes) = kept.map_err(|(code, _parts)| code)?;
    if device != slot.ordinal {
        // The driver grants access to the opening device.
        let opener = [Access::full(device)].into_iter();
        let access: Vec<Access> = opener.chain(slot.access_list()).collect();
        let _set = physical::set_access(at, bytes, &access);
    }
    Ok((at, bytes))
}

fn close(call: &dyn Fn() -> Code, address: Address) -> Code {
    if !Host.is_active() {
        return call();
    }
    let Some(slot) = state().owner(address) else {
        return call();
    };
    match close_at(slot, address) {
        Ok(()) => SUCCESS,
        Err(code) => code,
    }
}

fn close_at(slot: &Slot, address: Address) -> Result<(), Code> {
    let context = contexts::current()?;
    let at = {
        let table = lock(&slot.table);
        let found = table.find(address);
        let opened = found.filter(|(_, one)| matches!(one.backing, Backing::Opened(_)));
        opened.ok_or(INVALID_VALUE)?.0
    };
    match contexts::synchronise(context) {
        SUCCESS => {}
        code => return Err(code),
    }
    {
        let mut tickets = lock(&state().ipc);
        let mut opened = tickets.opened.values_mut();
        if let Some(opened) = opened.find(|opened| opened.at == at)
            && opened.times > 1
        {
            opened.times -= 1;
            return Ok(());
        }
        // Removed before it is unmapped: a thread that opens the ticket now gets a new mapping.
        tickets.opened.retain(|_, opened| opened.at != at);
    }
    let allocation = lock(&slot.table).allocations.remove(&at);
    let allocation = allocation.ok_or(INVALID_VALUE)?;
    super::free::dispose(slot, at, allocation)
}

/// Forgets an opened block that is destroyed with its context.
pub(super) fn closed(at: Address) {
    lock(&state().ipc)
        .opened
        .retain(|_, opened| opened.at != at);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_decodes_to_what_was_encoded() {
        let contents = TicketContents {
            pid: 7,
            list: 1_030,
            id: u64::MAX - 1,
            offset: 512,
        };
        assert_eq!(size_of::<Ticket>(), 64);
        assert_eq!(Ticket::new(contents).read(), Some(contents));
        let mut foreign = Ticket::new(contents);
        foreign.words[0][7] ^= 1;
        assert_eq!(foreign.read(), None);
    }
}
