//! A device's addresses, and what lies at them.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use super::account::Kind;
use super::physical::{self, Access, Block, Traits, size};
use super::slabs::{Slabs, piece_bytes};
use super::spans::Spans;
use super::{Known, beside_captures, limit, lock, state};
use crate::driver::{self, Address, Code, Handle, OUT_OF_MEMORY, SUCCESS};

/// So many times a device's memory are reserved in addresses: see the tests of [`super::spans`].
const ARENA_FACTOR: u64 = 4;
/// Allocations from here on have memory of their own.
pub(super) const OWN_MIN: u64 = 1 << 20;
/// Smaller ones share slabs of this size.
const SLAB: u64 = 2 << 20;
/// The driver counts allocations from 1; ours are none of those.
static NEXT_ID: AtomicU64 = AtomicU64::new(1 << 48);

/// What is kept for an ordinal.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) ordinal: c_int,
    /// Held shared while memory is mapped, alone while peers change: no mapping misses a change.
    pub(super) access: RwLock<()>,
    pub(super) table: Mutex<Table>,
}

/// A range of reserved addresses.
#[derive(Debug)]
struct Arena {
    begin: Address,
    bytes: u64,
    free: Spans,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Table {
    traits: Option<Traits>,
    is_native: bool,
    arenas: Vec<Arena>,
    pub(super) allocations: BTreeMap<Address, Allocation>,
    pub(super) slabs: Slabs,
    /// The memory of slabs, by where they begin.
    slab_blocks: BTreeMap<Address, Block>,
    /// Mapped for allocations during captures.
    pub(super) reserve: Vec<Block>,
    /// Freed during a capture: to be waited for and unmapped when none is under way.
    pub(super) deferred: Vec<(Address, Allocation)>,
    /// Other devices that may use this one's memory, once for each pair of contexts that said so.
    pub(super) peers: Vec<super::peers::Pair>,
}

/// What lies behind an allocation.
#[derive(Debug)]
pub(super) enum Place {
    /// Memory of its own.
    Own(Block),
    /// A piece of a slab, of so many bytes.
    Piece(u64),
    /// Another process's memory.
    Opened(Block),
}

/// An allocation of the program.
#[derive(Debug)]
pub(super) struct Allocation {
    /// How many bytes the program asked for.
    pub(super) asked: u64,
    /// The context that it was made in, and dies with.
    pub(super) context: Handle,
    /// A number that no other allocation has.
    pub(super) id: u64,
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`
    pub(super) sync_memops: bool,
    /// A thread is about to free it.
    pub(super) is_freed: bool,
    pub(super) place: Place,
}

impl Allocation {
    pub(super) fn new(asked: u64, context: Handle, place: Place) -> Self {
        Self {
            asked,
            context,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            sync_memops: false,
            is_freed: false,
            place,
        }
    }

    /// How many bytes it takes, rounded up.
    pub(super) const fn bytes(&self) -> u64 {
        match &self.place {
            Place::Own(block) | Place::Opened(block) => block.bytes,
            Place::Piece(bytes) => *bytes,
        }
    }
}

impl Table {
    /// The allocation that an address lies in, and where that begins. The bytes that it was rounded up by are nobody's.
    pub(super) fn find(&self, address: Address) -> Option<(Address, &Allocation)> {
        let (&at, allocation) = self.allocations.range(..=address).next_back()?;
        (address - at < allocation.asked).then_some((at, allocation))
    }

    /// As [`Self::find`], to change it.
    pub(super) fn find_mut(&mut self, address: Address) -> Option<&mut Allocation> {
        let (&at, allocation) = self.allocations.range_mut(..=address).next_back()?;
        (address - at < allocation.asked).then_some(allocation)
    }

    /// What is mapped of this device's memory: where, and how many bytes.
    pub(super) fn mapped(&self) -> Vec<(Address, u64)> {
        let allocations = self.allocations.values();
        let freed = self.deferred.iter().map(|(_, freed)| freed);
        let own = allocations.chain(freed).filter_map(|one| match &one.place {
            Place::Own(block) => Some(block),
            Place::Piece(_) | Place::Opened(_) => None,
        });
        own.chain(self.slab_blocks.values())
            .chain(&self.reserve)
            .map(|block| (block.at, block.bytes))
            .collect()
    }

    /// Where a slab's memory is.
    pub(super) fn slab_block(&self, address: Address) -> Option<&Block> {
        self.slab_blocks.get(&self.slabs.slab_of(address)?)
    }

    fn take_addresses(&mut self, bytes: u64) -> Option<Address> {
        self.arenas
            .iter_mut()
            .find_map(|arena| arena.free.take(bytes))
    }

    /// Addresses at which nothing is mapped any more.
    fn give_addresses_back(&mut self, at: Address, bytes: u64) {
        let mut arenas = self.arenas.iter_mut();
        if let Some(arena) = arenas.find(|arena| at.wrapping_sub(arena.begin) < arena.bytes) {
            arena.free.give_back(at, bytes);
        }
    }

    fn grow(&mut self, ordinal: c_int, traits: &Traits, bytes: u64) -> Result<(), Code> {
        let whole = traits.total.saturating_mul(ARENA_FACTOR);
        // Addresses may be short where the process's are limited; less does for a while.
        let least = bytes.next_multiple_of(traits.granule);
        for wanted in [whole, whole / 4, least] {
            let wanted = wanted.max(least).next_multiple_of(traits.granule);
            let mut begin = 0;
            let align = size(traits.granule);
            // SAFETY: the driver writes an address.
            let code = beside_captures(|| unsafe {
                driver::cuMemAddressReserve(&raw mut begin, size(wanted), align, 0, 0)
            });
            if code != SUCCESS {
                continue;
            }
            self.arenas.push(Arena {
                begin,
                bytes: wanted,
                free: Spans::new(begin, wanted),
            });
            let known = Known {
                begin,
                bytes: wanted,
                device: usize::try_from(ordinal).unwrap_or(usize::MAX),
            };
            let mut arenas = state()
                .arenas
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            arenas.push(known);
            return Ok(());
        }
        Err(OUT_OF_MEMORY)
    }
}

impl Slot {
    pub(super) fn new(ordinal: c_int) -> Self {
        Self {
            ordinal,
            access: RwLock::default(),
            table: Mutex::default(),
        }
    }

    /// What the device is like; nothing: its memory cannot be mapped, and stays the driver's.
    pub(super) fn traits(&self) -> Option<Traits> {
        let mut table = lock(&self.table);
        if table.traits.is_none() && !table.is_native {
            table.traits = Traits::of(self.ordinal);
            table.is_native = table.traits.is_none();
        }
        table.traits
    }

    /// Whether other processes can map its memory.
    pub(super) fn is_shareable(table: &Table) -> bool {
        table.traits.is_some_and(|traits| traits.is_shareable())
    }

    /// Addresses for so many bytes.
    fn take_addresses(&self, traits: &Traits, bytes: u64) -> Result<Address, Code> {
        let mut table = lock(&self.table);
        if let Some(at) = table.take_addresses(bytes) {
            return Ok(at);
        }
        table.grow(self.ordinal, traits, bytes)?;
        table.take_addresses(bytes).ok_or(OUT_OF_MEMORY)
    }

    /// Addresses that were not used in the end, or are not any more.
    pub(super) fn give_addresses_back(&self, at: Address, bytes: u64) {
        lock(&self.table).give_addresses_back(at, bytes);
    }

    /// Who may use memory of this device, itself last.
    pub(super) fn access_list(&self) -> Vec<Access> {
        let table = lock(&self.table);
        let mut devices: Vec<_> = table.peers.iter().map(|pair| pair.device).collect();
        devices.sort_unstable();
        devices.dedup();
        devices.retain(|device| *device != self.ordinal);
        devices.push(self.ordinal);
        devices.into_iter().map(Access::full).collect()
    }

    /// Maps memory that is there and hands it to the table. Nobody but `keep` has seen it before all may use it.
    pub(super) fn map<T>(
        &self,
        traits: &Traits,
        parts: Vec<physical::Part>,
        keep: impl FnOnce(&mut Table, Block) -> T,
    ) -> Result<T, (Code, Vec<physical::Part>)> {
        let bytes = parts.iter().map(|part| part.bytes).sum();
        let at = match self.take_addresses(traits, bytes) {
            Ok(at) => at,
            Err(code) => return Err((code, parts)),
        };
        let _no_peer_changes = self.access.read().unwrap_or_else(PoisonError::into_inner);
        if let Err(code) = physical::map_all(at, &parts, &self.access_list()) {
            self.give_addresses_back(at, bytes);
            return Err((code, parts));
        }
        let block = Block { at, bytes, parts };
        Ok(keep(&mut lock(&self.table), block))
    }

    /// New memory, counted and mapped. What the driver refuses for want of memory is tried once more after all that lies
    /// idle was given up.
    pub(super) fn make<T>(
        &self,
        mut traits: Traits,
        kind: Kind,
        sizes: &[u64],
        keep: impl FnOnce(&mut Table, Block) -> T,
    ) -> Result<T, Code> {
        let bytes = sizes.iter().sum();
        if kind == Kind::Spare {
            if !limit::try_reserve(kind, bytes) {
                return Err(OUT_OF_MEMORY);
            }
        } else {
            limit::reserve(kind, bytes)?;
        }
        let mut parts = physical::create_all(&mut traits, sizes);
        if parts.as_ref().is_err_and(|code| *code == OUT_OF_MEMORY)
            && kind != Kind::Spare
            && super::spare::reclaim()
        {
            parts = physical::create_all(&mut traits, sizes);
        }
        let made = parts.and_then(|parts| {
            let made = self.map(&traits, parts, keep);
            made.map_err(|(code, parts)| {
                beside_captures(|| physical::release_all(&parts));
                code
            })
        });
        if made.is_err() {
            limit::give(kind, bytes);
        } else if let Some(known) = &mut lock(&self.table).traits {
            // It may have turned out that nothing can be shared.
            *known = traits;
        }
        made
    }

    /// A small allocation: a piece of a slab.
    pub(super) fn piece(
        &self,
        traits: Traits,
        asked: u64,
        context: Handle,
    ) -> Result<Address, Code> {
        let bytes = piece_bytes(asked).ok_or(OUT_OF_MEMORY)?;
        let slab = SLAB.next_multiple_of(traits.granule);
        loop {
            {
                let mut table = lock(&self.table);
                if let Some(taken) = table.slabs.take(bytes) {
                    let allocation = Allocation::new(asked, context, Place::Piece(bytes));
                    table.allocations.insert(taken.at, allocation);
                    if let Some(slab) = taken.from_empty {
                        limit::shift(Kind::Spare, Kind::Plain, slab);
                    }
                    return Ok(taken.at);
                }
            }
            // It goes from plain to spare and back in one breath: the account has no moment in which it lacks.
            self.make(traits, Kind::Plain, &[slab], |table, block| {
                table.slabs.add(block.at, block.bytes);
                limit::shift(Kind::Plain, Kind::Spare, block.bytes);
                table.slab_blocks.insert(block.at, block);
            })?;
        }
    }

    /// Takes back a piece of a slab that nothing uses any more. One empty slab is kept.
    pub(super) fn piece_back(&self, at: Address, bytes: u64) -> Result<(), Code> {
        {
            let mut table = lock(&self.table);
            if let Some((_, slab)) = table.slabs.give_back(at, bytes) {
                limit::shift(Kind::Plain, Kind::Spare, slab);
            }
        }
        self.release_empty_slabs(1).map(|_released| ())
    }

    /// Gives up slabs that nobody uses, but for so many. Whether there were any.
    pub(super) fn release_empty_slabs(&self, keep: usize) -> Result<bool, Code> {
        let blocks: Vec<Block> = {
            let mut table = lock(&self.table);
            let empty = table.slabs.remove_empty(keep);
            empty
                .iter()
                .filter_map(|begin| table.slab_blocks.remove(begin))
                .collect()
        };
        let mut answer = Ok(!blocks.is_empty());
        for block in blocks {
            if let Err(code) = self.release(block, Kind::Spare) {
                answer = Err(code);
            }
        }
        answer
    }

    /// Unmaps memory that nothing uses any more and gives it back. After an error of the driver nobody knows what is mapped:
    /// the addresses are not used again, and the memory stays counted.
    pub(super) fn release(&self, block: Block, kind: Kind) -> Result<(), Code> {
        super::ipc::withdraw(block.at);
        physical::unmap_and_release(&block)?;
        self.give_addresses_back(block.at, block.bytes);
        limit::give(kind, block.bytes);
        Ok(())
    }
}
