//! Creation of the physical memory of blocks that return to the device.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::message::Transfer;

use super::Moves;
use crate::cuda::{Code, OUT_OF_MEMORY};
use crate::memory::{self, MovableBlock, MovableDevice, extents};
use crate::platform::Platform;

/// Time for which the creation of memory is tried again: another process may still be releasing it.
const CREATE_MAX: Duration = Duration::from_secs(2);
/// Interval between two attempts to create memory.
const CREATE_INTERVAL: Duration = Duration::from_millis(5);

/// Handles of the physical memory of blocks that return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handles {
    /// Each block has its own.
    Own,
    /// Neighbours that have stayed with the program for a while have one.
    Shared,
}

/// Groups of blocks that are to share physical memory.
#[derive(Debug, Default)]
struct Sharing {
    groups: Vec<Vec<MovableBlock>>,
    /// Group of each block, by its key.
    group_of: BTreeMap<u64, usize>,
}

impl Sharing {
    fn new(moves: &Moves, device: &MovableDevice, handles: Handles) -> Self {
        if handles == Handles::Own {
            return Self::default();
        }
        let groups = extents::groups(device, |key| moves.settled.contains(&key));
        let all = groups.iter().enumerate();
        let keys = all.flat_map(|(number, group)| group.iter().map(move |one| (one.key, number)));
        Self {
            group_of: keys.collect(),
            groups,
        }
    }

    /// Returns the blocks with which a block is to share memory, itself among them; `None` without any, or if they were taken before.
    fn take(&mut self, key: u64) -> Option<Vec<MovableBlock>> {
        let group = self.groups.get_mut(*self.group_of.get(&key)?)?;
        (!group.is_empty()).then(|| std::mem::take(group))
    }
}

/// Creation of the blocks of one device.
#[derive(Debug)]
pub(super) struct Creation<'a> {
    pub(super) device: &'a MovableDevice,
    sharing: Sharing,
    /// Begin of the restore on the clock of the process, in nanoseconds.
    begin: u64,
    /// Whether there is anything of each block that was created, by its key.
    made: BTreeMap<u64, bool>,
    /// Time that calls of the driver took, in nanoseconds.
    mapping_ns: u64,
}

impl<'a> Creation<'a> {
    pub(super) fn new(
        moves: &Moves,
        device: &'a MovableDevice,
        begin: u64,
        handles: Handles,
    ) -> Self {
        Self {
            device,
            sharing: Sharing::new(moves, device, handles),
            begin,
            made: BTreeMap::new(),
            mapping_ns: 0,
        }
    }

    /// Creates a block, with others where it is to share memory with them, unless it is there. Returns whether there is anything of it.
    pub(super) fn make<P: Platform>(
        &mut self,
        host: P,
        block: &MovableBlock,
        transfer: &mut Transfer,
    ) -> Result<bool, Code> {
        if let Some(is_made) = self.made.get(&block.key) {
            return Ok(*is_made);
        }
        let ordinal = self.device.ordinal;
        let before = host.now();
        let shared = match self.sharing.take(block.key) {
            Some(blocks) => self.create(host, || extents::create(host, ordinal, &blocks)),
            None => Ok(()),
        };
        let made =
            shared.and_then(|()| self.create(host, || memory::create_block(host, ordinal, block)));
        transfer.map_ns += host.now().saturating_sub(before);
        if let Ok(is_made) = made {
            self.made.insert(block.key, is_made);
        }
        made
    }

    /// Returns the time that calls of the driver took, without waits for memory, in nanoseconds.
    pub(super) const fn mapping_ns(&self) -> u64 {
        self.mapping_ns
    }

    /// Repeats an attempt to create memory for as long as the device has none.
    fn create<P: Platform, T>(
        &mut self,
        host: P,
        mut attempt: impl FnMut() -> Result<T, Code>,
    ) -> Result<T, Code> {
        let most = preload_state::nanoseconds(CREATE_MAX);
        loop {
            let before = host.now();
            let created = attempt();
            self.mapping_ns += host.now().saturating_sub(before);
            match created {
                Err(OUT_OF_MEMORY) if host.now().saturating_sub(self.begin) < most => {
                    host.pause(CREATE_INTERVAL);
                }
                created => return created,
            }
        }
    }
}
