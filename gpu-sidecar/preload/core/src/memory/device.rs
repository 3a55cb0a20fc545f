//! A device's reserved addresses and the allocations in them.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use super::account::Kind;
use super::physical::{self, Access, Block, Traits, size};
use super::slabs::{Slabs, piece_bytes};
use super::spans::Spans;
use super::{ReservedRange, beside_captures, limit, lock, state};
use crate::driver::{self, Address, Code, Handle, OUT_OF_MEMORY, SUCCESS};

/// Size of the reserved addresses as a multiple of the device's memory: see the tests of [`super::spans`].
const ARENA_FACTOR: u64 = 4;
/// Smallest allocation with physical memory of its own, in bytes.
pub(super) const OWN_MIN: u64 = 1 << 20;
/// Size of the slabs that smaller allocations share, in bytes.
const SLAB: u64 = 2 << 20;
/// Next buffer id. The driver numbers its allocations from 1, so these ids differ from them.
static NEXT_ID: AtomicU64 = AtomicU64::new(1 << 48);

/// State of one device.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) ordinal: c_int,
    /// Shared while memory is mapped, exclusive while peers change, so that every mapping gets the current peers.
    pub(super) access: RwLock<()>,
    pub(super) table: Mutex<Table>,
}

/// Range of reserved addresses.
#[derive(Debug)]
struct Arena {
    begin: Address,
    bytes: u64,
    free: Spans,
}

/// Reserved addresses of one device, and the allocations in them.
#[derive(Debug, Default)]
pub(super) struct Table {
    traits: Option<Traits>,
    is_native: bool,
    arenas: Vec<Arena>,
    pub(super) allocations: BTreeMap<Address, Allocation>,
    pub(super) slabs: Slabs,
    /// Blocks of the slabs, by their first address.
    slab_blocks: BTreeMap<Address, Block>,
    /// Blocks mapped for allocations during captures.
    pub(super) reserve: Vec<Block>,
    /// Allocations freed during a capture, to be waited for and unmapped once none is in progress.
    pub(super) deferred: Vec<(Address, Allocation)>,
    /// Devices that may access this one's memory, one entry for each pair of contexts that enabled it.
    pub(super) peers: Vec<super::peers::Pair>,
}

/// Memory behind an allocation.
#[derive(Debug)]
pub(super) enum Backing {
    /// Physical memory of the allocation's own.
    Own(Block),
    /// Piece of a slab, with its size in bytes.
    Piece(u64),
    /// Physical memory of another process, opened by a ticket.
    Opened(Block),
}

/// Plain allocation of the program.
#[derive(Debug)]
pub(super) struct Allocation {
    /// Size that the program requested, in bytes.
    pub(super) requested: u64,
    /// Context in which the memory was allocated, and with which it is destroyed.
    pub(super) context: Handle,
    /// Buffer id, unique in the process.
    pub(super) id: u64,
    /// Value of `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
    pub(super) sync_memops: bool,
    /// Whether a thread is freeing the allocation.
    pub(super) is_freed: bool,
    pub(super) backing: Backing,
}

impl Allocation {
    pub(super) fn new(requested: u64, context: Handle, backing: Backing) -> Self {
        Self {
            requested,
            context,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            sync_memops: false,
            is_freed: false,
            backing,
        }
    }

    /// Returns the size of the allocation in bytes, rounded up.
    pub(super) const fn bytes(&self) -> u64 {
        match &self.backing {
            Backing::Own(block) | Backing::Opened(block) => block.bytes,
            Backing::Piece(bytes) => *bytes,
        }
    }
}

impl Table {
    /// Returns the allocation that contains an address, and its first address. Padding belongs to no allocation.
    pub(super) fn find(&self, address: Address) -> Option<(Address, &Allocation)> {
        let (&at, allocation) = self.allocations.range(..=address).next_back()?;
        (address - at < allocation.requested).then_some((at, allocation))
    }

    /// Like [`Self::find`], with mutable access.
    pub(super) fn find_mut(&mut self, address: Address) -> Option<&mut Allocation> {
        let (&at, allocation) = self.allocations.range_mut(..=address).next_back()?;
        (address - at < allocation.requested).then_some(allocation)
    }

    /// Returns all mappings of this device's memory, each with its first address and size in bytes.
    pub(super) fn mapped(&self) -> Vec<(Address, u64)> {
        let allocations = self.allocations.values();
        let freed = self.deferred.iter().map(|(_, freed)| freed);
        let own = allocations
            .chain(freed)
            .filter_map(|one| match &one.backing {
                Backing::Own(block) => Some(block),
                Backing::Piece(_) | Backing::Opened(_) => None,
            });
        own.chain(self.slab_blocks.values())
            .chain(&self.reserve)
            .map(|block| (block.at, block.bytes))
            .collect()
    }

    /// Returns the block of the slab that contains an address.
    pub(super) fn slab_block(&self, address: Address) -> Option<&Block> {
        self.slab_blocks.get(&self.slabs.slab_of(address)?)
    }

    fn take_addresses(&mut self, bytes: u64) -> Option<Address> {
        self.arenas
            .iter_mut()
            .find_map(|arena| arena.free.take(bytes))
    }

    /// Returns addresses without mappings to their arena.
    fn give_addresses_back(&mut self, at: Address, bytes: u64) {
        let mut arenas = self.arenas.iter_mut();
        if let Some(arena) = arenas.find(|arena| at.wrapping_sub(arena.begin) < arena.bytes) {
            arena.free.give_back(at, bytes);
        }
    }

    /// Reserves another arena with room for at least `bytes`.
    fn grow(&mut self, ordinal: c_int, traits: &Traits, bytes: u64) -> Result<(), Code> {
        let whole = traits.total.saturating_mul(ARENA_FACTOR);
        // The process's address space may be limited; a smaller arena suffices for a while.
        let least = bytes.next_multiple_of(traits.granule);
        for wanted in [whole, whole / 4, least] {
            let wanted = wanted.max(least).next_multiple_of(traits.granule);
            let mut begin = 0;
            let align = size(traits.granule);
            // SAFETY: `begin` is valid for writes.
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
            let range = ReservedRange {
                begin,
                bytes: wanted,
                device: usize::try_from(ordinal).unwrap_or(usize::MAX),
            };
            let mut arenas = state()
                .arenas
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            arenas.push(range);
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

    /// Returns the device's properties; `None` if its memory cannot be mapped and stays the driver's.
    pub(super) fn traits(&self) -> Option<Traits> {
        let mut table = lock(&self.table);
        if table.traits.is_none() && !table.is_native {
            table.traits = Traits::of(self.ordinal);
            table.is_native = table.traits.is_none();
        }
        table.traits
    }

    /// Returns whether other processes can map its memory.
    pub(super) fn is_shareable(table: &Table) -> bool {
        table.traits.is_some_and(|traits| traits.is_shareable())
    }

    /// Takes addresses for `bytes`, reserving more if needed.
    fn take_addresses(&self, traits: &Traits, bytes: u64) -> Result<Address, Code> {
        let mut table = lock(&self.table);
        if let Some(at) = table.take_addresses(bytes) {
            return Ok(at);
        }
        table.grow(self.ordinal, traits, bytes)?;
        table.take_addresses(bytes).ok_or(OUT_OF_MEMORY)
    }

    /// Returns addresses that are unused.
    pub(super) fn give_addresses_back(&self, at: Address, bytes: u64) {
        lock(&self.table).give_addresses_back(at, bytes);
    }

    /// Returns the devices with access to this one's memory, itself last.
    pub(super) fn access_list(&self) -> Vec<Access> {
        let table = lock(&self.table);
        let mut devices: Vec<_> = table.peers.iter().map(|pair| pair.device).collect();
        devices.sort_unstable();
        devices.dedup();
        devices.retain(|device| *device != self.ordinal);
        devices.push(self.ordinal);
        devices.into_iter().map(Access::full).collect()
    }

    /// Maps existing physical memory and passes the block to `keep`, which enters it in the table. No other thread sees the block
    /// before that. Returns the parts on failure.
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
        let _guard = self.access.read().unwrap_or_else(PoisonError::into_inner);
        if let Err(code) = physical::map_all(at, &parts, &self.access_list()) {
            self.give_addresses_back(at, bytes);
            return Err((code, parts));
        }
        let block = Block { at, bytes, parts };
        Ok(keep(&mut lock(&self.table), block))
    }

    /// Creates, counts and maps physical memory. If the driver is out of memory, retries once after releasing all spare memory.
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
            limit::release(kind, bytes);
        } else if let Some(stored) = &mut lock(&self.table).traits {
            // Creation may have found that the memory cannot be shared.
            *stored = traits;
        }
        made
    }

    /// Makes a small allocation, as a piece of a slab.
    pub(super) fn piece(
        &self,
        traits: Traits,
        requested: u64,
        context: Handle,
    ) -> Result<Address, Code> {
        let bytes = piece_bytes(requested).ok_or(OUT_OF_MEMORY)?;
        let slab = SLAB.next_multiple_of(traits.granule);
        loop {
            {
                let mut table = lock(&self.table);
                if let Some(taken) = table.slabs.take(bytes) {
                    let allocation = Allocation::new(requested, context, Backing::Piece(bytes));
                    table.allocations.insert(taken.at, allocation);
                    if let Some(slab) = taken.from_empty {
                        limit::shift(Kind::Spare, Kind::Plain, slab);
                    }
                    return Ok(taken.at);
                }
            }
            // Counted as plain and then as spare under the table's lock, so that the account is never short.
            self.make(traits, Kind::Plain, &[slab], |table, block| {
                table.slabs.add(block.at, block.bytes);
                limit::shift(Kind::Plain, Kind::Spare, block.bytes);
                table.slab_blocks.insert(block.at, block);
            })?;
        }
    }

    /// Returns an unused piece to its slab. One empty slab is kept.
    pub(super) fn piece_back(&self, at: Address, bytes: u64) -> Result<(), Code> {
        {
            let mut table = lock(&self.table);
            if let Some((_, slab)) = table.slabs.give_back(at, bytes) {
                limit::shift(Kind::Plain, Kind::Spare, slab);
            }
        }
        self.release_empty_slabs(1).map(|_released| ())
    }

    /// Releases empty slabs except `keep` of them. Returns whether there were any.
    pub(super) fn release_empty_slabs(&self, keep: usize) -> Result<bool, Code> {
        let blocks: Vec<Block> = {
            let mut table = lock(&self.table);
            let empty = table.slabs.remove_empty(keep);
            empty
                .iter()
                .filter_map(|begin| table.slab_blocks.remove(begin))
                .collect()
        };
        let mut result = Ok(!blocks.is_empty());
        for block in blocks {
            if let Err(code) = self.release(block, Kind::Spare) {
                result = Err(code);
            }
        }
        result
    }

    /// Unmaps and releases unused memory. After an error of the driver the mappings are unknown: the addresses are not reused,
    /// and the memory stays counted.
    pub(super) fn release(&self, block: Block, kind: Kind) -> Result<(), Code> {
        super::ipc::withdraw(block.at);
        physical::unmap_and_release(&block)?;
        self.give_addresses_back(block.at, block.bytes);
        limit::release(kind, block.bytes);
        Ok(())
    }
}
