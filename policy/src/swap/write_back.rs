//! How a model leaves a slot: what the host does not have is copied back, then the memory is taken (M2.5, C4).

use super::{ModelBlock, Tracking};

/// Order to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapAction {
    /// Copy a block to the host, and report it by [`Tracking::copied_back`].
    CopyBack {
        /// Id of the block.
        block: ModelBlock,
        /// Size of the block, in bytes.
        bytes: u64,
        /// Writer because of which the host's copy is outdated.
        written: WrittenBy,
    },
    /// The host has everything: the memory may be taken.
    Invalidate,
}

/// First writer to a block since the host had its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenBy {
    /// A kernel, or a copy or fill on the device.
    Kernel,
    /// The host, after the first response.
    Host,
}

/// Progress of an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictionState {
    Resident,
    CopyingBack,
    Gone,
}

impl Tracking {
    /// Starts the eviction of the model from its slot; its gate must be closed. Dirty blocks are ordered to be copied
    /// back. [`SwapAction::Invalidate`] follows when the host has them all, which is at once if there are none. Does
    /// nothing if the model is already leaving. O(blocks of the model).
    pub fn evict(&mut self, actions: &mut Vec<SwapAction>) {
        if self.leaving == EvictionState::Resident {
            self.leaving = EvictionState::CopyingBack;
            self.settle(actions);
        }
    }

    /// Records that a block is back on the host. If it was written in the meantime, its copy is ordered again.
    pub fn copied_back(&mut self, block: ModelBlock, actions: &mut Vec<SwapAction>) {
        let record = self.records.get_mut(block);
        if record.and_then(|record| record.copying.take()).is_some() {
            self.copying -= 1;
            self.settle(actions);
        }
    }

    /// Cancels the eviction, or returns false if it is too late because the memory was given up. Blocks that are back
    /// on the host stay clean, and those being copied are dirty again.
    pub fn stay(&mut self) -> bool {
        if self.leaving == EvictionState::CopyingBack {
            for (_, record) in self.records.iter_mut() {
                record.dirty = record.copying.take().or(record.dirty);
            }
            self.copying = 0;
            self.leaving = EvictionState::Resident;
        }
        self.leaving == EvictionState::Resident
    }

    /// Records that the model returns to a slot. Does nothing unless it was gone.
    pub fn restoring(&mut self) {
        if self.leaving == EvictionState::Gone {
            self.leaving = EvictionState::Resident;
        }
    }

    /// Returns how much would have to be copied back if the model left now, in bytes. O(blocks of the model).
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        let records = self.records.iter().map(|(_, record)| record);
        let dirty = records.filter(|record| record.dirty.or(record.copying).is_some());
        dirty.map(|record| record.bytes).sum()
    }

    /// Once no copy is under way, orders the copies of dirty blocks, or gives up the memory.
    pub(super) fn settle(&mut self, actions: &mut Vec<SwapAction>) {
        if self.leaving != EvictionState::CopyingBack || self.copying > 0 {
            return;
        }
        for (block, record) in self.records.iter_mut() {
            if let Some(written) = record.dirty.take() {
                record.copying = Some(written);
                self.copying += 1;
                actions.push(SwapAction::CopyBack {
                    block,
                    bytes: record.bytes,
                    written,
                });
            }
        }
        if self.copying == 0 {
            self.leaving = EvictionState::Gone;
            actions.push(SwapAction::Invalidate);
        }
    }
}
