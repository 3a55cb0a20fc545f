//! A device's reserved addresses and the allocations in them.

use std::collections::BTreeMap;
use std::ffi::c_int;

use super::extents::Extents;
use super::physical::{Access, Block, Traits};
use super::slabs::{Piece, Slabs};
use super::spans::Spans;
use crate::{Address, Handle};

mod extents;

/// Size of the reserved addresses as a multiple of the device's memory: see the tests of [`Spans`].
const ARENA_FACTOR: u64 = 4;

/// Range of addresses that this library has reserved, and the ordinal of its device.
#[derive(Clone, Copy, Debug)]
struct ReservedRange {
    begin: Address,
    bytes: u64,
    device: c_int,
}

/// Ranges of addresses that this library has reserved, on all devices.
#[derive(Debug, Default)]
pub struct Ranges(Vec<ReservedRange>);

impl Ranges {
    /// Adds a range of a device.
    pub fn add(&mut self, begin: Address, bytes: u64, device: c_int) {
        self.0.push(ReservedRange {
            begin,
            bytes,
            device,
        });
    }

    /// Returns the device in whose ranges the address is; `None` if it is in none.
    #[must_use]
    pub fn owner(&self, address: Address) -> Option<c_int> {
        let mut ranges = self.0.iter();
        let known = ranges.find(|known| address.wrapping_sub(known.begin) < known.bytes)?;
        Some(known.device)
    }
}

/// Range of reserved addresses.
#[derive(Debug)]
struct Arena {
    begin: Address,
    bytes: u64,
    free: Spans,
}

/// Permission of one context to use another one's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Context that may use the memory.
    pub user: Handle,
    /// Device of the using context.
    pub device: c_int,
    /// Context that owns the memory.
    pub owner: Handle,
}

/// Memory behind an allocation.
#[derive(Debug)]
pub enum Backing {
    /// Physical memory of the allocation's own.
    Own(Block),
    /// Piece of a slab, with its size in bytes.
    Piece(u64),
    /// Physical memory of another process, opened by a ticket.
    Opened(Block),
}

/// Plain allocation of the program.
#[derive(Debug)]
pub struct Allocation {
    /// Size that the program requested, in bytes.
    pub requested: u64,
    /// Context in which the memory was allocated, and with which it is destroyed.
    pub context: Handle,
    /// Buffer id, unique in the process.
    pub id: u64,
    /// Whether memory operations are synchronous: `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
    pub sync_memops: bool,
    /// Whether a thread is freeing the allocation.
    pub is_freed: bool,
    /// Memory behind the allocation.
    pub backing: Backing,
}

impl Allocation {
    /// Creates an allocation with a buffer id that no other one has.
    #[must_use]
    pub const fn new(id: u64, requested: u64, context: Handle, backing: Backing) -> Self {
        Self {
            requested,
            context,
            id,
            sync_memops: false,
            is_freed: false,
            backing,
        }
    }

    /// Returns the size of the allocation in bytes, rounded up.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        match &self.backing {
            Backing::Own(block) | Backing::Opened(block) => block.bytes,
            Backing::Piece(bytes) => *bytes,
        }
    }

    /// Returns whether another process has allocated the memory.
    #[must_use]
    pub const fn is_opened(&self) -> bool {
        matches!(self.backing, Backing::Opened(_))
    }
}

/// Reserved addresses of one device, and the allocations in them.
#[derive(Debug, Default)]
pub struct Table {
    /// Properties of the device; `None` until they are known, and if its memory stays the driver's.
    pub traits: Option<Traits>,
    /// Whether the device's memory cannot be mapped and stays the driver's.
    pub is_native: bool,
    arenas: Vec<Arena>,
    /// Plain allocations by their address.
    allocations: BTreeMap<Address, Allocation>,
    slabs: Slabs,
    /// Blocks of the slabs, by their first address.
    slab_blocks: BTreeMap<Address, Block>,
    /// Physical memory that several of the blocks share.
    pub extents: Extents,
    /// Blocks mapped for allocations during captures.
    reserve: Vec<Block>,
    /// Allocations freed during a capture, to be waited for and unmapped once none is in progress.
    deferred: Vec<(Address, Allocation)>,
    /// Devices that may access this one's memory, one entry for each pair of contexts that enabled it.
    peers: Vec<Pair>,
}

impl Table {
    /// Returns the allocation that contains an address, and its first address. Padding belongs to no allocation.
    #[must_use]
    pub fn find(&self, address: Address) -> Option<(Address, &Allocation)> {
        let (&at, allocation) = self.allocations.range(..=address).next_back()?;
        (address - at < allocation.requested).then_some((at, allocation))
    }

    /// Like [`Self::find`], with mutable access.
    pub fn find_mut(&mut self, address: Address) -> Option<&mut Allocation> {
        let (&at, allocation) = self.allocations.range_mut(..=address).next_back()?;
        (address - at < allocation.requested).then_some(allocation)
    }

    /// Enters an allocation at its address.
    pub fn insert(&mut self, at: Address, allocation: Allocation) {
        self.allocations.insert(at, allocation);
    }

    /// Removes an allocation; `None` if it is gone, with its context.
    pub fn remove(&mut self, at: Address) -> Option<Allocation> {
        self.allocations.remove(&at)
    }

    /// Removes an allocation, to be released after the captures in progress.
    pub fn defer(&mut self, at: Address) {
        let taken = self.allocations.remove_entry(&at);
        self.deferred.extend(taken);
    }

    /// Puts an allocation back that cannot be released yet.
    pub fn defer_again(&mut self, at: Address, allocation: Allocation) {
        self.deferred.push((at, allocation));
    }

    /// Takes the allocations that were freed during captures.
    pub fn take_deferred(&mut self) -> Vec<(Address, Allocation)> {
        std::mem::take(&mut self.deferred)
    }

    /// Adds a block to the reserve.
    pub fn add_reserve(&mut self, block: Block) {
        self.reserve.push(block);
    }

    /// Takes the whole reserve.
    pub fn take_whole_reserve(&mut self) -> Vec<Block> {
        std::mem::take(&mut self.reserve)
    }

    /// Adds a permission, which later mappings get as well.
    pub fn add_peer(&mut self, pair: Pair) {
        self.peers.push(pair);
    }

    /// Returns whether some permission is meant.
    pub fn has_peer(&self, is_meant: impl Fn(&Pair) -> bool) -> bool {
        self.peers.iter().any(is_meant)
    }

    /// Returns the access to grant to the memory of the device `own`: to all peers, and last to the device itself.
    #[must_use]
    pub fn access_list(&self, own: c_int) -> Vec<Access> {
        let mut devices: Vec<c_int> = self.peers.iter().map(|pair| pair.device).collect();
        devices.sort_unstable();
        devices.dedup();
        devices.retain(|device| *device != own);
        devices.push(own);
        devices.into_iter().map(Access::full).collect()
    }

    /// Marks an allocation as being freed, so that a second free of it is refused while the first one waits. Returns its context; `None`
    /// if nothing that may be freed begins at the address.
    pub fn begin_free(&mut self, address: Address) -> Option<Handle> {
        let allocation = self.allocations.get_mut(&address)?;
        if allocation.is_freed || allocation.is_opened() {
            return None;
        }
        allocation.is_freed = true;
        Some(allocation.context)
    }

    /// Undoes [`Self::begin_free`] after a failed wait.
    pub fn undo_free(&mut self, address: Address) {
        if let Some(allocation) = self.allocations.get_mut(&address) {
            allocation.is_freed = false;
        }
    }

    /// Removes the allocations of a destroyed context, freed during a capture or not.
    pub fn context_destroyed(&mut self, context: Handle) -> Vec<(Address, Allocation)> {
        let is_its = |allocation: &Allocation| allocation.context == context;
        let allocations = self.allocations.extract_if(.., |_, one| is_its(one));
        let mut gone: Vec<_> = allocations.collect();
        gone.extend(self.deferred.extract_if(.., |(_, one)| is_its(one)));
        gone
    }

    /// Returns all mappings of this device's memory, each with its first address and size in bytes.
    #[must_use]
    pub fn mapped(&self) -> Vec<(Address, u64)> {
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
            .filter(|block| !block.is_away && block.extent.is_none())
            .map(|block| (block.at, block.bytes))
            .chain(self.extents.mapped())
            .collect()
    }

    /// Returns the blocks with contents of the program, by address: own ones, each with the context of its allocation, and slabs, which have
    /// allocations of several contexts. Memory freed during a capture is not among them.
    pub fn blocks(&self) -> impl Iterator<Item = (&Block, Option<Handle>)> {
        let own = self.allocations.values().filter_map(|one| {
            let Backing::Own(block) = &one.backing else {
                return None;
            };
            Some((block, Some(one.context)))
        });
        own.chain(self.slab_blocks.values().map(|block| (block, None)))
    }

    /// Returns the block of [`Self::blocks`] with this first address.
    pub fn block_mut(&mut self, at: Address) -> Option<&mut Block> {
        if let Some(slab) = self.slab_blocks.get_mut(&at) {
            return Some(slab);
        }
        match &mut self.allocations.get_mut(&at)?.backing {
            Backing::Own(block) => Some(block),
            Backing::Piece(_) | Backing::Opened(_) => None,
        }
    }

    /// Returns the context of each allocation.
    pub fn contexts(&self) -> impl Iterator<Item = Handle> {
        self.allocations.values().map(|one| one.context)
    }

    /// Returns a context in which memory of the device is allocated; `None` if there is no memory.
    #[must_use]
    pub fn any_context(&self) -> Option<Handle> {
        self.contexts().next()
    }

    /// Returns whether memory of other processes is mapped.
    #[must_use]
    pub fn has_opened(&self) -> bool {
        self.allocations.values().any(Allocation::is_opened)
    }

    /// Returns whether the contents at an address are on the host.
    #[must_use]
    pub fn is_away(&self, address: Address) -> bool {
        let is_in = |block: &Block| block.is_away && address.wrapping_sub(block.at) < block.bytes;
        self.slab_block(address).is_some_and(is_in)
            || self
                .find(address)
                .is_some_and(|(_, one)| match &one.backing {
                    Backing::Own(block) => is_in(block),
                    Backing::Piece(_) | Backing::Opened(_) => false,
                })
    }

    /// Returns whether other processes can map the device's memory.
    #[must_use]
    pub fn is_shareable(&self) -> bool {
        self.traits.is_some_and(|traits| traits.is_shareable())
    }

    /// Returns the block of the slab that contains an address.
    #[must_use]
    pub fn slab_block(&self, address: Address) -> Option<&Block> {
        self.slab_blocks.get(&self.slabs.slab_of(address)?)
    }

    /// Takes a piece of a slab; `None` if no slab has room.
    pub fn take_piece(&mut self, bytes: u64) -> Option<Piece> {
        self.slabs.take(bytes)
    }

    /// Returns a piece to its slab. Returns the slab's size in bytes if it is empty now.
    pub fn give_piece_back(&mut self, at: Address, bytes: u64) -> Option<u64> {
        self.slabs.give_back(at, bytes).map(|(_, slab)| slab)
    }

    /// Adds a mapped block as an empty slab.
    pub fn add_slab(&mut self, block: Block) {
        self.slabs.add(block.at, block.bytes);
        self.slab_blocks.insert(block.at, block);
    }

    /// Removes empty slabs except `keep` of them, and returns their blocks.
    pub fn remove_empty_slabs(&mut self, keep: usize) -> Vec<Block> {
        let empty = self.slabs.remove_empty(keep);
        empty
            .iter()
            .filter_map(|begin| self.slab_blocks.remove(begin))
            .collect()
    }

    /// Returns the number of parts in the reserve.
    #[must_use]
    pub fn reserved_parts(&self) -> usize {
        self.reserve.iter().map(|block| block.parts.len()).sum()
    }

    /// Takes at least `bytes` from the reserve; `None` if no block is large enough.
    pub fn take_reserve(&mut self, bytes: u64) -> Option<Block> {
        let which = self.reserve.iter().position(|block| block.bytes >= bytes)?;
        let block = self.reserve.get_mut(which)?;
        let taken = block.split(bytes);
        if block.bytes == 0 {
            self.reserve.swap_remove(which);
        }
        Some(taken)
    }

    /// Takes addresses for `bytes`; `None` if no arena has room.
    pub fn take_addresses(&mut self, bytes: u64) -> Option<Address> {
        self.arenas
            .iter_mut()
            .find_map(|arena| arena.free.take(bytes))
    }

    /// Returns addresses without mappings to their arena.
    pub fn give_addresses_back(&mut self, at: Address, bytes: u64) {
        let mut arenas = self.arenas.iter_mut();
        if let Some(arena) = arenas.find(|arena| at.wrapping_sub(arena.begin) < arena.bytes) {
            arena.free.give_back(at, bytes);
        }
    }

    /// Returns the sizes to try for another arena with room for at least `bytes`, the preferred one first. The process's address space
    /// may be limited; a smaller arena suffices for a while.
    #[must_use]
    pub fn arena_sizes(traits: &Traits, bytes: u64) -> [u64; 3] {
        let whole = traits.total.saturating_mul(ARENA_FACTOR);
        let least = bytes.next_multiple_of(traits.granule);
        [whole, whole / 4, least].map(|wanted| wanted.max(least).next_multiple_of(traits.granule))
    }

    /// Adds an arena of reserved addresses.
    pub fn add_arena(&mut self, begin: Address, bytes: u64) {
        self.arenas.push(Arena {
            begin,
            bytes,
            free: Spans::new(begin, bytes),
        });
    }

    /// Returns a context and those that may use its memory; a free waits for the work of all of them.
    #[must_use]
    pub fn users(&self, owner: Handle) -> Vec<Handle> {
        let users = self.peers.iter().filter(|pair| pair.owner == owner);
        let mut all: Vec<Handle> = users.map(|pair| pair.user).collect();
        all.push(owner);
        all
    }

    /// Removes pairs. Returns the devices without a remaining pair.
    pub fn remove_peers(&mut self, is_meant: impl Fn(&Pair) -> bool) -> Vec<c_int> {
        let gone: Vec<Pair> = self.peers.extract_if(.., |pair| is_meant(pair)).collect();
        let left = &self.peers;
        let is_left = |pair: &Pair| left.iter().any(|other| other.device == pair.device);
        let gone = gone.iter().filter(|pair| !is_left(pair));
        gone.map(|pair| pair.device).collect()
    }
}

#[cfg(test)]
mod tests;
