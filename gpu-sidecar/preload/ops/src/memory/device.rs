//! A device's memory: addresses, slabs and mappings.

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError, RwLock};

use preload_state::memory::{Access, Backing, Block, Kind, Part, Table, Traits, piece_bytes};

use super::{ipc, limit, lock, physical, spare};
use crate::capture;
use crate::cuda::{Address, Code, Handle, OUT_OF_MEMORY};
use crate::platform::Platform;

/// State of one device.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) ordinal: c_int,
    /// Shared while memory is mapped, exclusive while peers change, so that every mapping gets the current peers.
    pub(super) access: RwLock<()>,
    pub(super) table: Mutex<Table>,
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
    pub(super) fn traits<P: Platform>(&self, host: P) -> Option<Traits> {
        let mut table = lock(&self.table);
        if table.traits.is_none() && !table.is_native {
            table.traits = physical::traits(host, self.ordinal);
            table.is_native = table.traits.is_none();
        }
        table.traits
    }

    /// Takes addresses for `bytes`, reserving more if needed.
    fn take_addresses<P: Platform>(
        &self,
        host: P,
        traits: &Traits,
        bytes: u64,
    ) -> Result<Address, Code> {
        let mut table = lock(&self.table);
        if let Some(at) = table.take_addresses(bytes) {
            return Ok(at);
        }
        let mut sizes = Table::arena_sizes(traits, bytes).into_iter();
        let reserved = sizes.find_map(|wanted| {
            let reserve = || host.reserve_addresses(wanted, traits.granule);
            Some((capture::relaxed(host, reserve).ok()?, wanted))
        });
        let (begin, reserved) = reserved.ok_or(OUT_OF_MEMORY)?;
        table.add_arena(begin, reserved);
        {
            let ranges = host.memory().ranges.write();
            let mut ranges = ranges.unwrap_or_else(PoisonError::into_inner);
            ranges.add(begin, reserved, self.ordinal);
        }
        table.take_addresses(bytes).ok_or(OUT_OF_MEMORY)
    }

    /// Returns addresses that are unused.
    pub(super) fn give_addresses_back(&self, at: Address, bytes: u64) {
        lock(&self.table).give_addresses_back(at, bytes);
    }

    /// Returns the access to grant: to all peers, and last to the device itself.
    pub(super) fn access_list(&self) -> Vec<Access> {
        lock(&self.table).access_list(self.ordinal)
    }

    /// Maps existing physical memory and passes the block to `keep`, which enters it in the table. No other thread sees the block
    /// before that. Returns the parts on failure.
    pub(super) fn map<P: Platform, T>(
        &self,
        host: P,
        traits: &Traits,
        parts: Vec<Part>,
        keep: impl FnOnce(&mut Table, Block) -> T,
    ) -> Result<T, (Code, Vec<Part>)> {
        let bytes = parts.iter().map(|part| part.bytes).sum();
        let at = match self.take_addresses(host, traits, bytes) {
            Ok(at) => at,
            Err(code) => return Err((code, parts)),
        };
        let _guard = self.access.read().unwrap_or_else(PoisonError::into_inner);
        if let Err(code) = physical::map_all(host, at, &parts, &self.access_list()) {
            self.give_addresses_back(at, bytes);
            return Err((code, parts));
        }
        let block = Block { at, bytes, parts };
        Ok(keep(&mut lock(&self.table), block))
    }

    /// Creates, counts and maps physical memory. If the driver is out of memory, retries once after releasing all spare memory.
    pub(super) fn make<P: Platform, T>(
        &self,
        host: P,
        mut traits: Traits,
        kind: Kind,
        sizes: &[u64],
        keep: impl FnOnce(&mut Table, Block) -> T,
    ) -> Result<T, Code> {
        let bytes = sizes.iter().sum();
        if kind == Kind::Spare {
            if !limit::try_reserve(host, kind, bytes) {
                return Err(OUT_OF_MEMORY);
            }
        } else {
            limit::reserve(host, kind, bytes)?;
        }
        let mut parts = physical::create_all(host, &mut traits, sizes);
        if parts.as_ref().is_err_and(|code| *code == OUT_OF_MEMORY)
            && kind != Kind::Spare
            && spare::reclaim(host)
        {
            parts = physical::create_all(host, &mut traits, sizes);
        }
        let made = parts.and_then(|parts| {
            let made = self.map(host, &traits, parts, keep);
            made.map_err(|(code, parts)| {
                capture::relaxed(host, || physical::release_all(host, &parts));
                code
            })
        });
        if made.is_err() {
            limit::release(host, kind, bytes);
        } else if let Some(stored) = &mut lock(&self.table).traits {
            // Creation may have found that the memory cannot be shared.
            *stored = traits;
        }
        made
    }

    /// Makes a small allocation, as a piece of a slab.
    pub(super) fn piece<P: Platform>(
        &self,
        host: P,
        traits: Traits,
        requested: u64,
        context: Handle,
    ) -> Result<Address, Code> {
        let bytes = piece_bytes(requested).ok_or(OUT_OF_MEMORY)?;
        let slab = Table::slab_bytes(&traits);
        loop {
            {
                let mut table = lock(&self.table);
                if let Some(taken) = table.take_piece(bytes) {
                    let backing = Backing::Piece(bytes);
                    let allocation = host.memory().allocation(requested, context, backing);
                    table.insert(taken.at, allocation);
                    if let Some(slab) = taken.from_empty {
                        limit::shift(host, Kind::Spare, Kind::Plain, slab);
                    }
                    return Ok(taken.at);
                }
            }
            // Counted as plain and then as spare under the table's lock, so that the account is never short.
            self.make(host, traits, Kind::Plain, &[slab], |table, block| {
                limit::shift(host, Kind::Plain, Kind::Spare, block.bytes);
                table.add_slab(block);
            })?;
        }
    }

    /// Returns an unused piece to its slab. One empty slab is kept.
    pub(super) fn piece_back<P: Platform>(
        &self,
        host: P,
        at: Address,
        bytes: u64,
    ) -> Result<(), Code> {
        {
            let mut table = lock(&self.table);
            if let Some(slab) = table.give_piece_back(at, bytes) {
                limit::shift(host, Kind::Plain, Kind::Spare, slab);
            }
        }
        self.release_empty_slabs(host, 1).map(|_released| ())
    }

    /// Releases empty slabs except `keep` of them. Returns whether there were any.
    pub(super) fn release_empty_slabs<P: Platform>(
        &self,
        host: P,
        keep: usize,
    ) -> Result<bool, Code> {
        let blocks = lock(&self.table).remove_empty_slabs(keep);
        let mut result = Ok(!blocks.is_empty());
        for block in blocks {
            if let Err(code) = self.release(host, block, Kind::Spare) {
                result = Err(code);
            }
        }
        result
    }

    /// Unmaps and releases unused memory. After an error of the driver the mappings are unknown: the addresses are not reused,
    /// and the memory stays counted.
    pub(super) fn release<P: Platform>(
        &self,
        host: P,
        block: Block,
        kind: Kind,
    ) -> Result<(), Code> {
        ipc::withdraw(host, block.at);
        physical::unmap_and_release(host, &block)?;
        self.give_addresses_back(block.at, block.bytes);
        limit::release(host, kind, block.bytes);
        Ok(())
    }
}
