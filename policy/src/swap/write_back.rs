//! How a model leaves a slot: what the host does not have is copied back, then memory is taken (M2.5, C4).

use super::{ModelBlock, Tracking};

/// An order to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapAction {
    /// Copy a block to the host, and tell by [`Tracking::copied_back`].
    CopyBack {
        /// Which.
        block: ModelBlock,
        /// Its bytes.
        bytes: u64,
        /// Why the host's copy is old.
        written: WrittenBy,
    },
    /// The host has everything: the memory may be taken.
    Invalidate,
}

/// Who first wrote to a block since the host had its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenBy {
    /// A kernel, or a copy or fill on the device.
    Kernel,
    /// The host, after the first response.
    Host,
}

/// How far an eviction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    No,
    CopyingBack,
    Gone,
}

impl Tracking {
    /// The model is to leave its slot; its gate is closed. Dirty blocks are ordered copied back;
    /// [`SwapAction::Invalidate`] comes when the host has them all, at once if there are none. Nothing if it is leaving
    /// already. O(blocks of the model).
    pub fn evict(&mut self, actions: &mut Vec<SwapAction>) {
        if self.leaving == Leaving::No {
            self.leaving = Leaving::CopyingBack;
            self.settle(actions);
        }
    }

    /// A block is back on the host. If it was written meanwhile it is ordered once more.
    pub fn copied_back(&mut self, block: ModelBlock, actions: &mut Vec<SwapAction>) {
        let record = self.records.get_mut(block);
        if record.and_then(|record| record.copying.take()).is_some() {
            self.copying -= 1;
            self.settle(actions);
        }
    }

    /// The eviction is called off. False: too late, the memory was given up. Blocks that are back on the host stay
    /// clean, and those under way are dirty again.
    pub fn stay(&mut self) -> bool {
        if self.leaving == Leaving::CopyingBack {
            for (_, record) in self.records.iter_mut() {
                record.dirty = record.copying.take().or(record.dirty);
            }
            self.copying = 0;
            self.leaving = Leaving::No;
        }
        self.leaving == Leaving::No
    }

    /// The model comes back to a slot. Nothing unless it was gone.
    pub fn restoring(&mut self) {
        if self.leaving == Leaving::Gone {
            self.leaving = Leaving::No;
        }
    }

    /// What would have to be copied back if it left now, in bytes. O(blocks of the model).
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        let records = self.records.iter().map(|(_, record)| record);
        let dirty = records.filter(|record| record.dirty.or(record.copying).is_some());
        dirty.map(|record| record.bytes).sum()
    }

    /// When nothing is on its way back: orders what is dirty, or gives up the memory.
    pub(super) fn settle(&mut self, actions: &mut Vec<SwapAction>) {
        if self.leaving != Leaving::CopyingBack || self.copying > 0 {
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
            self.leaving = Leaving::Gone;
            actions.push(SwapAction::Invalidate);
        }
    }
}
