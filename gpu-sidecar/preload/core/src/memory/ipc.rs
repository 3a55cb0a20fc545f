//! Legacy inter-process handles (`cuIpcGetMemHandle`) of plain allocations. Mappings have none, so the 64 bytes are a ticket
//! of our own: which process, which of its files, and a number that nobody guesses.
//!
//! The file lists the descriptors of the memory behind the allocation. Who opens the ticket copies them out of the other
//! process (`pidfd_getfd`), which the kernel allows where it would allow to trace it: the same user, the same container, and
//! no profile against it. There, an open fails with one line that says so; nothing else is affected. The process that gives
//! out a ticket lets the others of its user do that, as far as the Yama module asks.
//!
//! Small allocations share a slab, and who opens one of them maps the slab: so it is with the driver's own.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};

use super::device::{Allocation, Place, Slot};
use super::physical::{self, Access, Block, Part, Properties};
use super::{contexts, lock, put, state};
use crate::driver::{
    self, Address, Code, Handle, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS,
};
use crate::hook::hooks;
use crate::link;

hooks! { HOOKS:
    fn cuIpcGetMemHandle(handle: *mut Ticket, address: Address) = get;
    fn cuIpcOpenMemHandle(address: *mut Address, handle: Ticket, flags: c_uint) = open;
    fn cuIpcOpenMemHandle_v2(address: *mut Address, handle: Ticket, flags: c_uint) = open;
    fn cuIpcCloseMemHandle(address: Address) = close;
}

mod files;

/// What a ticket begins with; the driver's own handles do not.
const MARK: [u8; 8] = *b"weirmem1";
/// `CUipcMemHandle`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    words: [[u8; 8]; 8],
}

/// What a ticket says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place64 {
    pid: u64,
    /// The list, by its number in that process.
    list: u64,
    id: u64,
    /// How far into the memory the allocation begins.
    offset: u64,
}

impl Ticket {
    fn new(place: Place64) -> Self {
        let mut words = [[0; 8]; 8];
        words[0] = MARK;
        let numbers = [place.pid, place.list, place.id, place.offset];
        for (word, number) in words[1..].iter_mut().zip(numbers) {
            *word = number.to_le_bytes();
        }
        Self { words }
    }

    fn read(&self) -> Option<Place64> {
        let [mark, pid, list, id, offset, ..] = self.words;
        (mark == MARK).then(|| Place64 {
            pid: u64::from_le_bytes(pid),
            list: u64::from_le_bytes(list),
            id: u64::from_le_bytes(id),
            offset: u64::from_le_bytes(offset),
        })
    }
}

/// A block that others may map.
#[derive(Debug)]
struct Offer {
    id: u64,
    list: File,
    _files: Vec<OwnedFd>,
}

/// Another process's block that is mapped here.
#[derive(Clone, Copy, Debug)]
struct Opened {
    at: Address,
    times: u32,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Tickets {
    offers: BTreeMap<Address, Offer>,
    opened: BTreeMap<u64, Opened>,
}

fn get(call: &dyn Fn() -> Code, out: *mut Ticket, address: Address) -> Code {
    if !link::is_active() || out.is_null() {
        return call();
    }
    let Some(slot) = state().owner(address) else {
        return call();
    };
    if let Err(code) = contexts::current() {
        return code;
    }
    // Before the table, as wherever both are held.
    let mut tickets = lock(&state().ipc);
    let table = lock(&slot.table);
    let block = match table.find(address) {
        Some((_, allocation)) => match &allocation.place {
            Place::Own(block) => Some(block),
            Place::Piece(_) => table.slab_block(address),
            Place::Opened(_) => None,
        },
        None => None,
    };
    // Where the allocation begins, not the address within it: the driver does the same.
    let (Some(block), Some((at, _))) = (block, table.find(address)) else {
        return INVALID_VALUE;
    };
    let offset = at - block.at;
    match offer(&mut tickets, block) {
        Ok((id, list)) => {
            let place = Place64 {
                pid: u64::from(std::process::id()),
                list,
                id,
                offset,
            };
            put(out, Ticket::new(place));
            SUCCESS
        }
        Err(code) => code,
    }
}

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

/// The block is to be unmapped: no ticket of it is good any more. Who has opened one keeps the memory.
pub(super) fn withdraw(at: Address) {
    lock(&state().ipc).offers.remove(&at);
}

fn open(call: &dyn Fn() -> Code, out: *mut Address, ticket: Ticket, flags: c_uint) -> Code {
    let Some(place) = ticket.read().filter(|_| link::is_active()) else {
        return call();
    };
    if out.is_null() || flags > 1 || place.pid == u64::from(std::process::id()) {
        return INVALID_VALUE;
    }
    match open_at(place) {
        Ok(at) => {
            put(out, at);
            SUCCESS
        }
        Err(code) => code,
    }
}

fn open_at(place: Place64) -> Result<Address, Code> {
    let context = contexts::current()?;
    let device = contexts::device()?;
    // Held to the end: two threads that open one ticket get one mapping.
    let mut tickets = lock(&state().ipc);
    if let Some(opened) = tickets.opened.get_mut(&place.id) {
        opened.times += 1;
        return Ok(opened.at + place.offset);
    }
    let parts = files::import_all(place)?;
    let mapped = map(&parts, context, device);
    let Ok((at, bytes)) = mapped else {
        physical::release_all(&parts);
        return mapped.map(|(at, _)| at);
    };
    if place.offset >= bytes {
        return Err(INVALID_VALUE);
    }
    tickets.opened.insert(place.id, Opened { at, times: 1 });
    Ok(at + place.offset)
}

fn map(parts: &[Part], context: Handle, device: c_int) -> Result<(Address, u64), Code> {
    let first = parts.first().ok_or(INVALID_VALUE)?;
    let mut properties = Properties::default();
    let place = (&raw mut properties).cast();
    // SAFETY: a handle that was imported just now; the structure is the driver's.
    let code = unsafe { driver::cuMemGetAllocationPropertiesFromHandle(place, first.handle) };
    if code != SUCCESS {
        return Err(code);
    }
    let slot = state().slot(properties.location.id).ok_or(INVALID_VALUE)?;
    let traits = slot.traits().ok_or(NOT_SUPPORTED)?;
    let kept = slot.map(&traits, parts.to_vec(), |table, block| {
        let (at, bytes) = (block.at, block.bytes);
        let allocation = Allocation::new(bytes, context, Place::Opened(block));
        table.allocations.insert(at, allocation);
        (at, bytes)
    });
    let (at, bytes) = kept.map_err(|(code, _parts)| code)?;
    if device != slot.ordinal {
        // The driver opens it to the device that has asked.
        let asked = [Access::full(device)].into_iter();
        let access: Vec<Access> = asked.chain(slot.access_list()).collect();
        let _set = physical::set_access(at, bytes, &access);
    }
    Ok((at, bytes))
}

fn close(call: &dyn Fn() -> Code, address: Address) -> Code {
    if !link::is_active() {
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
        let opened = found.filter(|(_, one)| matches!(one.place, Place::Opened(_)));
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
        // Before it is unmapped: who opens the ticket now gets a mapping of its own.
        tickets.opened.retain(|_, opened| opened.at != at);
    }
    let allocation = lock(&slot.table).allocations.remove(&at);
    let allocation = allocation.ok_or(INVALID_VALUE)?;
    super::free::dispose(slot, at, allocation)
}

/// An opened block goes with its context.
pub(super) fn closed(at: Address) {
    lock(&state().ipc)
        .opened
        .retain(|_, opened| opened.at != at);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_says_what_was_written() {
        let place = Place64 {
            pid: 7,
            list: 1_030,
            id: u64::MAX - 1,
            offset: 512,
        };
        assert_eq!(size_of::<Ticket>(), 64);
        assert_eq!(Ticket::new(place).read(), Some(place));
        let mut foreign = Ticket::new(place);
        foreign.words[0][7] ^= 1;
        assert_eq!(foreign.read(), None);
    }
}
