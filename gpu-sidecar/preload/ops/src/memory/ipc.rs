//! Legacy inter-process handles (`cuIpcGetMemHandle`) of plain allocations. Mappings have no such handles, so the 64 bytes are a
//! ticket of this library: a process, one of its files, and a random number.
//!
//! The file lists the descriptors of the physical memory behind the allocation. A process that opens the ticket copies them from
//! the exporting process (`pidfd_getfd`), which the kernel permits where it permits tracing: for the same user and container,
//! without a security profile against it. Otherwise the open fails and logs one line; nothing else is affected. The exporting
//! process permits other processes of its user to do so, where the Yama module requires it.
//!
//! Small allocations share a slab, and opening one of them maps the whole slab, as with the driver's own allocations.

use std::ffi::c_int;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

use preload_state::memory::{Access, Backing, Block, Part, Ticket, TicketContents};

use super::state::{Offer, Slot, Tickets, lock};
use super::{current, device, extents, physical, release};
use crate::cuda::{Address, Code, Handle, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::outcome::{Outcome, Reason};
use crate::platform::{Platform, System};
use crate::residency::divide;
use crate::touch;

/// Number of attempts to give an allocation handles of its own.
const DIVISIONS_MAX: u32 = 3;
/// Largest number of handles of an allocation, enough for 16 TiB.
const PARTS_MAX: u64 = 65_536;

/// Returns the ticket of an allocation.
pub fn get<P: Platform>(host: P, address: Address) -> Outcome<Ticket> {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    let Some(slot) = host.memory().owner(address) else {
        return Outcome::Pass(Reason::Foreign);
    };
    let _there = touch::hold(host);
    // An importer maps whole handles: others' contents are not among them. The model may leave meanwhile, and return with other handles.
    for _ in 0..DIVISIONS_MAX {
        if !extents::set_to_divide(slot, address) || !divide::divide_and_wait(host) {
            break;
        }
    }
    Outcome::of(ticket(host, slot, address))
}

fn ticket<P: Platform>(host: P, slot: &Slot, address: Address) -> Result<Ticket, Code> {
    let _context = current::current(host)?;
    // Locked before the table, as in the order of locks.
    let mut tickets = lock(&host.memory().ipc);
    let table = lock(&slot.table);
    let (at, allocation) = table.find(address).ok_or(INVALID_VALUE)?;
    let block = match &allocation.backing {
        Backing::Own(block) => Some(block),
        Backing::Piece(_) => table.slab_block(address),
        Backing::Opened(_) => None,
    };
    let block = block.ok_or(INVALID_VALUE)?;
    if block.extent.is_some() {
        // It could not be divided: see [`divide`].
        return Err(NOT_SUPPORTED);
    }
    let (id, list) = offer(host, &mut tickets, block)?;
    Ok(Ticket::new(TicketContents {
        pid: u64::from(host.process_id()),
        list,
        id,
        // The handle refers to the start of the allocation, as with the driver.
        offset: at - block.at,
    }))
}

/// Exports a block, unless it is exported already, and returns the random number and the list's descriptor.
fn offer<P: Platform>(host: P, tickets: &mut Tickets, block: &Block) -> Result<(u64, u64), Code> {
    let number = |list: &File| u64::try_from(list.as_raw_fd()).map_err(|_| NOT_SUPPORTED);
    if let Some(offer) = tickets.offers.get(&block.at) {
        return Ok((offer.id, number(&offer.list)?));
    }
    let id = host.random().ok_or(NOT_SUPPORTED)?;
    let exported: Vec<OwnedFd> = block
        .parts
        .iter()
        .map(|part| host.export_memory(part.handle).map_err(|_| NOT_SUPPORTED))
        .collect::<Result<_, _>>()?;
    let list = write_list(host, id, block, &exported).ok_or(OUT_OF_MEMORY)?;
    let answer = (id, number(&list)?);
    let offer = Offer {
        id,
        list,
        files: exported,
    };
    tickets.offers.insert(block.at, offer);
    host.permit_copies();
    Ok(answer)
}

/// Writes the list: the id, the number of descriptors, and each descriptor with its size in bytes.
fn write_list<P: System>(host: P, id: u64, block: &Block, files: &[OwnedFd]) -> Option<File> {
    let mut list = host.memory_file()?;
    let mut words = vec![id, files.len() as u64];
    for (file, part) in files.iter().zip(&block.parts) {
        words.push(u64::try_from(file.as_raw_fd()).ok()?);
        words.push(part.bytes);
    }
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    list.write_all(&bytes).ok()?;
    Some(list)
}

/// Maps the memory behind a ticket, and returns the allocation's address.
pub fn open<P: Platform>(host: P, ticket: &Ticket, flags: u32) -> Outcome<Address> {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    let Some(contents) = ticket.read() else {
        return Outcome::Pass(Reason::Foreign);
    };
    if flags > 1 || contents.pid == u64::from(host.process_id()) {
        return Outcome::Fail(INVALID_VALUE);
    }
    let _there = touch::hold(host);
    Outcome::of(open_at(host, contents))
}

fn open_at<P: Platform>(host: P, contents: TicketContents) -> Result<Address, Code> {
    let context = current::current(host)?;
    let device = host.current_device()?;
    // Held to the end, so that two threads that open one ticket share one mapping.
    let mut tickets = lock(&host.memory().ipc);
    if let Some(at) = tickets.opened.open_again(contents.id, contents.offset) {
        return at.ok_or(INVALID_VALUE);
    }
    let parts = import_all(host, contents)?;
    let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
    let mapped = if contents.offset < bytes {
        map(host, &parts, context, device)
    } else {
        Err(INVALID_VALUE)
    };
    let (at, bytes) = mapped.inspect_err(|_code| physical::release_all(host, &parts))?;
    tickets.opened.open(contents.id, at, bytes);
    Ok(at + contents.offset)
}

/// Imports the memory behind a ticket as handles of this process.
fn import_all<P: Platform>(host: P, contents: TicketContents) -> Result<Vec<Part>, Code> {
    // Fails if the exporting process, and thereby the memory, is gone.
    let process = host.open_process(contents.pid).ok_or(INVALID_VALUE)?;
    let copy = |number| host.copy_descriptor(process.as_fd(), number);
    let list = File::from(copy(contents.list)?);
    let word = |at: u64| {
        let mut bytes = [0; 8];
        let read = list.read_exact_at(&mut bytes, at * 8);
        read.map(|()| u64::from_le_bytes(bytes))
            .map_err(|_| INVALID_VALUE)
    };
    // Another file has this number now, because the allocation was freed.
    if word(0)? != contents.id {
        return Err(INVALID_VALUE);
    }
    let mut parts = Vec::new();
    for number in 0..word(1)?.min(PARTS_MAX) {
        let part = word(2 + 2 * number).and_then(|file| {
            let bytes = word(3 + 2 * number)?;
            let handle = host.import_memory(copy(file)?.as_fd())?;
            Ok(Part { handle, bytes })
        });
        match part {
            Ok(part) => parts.push(part),
            Err(code) => {
                physical::release_all(host, &parts);
                return Err(code);
            }
        }
    }
    Ok(parts)
}

fn map<P: Platform>(
    host: P,
    parts: &[Part],
    context: Handle,
    device: c_int,
) -> Result<(Address, u64), Code> {
    let first = parts.first().ok_or(INVALID_VALUE)?;
    let properties = host.memory_properties(first.handle)?;
    let memory = host.memory();
    let slot = memory.slot(properties.location.id).ok_or(INVALID_VALUE)?;
    let traits = device::traits(host, slot).ok_or(NOT_SUPPORTED)?;
    let kept = device::map(host, slot, &traits, parts.to_vec(), |table, block| {
        let (at, bytes) = (block.at, block.bytes);
        let allocation = memory.allocation(bytes, context, Backing::Opened(block));
        table.insert(at, allocation);
        (at, bytes)
    });
    let (at, bytes) = kept.map_err(|(code, _parts)| code)?;
    if device != slot.ordinal {
        // The driver grants access to the opening device.
        let opener = [Access::full(device)].into_iter();
        let access: Vec<Access> = opener.chain(device::access_list(slot)).collect();
        let _set = host.set_access(at, bytes, &access);
    }
    Ok((at, bytes))
}

/// Closes the memory behind a ticket.
pub fn close<P: Platform>(host: P, address: Address) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    let Some(slot) = host.memory().owner(address) else {
        return Outcome::Pass(Reason::Foreign);
    };
    close_at(host, slot, address).into()
}

fn close_at<P: Platform>(host: P, slot: &Slot, address: Address) -> Result<(), Code> {
    let context = current::current(host)?;
    let at = {
        let table = lock(&slot.table);
        let found = table.find(address);
        let opened = found.filter(|(_, one)| one.is_opened());
        opened.ok_or(INVALID_VALUE)?.0
    };
    current::synchronize(host, context)?;
    // Closed before it is unmapped: a thread that opens the ticket now gets a new mapping.
    if !lock(&host.memory().ipc).opened.close(at) {
        return Ok(());
    }
    let allocation = lock(&slot.table).remove(at);
    let allocation = allocation.ok_or(INVALID_VALUE)?;
    release::dispose(host, slot, at, allocation)
}
